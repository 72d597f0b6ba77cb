"""Marks mean what NumPy means by the same rows, and a forgotten one is found by the check."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.capture.tracking_play import CHUNK_BYTES, ROW_ITEMS, ROWS, Array, Pool, captured_bytes, chunks_of

from snapline.errors import UsageError
from snapline.storage.capture import tracked_arrays


@pytest.fixture(autouse=True)
def no_checks_after() -> Iterator[None]:
    yield
    tracked_arrays.checking(False)


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


@settings(max_examples=200, deadline=None)
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
    tracked_arrays.mark_dirty(array, 0)
    base = chunks_of(array, None, Pool())
    tracked_arrays.mark_dirty(view, rows)
    tracker = tracked_arrays.tracker_of(array)
    assert isinstance(tracker, tracked_arrays.MarkTracker) and tracker.dirty is not None
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
    with pytest.raises(UsageError, match="mark_dirty"):
        tracked_arrays.mark_dirty(array, rows)


@pytest.mark.parametrize("value", [[1, 2], numpy.zeros(()), None, numpy.float64(1)])
def test_only_arrays_with_rows_are_marked(value: Any) -> None:
    with pytest.raises(UsageError, match="an array with rows"):
        tracked_arrays.mark_dirty(value, 0)


def test_marks_through_another_array_over_the_same_memory_count() -> None:
    """As after `numpy.frombuffer`, twice."""
    buffer = bytearray(10 * CHUNK_BYTES)
    one, other = numpy.frombuffer(buffer, "u1"), numpy.frombuffer(buffer, "u4")[100:]
    tracked_arrays.mark_dirty(one, 0)
    base = chunks_of(one, None, Pool())
    other[3 * CHUNK_BYTES // 4] = 7
    tracked_arrays.mark_dirty(other, 3 * CHUNK_BYTES // 4)
    assert captured_bytes(one, base) == CHUNK_BYTES
    assert tracked_arrays.tracker_of(other) is None


@pytest.mark.parametrize("is_many", [False, True])
def test_marks_that_reach_beyond_the_memory_count_inside(is_many: bool) -> None:
    buffer = bytearray(10 * CHUNK_BYTES)
    inner = numpy.frombuffer(buffer, "u1", 4 * CHUNK_BYTES, 2 * CHUNK_BYTES)
    outer = numpy.frombuffer(buffer, "u1").reshape(2, -1)
    tracked_arrays.mark_dirty(inner, 0)
    base = chunks_of(inner, None, Pool())
    outer[0] = 7
    tracked_arrays.mark_dirty(outer, [0] if is_many else 0)
    assert captured_bytes(inner, base) == 3 * CHUNK_BYTES
    tracked_arrays.mark_dirty(outer, [0, 1] if is_many else slice(None))
    assert captured_bytes(inner, base) == 4 * CHUNK_BYTES
    chunks_of(inner, base, Pool())
    tracked_arrays.mark_dirty(outer.reshape(-1)[: 2 * CHUNK_BYTES], [0] if is_many else slice(None))
    tracker = tracked_arrays.tracker_of(inner)
    assert isinstance(tracker, tracked_arrays.MarkTracker) and tracker.dirty is not None and not tracker.dirty.any()


@pytest.mark.parametrize("is_many", [False, True])
def test_forgotten_mark_is_found_by_the_check(is_many: bool) -> None:
    tracked_arrays.checking(True)
    array = numpy.zeros((ROWS, 100), numpy.int16)
    tracked_arrays.mark_dirty(array, 0)
    chunks_of(array, None, Pool())
    array[[3, 4, 5]] = 1
    tracked_arrays.mark_dirty(array, [3, 5] if is_many else slice(5, 2, -2))
    for _ in range(2):  # it is not forgotten by having been told once
        with pytest.raises(UsageError, match=r"shape \(41, 100\) and dtype int16: row 4 changed without a mark"):
            chunks_of(array, None, Pool())
    tracked_arrays.mark_dirty(array, 4)
    chunks_of(array, None, Pool())


def test_forgotten_mark_goes_unseen_without_the_check() -> None:
    """It is a promise. This pins what breaking it means."""
    array = numpy.zeros((ROWS, ROW_ITEMS))
    tracked_arrays.mark_dirty(array, 0)
    base = chunks_of(array, None, Pool())
    array[3] = 1
    assert captured_bytes(array, base) == 0


def test_check_names_some_of_many_rows() -> None:
    tracked_arrays.checking(True)
    array = numpy.zeros((ROWS, 3))
    tracked_arrays.mark_dirty(array, 0)
    chunks_of(array, None, Pool())
    array[1:21] = 1
    with pytest.raises(UsageError, match="rows 1, 2, 3, 4, 5, 6, 7, 8 and 12 more changed"):
        chunks_of(array, None, Pool())
