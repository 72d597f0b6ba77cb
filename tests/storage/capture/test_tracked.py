"""Captures of tracked and marked arrays, held against full copies that know nothing of tokens."""

import gc
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.errors import MisuseError, SnaplineError, WorldError
from snapline.storage.capture import array_memory, tracked, trackers, write_tracking
from snapline.storage.capture.image import ChunkTable, SourceChunk
from snapline.storage.checkpoint import ChunkReference

Array = numpy.ndarray[Any, Any]
Operation = tuple[str, int, int]

CHUNK_BYTES = 8192
ROWS, ROW_ITEMS = 41, 300  # 49,200 bytes: six chunks and a rest, and rows that cross their borders
NO_KERNEL = write_tracking.is_supported()
needs_kernel = pytest.mark.skipif(bool(NO_KERNEL), reason=NO_KERNEL)


class Room:
    def __init__(self, pool: "Pool", size_bytes: int) -> None:
        self.view = memoryview(bytearray(size_bytes + 100))  # a pool may give more than was asked for
        self._pool = pool

    def release(self) -> None:
        self._pool.given_back += 1


class Pool:
    def __init__(self) -> None:
        self.taken: list[int] = []
        self.given_back = 0
        self.is_busy = False

    def take(self, size_bytes: int) -> Room:
        if self.is_busy:
            raise BlockingIOError("no room")
        self.taken.append(size_bytes)
        return Room(self, size_bytes)


class Captured:
    """One capture: what each token stood for, by a copy of the whole array."""

    def __init__(self, chunks: list[SourceChunk], whole: bytes) -> None:
        self.whole = whole
        self.contents: dict[int, bytes] = {}
        self.table = ChunkTable()
        for place, chunk in enumerate(chunks):
            content = whole[place * CHUNK_BYTES : (place + 1) * CHUNK_BYTES]
            assert len(content) == chunk.size_bytes
            self.contents[chunk.token] = content
            self.table.by_token[chunk.token] = ChunkReference(b"d" * 32, chunk.size_bytes)


class Play:
    """An array, its captures, and which of them is the base."""

    def __init__(self, array: Array, *, is_marked: bool) -> None:
        self.array = array
        self.is_marked = is_marked
        self.pool = Pool()
        self.captures: list[Captured] = []
        self.base = -1
        if is_marked:
            tracked.mark_dirty(array, 0)

    def run(self, operations: list[Operation]) -> None:
        for name, first, second in operations:
            getattr(self, f"do_{name}")(first, second)
        self.do_capture(0, 0)

    def do_write(self, first: int, second: int) -> None:
        """Through a view, which the tracker never sees."""
        low, high = sorted((first % ROWS, second % ROWS))
        self.array[low : high + 1][::-1] = first * 31 + second
        if self.is_marked:
            tracked.mark_dirty(self.array, slice(low, high + 1))

    def do_scatter(self, first: int, second: int) -> None:
        rows = [first % ROWS, second % ROWS, (first * second) % ROWS]
        self.array[rows, second % ROW_ITEMS] = first + second + 0.5
        if self.is_marked:
            tracked.mark_dirty(self.array.T[second % ROW_ITEMS], iter(rows))

    def do_full(self, first: int, second: int) -> None:
        """A capture that finds no room."""
        self.pool.is_busy = True
        try:
            self.chunks()
        except BlockingIOError:
            pass
        self.pool.is_busy = False

    def do_complete(self, first: int, second: int) -> None:
        """An epoch later than the base is complete; those between them were aborted, those after it are still open."""
        if self.captures:
            self.base = max(self.base, first % len(self.captures))

    def do_capture(self, first: int, second: int) -> None:
        base = self.captures[self.base] if self.base >= 0 else None
        chunks, release = self.chunks()
        whole = self.array.tobytes()
        known = {} if base is None else base.contents
        contents = [bytes(chunk.data) if chunk.data is not None else known[chunk.token] for chunk in chunks]
        assert b"".join(contents) == whole, "the image is not the array"
        assert (release is None) == all(chunk.data is None for chunk in chunks)
        if release is not None:
            release()
        self.captures.append(Captured(chunks, whole))

    def chunks(self) -> tuple[list[SourceChunk], Callable[[], None] | None]:
        tracker = tracked.tracker_of(self.array)
        assert tracker is not None
        return tracker.chunks(self.captures[self.base].table if self.base >= 0 else None, CHUNK_BYTES, self.pool)


def make_play(*, is_marked: bool) -> Play:
    if is_marked:
        return Play(numpy.zeros((ROWS, ROW_ITEMS), numpy.float32), is_marked=True)
    return Play(tracked.tracked_array((ROWS, ROW_ITEMS), numpy.float32), is_marked=False)


@pytest.fixture(autouse=True)
def small_arrays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tracked, "TRACKED_BYTES_MIN", 1)
    yield
    tracked.checking(False)


numbers = st.integers(0, 10_000)
names = st.sampled_from(["write", "scatter", "capture", "capture", "complete", "full"])
both = pytest.mark.parametrize("is_marked", [pytest.param(False, marks=needs_kernel), True], ids=["kernel", "marks"])


@both
@settings(max_examples=150, deadline=None)
@given(operations=st.lists(st.tuples(names, numbers, numbers), max_size=25))
def test_image_is_the_array_whatever_was_aborted(is_marked: bool, operations: list[Operation]) -> None:
    trackers.OFF_AFTER, before = 10**9, trackers.OFF_AFTER
    tracked.TRACKED_BYTES_MIN = 1
    tracked.checking(is_marked)
    try:
        make_play(is_marked=is_marked).run(operations)
    finally:
        trackers.OFF_AFTER = before
        tracked.checking(False)


def is_found(*, is_marked: bool) -> bool:
    """Whether the play of the property above fails on one of a hundred seeds."""
    for seed in range(100):
        chance = random.Random(seed)
        choices = ["write", "scatter", "capture", "capture", "complete", "full"]
        operations = [(chance.choice(choices), chance.randrange(9999), chance.randrange(9999)) for _ in range(25)]
        try:
            make_play(is_marked=is_marked).run(operations)
        except (AssertionError, KeyError):
            return True
    return False


def mutant_aborted_capture_counts_as_base(patch: pytest.MonkeyPatch) -> None:
    """What did not change since the last capture is left out, though the base may be older."""

    def copied(self: trackers.Tracker, content: Array, missing: list[int], view: memoryview) -> list[SourceChunk]:
        before: set[int] = getattr(self, "before", set())
        self.before = {chunk.token for chunk in self.clean}  # type: ignore[attr-defined]  # of the mutant
        return right(
            self, content, [place for place in missing if self.clean[place].token not in before] or missing, view
        )

    right = trackers.Tracker._copied
    patch.setattr(trackers.Tracker, "_copied", copied)


def mutant_change_is_lost_without_room(patch: pytest.MonkeyPatch) -> None:
    def chunks(self: trackers.Tracker, *arguments: Any) -> Any:
        before = self.clean.copy()
        try:
            return right(self, *arguments)
        except BlockingIOError:
            self.clean = before
            raise

    right = trackers.Tracker.chunks
    patch.setattr(trackers.Tracker, "chunks", chunks)


def mutant_token_is_renewed_once(patch: pytest.MonkeyPatch) -> None:
    """A chunk that changes twice keeps the token of the first time, though that capture may still become the base."""

    def renew(self: trackers.Tracker, content: Array, chunk_bytes: int) -> None:
        before = self.clean.copy()
        right(self, content, chunk_bytes)
        first = self.__dict__.setdefault("first", [chunk.token for chunk in self.clean])
        for place, chunk in enumerate(before):
            if chunk.token != first[place]:
                self.clean[place] = chunk

    right = trackers.Tracker._renew
    patch.setattr(trackers.Tracker, "_renew", renew)


def mutant_last_chunk_of_a_range_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def covering(starts: Array, ends: Array, *, count: int, chunk_bytes: int) -> Array:
        return array_memory.covering(
            starts, numpy.maximum(starts + 1, ends - 4096), count=count, chunk_bytes=chunk_bytes
        )

    patch.setattr(trackers, "covering", covering)


MUTANTS = [
    mutant_aborted_capture_counts_as_base,
    mutant_change_is_lost_without_room,
    mutant_token_is_renewed_once,
    mutant_last_chunk_of_a_range_is_forgotten,
]


@both
def test_play_passes_without_a_mutant(is_marked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "OFF_AFTER", 10**9)
    assert not is_found(is_marked=is_marked)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_play_finds_mutants(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "OFF_AFTER", 10**9)
    mutant(monkeypatch)
    is_marked = bool(NO_KERNEL) or mutant is not mutant_last_chunk_of_a_range_is_forgotten
    assert is_found(is_marked=is_marked)


def chunks_of(array: Array, base: Captured | None, pool: Pool) -> Captured:
    tracker = tracked.tracker_of(array)
    assert tracker is not None
    chunks, release = tracker.chunks(None if base is None else base.table, CHUNK_BYTES, pool)
    if release is not None:
        release()
    return Captured(chunks, array.tobytes())


def captured_bytes(array: Array, base: Captured | None) -> int:
    """What a capture on `base` copies."""
    pool = Pool()
    chunks_of(array, base, pool)
    return sum(pool.taken)


@both
def test_only_chunks_written_since_the_base_are_copied(is_marked: bool) -> None:
    play = make_play(is_marked=is_marked)
    size, rest = play.array.nbytes, play.array.nbytes % CHUNK_BYTES
    base = chunks_of(play.array, None, Pool())
    assert captured_bytes(play.array, None) == size
    assert captured_bytes(play.array, base) == 0
    play.do_write(0, 0)
    assert captured_bytes(play.array, base) == CHUNK_BYTES
    play.do_write(ROWS - 1, ROWS - 1)
    later = chunks_of(play.array, base, Pool())
    assert captured_bytes(play.array, base) == CHUNK_BYTES + rest
    assert captured_bytes(play.array, later) == 0


@both
def test_room_is_given_back_if_the_copy_fails(is_marked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    play = make_play(is_marked=is_marked)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(trackers.Tracker, "_copied", fail)
        with pytest.raises(MemoryError):
            play.chunks()
    assert play.pool.given_back == 1
    play.do_capture(0, 0)


@both
def test_other_size_of_chunks_starts_anew(is_marked: bool) -> None:
    play = make_play(is_marked=is_marked)
    base = chunks_of(play.array, None, Pool())
    tracker = tracked.tracker_of(play.array)
    assert tracker is not None
    pool = Pool()
    chunks, _ = tracker.chunks(base.table, 4096, pool)
    assert sum(pool.taken) == play.array.nbytes == sum(chunk.size_bytes for chunk in chunks)
    play.do_write(1, 1)
    assert captured_bytes(play.array, base) == play.array.nbytes


@both
def test_only_an_array_that_covers_the_memory_has_a_tracker(is_marked: bool) -> None:
    array = make_play(is_marked=is_marked).array
    whole = [array, array[:], array.reshape(-1), array.view(numpy.int32), array.reshape(ROW_ITEMS, ROWS)]
    assert all(tracked.tracker_of(other) is tracked.tracker_of(array) is not None for other in whole)
    others = [array[1:], array[:-1], array.T, array[::-1], array.copy(), array[:, ::2], numpy.zeros_like(array)]
    assert all(tracked.tracker_of(other) is None for other in others)


@both
def test_tracker_goes_with_its_array(is_marked: bool) -> None:
    """The id of a dead array may be the next one's."""
    before = len(trackers.trackers)
    play = make_play(is_marked=is_marked)
    tracker = tracked.tracker_of(play.array)
    view = play.array[3:4]
    del play
    gc.collect()
    assert len(trackers.trackers) == before + 1  # a view keeps the memory
    del view
    gc.collect()
    assert len(trackers.trackers) == before and tracker is not None
    with pytest.raises(MisuseError, match="is gone"):
        tracker.chunks(None, CHUNK_BYTES, Pool())


@both
def test_there_are_no_trackers_in_a_child(is_marked: bool) -> None:
    play = make_play(is_marked=is_marked)
    play.do_capture(0, 0)
    child = os.fork()
    if not child:
        os._exit(0 if tracked.tracker_of(play.array) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    play.do_write(1, 2)
    play.do_capture(0, 0)


def test_memory_that_moved_has_no_tracker() -> None:
    array = numpy.zeros(50_000)
    tracked.mark_dirty(array, 0)
    array.resize(5_000_000, refcheck=False)
    assert tracked.tracker_of(array) is None


# Marks


def mark_oracle(array: Array, view: Array, rows: Any) -> set[int]:
    """Write through the view, and see which bytes differ."""
    before = array.copy()
    view[rows] += 1
    differs = (array.reshape(-1).view("u1") != before.reshape(-1).view("u1")).nonzero()[0]
    return set((differs // CHUNK_BYTES).tolist())


VIEWS: list[Callable[[Array], Array]] = [
    lambda array: array,
    lambda array: array[::-1],
    lambda array: array[5:30:2],
    lambda array: array[:, 7:100],
    lambda array: array.T,
    lambda array: array[::-3, ::-2],
    lambda array: array.reshape(-1),
    lambda array: array.reshape(41, 3, 100)[:, 1],
    lambda array: array[3],
]
row_choices: st.SearchStrategy[Any] = st.one_of(
    st.integers(-20, 19),
    st.slices(20),
    st.lists(st.integers(-13, 12), max_size=5),
    st.lists(st.integers(0, 12), max_size=5).map(numpy.array).map(lambda rows: rows.astype(numpy.uint8)),
    st.just("mask"),
)


@settings(max_examples=300, deadline=None)
@given(view_of=st.sampled_from(VIEWS), rows=row_choices, seed=st.integers(0, 2**32 - 1))
def test_marks_mean_what_numpy_means(view_of: Callable[[Array], Array], rows: Any, seed: int) -> None:
    """Every chunk that `view[rows]` touches is marked, through whatever view."""
    array = numpy.zeros((ROWS, ROW_ITEMS), numpy.uint32)
    view = view_of(array)
    if isinstance(rows, str):
        rows = numpy.random.default_rng(seed).random(len(view)) < 0.1
    if isinstance(rows, int):
        rows %= len(view)
    if isinstance(rows, list | numpy.ndarray) and len(rows) and numpy.asarray(rows).dtype != bool:
        rows = numpy.asarray(rows, numpy.int64) % len(view) - (seed % 2) * len(view)
    tracked.mark_dirty(array, 0)
    base = chunks_of(array, None, Pool())
    tracked.mark_dirty(view, rows)
    tracker = tracked.tracker_of(array)
    assert isinstance(tracker, trackers.MarkTracker) and tracker.dirty is not None
    marked = set(tracker.dirty.nonzero()[0].tolist())
    touched = mark_oracle(array, view, rows if not isinstance(rows, list) else numpy.asarray(rows, numpy.int64))
    assert touched <= marked
    if view is array:
        assert len(marked) <= len(touched) + 1
    assert captured_bytes(array, base) >= len(marked) * CHUNK_BYTES - CHUNK_BYTES


@pytest.mark.parametrize(
    "rows", [ROWS, -ROWS - 1, [0, ROWS], [-ROWS - 1], 1.5, [1.5], "a", ["a"], True, [True, False], [[1], [2, 3]], None]
)
def test_rows_that_are_not_there_are_refused(rows: Any) -> None:
    array = numpy.zeros((ROWS, ROW_ITEMS))
    with pytest.raises(MisuseError, match="mark_dirty"):
        tracked.mark_dirty(array, rows)


@pytest.mark.parametrize("value", [[1, 2], numpy.zeros(()), None, numpy.float64(1)])
def test_only_arrays_with_rows_are_marked(value: Any) -> None:
    with pytest.raises(MisuseError, match="an array with rows"):
        tracked.mark_dirty(value, 0)


def test_marks_through_another_array_over_the_same_memory_count() -> None:
    """As after `numpy.frombuffer`, twice."""
    buffer = bytearray(10 * CHUNK_BYTES)
    one, other = numpy.frombuffer(buffer, "u1"), numpy.frombuffer(buffer, "u4")[100:]
    tracked.mark_dirty(one, 0)
    base = chunks_of(one, None, Pool())
    other[3 * CHUNK_BYTES // 4] = 7
    tracked.mark_dirty(other, 3 * CHUNK_BYTES // 4)
    assert captured_bytes(one, base) == CHUNK_BYTES
    assert tracked.tracker_of(other) is None


@pytest.mark.parametrize("is_many", [False, True])
def test_forgotten_mark_is_found_by_the_check(is_many: bool) -> None:
    tracked.checking(True)
    array = numpy.zeros((ROWS, 100), numpy.int16)
    tracked.mark_dirty(array, 0)
    chunks_of(array, None, Pool())
    array[[3, 4, 5]] = 1
    tracked.mark_dirty(array, [3, 5] if is_many else slice(5, 2, -2))
    for _ in range(2):  # it is not forgotten by having been told once
        with pytest.raises(MisuseError, match=r"shape \(41, 100\) and dtype int16: row 4 changed without a mark"):
            chunks_of(array, None, Pool())
    tracked.mark_dirty(array, 4)
    chunks_of(array, None, Pool())


def test_forgotten_mark_goes_unseen_without_the_check() -> None:
    """It is a promise. This pins what breaking it means."""
    array = numpy.zeros((ROWS, ROW_ITEMS))
    tracked.mark_dirty(array, 0)
    base = chunks_of(array, None, Pool())
    array[3] = 1
    assert captured_bytes(array, base) == 0


def test_check_names_some_of_many_rows() -> None:
    tracked.checking(True)
    array = numpy.zeros((ROWS, 3))
    tracked.mark_dirty(array, 0)
    chunks_of(array, None, Pool())
    array[1:21] = 1
    with pytest.raises(MisuseError, match="rows 1, 2, 3, 4, 5, 6, 7, 8 and 12 more changed"):
        chunks_of(array, None, Pool())


# Tracked arrays


@pytest.mark.parametrize("shape", [(), 5, (0, 3), (3, 4, 5), numpy.int64(7), [2, 3]])
@pytest.mark.parametrize("dtype", ["f4", "?", "M8[s]", "S3", [("a", "i4"), ("b", "f8")], numpy.complex128])
def test_tracked_array_is_an_ordinary_one(shape: Any, dtype: Any) -> None:
    array = tracked.tracked_array(shape, dtype)
    same: Array = numpy.zeros(shape, dtype)
    assert type(array) is numpy.ndarray and array.flags.writeable and array.flags.c_contiguous
    assert array.shape == same.shape and array.dtype == same.dtype and (array == same).all()
    copy = tracked.adopt(array)
    assert copy is not array and (copy == same).all()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(-1, "f8"), ((2, -3), "f8"), ("ab", "f8"), (3, "nonsense"), (1.5, "f8"), (3, object), (None, "f8")],
)
def test_tracked_array_refuses_what_cannot_be(shape: Any, dtype: Any) -> None:
    with pytest.raises(MisuseError):
        tracked.tracked_array(shape, dtype)


def test_huge_tracked_array_is_refused() -> None:
    with pytest.raises(SnaplineError, match="make (it|the array) smaller"):
        tracked.tracked_array(1 << 60, "f8")


@needs_kernel
def test_marks_on_a_tracked_array_are_not_needed_and_not_a_promise() -> None:
    array = tracked.tracked_array((ROWS, ROW_ITEMS), "f4")
    base = chunks_of(array, None, Pool())
    array[0] = 1
    tracked.mark_dirty(array, 30)
    assert captured_bytes(array, base) == CHUNK_BYTES


def test_without_the_kernel_tracked_arrays_are_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a mark on one does not become a promise, for then a program would lose writes on some machines only."""
    monkeypatch.setattr(write_tracking, "is_supported", lambda: "no")
    array = tracked.tracked_array((ROWS, ROW_ITEMS), "f4")
    tracked.mark_dirty(array, 0)
    assert tracked.tracker_of(array) is None and tracked.is_tracked(array)
    array[:] = 3
    assert (array == 3).all()


def test_small_tracked_arrays_are_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert tracked.tracker_of(tracked.tracked_array(tracked.TRACKED_BYTES_MIN - 1, "u1")) is None


@needs_kernel
@pytest.mark.parametrize("quiet", [None, 1])
def test_busy_array_is_given_up_for_good(quiet: int | None) -> None:
    array = tracked.tracked_array((ROWS, ROW_ITEMS), "f4")
    tracker = tracked.tracker_of(array)
    assert tracker is not None
    base = chunks_of(array, None, Pool())
    for number in range(trackers.OFF_AFTER):
        assert tracked.tracker_of(array) is tracker
        array[:] = number + 1
        if number == quiet:
            chunks_of(array, base, Pool())
        now = chunks_of(array, base, Pool())
        assert b"".join(now.contents[chunk.token] for chunk in tracker.clean) == array.tobytes()
    assert (tracked.tracker_of(array) is None) == (quiet is None)
    assert tracked.is_tracked(array) == (quiet is not None)


@needs_kernel
@pytest.mark.parametrize("name", ["arm", "scan_words"])
def test_tracking_that_fails_means_a_full_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = tracked.tracked_array((ROWS, ROW_ITEMS), "f4")
    if name == "scan_words":
        chunks_of(array, None, Pool())

    def fail(self: object) -> None:
        raise WorldError("no more")

    monkeypatch.setattr(write_tracking.WriteTracker, name, fail)
    tracker = tracked.tracker_of(array)
    assert tracker is not None
    pool = Pool()
    tracker.chunks(chunks_of(array, None, pool).table if name == "arm" else None, CHUNK_BYTES, pool)
    assert pool.taken[-1] == array.nbytes
    assert tracked.tracker_of(array) is None


# Restoring


@needs_kernel
def test_restored_array_is_tracked_from_what_was_read() -> None:
    content = numpy.arange(ROWS * ROW_ITEMS, dtype="f4").reshape(ROWS, ROW_ITEMS)
    buffer = tracked.allocate(content.nbytes)
    buffer[:] = content.tobytes()
    array = tracked.retrack(buffer, content.dtype, content.shape)
    assert (array == content).all() and tracked.is_tracked(array)
    count = -(-content.nbytes // CHUNK_BYTES)
    references = [ChunkReference(bytes([place]) * 32, CHUNK_BYTES) for place in range(count)]
    table = ChunkTable(by_token=tracked.assume_stored(array, references, chunk_bytes=CHUNK_BYTES))
    assert list(table.by_token.values()) == references
    array[0] = 1
    tracker = tracked.tracker_of(array)
    assert tracker is not None
    chunks, _ = tracker.chunks(table, CHUNK_BYTES, Pool())
    assert [chunk.data is None for chunk in chunks] == [False] + [True] * (count - 1)
    assert [table.by_token[chunk.token] for chunk in chunks[1:]] == references[1:]


def test_array_that_is_not_tracked_has_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_tracking, "is_supported", lambda: "no")
    array = tracked.retrack(tracked.allocate(CHUNK_BYTES), "u1", (CHUNK_BYTES,))
    assert tracked.assume_stored(array, [ChunkReference(b"d" * 32, CHUNK_BYTES)], chunk_bytes=CHUNK_BYTES) == {}


@needs_kernel
def test_references_that_do_not_fit_are_not_believed() -> None:
    array = tracked.retrack(tracked.allocate(2 * CHUNK_BYTES), "u1", (2 * CHUNK_BYTES,))
    assert tracked.assume_stored(array, [ChunkReference(b"d" * 32, CHUNK_BYTES)], chunk_bytes=CHUNK_BYTES) == {}


def test_restored_shape_must_fit() -> None:
    with pytest.raises(MisuseError, match="in 100 bytes"):
        tracked.retrack(memoryview(bytearray(100)), "u1", (101,))
