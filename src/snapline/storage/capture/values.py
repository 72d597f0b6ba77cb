"""Encoding and decoding of single values that MessagePack cannot represent.

msgspec passes every value of an unknown type to `encode_value` and gets an extension for it: a code and a body.

    1  NumPy array     length of head (1 byte) | head = MessagePack of [dtype, shape] | bytes in C order
    2  part            MessagePack integer: its index in the image's list of parts
    3  History         MessagePack array of its records
    4  random.Random   see `generators.py`
    5  numpy Generator see `generators.py`
    6  Pickled         0 | pickle, or 1 | MessagePack integer: the part that holds the pickle
    7  torch.Tensor    as an array, with torch's name of the dtype
    8  Blob            its bytes

Codes 2 and 6 are only valid together with a checkpoint's parts or a permission; `encoder.py` and `decoder.py` handle
them. The others are self-contained, in a state as in a message.

The rule of this module: a value is restored equal and of the same class, or is refused when it is saved (G3). So subclasses that would
lose their class are refused. No module is imported for the check: if a module
is not loaded, its types have no instances. Nothing here runs code from the data, except a permitted pickle.
"""

import pickle
import random
import sys
import typing
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from snapline.errors import EncodingError
from snapline.storage.capture import generators, numpy_and_torch
from snapline.storage.capture.image import Buffer
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded

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
BLOB_MODULE = "snapline.storage.capture.blob_value"
TORCH_STATE_MODULE = "snapline.storage.capture.torch_state"

FAILURES = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError, AttributeError)
"""Errors of msgspec and our hooks about a value that cannot be saved."""

_Value = TypeVar("_Value")


class Pickled(Generic[_Value]):
    """A value of any class, saved with pickle. Loading a pickle runs code, so anyone who can write to the store can run code here.

    So it requires both a field declared as `Pickled[…]` and `allow_pickle = True` on the agent class. Without the
    second, saving and loading are refused.
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
    """Return the MessagePack form of `value`; for msgspec's `enc_hook`.

    Raises:
        NotImplementedError: the value cannot be saved.
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
    if is_a(value, BLOB_MODULE, "Blob"):
        return msgspec.msgpack.Ext(BLOB_EXTENSION, value.data)
    if type(value) is random.Random:
        return msgspec.msgpack.Ext(RANDOM_EXTENSION, generators.encode_random(value))
    if generators.is_generator(value):
        return msgspec.msgpack.Ext(GENERATOR_EXTENSION, generators.encode_generator(value))
    if numpy_and_torch.is_tensor(value):
        return msgspec.msgpack.Ext(
            TENSOR_EXTENSION, with_head(numpy_and_torch.head_of(value), numpy_and_torch.bytes_of(value).tobytes())
        )
    if is_a(value, TORCH_STATE_MODULE, "TorchState"):
        return value.record()  # plain data and tensors, as of now
    if isinstance(value, Pickled):
        raise NotImplementedError(
            "a pickled value: set allow_pickle = True on the agent class, or save it as plain data"
        )
    raise NotImplementedError(f"objects of type {type(value).__module__}.{type(value).__qualname__}")


def encode_pickling(value: object) -> object:
    """Encode like `encode_value`, with pickles: for states of agents that allow them."""
    if type(value) is Pickled:
        return msgspec.msgpack.Ext(PICKLE_EXTENSION, PICKLE_INLINE + pickled_bytes(value))
    return encode_value(value)


def pickled_bytes(wrapped: "Pickled[Any]") -> bytes:
    """Return the pickle.

    Raises:
        NotImplementedError: the value cannot be pickled.
    """
    try:
        return pickle.dumps(wrapped.value, protocol=5)
    except Exception as error:  # anything that the value's class raises
        raise NotImplementedError(
            f"a {type(wrapped.value).__qualname__} that cannot be pickled ({type(error).__name__}: {error})"
        ) from error


def is_a(value: object, module: str, name: str) -> bool:
    """Return whether `value` is of exactly this class, without loading the class's module."""
    loaded = sys.modules.get(module)
    return loaded is not None and type(value) is getattr(loaded, name)


def check_array(array: Any) -> None:
    """Refuse an array that would be restored as something else: only the bytes and the dtype's short name are saved.

    Raises:
        NotImplementedError: names the problem of `array`, an ndarray.
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
    """Return the encoded dtype and shape of an ndarray, and the other fields if they differ from the defaults."""
    head: tuple[object, ...] = (array.dtype.str, array.shape)
    if order != "C":
        head = (*head, is_tracked, order)
    elif is_tracked:
        head = (*head, is_tracked)
    return msgspec.msgpack.encode(head)


def with_head(head: bytes, content: bytes) -> bytes:
    """Return the body of an array or tensor."""
    return b"".join((bytes((len(head),)), head, content))


def _encode_array(array: Any) -> bytes:
    check_array(array)
    return with_head(array_head(array), array.tobytes())


_records_encoder = msgspec.msgpack.Encoder(enc_hook=encode_value)


# ---- from bytes -----------------------------------------------------------------------------------------------------


class ArrayHead(NamedTuple):
    """Head of an array or tensor.

    Attributes:
        is_tracked: the array was in write-tracked memory, and is tracked again after a restore.
        order: memory order of its bytes, "C" or "F" (Fortran: the first index changes fastest).
    """

    dtype: str
    shape: tuple[int, ...]
    is_tracked: bool = False
    order: Literal["C", "F"] = "C"


def split_head(data: memoryview) -> tuple[ArrayHead, memoryview]:
    """Split the body of an array or tensor into head and bytes."""
    end = 1 + data[0]
    return msgspec.msgpack.decode(data[1:end], type=ArrayHead), data[end:]


def make_array(head: ArrayHead, content: Buffer) -> Any:
    """Return the array over `content`, without a copy.

    Raises:
        TypeError, ValueError: head and content do not fit.
    """
    import numpy

    return numpy.frombuffer(content, dtype=head.dtype).reshape(head.shape, order=head.order)


def decode_value(code: int, data: memoryview) -> object:
    """Return the value of a self-contained extension; arrays are read-only views of `data`.

    Raises:
        EncodingError, TypeError, ValueError, msgspec.DecodeError: the data is invalid.
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
    RANDOM_EXTENSION: generators.decode_random,
    GENERATOR_EXTENSION: generators.decode_generator,
    PICKLE_EXTENSION: _refuse_pickle,
    TENSOR_EXTENSION: _decode_tensor,
    BLOB_EXTENSION: _decode_blob,
}


def decode_own_value(code: int, data: memoryview) -> object:
    """Decode like `decode_value`, but arrays own writable memory, since states are changed in place."""
    if code == ARRAY_EXTENSION:
        return make_array(*split_head(data)).copy()
    return decode_value(code, data)


def decode_declared(declared: Any, value: object) -> object:
    """Return `value` as a declared type that is unknown to msgspec; for msgspec's `dec_hook`.

    Raises:
        NotImplementedError, TypeError, ValueError: the value has another type.
    """
    origin = typing.get_origin(declared) or declared
    if isinstance(origin, type) and isinstance(value, origin):
        return _with_records_as(declared, value) if is_a(value, HISTORY_MODULE, "History") else value
    torch_state = sys.modules.get(TORCH_STATE_MODULE)
    if torch_state is not None and origin is torch_state.TorchState:
        return torch_state.TorchState.from_record(value)
    numpy = numpy_if_loaded()
    if numpy is not None and isinstance(origin, type) and issubclass(origin, numpy.generic):
        return origin(value)  # saved as a plain number
    raise NotImplementedError(f"a {type(value).__qualname__} where {declared} is declared")


def record_type_of(declared: Any) -> Any:
    """Return the `T` of `History[T]`; Any if it is missing."""
    return (typing.get_args(declared) or (Any,))[0]


def _with_records_as(declared: Any, history: Any) -> object:
    """Convert records that were decoded without their declared type and are still dicts and tuples."""
    record_type = record_type_of(declared)
    if record_type is Any:
        return history
    return _make_history(record_type, msgspec.msgpack.encode(history.records_for_inline()))


def _make_history(record_type: Any, records: Buffer) -> object:
    from snapline.storage.capture.history import History
    from snapline.storage.capture.history_operations import record_decoder

    return History.of_decoded(record_decoder(record_type)(records))


def _make_blob(data: bytes) -> object:
    from snapline.storage.capture.blob_value import Blob

    return Blob(data)
