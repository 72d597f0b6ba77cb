"""Memory ranges of an array, a row or a run of chunks. Pure arithmetic; needs NumPy only when called.

Ranges are half open, `(start, end)`, in bytes. An array's *root* is the array that its memory belongs to: views have it in common.
"""

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

from snapline.errors import UsageError

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]  # any shape and dtype: which ones does not matter here
    Rows = slice | SupportsIndex | Iterable[SupportsIndex]


def root_of(array: "Array") -> "Array":
    """Return the array that the memory of `array` belongs to."""
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
    """Return where in memory the rows start and end: two numbers, or two int64 arrays."""
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
        return range(count)[operator.index(row)]  # type: ignore[arg-type]  # that is what is found out here
    except (TypeError, IndexError) as error:
        raise UsageError(f"mark_dirty: {row!r} is not a row of an array with {count} rows: {error}; mend it") from error


def _row_numbers(rows: "Iterable[SupportsIndex]", count: int) -> "Array":
    """Return the numbers of the rows, none negative, as int64."""
    import numpy

    try:
        found: Array = numpy.asarray(rows if isinstance(rows, numpy.ndarray) else list(rows)).reshape(-1)
    except (TypeError, ValueError) as error:
        raise UsageError(f"mark_dirty: rows must be numbers: {error}; mend them") from error
    if found.dtype.kind == "b" and len(found) == count:
        return found.nonzero()[0]
    if found.dtype.kind not in "iu" and len(found):
        raise UsageError(f"mark_dirty: rows must be numbers or one bool for each of {count} rows, not {found.dtype}")
    if len(found) and not -count <= int(found.min()) <= int(found.max()) < count:
        raise UsageError(f"mark_dirty: rows {found.min()} to {found.max()} are not in an array with {count} rows")
    numbers = found.astype(numpy.int64)
    return numpy.where(numbers < 0, numbers + count, numbers)


def _row_extent(array: "Array") -> tuple[int, int]:
    """Return where the bytes of a row start and end, seen from its first element."""
    low, high = 0, array.itemsize
    for length, stride in zip(array.shape[1:], array.strides[1:], strict=True):
        if not length:
            return 0, 0
        low += min(0, (length - 1) * stride)
        high += max(0, (length - 1) * stride)
    return low, high


def bounds_of(array: "Array") -> tuple[int, int]:
    """Return the first and last + 1 address of an array's elements."""
    low, high = 0, array.itemsize
    for length, stride in zip(array.shape, array.strides, strict=True):
        low += min(0, (length - 1) * stride)
        high += max(0, (length - 1) * stride)
    address = address_of(array)
    return (address + low, address + high) if array.size else (address, address)


def covering(starts: "Array", ends: "Array", *, count: int, chunk_bytes: int) -> "Array":
    """Return which of `count` chunks the byte ranges touch. None of them is empty, or starts after the last chunk."""
    import numpy

    first = starts // chunk_bytes
    after = numpy.minimum((ends - 1) // chunk_bytes, count - 1) + 1
    opened = numpy.bincount(first, minlength=count + 1) - numpy.bincount(after, minlength=count + 1)
    return opened[:count].cumsum() > 0


def runs_of(places: list[int]) -> Iterable[tuple[int, int]]:
    """Yield the runs `(first, last)` of successive numbers in an ascending list that is not empty."""
    first = last = places[0]
    for place in places[1:]:
        if place != last + 1:
            yield first, last
            first = place
        last = place
    yield first, last
