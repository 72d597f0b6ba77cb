"""What may not stand in a state, found by walking it: why, and under which path.

Two walks over the objects of a state, neither of them in the usual pause:

- `check`, once for each agent at its first capture, looks for what would be saved without an error and come back as something
  else (G3): a mutable object that two paths lead to (it would come back as two), and arrays that share memory.
- `explain`, after a capture has failed, looks for the value that was refused, and says what to do.

Both go depth first, in the order of the fields, without recursion: a state may be nested deeper than the interpreter's
stack. Immutable objects may be shared, since nobody can tell one from two; what they hold is looked at on each way to them.
The walk ends after `WALK_OBJECTS_MAX` objects.
"""

import datetime
import decimal
import enum
import inspect
import io
import random
import sys
import types
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from snapline.errors import EncodingError
from snapline.storage.capture import generators, tensors
from snapline.storage.capture.values import (
    HISTORY_MODULE,
    Pickled,
    check_array,
    encode_value,
    is_a,
    pickled_bytes,
)

WALK_OBJECTS_MAX = 1_000_000
"""About half a second, once in an agent's life. What lies beyond is not looked at: an encoder must not hang."""

OVERLAP_CHECKS_MAX = 10_000
"""Pairs of arrays with interleaved memory that are compared exactly: 10 ms. Only views of one array are such pairs."""

OVERLAP_WORK_MAX = 100_000
"""Of one exact comparison: the problem is NP-hard in the number of dimensions. Beyond, the pair counts as overlapping."""

_SHOWN_CHARACTERS_MAX = 40
"""Of a dict's key in a path."""

_IMMUTABLE = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), decimal.Decimal, uuid.UUID),
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    }
)
"""Leaves that may be shared. Others, and enums, are found out one by one."""

_MODULES: dict[str, str] = {
    "_thread": "a lock",
    "threading": "a thread or one of its locks",
    "asyncio": "a task, future or lock of asyncio",
    "_asyncio": "a task or future",
    "socket": "a socket",
    "_socket": "a socket",
    "ssl": "a socket",
    "multiprocessing": "something shared between processes",
    "sqlite3": "a database connection",
    "contextvars": "a context",
    "_contextvars": "a context",
    "_queue": "a queue",
    "queue": "a queue",
    "weakref": "a weak reference",
    "_weakref": "a weak reference",
}
"""Top module of a class -> what its objects are, as a user would say it."""

_OUTSIDE = "keep it outside the state, and make it anew where it is needed"

_Step = tuple[str, object]  # "." a field | "[" an item | "{" an element of a set | "key" a dict's key


class _Node:
    """One way to one object: the steps lead back to the state."""

    __slots__ = ("parent", "step", "value")

    def __init__(self, value: object, parent: "_Node | None", step: _Step) -> None:
        self.value = value
        self.parent = parent
        self.step = step

    def path(self) -> str:
        """Such as `state.workers['a'].lock`."""
        steps: list[str] = []
        node = self
        while node.parent is not None:
            steps.append(_step_text(node.step))
            node = node.parent
        return "state" + "".join(reversed(steps))

    def is_inside(self, value: object) -> bool:
        """Is `value` one of the objects on the way?"""
        node = self.parent
        while node is not None:
            if node.value is value:
                return True
            node = node.parent
        return False


def _step_text(step: _Step) -> str:
    kind, key = step
    if kind == ".":
        return f".{key}"
    if kind == "[":
        shown = repr(key)
        return f"[{shown if len(shown) <= _SHOWN_CHARACTERS_MAX else shown[:_SHOWN_CHARACTERS_MAX] + '…'}]"
    return "[an element]" if kind == "{" else "[a key]"


# ---- what would come back as something else -------------------------------------------------------------------------


def check(state: object) -> None:
    """Look for mutable objects with two paths, and for arrays that share memory.

    Raises:
        EncodingError: names both paths.
    """
    first: dict[int, _Node] = {}
    arrays: list[_Node] = []
    for node in _walk(state):
        value = node.value
        if _may_be_shared(value):
            continue
        known = first.setdefault(id(value), node)
        if known is not node:
            raise EncodingError(_twice(node, known))
        if _extent(value) is not None:
            arrays.append(node)
    _check_memory(arrays)


def _twice(node: _Node, known: _Node) -> str:
    kind = type(node.value).__qualname__
    if node.is_inside(node.value):
        return f"{node.path()} is {known.path()} itself: a state cannot contain itself, refer to things by a key"
    return (
        f"{known.path()} and {node.path()} are one and the same {kind}, and would come back as two: "
        "keep it in one place, and refer to it by a key"
    )


def _check_memory(nodes: list[_Node]) -> None:
    """Arrays in the order of their memory: only those that begin before an earlier one ends can overlap it."""
    spans = sorted(((*_span_of(node.value), index) for index, node in enumerate(nodes)), key=lambda span: span[:3])
    open_spans: list[tuple[int, int, int]] = []
    checks = 0
    for start, end, index in spans:
        open_spans = [known for known in open_spans if known[1] > start]
        for known in open_spans:
            checks += 1
            if checks > OVERLAP_CHECKS_MAX:
                return
            if _share_memory(nodes[known[2]].value, nodes[index].value):
                one, other = sorted((known[2], index))
                raise EncodingError(
                    f"{nodes[one].path()} and {nodes[other].path()} share memory, and would come back as separate arrays: "
                    "keep one of them, and make the view where it is needed"
                )
        if end > start:
            open_spans.append((start, end, index))


def _span_of(value: object) -> tuple[int, int]:
    return _extent(value) or (0, 0)


def _extent(value: Any) -> tuple[int, int] | None:
    """First and last byte + 1 of an array or tensor; None if it is none."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _bounds(value.__array_interface__["data"][0], value.shape, value.strides, value.itemsize)
    if tensors.is_tensor(value) and value.device.type == "cpu" and value.layout is sys.modules["torch"].strided:
        size = value.element_size()
        return _bounds(value.data_ptr(), tuple(value.shape), [size * stride for stride in value.stride()], size)
    return None


def _bounds(address: int, shape: Iterable[int], strides: Iterable[int], item_bytes: int) -> tuple[int, int]:
    start = end = address
    for length, stride in zip(shape, strides, strict=True):
        if length == 0:
            return address, address
        reach = (length - 1) * stride
        start, end = (start + reach, end) if reach < 0 else (start, end + reach)
    return start, end + item_bytes


def _share_memory(one: Any, other: Any) -> bool:
    """For two arrays whose spans overlap. Of tensors only the spans are compared."""
    import numpy

    if not isinstance(one, numpy.ndarray) or not isinstance(other, numpy.ndarray):
        return True
    try:
        work: Any = OVERLAP_WORK_MAX  # any number will do; NumPy's own annotation knows two of them
        return bool(numpy.shares_memory(one, other, max_work=work))
    except _too_hard_error(numpy):
        return True


def _too_hard_error(numpy: Any) -> type[Exception]:
    """NumPy 2 has moved it."""
    return getattr(numpy, "exceptions", numpy).TooHardError  # type: ignore[no-any-return]  # an exception class


def _may_be_shared(value: object) -> bool:
    kind = type(value)
    if kind in _IMMUTABLE or kind in (tuple, frozenset) or isinstance(value, enum.Enum):
        return True
    if isinstance(value, msgspec.Struct):
        return bool(kind.__struct_config__.frozen)  # type: ignore[attr-defined]  # every struct class has it
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is not None:
        return bool(parameters.frozen)
    return not _is_mutable(value)


def _is_mutable(value: object) -> bool:
    """One of the mutable kinds that a state may hold. Objects that it may not are found when it is encoded."""
    numpy = sys.modules.get("numpy")
    return (
        isinstance(value, list | dict | set | bytearray | random.Random | Pickled)
        or hasattr(type(value), "__attrs_attrs__")
        or (numpy is not None and isinstance(value, numpy.ndarray))
        or is_a(value, HISTORY_MODULE, "History")
        or tensors.is_tensor(value)
        or generators.is_generator(value)
        or generators.is_bit_generator(value)
    )


# ---- what was refused -----------------------------------------------------------------------------------------------


def explain(state: object, error: BaseException, *, allow_pickle: bool = False) -> str:
    """Say which value of `state` cannot be saved, and what to do about it; called after encoding raised `error`."""
    for node in _walk(state, leaves=True):
        if node.is_inside(node.value) and not _may_be_shared(node.value):
            return f"{node.path()} contains itself: refer to things by a key"
        why = _refusal_of(node, allow_pickle=allow_pickle)
        if why:
            return f"{node.path()} {why}"
    try:
        check(state)
    except EncodingError as found:
        return str(found)
    if isinstance(error, RecursionError):
        return "it is nested too deeply: keep long chains in a list"
    return str(error) or type(error).__name__


def _refusal_of(node: _Node, *, allow_pickle: bool) -> str:
    """Why this one object cannot be saved; empty if it can, or if only something inside it cannot."""
    value = node.value
    if type(value) is Pickled and allow_pickle:
        return _trial(pickled_bytes, value)
    words = _unsavable_words(value)
    if words:
        return f"is {words}, which cannot be saved: {_OUTSIDE}"
    if _members(value) is not None:
        return ""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _trial(check_array, value)
    if tensors.is_tensor(value):
        return _trial(tensors.check_tensor, value)
    if node.step[0] == "key":
        return _trial(_encode, {value: None})
    return _trial(_encode, value)


def _trial(attempt: Any, value: object) -> str:
    try:
        attempt(value)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        return f"cannot be saved: {error}"
    return ""


def _encode(value: object) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=encode_value)


def _unsavable_words(value: object) -> str:
    """What a user would call it, if it is something of which only the process that made it can have one."""
    if inspect.iscoroutine(value) or inspect.isawaitable(value):
        return "a coroutine, task or future"
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return "a generator, half run through"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__qualname__', value)!s}"
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, io.IOBase):
        return "an open file"
    return _MODULES.get(type(value).__module__.partition(".")[0], "")


# ---- the walk -------------------------------------------------------------------------------------------------------


def _walk(state: object, *, leaves: bool = False) -> Iterator[_Node]:
    """The objects of a state, parents first. Mutable ones are entered once; immutable leaves are shown on request."""
    root = _Node(state, None, (".", ""))
    waiting = [root]
    entered: dict[int, object] = {}  # keeps them alive: an id may not come twice
    seen = 0
    while waiting and seen < WALK_OBJECTS_MAX:
        node = waiting.pop()
        seen += 1
        yield node
        value = node.value
        if not _may_be_shared(value):
            if id(value) in entered:
                continue
            entered[id(value)] = value
        members = _members(value)
        if members is None:
            continue
        if not leaves:
            seen += len(members)
            members = [member for member in members if type(member[1]) not in _IMMUTABLE]
        waiting.extend([_Node(member, node, step) for step, member in reversed(members)])


def _members(value: Any) -> list[tuple[_Step, object]] | None:
    """What `value` holds; None if it is no container."""
    if isinstance(value, dict):
        keys: list[tuple[_Step, object]] = [(("key", key), key) for key in value if type(key) is not str]
        return keys + [(("[", key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(("[", place), item) for place, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [(("{", None), item) for item in value]
    if generators.is_generator(value):
        return [((".", "bit_generator"), value.bit_generator)]
    fields = _fields_of(type(value))
    if fields is None or isinstance(value, type):
        return None
    return [((".", field), getattr(value, field, None)) for field in fields]


def _fields_of(kind: Any) -> list[str] | None:
    fields = getattr(kind, "__struct_fields__", None)
    if fields is not None:
        return list(fields)
    if hasattr(kind, "__attrs_attrs__"):
        return [attribute.name for attribute in kind.__attrs_attrs__]
    fields = getattr(kind, "__dataclass_fields__", None)
    return None if fields is None else list(fields)
