"""A house rule on memory: what the garbage collector does not see (`gc=False`) refers to nothing that could refer back to it.

Else it is never freed, with all that it holds: a simulated world stayed in memory for ever, after one run in ten.
"""

import collections.abc
import enum
import importlib
import pkgutil
import typing
from collections.abc import Iterator

import msgspec
import pytest

import snapline

PLAIN = (int, float, str, bytes, bool, bytearray, memoryview, type(None), enum.Enum, msgspec.Struct)

EXCUSED = {
    "Note.fields": "words and numbers, for a log",
    "Missing.channel": "a place in a history, which knows nothing of the questions to it",
    "Committed.result": "what a state machine answers: a struct",
    "_Node.value": "a state is looked through, and forgets nothing of itself",
    "_Node.step": "the same",
}

OTHERS_PACKAGES = (
    "torch",
    "ray",
    "langgraph",
    "autogen_core",
    "pydantic_ai",
    "pydantic_core",
    "agents",
    "agent_framework",
    "workflows",
    "crewai",
)
"""Not everybody has them."""


def structs(package: str) -> Iterator[type[msgspec.Struct]]:
    """All that are made without a place in the collector's lists."""
    for found in pkgutil.walk_packages(snapline.__path__, package + "."):
        if found.name.startswith("snapline.protos.") or found.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            assert error.name in OTHERS_PACKAGES
            continue
        for each in vars(module).values():
            is_own = isinstance(each, type) and each.__module__ == found.name and issubclass(each, msgspec.Struct)
            if is_own and each.__struct_config__.gc is False:
                yield each


def kinds(annotation: object) -> Iterator[object]:
    """What values of an annotated field are made of."""
    if typing.get_origin(annotation) in (typing.Literal, collections.abc.Callable):
        if typing.get_origin(annotation) is collections.abc.Callable:
            yield annotation
        return
    if typing.get_args(annotation):
        for part in typing.get_args(annotation):
            yield from kinds(part)
    elif annotation is not Ellipsis:
        yield getattr(annotation, "__supertype__", annotation)


def suspicious(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Fields that may hold anything but plain data."""
    for field, annotation in typing.get_type_hints(kind).items():
        if field in kind.__struct_fields__:
            for part in kinds(annotation):
                if not (isinstance(part, type) and issubclass(part, PLAIN)):
                    yield f"{kind.__name__}.{field}"


def test_what_the_collector_does_not_see_is_plain_data() -> None:
    found = list(structs("snapline"))
    assert len(found) > 200
    assert {field for each in found for field in suspicious(each)} == set(EXCUSED)


class _Calls(msgspec.Struct, gc=False):
    then: collections.abc.Callable[[int], None]
    plain: tuple[int, str | None] = (0, None)


class _Holds(msgspec.Struct, gc=False):
    parts: dict[str, list[pytest.Item]]


def test_a_callback_and_an_object_are_found() -> None:
    assert [*suspicious(_Calls), *suspicious(_Holds)] == ["_Calls.then", "_Holds.parts"]
