"""Arrays whose capture cost depends on the changes: in write-tracked memory, or marked manually. `trackers.py` has the theory.

- `tracked_array`, `adopt`: the kernel reports writes to memory that we mapped (`write_tracking.py`). The memory is registered at the first
  capture. Without kernel support, and for small arrays, the array is an ordinary one and captures copy it whole.
- `mark_dirty(array, rows)`: the user reports writes to any array. The first mark promises that all later writes are marked.
  `checking(True)` compares everything and finds a forgotten mark.

After a restore, an array that was tracked when it was captured (`is_tracked`) is read into `allocate`d memory, and `retrack`
tracks it again. With `assume_stored` its first capture already copies only changes. Marks end with the process: the
first mark after a restore starts over, and the capture after it is complete.
"""

import math
import mmap
import operator
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from snapline.errors import ExternalFailureError, UsageError
from snapline.storage.capture import write_tracking
from snapline.storage.capture.array_memory import address_of, bounds_of, root_of, spans_of
from snapline.storage.capture.trackers import KernelTracker, MarkTracker, Settings, Tracker, trackers
from snapline.storage.packs.checkpoint import ChunkReference

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from snapline.storage.capture.array_memory import Array, Rows

TRACKED_BYTES_MIN = 1024 * 1024
"""Smallest tracked array; `tracked_array` returns an ordinary array for less: scanning costs as much as copying it (0.05 ms)."""


def tracked_array(shape: SupportsIndex | Sequence[SupportsIndex], dtype: "DTypeLike" = float) -> "Array":
    """Return a zero-filled array whose captures copy only pages written since the last complete one.

    The array is an ordinary writable `numpy.ndarray`, in C order, and needs no marks (`mark_dirty` on it does nothing). Keep it
    whole in the state. The first write to each 4 KiB page after a capture costs about 1 to 2 µs. Where the kernel cannot
    track writes (Linux before 6.7, no permission) and below 1 MiB captures copy it whole. Tracking ends for an array that
    is mostly rewritten between captures. Copies of it (`array.copy()`, `array + 1`) are not tracked: write in place.

    Raises:
        UsageError: the shape or dtype is invalid, or NumPy is not installed.
        ExternalFailureError: the machine is out of memory.
    """
    numpy = _need_numpy()
    try:
        template = numpy.dtype(dtype)
        lengths = tuple(map(operator.index, shape)) if isinstance(shape, Sequence) else (operator.index(shape),)
        size_bytes = math.prod(lengths) * template.itemsize
        if min(lengths, default=1) <= 0 or not size_bytes:
            empty: Array = numpy.zeros(lengths, template)  # Raises if a length is negative.
            return empty
    except (TypeError, ValueError) as error:
        raise UsageError(f"no array of shape {shape!r} and dtype {dtype!r}: {error}; correct them") from error
    if template.hasobject:
        raise UsageError(f"an array of dtype {template} cannot be tracked: it holds objects; use another dtype")
    return retrack(allocate(size_bytes), template, lengths)


def adopt(array: "Array") -> "Array":
    """Return a tracked copy of `array`, as from `tracked_array`; put the copy into the state.

    Raises:
        As `tracked_array`.
    """
    copy = tracked_array(array.shape, array.dtype)
    copy[...] = array
    return copy


def allocate(size_bytes: int) -> memoryview:
    """Return zero-filled, writable memory for an array that `retrack` will track.

    Raises:
        ExternalFailureError: the machine is out of memory.
    """
    if size_bytes >= TRACKED_BYTES_MIN and not write_tracking.is_supported():
        return memoryview(write_tracking.map_memory(size_bytes))[:size_bytes]
    try:
        return memoryview(bytearray(size_bytes))
    except (MemoryError, OverflowError) as error:
        raise ExternalFailureError(f"no memory for an array of {size_bytes} bytes; make it smaller") from error


def retrack(buffer: memoryview, dtype: "DTypeLike", shape: Sequence[int]) -> "Array":
    """Return an array over `buffer`, a filled one from `allocate`, that is tracked from its first capture on.

    Raises:
        UsageError: dtype and shape do not fit the buffer.
    """
    numpy = _need_numpy()
    try:
        template = numpy.dtype(dtype)
        if template.hasobject or min(shape, default=0) < 0:
            raise ValueError("objects are not bytes, and lengths are not negative")
        array: Array = numpy.ndarray(tuple(shape), template, buffer)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"no array of shape {shape!r} and dtype {dtype!r} in {buffer.nbytes} bytes: {error}"
        ) from error
    if array.nbytes:
        KernelTracker(array, is_mapped=isinstance(buffer.obj, mmap.mmap) and not address_of(array) % mmap.PAGESIZE)
    return array


def assume_stored(
    array: "Array", references: Sequence[ChunkReference], *, chunk_bytes: int
) -> dict[int, ChunkReference]:
    """Track `array` from now on; return the tokens of its chunks, for the base table of its next capture.

    Call it for a restored array before any write to it: then its first capture copies only later writes.

    Args:
        array: an array from `retrack`.
        references: the chunks from which it was read, in order.
        chunk_bytes: size of the chunks.

    Returns:
        An empty dict if the array is not tracked, or was cut differently: then its first capture copies it whole.
    """
    tracker = tracker_of(array)
    if tracker is None or chunk_bytes <= 0 or len(references) != -(-array.nbytes // chunk_bytes):
        return {}
    tracker.begin(array.reshape(-1).view("u1"), chunk_bytes)
    if not tracker.is_on:
        return {}
    return {chunk.token: reference for chunk, reference in zip(tracker.clean, references, strict=True)}


def tracker_of(array: "Array") -> Tracker | None:
    """Return the tracker of `array`; None if it is not tracked and must be copied whole."""
    if not trackers:
        return None
    tracker = trackers.get(id(root_of(array)))
    return tracker if tracker is not None and tracker.is_on and tracker.covers(array) else None


def is_tracked(array: "Array") -> bool:
    """Return whether `array` came from `tracked_array`, `adopt` or `retrack` and is still tracked, so a restore calls `retrack`.

    True even if this machine cannot track writes: the restoring machine may.
    """
    tracker = trackers.get(id(root_of(array)))
    return isinstance(tracker, KernelTracker) and not tracker.is_disabled and tracker.covers(array)


def mark_dirty(array: "Array", rows: "Rows") -> None:
    """Mark rows of an array as changed, so that the next captures copy only marked rows.

    The first mark is a promise: after the next capture, writes without a mark are not captured, and lost in a recovery.
    So mark every write before the turn ends; `checking(True)` finds forgotten marks in tests. Marks may cover more than the
    changes. A new array object in the state starts again, without a promise. Marks only help for an array that is whole and in C
    order; marks through views of it count. Arrays of `tracked_array` need no marks and ignore them.

    Args:
        array: an array in the state, or a view of one.
        rows: indices into the first axis of `array`, as in `array[rows]`: a number, a slice, several numbers, or one bool
            for each row.

    Raises:
        UsageError: `array` is not an array, or `rows` are out of range.
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
    """Compare arrays with marks fully at each capture, and raise on a write without a mark. For tests.

    Costs twice the memory of these arrays and the time to compare them. Takes effect at the next capture of each array.
    """
    Settings.is_checking = is_on


def _marked_by(array: "Array") -> list[Tracker]:
    """Return the trackers of the memory of `array`; create one if there is none and it would be useful."""
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
