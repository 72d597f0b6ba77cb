"""Reads the first values of an array or tensor without NumPy or torch, and without reading the rest."""

import re
import struct
from collections.abc import Callable

import msgspec

from snapline.storage.capture.saved_values import SavedArray

_NUMPY_TYPE = re.compile(r"([<>|=])([biufcUS])(\d+)")

_LETTERS = {
    "b1": "?",
    "i1": "b",
    "u1": "B",
    "i2": "h",
    "u2": "H",
    "i4": "i",
    "u4": "I",
    "i8": "q",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
    "c8": "ff",
    "c16": "dd",
}
"""NumPy's kind and size → format characters of `struct`."""

TORCH_TYPES = {
    "bool": "|b1",
    "int8": "|i1",
    "uint8": "|u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
    "uint64": "<u8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
}
"""torch's name → NumPy's name. Missing types have no counterpart: bfloat16, the 8-bit floats."""

CHARACTER_BYTES = 4
"""Size of a character in NumPy's text (UTF-32), in bytes."""


class _Reading(msgspec.Struct, frozen=True):
    """Reader of one value of a type."""

    size_bytes: int
    decode: Callable[[bytes], object]


def first_values(array: SavedArray, count: int) -> list[object] | None:
    """Return the first `count` values in C order; None if values of this type cannot be decoded.

    Raises:
        DamagedDataError: the bytes of their chunks differ from those written.
    """
    reading = _reading_of(array.dtype)
    if reading is None:
        return None
    size_bytes = reading.size_bytes
    wanted = min(count, array.size)
    if array.order == "C":
        data = bytes(array.content.span(0, wanted * size_bytes))
        return [reading.decode(data[start : start + size_bytes]) for start in range(0, wanted * size_bytes, size_bytes)]
    places = [_fortran_place(number, array.shape) for number in range(wanted)]
    return [reading.decode(bytes(array.content.span(place * size_bytes, size_bytes))) for place in places]


def _fortran_place(number: int, shape: tuple[int, ...]) -> int:
    """Return the index in Fortran order of the value with index `number` in C order."""
    index = []
    for length in reversed(shape):
        number, at = divmod(number, length)
        index.append(at)
    place, stride = 0, 1
    for at, length in zip(reversed(index), shape, strict=True):
        place += at * stride
        stride *= length
    return place


def _reading_of(dtype: str) -> _Reading | None:
    if dtype == "bfloat16":  # the upper half of a float32
        return _Reading(2, lambda data: struct.unpack("<f", b"\0\0" + data)[0])
    match = _NUMPY_TYPE.fullmatch(TORCH_TYPES.get(dtype, dtype))
    if match is None:
        return None
    order, kind, size = match[1], match[2], int(match[3])
    if kind == "S":
        return _Reading(size, lambda data: data.rstrip(b"\0"))
    if kind == "U":
        encoding = "utf-32-be" if order == ">" else "utf-32-le"
        return _Reading(size * CHARACTER_BYTES, lambda data: data.decode(encoding, "replace").rstrip("\0"))
    letters = _LETTERS.get(f"{kind}{size}")
    return None if letters is None else _numbers((">" if order == ">" else "<") + letters)


def _numbers(layout: str) -> _Reading:
    if len(layout) == 3:
        return _Reading(struct.calcsize(layout), lambda data: str(complex(*struct.unpack(layout, data))))
    return _Reading(struct.calcsize(layout), lambda data: struct.unpack(layout, data)[0])
