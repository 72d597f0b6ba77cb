"""Changes of an array, a tensor or a blob: their number, place and size. Reads only chunks that may have changed.

Arrays with chunks of equal size are compared by digest. Only chunks that differ are read, some MiB at a time. Elements are compared as bytes: -0.0 is
not 0.0, and a NaN equals itself. Without NumPy the largest change is not reported.
"""

import importlib.util
from collections.abc import Iterator
from typing import Any

import msgspec

from snapline.storage.capture.saved_values import Content, SavedArray
from snapline.storage.packs.checkpoint import ChunkReference

BATCH_BYTES = 8 * 2**20
"""Size read and compared at once on each side; it bounds the memory used."""


class ArrayDifference(msgspec.Struct):
    """Changes between two arrays of one type and shape.

    Attributes:
        elements: number of elements.
        changed: number of elements that differ.
        first, last: index in C order of the first and the last element that differs.
        largest: largest absolute change; None if unknown (not numeric, no NumPy, or NaN).
    """

    elements: int
    changed: int = 0
    first: int = 0
    last: int = 0
    largest: int | float | None = None


class BytesDifference(msgspec.Struct, frozen=True):
    """A replacement of `removed` bytes at `offset` by `added` bytes; everything before and after is equal."""

    offset: int
    removed: int
    added: int


def compare_arrays(before: SavedArray, after: SavedArray) -> ArrayDifference:
    """Compare two arrays of one dtype and shape.

    Raises:
        DamagedDataError: a chunk is damaged.
    """
    count = 1
    for length in before.shape:
        count *= length
    difference = ArrayDifference(count)
    item_bytes = before.content.size_bytes // count if count else 0
    if not item_bytes or not before.content.size_bytes == after.content.size_bytes == item_bytes * count:
        return difference
    for offset, old, new in _pairs(before.content, after.content, item_bytes):
        _compare(difference, before.dtype, item_bytes, offset // item_bytes, old, new)
    return difference


def compare_bytes(before: Content, after: Content) -> BytesDifference | None:
    """Compare two blobs; None if they are equal. Reads one differing chunk at each end, on each side.

    Raises:
        DamagedDataError: a chunk is damaged.
    """
    if before.part is None or after.part is None:
        return _compare_bytes(before.whole(), after.whole())
    old, new = before.part.chunks(), after.part.chunks()
    same = _common(old, new)
    old, new = old[same:], new[same:]
    tail = _common(old[::-1], new[::-1])
    old, new = old[: len(old) - tail], new[: len(new) - tail]
    offset = sum([chunk.size_bytes for chunk in before.part.chunks()[:same]])
    if not old and not new:
        return None
    return _narrowed(before, after, old, new, offset)


def _narrowed(
    before: Content, after: Content, old: list[ChunkReference], new: list[ChunkReference], offset: int
) -> BytesDifference | None:
    """Narrow the difference to the byte, from the chunks at both ends of it."""
    sizes = [sum([chunk.size_bytes for chunk in side]) for side in (old, new)]
    if not old or not new:
        return BytesDifference(offset, *sizes)
    if max(len(old), len(new)) <= 2:
        difference = _compare_bytes(before.chunks(old), after.chunks(new))
        return (
            None
            if difference is None
            else BytesDifference(offset + difference.offset, difference.removed, difference.added)
        )
    front = _common(before.chunks(old[:1]), after.chunks(new[:1]))
    back = _common(before.chunks(old[-1:])[::-1], after.chunks(new[-1:])[::-1])
    back = min(back, min(sizes) - front)
    return BytesDifference(offset + front, sizes[0] - front - back, sizes[1] - front - back)


def _compare_bytes(old: memoryview, new: memoryview) -> BytesDifference | None:
    if old == new:
        return None
    front = _common(old, new)
    old, new = old[front:], new[front:]
    back = _common(old[::-1], new[::-1])
    return BytesDifference(front, len(old) - back, len(new) - back)


def _common(first: Any, second: Any) -> int:
    """Return the length of the common beginning of two sequences; halves instead of steps, since slices compare fast."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _pairs(before: Content, after: Content, item_bytes: int) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield offset, old and new bytes of all that may differ."""
    old, new = before.part, after.part
    if old is None or new is None or not old.chunk_bytes or old.chunk_bytes != new.chunk_bytes:
        yield 0, before.whole(), after.whole()
        return
    if old.chunk_bytes % item_bytes:  # An element crosses a chunk boundary.
        if old.digests != new.digests:
            yield 0, before.whole(), after.whole()
        return
    pairs = list(zip(old.chunks(), new.chunks(), strict=True))
    for first, last in _batches(pairs, max(1, BATCH_BYTES // old.chunk_bytes)):
        chosen = pairs[first:last]
        yield (
            first * old.chunk_bytes,
            before.chunks([x[0] for x in chosen]),
            after.chunks([x[1] for x in chosen]),
        )


def _batches(pairs: list[tuple[ChunkReference, ChunkReference]], most: int) -> Iterator[tuple[int, int]]:
    """Yield runs of pairs that differ, of at most `most` pairs."""
    first = 0
    while first < len(pairs):
        if pairs[first][0].digest == pairs[first][1].digest:
            first += 1
            continue
        last = first
        while last < len(pairs) and last - first < most and pairs[last][0].digest != pairs[last][1].digest:
            last += 1
        yield first, last
        first = last


def _compare(found: ArrayDifference, dtype: str, item_bytes: int, start: int, old: memoryview, new: memoryview) -> None:
    """Add the differences between two runs of elements, the first of which has index `start`."""
    if importlib.util.find_spec("numpy") is None:
        changed = [
            place
            for place in range(len(old) // item_bytes)
            if old[place * item_bytes : (place + 1) * item_bytes] != new[place * item_bytes : (place + 1) * item_bytes]
        ]
        ends = (changed[0], changed[-1]) if changed else (0, 0)
        _add(found, start, len(changed), ends, None)
        return
    import numpy

    bytes_old, bytes_new = (numpy.frombuffer(x, numpy.uint8).reshape(-1, item_bytes) for x in (old, new))
    places = numpy.flatnonzero((bytes_old != bytes_new).any(axis=1))
    if len(places):
        ends = int(places[0]), int(places[-1])
        _add(found, start, len(places), ends, _largest(dtype, bytes_old[places], bytes_new[places]))


def _add(found: ArrayDifference, start: int, count: int, ends: tuple[int, int], largest: float | None) -> None:
    if not count:
        return
    if not found.changed:
        found.first = start + ends[0]
    found.last = start + ends[1]
    found.changed += count
    if largest is not None:
        found.largest = largest if found.largest is None else max(found.largest, largest)


def _largest(dtype: str, old: Any, new: Any) -> int | float | None:
    """Return the largest absolute change between rows of bytes; integers exactly."""
    import numpy

    before, after = _numbers(dtype, old), _numbers(dtype, new)
    if before is None or after is None:
        return None
    if before.dtype.kind in "iu":
        high, low = numpy.maximum(before, after), numpy.minimum(before, after)
        return int((high.astype(numpy.uint64) - low.astype(numpy.uint64)).max())  # exact, modulo 2**64
    wide = numpy.complex128 if before.dtype.kind == "c" else numpy.float64
    with numpy.errstate(all="ignore"):
        changes = numpy.abs(after.astype(wide) - before.astype(wide))
    changes = changes[~numpy.isnan(changes)]
    return float(changes.max()) if len(changes) else None


def _numbers(dtype: str, rows: Any) -> Any:
    """Return the numbers in rows of bytes; None if they are none."""
    import numpy

    data = rows.tobytes()
    if dtype == "bfloat16":
        return (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    try:
        kind = numpy.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        return None
    return numpy.frombuffer(data, kind) if kind.kind in "iufc" and kind.itemsize == rows.shape[1] else None
