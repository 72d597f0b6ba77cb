"""A saved state as plain values: dicts, lists, scalars, NumPy arrays, torch tensors, bytes. The classes that wrote it are not needed.

A record (a struct, a dataclass) becomes a dict. As in MessagePack, tuples and sets become lists, enums their values, and dates and UUIDs
text. A history becomes the list of its records, a blob its bytes. A pickle stays bytes, since loading it would run code.
"""

import ast
import re
from collections.abc import Iterable

import msgspec

from snapline.errors import EncodingError, NotFoundError, UsageError
from snapline.storage.capture import numpy_and_torch
from snapline.storage.capture.saved_values import SavedArray, SavedBytes, SavedHistory
from snapline.storage.capture.values import (
    GENERATOR_EXTENSION,
    RANDOM_EXTENSION,
    ArrayHead,
    decode_value,
    make_array,
)

NAMES_SHOWN = 20
"""Largest number of fields named in an error."""

_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[([^\]]+)\]")


def plain_value(value: object) -> object:
    """Return the values of a tree of `saved_values`; arrays own their memory.

    Raises:
        DamagedDataError: some bytes differ from those written.
        UsageError: the tree holds an array or tensor, and NumPy or torch is not installed.
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
    """Return the value at a path such as `mind.notes[3].text` or `table["a b"]`. Only values along the path are read.

    Raises:
        NotFoundError: there is no such value; names the existing ones.
        UsageError: `path` is invalid.
    """
    value, done = tree, ""
    for key, text in steps_of(path):
        value = _step(value, key, done)
        done += text
    return value


def steps_of(path: str) -> Iterable[tuple[object, str]]:
    """Yield the steps of a path: a name, a key or an index, and its text; UsageError if the path is invalid."""
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
