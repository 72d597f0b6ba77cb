"""Encodes and decodes single values that MessagePack does not support, including `Blob`.

When msgspec encounters a value of an unknown type, it calls `encode_value`, which returns an extension. An extension consists of a code and
a body.

    1  NumPy array     length of head (1 byte) | head = MessagePack of [dtype, shape] | bytes in C order
    2  part            MessagePack integer: the part's index in the image's list of parts
    3  History         MessagePack array of the history's records
    4  random.Random   see below
    5  numpy Generator see below
    6  Pickled         0 | pickle, or 1 | MessagePack integer: index of the part that contains the pickle
    7  torch.Tensor    like an array, but with torch's name of the dtype
    8  Blob            the blob's bytes

Code 2 is valid only together with a checkpoint's parts, and code 6 only with permission. Codes 2 and 6 are handled by `encoder.py` and
`decoder.py`. Values of all other types are encoded completely, both in states and in messages.

The rule of this module: a value is either restored as an equal value of the same class, or refused when it is saved (G3). So instances of
subclasses that would lose their class are refused. The check imports no modules, because there are no instances of a type whose module is
not loaded. No code from the saved data is run, except when a pickle is loaded with permission.

**Blobs** are opaque bytes in a state, such as a large document or a serialized model. A blob never changes. As long as an agent keeps the
same `Blob` object, its bytes are hashed and stored only once. If a new `Blob` has almost the same bytes as an old blob, both share most
chunks, because the positions of cuts depend on the content.

Cutting a blob into chunks takes 2 to 3 ns per byte, which would make the pause too long. So the first capture passes on the whole blob with
one token, which is the first of a block of tokens that belong to this blob. The worker (`chunking.py`) cuts the blob, and assigns the
tokens `token`, `token + 1`, … to the chunks in its table. When this table becomes the base, the blob finds its chunks in the base by these
tokens. So the two threads share no data, and the blob itself stores only its first token. If the epoch fails, the next worker cuts the blob
once more.

**Random generators** are instances of `random.Random` and `numpy.random.Generator`. A restored agent must draw the same numbers that the
failed agent would have drawn (G3). So the complete state of a generator is saved: the bits, the value that `gauss` has prepared for its
next call, and the seed sequence from which NumPy generators spawn other generators.

    random.Random     MessagePack [version, 625 words as little-endian u32, gauss or nil]
    numpy Generator   MessagePack [name of the bit generator, its state, seed sequence or nil]

Integers of more than 64 bits, which MessagePack does not support, are encoded as
`{"": hexadecimal}`, and arrays as `{"": [dtype, shape, bytes]}`.
"""

import pickle
import random
import struct
import sys
import typing
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from snapline.errors import DamagedDataError, EncodingError, UsageError
from snapline.storage.capture import numpy_and_torch
from snapline.storage.capture.history import History
from snapline.storage.capture.history_operations import record_decoder
from snapline.storage.capture.image import PART_BLOB, CapturedPart, ChunkTable, SourceChunk, fresh_token
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded
from snapline.storage.disk.record import Buffer
from snapline.storage.packs.checkpoint import ChunkReference, StatePart


@typing.final
class Blob:
    """Opaque bytes that never change. Two blobs are equal if they have the same bytes.

    Raises:
        UsageError: If `data` does not support the buffer protocol.
    """

    __slots__ = ("__weakref__", "_data", "_references", "_token")

    def __init__(self, data: Buffer = b"") -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"a Blob holds bytes, not {type(data).__qualname__}: encode the value first")
        self._data = bytes(data)  # This copies nothing if `data` is a bytes object.
        self._token = 0
        self._references: list[ChunkReference] = []

    @property
    def data(self) -> bytes:
        """The blob's bytes."""
        return self._data

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        return self._data == other._data if isinstance(other, Blob) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._data)

    def __repr__(self) -> str:
        return f"<Blob of {len(self._data):,} bytes>"

    def __copy__(self) -> "Blob":
        return self

    def __deepcopy__(self, memo: object) -> "Blob":
        return self

    def __reduce__(self) -> tuple[type["Blob"], tuple[bytes]]:
        """Pickle the blob without its token, because the token has no meaning in another process."""
        return Blob, (self._data,)

    def capture(self, base: ChunkTable | None) -> CapturedPart:
        """Return the blob as a part of an image, without copying its bytes. This method must be called between two turns."""
        if not self._token:
            self._token = fresh_token()
        size = len(self._data)
        chunks = _unchanged(self._token, size, base)
        if not chunks and size:
            chunks = [SourceChunk(self._token, self._data, size)]
        return CapturedPart(PART_BLOB, b"", size, 0, chunks)

    @classmethod
    def restore(cls, part: StatePart, buffer: Buffer) -> "Blob":
        """Return a blob with a copy of the verified bytes in `buffer`.

        Raises:
            DamagedDataError: If the buffer is not as long as the part.
        """
        if part.contradiction() or memoryview(buffer).nbytes != part.size_bytes:
            raise DamagedDataError("a blob of the state has another length than its chunks: restore an earlier epoch")
        blob = cls(buffer)
        blob._token, blob._references = fresh_token(), part.chunks()
        return blob

    def table_entries(self) -> dict[int, ChunkReference]:
        """Return a map from tokens to the chunks that were restored. The map must be part of the first base, so that no chunk is stored
        again."""
        return dict(enumerate(self._references, self._token))


def _unchanged(token: int, size_bytes: int, base: ChunkTable | None) -> list[SourceChunk]:
    """Return the blob's chunks, all of them without bytes, if the base contains all of them, and otherwise an empty list."""
    chunks: list[SourceChunk] = []
    known = {} if base is None else base.by_token
    rest = size_bytes
    while rest > 0:
        reference = known.get(token + len(chunks))
        if reference is None:
            break
        chunks.append(SourceChunk(token + len(chunks), None, reference.size_bytes))
        rest -= reference.size_bytes
    return chunks if rest == 0 else []


BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
"""Names of NumPy's bit generators. Decoding accepts only these names."""

_WORDS = struct.Struct("<625I")


def encode_random(generator: random.Random) -> bytes:
    """Encode the state of a `random.Random`."""
    version, words, gauss = generator.getstate()
    return msgspec.msgpack.encode((version, _WORDS.pack(*words), gauss))


def decode_random(data: memoryview) -> random.Random:
    """Return a generator that continues at the point where the saved generator stopped.

    Raises:
        EncodingError, msgspec.DecodeError: If the bytes do not encode such a state.
    """
    version, words, gauss = msgspec.msgpack.decode(data, type=tuple[int, bytes, float | None])
    made = random.Random(0)
    try:
        made.setstate((version, _WORDS.unpack(words), gauss))
    except (struct.error, TypeError, ValueError) as error:
        raise EncodingError(f"the saved state of a random.Random cannot be used: {error}") from error
    return made


def is_generator(value: object) -> bool:
    """Return whether `value` is a `numpy.random.Generator`."""
    numpy_random = sys.modules.get("numpy.random")
    kind = getattr(numpy_random, "Generator", None)  # None while NumPy is being imported
    return kind is not None and type(value) is kind


def is_bit_generator(value: object) -> bool:
    """Return whether `value` is a NumPy bit generator."""
    kind = getattr(sys.modules.get("numpy.random"), "BitGenerator", None)
    return kind is not None and isinstance(value, kind)


def encode_generator(generator: Any) -> bytes:
    """Encode the state of a `numpy.random.Generator`.

    Raises:
        NotImplementedError: If its bit generator is not one that NumPy provides.
    """
    bits = generator.bit_generator
    name = type(bits).__name__
    if name not in BIT_GENERATORS or type(bits) is not getattr(sys.modules["numpy.random"], name):
        raise NotImplementedError(
            f"NumPy generators over a {type(bits).__qualname__}: use one of {', '.join(BIT_GENERATORS)}"
        )
    return msgspec.msgpack.encode((name, _plain(bits.state), _plain(_seeds_of(bits))))


def decode_generator(data: memoryview) -> Any:
    """Return a generator that continues at the point where the saved generator stopped.

    Raises:
        EncodingError, msgspec.DecodeError: If the bytes do not encode such a state.
    """
    name, state, seeds = msgspec.msgpack.decode(data, type=tuple[str, Any, Any])
    if name not in BIT_GENERATORS:
        raise EncodingError(
            f"the saved NumPy generator runs on {name[:40]!r}, which is not known: use a newer snapline"
        )
    from numpy import random as numpy_random

    try:
        seed = 0 if seeds is None else numpy_random.SeedSequence(**_from_plain(seeds))
        bits = getattr(numpy_random, name)(seed)
        bits.state = _from_plain(state)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, SyntaxError) as error:
        raise EncodingError(f"the saved state of a NumPy generator cannot be used: {error!r}") from error
    return numpy_random.Generator(bits)


def _seeds_of(bits: Any) -> dict[str, Any] | None:
    """Return the seeds that `spawn` uses next, or None if the generator was seeded in the legacy way and cannot spawn."""
    seeds: Any = getattr(bits, "seed_seq", None)
    if type(seeds) is not sys.modules["numpy.random"].SeedSequence:
        return None
    return {
        "entropy": seeds.entropy,
        "spawn_key": tuple(seeds.spawn_key),
        "pool_size": seeds.pool_size,
        "n_children_spawned": seeds.n_children_spawned,
    }


def _plain(value: Any) -> Any:
    numpy = sys.modules["numpy"]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, numpy.ndarray):
        return {"": [value.dtype.str, value.shape, value.tobytes()]}
    if isinstance(value, numpy.generic):
        value = value.item()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return {"": f"{value:x}"}
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "" not in value:
        return {key: _from_plain(item) for key, item in value.items()}
    special = value[""]
    if isinstance(special, str):
        return int(special, 16)
    import numpy

    dtype, shape, content = special
    return numpy.frombuffer(content, dtype=dtype).reshape(shape).copy()


ARRAY_EXTENSION = 1
PART_EXTENSION = 2
HISTORY_EXTENSION = 3
RANDOM_EXTENSION = 4
GENERATOR_EXTENSION = 5
PICKLE_EXTENSION = 6
TENSOR_EXTENSION = 7
BLOB_EXTENSION = 8

PICKLE_INLINE = b"\0"
PICKLE_PART = b"\1"

HISTORY_MODULE = "snapline.storage.capture.history"
BLOB_MODULE = "snapline.storage.capture.values"
TORCH_STATE_MODULE = "snapline.storage.capture.torch_state"

FAILURES = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError, AttributeError)
"""Errors that msgspec and Snapline's hooks raise for a value that cannot be saved."""

_Value = TypeVar("_Value")


class Pickled(Generic[_Value]):
    """A value of any class, which is saved as a pickle. Loading a pickle runs code from the pickle, so anyone who can write to the store
    can run code on the agent's host.

    Therefore, a pickle requires that the field is declared as `Pickled[…]` and that the agent class sets `allow_pickle = True`. Without
    `allow_pickle`, pickles are neither saved nor loaded.
    """

    __slots__ = ("value",)

    def __init__(self, value: _Value) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pickled) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]  # mutable, as its value may be

    def __repr__(self) -> str:
        return f"Pickled({self.value!r})"


# ---- to bytes -------------------------------------------------------------------------------------------------------


def encode_value(value: object) -> object:
    """Convert `value` to a form that MessagePack supports. This function is used as the `enc_hook` of msgspec.

    Raises:
        NotImplementedError: If the value cannot be saved.
    """
    numpy = numpy_if_loaded()
    if numpy is not None and isinstance(value, numpy.ndarray):
        return msgspec.msgpack.Ext(ARRAY_EXTENSION, _encode_array(value))
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
        item = value.item()
        if not isinstance(item, numpy.generic):  # a longdouble has no counterpart in Python
            return item
    return _encode_rare(value)


def _encode_rare(value: Any) -> object:
    if is_a(value, HISTORY_MODULE, "History"):
        return msgspec.msgpack.Ext(HISTORY_EXTENSION, _records_encoder.encode(value.records_for_inline()))
    if type(value) is Blob:
        return msgspec.msgpack.Ext(BLOB_EXTENSION, value.data)
    if type(value) is random.Random:
        return msgspec.msgpack.Ext(RANDOM_EXTENSION, encode_random(value))
    if is_generator(value):
        return msgspec.msgpack.Ext(GENERATOR_EXTENSION, encode_generator(value))
    if numpy_and_torch.is_tensor(value):
        return msgspec.msgpack.Ext(
            TENSOR_EXTENSION, with_head(numpy_and_torch.head_of(value), numpy_and_torch.bytes_of(value).tobytes())
        )
    if is_a(value, TORCH_STATE_MODULE, "TorchState"):
        return value.record()  # Plain data and tensors, in their current state.
    if isinstance(value, Pickled):
        raise NotImplementedError(
            "a pickled value: set allow_pickle = True on the agent class, or save it as plain data"
        )
    raise NotImplementedError(f"objects of type {type(value).__module__}.{type(value).__qualname__}")


def encode_pickling(value: object) -> object:
    """Encode `value` like `encode_value`. In addition to the values that `encode_value` supports, encode pickles, for the states of agents
    that allow pickles."""
    if type(value) is Pickled:
        return msgspec.msgpack.Ext(PICKLE_EXTENSION, PICKLE_INLINE + pickled_bytes(value))
    return encode_value(value)


def pickled_bytes(wrapped: "Pickled[Any]") -> bytes:
    """Return the pickle of a wrapped value.

    Raises:
        NotImplementedError: If the value cannot be pickled.
    """
    try:
        return pickle.dumps(wrapped.value, protocol=5)
    except Exception as error:  # The value's class may raise anything.
        raise NotImplementedError(
            f"a {type(wrapped.value).__qualname__} that cannot be pickled ({type(error).__name__}: {error})"
        ) from error


def is_a(value: object, module: str, name: str) -> bool:
    """Return whether `value` is an instance of exactly this class, and not of a subclass. The module of the class is not imported."""
    loaded = sys.modules.get(module)
    return loaded is not None and type(value) is getattr(loaded, name)


def check_array(array: Any) -> None:
    """Raise an error if an array would be restored differently. Only an array's bytes and the short name of its dtype are saved.

    Raises:
        NotImplementedError: If the array would be restored differently. The message describes the problem.
    """
    import numpy

    if type(array) not in (numpy.ndarray, numpy.memmap):
        raise NotImplementedError(f"NumPy arrays of type {type(array).__qualname__}: use a plain ndarray")
    if array.dtype.hasobject:
        raise NotImplementedError("NumPy arrays of Python objects")
    if array.dtype.names is not None:
        raise NotImplementedError("NumPy arrays with named fields: use one array for each field")
    if array.dtype.itemsize == 0 or numpy.dtype(array.dtype.str) != array.dtype:
        raise NotImplementedError(
            f"NumPy arrays of dtype {array.dtype}: use a dtype of NumPy itself, or an integer view"
        )


def array_head(array: Any, *, is_tracked: bool = False, order: str = "C") -> bytes:
    """Encode the dtype and the shape of an ndarray. The other fields of `ArrayHead` are appended if they differ from their defaults."""
    head: tuple[object, ...] = (array.dtype.str, array.shape)
    if order != "C":
        head = (*head, is_tracked, order)
    elif is_tracked:
        head = (*head, is_tracked)
    return msgspec.msgpack.encode(head)


def with_head(head: bytes, content: bytes) -> bytes:
    """Return the encoded body of an array or tensor, which consists of the length of the head, the head, and the content."""
    return b"".join((bytes((len(head),)), head, content))


def _encode_array(array: Any) -> bytes:
    check_array(array)
    return with_head(array_head(array), array.tobytes())


_records_encoder = msgspec.msgpack.Encoder(enc_hook=encode_value)


# ---- from bytes -----------------------------------------------------------------------------------------------------


class ArrayHead(NamedTuple):
    """Description of an array or tensor, which is stored before its bytes.

    Attributes:
        is_tracked: whether the array was in write-tracked memory. A tracked array is tracked again after a restore.
        order: memory order of the bytes: "C" for C order, or "F" for Fortran order, where the first index changes fastest.
    """

    dtype: str
    shape: tuple[int, ...]
    is_tracked: bool = False
    order: Literal["C", "F"] = "C"


def split_head(data: memoryview) -> tuple[ArrayHead, memoryview]:
    """Split the body of an array or tensor into its head and its bytes."""
    end = 1 + data[0]
    return msgspec.msgpack.decode(data[1:end], type=ArrayHead), data[end:]


def make_array(head: ArrayHead, content: Buffer) -> Any:
    """Return an array that uses the memory of `content` directly.

    Raises:
        TypeError, ValueError: If the head and the content do not match.
    """
    import numpy

    try:
        return numpy.frombuffer(content, dtype=head.dtype).reshape(head.shape, order=head.order)
    except SyntaxError as error:  # NumPy evaluates digits in a dtype
        raise ValueError(f"there is no dtype {head.dtype!r}") from error


def decode_value(code: int, data: memoryview) -> object:
    """Decode the value of an extension that does not refer to a part. Arrays are returned as read-only views of `data`.

    Raises:
        EncodingError, TypeError, ValueError, msgspec.DecodeError: If the data is invalid.
    """
    decode = _DECODERS.get(code)
    if decode is None:
        raise EncodingError(f"extension {code} is not known: the bytes were written by a newer snapline")
    return decode(data)


def _decode_array(data: memoryview) -> object:
    return make_array(*split_head(data))


def _decode_history(data: memoryview) -> object:
    return _make_history(Any, data)


def _decode_tensor(data: memoryview) -> object:
    head, content = split_head(data)
    return numpy_and_torch.make_tensor(head.dtype, head.shape, bytearray(content))


def _decode_blob(data: memoryview) -> object:
    return _make_blob(bytes(data))


def _refuse_pickle(data: memoryview) -> object:
    raise EncodingError("there is a pickled value where none is allowed: set allow_pickle = True on the agent class")


_DECODERS: dict[int, Callable[[memoryview], object]] = {
    ARRAY_EXTENSION: _decode_array,
    HISTORY_EXTENSION: _decode_history,
    RANDOM_EXTENSION: decode_random,
    GENERATOR_EXTENSION: decode_generator,
    PICKLE_EXTENSION: _refuse_pickle,
    TENSOR_EXTENSION: _decode_tensor,
    BLOB_EXTENSION: _decode_blob,
}


def decode_own_value(code: int, data: memoryview) -> object:
    """Decode a value like `decode_value`, but give each array its own writable memory, because agents change states in place."""
    if code == ARRAY_EXTENSION:
        return make_array(*split_head(data)).copy()
    return decode_value(code, data)


def decode_declared(declared: Any, value: object) -> object:
    """Convert `value` to a declared type that msgspec does not support. This function is used as the `dec_hook` of msgspec.

    Raises:
        NotImplementedError, TypeError, ValueError: If `value` cannot be converted to the declared type.
    """
    origin = typing.get_origin(declared) or declared
    if isinstance(origin, type) and isinstance(value, origin):
        return _with_records_as(declared, value) if is_a(value, HISTORY_MODULE, "History") else value
    torch_state = sys.modules.get(TORCH_STATE_MODULE)
    if torch_state is not None and origin is torch_state.TorchState:
        return torch_state.TorchState.from_record(value)
    numpy = numpy_if_loaded()
    if numpy is not None and isinstance(origin, type) and issubclass(origin, numpy.generic):
        return origin(value)  # It was saved as a plain number.
    raise NotImplementedError(f"a {type(value).__qualname__} where {declared} is declared")


def record_type_of(declared: Any) -> Any:
    """Return the record type `T` of `History[T]`, or Any if no record type is given."""
    return (typing.get_args(declared) or (Any,))[0]


def _with_records_as(declared: Any, history: Any) -> object:
    """Convert the records of a history that was decoded before its record type was known, and whose records are still dicts and tuples."""
    record_type = record_type_of(declared)
    if record_type is Any:
        return history
    return _make_history(record_type, msgspec.msgpack.encode(history.records_for_inline()))


def _make_history(record_type: Any, records: Buffer) -> object:
    return History.of_decoded(record_decoder(record_type)(records))


def _make_blob(data: bytes) -> object:
    return Blob(data)
