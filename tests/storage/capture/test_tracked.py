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
from tests.storage.capture.tracking_play import (
    CHUNK_BYTES,
    NO_KERNEL,
    ROW_ITEMS,
    ROWS,
    Array,
    Operation,
    Pool,
    captured_bytes,
    chunks_of,
    make_play,
    needs_kernel,
)

from snapline.errors import ExternalFailureError, SnaplineError, UsageError
from snapline.storage.capture import tracked_arrays, write_tracking
from snapline.storage.capture.image import ChunkTable, SourceChunk
from snapline.storage.packs.checkpoint import ChunkReference


@pytest.fixture(autouse=True)
def small_arrays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tracked_arrays, "TRACKED_BYTES_MIN", 1)
    yield
    tracked_arrays.checking(False)


numbers = st.integers(0, 10_000)
names = st.sampled_from(["write", "scatter", "capture", "capture", "complete", "full"])
both = pytest.mark.parametrize("is_marked", [pytest.param(False, marks=needs_kernel), True], ids=["kernel", "marks"])


@both
@settings(max_examples=30, deadline=None)
@given(operations=st.lists(st.tuples(names, numbers, numbers), max_size=25))
def test_image_is_the_array_whatever_was_aborted(is_marked: bool, operations: list[Operation]) -> None:
    tracked_arrays.BUSY_CAPTURES_MAX, before = 10**9, tracked_arrays.BUSY_CAPTURES_MAX
    tracked_arrays.TRACKED_BYTES_MIN = 1
    tracked_arrays.checking(is_marked)
    try:
        make_play(is_marked=is_marked).run(operations)
    finally:
        tracked_arrays.BUSY_CAPTURES_MAX = before
        tracked_arrays.checking(False)


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

    def copied(self: tracked_arrays.Tracker, content: Array, missing: list[int], view: memoryview) -> list[SourceChunk]:
        before: set[int] = getattr(self, "before", set())
        self.before = {chunk.token for chunk in self.clean}  # type: ignore[attr-defined]  # of the mutant
        return right(
            self, content, [place for place in missing if self.clean[place].token not in before] or missing, view
        )

    right = tracked_arrays.Tracker._copied
    patch.setattr(tracked_arrays.Tracker, "_copied", copied)


def mutant_change_is_lost_without_room(patch: pytest.MonkeyPatch) -> None:
    def chunks(self: tracked_arrays.Tracker, *arguments: Any) -> Any:
        before = self.clean.copy()
        try:
            return right(self, *arguments)
        except BlockingIOError:
            self.clean = before
            raise

    right = tracked_arrays.Tracker.chunks
    patch.setattr(tracked_arrays.Tracker, "chunks", chunks)


def mutant_token_is_renewed_once(patch: pytest.MonkeyPatch) -> None:
    """A chunk that changes twice keeps the token of the first time, though that capture may still become the base."""

    def renew(self: tracked_arrays.Tracker, content: Array, chunk_bytes: int) -> None:
        before = self.clean.copy()
        right(self, content, chunk_bytes)
        first = self.__dict__.setdefault("first", [chunk.token for chunk in self.clean])
        for place, chunk in enumerate(before):
            if chunk.token != first[place]:
                self.clean[place] = chunk

    right = tracked_arrays.Tracker._refresh_tokens
    patch.setattr(tracked_arrays.Tracker, "_refresh_tokens", renew)


def mutant_last_chunk_of_a_range_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def covering(starts: Array, ends: Array, *, count: int, chunk_bytes: int) -> Array:
        return right(starts, numpy.maximum(starts + 1, ends - 4096), count=count, chunk_bytes=chunk_bytes)

    right = tracked_arrays.covering
    patch.setattr(tracked_arrays, "covering", covering)


MUTANTS = [
    mutant_aborted_capture_counts_as_base,
    mutant_change_is_lost_without_room,
    mutant_token_is_renewed_once,
    mutant_last_chunk_of_a_range_is_forgotten,
]


@both
def test_play_passes_without_a_mutant(is_marked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked_arrays, "BUSY_CAPTURES_MAX", 10**9)
    assert not is_found(is_marked=is_marked)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_play_finds_mutants(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked_arrays, "BUSY_CAPTURES_MAX", 10**9)
    mutant(monkeypatch)
    is_marked = bool(NO_KERNEL) or mutant is not mutant_last_chunk_of_a_range_is_forgotten
    assert is_found(is_marked=is_marked)


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
    assert captured_bytes(play.array, base) == 2 * CHUNK_BYTES + rest  # the last row begins before the last chunk
    assert captured_bytes(play.array, later) == 0


@both
def test_room_is_given_back_if_the_copy_fails(is_marked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    play = make_play(is_marked=is_marked)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(tracked_arrays.Tracker, "_copied", fail)
        with pytest.raises(MemoryError):
            play.chunks()
    assert play.pool.given_back == 1
    play.do_capture(0, 0)


@both
def test_other_size_of_chunks_starts_anew(is_marked: bool) -> None:
    play = make_play(is_marked=is_marked)
    base = chunks_of(play.array, None, Pool())
    tracker = tracked_arrays.tracker_of(play.array)
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
    assert all(tracked_arrays.tracker_of(other) is tracked_arrays.tracker_of(array) is not None for other in whole)
    others = [array[1:], array[:-1], array.T, array[::-1], array.copy(), array[:, ::2], numpy.zeros_like(array)]
    assert all(tracked_arrays.tracker_of(other) is None for other in others)


@both
def test_tracker_goes_with_its_array(is_marked: bool) -> None:
    """The id of a dead array may be the next one's."""
    gc.collect(1)  # the young objects: those of all tests before take seconds
    play = make_play(is_marked=is_marked)
    tracker = tracked_arrays.tracker_of(play.array)
    assert tracker is not None
    view = play.array[3:4]
    del play
    gc.collect(1)
    assert tracker in tracked_arrays.trackers.values()  # a view keeps the memory
    del view
    gc.collect(1)
    assert tracker not in tracked_arrays.trackers.values()
    with pytest.raises(UsageError, match="is gone"):
        tracker.chunks(None, CHUNK_BYTES, Pool())


@both
def test_there_are_no_trackers_in_a_child(is_marked: bool) -> None:
    play = make_play(is_marked=is_marked)
    play.do_capture(0, 0)
    child = os.fork()
    if not child:
        os._exit(0 if tracked_arrays.tracker_of(play.array) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    play.do_write(1, 2)
    play.do_capture(0, 0)


def test_memory_that_moved_has_no_tracker() -> None:
    """NumPy refuses to move the memory of an array that somebody refers to. Should it ever do so, nothing is assumed."""
    array = numpy.zeros(50_000)
    tracked_arrays.mark_dirty(array, 0)
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(5_000_000, refcheck=False)
    tracker = tracked_arrays.tracker_of(array)
    assert tracker is not None
    tracker.address += 64
    assert tracked_arrays.tracker_of(array) is None


@pytest.mark.parametrize("shape", [(), 5, (0, 3), (3, 4, 5), numpy.int64(7), [2, 3]])
@pytest.mark.parametrize("dtype", ["f4", "?", "M8[s]", "S3", [("a", "i4"), ("b", "f8")], numpy.complex128])
def test_tracked_array_is_an_ordinary_one(shape: Any, dtype: Any) -> None:
    array = tracked_arrays.tracked_array(shape, dtype)
    same: Array = numpy.zeros(shape, dtype)
    assert type(array) is numpy.ndarray and array.flags.writeable and array.flags.c_contiguous
    assert array.shape == same.shape and array.dtype == same.dtype and (array == same).all()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(-1, "f8"), ((2, -3), "f8"), ("ab", "f8"), (3, "nonsense"), (3, "08"), (1.5, "f8"), (3, object), (None, "f8")],
)
def test_tracked_array_refuses_what_cannot_be(shape: Any, dtype: Any) -> None:
    with pytest.raises(UsageError):
        tracked_arrays.tracked_array(shape, dtype)


def test_huge_tracked_array_is_refused() -> None:
    with pytest.raises(SnaplineError, match=r"make (it|the array) smaller"):
        tracked_arrays.tracked_array(1 << 60, "f8")


@needs_kernel
def test_marks_on_a_tracked_array_are_not_needed_and_not_a_promise() -> None:
    array = tracked_arrays.tracked_array((ROWS, ROW_ITEMS), "f4")
    base = chunks_of(array, None, Pool())
    array[0] = 1
    tracked_arrays.mark_dirty(array, 30)
    assert captured_bytes(array, base) == CHUNK_BYTES


def test_without_the_kernel_tracked_arrays_are_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a mark on one does not become a promise, for then a program would lose writes on some machines only."""
    monkeypatch.setattr(write_tracking, "is_supported", lambda: "no")
    array = tracked_arrays.tracked_array((ROWS, ROW_ITEMS), "f4")
    tracked_arrays.mark_dirty(array, 0)
    assert tracked_arrays.tracker_of(array) is None and tracked_arrays.is_tracked(array)
    array[:] = 3
    assert (array == 3).all()


def test_small_tracked_arrays_are_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert tracked_arrays.tracker_of(tracked_arrays.tracked_array(tracked_arrays.TRACKED_BYTES_MIN - 1, "u1")) is None


@needs_kernel
@pytest.mark.parametrize("quiet", [None, 1])
def test_busy_array_is_given_up_for_good(quiet: int | None) -> None:
    array = tracked_arrays.tracked_array((ROWS, ROW_ITEMS), "f4")
    tracker = tracked_arrays.tracker_of(array)
    assert tracker is not None
    base = chunks_of(array, None, Pool())
    for number in range(tracked_arrays.BUSY_CAPTURES_MAX):
        assert tracked_arrays.tracker_of(array) is tracker
        array[:] = number + 1
        if number == quiet:
            chunks_of(array, base, Pool())
        now = chunks_of(array, base, Pool())
        assert b"".join(now.contents[chunk.token] for chunk in tracker.clean) == array.tobytes()
    assert (tracked_arrays.tracker_of(array) is None) == (quiet is None)
    assert tracked_arrays.is_tracked(array) == (quiet is not None)


@needs_kernel
@pytest.mark.parametrize("name", ["arm", "scan_words"])
def test_tracking_that_fails_means_a_full_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = tracked_arrays.tracked_array((ROWS, ROW_ITEMS), "f4")
    if name == "scan_words":
        chunks_of(array, None, Pool())

    def fail(self: object) -> None:
        raise ExternalFailureError("no more")

    monkeypatch.setattr(write_tracking.WriteTracker, name, fail)
    tracker = tracked_arrays.tracker_of(array)
    assert tracker is not None
    pool = Pool()
    tracker.chunks(chunks_of(array, None, pool).table if name == "arm" else None, CHUNK_BYTES, pool)
    assert pool.taken[-1] == array.nbytes
    assert tracked_arrays.tracker_of(array) is None


@needs_kernel
def test_restored_array_is_tracked_from_what_was_read() -> None:
    content = numpy.arange(ROWS * ROW_ITEMS, dtype="f4").reshape(ROWS, ROW_ITEMS)
    buffer = tracked_arrays.allocate(content.nbytes)
    buffer[:] = content.tobytes()
    array = tracked_arrays.retrack(buffer, content.dtype, content.shape)
    assert (array == content).all() and tracked_arrays.is_tracked(array)
    count = -(-content.nbytes // CHUNK_BYTES)
    references = [ChunkReference(bytes([place]) * 32, CHUNK_BYTES) for place in range(count)]
    table = ChunkTable(by_token=tracked_arrays.assume_stored(array, references, chunk_bytes=CHUNK_BYTES))
    assert list(table.by_token.values()) == references
    array[0] = 1
    tracker = tracked_arrays.tracker_of(array)
    assert tracker is not None
    chunks, _ = tracker.chunks(table, CHUNK_BYTES, Pool())
    assert [chunk.data is None for chunk in chunks] == [False] + [True] * (count - 1)
    assert [table.by_token[chunk.token] for chunk in chunks[1:]] == references[1:]


def test_array_that_is_not_tracked_has_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_tracking, "is_supported", lambda: "no")
    array = tracked_arrays.retrack(tracked_arrays.allocate(CHUNK_BYTES), "u1", (CHUNK_BYTES,))
    assert tracked_arrays.assume_stored(array, [ChunkReference(b"d" * 32, CHUNK_BYTES)], chunk_bytes=CHUNK_BYTES) == {}


@needs_kernel
def test_references_that_do_not_fit_are_not_believed() -> None:
    array = tracked_arrays.retrack(tracked_arrays.allocate(2 * CHUNK_BYTES), "u1", (2 * CHUNK_BYTES,))
    reference = ChunkReference(b"d" * 32, CHUNK_BYTES)
    assert tracked_arrays.assume_stored(array, [reference], chunk_bytes=CHUNK_BYTES) == {}
    assert tracked_arrays.assume_stored(array, [reference], chunk_bytes=0) == {}


@pytest.mark.parametrize(
    ("dtype", "shape"), [("u1", (101,)), ("u1", (-1,)), (object, (2,)), ("nonsense", (1,)), ("08", (1,))]
)
def test_restored_array_must_fit(dtype: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="in 100 bytes"):
        tracked_arrays.retrack(memoryview(bytearray(100)), dtype, shape)
