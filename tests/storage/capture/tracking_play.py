"""An array, its captures and what they are held against: for the tests of tracked and marked arrays."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from snapline.storage.capture import tracked_arrays, write_tracking
from snapline.storage.capture.image import ChunkTable, SourceChunk
from snapline.storage.packs.checkpoint import ChunkReference

Array = numpy.ndarray[Any, Any]
Operation = tuple[str, int, int]

CHUNK_BYTES = 8192
ROWS, ROW_ITEMS = 41, 300  # 49,200 bytes: six chunks and a rest, and rows that cross their borders
NO_KERNEL = write_tracking.is_supported()
needs_kernel = pytest.mark.skipif(bool(NO_KERNEL), reason=NO_KERNEL)


class ArenaSlot:
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

    def take(self, size_bytes: int) -> ArenaSlot:
        if self.is_busy:
            raise BlockingIOError("no room")
        self.taken.append(size_bytes)
        return ArenaSlot(self, size_bytes)


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
            tracked_arrays.mark_dirty(array, 0)

    def run(self, operations: list[Operation]) -> None:
        for name, first, second in operations:
            getattr(self, f"do_{name}")(first, second)
        self.do_capture(0, 0)

    def do_write(self, first: int, second: int) -> None:
        """Through a view, which the tracker never sees."""
        low, high = sorted((first % ROWS, second % ROWS))
        self.array[low : high + 1][::-1] = first * 31 + second
        if self.is_marked:
            tracked_arrays.mark_dirty(self.array, slice(low, high + 1))

    def do_scatter(self, first: int, second: int) -> None:
        rows = [first % ROWS, second % ROWS, (first * second) % ROWS]
        self.array[rows, second % ROW_ITEMS] = first + second + 0.5
        if self.is_marked:
            tracked_arrays.mark_dirty(self.array.T[second % ROW_ITEMS], iter(rows))

    def do_full(self, first: int, second: int) -> None:
        """A capture that finds no room."""
        self.pool.is_busy = True
        with contextlib.suppress(BlockingIOError):
            self.chunks()
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
        tracker = tracked_arrays.tracker_of(self.array)
        assert tracker is not None
        return tracker.chunks(self.captures[self.base].table if self.base >= 0 else None, CHUNK_BYTES, self.pool)


def make_play(*, is_marked: bool) -> Play:
    if is_marked:
        return Play(numpy.zeros((ROWS, ROW_ITEMS), numpy.float32), is_marked=True)
    return Play(tracked_arrays.tracked_array((ROWS, ROW_ITEMS), numpy.float32), is_marked=False)


def chunks_of(array: Array, base: Captured | None, pool: Pool) -> Captured:
    tracker = tracked_arrays.tracker_of(array)
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
