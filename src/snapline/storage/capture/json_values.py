"""A saved state as JSON, without the classes that wrote it, and without NumPy.

Records become objects; histories and arrays become lists (nested by dimension); bytes become base64 text; other keys become their
text. NaN and infinities, which JSON lacks, become null. Pickles, random generators and arrays of types that only NumPy can decode
are shown by kind and size. `plain_values.py` makes the same values for Python.
"""

import math

import msgspec

from snapline.errors import UsageError
from snapline.storage.capture.first_values import first_values
from snapline.storage.capture.saved_values import SavedArray, SavedBytes, SavedHistory

CONTENT_FACTOR = 4
"""Largest ratio of a state to its JSON: a number of eight bytes takes at least two characters."""


def json_of(tree: object, bytes_max: int) -> bytes:
    """Return a tree of `saved_values` as JSON.

    Raises:
        UsageError: the JSON exceeds `bytes_max`.
        DamagedDataError: some bytes differ from those written.
    """
    text = msgspec.json.encode(_Values(bytes_max).of(tree))
    if len(text) > bytes_max:
        raise too_large(len(text), bytes_max)
    return text


def too_large(size_bytes: int, bytes_max: int) -> UsageError:
    """Return the error for a state that is too large."""
    return UsageError(
        f"this takes {size_bytes:,} bytes and more, {bytes_max:,} of JSON are told: ask for a field of it, "
        "or read the store with snapline.open_store"
    )


class _Values:
    """Converts values, and counts the bytes of each before reading it."""

    def __init__(self, bytes_max: int) -> None:
        self._left = CONTENT_FACTOR * bytes_max
        self._bytes_max = bytes_max

    def of(self, value: object) -> object:
        match value:
            case dict():
                return {key if isinstance(key, str) else str(key): self.of(item) for key, item in value.items()}
            case list() | tuple():
                return [self.of(item) for item in value]
            case SavedArray():
                self._count(value.content.size_bytes)
                return _json_array(value)
            case SavedHistory():
                self._count(value.content.size_bytes)
                return [self.of(record) for record in value.records()]
            case SavedBytes():
                return self._bytes(value)
            case msgspec.msgpack.Ext():
                return f"<extension {value.code}, {memoryview(value.data).nbytes} bytes>"
        return value

    def _bytes(self, value: SavedBytes) -> object:
        if value.name != "blob":
            return str(value)
        self._count(value.content.size_bytes)
        return bytes(value.content.whole())

    def _count(self, size_bytes: int) -> None:
        self._left -= size_bytes
        if self._left < 0:
            raise too_large(size_bytes, self._bytes_max)


def _json_array(array: SavedArray) -> object:
    values = first_values(array.in_memory(), array.size)
    return str(array) if values is None else _nested(values, array.shape)


def _nested(values: list[object], shape: tuple[int, ...]) -> object:
    if not shape:
        return values[0]
    size = math.prod(shape[1:])
    rows = [values[start * size : (start + 1) * size] for start in range(shape[0])]
    return values if len(shape) == 1 else [_nested(row, shape[1:]) for row in rows]
