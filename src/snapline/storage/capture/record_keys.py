"""Decodes MessagePack whose maps have records as keys, such as a state with a `dict[Point, int]`, without the class of the records.

msgspec decodes such a record as a dict, which cannot be a key. Here the key becomes a tuple of its (name, value) pairs. Only
maps and arrays are split up; every other value is cut out and passed to msgspec. This is slow, and only used after msgspec has failed.
"""

from collections.abc import Callable

import msgspec

from snapline.storage.capture.image import Buffer

Hook = Callable[[int, memoryview], object]

_SIZES = {0xCA: 5, 0xCB: 9, **{first + i: size for first in (0xCC, 0xD0) for i, size in enumerate((2, 3, 5, 9))}}
"""Head → size of a number with its head, in bytes."""

_SIZES |= {head: 1 for head in (0xC0, 0xC2, 0xC3)} | {0xD4 + i: 2 + 2**i for i in range(5)}
"""Nil, false, true; extensions of 1 to 16 bytes."""

_LENGTHS = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
"""Head of bytes or an extension → size of its length field, and of other fields before the contents."""

_LENGTHS |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
"""Text."""


def decode_any_keys(data: Buffer, hook: Hook) -> object:
    """Decode a value.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the data is invalid. Also errors of `hook`.
    """
    reader = _Reader(memoryview(data), hook)
    value = reader.value()
    if reader.at != len(reader.data):
        raise msgspec.DecodeError(f"{len(reader.data) - reader.at} bytes behind the value")
    return value


class _Reader:
    """Reads the bytes once; `at` is the current position."""

    def __init__(self, data: memoryview, hook: Hook) -> None:
        self.data = data
        self.at = 0
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(ext_hook=hook)

    def value(self) -> object:
        head = self._span(self.at, 1)[0]
        if head & 0xF0 == 0x80 or head in (0xDE, 0xDF):
            return {as_key(self.value()): self.value() for _ in range(self._count(head, 0xDE))}
        if head & 0xF0 == 0x90 or head in (0xDC, 0xDD):
            return [self.value() for _ in range(self._count(head, 0xDC))]
        span = self._span(self.at, self._size(head))
        self.at += len(span)
        return self._decoder.decode(span)

    def _count(self, head: int, long: int) -> int:
        """Return the count of a map or array; advance past its head."""
        size = 0 if head < 0xA0 else 2 << (head - long)
        count = int.from_bytes(self._span(self.at + 1, size), "big") if size else head & 0x0F
        self.at += 1 + size
        return count

    def _size(self, head: int) -> int:
        if head & 0xE0 == 0xA0:
            return 1 + (head & 0x1F)
        if head in _LENGTHS:
            size, extra_bytes = _LENGTHS[head]
            return 1 + size + extra_bytes + int.from_bytes(self._span(self.at + 1, size), "big")
        return _SIZES.get(head, 1)

    def _span(self, start: int, size: int) -> memoryview:
        if start + size > len(self.data):
            raise msgspec.DecodeError("it ends in the middle of a value")
        return self.data[start : start + size]


def as_key(value: object) -> object:
    """Return a hashable key: a record becomes a tuple of its pairs, a list a tuple."""
    if isinstance(value, dict):
        return tuple([(name, as_key(item)) for name, item in value.items()])
    return tuple([as_key(item) for item in value]) if isinstance(value, list) else value
