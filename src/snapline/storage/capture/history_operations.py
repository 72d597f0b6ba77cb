"""Binary encoding of list operations. The segments of a history contain such operations.

    operation   code (u8) | length of the body (u32) | body
    1 append    records
    2 replace   index of the first record (u64) | records, one for each replaced record
    3 delete    index of the first record (u64) | count (u64)
    4 insert    index before which to insert (u64) | records

Integers are little-endian, and *records* is one MessagePack array. If all operations are applied in order to an empty list, the result is
the history. So two segments can be merged by concatenating their contents.

Many records share one array, because this is faster than one operation per record: the time to encode 10 000 messages of 1.1 KB then
depends only on their bytes. The decoder trusts no input: it checks all lengths and indexes before it uses them.
"""

import functools
import struct
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from snapline.errors import DamagedDataError, EncodingError
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded
from snapline.storage.disk.record import Buffer

APPEND = 1
REPLACE = 2
DELETE = 3
INSERT = 4

_HEAD = struct.Struct("<BI")
_INDEX = struct.Struct("<Q")
_SPAN = struct.Struct("<QQ")

EDIT_BYTES = _HEAD.size + _SPAN.size
"""Size of an encoded deletion in bytes. No other operation takes more, not counting its records."""

BODY_BYTES_MAX = 2**32 - 1 - _INDEX.size
"""Largest length of a body that fits into the head. A record of 4 GiB does not belong in a history: use an array or a Blob."""

_BATCH_RECORDS = 64
"""Number of records in the first batch, which measures the size of records. Later batches are about as large as a segment should be."""

_DECODERS_MAX = 64
"""Number of record types whose decoders are cached. A program has few record types."""


class HistoryOperation(msgspec.Struct):
    """A list operation that has not been encoded yet.

    Attributes:
        code: `APPEND`, `REPLACE`, `DELETE` or `INSERT`.
        index: index of the first record that the operation affects.
        count: number of records to delete. The count is 0 for all other operations.
        records: the records to append, to insert, or to replace other records with.
    """

    code: int
    index: int
    count: int = 0
    records: list[Any] = []


def _encode_scalar(value: object) -> object:
    """Convert NumPy numbers to plain numbers, as in all other parts of a state."""
    numpy = numpy_if_loaded()
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
        item = value.item()
        if not isinstance(item, numpy.generic):  # a longdouble has no counterpart in Python
            return item
    raise NotImplementedError(f"objects of type {type(value).__module__}.{type(value).__qualname__}")


def _decode_scalar(declared: type, value: object) -> object:
    numpy = numpy_if_loaded()
    if numpy is not None and isinstance(declared, type) and issubclass(declared, numpy.generic):
        return declared(value)
    raise NotImplementedError(f"a {type(value).__qualname__} where {declared} is declared")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_scalar, order="deterministic")
"""Encoder of records. The encoder sorts the elements of frozensets, so equal records encode to equal bytes in every process."""

_FAILURES = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError)
"""Errors that msgspec raises for values that it cannot encode."""


def encode_records(records: list[Any]) -> bytes:
    """Encode the records as one MessagePack array.

    Raises:
        EncodingError: If a record cannot be encoded. The message names the type of the first record that cannot be encoded.
    """
    try:
        body = _encoder.encode(records)
    except _FAILURES as error:
        raise EncodingError(_describe_failure(records, error)) from error
    if len(body) > BODY_BYTES_MAX and len(records) == 1:
        raise EncodingError(
            f"a record of a History takes {len(body):,} bytes: keep it in a Blob or an array of the state"
        )
    return body


def _describe_failure(records: list[Any], error: Exception) -> str:
    for record in records:
        try:
            _encoder.encode(record)
        except _FAILURES as cause:
            return f"a {type(record).__qualname__} in a History cannot be encoded: {str(cause) or type(cause).__name__}"
    return f"records of a History cannot be encoded: {error}"


def encode_operations(operations: list[HistoryOperation], content_bytes: int) -> list[bytes]:
    """Encode operations as the contents of one or more segments, in order.

    Args:
        operations: the operations to encode, which are not modified.
        content_bytes: maximum length of each content in bytes. A content that consists of a single record may be longer.
    """
    contents: list[bytes] = []
    pieces: list[bytes] = []
    size = 0
    for operation in operations:
        for piece in _pieces(operation, content_bytes):
            if pieces and size + len(piece) > content_bytes:
                contents.append(b"".join(pieces))
                pieces, size = [], 0
            pieces.append(piece)
            size += len(piece)
    return [*contents, b"".join(pieces)] if pieces else contents


def _pieces(operation: HistoryOperation, content_bytes: int) -> Iterator[bytes]:
    """Split an operation with many records into several operations that together have the same effect."""
    if operation.code == DELETE:
        yield _HEAD.pack(DELETE, _SPAN.size) + _SPAN.pack(operation.index, operation.count)
        return
    body_bytes = min(content_bytes, BODY_BYTES_MAX) - EDIT_BYTES
    for start, body in _batches(operation.records, body_bytes):
        front = b"" if operation.code == APPEND else _INDEX.pack(operation.index + start)
        yield b"".join((_HEAD.pack(operation.code, len(front) + len(body)), front, body))


def _batches(records: list[Any], body_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Encode the records in batches. For each batch, yield the index of its first record and the encoded array. The size of each batch is
    predicted from the previous batch, so that few records are encoded twice."""
    start, count = 0, _BATCH_RECORDS
    while start < len(records):
        batch = records[start : start + count]
        body = encode_records(batch)
        fitting = max(1, len(batch) * body_bytes * 7 // (8 * len(body)))
        if len(body) > body_bytes and len(batch) > 1:
            count = min(len(batch) // 2, fitting)  # This at least halves the batch, so the loop ends.
            continue
        yield start, body
        start += len(batch)
        count = fitting


class Replay:
    """Replays operations on a list.

    Attributes:
        records: the list after the operations replayed so far.
        sizes_bytes: for each record, an equal share of the encoded size of its operation, rounded up.
    """

    def __init__(self, record_type: Any) -> None:
        self.records: list[Any] = []
        self.sizes_bytes: list[int] = []
        self._decode = record_decoder(record_type)

    def do(self, content: memoryview) -> None:
        """Apply all operations in a segment to the list.

        Raises:
            DamagedDataError: If the bytes do not encode operations on this list.
            EncodingError: If a record does not have the declared type.
        """
        place = 0
        while place < len(content):
            if len(content) - place < _HEAD.size:
                raise DamagedDataError("an operation on a history is cut off")
            code, length = _HEAD.unpack_from(content, place)
            place += _HEAD.size
            if length > len(content) - place:
                raise DamagedDataError("an operation on a history is longer than its segment")
            self._do(code, content[place : place + length])
            place += length

    def _do(self, code: int, body: memoryview) -> None:
        count = len(self.records)
        if code == APPEND:
            self._put(count, count, body)
        elif code == DELETE:
            start, stop = self._span(body)
            del self.records[start:stop]
            del self.sizes_bytes[start:stop]
        elif code in (REPLACE, INSERT):
            if len(body) < _INDEX.size:
                raise DamagedDataError("an operation on a history has no index")
            (index,) = _INDEX.unpack_from(body)
            if index > count:
                raise DamagedDataError(f"a history of {count} records is changed at index {index}")
            self._put(index, index if code == INSERT else None, body[_INDEX.size :])
        else:
            raise DamagedDataError(f"a history has an operation with the unknown code {code}")

    def _span(self, body: memoryview) -> tuple[int, int]:
        if len(body) != _SPAN.size:
            raise DamagedDataError("a deletion in a history has a wrong length")
        index, deleted = _SPAN.unpack(body)
        if index + deleted > len(self.records):
            raise DamagedDataError(f"a history of {len(self.records)} records loses those up to {index + deleted}")
        return index, index + deleted

    def _put(self, start: int, stop: int | None, body: memoryview) -> None:
        """Replace the records from `start` to `stop` with the records in `body`. If `stop` is None, replace as many records as `body`
        contains."""
        records = self._decode(body)
        end = start + len(records) if stop is None else stop
        if end > len(self.records):
            raise DamagedDataError(f"a history of {len(self.records)} records has those up to {end} replaced")
        self.records[start:end] = records
        share = (_HEAD.size + _INDEX.size + len(body)) // max(1, len(records)) + 1
        self.sizes_bytes[start:end] = [share] * len(records)


Decode = typing.Callable[[Buffer], list[Any]]


def record_decoder(record_type: Any) -> Decode:
    """Return a function that decodes a MessagePack array as a list of records of `record_type`. If `record_type` is Any, records become
    plain values, and arrays in them become tuples.

    Raises:
        EncodingError: If msgspec does not support this type.
    """
    try:
        return _record_decoder(record_type)
    except _FAILURES as error:
        raise EncodingError(f"History[{record_type}] cannot be decoded: {error}") from error


@functools.lru_cache(maxsize=_DECODERS_MAX)
def _record_decoder(record_type: Any) -> Decode:
    decoder = msgspec.msgpack.Decoder(list[record_type], dec_hook=_decode_scalar)

    def decode(body: Buffer) -> list[Any]:
        try:
            records = decoder.decode(body)
        except msgspec.ValidationError as error:
            raise EncodingError(f"a record of a history is no {record_type}: {error}") from error
        except (*_FAILURES, msgspec.DecodeError) as error:
            raise DamagedDataError(f"records of a history cannot be read: {error}") from error
        return [_frozen(record) for record in records] if record_type is Any else records

    return decode


def _frozen(value: Any) -> Any:
    """Convert lists to tuples. Without a declared type, msgspec decodes arrays as lists, which records must not contain."""
    if isinstance(value, list):
        return tuple([_frozen(item) for item in value])
    return {key: _frozen(item) for key, item in value.items()} if isinstance(value, dict) else value
