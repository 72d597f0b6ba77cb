"""Saved states as trees of plain values, which can be read without the classes of the saved objects. A value is read only when it is used.

Dicts, lists and scalars are decoded directly. Values that MessagePack does not support are represented by objects of this module's classes.
Each of these objects knows its size and its chunks, and reads its bytes on request. So two states with gigabytes of arrays can be compared
by the digests of their chunks. This module needs neither NumPy nor torch, loads no pickles, and creates no random generators.

`saved_value_formats.py` converts such a tree to readable text, to JSON, or to the values themselves.

**Records as keys.** The keys of a map may be records, for example if a state contains a `dict[Point, int]`. msgspec decodes such a record
as a dict, but a dict cannot be a key. So this module converts such a key to a tuple of (name, value) pairs. The decoder splits only maps
and arrays itself, and passes all other values to msgspec. The decoder is slow, so it is used only if msgspec has failed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.capture.history_operations import Replay
from snapline.storage.capture.image import PART_ARRAY, PART_BLOB, PART_HISTORY, PART_TENSOR
from snapline.storage.capture.values import (
    ARRAY_EXTENSION,
    BLOB_EXTENSION,
    GENERATOR_EXTENSION,
    HISTORY_EXTENSION,
    PART_EXTENSION,
    PICKLE_EXTENSION,
    PICKLE_PART,
    RANDOM_EXTENSION,
    TENSOR_EXTENSION,
    ArrayHead,
    split_head,
)
from snapline.storage.disk.record import Buffer, digest_of
from snapline.storage.packs.checkpoint import AgentCheckpoint, ChunkReference, StatePart

Hook = Callable[[int, memoryview], object]

_SIZES = {0xCA: 5, 0xCB: 9, **{first + i: size for first in (0xCC, 0xD0) for i, size in enumerate((2, 3, 5, 9))}}
"""Map from the head byte of a number to the size in bytes of the number including its head."""

_SIZES |= {head: 1 for head in (0xC0, 0xC2, 0xC3)} | {0xD4 + i: 2 + 2**i for i in range(5)}
"""Further sizes, for nil, false and true, and for extensions of 1 to 16 bytes."""

_LENGTHS = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
"""Map from the head byte of bytes or an extension to the sizes of the length field and of other fields before the contents."""

_LENGTHS |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
"""Further lengths, for text."""


def decode_any_keys(data: Buffer, hook: Hook) -> object:
    """Decode a MessagePack value that contains maps with any type of keys. Errors raised by `hook` propagate to the caller.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: If the data is invalid.
    """
    reader = _Reader(memoryview(data), hook)
    value = reader.value()
    if reader.at != len(reader.data):
        raise msgspec.DecodeError(f"{len(reader.data) - reader.at} bytes behind the value")
    return value


class _Reader:
    """Reader that passes through the bytes once. `at` is the current offset in the bytes."""

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
        """Return the number of entries in a map or array, and move past the head that contains this number."""
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
    """Convert `value` so that it can be used as a key. A record becomes a tuple of (name, value) pairs, and a list becomes a tuple."""
    if isinstance(value, dict):
        return tuple([(name, as_key(item)) for name, item in value.items()])
    return tuple([as_key(item) for item in value]) if isinstance(value, list) else value


ReadParts = Callable[[str, Sequence[StatePart]], Sequence[Buffer]]
"""Type of `PartReader.read`, which returns the checked bytes of each of an agent's parts (G11)."""

FAILURES = (msgspec.DecodeError, UnicodeDecodeError, ValueError, TypeError, IndexError, RecursionError)
"""Errors that decoding may raise if a record is invalid or needs its classes."""

_NAMES = {RANDOM_EXTENSION: "random generator", GENERATOR_EXTENSION: "random generator", PICKLE_EXTENSION: "pickle"}


class Content:
    """Bytes that are stored either in the state's record or in one of its parts.

    Attributes:
        part: the part that contains the bytes, or None if the bytes are in the record.
    """

    def __init__(self, data: Buffer | None, part: StatePart | None, read: Callable[[StatePart], Buffer]) -> None:
        self._data = data
        self._read = read
        self.part = part
        self.size_bytes = part.size_bytes if part is not None else len(data or b"")

    @property
    def identity(self) -> bytes:
        """Return a value that identifies the content: it is equal for two contents that consist of equal chunks. The bytes of parts are not
        read."""
        return self.part.digests if self.part is not None else digest_of(self._data or b"")

    def whole(self) -> memoryview:
        """Read all bytes of the content."""
        if self.part is None:
            return memoryview(self._data or b"")
        return memoryview(self._read(msgspec.structs.replace(self.part, kind=PART_BLOB, head=b"")))

    def span(self, start: int, size_bytes: int) -> memoryview:
        """Read a range of bytes. If the content is stored in a part, only the chunks that are needed are read."""
        end = start + size_bytes
        if self.part is None:
            return memoryview(self._data or b"")[start:end]
        wanted: list[ChunkReference] = []
        first = place = 0
        for chunk in self.part.chunks():
            if place < end and place + chunk.size_bytes > start:
                first = first if wanted else place
                wanted.append(chunk)
            place += chunk.size_bytes
        return self.chunks(wanted)[start - first : end - first] if wanted else memoryview(b"")

    def chunks(self, chunks: Sequence[ChunkReference]) -> memoryview:
        """Read some chunks of a part, and return their concatenated bytes."""
        assert self.part is not None
        sizes = [chunk.size_bytes for chunk in chunks]
        digests = b"".join([chunk.digest for chunk in chunks])
        return memoryview(
            self._read(StatePart(PART_BLOB, b"", sum(sizes), 0, sizes, digests))
        )  # The kind of the part does not matter, because only the bytes are needed.


class SavedArray:
    """A saved array or tensor. `dtype` is the name that NumPy or torch uses, and `order` is the memory order, "C" or "F" (Fortran)."""

    def __init__(self, head: ArrayHead, content: Content, *, is_tensor: bool) -> None:
        self.dtype = head.dtype
        self.shape = head.shape
        self.order = head.order
        self.content = content
        self.is_tensor = is_tensor

    @property
    def size(self) -> int:
        """Number of values in the array."""
        return math.prod(self.shape)

    def in_memory(self) -> "SavedArray":
        """Read the whole array into memory, for callers that read many single values."""
        content = Content(self.content.whole(), None, _refuse_to_read)
        return SavedArray(ArrayHead(self.dtype, self.shape, order=self.order), content, is_tensor=self.is_tensor)

    def __str__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "scalar"
        return f"<{'tensor' if self.is_tensor else 'array'} {self.dtype} {shape}>"


class SavedHistory:
    """A saved history. `length` is the number of records, or None if the history must be read to determine it."""

    def __init__(self, content: Content) -> None:
        self.content = content
        part = content.part
        self.length = None if part is None else msgspec.msgpack.decode(part.head, type=tuple[int])[0]
        self._records: list[object] | None = None

    def records(self) -> list[object]:
        """Read the records, and return them as plain values.

        Raises:
            DamagedDataError: If the history cannot be replayed.
        """
        if self._records is None:
            part, data = self.content.part, self.content.whole()
            self._records = _decoded_list(data) if part is None else _replayed(part, data)
        return self._records

    def __str__(self) -> str:
        return f"<history of {self.content.size_bytes:,} bytes>"


class SavedBytes:
    """A saved blob, or other opaque bytes: a pickle, the state of a random generator, or a value that was written by a later release.

    `code` is the extension code of the value, or 0 if the value is stored as a whole part.
    """

    def __init__(self, name: str, content: Content, code: int = 0) -> None:
        self.name = name
        self.content = content
        self.code = code

    def __str__(self) -> str:
        return f"<{self.name} of {self.content.size_bytes:,} bytes>"


SavedValue = SavedArray | SavedHistory | SavedBytes


def read_state(checkpoint: AgentCheckpoint, read_parts: ReadParts) -> object:
    """Return the state in a checkpoint as a tree, or None if the agent did not exist yet at the checkpoint.

    Raises:
        DamagedDataError: If the record cannot be decoded.
    """

    def read(part: StatePart) -> Buffer:
        return read_parts(checkpoint.agent, [part])[0]

    if not checkpoint.state:
        return None
    try:
        return read_record(checkpoint.state, checkpoint.parts, read)
    except FAILURES as error:
        raise DamagedDataError(
            f"the state of agent {checkpoint.agent!r} in epoch {checkpoint.epoch} cannot be read: {error}"
        ) from error


def read_record(
    record: Buffer, parts: Sequence[StatePart] = (), read: Callable[[StatePart], Buffer] | None = None
) -> object:
    """Return a MessagePack record as a tree. The record is either a state or the body of a message. Messages have no parts.

    `read` is a function that reads and verifies a part. If `read` is None, parts can be described but not read.

    Raises:
        One of `FAILURES`: If the record cannot be decoded.
    """
    reading = read or _refuse_to_read

    def part_of(data: memoryview) -> StatePart:
        number = msgspec.msgpack.decode(data, type=int)
        if not 0 <= number < len(parts):
            raise IndexError(f"it names its part {number}, and has {len(parts)}")
        return parts[number]

    def extension(code: int, data: memoryview) -> object:
        if code == PART_EXTENSION:
            return _of_part(part_of(data), reading)
        if code == PICKLE_EXTENSION and data[:1] == PICKLE_PART:
            return SavedBytes("pickle", Content(None, part_of(data[1:]), reading), code)
        return _inline(code, data, reading)

    try:
        return msgspec.msgpack.decode(record, ext_hook=extension)
    except msgspec.DecodeError:
        return decode_any_keys(record, extension)


def _refuse_to_read(part: StatePart) -> Buffer:
    raise StoreError(f"a part of {part.size_bytes:,} bytes, and no store to read it from")


def _of_part(part: StatePart, read: Callable[[StatePart], Buffer]) -> SavedValue:
    content = Content(None, part, read)
    if part.kind in (PART_ARRAY, PART_TENSOR):
        head = msgspec.msgpack.decode(part.head, type=ArrayHead)
        return SavedArray(head, content, is_tensor=part.kind == PART_TENSOR)
    if part.kind == PART_HISTORY:
        return SavedHistory(content)
    return SavedBytes("blob" if part.kind == PART_BLOB else f"part of kind {part.kind}", content)


def _inline(code: int, data: memoryview, read: Callable[[StatePart], Buffer]) -> SavedValue:
    if code in (ARRAY_EXTENSION, TENSOR_EXTENSION):
        head, body = split_head(data)
        return SavedArray(head, Content(bytes(body), None, read), is_tensor=code == TENSOR_EXTENSION)
    content = Content(bytes(data[1:] if code == PICKLE_EXTENSION else data), None, read)
    if code == HISTORY_EXTENSION:
        return SavedHistory(content)
    return SavedBytes("blob" if code == BLOB_EXTENSION else _NAMES.get(code, f"extension {code}"), content, code)


def _decoded_list(data: memoryview) -> list[object]:
    try:
        return msgspec.msgpack.decode(data, type=list[object])
    except msgspec.DecodeError as error:
        raise DamagedDataError(f"the records of a history cannot be read: {error}") from error


def _replayed(part: StatePart, data: memoryview) -> list[object]:
    replay = Replay(Any)  # The result is plain values, because the type of the records is unknown here.
    start = 0
    for chunk in part.chunks():
        replay.do(data[start : start + chunk.size_bytes])
        start += chunk.size_bytes
    return replay.records
