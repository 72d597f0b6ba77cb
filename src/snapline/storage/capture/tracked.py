"""Arrays whose captures cost what changed: kept in write-tracked memory, or marked by hand. `trackers.py` has the theory.

- `tracked_array`, `adopt`: the kernel reports writes (`write_tracking.py`), for memory that we mapped. Registered at the first
  capture. Where the kernel cannot, and for small arrays, the array is an ordinary one and captures copy it whole.
- `mark_dirty(array, rows)`: the user reports writes, and promises with the first mark that from then on all writes are marked. For
  any array. `checking(True)` compares fully and finds a forgotten mark.

After a restore: an array that was tracked (`is_tracked` when it was captured) is read into `allocate`d memory and tracked
again by `retrack`; with `assume_stored` its first capture already copies only what changed. Marks end with the process: the
first mark after a restore begins again, and the capture after it is whole.
"""

import math
import mmap
import operator
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from snapline.errors import ExternalFailureError, UsageError
from snapline.storage.capture import write_tracking
from snapline.storage.capture.array_memory import address_of, bounds_of, root_of, spans_of
from snapline.storage.capture.trackers import KernelTracker, MarkTracker, Settings, Tracker, trackers
from snapline.storage.packs.checkpoint import ChunkReference

if TYPE_CHECKING:
    import numpy
    from numpy.typing import DTypeLike

    Array = numpy.ndarray[Any, Any]  # any shape and dtype: which ones does not matter here
    Rows = slice | SupportsIndex | Iterable[SupportsIndex]

TRACKED_BYTES_MIN = 1024 * 1024
"""Below, `tracked_array` gives an ordinary array: a scan costs as much as copying that much does (0.05 ms)."""


def tracked_array(shape: SupportsIndex | Sequence[SupportsIndex], dtype: "DTypeLike" = float) -> "Array":
    """Return a zero-filled array whose captures copy only what was written since the last complete one.

    It is an ordinary writable `numpy.ndarray`, in C order, and needs no marks (`mark_dirty` on it does nothing). Keep it
    whole in the state. The first write to each 4 KiB page after a capture costs about 1 to 2 µs. Where the kernel cannot
    track writes (Linux before 6.7, no permission) and below 1 MiB captures copy it whole. Tracking ends for an array that
    is mostly rewritten between captures. Copies of it (`array.copy()`, `array + 1`) are not tracked: write in place.

    Raises:
        UsageError: no such shape or dtype, or NumPy is not installed.
        ExternalFailureError: there is not that much memory.
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
        raise UsageError(f"no array of shape {shape!r} and dtype {dtype!r}: {error}; mend them") from error
    if template.hasobject:
        raise UsageError(f"an array of dtype {template} cannot be tracked: it holds objects; use another dtype")
    return retrack(allocate(size_bytes), template, lengths)


def adopt(array: "Array") -> "Array":
    """Return a tracked copy of `array`, as `tracked_array` makes them; put that into the state.

    Raises:
        As `tracked_array`.
    """
    copy = tracked_array(array.shape, array.dtype)
    copy[...] = array
    return copy


def allocate(size_bytes: int) -> memoryview:
    """Return zero-filled, writable memory for an array that `retrack` shall track.

    Raises:
        ExternalFailureError: there is not that much memory.
    """
    if size_bytes >= TRACKED_BYTES_MIN and not write_tracking.is_supported():
        return memoryview(write_tracking.map_memory(size_bytes))[:size_bytes]
    try:
        return memoryview(bytearray(size_bytes))
    except (MemoryError, OverflowError) as error:
        raise ExternalFailureError(f"no memory for an array of {size_bytes} bytes; make it smaller") from error


def retrack(buffer: memoryview, dtype: "DTypeLike", shape: Sequence[int]) -> "Array":
    """Return an array over `buffer`, from `allocate` and filled, that is tracked from its first capture on.

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
    """Track `array` from now on; return the tokens of its chunks, for the table that its next capture has as base.

    For a restored array, before anybody writes to it: its first capture then copies only what was written since.

    Args:
        array: from `retrack`.
        references: of the chunks it was read from, in order.
        chunk_bytes: their size.

    Returns:
        Nothing if the array is not tracked, or was cut otherwise: then its first capture copies it whole.
    """
    tracker = tracker_of(array)
    if tracker is None or chunk_bytes <= 0 or len(references) != -(-array.nbytes // chunk_bytes):
        return {}
    tracker.begin(array.reshape(-1).view("u1"), chunk_bytes)
    if not tracker.is_on:
        return {}
    return {chunk.token: reference for chunk, reference in zip(tracker.clean, references, strict=True)}


def tracker_of(array: "Array") -> Tracker | None:
    """Return the tracker of `array`; None: it is not tracked, so copy it whole."""
    if not trackers:
        return None
    tracker = trackers.get(id(root_of(array)))
    return tracker if tracker is not None and tracker.is_on and tracker.covers(array) else None


def is_tracked(array: "Array") -> bool:
    """Return whether `array` came from `tracked_array`, `adopt` or `retrack` and is still tracked: restore it by `retrack`.

    Also where this machine cannot track writes: the one that restores it perhaps can.
    """
    tracker = trackers.get(id(root_of(array)))
    return isinstance(tracker, KernelTracker) and not tracker.was_given_up and tracker.covers(array)


def mark_dirty(array: "Array", rows: "Rows") -> None:
    """Mark rows of an array as changed, so that the next captures copy only these.

    The first mark is a promise: from the capture after it, writes without a mark are not captured, and lost in a recovery.
    So mark every write, before the turn ends; `checking(True)` in tests finds forgotten ones. Marks may be more than what
    changed. A new array object in the state starts again, without a promise. Gains only for an array that is whole and in C
    order; marks through views of it count. Arrays of `tracked_array` need no marks and ignore them.

    Args:
        array: in the state, or a view of one.
        rows: indices into the first axis of `array`, as in `array[rows]`: a number, a slice, several numbers, or one bool
            for each row.

    Raises:
        UsageError: not an array, or no such rows.
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

    Costs twice the memory of these arrays and the time to compare them. Counts from the next capture of each array.
    """
    Settings.is_checking = is_on


def _marked_by(array: "Array") -> list[Tracker]:
    """Return the trackers of the memory that `array` shows; make one if there is none and it would be of use."""
    root = root_of(array)
    tracker = trackers.get(id(root))
    if tracker is not None and tracker.process == os.getpid() and tracker.covers(root):
        return [tracker]
    # Another array object over the same memory may be the one that is tracked.
    low, high = bounds_of(root)
    found = [
        other for other in list(trackers.values()) if other.address < high and low < other.address + other.size_bytes
    ]
    if not found and root.nbytes and root.flags.c_contiguous and not root.dtype.hasobject:
        MarkTracker(root, array)
    return found


def _need_numpy() -> Any:  # the module: NumPy has no type for itself that holds without it
    try:
        import numpy
    except ImportError as error:
        raise UsageError("tracked arrays need NumPy; install snapline[numpy]") from error
    return numpy
