"""Captures the image of a state between two turns. The agent pauses only for this capture.

The problem: a state may be gigabytes in size, and the agent must not continue until its state has been read. So only values that may change
after the capture are copied, at memory speed, into warm memory (`image.ArenaPool`). A worker thread then does all slower work (hashing,
compressing, writing) on the copy.

Where a value is stored depends on its type and size:

- An array or tensor of at least `ARRAY_PART_BYTES_MIN` is stored as a part. An array is copied whole, or only its changes if writes are
  tracked.
- A `History` or `Blob` is stored as a part. The contents of a `History` or `Blob` never change, so they are not copied.
- A pickle of at least `PICKLE_PART_BYTES_MIN` is stored as a part.
- All other values are stored in the skeleton.

Copies of small arrays share slabs, so that a state of a thousand arrays needs only tens of buffers. Each larger array is copied into its
own buffer. A buffer has the same size at the next capture, so it can be used again.

Invariants:

1. No byte of an image changes after `encode` has returned, no matter what the agent does, so the image shows the state at one moment (G1).
2. If `encode` raises an error, it has returned all its buffers to the pool.
3. At most `ARENA_IMAGES_MAX` images of the same agent hold buffers at the same time.

The caller must call `encode` between two turns, on the event loop, and must call `image.release()` when the parts are no longer read.

**Unsupported values** are found by two functions that traverse the objects of a state. Neither of these functions runs in a regular pause:

- `check` runs once for each agent, at its first capture. `check` finds values that would be saved without an error but restored differently
  (G3). Such values are mutable objects that can be reached on two paths (each path would lead to its own object after a restore), and
  arrays that share memory.
- `explain` runs after a capture has failed. `explain` finds the refused value and recommends a change.

`check` traverses the state depth first, in the order of the fields. The traversal does not use recursion, because a state may be nested
more deeply than the interpreter's stack allows. Immutable objects may be shared, because a copy cannot be distinguished from the original.
The contents of an immutable object are checked again on every path to the object.

`explain` only descends: it goes from an object that cannot be encoded to the object's first member that cannot be encoded. So the cost of
`explain` is only a few encodings of the state, no matter how large the state is.
"""

import datetime
import decimal
import enum
import inspect
import io
import itertools
import random
import sys
import threading
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from snapline.errors import EncodingError
from snapline.storage.capture import numpy_and_torch, values
from snapline.storage.capture.declared_values import check_declared, survives_round_trip
from snapline.storage.capture.image import (
    ARENA_IMAGES_MAX,
    PART_ARRAY,
    PART_TENSOR,
    ArenaBuffer,
    ArenaBusyError,
    ArenaPool,
    CapturedPart,
    ChunkTable,
    SourceChunk,
    StateImage,
)
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded
from snapline.storage.capture.values import (
    FAILURES,
    HISTORY_MODULE,
    PART_EXTENSION,
    PICKLE_EXTENSION,
    PICKLE_INLINE,
    PICKLE_PART,
    TORCH_STATE_MODULE,
    Blob,
    Pickled,
    array_head,
    check_array,
    encode_pickling,
    encode_value,
    is_a,
    pickled_bytes,
)

WALK_OBJECTS_MAX = 500_000
"""Number of containers and mutable objects that `check` visits, which takes about half a second, once in an agent's life. Further objects
are not checked."""

OVERLAP_CHECKS_MAX = 10_000
"""Number of pairs of arrays with interleaved memory that are compared exactly, which takes 10 ms. Only views of one array are such
pairs."""

OVERLAP_WORK_MAX = 100_000
"""Limit on the work of one exact comparison, since the problem is NP-hard in the number of dimensions. If the limit is exceeded, the pair
counts as overlapping."""

DEPTH_MAX = 1_000
"""Longest path that `explain` follows, and depth to which it searches for an object that contains itself. msgspec fails at this depth."""

_SHOWN_CHARACTERS_MAX = 40
"""Largest number of characters of a dict key that are shown in a path."""

_IMMUTABLE: frozenset[type] = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), decimal.Decimal, uuid.UUID),
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    }
)
"""Leaf types whose objects may be shared. Objects of all other types, and enums, are examined individually."""

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
"""Map from the top-level module of a class to the user's term for objects of the class."""

_OUTSIDE = "keep it outside the state, and make it anew where it is needed"

_Step = tuple[str, object]  # "." a field | "[" an item | "{" an element of a set | _KEY a key of a dict
_KEY = "key"


class _Node(msgspec.Struct, gc=False):
    """An object, with one path on which it can be reached. Each node refers to the previous node on the path, so the path leads back to the
    state. All nodes are freed at the same time, so they need no garbage collection."""

    value: Any
    parent: "_Node | None"
    step: _Step

    def path(self) -> str:
        """Return the path as text, such as `state.workers['a'].lock`."""
        steps: list[str] = []
        node = self
        while node.parent is not None:
            steps.append(_step_text(node.step))
            node = node.parent
        return "state" + "".join(reversed(steps))

    def subject(self) -> object:
        """Return the object to encode in order to test the value. If the value is a dict key, it is tested as the key of a dict."""
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
    """Find mutable objects that can be reached on two paths, and arrays that share memory.

    Raises:
        EncodingError: If there is such an object or array. The error message names both paths.
    """
    walk = _Walk(state)
    while walk.waiting and walk.seen < WALK_OBJECTS_MAX:
        walk.enter(walk.waiting.pop())
    _check_memory(walk.arrays)


class _Walk:
    """Traversal of a state, which `check` performs.

    Attributes:
        first: for each mutable object, the first path on which it was reached, by the object's id. The dict `first` keeps the objects
            alive, so that ids are not reused.
        waiting: nodes that must still be visited. The last node in the list is visited next.
        seen: number of containers and mutable objects that were visited.
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
        """Visit all members of one object."""
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
    """Return the traits that all objects of the value's type share. Return 0 for leaves that may be shared, and also for values that the
    encoder refuses."""
    traits = _CONTAINER if _open(value) is not None else 0
    if _extent(value) is not None:
        traits |= _ARRAY
    return traits if _may_be_shared(value) else traits | _MUTABLE


def _open(value: Any) -> tuple[str, Iterable[object], Iterable[Any]] | None:
    """Return how to traverse a container: the kind of the path steps, the steps' keys, and the members. Return None if `value` is not a
    container.

    The keys of a dict are not traversed, because hashable objects are treated as immutable.
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
    """Return whether all members of a container are leaves. For a list of a million numbers, the call takes a few milliseconds. Checking
    the numbers one by one would take a second."""
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
    """Raise an error if arrays share memory. In the order of addresses, each array is compared only with those earlier arrays that end
    after its beginning."""
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
    """Return the address of an array's or tensor's first byte, and the address after its last byte. Return None for other values."""
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
    """Return whether two arrays with overlapping address ranges share memory. For tensors, overlapping ranges always count as
    shared memory."""
    import numpy

    if not isinstance(one, numpy.ndarray) or not isinstance(other, numpy.ndarray):
        return True
    try:
        work: Any = OVERLAP_WORK_MAX  # Any number is valid, but NumPy's annotation allows only two.
        return bool(numpy.shares_memory(one, other, max_work=work))
    except _too_hard_error(numpy):
        return True


def _too_hard_error(numpy: Any) -> type[Exception]:
    """Return the class of this error in NumPy, which is in different modules in NumPy 1 and NumPy 2."""
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
    """Return whether the type of `value` is mutable and can occur in a state. Encoding detects forbidden objects."""
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
    """Explain which value of `state` cannot be saved, and recommend a change. Call this function after the encoder has raised `error`."""
    attempt = _Attempt(allow_pickle=allow_pickle)
    if attempt.failure_of(state):
        return _descend(_Node(state, None, (".", "")), attempt)
    try:
        check(state)
    except EncodingError as found:
        return str(found)
    return str(error) or type(error).__name__


def _descend(node: _Node, attempt: "_Attempt") -> str:
    """Descend from an object that cannot be encoded to its innermost member that cannot be encoded, and explain why."""
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
    """Trial encoder, which determines whether a value can be encoded, without copying arrays."""

    def __init__(self, *, allow_pickle: bool) -> None:
        self._allow_pickle = allow_pickle

    def failure_of(self, value: object) -> str:
        """Return the reason why `value` cannot be encoded, or "" if it can be encoded."""
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
    """Describe an object that is valid only in its own process, in the user's terms. Return "" for all objects that are valid in other
    processes."""
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


ARRAY_PART_BYTES_MIN = 16 * 1024
"""Smallest array in bytes that is stored in its own part. Smaller arrays are in the skeleton. A part costs 100 bytes in the checkpoint, and
a chunk costs at least as much in a pack."""

PICKLE_PART_BYTES_MIN = 64 * 1024
"""Smallest pickle in bytes that is stored in its own part. The limit is the size of one chunk, since a smaller pickle is only reused as a
whole."""

CHUNK_BYTES = 64 * 1024
LARGE_CHUNK_BYTES = 256 * 1024
LARGE_ARRAY_BYTES = 1 << 30
"""Size in bytes from which arrays have larger chunks. An array of 1 GiB then has 4,096. Smaller chunks would cost more in digests than they
save."""

SLAB_BYTES_MIN = 64 * 1024
SLAB_BYTES_MAX = 4 * 1024 * 1024
"""Largest slab in bytes. Slab sizes double, so an agent with one small array uses little memory, and one with many arrays uses few
slabs."""

OWN_BUFFER_BYTES_MIN = 1024 * 1024
"""Size in bytes from which an array has its own buffer."""

PARALLEL_COPY_BYTES_MIN = 16 * 1024 * 1024
"""Size in bytes from which two threads copy. Such a copy takes more than a millisecond, and starting a thread takes a twentieth of that."""

_ALIGNMENT_BYTES = 64
"""Alignment of arrays in a slab, in bytes. The alignment is the size of a cache line, and is enough for every dtype."""

_TRACKED_MODULE = "snapline.storage.capture.tracked_arrays"


class StateEncoder:
    """Encoder for all states of one agent.

    Args:
        pool: source of buffers for copies, shared by all agents on the host.
        allow_pickle: whether `Pickled` values may be saved.
        declared: the declared type of the states. Values are refused if they would not be restored as declared. If `declared` is None, the
            declared type is not checked.
    """

    def __init__(self, pool: ArenaPool, *, allow_pickle: bool = False, declared: Any = None) -> None:
        self._pool = pool
        self._declared = declared
        self._allow_pickle = allow_pickle
        self._inline = msgspec.msgpack.Encoder(enc_hook=encode_pickling if allow_pickle else encode_value)
        self._lock = threading.Lock()
        self._held_images = 0

    def encode(self, state: object, base: ChunkTable | None = None) -> StateImage:
        """Return the image of `state`. Chunks that are in `base` are included without their bytes. If `base` is None, the bytes of all
        chunks are included.

        Raises:
            EncodingError: If a value cannot be saved. The error message names the value's path.
            ArenaBusyError: If earlier images have not been written yet. The caller can repeat the capture later.
            StoreError: If the machine is out of memory.
        """
        self._check(state)
        capture = _Capture(self._pool, base, allow_pickle=self._allow_pickle, check_can_copy=self._check_can_copy)
        try:
            skeleton = msgspec.msgpack.encode(state, enc_hook=capture.encode_value)
        except BaseException as error:
            capture.release()
            if isinstance(error, FAILURES) and not isinstance(error, EncodingError):
                raise EncodingError(explain(state, error, allow_pickle=self._allow_pickle)) from error
            raise
        if capture.on_release:
            self._count_image(capture.on_release)
        return StateImage(skeleton=skeleton, parts=capture.parts, on_release=capture.on_release)

    def encode_inline(self, state: object) -> bytes:
        """Return `state` encoded as one record without parts, which is used for short-lived images and for messages.

        Raises:
            EncodingError: If a value cannot be saved.
        """
        self._check(state)
        return self._encoded_inline(state)

    def _encoded_inline(self, state: object) -> bytes:
        try:
            return self._inline.encode(state)
        except FAILURES as error:
            raise EncodingError(explain(state, error, allow_pickle=self._allow_pickle)) from error

    def _check(self, state: object) -> None:
        """Raise an error if a value would be restored differently. Values that cannot be encoded at all are reported first."""
        if self._declared is not None and not survives_round_trip(state, self._declared):
            self._encoded_inline(state)
            check_declared(state, self._declared, "state")

    def buffer_sizes(self, state: object) -> list[int]:
        """Return the sizes of all buffers that a complete `encode` of `state` takes from the pool. Nothing is copied.

        If a worker thread calls `pool.reserve` for each size, the first capture does not wait for page faults.

        Raises:
            EncodingError: If a value cannot be saved.
        """
        sizes: list[int] = []
        plan = _Plan(sizes)

        def note(value: object) -> object:
            size = _large_size_of(value)
            if size is None:
                return self._inline_hook(value)
            plan.place(size)
            return None

        try:
            msgspec.msgpack.encode(state, enc_hook=note)
        except FAILURES as error:
            raise EncodingError(explain(state, error, allow_pickle=self._allow_pickle)) from error
        return sizes

    def _inline_hook(self, value: object) -> object:
        return encode_pickling(value) if self._allow_pickle else encode_value(value)

    def _check_can_copy(self) -> None:
        if self._held_images >= ARENA_IMAGES_MAX:
            raise ArenaBusyError(
                f"{self._held_images} images of the agent wait to be written: the store is slower than the checkpoints, "
                "take them less often"
            )

    def _count_image(self, on_release: list[Callable[[], None]]) -> None:
        with self._lock:
            self._held_images += 1
        on_release.append(self._uncount_image)

    def _uncount_image(self) -> None:
        with self._lock:
            self._held_images -= 1


class _Plan:
    """Assigns each copy a place in the buffers. The assignment is deterministic, so that repeated captures of the same state use the same
    buffers."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes  # Sizes of the buffers, in the order in which they are taken.
        self.slab = -1
        self.used_bytes = 0
        self.next_bytes = SLAB_BYTES_MIN

    def place(self, size_bytes: int) -> tuple[int, int]:
        """Return the index of a buffer, and the offset of the copy in this buffer."""
        if size_bytes >= OWN_BUFFER_BYTES_MIN:
            self.sizes.append(size_bytes)
            return len(self.sizes) - 1, 0
        if self.slab < 0 or self.used_bytes + size_bytes > self.sizes[self.slab]:
            self._add_slab(size_bytes)
        offset = self.used_bytes
        self.used_bytes += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return self.slab, offset

    def _add_slab(self, size_bytes: int) -> None:
        while self.next_bytes < size_bytes:
            self.next_bytes *= 2
        self.sizes.append(self.next_bytes)
        self.slab, self.used_bytes = len(self.sizes) - 1, 0
        self.next_bytes = min(2 * self.next_bytes, SLAB_BYTES_MAX)


class _Capture:
    """An image while it is being captured. msgspec calls the method `encode_value` as its `enc_hook`."""

    def __init__(
        self, pool: ArenaPool, base: ChunkTable | None, *, allow_pickle: bool, check_can_copy: Callable[[], None]
    ) -> None:
        self.parts: list[CapturedPart] = []
        self.on_release: list[Callable[[], None]] = []
        self._pool = pool
        self._base = base
        self._allow_pickle = allow_pickle
        self._check_can_copy = check_can_copy
        self._seen: dict[
            int, object
        ] = {}  # Map from id to mutable object in a part. It keeps objects alive, so that no id is reused.
        self._sizes: list[int] = []
        self._plan = _Plan(self._sizes)
        self._views: list[memoryview] = []

    def release(self) -> None:
        """Return all buffers of this image to the pool."""
        callbacks, self.on_release = self.on_release, []
        for callback in callbacks:
            callback()

    def take(self, size_bytes: int) -> ArenaBuffer:
        """Take a buffer that will be released together with the image. Write trackers call this method in place of `ArenaPool.take`.

        Raises:
            ArenaBusyError, StoreError: If no buffer is available.
        """
        self._check_can_copy()
        buffer = self._pool.take(size_bytes)
        self.on_release.append(buffer.release)
        return buffer

    def encode_value(self, value: object) -> object:
        """Return the extension that represents a value in the skeleton. msgspec calls this method for values whose type it does not
        know."""
        numpy = numpy_if_loaded()
        if numpy is not None and isinstance(value, numpy.ndarray) and value.nbytes >= ARRAY_PART_BYTES_MIN:
            check_array(value)
            return self._add(value, self._array(value))
        if is_a(value, HISTORY_MODULE, "History") or type(value) is Blob:
            return self._add(value, value.capture(self._base))  # type: ignore[attr-defined]  # both have it
        if numpy_and_torch.is_tensor(value) and numpy_and_torch.size_of(value) >= ARRAY_PART_BYTES_MIN:
            content = numpy_and_torch.bytes_of(value)
            return self._add(value, self._copied(PART_TENSOR, numpy_and_torch.head_of(value), content))
        if self._allow_pickle and type(value) is Pickled:
            return self._pickled(pickled_bytes(value))
        return encode_value(value)

    def _add(self, value: object, part: CapturedPart) -> object:
        """Add a part. An object may be added only once, because it would be restored as two objects, and because a cycle would copy an
        array again and again."""
        if id(value) in self._seen and type(value) is not Blob:
            raise NotImplementedError(f"the same {type(value).__qualname__} twice")
        self._seen[id(value)] = value
        self.parts.append(part)
        return msgspec.msgpack.Ext(PART_EXTENSION, msgspec.msgpack.encode(len(self.parts) - 1))

    def _pickled(self, data: bytes) -> object:
        if len(data) < PICKLE_PART_BYTES_MIN:
            return msgspec.msgpack.Ext(PICKLE_EXTENSION, PICKLE_INLINE + data)

        self.parts.append(Blob(data).capture(self._base))
        return msgspec.msgpack.Ext(PICKLE_EXTENSION, PICKLE_PART + msgspec.msgpack.encode(len(self.parts) - 1))

    def _array(self, array: Any) -> CapturedPart:
        tracked = sys.modules.get(_TRACKED_MODULE)  # If the module is not loaded, there is no tracked array.
        tracker = None if tracked is None else tracked.tracker_of(array)
        is_tracked = tracked is not None and tracked.is_tracked(array)
        if tracker is None and array.flags.f_contiguous and not array.flags.c_contiguous:
            # Copying into C order, which transposes, takes twelve times as long as copying.
            return self._copied(PART_ARRAY, array_head(array, order="F"), array.T)
        head = array_head(array, is_tracked=is_tracked)
        if tracker is None:
            return self._copied(PART_ARRAY, head, array)
        chunk_bytes = chunk_bytes_for(array.nbytes)
        chunks, _ = tracker.chunks(self._base, chunk_bytes, self)  # The chunks' buffers are released with the image.
        return CapturedPart(PART_ARRAY, head, array.nbytes, chunk_bytes, chunks)

    def _copied(self, kind: int, head: bytes, array: Any) -> CapturedPart:
        import numpy

        size = array.nbytes
        view = self._take_bytes(size)
        _copy(numpy.frombuffer(view, dtype=array.dtype).reshape(array.shape), array)
        return CapturedPart(kind, head, size, chunk_bytes_for(size), _cut(view, chunk_bytes_for(size)))

    def _take_bytes(self, size_bytes: int) -> memoryview:
        index, offset = self._plan.place(size_bytes)
        if index == len(self._views):
            self._views.append(self.take(self._sizes[index]).view)
        return self._views[index][offset : offset + size_bytes]


def _copy(target: Any, array: Any) -> None:
    """Copy an array. Large arrays are copied in two halves by two threads, because a single core cannot use the full memory bandwidth."""
    import numpy

    if array.nbytes < PARALLEL_COPY_BYTES_MIN or len(array) < 2:
        numpy.copyto(target, array)
        return
    middle = len(array) // 2
    other = threading.Thread(target=numpy.copyto, args=(target[middle:], array[middle:]), name="snapline-copy")
    other.start()
    numpy.copyto(target[:middle], array[:middle])
    other.join()


def chunk_bytes_for(size_bytes: int) -> int:
    """Return the size of the chunks for an array of `size_bytes` bytes."""
    return LARGE_CHUNK_BYTES if size_bytes >= LARGE_ARRAY_BYTES else CHUNK_BYTES


def _cut(view: memoryview, chunk_bytes: int) -> list[SourceChunk]:
    """Return the chunks of an array that has just been copied. The chunks have no tokens, because it is not known whether they have
    changed."""
    size = len(view)
    full_bytes = size - size % chunk_bytes
    chunks = [
        SourceChunk(0, view[start : start + chunk_bytes], chunk_bytes) for start in range(0, full_bytes, chunk_bytes)
    ]
    if full_bytes < size:
        chunks.append(SourceChunk(0, view[full_bytes:], size - full_bytes))
    return chunks


def _large_size_of(value: object) -> int | None:
    """Return the number of bytes that an array or tensor needs from the pool, or None if the value needs no buffer."""
    numpy = numpy_if_loaded()
    if numpy is not None and isinstance(value, numpy.ndarray):
        size = int(value.nbytes)
    else:
        size = numpy_and_torch.size_of(value) if numpy_and_torch.is_tensor(value) else 0
    return size if size >= ARRAY_PART_BYTES_MIN else None
