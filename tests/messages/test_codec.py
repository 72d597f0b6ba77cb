"""What is said comes back as it was, and struct and message have the same fields."""

import re
import types
from typing import Any, get_args, get_origin

import msgspec
import pytest

from snapline import messages
from snapline.errors import ProtocolError
from snapline.messages import answers, status
from snapline.messages.host_messages import Directive, HostMessage, Leave
from snapline.messages.wire import PART_BYTES, OneofCodec, directives, host_messages, in_parts, reader_of, writer_of
from snapline.messages.wire import recovery_line_replies as lines
from snapline.messages.wire import snapshots_replies as snapshots
from snapline.protos.v1 import coordinator_pb2 as pb

ENVELOPES: list[tuple[OneofCodec[Any], Any]] = [
    (host_messages, HostMessage),
    (directives, Directive),
    (snapshots, answers.SnapshotsReply),
    (lines, answers.RecoveryLineReply),
]
SAID = [(codec, struct) for codec, base in ENVELOPES for struct in base.__subclasses__()]


def filled(kind: Any, *, is_full: bool) -> Any:
    """A value of this type: with something in every field, or with as little as may be."""
    if isinstance(kind, types.UnionType):
        return filled(get_args(kind)[0], is_full=True) if is_full else None
    if get_origin(kind) is tuple:
        return tuple(filled(get_args(kind)[0], is_full=is_full) for _ in range(2 * is_full))
    if get_origin(kind) is dict:
        return {name: filled(get_args(kind)[1], is_full=True) for name in ("b", "a")} if is_full else {}
    if issubclass(kind, msgspec.Struct):
        return kind(**{field.name: filled(field.type, is_full=is_full) for field in msgspec.structs.fields(kind)})
    return kind(b"some" if kind is bytes else 7) if is_full else kind()


@pytest.mark.parametrize(("codec", "struct"), SAID, ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_said_comes_back(codec: OneofCodec[Any], struct: Any) -> None:
    for is_full in (True, False):
        value = filled(struct, is_full=is_full)
        assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(("codec", "struct"), SAID, ids=lambda x: getattr(x, "__name__", ""))
def test_struct_and_message_have_the_same_fields(codec: OneofCodec[Any], struct: Any) -> None:
    """A field that only the message has would never be said."""
    kinds = [(struct, codec.descriptor.file.message_types_by_name[struct.__name__])]
    for found, message in kinds:
        fields = msgspec.structs.fields(found)
        assert {field.name for field in fields} == {field.name for field in message.fields}, message.name
        for field in fields:
            of = get_args(field.type)[0] if get_args(field.type) else field.type
            if isinstance(of, type) and issubclass(of, msgspec.Struct):
                kinds.append((of, message.fields_by_name[field.name].message_type))


@pytest.mark.parametrize(("codec", "base"), ENVELOPES, ids=lambda x: getattr(x, "__name__", ""))
def test_every_kind_of_an_envelope_has_a_struct_of_its_name(codec: OneofCodec[Any], base: Any) -> None:
    kinds = [field.message_type.name for field in codec.descriptor.oneofs_by_name["kind"].fields]
    assert sorted(kinds) == sorted(struct.__name__ for struct in base.__subclasses__())


def test_replies_that_are_alone_come_back() -> None:
    alone: list[tuple[Any, Any]] = [
        (answers.RecoveryHistoryReply, pb.RecoveryHistoryReply),
        (answers.LeaderTransferred, pb.LeaderTransferred),
        (status.FleetStatus, pb.FleetStatus),
        (status.SnapshotOutcome, pb.SnapshotOutcome),
        (answers.BackupReply, pb.BackupReply),
        (answers.ReportHostExitReply, pb.ReportHostExitReply),
        (answers.ReportHostBusyReply, pb.ReportHostBusyReply),
        (answers.LocateReply, pb.LocateReply),
    ]
    for struct, message in alone:
        value = filled(struct, is_full=True)
        assert reader_of(struct)(writer_of(struct, message)(value)) == value


def test_a_map_comes_back_sorted() -> None:
    line = answers.CoordinatedLine((), 1, "", {"b": 1, "a": 2, "c": 0}, (), 0, 0)
    found = lines.decode(lines.encode(line))
    assert isinstance(found, answers.CoordinatedLine) and list(found.recovery_line.items()) == [
        ("a", 2),
        ("b", 1),
        ("c", 0),
    ]


def test_bytes_of_another_version_are_refused() -> None:
    for data in (b"", b"\xfa\x01\x00", b"\x0a\x05abc"):
        with pytest.raises(ProtocolError):
            directives.decode(data)


def test_large_messages_go_in_parts() -> None:
    whole = host_messages.encode(Leave("x" * (2 * PART_BYTES)))
    parts = list(in_parts(whole))
    assert len(parts) == 3 and list(in_parts(parts[0][:100])) == [parts[0][:100]]
    assert b"".join(host_messages.decode(part).data for part in parts) == whole  # type: ignore[attr-defined]  # MessagePart


def test_the_table_of_exchanges_names_all_of_them() -> None:
    table = messages.__doc__ or ""
    for struct in (*HostMessage.__subclasses__(), *Directive.__subclasses__()):
        assert re.search(rf"\b{struct.__name__}\b", table), struct.__name__
