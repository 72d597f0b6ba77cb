"""Encoded states and messages for people to read: without the classes that wrote them, and without NumPy."""

import struct
from collections.abc import Sequence

import msgspec

from snapline.storage.capture.image import PART_ARRAY, PART_BLOB, PART_HISTORY, PART_TENSOR
from snapline.storage.capture.values import (
    ARRAY_EXTENSION,
    BLOB_EXTENSION,
    HISTORY_EXTENSION,
    PART_EXTENSION,
    TENSOR_EXTENSION,
    ArrayHead,
    split_head,
)
from snapline.storage.checkpoint import StatePart

VALUES_SHOWN = 8
"""Of an array."""

_LETTERS = {
    "i1": "b",
    "u1": "B",
    "i2": "h",
    "u2": "H",
    "i4": "i",
    "u4": "I",
    "i8": "q",
    "u8": "Q",
    "f4": "f",
    "f8": "d",
}
"""Of `struct`, for the number types of NumPy that it knows."""


def plain(value: object, parts: Sequence[StatePart] = ()) -> object:
    """Decode bytes of unknown type: structs become dicts, arrays a short description. Parts are described, not read."""
    if not isinstance(value, bytes):
        return value
    return msgspec.msgpack.decode(value, ext_hook=lambda code, data: _describe_extension(code, data, parts))


def _describe_extension(code: int, data: memoryview, parts: Sequence[StatePart]) -> object:
    if code == PART_EXTENSION:
        number = msgspec.msgpack.decode(data, type=int)
        return _describe_part(parts[number]) if 0 <= number < len(parts) else f"<part {number}>"
    if code == HISTORY_EXTENSION:
        return plain(bytes(data))
    if code == BLOB_EXTENSION:
        return bytes(data)
    if code not in (ARRAY_EXTENSION, TENSOR_EXTENSION):
        return f"<extension {code}, {len(data)} bytes>"
    head, body = split_head(data)
    return {"dtype": head.dtype, "shape": list(head.shape), "values": _preview(head.dtype, body)}


def _describe_part(part: StatePart) -> object:
    if part.kind in (PART_ARRAY, PART_TENSOR):
        head = msgspec.msgpack.decode(part.head, type=ArrayHead)
        return {"dtype": head.dtype, "shape": list(head.shape), "bytes": part.size_bytes}
    if part.kind == PART_HISTORY:
        return {"records": msgspec.msgpack.decode(part.head, type=tuple[int])[0], "bytes": part.size_bytes}
    return {"bytes": part.size_bytes} if part.kind == PART_BLOB else f"<part of kind {part.kind}>"


def _preview(dtype: str, body: memoryview) -> object:
    """The first values of an array of a plain number type."""
    letter = _LETTERS.get(dtype.lstrip("<|="))
    if letter is None:
        return f"<{len(body)} bytes>"
    count = len(body) // struct.calcsize(letter)
    values: list[object] = list(struct.unpack_from(f"<{min(count, VALUES_SHOWN)}{letter}", body))
    return values if count <= VALUES_SHOWN else [*values, "…"]
