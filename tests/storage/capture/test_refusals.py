"""What may not stand in a state is found, and its path named; what may is left alone.

The oracle for paths: evaluating the named path in Python leads to the object that is wrong.
"""

import asyncio
import dataclasses
import enum
import io
import random
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.errors import EncodingError
from snapline.storage.capture import encoder as refusals
from snapline.storage.capture.encoder import StateEncoder, check, explain
from snapline.storage.capture.history import History
from snapline.storage.capture.image import ArenaPool
from snapline.storage.capture.values import Blob, Pickled


class Worker(msgspec.Struct):
    lock: Any = None
    jobs: list[Any] = []


@dataclasses.dataclass
class State:
    workers: dict[str, Worker] = dataclasses.field(default_factory=dict)
    items: list[Any] = dataclasses.field(default_factory=list)
    other: Any = None


class Point(msgspec.Struct, frozen=True):
    x: int
    inner: Any = None


class Color(enum.Enum):
    RED = 1


async def some_coroutine() -> None:
    """Never awaited."""


def some_generator() -> Any:
    """Never run."""
    yield


class Unknown:
    """Nothing that can be saved."""


unsavable: dict[str, tuple[Callable[[], Any], str]] = {
    "lock": (threading.Lock, "is a lock"),
    "rlock": (threading.RLock, "is a lock"),
    "event": (threading.Event, "is a thread or one of its locks"),
    "thread": (threading.Thread, "is a thread"),
    "asyncio lock": (asyncio.Lock, "is a task, future or lock of asyncio"),
    "socket": (socket.socket, "is a socket"),
    "file": (io.BytesIO, "is an open file"),
    "coroutine": (some_coroutine, "is a coroutine, task or future"),
    "future": (lambda: asyncio.new_event_loop().create_future(), "is a coroutine, task or future"),
    "generator": (some_generator, "is a generator"),
    "function": (lambda: some_generator, "is the function some_generator"),
    "lambda": (lambda: lambda: 1, "is the function .*<lambda>"),
    "builtin": (lambda: len, "is the function len"),
    "method": (lambda: [].append, "is the function list.append"),
    "class": (lambda: Unknown, "is the class Unknown"),
    "module": (lambda: io, "is the module io"),
    "unknown": (Unknown, "cannot be saved: objects of type .*Unknown"),
    "large integer": (lambda: 2**70, "cannot be saved: .*"),
    "surrogate": (lambda: "\ud800", "cannot be saved: .*surrogates"),
    "complex": (lambda: 1j, "cannot be saved: objects of type builtins.complex"),
    "objects": (lambda: np.array([None]), "cannot be saved: NumPy arrays of Python objects"),
    "named fields": (lambda: np.zeros(2, [("x", "f8")]), "cannot be saved: .*named fields"),
    "many objects": (lambda: np.array([None] * 9000), "cannot be saved: NumPy arrays of Python objects"),
    "pickled": (lambda: Pickled(1), "cannot be saved: a pickled value: set allow_pickle"),
}


@pytest.mark.parametrize("name", list(unsavable))
@pytest.mark.filterwarnings("ignore:coroutine")
def test_what_cannot_be_saved_is_named_with_its_path(name: str) -> None:
    make, why = unsavable[name]
    state = State({"a": Worker(), "b": Worker(lock=make(), jobs=[1])}, items=[(1, {2: 3})])
    encoder = StateEncoder(ArenaPool())
    for encode in (encoder.encode, encoder.encode_inline):
        with pytest.raises(EncodingError, match=rf"^state\.workers\['b'\]\.lock {why}"):
            encode(state)
    if name == "file":
        return
    state = State(items=[0, (1, {"k": Point(1, [make()])})])
    with pytest.raises(EncodingError, match=rf"^state\.items\[1\]\[1\]\['k'\]\.inner\[0\] {why}"):
        encoder.encode(state)


def test_keys_and_elements_are_named_too() -> None:
    encoder = StateEncoder(ArenaPool())
    with pytest.raises(EncodingError, match=r"^state\.other\[a key\] cannot be saved"):
        encoder.encode(State(other={2**70: 1}))
    with pytest.raises(EncodingError, match=r"^state\.other\[an element\] cannot be saved"):
        encoder.encode(State(other={1j}))


def test_a_long_key_is_cut_in_the_path() -> None:
    with pytest.raises(EncodingError, match=rf"^state\['{'k' * 39}…\] is a lock"):
        StateEncoder(ArenaPool()).encode({"k" * 1000: threading.Lock()})


# ---- structure ------------------------------------------------------------------------------------------------------


def test_a_state_that_contains_itself_is_refused() -> None:
    state = State()
    state.items.append({"up": state.items})
    with pytest.raises(EncodingError, match=r"^state\.items\[0\]\['up'\] contains itself: refer to things by a key"):
        StateEncoder(ArenaPool()).encode(state)
    with pytest.raises(EncodingError, match=r"^state\.items\[0\]\['up'\] is state\.items itself"):
        check(state)


def test_a_state_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(EncodingError, match="nested too deeply"):
        StateEncoder(ArenaPool()).encode(deep)
    check(deep)
    while deep:  # else the interpreter's own recursion would free it
        deep = deep.pop()


makers: list[Callable[[], Any]] = [
    list,
    dict,
    set,
    bytearray,
    Worker,
    State,
    History,
    lambda: np.zeros(3),
    lambda: np.zeros((0, 3)),
    lambda: random.Random(1),
    lambda: np.random.default_rng(1),
    lambda: Pickled(1),
    lambda: ([1],),
    lambda: Point(1, {}),
]


@pytest.mark.parametrize("make", makers)
def test_a_mutable_object_with_two_paths_is_refused(make: Callable[[], Any]) -> None:
    """It would come back as two, and a change of one would not be seen in the other."""
    shared = make()
    with pytest.raises(
        EncodingError, match=r"^state\.workers\['a'\]\.jobs\[1\]\S* and state\.other\[0\]\S* are one and"
    ):
        check(State({"a": Worker(jobs=[make(), shared])}, other=(shared,)))
    check(State({"a": Worker(jobs=[make(), make()])}, other=(make(),)))


@pytest.mark.parametrize(
    "shared",
    [
        *(None, 1, 2**60, 1.5, "text", b"bytes", (1, ("a",)), frozenset({1}), Color.RED, Point(1), Point(1, Point(2))),
        *(Blob(b"b"), np.float64(1.0), int, threading.current_thread()),
    ],
)
def test_immutable_objects_may_have_many_paths(shared: Any) -> None:
    """The last two cannot be saved at all: that is said when they are encoded, not here."""
    check(State(items=[shared, shared, {"a": shared}, [shared]], other=shared))


def test_a_bit_generator_of_two_generators_is_found() -> None:
    bits = np.random.PCG64(1)
    with pytest.raises(EncodingError, match=r"\[0\]\.bit_generator and state\.items\[1\]\.bit_generator are one"):
        check(State(items=[np.random.Generator(bits), np.random.Generator(bits)]))


whole = np.arange(1000.0)
grid = np.zeros((30, 40))


@pytest.mark.parametrize(
    ("one", "other", "is_shared"),
    [
        (whole, whole[10:20], True),
        (whole[:500], whole[499:], True),
        (whole[:500], whole[500:], False),
        (whole[::2], whole[1::2], False),
        (whole[::2], whole[::3], True),
        (whole[::-1], whole[:1], True),
        (whole, whole.view("u1")[5:6], True),
        (whole, whole[3:3], False),
        (grid[:, :20], grid[:, 20:], False),
        (grid[:, :21], grid[:, 20:], True),
        (grid, grid.T, True),
        (grid, grid.copy(), False),
        (whole, np.frombuffer(whole.data, "u1"), True),
    ],
)
def test_arrays_over_the_same_memory_are_refused(one: Any, other: Any, is_shared: bool) -> None:
    for state in (State(items=[one, {"v": other}]), State(items=[other, {"v": one}])):
        if is_shared:
            with pytest.raises(EncodingError, match=r"^state\.items\[0\] and state\.items\[1\]\['v'\] share memory"):
                check(state)
        else:
            check(state)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.sampled_from([1, 2, -1])), max_size=6))
def test_overlaps_are_found_as_numpy_finds_them(cuts: list[tuple[int, int, int]]) -> None:
    memory = np.zeros(64, "u1")
    views = [memory[start : start + length][::step] for start, length, step in cuts]
    overlaps = any(np.shares_memory(one, other) for place, one in enumerate(views) for other in views[:place])
    if overlaps:
        with pytest.raises(EncodingError, match="share memory"):
            check(views)
    else:
        check(views)


plain_trees = st.recursive(
    st.none() | st.integers(0, 9) | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Worker, inner, st.lists(inner, max_size=2))
    ),
    max_leaves=15,
)


@settings(deadline=None, max_examples=100)
@given(plain_trees, plain_trees, plain_trees)
def test_trees_pass_and_a_second_path_is_found_wherever_it_is(one: Any, two: Any, three: Any) -> None:
    copies = msgspec.msgpack.decode(msgspec.msgpack.encode([one, two, three]))  # shares nothing
    check(State(items=copies))
    shared: list[Any] = [1]
    state = State(items=[[shared, copies[0]], {"x": copies[1], "y": (shared, copies[2])}])
    with pytest.raises(EncodingError) as caught:
        check(state)
    found = re.match(r"(state\S*) and (state\S*) are one", str(caught.value))
    assert found and all(eval(path, {"state": state}) is shared for path in found.groups())


def test_the_walk_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state larger than the limit is not looked at to its end; and a tree of shared tuples is not walked for ever."""
    shared: list[Any] = []
    check([0] * 2_000_000)
    monkeypatch.setattr(refusals, "WALK_OBJECTS_MAX", 1000)
    check([[[] for _ in range(2000)], [shared], [shared]])
    with pytest.raises(EncodingError):
        check([[[] for _ in range(100)], [shared], [shared]])
    doubled: Any = ()
    for _ in range(60):
        doubled = (doubled, doubled)
    check(doubled)


def test_many_interleaved_views_are_compared_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = refusals._share_memory

    def counted(one: Any, other: Any) -> bool:
        compared.append(1)
        return real(one, other)

    monkeypatch.setattr(refusals, "_share_memory", counted)
    memory = np.zeros((1000, 400), "u1")
    check([memory[:, column] for column in range(400)])
    assert len(compared) == refusals.OVERLAP_CHECKS_MAX


def test_explain_always_has_an_answer() -> None:
    assert explain(State(), ValueError("why")) == "why" and explain(State(), ValueError()) == "ValueError"
    state = State(items=[np.zeros(9000)] * 2)
    with pytest.raises(EncodingError, match="one and the same ndarray"):
        StateEncoder(ArenaPool()).encode(state)


def test_tensors_that_share_memory_are_found() -> None:
    torch: Any = pytest.importorskip("torch")
    memory = torch.zeros(100)
    with pytest.raises(EncodingError, match="share memory"):
        check([memory[:60], memory[50:]])
    check([memory[:50], memory[50:]])
    with pytest.raises(EncodingError, match="share memory"):
        check([memory, memory.numpy()])
