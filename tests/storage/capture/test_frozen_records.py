"""What a history takes as a record, what it refuses, and how records come back."""

import dataclasses
import enum
from typing import Any

import msgspec
import pytest
from tests.storage.capture.segments_kept import Message, message, read, take

from snapline.errors import EncodingError
from snapline.storage.capture.history import History, is_immutable_type


class Color(enum.Enum):
    RED = "red"


class Loose(msgspec.Struct):
    text: str


class Deep(msgspec.Struct, frozen=True):
    inner: Any


class Tree(msgspec.Struct, frozen=True):
    name: str
    children: "tuple[Tree, ...]" = ()


class ListInside(msgspec.Struct, frozen=True):
    items: list[int]


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    color: Color | None = None


@dataclasses.dataclass
class LoosePoint:
    x: int


@pytest.mark.parametrize(
    "record", ["a", b"a", 1, 2.5, None, True, Color.RED, (1, 2), frozenset({1}), message(1), Point(1), Deep(1)]
)
def test_takes_what_cannot_change(record: Any) -> None:
    history = History([record])
    history.append(record)
    assert take(history, None).restored(type(record)) == [record, record]


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ([1], "list"),
        ({"a": 1}, "dict"),
        (bytearray(1), "bytearray"),
        (Loose("a"), "Loose"),
        (LoosePoint(1), "LoosePoint"),
        ((1, [2]), r"tuple\[1\] is a list"),
        (Deep(Deep({1})), r"Deep.inner.inner is a set"),
        (ListInside([1]), r"ListInside.items is a list"),
        (Tree("a", (Tree("b", [1]),)), r"Tree.children\[0\].children is a list"),  # type: ignore[arg-type]  # meant
        (object(), "object"),
        (lambda: 1, "function"),
    ],
)
def test_refuses_what_can_change_and_names_it(record: Any, named: str) -> None:
    history: History[Any] = History([1])
    for change in (history.append, lambda x: history.extend([2, x]), lambda x: history.insert(0, x)):
        with pytest.raises(EncodingError, match=named):
            change(record)
    with pytest.raises(EncodingError, match=named):
        history[0] = record
    with pytest.raises(EncodingError, match=named):
        History([record])
    assert history == [1]


def test_looks_into_each_record_where_its_type_does_not_say_enough() -> None:
    """The first record of a type was harmless."""
    history: History[Any] = History([Deep(1), (1,)])
    with pytest.raises(EncodingError, match=r"Deep\.inner is a list"):
        history.append(Deep([]))
    with pytest.raises(EncodingError, match="list"):
        history.append(([],))
    assert is_immutable_type(Message) and is_immutable_type(Tree) and is_immutable_type(Point)
    assert not is_immutable_type(Deep) and not is_immutable_type(ListInside) and not is_immutable_type(tuple)


def test_the_same_records_are_the_same_bytes_in_every_process() -> None:
    words = frozenset(f"word {i}" for i in range(50))
    (content,) = take(History([words]), None).contents
    assert msgspec.msgpack.decode(content[5:]) == [sorted(words)]


def test_numbers_of_numpy_are_plain_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    history = History([numpy.float32(1.5), numpy.int64(3)])
    assert read(take(history, None).contents, Any) == [1.5, 3]
    assert type(take(history, None).restored(numpy.float32)[0]) is numpy.float32
    with pytest.raises(EncodingError, match="ndarray"):
        history.append(numpy.zeros(3))


def test_without_a_declared_type_plain_values_come_back() -> None:
    back = take(History([message(1), (1, (2, 3))]), None).restored(Any)
    assert list(back) == [{"role": "user", "text": "x" * 20, "number": 1}, (1, (2, 3))]


def test_may_be_declared_as_a_field_of_a_state() -> None:
    class State(msgspec.Struct):
        messages: History[Message]

    body = msgspec.msgpack.encode(State(History([message(1)])), enc_hook=lambda value: value.records_for_inline())
    types = []

    def decode(declared: type, value: Any) -> Any:
        types.append(declared)
        return History.of_decoded([msgspec.convert(record, Message) for record in value])

    assert msgspec.msgpack.decode(body, type=State, dec_hook=decode) == State(History([message(1)]))
    assert types == [History[Message]]
