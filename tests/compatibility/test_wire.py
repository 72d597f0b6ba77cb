"""Messages between processes: a release may add fields, messages and calls, and change none that an earlier one knows (docs/compatibility.md)."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorSet
from tests.compatibility.fixtures import wire

STORED = sorted(Path(__file__).parent.glob("*/wire.binpb"))


def of_messages(prefix: str, messages: Iterable[DescriptorProto]) -> Iterator[tuple[str, str]]:
    for message in messages:
        name = f"{prefix}.{message.name}"
        yield name, "message"
        for field in message.field:
            choice = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            kind = f"type {field.type} {field.type_name}, label {field.label}, one of {choice or 'nothing'}"
            yield f"{name}, field {field.number}", f"{field.name}, {kind}"
        yield from of_messages(name, message.nested_type)
        yield from of_enums(name, message.enum_type)


def of_enums(prefix: str, enums: Iterable[EnumDescriptorProto]) -> Iterator[tuple[str, str]]:
    for enum in enums:
        yield from ((f"{prefix}.{enum.name}, value {value.number}", value.name) for value in enum.value)


def facts(files: FileDescriptorSet) -> dict[str, str]:
    """Return everything that both sides of a connection must agree on, by its name and number."""
    found: dict[str, str] = {}
    for file in files.file:
        found.update(of_messages(file.package, file.message_type))
        found.update(of_enums(file.package, file.enum_type))
        for service in file.service:
            for call in service.method:
                streams = f"streams {call.client_streaming} and {call.server_streaming}"
                name = f"{file.package}.{service.name}/{call.name}"
                found[name] = f"{call.input_type} to {call.output_type}, {streams}"
    return found


def broken(old: FileDescriptorSet, new: FileDescriptorSet) -> list[str]:
    """Return a sentence for each thing that a process of the old release would misunderstand."""
    now = facts(new)
    return [f"{name}: {was} is now {now.get(name, 'gone')}" for name, was in facts(old).items() if now.get(name) != was]


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.parent.name)
def test_processes_of_an_earlier_release_understand_the_present_one(stored: Path) -> None:
    assert broken(FileDescriptorSet.FromString(stored.read_bytes()), wire()) == []


def test_there_are_descriptors_of_a_release_with_fields_and_calls() -> None:
    assert STORED
    for stored in STORED:
        names = facts(FileDescriptorSet.FromString(stored.read_bytes()))
        assert len(names) > 100 and any("/" in name for name in names) and any(", field 1" in name for name in names)


def message_with_fields(files: FileDescriptorSet) -> DescriptorProto:
    return next(each for file in files.file for each in file.message_type if len(each.field) > 1)


def remove(files: FileDescriptorSet) -> None:
    del message_with_fields(files).field[0]


def renumber(files: FileDescriptorSet) -> None:
    message_with_fields(files).field[0].number = 1000


def retype(files: FileDescriptorSet) -> None:
    field = message_with_fields(files).field[0]
    field.type = field.TYPE_BYTES if field.type != field.TYPE_BYTES else field.TYPE_STRING


def repeat(files: FileDescriptorSet) -> None:
    field = message_with_fields(files).field[0]
    field.label = field.LABEL_REPEATED


def remove_call(files: FileDescriptorSet) -> None:
    service = next(each for file in files.file for each in file.service)
    del service.method[0]


def stream(files: FileDescriptorSet) -> None:
    call = next(each for file in files.file for each in file.service).method[0]
    call.client_streaming = not call.client_streaming


@pytest.mark.parametrize("change", [remove, renumber, retype, repeat, remove_call, stream])
def test_a_planted_change_is_found(change: Callable[[FileDescriptorSet], None]) -> None:
    new = wire()
    change(new)
    assert len(broken(wire(), new)) == 1


def test_additions_break_nothing() -> None:
    new = wire()
    message_with_fields(new).field.add(name="added", number=1000, type=9, label=1)
    new.file[0].message_type.add(name="Added")
    assert broken(wire(), new) == []
