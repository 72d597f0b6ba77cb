"""Arrays whose capture cost depends only on the changes. Either the kernel reports writes to an array's memory, or the user marks the
changes.

- `tracked_array`: the kernel reports writes to the array's memory, which this package has mapped (`write_tracking.py`). The memory is
  registered at the first capture. Without kernel support, and below a minimum size, the result is an ordinary array, which captures copy
  whole.
- `mark_dirty(array, rows)`: the user reports writes to any array. With the first mark, the user promises to mark all later writes, too.
  `checking(True)` compares all bytes and so finds writes that were not marked.

If an array was tracked when it was captured (`is_tracked`), a restore reads it into memory from `allocate`, and `retrack` tracks it again.
If `assume_stored` is called after `retrack`, even the first capture copies only changes. Marks are lost when the process ends: after a
restore, the first capture copies the whole array, and marking starts again.

**Trackers** find the changes to an array, either through the kernel or through the user's marks. The bytes of an array are cut into chunks
of a fixed size. A tracker assigns a *token* to each chunk, and a new token to each chunk that has changed since the previous capture. A
token identifies one content and is never reused. So the same rule holds for any base: if a chunk's token is in the base's table, the base
has the same content, and the chunk is returned without bytes. All other chunks are copied. After an aborted epoch, no cleanup is necessary:
the epoch's tokens are not in the next base, so the chunks with these tokens are copied again. In this way, the changes since the base
accumulate over all captures.

Invariants:

1. A changed chunk gets its new token before any other step of the capture can fail (for example because the arena is full), so that no
   change is ever forgotten.
2. Returned chunks were copied after the kernel's report, so a concurrent write is contained in the copy, in the next report, or in both.
3. A tracker belongs to a range of memory rather than to an array object. Marks made through any view reach the tracker, and every array
   that covers exactly this memory in C order uses it. All other arrays have no tracker and are copied whole.
4. A forked child process has no trackers.
5. A tracker without information reports every chunk as changed.

Call trackers between two turns, on the thread that runs the agent's turns. Two threads must not call trackers of the same array at the same
time.

**Memory ranges** of an array, a row or a run of chunks are computed by pure arithmetic. NumPy is imported only when these functions for
memory ranges are called. Ranges are half open, `(start, end)`, in bytes. The *root* of an array is the array that owns its memory. All
views of the same memory have the same root.
"""

import logging
import math
import mmap
import operator
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

from snapline.errors import ExternalFailureError, UsageError
from snapline.storage.capture import write_tracking
from snapline.storage.capture.image import BLOCK_TOKENS, ChunkTable, SourceChunk, fresh_token
from snapline.storage.packs.checkpoint import ChunkReference

if TYPE_CHECKING:
    import array

    from numpy.typing import DTypeLike


if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]  # any shape and dtype: these do not matter here
    Rows = slice | SupportsIndex | Iterable[SupportsIndex]


def root_of(array: "Array") -> "Array":
    """Return the array that owns the memory of the given array."""
    import numpy

    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return array


def address_of(array: "Array") -> int:
    address, _ = array.__array_interface__["data"]
    return int(address)


def name_of(array: "Array") -> str:
    return f"an array of shape {array.shape} and dtype {array.dtype}"


def spans_of(array: "Array", rows: "Rows") -> tuple[Any, Any]:
    """Return the start and end addresses of the rows, either as two integers or as two arrays of int64."""
    count, stride = array.shape[0], array.strides[0]
    low, high = _row_extent(array)
    first = address_of(array) + low
    if isinstance(rows, slice):
        span = range(count)[rows]
        if not span:
            return 0, 0
        if abs(span.step) == 1 or len(span) == 1:
            one, other = first + span[0] * stride, first + span[-1] * stride
            return min(one, other), max(one, other) + high - low
        rows = span
    if not isinstance(rows, Iterable):
        start = first + _row_number(rows, count) * stride
        return start, start + high - low
    starts = first + _row_numbers(rows, count) * stride
    return starts, starts + (high - low)


def _row_number(row: object, count: int) -> int:
    try:
        if isinstance(row, bool):
            raise TypeError("a bool is not a row number")
        return range(count)[operator.index(row)]  # type: ignore[arg-type]  # checked here
    except (TypeError, IndexError) as error:
        raise UsageError(f"mark_dirty: {row!r} is not a row of an array with {count} rows: {error}; mend it") from error


def _row_numbers(rows: "Iterable[SupportsIndex]", count: int) -> "Array":
    import numpy

    try:
        numbers_given: Array = numpy.asarray(rows if isinstance(rows, numpy.ndarray) else list(rows)).reshape(-1)
    except (TypeError, ValueError) as error:
        raise UsageError(f"mark_dirty: rows must be numbers: {error}; mend them") from error
    if numbers_given.dtype.kind == "b" and len(numbers_given) == count:
        return numbers_given.nonzero()[0]
    if numbers_given.dtype.kind not in "iu" and len(numbers_given):
        raise UsageError(
            f"mark_dirty: rows must be numbers or one bool for each of {count} rows, not {numbers_given.dtype}"
        )
    if len(numbers_given) and not -count <= int(numbers_given.min()) <= int(numbers_given.max()) < count:
        raise UsageError(
            f"mark_dirty: rows {numbers_given.min()} to {numbers_given.max()} are not in an array with {count} rows"
        )
    numbers = numbers_given.astype(numpy.int64)
    return numpy.where(numbers < 0, numbers + count, numbers)


def _row_extent(array: "Array") -> tuple[int, int]:
    """Return the start and the end of a row's bytes, relative to the first element of the row."""
    low, high = 0, array.itemsize
    for length, stride in zip(array.shape[1:], array.strides[1:], strict=True):
        if not length:
            return 0, 0
        low += min(0, (length - 1) * stride)
        high += max(0, (length - 1) * stride)
    return low, high


def bounds_of(array: "Array") -> tuple[int, int]:
    """Return the lowest address of an array's elements, and the address after the last byte of the highest element."""
    low, high = 0, array.itemsize
    for length, stride in zip(array.shape, array.strides, strict=True):
        low += min(0, (length - 1) * stride)
        high += max(0, (length - 1) * stride)
    address = address_of(array)
    return (address + low, address + high) if array.size else (address, address)


def covering(starts: "Array", ends: "Array", *, count: int, chunk_bytes: int) -> "Array":
    """Return an array with one bool for each of `count` chunks, which says whether any of the byte ranges touches the chunk. Each range
    must be non-empty and begin within one of the chunks."""
    import numpy

    first = starts // chunk_bytes
    after = numpy.minimum((ends - 1) // chunk_bytes, count - 1) + 1
    opened = numpy.bincount(first, minlength=count + 1) - numpy.bincount(after, minlength=count + 1)
    return opened[:count].cumsum() > 0


def runs_of(places: list[int]) -> Iterable[tuple[int, int]]:
    """Yield, for each run of consecutive numbers in a non-empty ascending list, `(first, last)`."""
    first = last = places[0]
    for place in places[1:]:
        if place != last + 1:
            yield first, last
            first = place
        last = place
    yield first, last


log = logging.getLogger("snapline.host")

BUSY_CAPTURES_MAX = 4
"""Number of consecutive captures after which tracking of an array ends, if more than half of its pages were written before each capture. A
page fault costs several times the copy of its page, so tracking such an array only costs time. One or two rewrites do not end tracking."""

_SHOWN_ROWS_MAX = 8
"""Number of forgotten rows that an error message names, which is enough to find the place in the code."""


class ArenaSlot(Protocol):
    """Buffer from a pool. The length of `view` is at least the requested size."""

    @property
    def view(self) -> memoryview: ...

    def release(self) -> None: ...


class Pool(Protocol):
    """Interface of a source of buffers for copies, such as `image.ArenaPool`."""

    def take(self, size_bytes: int) -> ArenaSlot: ...


class Settings:
    """Settings of this process. If `is_checking` is set, arrays with marks are compared completely at each capture."""

    is_checking = False


trackers: dict[int, "Tracker"] = {}
"""Map from the id of the root array to its tracker. An entry is removed with its root, so an id never refers to another array."""


class Tracker(ABC):
    """Finds which chunks in one range of memory have changed.

    Attributes:
        root: weak reference to the array that owns the memory. Every view of the array keeps this array alive.
        address, size_bytes: address and size of the memory when the tracker was registered.
        name: description of the array for error messages and logs.
        chunk_bytes: chunk size at the last capture, or 0 before the first capture.
        clean: for each chunk, the entry that is returned if the base contains the chunk. The entry has the token of the content at the last
            capture. The entries are shared with images, so they must never be changed. The list is empty before the first capture.
        numbers: iterator over fresh tokens for this array.
    """

    def __init__(self, root: "Array", shown: "Array") -> None:
        self.root = weakref.ref(root, self._on_root_gone)
        self.address = address_of(root)
        self.size_bytes = root.nbytes
        self.process = os.getpid()
        self.name = name_of(shown)
        self.chunk_bytes = 0
        self.clean: list[SourceChunk] = []
        self.numbers = _fresh_tokens()
        self._key = id(root)
        trackers[self._key] = self

    def _on_root_gone(self, _: object) -> None:
        if trackers.get(self._key) is self:
            del trackers[self._key]

    @property
    def is_on(self) -> bool:
        """Return whether captures can rely on this tracker."""
        return self.process == os.getpid()

    def covers(self, array: "Array") -> bool:
        """Return whether `array` covers exactly the tracked memory, in C order, and this memory has not moved."""
        root = self.root()
        is_same_memory = root is not None and address_of(root) == self.address and root.nbytes == self.size_bytes
        return (
            is_same_memory
            and array.flags.c_contiguous
            and array.nbytes == self.size_bytes
            and address_of(array) == self.address
        )

    def chunks(
        self, base: ChunkTable | None, chunk_bytes: int, pool: Pool
    ) -> tuple[list[SourceChunk], Callable[[], None] | None]:
        """Return the array's current chunks and a function that releases their buffers. The function is None if no buffer was needed.

        Chunks that are in `base` are returned without bytes. The bytes of all other chunks are copied to buffers from `pool`, so that later
        writes do not change them. If little has changed, little of the array is read.

        Args:
            base: table of the chunks of the last complete epoch, or None if there is none.
            chunk_bytes: size of all chunks except the last. If the chunk size differs from the previous capture, every chunk counts as
                changed.

        Raises:
            UsageError: If the array no longer exists, or if `checking` is on and a write was not marked.
            Any error of `pool.take`: In this case, the next capture has the same information as this one.
        """
        root = self.root()
        if root is None:
            raise UsageError("the array of this tracker is gone; ask tracker_of for one of the array in the state")
        content = root.reshape(-1).view("u1")
        self._refresh_tokens(content, chunk_bytes)
        known = {} if base is None else base.by_token
        missing = [place for place, chunk in enumerate(self.clean) if chunk.token not in known]
        if not missing:
            return self.clean.copy(), None
        buffer = pool.take(sum([self.clean[place].size_bytes for place in missing]))
        try:
            return self._copied(content, missing, buffer.view), buffer.release
        except BaseException:
            buffer.release()
            raise

    @abstractmethod
    def start(self, content: "Array") -> None:
        """Start to track changes. This method is called after all chunks have been given tokens. The method is called again if the chunk
        size changes."""

    @abstractmethod
    def changed(self, content: "Array") -> "Array":
        """Return one bool per chunk, which says whether it may have changed since the previous call, or since `start` if this is the first
        call."""

    def mark(self, start: int, end: int) -> None:  # noqa: B027  # kernel trackers ignore marks
        """Mark the bytes from `start` to `end` as changed, where both are offsets from `address`. Both offsets may lie outside the
        memory."""

    def mark_many(self, starts: "Array", ends: "Array") -> None:  # noqa: B027  # the same
        """Mark many byte ranges as changed. See `mark`."""

    def begin(self, content: "Array", chunk_bytes: int) -> None:
        """Assign a fresh token to every chunk, and start to track changes."""
        count = -(-self.size_bytes // chunk_bytes)
        self.chunk_bytes = chunk_bytes
        self.clean = [SourceChunk(next(self.numbers), None, chunk_bytes) for _ in range(count)]
        self.clean[-1].size_bytes = self.size_bytes - (count - 1) * chunk_bytes
        self.start(content)

    def _refresh_tokens(self, content: "Array", chunk_bytes: int) -> None:
        if chunk_bytes != self.chunk_bytes:
            self.begin(content, chunk_bytes)
            return
        for place in self.changed(content).nonzero()[0].tolist():
            self.clean[place] = SourceChunk(next(self.numbers), None, self.clean[place].size_bytes)

    def _copied(self, content: "Array", missing: list[int], view: memoryview) -> list[SourceChunk]:
        """Return all chunks. The chunks in `missing` have bytes, which are copied to `view`. All other chunks have no bytes."""
        import numpy

        result = self.clean.copy()
        target = numpy.frombuffer(view, numpy.uint8)
        at = 0
        for first, last in runs_of(missing):
            start = first * self.chunk_bytes
            size = min((last + 1) * self.chunk_bytes, self.size_bytes) - start
            numpy.copyto(target[at : at + size], content[start : start + size])
            for place in range(first, last + 1):
                clean = result[place]
                result[place] = SourceChunk(clean.token, view[at : at + clean.size_bytes], clean.size_bytes)
                at += clean.size_bytes
        return result


class KernelTracker(Tracker):
    """Tracker that finds writes through the kernel. Tracking stops permanently if most of the array is rewritten between captures.

    Attributes:
        writes: the kernel's tracker, which is armed at the first capture, or None if this memory cannot be tracked.
        is_disabled: whether tracking was stopped because it brought no gain or did not work.
        busy: number of consecutive captures before which more than half of the bytes were written.
    """

    def __init__(self, root: "Array", *, is_mapped: bool) -> None:
        super().__init__(root, root)
        mapped_bytes = write_tracking.page_rounded(self.size_bytes)
        self.writes = write_tracking.WriteTracker(self.address, mapped_bytes) if is_mapped else None
        self.is_disabled = False
        self.busy = 0

    @property
    def is_on(self) -> bool:
        return super().is_on and self.writes is not None

    def start(self, content: "Array") -> None:
        if self.writes is None:
            return
        try:
            if not self.writes.is_armed:
                self.writes.arm()
            else:
                self.writes.scan_words()
        except ExternalFailureError as error:
            self._switch_off(str(error))

    def changed(self, content: "Array") -> "Array":
        import numpy

        words = self._scan()
        if words is None:
            return numpy.ones(len(self.clean), bool)
        regions = numpy.frombuffer(words, numpy.uint64).reshape(-1, write_tracking.REGION_WORDS)
        starts, ends = (regions[:, :2] - numpy.uint64(self.address)).astype(numpy.int64).T
        self._count_busy_capture(int((ends - starts).sum()))
        return covering(starts, ends, count=len(self.clean), chunk_bytes=self.chunk_bytes)

    def _scan(self) -> "array.array[int] | None":
        """Return the ranges that were written, in the format of `scan_words`, or None if they are not known."""
        try:
            return None if self.writes is None else self.writes.scan_words()
        except ExternalFailureError as error:
            self._switch_off(str(error))
            return None

    def _count_busy_capture(self, written_bytes: int) -> None:
        """Count consecutive captures before which more than half of the bytes were written. If there have been too many such captures, stop
        tracking."""
        self.busy = self.busy + 1 if written_bytes * 2 > self.size_bytes else 0
        if self.busy >= BUSY_CAPTURES_MAX:
            self._switch_off(f"more than half of it was written before each of {BUSY_CAPTURES_MAX} captures")

    def _switch_off(self, reason: str) -> None:
        writes, self.writes, self.is_disabled = self.writes, None, True
        if writes is not None:
            writes.close()
        log.info("writes to %s are not tracked any more; captures copy it whole: %s", self.name, reason)


class MarkTracker(Tracker):
    """Tracker that finds changes through the marks made by `mark_dirty`.

    Attributes:
        row_bytes: size of a row in bytes, which is used in error messages.
        dirty: for each chunk, whether it has been marked since the last capture. `dirty` is None before the first capture.
        seen, marked: if `checking` is on, the bytes at the last capture, and for each byte whether it has been marked since then. Otherwise
            None.
    """

    def __init__(self, root: "Array", shown: "Array") -> None:
        """Create the tracker. `shown` is the array that was marked. If `shown` covers the whole memory, error messages refer to its
        rows."""
        is_whole = shown.nbytes == root.nbytes and shown.flags.c_contiguous
        shown = shown if is_whole else root
        super().__init__(root, shown)
        self.row_bytes = shown.nbytes // shown.shape[0] if shown.ndim else shown.nbytes
        self.dirty: Array | None = None
        self.seen: Array | None = None
        self.marked: Array | None = None

    def start(self, content: "Array") -> None:
        import numpy

        self.dirty = numpy.zeros(len(self.clean), bool)
        self._remember(content)

    def changed(self, content: "Array") -> "Array":
        assert self.dirty is not None, "asked before start"
        if Settings.is_checking:
            self._check(content)
        self._remember(content)
        result = self.dirty.copy()
        self.dirty[:] = False
        return result

    def mark(self, start: int, end: int) -> None:
        # Before the first capture everything counts as changed.
        start, end = max(start, 0), min(end, self.size_bytes)
        if self.dirty is not None and start < end:
            self.dirty[start // self.chunk_bytes : (end - 1) // self.chunk_bytes + 1] = True
            if self.marked is not None:
                self.marked[start:end] = True

    def mark_many(self, starts: "Array", ends: "Array") -> None:
        if self.dirty is None:
            return
        starts, ends = starts.clip(0, self.size_bytes), ends.clip(0, self.size_bytes)
        is_inside = starts < ends
        starts, ends = starts[is_inside], ends[is_inside]
        self.dirty |= covering(starts, ends, count=len(self.dirty), chunk_bytes=self.chunk_bytes)
        if self.marked is not None:
            self.marked |= covering(starts, ends, count=self.size_bytes, chunk_bytes=1)

    def _remember(self, content: "Array") -> None:
        import numpy

        is_checking = Settings.is_checking
        self.seen = content.copy() if is_checking else None
        self.marked = numpy.zeros(len(content), bool) if is_checking else None

    def _check(self, content: "Array") -> None:
        """Raise UsageError if a byte has changed without being marked. Single bytes are compared, rather than chunks."""
        if self.seen is None or self.marked is None:
            return  # Checking began after the last capture.
        forgotten = ((content != self.seen) & ~self.marked).nonzero()[0]
        if len(forgotten):
            rows = sorted(set((forgotten // self.row_bytes).tolist()))
            raise UsageError(
                f"{self.name}: {_listed(rows)} changed without a mark; call mark_dirty(array, rows) after each write"
            )


def _fresh_tokens() -> Iterator[int]:
    while True:
        first = fresh_token()
        yield from range(first, first + BLOCK_TOKENS)


def _listed(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:_SHOWN_ROWS_MAX]))
    hidden_count = len(rows) - _SHOWN_ROWS_MAX
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}" + (f" and {hidden_count} more" if hidden_count > 0 else "")


TRACKED_BYTES_MIN = 1024 * 1024
"""Smallest tracked array in bytes. `tracked_array` returns an ordinary array below this size, because scanning costs as much as copying
(0.05 ms)."""


def tracked_array(shape: SupportsIndex | Sequence[SupportsIndex], dtype: "DTypeLike" = float) -> "Array":
    """Return a zero-filled array. When the array is captured, only those pages are copied that were written since the last complete
    capture.

    The array is an ordinary writable `numpy.ndarray` in C order. The array needs no marks, so `mark_dirty` has no effect on it. The state
    must contain the whole array, not just a view of a part. After each capture, the first write to each page of 4 KiB takes about 1 to 2 µs
    longer. If the kernel cannot track writes (Linux before 6.7, no permission), or if the array is smaller than 1 MiB, captures copy the
    whole array. Tracking stops if most of the array is rewritten between captures. Results such as `array.copy()` or `array + 1` are not
    tracked, so write to the array in place.

    Raises:
        UsageError: If the shape or the dtype is invalid, or if NumPy is not installed.
        ExternalFailureError: If the machine is out of memory.
    """
    numpy = _need_numpy()
    try:
        template = numpy.dtype(dtype)
        lengths = tuple(map(operator.index, shape)) if isinstance(shape, Sequence) else (operator.index(shape),)
        size_bytes = math.prod(lengths) * template.itemsize
        if min(lengths, default=1) <= 0 or not size_bytes:
            empty: Array = numpy.zeros(lengths, template)  # Raises if a length is negative.
            return empty
    except (SyntaxError, TypeError, ValueError) as error:  # NumPy evaluates digits in a dtype
        raise UsageError(f"no array of shape {shape!r} and dtype {dtype!r}: {error}; correct them") from error
    if template.hasobject:
        raise UsageError(f"an array of dtype {template} cannot be tracked: it holds objects; use another dtype")
    return retrack(allocate(size_bytes), template, lengths)


def allocate(size_bytes: int) -> memoryview:
    """Return zero-filled, writable memory for an array, which `retrack` can track later.

    Raises:
        ExternalFailureError: If the machine is out of memory.
    """
    if size_bytes >= TRACKED_BYTES_MIN and not write_tracking.is_supported():
        return memoryview(write_tracking.map_memory(size_bytes))[:size_bytes]
    try:
        return memoryview(bytearray(size_bytes))
    except (MemoryError, OverflowError) as error:
        raise ExternalFailureError(f"no memory for an array of {size_bytes} bytes; make it smaller") from error


def retrack(buffer: memoryview, dtype: "DTypeLike", shape: Sequence[int]) -> "Array":
    """Return an array that uses `buffer` as its memory and is tracked from its first capture on. The buffer must come from `allocate`, and
    the caller must have filled it.

    Raises:
        UsageError: If the dtype and the shape do not match the buffer.
    """
    numpy = _need_numpy()
    try:
        template = numpy.dtype(dtype)
        if template.hasobject or min(shape, default=0) < 0:
            raise ValueError("objects are not bytes, and lengths are not negative")
        array: Array = numpy.ndarray(tuple(shape), template, buffer)
    except (SyntaxError, TypeError, ValueError) as error:
        raise UsageError(
            f"no array of shape {shape!r} and dtype {dtype!r} in {buffer.nbytes} bytes: {error}"
        ) from error
    if array.nbytes:
        KernelTracker(array, is_mapped=isinstance(buffer.obj, mmap.mmap) and not address_of(array) % mmap.PAGESIZE)
    return array


def assume_stored(
    array: "Array", references: Sequence[ChunkReference], *, chunk_bytes: int
) -> dict[int, ChunkReference]:
    """Begin to track `array` from now on. Return a map from the tokens of the array's chunks to the chunks. The map must be part of the
    base table of the next capture.

    If this function is called before anything is written to a restored array, the first capture copies only chunks that are written after
    the call.

    Args:
        array: an array that `retrack` has returned.
        references: the chunks from which the array was read, in order.
        chunk_bytes: size of these chunks in bytes.

    Returns:
        An empty dict if the array is not tracked or was cut into chunks of another size. In that case, the array's first capture copies the
        whole array.
    """
    tracker = tracker_of(array)
    if tracker is None or chunk_bytes <= 0 or len(references) != -(-array.nbytes // chunk_bytes):
        return {}
    tracker.begin(array.reshape(-1).view("u1"), chunk_bytes)
    if not tracker.is_on:
        return {}
    return {chunk.token: reference for chunk, reference in zip(tracker.clean, references, strict=True)}


def tracker_of(array: "Array") -> Tracker | None:
    """Return the tracker of `array`, or None if `array` is not tracked, so that captures must copy it whole."""
    if not trackers:
        return None
    tracker = trackers.get(id(root_of(array)))
    return tracker if tracker is not None and tracker.is_on and tracker.covers(array) else None


def is_tracked(array: "Array") -> bool:
    """Return whether `array` came from `tracked_array` or `retrack` and is still tracked. If the array is still tracked, a restore must
    call `retrack`.

    The result is True even if this machine cannot track writes, because the machine that restores the array may be able to track them.
    """
    tracker = trackers.get(id(root_of(array)))
    return isinstance(tracker, KernelTracker) and not tracker.is_disabled and tracker.covers(array)


def mark_dirty(array: "Array", rows: "Rows") -> None:
    """Mark rows of an array as changed, so that later captures copy only marked rows.

    The first mark is a promise to mark all later writes to the array. After the next capture, a write without a mark is not captured, and
    is lost in a recovery. So every write must be marked before the end of the turn. In tests, use `checking(True)` to find missing marks.
    Marking more rows than have changed is harmless. If the state's array is replaced by a new array object, the promise does not hold for
    the new array until its first mark. Marks work only for whole arrays in C order. Marks made through views of such an array count, too.
    Arrays from `tracked_array` need no marks and ignore marks.

    Args:
        array: an array in the state, or a view of one.
        rows: which rows along the first axis have changed, as in `array[rows]`: a number, a slice, several numbers, or one bool for each
            row.

    Raises:
        UsageError: If `array` is not an array with rows, or if `rows` are out of range.
    """
    numpy = _need_numpy()
    if not isinstance(array, numpy.ndarray) or not array.ndim:
        raise UsageError(f"mark_dirty needs an array with rows, not {type(array).__name__}; pass the array itself")
    starts, ends = spans_of(array, rows)
    for tracker in _marked_by(array):
        offset_starts, offset_ends = starts - tracker.address, ends - tracker.address
        if isinstance(offset_starts, int):
            tracker.mark(offset_starts, offset_ends)
        else:
            tracker.mark_many(offset_starts, offset_ends)


def checking(is_on: bool) -> None:
    """Compare marked arrays completely at each capture. If a write was not marked, the capture raises UsageError. Use this in tests.

    Checking doubles the memory of these arrays, and comparing them takes time. A change of this setting takes effect at the next capture of
    each array.
    """
    Settings.is_checking = is_on


def _marked_by(array: "Array") -> list[Tracker]:
    """Return the trackers that cover the memory of `array`. If there are no trackers but one would be useful, create a tracker, which the
    next call returns."""
    root = root_of(array)
    tracker = trackers.get(id(root))
    if tracker is not None and tracker.process == os.getpid() and tracker.covers(root):
        return [tracker]
    # Another array object over the same memory may be the one that is tracked.
    low, high = bounds_of(root)
    matching = [
        other for other in list(trackers.values()) if other.address < high and low < other.address + other.size_bytes
    ]
    if not matching and root.nbytes and root.flags.c_contiguous and not root.dtype.hasobject:
        MarkTracker(root, array)
    return matching


def _need_numpy() -> Any:  # the module: NumPy's type needs NumPy
    try:
        import numpy
    except ImportError as error:
        raise UsageError("tracked arrays need NumPy; install snapline[numpy]") from error
    return numpy
