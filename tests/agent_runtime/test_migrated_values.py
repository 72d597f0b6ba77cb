"""What a step may return: all that a state may hold, arrays without a copy, and nothing that could not be saved again."""

import dataclasses
import datetime
import decimal
import enum
import random
import uuid
from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given
from tests.agent_runtime.migrating import Plain, State, same, saved, worker

from snapline.agent_runtime.agent import Agent
from snapline.agent_runtime.migrations import MigrationPlan, load_state, migrates, plain_of, plan_migration, state_of
from snapline.errors import DamagedDataError, EncodingError
from snapline.storage.capture.chunking import chunk_image
from snapline.storage.capture.encoder import StateEncoder
from snapline.storage.capture.history import History
from snapline.storage.capture.image import ArenaPool, ChunkTable
from snapline.storage.capture.values import Blob
from snapline.storage.packs.checkpoint import AgentCheckpoint

# ---- what steps may return --------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int = 0


class Line(msgspec.Struct, array_like=True, tag=True, frozen=True):
    ends: tuple[Point, Point]


class Circle(msgspec.Struct, array_like=True, tag="circle", frozen=True):
    radius: float


class Named(msgspec.Struct, tag_field="what", tag="named", rename="camel"):
    long_name: str


class Numbered(msgspec.Struct, tag_field="what", tag="numbered", omit_defaults=True):
    number: int = 5


class Pair(NamedTuple):
    left: int
    right: str


@dataclasses.dataclass
class Record:
    points: list[Point]
    note: str | None = None


UTC = datetime.UTC
VALUES: list[tuple[Any, Any]] = [
    (int | None, 2**63),
    (float, float("inf")),
    (bytes, b"\0\xff"),
    (bytearray, bytearray(b"ab")),
    (Colour, Colour.RED),
    (dict[Colour, int], {Colour.RED: 1}),
    (set[Point], {Point(1), Point(2, 3)}),
    (frozenset[str], frozenset("ab")),
    (tuple[int, str], (1, "a")),
    (dict[int, set[str]], {1: {"a"}}),
    (dict[tuple[int, int], str], {(1, 2): "a"}),
    (dict[uuid.UUID, int], {uuid.UUID(int=7): 1}),
    (Line | Circle, Line((Point(1), Point(2)))),
    (list[Line | Circle], [Circle(1.5), Line((Point(1), Point(2)))]),
    (list[Named | Numbered], [Named("x"), Numbered(), Numbered(6)]),
    (Pair, Pair(1, "b")),
    (Record, Record([Point(1, 2)], "n")),
    (datetime.datetime, datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)),
    (datetime.datetime, datetime.datetime(2024, 2, 29, 1, 2, 3, 4)),  # without a zone it is text
    (datetime.date, datetime.date(2024, 2, 29)),
    (datetime.timedelta, datetime.timedelta(days=3, microseconds=7)),
    (decimal.Decimal, decimal.Decimal("1.50")),
    (np.float64, np.float64(1.5)),
    (dict[str, Any], {"a": [1, None, {"b": b"c"}]}),
    (None, None),
]


@pytest.mark.parametrize(("declared", "value"), VALUES, ids=[str(place) for place in range(len(VALUES))])
def test_every_kind_of_value_survives_a_migration_from_plain_data_and_as_it_is(declared: Any, value: Any) -> None:
    """What a step leaves alone comes back as it was; what it makes anew may be a record, a set, a date."""
    made = worker(1, declared=declared)
    migrates(made, from_version=0)(same)
    checkpoint = saved(made, value, state_version=0)
    plan = plan_migration(made, checkpoint)
    for back in (load_state(plan, checkpoint).state, state_of(plan, value)):
        assert back == value and type(back) is type(value)


class Held(msgspec.Struct):
    first: np.ndarray
    more: list[np.ndarray] = []
    count: float = 0
    anything: Any = None


def hold(plain: object) -> Held:
    held = worker(0, declared=Held)
    back = state_of(MigrationPlan("a", held), plain)
    assert isinstance(back, Held)
    return back


def test_arrays_pass_without_a_copy() -> None:
    given_plain = {"first": np.arange(6.0).reshape(2, 3), "more": [np.zeros(3, "i4"), np.array(5)]}
    plain = plain_of(MigrationPlan("a", Agent), saved(worker(0, declared=Held), given_plain))
    assert isinstance(plain, dict)
    back = hold(plain)
    assert back.first is plain["first"] and back.more[0] is plain["more"][0]
    assert (back.first == np.arange(6.0).reshape(2, 3)).all() and back.more[1].shape == ()


class Chat(msgspec.Struct):
    """As it was: everything in parts beside the record, if it is large enough."""

    said: History[Point]
    image: Blob
    weights: np.ndarray
    draws: random.Random


class LaterChat(msgspec.Struct):
    """As it is: what was a list is a history, and the other way round."""

    said: list[Point]
    heard: History[Point]
    image: Blob
    weights: np.ndarray
    draws: random.Random


def stored(state: object, made: type[Agent], *, in_parts: bool) -> tuple[AgentCheckpoint, list[bytearray]]:
    """A checkpoint of version 0 and the contents of its parts."""
    if not in_parts:
        return saved(made, state, state_version=0), []
    image = StateEncoder(ArenaPool()).encode(state)
    parts = chunk_image(image, None).parts
    contents = [bytearray(b"".join([chunk.data or b"" for chunk in part.chunks])) for part in image.parts]
    return msgspec.structs.replace(saved(made, None, state_version=0), state=image.skeleton, parts=parts), contents


@pytest.mark.parametrize("in_parts", [False, True])
def test_histories_are_lists_and_blobs_are_bytes_and_both_come_back(in_parts: bool) -> None:
    made = worker(1, declared=LaterChat)
    seen: list[Plain] = []

    @migrates(made, from_version=0)
    def swap(state: Plain) -> Plain:
        seen.append(dict(state))
        return {**state, "heard": [{"x": each["x"] + 1} for each in state["said"]], "image": state["image"] + b"!"}

    draws = random.Random(5)
    weights = np.arange(10_000.0)
    old = Chat(History([Point(place) for place in range(100)]), Blob(bytes(50_000)), weights, draws)
    checkpoint, contents = stored(old, made, in_parts=in_parts)
    assert len(contents) == 3 * in_parts
    found = load_state(plan_migration(made, checkpoint), checkpoint, contents)
    assert found.table == ChunkTable(), "nothing is known to be as it was stored"
    state = found.state
    assert isinstance(state, LaterChat) and type(state.heard) is History and type(state.image) is Blob
    assert state.said == [Point(place) for place in range(100)]
    assert list(state.heard) == [Point(place + 1) for place in range(100)]
    assert state.image.data == bytes(50_000) + b"!" and (state.weights == weights).all()
    assert state.draws.random() == draws.random()
    assert type(seen[0]["said"]) is list and seen[0]["said"][3] == {"x": 3, "y": 0} and type(seen[0]["image"]) is bytes
    if in_parts:
        assert any(np.shares_memory(state.weights, np.frombuffer(content, "u1")) for content in contents)


def test_what_a_step_changes_in_an_array_is_not_lost_in_the_next_capture() -> None:
    """The next capture may not refer to chunks of the checkpoint by place: they hold what was there before."""
    made = worker(1, declared=Held)

    @migrates(made, from_version=0)
    def double(state: Plain) -> Plain:
        state["first"] *= 2
        return state

    weights = np.arange(100_000.0)
    checkpoint, contents = stored(Held(weights), made, in_parts=True)
    found = load_state(plan_migration(made, checkpoint), checkpoint, contents)
    again = StateEncoder(ArenaPool()).encode(found.state, found.table)
    stored_now = b"".join([chunk.data or b"" for part in again.parts for chunk in part.chunks])
    assert stored_now == (weights * 2).tobytes()
    assert chunk_image(again, found.table).parts[0].digests != checkpoint.parts[0].digests


def test_a_damaged_history_is_damage_and_no_trouble_of_the_code() -> None:
    """The coordinator takes another epoch then; that a host ended would not help."""
    made = worker(1, declared=LaterChat)
    migrates(made, from_version=0)(same)
    old = Chat(History([Point(1)] * 1000), Blob(), np.zeros(1), random.Random(1))
    checkpoint, contents = stored(old, made, in_parts=True)
    contents[0][: len(contents[0]) // 2] = bytes(len(contents[0]) // 2)
    with pytest.raises(DamagedDataError):
        load_state(plan_migration(made, checkpoint), checkpoint, contents)


def test_numbers_of_numpy_are_saved_as_numbers() -> None:
    """`array.sum()` is what a step computes first of all."""
    assert hold({"first": np.zeros(1), "count": np.arange(4).sum()}).count == 6


def test_a_small_part_does_not_keep_a_large_array_alive() -> None:
    back = hold({"first": np.arange(1000.0)[:3]}).first
    assert back.tolist() == [0, 1, 2] and back.base is None


arrays = st.sampled_from(["whole", "again", "part", "transposed", "frozen", "spread", "empty", "other"])


@given(st.lists(arrays, min_size=1, max_size=6))
def test_no_two_arrays_of_a_state_share_memory(kinds: list[str]) -> None:
    """A later change to one of them would change the other, until the next restore takes them apart."""
    whole, other = np.arange(12.0).reshape(3, 4), np.ones(5)
    frozen = np.arange(3)
    frozen.flags.writeable = False
    forms = {
        "whole": whole,
        "again": whole.reshape(12),
        "part": whole[1:],
        "transposed": whole.T,
        "frozen": frozen,
        "spread": np.broadcast_to(other, (2, 5)),
        "empty": whole[:0],
        "other": other,
    }
    given_arrays = [forms[kind] for kind in kinds]
    back = hold({"first": np.zeros(1), "more": given_arrays}).more
    for index, (before, after) in enumerate(zip(given_arrays, back, strict=True)):
        assert (before == after).all() and before.shape == after.shape and before.dtype == after.dtype
        assert after.flags.writeable and after.flags.c_contiguous
        assert not any(np.shares_memory(after, each) for each in back[:index])


def cycle() -> Plain:
    around: Plain = {"first": np.zeros(1)}
    around["anything"] = around
    return around


def misfits() -> dict[str, object]:
    return {
        r"led to something that is no Held: .*\$.count": {"first": np.zeros(1), "count": "many"},
        "missing required field `first`": {"count": 1},
        "ndarray": {"first": [1, 2]},
        "cannot be saved: .*function": {"first": np.zeros(1), "anything": lambda: 1},
        "arrays of Python objects": {"first": np.array([{}], dtype=object)},
        "arrays of type matrix": {"first": np.zeros((2, 2)).view(np.matrix)},
        "contains itself|recursion": cycle(),
        "cannot be saved": {"first": np.zeros(1), "count": 2**64},
    }


@pytest.mark.parametrize("reason", misfits())
def test_what_is_no_state_of_the_class_is_refused_with_step_agent_and_reason(reason: str) -> None:
    made = worker(4, declared=Held)
    migrates(made, from_version=3)(lambda _: misfits()[reason])
    checkpoint = saved(made, {"first": np.zeros(1)}, state_version=3)
    with pytest.raises(EncodingError, match=reason) as caught:
        load_state(plan_migration(made, checkpoint), checkpoint)
    assert "migration of Worker from version 3 to 4" in str(caught.value) and "agent 'a'" in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("error", [KeyError("name"), OSError("no space"), RecursionError(), EncodingError("mine")])
def test_a_step_that_raises_is_named_and_its_error_is_the_cause(error: Exception) -> None:
    """An OSError too is no trouble of the store: trying again for a minute would not help."""

    def fails(state: Plain) -> Plain:
        raise error

    made = worker(3)
    migrates(made, from_version=2)(same)
    migrates(made, from_version=1)(fails)
    checkpoint = saved(made, State(), state_version=1)
    with pytest.raises(EncodingError, match=r"Worker from version 1 to 2 \(.*fails\), run for agent 'a',") as caught:
        load_state(plan_migration(made, checkpoint), checkpoint)
    assert caught.value.__cause__ is error and type(error).__name__ in str(caught.value)


def test_a_forgotten_return_is_blamed_on_the_step_that_forgot_it() -> None:
    made = worker(2)
    migrates(made, from_version=0)(lambda state: None)
    migrates(made, from_version=1)(lambda state: {**state})
    checkpoint = saved(made, State(), state_version=0)
    with pytest.raises(EncodingError, match=r"from version 0 to 1 .* returned None: return the state"):
        load_state(plan_migration(made, checkpoint), checkpoint)


def test_a_state_that_is_no_plain_data_is_refused() -> None:
    """MessagePack allows it, Python has no dict with dicts as keys."""
    made = worker(1, declared=dict[Point, int])
    migrates(made, from_version=0)(same)
    checkpoint = saved(made, {Point(1): 1}, state_version=0)
    with pytest.raises(EncodingError, match=r"agent 'a' cannot be migrated.*records as keys"):
        load_state(plan_migration(made, checkpoint), checkpoint)
