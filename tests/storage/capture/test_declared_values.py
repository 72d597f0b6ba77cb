"""Values come back equal and in the same classes, or are refused with path and type."""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import types
import typing
import uuid
import zoneinfo
from typing import Annotated, Any, Literal

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapline
from snapline.errors import EncodingError
from snapline.storage.capture.declared_values import difference, survives_round_trip
from snapline.storage.capture.decoder import StateDecoder
from snapline.storage.capture.encoder import StateEncoder
from snapline.storage.capture.image import ArenaPool

T = typing.TypeVar("T")
UTC = datetime.UTC
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
DAY = datetime.datetime(2026, 1, 2, 3, 4, 5, 678)


class Shape(msgspec.Struct, frozen=True):
    name: str = ""


class Circle(Shape, frozen=True):
    radius: int = 0


class Tagged(msgspec.Struct, tag=True):
    size: float = 0.0


class Other(msgspec.Struct, tag=True):
    label: str | None = None


@dataclasses.dataclass
class Point:
    x: int = 0


@dataclasses.dataclass
class Place(Point):
    name: str = ""


@dataclasses.dataclass
class Word:
    text: str
    shown: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.shown = self.text


class Rated(msgspec.Struct):
    rate: float

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError("no rate")


@dataclasses.dataclass
class Late:
    kept: int = dataclasses.field(init=False, default=0)

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.kept


class Box(msgspec.Struct, typing.Generic[T]):
    held: T


class IntBox(Box[int]):
    pass


class Tree(msgspec.Struct):
    branches: "list[Tree]" = []
    leaf: int | msgspec.UnsetType = msgspec.UNSET


class Open(msgspec.Struct, dict=True):
    known: int = 0


class Named(typing.NamedTuple):
    first: int
    second: str = ""


@attrs.define(slots=False)
class Guarded:
    shown: int
    _hidden: int = 3


def opened(guarded: Guarded) -> Guarded:
    guarded.beside = 1  # type: ignore[attr-defined]
    return guarded


Pair: Any = collections.namedtuple("Pair", "x y")


class Entry(typing.TypedDict, total=False):
    count: int


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.StrEnum):
    RED = "red"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Odd(enum.Enum):
    PAIR = (1, 2)


def with_extra(value: Any) -> Any:
    value.extra = 1
    return value


def word(shown: str) -> Word:
    made = Word("a")
    made.shown = shown
    return made


def late() -> Late:
    made = Late()
    made.kept = 7
    assert made.twice == 14
    return made


def chain(length: int) -> Tree:
    tree = Tree()
    for _ in range(length):
        tree = Tree([tree])
    return tree


GOOD: list[tuple[Any, Any]] = [
    (Shape("a"), Shape),
    ([Tagged(1.0), Other()], list[Tagged | Other]),
    (Place(1, "x"), Place),
    (Word("a"), Word),
    (Guarded(1), Guarded),
    ({(1, "a"), (2, ("b", None))}, set),
    (frozenset({(1, 2.5)}), frozenset[Any]),
    (late(), Late),
    (Box([1]), Box[list[int]]),
    (IntBox(1), IntBox),
    (Tree([Tree(leaf=3)]), Tree),
    (Late(), Late),
    (Named(1, "x"), Named),
    ({"count": 1}, Entry),
    (Level.LOW, Level),
    (Colour.RED, Colour),
    (Right.READ | Right.WRITE, Right),
    (DAY, datetime.datetime),
    (DAY.replace(tzinfo=UTC), datetime.datetime),
    (DAY.replace(tzinfo=UTC), Any),
    (DAY.time(), datetime.time),
    (DAY.time().replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2))), datetime.time),
    (datetime.timedelta(days=-1, microseconds=1), datetime.timedelta),
    (uuid.UUID(int=5), uuid.UUID),
    (decimal.Decimal("1.50"), decimal.Decimal),
    ({(1, (2, "x")): 3}, dict),
    ({Shape("a"), Shape("b")}, set[Shape]),
    ((1, "x"), tuple[int, str]),
    ((1, 2, 3), tuple[int, ...]),
    ((), tuple[()]),
    ([None, True, 1, 1.5, "x", b"x", {"a": [1]}], Any),
    (2, float),
    ([1], collections.abc.Iterable[int]),
    ([Shape()], collections.abc.Sequence[Shape]),
    ({"a": Shape()}, collections.abc.Mapping[str, Shape]),
    (Rated(30), Rated),
    ([Rated(1.5), Rated(30)], list[Rated]),
    (np.int64(5), int),
    (np.float64(1.5), float),
    (2, Literal[1, 2]),
    (5, Annotated[int, msgspec.Meta(gt=3)]),
    (snapline.History([Shape("a")]), snapline.History[Shape]),
    (snapline.History([(1, "a")]), snapline.History[tuple[int, str]]),
]

WRONG: list[tuple[Any, Any, str]] = [
    (Circle("c", 7), Shape, "state is declared as Shape and holds a Circle"),
    ([Shape(), Circle()], list[Shape], r"state\[1\] is declared as Shape"),
    ({"a": Circle()}, dict[str, Shape], r"state\['a'\] is declared as Shape"),
    (Place(1, "x"), Point, "declared as Point and holds a Place"),
    (word("A!"), Word, "__post_init__"),
    (Guarded(1, 5), Guarded, "private ones of attrs"),
    ([Guarded(1), opened(Guarded(1))], list[Guarded], r"state\[1\].*no fields"),
    ({(1, Level.LOW)}, set[Any], r"state\[\(1, .*holds a tuple"),
    ({frozenset({1})}, set[Any], "holds a frozenset"),
    (with_extra(Late()), Late, "no fields"),
    (with_extra(Open()), Open, "no fields"),
    (Box(Level.LOW), Box[int], r"state\.held is declared as int and holds"),
    (IntBox(Level.LOW), IntBox, r"state\.held"),
    (Tree([Tree(leaf=Level.LOW)]), Tree, r"state\.branches\[0\]\.leaf"),
    (Level.LOW, int, r"holds a Level \(<Level.LOW: 1>\)"),
    ([1, Level.LOW], list[int], r"state\[1\]"),
    (Colour.RED, str, "holds a Colour"),
    (Odd.PAIR, Odd, "keep the value"),
    (Level.LOW, Any, "declared as Any"),
    (True, int, "holds a bool"),
    (2**60 + 1, float, "no room"),
    (DAY.replace(tzinfo=BERLIN), datetime.datetime, "keep it in UTC"),
    (DAY.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=1))), datetime.datetime, "keep it in UTC"),
    (DAY.replace(fold=1), datetime.datetime, "fold=0"),
    (DAY, Any, "declare the type datetime"),
    (DAY, datetime.date, "holds a datetime"),
    (DAY.time().replace(tzinfo=BERLIN), datetime.time, "fixed offset"),
    (collections.defaultdict(list), dict[str, list[int]], "holds a defaultdict.*setdefault"),
    (collections.Counter("aa"), dict[str, int], "holds a Counter"),
    ([collections.OrderedDict(a=1)], list[dict[str, int]], r"state\[0\].*holds an OrderedDict"),
    (Named(1), tuple[int, str], "holds a Named"),
    (Named(1), Any, "holds a Named"),
    (Pair(1, 2), tuple, "holds a Pair"),  # such a one is meant
    ((1, 2), Any, "holds a tuple.*make a list"),
    (collections.OrderedDict(a=1), collections.OrderedDict[str, int], "holds an OrderedDict"),
    (collections.defaultdict(int), collections.defaultdict[str, int], "holds a defaultdict"),
    ((1,), collections.abc.Iterable[int], "holds a tuple"),
    ((1,), collections.abc.Sequence[int], "holds a tuple"),
    ({"a": [(1,)]}, dict[str, Any], r"state\['a'\]\[0\]"),
    ({1}, Any, "holds a set"),
    ({1}, frozenset[int], "holds a set"),
    ([1], tuple[int], "holds a list"),
    ((1,), list[int], "holds a tuple"),
    ((1, 2, 3), tuple[int, int], "declared as tuple"),
    (Shape(), Any, "holds a Shape"),
    ({Shape("a"), Circle("b")}, set[Shape], "holds a Circle"),
    ({"count": 1, "more": 2}, Entry, "only the keys"),
    ({Level.LOW: 1}, dict[int, int], "the key <Level.LOW: 1>"),
    (True, Literal[1, 2], "declared as Literal"),
    (3, Annotated[int, msgspec.Meta(gt=3)], "Meta"),
    (bytearray(b"x"), bytes, "holds a bytearray"),
    (snapline.History([Shape(), Circle()]), snapline.History[Shape], r"state\[1\]"),
    (snapline.History([(1, 2)]), snapline.History[Any], r"state\[0\].*holds a tuple"),
]


def loaded(value: object, declared: Any) -> object:
    return StateDecoder(declared).decode(StateEncoder(ArenaPool(), declared=declared).encode_inline(value))


def same(one: Any, other: Any) -> bool:
    """Equal in the same classes, all the way down; numbers of NumPy, and integers as floats, in equal values."""
    if isinstance(one, np.generic) or type(other) is float:
        return bool(one == other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | snapline.History):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, set | frozenset):
        return one == other and sorted(map(repr, one)) == sorted(map(repr, other))
    if isinstance(one, Guarded):
        return bool(vars(one) == vars(other))
    if isinstance(one, datetime.datetime | datetime.time):
        is_ambiguous = one.tzinfo is None  # in UTC the fold means nothing
        return one == other and one.utcoffset() == other.utcoffset() and (one.fold == other.fold or not is_ambiguous)
    names: Any = getattr(one, "__struct_fields__", ()) or getattr(one, "__dataclass_fields__", ())
    return all(same(getattr(one, name), getattr(other, name)) for name in names) and (bool(names) or one == other)


@pytest.mark.parametrize(("value", "declared"), GOOD, ids=[f"{i}-{type(x[0]).__name__}" for i, x in enumerate(GOOD)])
def test_values_as_declared_come_back_as_they_are(value: Any, declared: Any) -> None:
    assert survives_round_trip(value, declared) and not difference(value, declared, "state")
    assert same(value, loaded(value, declared))
    assert survives_round_trip([value, value], list[declared]) and survives_round_trip(
        {"a": value}, dict[str, declared]
    )


@pytest.mark.parametrize(
    ("value", "declared", "says"), WRONG, ids=[f"{i}-{type(x[0]).__name__}" for i, x in enumerate(WRONG)]
)
def test_values_that_would_come_back_as_others_are_refused(value: Any, declared: Any, says: str) -> None:
    encoder = StateEncoder(ArenaPool(), declared=declared)
    for encode in (encoder.encode, encoder.encode_inline):
        with pytest.raises(EncodingError, match=says):
            encode(value)


_SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**63), 2**63 - 1)),
    (float, st.floats(allow_nan=False)),
    (str, st.text(max_size=5)),
    (bytes, st.binary(max_size=5)),
    (bool, st.booleans()),
    (Level, st.just(Level.LOW)),
    (Colour, st.just(Colour.RED)),
    (datetime.datetime, st.datetimes(timezones=st.sampled_from([None, UTC, BERLIN]))),
    (Shape, st.builds(Shape, st.text(max_size=3))),
    (Circle, st.builds(Circle, st.text(max_size=3), st.integers(0, 9))),
    (Named, st.builds(Named, st.integers(0, 9), st.text(max_size=3))),
    (Word, st.sampled_from([Word("a"), word("b")])),
    (Any, st.none() | st.integers(0, 9) | st.text(max_size=3)),
]
_TYPES = st.recursive(
    st.sampled_from([kind for kind, _ in _SCALARS]),
    lambda inner: (
        inner.map(lambda kind: types.GenericAlias(list, (kind,)))
        | inner.map(lambda kind: types.GenericAlias(tuple, (kind, ...)))
        | inner.map(lambda kind: types.GenericAlias(dict, (str, kind)))
        | inner.map(lambda kind: kind | None)
        | inner.map(lambda kind: Box.__class_getitem__(kind))  # type: ignore[attr-defined]  # of every generic class
    ),
    max_leaves=4,
)
_ANYTHING = st.recursive(
    st.one_of([values for _, values in _SCALARS]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.just(Colour.RED), inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(collections.OrderedDict)
        | st.builds(Box, inner)
        | st.frozensets(
            st.integers(0, 9) | st.tuples(st.text(max_size=2), st.sampled_from([1, Colour.RED])), max_size=3
        )
    ),
    max_leaves=5,
)


@given(_TYPES, _ANYTHING, st.data())
def test_whatever_is_saved_comes_back_equal_or_is_refused(declared: Any, anything: Any, data: st.DataObject) -> None:
    value = data.draw(st.just(anything) | _of(declared))
    try:
        found = loaded(value, declared)
    except EncodingError as error:
        assert "state" in str(error) and not survives_round_trip(value, declared)
        return
    assert same(value, found)


def _of(declared: Any) -> st.SearchStrategy[Any]:
    """Values of a type, with some of a wrong one among them."""
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin is list:
        return st.lists(_of(inner[0]), max_size=3)
    if origin is tuple:
        return st.lists(_of(inner[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=2), _of(inner[1]), max_size=3)
    if origin is Box:
        return st.builds(Box, _of(inner[0]))
    if inner:
        return st.one_of([_of(each) if each is not type(None) else st.none() for each in inner])
    right = dict(_SCALARS)[declared]
    return st.integers(0, 9).flatmap(lambda n: _ANYTHING if n == 0 else right)


def test_a_chain_that_is_deeper_than_the_stack_is_walked_level_by_level() -> None:
    assert survives_round_trip(chain(600), Tree)
    assert not survives_round_trip(chain(600), Box[int]) and survives_round_trip([[1]], list[list[int]])


def test_only_new_records_of_a_history_are_looked_at() -> None:
    declared = snapline.History[Shape]
    history: Any = snapline.History([Shape("a")])
    encoder = StateEncoder(ArenaPool(), declared=declared)
    encoder.encode(history).release()
    history._records[0] = Circle()  # no method does that: it would be seen if the record were looked at again
    encoder.encode(history).release()
    history.append(Circle("new"))
    with pytest.raises(EncodingError, match=r"holds a Circle"):
        encoder.encode(history)


def test_a_field_that_cannot_be_encoded_at_all_is_told_first() -> None:
    with pytest.raises(EncodingError, match=r"state\[1\] cannot be saved"):
        StateEncoder(ArenaPool(), declared=list[Any]).encode([(1,), object()])


def test_annotations_that_cannot_be_evaluated_refuse_nothing() -> None:
    class Hidden(msgspec.Struct):
        inner: "NowhereDefined"  # type: ignore[name-defined]  # noqa: F821  # that is the point

    assert survives_round_trip(Hidden(Circle()), Hidden)


def test_arrays_in_classes_with_post_init_are_neither_copied_nor_changed() -> None:
    @dataclasses.dataclass
    class Scaled:
        values: np.ndarray[Any, Any]

        def __post_init__(self) -> None:
            self.values *= 2

    array = np.ones(3)
    value = Scaled(array)
    assert not survives_round_trip(value, Scaled) and array.tolist() == [2, 2, 2]
