"""Converts saved values to readable text, JSON, NumPy files and plain Python values. The classes of the saved values are not needed.

`first_values` reads only the first values of an array or tensor, and needs neither NumPy nor torch.

**Text.** Describing encoded states and messages does not require NumPy. A description consists of dicts, lists and scalars:

    array, tensor   {"dtype", "shape", "values"}, with the first values in C order
    history         {"records", "bytes", "first", "last"}, or a list for an inline history
    blob            the blob's bytes, or {"bytes"} for a large blob

The bytes of parts are read only on request. Unless the bytes of a part are requested, only the part's size is shown, as `bytes`.

**JSON** is also created without NumPy. Records become objects, histories and arrays become lists (nested by dimension), bytes become base64
text, and keys that are not text are converted to text. NaN and infinities become null, because JSON does not have them. For pickles, random
generators, and arrays of types that only NumPy can decode, only the kind and the size are shown.

**NumPy files.** `write_npy` writes an array of a snapshot to a file in NumPy's format, version 1.0, without using NumPy.

**Plain values** are dicts, lists, scalars, NumPy arrays, torch tensors and bytes. A record (a struct or dataclass instance) becomes a dict.
As in MessagePack, tuples and sets become lists, enum members become their values, and dates and UUIDs become text. A history becomes the
list of its records, and a blob becomes its bytes. A pickle is returned as bytes, because loading it would run code.
"""

import ast
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from snapline.errors import EncodingError, NotFoundError, StoreError, UsageError
from snapline.folders import open_private
from snapline.storage.capture import numpy_and_torch
from snapline.storage.capture.saved_values import SavedArray, SavedBytes, SavedHistory, read_record
from snapline.storage.capture.values import GENERATOR_EXTENSION, RANDOM_EXTENSION, ArrayHead, decode_value, make_array
from snapline.storage.disk.record import Buffer
from snapline.storage.packs.checkpoint import StatePart

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
"""Map from NumPy's kind and size of a type to the format characters of `struct`."""

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
"""Map from torch's name of a type to NumPy's name. The missing types (bfloat16, 8-bit floats) have no counterpart in NumPy."""

CHARACTER_BYTES = 4
"""Size in bytes of one character in NumPy's text type (UTF-32)."""


class _Reading(msgspec.Struct, frozen=True):
    """Decoder for single values of one type, and the size of an encoded value."""

    size_bytes: int
    decode: Callable[[bytes], object]


def first_values(array: SavedArray, count: int) -> list[object] | None:
    """Return the first `count` values in C order, or None if values of this type cannot be decoded.

    Raises:
        DamagedDataError: If the bytes of the chunks differ from the bytes that were written.
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
    """Convert the index of a value in C order to its index in Fortran order."""
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
    if dtype == "bfloat16":  # A bfloat16 is the upper half of a float32.
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
    code = _LETTERS.get(f"{kind}{size}")
    return None if code is None else _numbers((">" if order == ">" else "<") + code)


def _numbers(layout: str) -> _Reading:
    if len(layout) == 3:
        return _Reading(struct.calcsize(layout), lambda data: str(complex(*struct.unpack(layout, data))))
    return _Reading(struct.calcsize(layout), lambda data: struct.unpack(layout, data)[0])


VALUES_SHOWN = 8
"""Number of values shown for an array, and number of records shown at each end of a history."""

HISTORY_BYTES_MAX = 4 * 2**20
"""Largest history whose records are shown, in bytes. A history must be read as a whole, and its description must fit into a response of the
coordinator. For a larger history, only the number of records and the size are shown, unless the history is requested by its path."""

ELLIPSIS = "…"
"""Text shown after the values if there are more values."""


def plain(value: object, parts: Sequence[StatePart] = (), read: Callable[[StatePart], Buffer] | None = None) -> object:
    """Decode bytes of an unknown type. Structs are returned as dicts, and arrays as short descriptions. If `read` is None, the contents of
    parts are not read.

    Raises:
        One of `saved_values.FAILURES`: If the bytes cannot be decoded.
        DamagedDataError: If the bytes of a part are not the bytes that were written.
    """
    if not isinstance(value, bytes):
        return value
    return describe(read_record(value, parts, read), reads_parts=read is not None)


def describe(value: object, *, reads_parts: bool) -> object:
    """Describe a tree from `saved_values` by dicts, lists and scalars.

    Raises:
        DamagedDataError: If any bytes are not the bytes that were written.
    """
    match value:
        case dict():
            return {key: describe(item, reads_parts=reads_parts) for key, item in value.items()}
        case list() | tuple():
            return [describe(item, reads_parts=reads_parts) for item in value]
        case SavedArray():
            return describe_array(value, VALUES_SHOWN, reads_parts=reads_parts)
        case SavedHistory():
            return _describe_history(value, reads_parts=reads_parts)
        case SavedBytes():
            return _describe_bytes(value)
        case msgspec.msgpack.Ext():
            return f"<extension {value.code}, {memoryview(value.data).nbytes} bytes>"
    return value


def describe_array(array: SavedArray, count: int, *, reads_parts: bool = True) -> dict[str, object]:
    """Describe an array, including its first `count` values."""
    head: dict[str, object] = {"dtype": array.dtype, "shape": list(array.shape)}
    if array.content.part is not None and not reads_parts:
        return {**head, "bytes": array.content.size_bytes}
    values = first_values(array, count)
    if values is None:
        return {**head, "values": f"<{array.content.size_bytes} bytes>"}
    return {**head, "values": [*values, ELLIPSIS] if len(values) < array.size else values}


def _describe_history(history: SavedHistory, *, reads_parts: bool) -> object:
    if history.content.part is None:
        return describe(history.records(), reads_parts=reads_parts)
    size_bytes = history.content.size_bytes
    head = {"records": history.length, "bytes": size_bytes}
    if not reads_parts or size_bytes > HISTORY_BYTES_MAX:
        return head
    records = [describe(record, reads_parts=True) for record in _ends(history.records())]
    last = records[VALUES_SHOWN:]
    return {**head, "first": records[:VALUES_SHOWN], **({"last": last} if last else {})}


def _ends(records: list[object]) -> list[object]:
    """Return the first and last records, or all records if there are few."""
    return records if len(records) <= 2 * VALUES_SHOWN else records[:VALUES_SHOWN] + records[-VALUES_SHOWN:]


def _describe_bytes(value: SavedBytes) -> object:
    if value.name == "blob":
        return bytes(value.content.whole()) if value.content.part is None else {"bytes": value.content.size_bytes}
    return f"<{value.name}, {value.content.size_bytes} bytes>"


CONTENT_FACTOR = 4
"""Largest ratio of a state's size to the size of its JSON. A number of eight bytes takes at least two characters in JSON."""


def json_of(tree: object, bytes_max: int) -> bytes:
    """Convert a tree from `saved_values` to JSON.

    Raises:
        UsageError: If the JSON would exceed `bytes_max`.
        DamagedDataError: If any bytes are not the bytes that were written.
    """
    text = msgspec.json.encode(_Values(bytes_max).of(tree))
    if len(text) > bytes_max:
        raise too_large(len(text), bytes_max)
    return text


def too_large(size_bytes: int, bytes_max: int) -> UsageError:
    """Return an error which says that a state's JSON would be too large."""
    return UsageError(
        f"this takes {size_bytes:,} bytes and more, {bytes_max:,} of JSON are told: ask for a field of it, "
        "or read the store with snapline.open_store"
    )


class _Values:
    """Converts values to JSON. To enforce the size limit, the bytes of each value are counted before the value is read."""

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


SUFFIX = ".npy"

_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64
"""Alignment of the values in the file, in bytes, which allows memory mapping."""


def write_npy(array: SavedArray, path: Path) -> int:
    """Read an array, verify its bytes, and write it to a new file. Return the file's size.

    Raises:
        UsageError: If the file exists, if its name does not end in .npy, or if NumPy does not have the array's type.
        DamagedDataError: If the bytes of the array are not the bytes that were written.
        StoreError: If the file cannot be written.
    """
    if path.suffix != SUFFIX:
        raise UsageError(f"{path} would hold NumPy's format: choose a name that ends in {SUFFIX}")
    head = _head(array)
    content = array.content.whole()
    try:
        with open(path, "xb", opener=open_private) as file:
            try:
                file.write(head)
                file.write(content)
            except BaseException:
                os.unlink(path)
                raise
    except FileExistsError as error:
        raise UsageError(f"{path} exists: choose another name, or remove it first") from error
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    return len(head) + content.nbytes


def _head(array: SavedArray) -> bytes:
    dtype = TORCH_TYPES.get(array.dtype) if array.is_tensor else array.dtype
    if dtype is None:
        raise UsageError(f"NumPy has no type for torch's {array.dtype}: read the field with snapline.open_store")
    fields = {"descr": dtype, "fortran_order": array.order == "F", "shape": tuple(array.shape)}
    text = repr(fields).encode("ascii")
    length = len(_MAGIC) + 2 + len(text) + 1
    text += b" " * (-length % _ALIGNMENT) + b"\n"
    return _MAGIC + len(text).to_bytes(2, "little") + text


NAMES_SHOWN = 20
"""Largest number of fields that an error names."""

_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[([^\]]+)\]")


def plain_value(value: object) -> object:
    """Convert a tree from `saved_values` to plain values. Arrays own their memory.

    Raises:
        DamagedDataError: If any bytes are not the bytes that were written.
        UsageError: If the tree contains an array or a tensor, but NumPy or torch is not installed.
    """
    match value:
        case dict():
            return {key: plain_value(item) for key, item in value.items()}
        case list() | tuple():
            return [plain_value(item) for item in value]
        case SavedArray():
            return _plain_array(value)
        case SavedHistory():
            return [plain_value(record) for record in value.records()]
        case SavedBytes():
            return _plain_bytes(value)
    return value


def _plain_array(array: SavedArray) -> object:
    content = array.content.whole()
    writable = bytearray(content) if content.readonly else content
    if array.is_tensor:
        try:
            return numpy_and_torch.make_tensor(array.dtype, array.shape, writable)
        except EncodingError as error:
            raise UsageError(str(error)) from error
    try:
        return make_array(ArrayHead(array.dtype, array.shape, order=array.order), writable)
    except ImportError as error:
        raise UsageError(f"this state holds arrays, which take NumPy: install snapline[numpy] ({error})") from error


def _plain_bytes(value: SavedBytes) -> object:
    content = value.content.whole()
    if value.code not in (RANDOM_EXTENSION, GENERATOR_EXTENSION):
        return bytes(content)
    try:
        return decode_value(value.code, content)
    except ImportError as error:
        raise UsageError(
            f"this state holds a NumPy generator, which takes NumPy: install snapline[numpy] ({error})"
        ) from error


def find_field(tree: object, path: str) -> object:
    """Return the value at a path such as `mind.notes[3].text` or `table["a b"]`. Only the values along the path are read.

    Raises:
        NotFoundError: If there is no value at this path. The message lists values that exist.
        UsageError: If `path` is invalid.
    """
    value, done = tree, ""
    for key, text in steps_of(path):
        value = _step(value, key, done)
        done += text
    return value


def steps_of(path: str) -> Iterable[tuple[object, str]]:
    """Yield each step of a path (a name, key or index) and the step's text. Raise UsageError if the path is invalid."""
    end = 0
    while end < len(path):
        match = _STEP.match(path, end)
        if match is None:
            raise UsageError(f"{path!r} is no path of a field: write it like mind.notes[3].text")
        yield (match[1] if match[1] is not None else _literal(match[2])), match[0]
        end = match.end()


def _literal(text: str) -> object:
    try:
        value = ast.literal_eval(text)
        hash(value)
    except (ValueError, SyntaxError, TypeError):
        return text
    return value


def _step(value: object, key: object, done: str) -> object:
    owner = f"the field {done.lstrip('.')!r}" if done else "the state"
    if isinstance(value, SavedHistory):
        value = value.records()
    if isinstance(value, dict):
        if key in value:
            return value[key]
        names = [str(name) for name in value]
        more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
        raise NotFoundError(f"{owner} has no {key!r}: it has {', '.join(names[:NAMES_SHOWN]) or 'nothing'}{more}")
    if isinstance(value, list | tuple):
        if isinstance(key, int) and -len(value) <= key < len(value):
            return value[key]
        raise NotFoundError(f"{owner} is a list of {len(value):,}: it has no {key!r}")
    kind = str(value) if isinstance(value, SavedArray | SavedBytes | msgspec.msgpack.Ext) else type(value).__name__
    raise NotFoundError(f"{owner} has no fields: it is {kind}")
