"""A saved state as plain values: dicts, lists, scalars, NumPy arrays, torch tensors, bytes. None of the classes that wrote it is needed.

A record (a struct, a dataclass) is a dict; tuples and sets are lists, enums their values, dates and UUIDs text, as MessagePack
keeps them; a history is the list of its records, a blob its bytes. A pickle stays the bytes that it is: loading one runs code.
"""

import ast
import re
from collections.abc import Iterable

import msgspec

from snapline.errors import EncodingError, NotFoundError, UsageError
from snapline.storage.capture import tensors
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
    """Return what a tree of `saved_values` holds; arrays own their memory.

    Raises:
        DamagedDataError: something is not what was written.
        UsageError: it holds an array or tensor, and NumPy or torch is not installed.
    """
    match value:
        case dict():
            return {key: plain_value(item) for key, item in value.items()}
        case list() | tuple():
            return [plain_value(item) for item in value]
        case SavedArray():
            return _array(value)
        case SavedHistory():
            return [plain_value(record) for record in value.records()]
        case SavedBytes():
            return _bytes(value)
    return value


def _array(array: SavedArray) -> object:
    content = array.content.whole()
    writable = bytearray(content) if content.readonly else content
    if array.is_tensor:
        try:
            return tensors.make_tensor(array.dtype, array.shape, writable)
        except EncodingError as error:
            raise UsageError(str(error)) from error
    try:
        return make_array(ArrayHead(array.dtype, array.shape, order=array.order), writable)
    except ImportError as error:
        raise UsageError(f"this state holds arrays, which take NumPy: install snapline[numpy] ({error})") from error


def _bytes(value: SavedBytes) -> object:
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
    """Return the value at a path such as `mind.notes[3].text` or `table["a b"]`. Nothing but what lies on it is read.

    Raises:
        NotFoundError: there is nothing; names what is there instead.
        UsageError: it is no path.
    """
    found, done = tree, ""
    for key, text in steps_of(path):
        found = _step(found, key, done)
        done += text
    return found


def steps_of(path: str) -> Iterable[tuple[object, str]]:
    """Yield the steps of a path: a name, a key or an index, and how it is written there; UsageError: it is none."""
    end = 0
    while end < len(path):
        found = _STEP.match(path, end)
        if found is None:
            raise UsageError(f"{path!r} is no path of a field: write it like mind.notes[3].text")
        yield (found[1] if found[1] is not None else _literal(found[2])), found[0]
        end = found.end()


def _literal(text: str) -> object:
    try:
        value = ast.literal_eval(text)
        hash(value)
    except (ValueError, SyntaxError, TypeError):
        return text
    return value


def _step(value: object, key: object, done: str) -> object:
    where = f"the field {done.lstrip('.')!r}" if done else "the state"
    if isinstance(value, SavedHistory):
        value = value.records()
    if isinstance(value, dict):
        if key in value:
            return value[key]
        names = [str(name) for name in value]
        more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
        raise NotFoundError(f"{where} has no {key!r}: it has {', '.join(names[:NAMES_SHOWN]) or 'nothing'}{more}")
    if isinstance(value, list | tuple):
        if isinstance(key, int) and -len(value) <= key < len(value):
            return value[key]
        raise NotFoundError(f"{where} is a list of {len(value):,}: it has no {key!r}")
    kind = str(value) if isinstance(value, SavedArray | SavedBytes | msgspec.msgpack.Ext) else type(value).__name__
    raise NotFoundError(f"{where} has no fields: it is {kind}")
