"""Memory ranges of an array, a row or a run of chunks. Pure arithmetic; needs NumPy only when called.

Ranges are half open, `(start, end)`, in bytes. An array's *root* is the array that owns its memory; all views of it share the root.
"""

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

from snapline.errors import UsageError

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]  # any shape and dtype: these do not matter here
    Rows = slice | SupportsIndex | Iterable[SupportsIndex]


def root_of(array: "Array") -> "Array":
    """Return the array that owns the memory of `array`."""
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
    """Return start and end addresses of the rows: two numbers, or two int64 arrays."""
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
    """Return the numbers of the rows, non-negative, as int64."""
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
    """Return the start and end of a row's bytes, relative to its first element."""
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
    """Return which of `count` chunks the byte ranges touch. No range is empty, or starts after the last chunk."""
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
