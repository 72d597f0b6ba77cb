"""Estimate of a protobuf message's parsed size, counted in its bytes before parsing.

An empty text takes two bytes on the wire and some hundred once it is an object; a number takes one and becomes forty. So a
peer could make a message of 16 MiB cost gigabytes, within every limit on bytes. Walking over the bytes builds nothing:
nested messages are entered, packed numbers are counted in C, and it stops at the first entry too many.
"""

from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from snapline.errors import ProtocolError

_CONTINUED = bytes(range(0x80, 0x100))
"""Bytes that are not the last one of a number."""

_NUMBER_BYTES_MAX = 10

_VARINT, _FIXED_64, _SIZED, _FIXED_32 = 0, 1, 2, 5

_Shape = dict[int, "_Shape | None"]
"""Field → shape of the messages in it; None for numbers. Texts and bytes are not in it."""


def check_counts(data: bytes, kind: Any, *, entries_max: int, numbers_max: int) -> None:
    """Refuse a message of `kind` (a message's DESCRIPTOR, whose class is the library's affair) with too many fields, those of nested messages included, or too many packed numbers.

    Raises:
        ProtocolError: it has more, or its fields do not end where it does.
    """
    entries = numbers = 0
    waiting = [(_shape_of(kind), 0, len(data))]
    while waiting:
        shape, at, end = waiting.pop()
        while at < end:
            entries += 1
            key, at = _varint(data, at, end)
            start, at = _skip(data, key & 7, at, end)
            field = key >> 3
            if key & 7 == _SIZED and field in shape:
                nested = shape[field]
                if nested is not None:
                    waiting.append((nested, start, at))
                elif at - start > numbers_max * _NUMBER_BYTES_MAX:
                    numbers = numbers_max + 1
                else:
                    numbers += len(data[start:at].translate(None, _CONTINUED))
            if entries > entries_max or numbers > numbers_max:
                raise ProtocolError(
                    f"a {kind.name} of {len(data)} bytes with more than "
                    f"{entries_max} entries or {numbers_max} numbers: nothing of it is read"
                )


def _skip(data: bytes, wire: int, at: int, end: int) -> tuple[int, int]:
    """Return the begin and end of a field's value."""
    if wire == _VARINT:
        return at, _varint(data, at, end)[1]
    size, start = (8 if wire == _FIXED_64 else 4, at) if wire in (_FIXED_64, _FIXED_32) else (0, at)
    if wire == _SIZED:
        size, start = _varint(data, at, end)
    elif not size:
        raise ProtocolError(f"{len(data)} bytes with a field of the unknown wire type {wire}")
    if size > end - start:
        raise ProtocolError(f"{len(data)} bytes with a field of {size} where {end - start} are left")
    return start, start + size


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 7 * _NUMBER_BYTES_MAX:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ProtocolError(f"{len(data)} bytes with a number that does not end")


@cache
def _shape_of(kind: Any) -> _Shape:
    shape: _Shape = {}
    for field in kind.fields:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            shape[field.number] = _shape_of(field.message_type)
        elif field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
            shape[field.number] = None
    return shape
