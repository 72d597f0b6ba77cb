"""Estimate of a protobuf message's parsed size, counted in its bytes before parsing.

An empty string takes two bytes on the wire and about a hundred as a Python object; a number takes one byte and then forty.
So a message of 16 MiB, within every limit on bytes, could cost gigabytes of memory. Counting allocates no objects: it
enters nested messages, counts packed numbers in C, and stops as soon as a limit is exceeded.
"""

from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from snapline.errors import ProtocolError

_CONTINUED = bytes(range(0x80, 0x100))
"""Bytes of a varint other than its last byte."""

_NUMBER_BYTES_MAX = 10

_VARINT, _FIXED_64, _SIZED, _FIXED_32 = 0, 1, 2, 5

_Shape = dict[int, "_Shape | None"]
"""Field number → shape of a nested message, or None for numbers. String and bytes fields are left out."""


def check_counts(data: bytes, kind: Any, *, entries_max: int, numbers_max: int) -> None:
    """Refuse a message with too many fields (nested messages included) or too many packed numbers.

    `kind` is the message's DESCRIPTOR.

    Raises:
        ProtocolError: the message exceeds a limit, or its last field does not end at the message's end.
    """
    entries = numbers = 0
    waiting = [(_shape_of(kind), 0, len(data))]
    while waiting:
        shape, at, end = waiting.pop()
        while at < end:
            entries += 1
            key, at = _read_varint(data, at, end)
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
        return at, _read_varint(data, at, end)[1]
    size, start = (8 if wire == _FIXED_64 else 4, at) if wire in (_FIXED_64, _FIXED_32) else (0, at)
    if wire == _SIZED:
        size, start = _read_varint(data, at, end)
    elif not size:
        raise ProtocolError(f"{len(data)} bytes with a field of the unknown wire type {wire}")
    if size > end - start:
        raise ProtocolError(f"{len(data)} bytes with a field of {size} where {end - start} are left")
    return start, start + size


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
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
