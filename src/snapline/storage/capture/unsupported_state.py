"""Walks a state to find unsupported values, with the reason and the path of each.

Two functions walk over the objects of a state, neither in a regular pause:

- `check`, once for each agent at its first capture, finds values that would be saved without an error and restored as something
  else (G3). Such values are a mutable object reached by two paths (it would become two), and arrays that share memory.
- `explain`, after a failed capture, finds the refused value and recommends a change.

`check` goes depth first, in the order of the fields, without recursion: a state may be nested deeper than the interpreter's
stack. Immutable objects may be shared, since copies are indistinguishable; their contents are checked on each path to them.

`explain` only descends: from an object that cannot be encoded to the first of its members that cannot. So `explain` costs a few encodings
of the state, whatever its size.
"""

import datetime
import decimal
import enum
import inspect
import io
import itertools
import random
import sys
import types
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from snapline.errors import EncodingError
from snapline.storage.capture import numpy_and_torch, values
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded
from snapline.storage.capture.values import (
    FAILURES,
    HISTORY_MODULE,
    TORCH_STATE_MODULE,
    Pickled,
    check_array,
    encode_value,
    is_a,
    pickled_bytes,
)

WALK_OBJECTS_MAX = 500_000
"""Number of containers and mutable objects that `check` visits: about half a second, once in an agent's life. Further objects are not
checked."""

OVERLAP_CHECKS_MAX = 10_000
"""Number of pairs of arrays with interleaved memory that are compared exactly: 10 ms. Only views of one array are such pairs."""

OVERLAP_WORK_MAX = 100_000
"""Limit on the work of one exact comparison, since the problem is NP-hard in the number of dimensions. Beyond it the pair counts as
overlapping."""

DEPTH_MAX = 1_000
"""Longest path that `explain` follows, and depth to which it searches for an object that contains itself. msgspec fails at this depth."""

_SHOWN_CHARACTERS_MAX = 40
"""Longest text of a dict key in a path, in characters."""

_IMMUTABLE: frozenset[type] = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), decimal.Decimal, uuid.UUID),
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    }
)
"""Leaf types whose objects may be shared. Objects of other types, and enums, are examined individually."""

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
"""Top module of a class → the user's term for the objects of the class."""

_OUTSIDE = "keep it outside the state, and make it anew where it is needed"

_Step = tuple[str, object]  # "." a field | "[" an item | "{" an element of a set | _KEY a dict's key
_KEY = "key"


class _Node(msgspec.Struct, gc=False):
    """One path to one object: the steps lead back to the state. Nodes are freed together, so they need no garbage collection."""

    value: Any
    parent: "_Node | None"
    step: _Step

    def path(self) -> str:
        """Return the path, such as `state.workers['a'].lock`."""
        steps: list[str] = []
        node = self
        while node.parent is not None:
            steps.append(_step_text(node.step))
            node = node.parent
        return "state" + "".join(reversed(steps))

    def subject(self) -> object:
        """Return the object to encode as a test. A dict key is tested as a key."""
        return {self.value: None} if self.step[0] == _KEY else self.value

    def is_inside(self, value: object) -> bool:
        """Return whether `value` is one of the objects on the path."""
        node = self.parent
        for _ in range(DEPTH_MAX):
            if node is None:
                return False
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


# ---- values that would be restored as something else -------------------------------------------------------------------


def check(state: object) -> None:
    """Find mutable objects with two paths, and arrays that share memory.

    Raises:
        EncodingError: such a value was found; the message names both paths.
    """
    walk = _Walk(state)
    while walk.waiting and walk.seen < WALK_OBJECTS_MAX:
        walk.enter(walk.waiting.pop())
    _check_memory(walk.arrays)


class _Walk:
    """The walk that `check` does.

    Attributes:
        first: id → first path to each mutable object. The map keeps the object alive, so its id is not reused.
        arrays: paths to arrays and tensors.
        waiting: nodes to visit, the next one last.
        seen: number of containers and mutable objects visited.
    """

    def __init__(self, state: object) -> None:
        root = _Node(state, None, (".", ""))
        self.first: dict[int, _Node] = {}
        self.arrays: list[_Node] = []
        self.waiting = [root]
        self.seen = 0
        self._traits: dict[type, int] = {kind: 0 for kind in _IMMUTABLE}
        self._check_shared(root, _traits_of(state))

    def enter(self, node: _Node) -> None:
        """Visit the members of one object."""
        opened = _open(node.value)
        if opened is None:
            return
        entered, traits_of = [], self._traits
        kind, keys, members = opened
        for key, member in zip(keys, members, strict=False):
            traits = traits_of.get(type(member))
            if traits is None:
                traits = traits_of[type(member)] = _traits_of(member)
            if not traits:
                continue
            self.seen += 1
            if self.seen > WALK_OBJECTS_MAX:
                break
            has_more = traits & _CONTAINER and not _holds_only_leaves(member)
            if has_more or traits != _CONTAINER:
                child = _Node(member, node, (kind, key))
                self._check_shared(child, traits)
                if has_more:
                    entered.append(child)
        entered.reverse()
        self.waiting += entered

    def _check_shared(self, node: _Node, traits: int) -> None:
        if traits & _MUTABLE:
            known = self.first.setdefault(id(node.value), node)
            if known is not node:
                raise EncodingError(_describe_shared_object(node, known))
        if traits & _ARRAY:
            self.arrays.append(node)


_CONTAINER, _MUTABLE, _ARRAY = 1, 2, 4


def _traits_of(value: Any) -> int:
    """Return the traits of objects of the value's type; 0 for leaves that may be shared, and for values that encoding refuses."""
    traits = _CONTAINER if _open(value) is not None else 0
    if _extent(value) is not None:
        traits |= _ARRAY
    return traits if _may_be_shared(value) else traits | _MUTABLE


def _open(value: Any) -> tuple[str, Iterable[object], Iterable[Any]] | None:
    """Return a container's contents: kind of the steps, their keys, and the members. None if `value` is not a container.

    The keys of a dict are not visited: they are hashable, so immutable.
    """
    if isinstance(value, dict):
        return "[", value.keys(), value.values()
    if isinstance(value, list | tuple):
        return "[", itertools.count(), value
    if isinstance(value, set | frozenset):
        return "{", itertools.repeat(None), value
    if values.is_generator(value):
        return ".", ("bit_generator",), (value.bit_generator,)
    if is_a(value, TORCH_STATE_MODULE, "TorchState"):
        return ".", itertools.repeat("tensor"), value.distinct_tensors()
    fields = _fields_of(type(value))
    if fields is None or isinstance(value, type):
        return None
    return ".", fields, [getattr(value, field, None) for field in fields]


def _fields_of(kind: Any) -> Sequence[str] | None:
    fields: tuple[str, ...] | None = getattr(kind, "__struct_fields__", None)
    if fields is not None:
        return fields
    if hasattr(kind, "__attrs_attrs__"):
        return [attribute.name for attribute in kind.__attrs_attrs__]
    by_name: dict[str, object] | None = getattr(kind, "__dataclass_fields__", None)
    return None if by_name is None else [*by_name]


def _holds_only_leaves(container: Any) -> bool:
    """Return whether a container holds only leaves. This takes a few ms for a list of a million numbers; checking them one by one takes a
    second."""
    opened = _open(container)
    return opened is not None and _IMMUTABLE.issuperset(map(type, opened[2]))


def _describe_shared_object(node: _Node, known: _Node) -> str:
    kind = type(node.value).__qualname__
    if node.is_inside(node.value):
        return f"{node.path()} is {known.path()} itself: a state cannot contain itself, refer to things by a key"
    return (
        f"{known.path()} and {node.path()} are one and the same {kind}, and would come back as two: "
        "keep it in one place, and refer to it by a key"
    )


def _check_memory(nodes: list[_Node]) -> None:
    """Compare arrays in the order of their memory: an array can only overlap earlier arrays that end after its beginning."""
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
    """Return first and last address + 1 of an array or tensor; None for other values."""
    numpy = numpy_if_loaded()
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _bounds(value.__array_interface__["data"][0], value.shape, value.strides, value.itemsize)
    if numpy_and_torch.is_tensor(value) and value.device.type == "cpu" and value.layout is sys.modules["torch"].strided:
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
    """Return whether two arrays whose spans overlap share memory. For tensors only the spans are compared."""
    import numpy

    if not isinstance(one, numpy.ndarray) or not isinstance(other, numpy.ndarray):
        return True
    try:
        work: Any = OVERLAP_WORK_MAX  # any number is valid; NumPy's annotation allows only two
        return bool(numpy.shares_memory(one, other, max_work=work))
    except _too_hard_error(numpy):
        return True


def _too_hard_error(numpy: Any) -> type[Exception]:
    """Return NumPy's error class, which has moved in NumPy 2."""
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
    """Return whether `value` is of a mutable type that a state may hold. Encoding detects forbidden objects."""
    numpy = numpy_if_loaded()
    return (
        isinstance(value, list | dict | set | bytearray | random.Random | Pickled)
        or hasattr(type(value), "__attrs_attrs__")
        or (numpy is not None and isinstance(value, numpy.ndarray))
        or is_a(value, HISTORY_MODULE, "History")
        or is_a(value, TORCH_STATE_MODULE, "TorchState")
        or numpy_and_torch.is_tensor(value)
        or values.is_generator(value)
        or values.is_bit_generator(value)
    )


# ---- refused values --------------------------------------------------------------------------------------------------


def explain(state: object, error: BaseException, *, allow_pickle: bool = False) -> str:
    """Return a text that says which value of `state` cannot be saved, with advice. Call this after encoding raised `error`."""
    attempt = _Attempt(allow_pickle=allow_pickle)
    if attempt.failure_of(state):
        return _descend(_Node(state, None, (".", "")), attempt)
    try:
        check(state)
    except EncodingError as found:
        return str(found)
    return str(error) or type(error).__name__


def _descend(node: _Node, attempt: "_Attempt") -> str:
    """Follow an object that cannot be encoded to the innermost one, and explain why."""
    for _ in range(DEPTH_MAX):
        if node.is_inside(node.value):
            return f"{node.path()} contains itself: refer to things by a key"
        description = _unsavable_description(node.value)
        if description:
            return f"{node.path()} is {description}, which cannot be saved: {_OUTSIDE}"
        inner = next((member for member in _members(node) if attempt.failure_of(member.subject())), None)
        if inner is None:
            return f"{node.path()} cannot be saved: {attempt.failure_of(node.subject())}"
        node = inner
    return "it is nested too deeply: keep long chains in a list"


def _members(node: _Node) -> Iterator[_Node]:
    if node.step[0] == _KEY:
        return
    if isinstance(node.value, dict):
        yield from (_Node(key, node, (_KEY, key)) for key in node.value)
    kind, keys, members = _open(node.value) or ("", (), ())
    yield from (_Node(member, node, (kind, key)) for key, member in zip(keys, members, strict=False))


class _Attempt:
    """Test encoder, which encodes a value without copying arrays."""

    def __init__(self, *, allow_pickle: bool) -> None:
        self._allow_pickle = allow_pickle

    def failure_of(self, value: object) -> str:
        """Return the reason why `value` cannot be encoded; empty if it can."""
        try:
            msgspec.msgpack.encode(value, enc_hook=self._encode_value)
        except FAILURES as error:
            return str(error) or type(error).__name__
        return ""

    def _encode_value(self, value: Any) -> object:
        numpy = numpy_if_loaded()
        if numpy is not None and isinstance(value, numpy.ndarray):
            check_array(value)
        elif numpy_and_torch.is_tensor(value):
            numpy_and_torch.check_tensor(value)
        elif self._allow_pickle and type(value) is Pickled:
            pickled_bytes(value)
        else:
            return encode_value(value)
        return None


def _unsavable_description(value: object) -> str:
    """Return the user's term for an object that is only valid in its own process; otherwise an empty text."""
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
