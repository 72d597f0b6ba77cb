"""Messages and states as bytes: MessagePack by msgspec, with NumPy arrays as one extension type.

A message on a channel is its type's name and its body: `length of name (1 byte) | name | MessagePack`. Encoding happens
at `ctx.send`, so the sender may go on changing its objects. Nothing here runs code while decoding: there is no pickle.

An array is MessagePack extension 1: `length of head (1 byte) | head = MessagePack of [dtype, shape] | bytes in C order`.
"""

import struct
import sys
import typing
from typing import TYPE_CHECKING, Any

import msgspec

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.errors import EncodingError, MessageTooLargeError

if TYPE_CHECKING:
    import numpy as np

ARRAY_EXTENSION = 1


def encode_hook(value: object) -> object:
    """Encode what msgspec cannot: NumPy arrays. Asks for NumPy only if somebody has imported it already."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return msgspec.msgpack.Ext(ARRAY_EXTENSION, _encode_array(value))
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
        item = value.item()
        if not isinstance(item, numpy.generic):  # a longdouble has no counterpart in Python
            return item
    raise NotImplementedError(f"objects of type {type(value).__module__}.{type(value).__qualname__}")


def _encode_array(array: "np.ndarray[Any, Any]") -> bytes:
    """Refuses what would come back as something else: the bytes and the dtype's short name say no more than that."""
    import numpy

    if type(array) not in (numpy.ndarray, numpy.memmap):
        raise NotImplementedError(f"NumPy arrays of type {type(array).__qualname__}: use a plain ndarray")
    if array.dtype.hasobject:
        raise NotImplementedError("NumPy arrays of Python objects")
    if array.dtype.names is not None:
        raise NotImplementedError("NumPy arrays with named fields: use one array for each field")
    head = msgspec.msgpack.encode((array.dtype.str, array.shape))
    return b"".join((bytes((len(head),)), head, array.tobytes()))


def array_parts(data: memoryview) -> tuple[str, tuple[int, ...], memoryview]:
    """Take an encoded array apart into dtype, shape and bytes, without NumPy."""
    end = 1 + data[0]
    dtype, shape = msgspec.msgpack.decode(data[1:end], type=tuple[str, tuple[int, ...]])
    return dtype, shape, data[end:]


def _decode_extension(code: int, data: memoryview) -> object:
    if code != ARRAY_EXTENSION:
        raise EncodingError(f"extension {code} is not known: the bytes were written by a newer snapline")
    import numpy

    dtype, shape, body = array_parts(data)
    return numpy.frombuffer(body, dtype=dtype).reshape(shape)


def _decode_own_extension(code: int, data: memoryview) -> object:
    """Like `_decode_extension`, but the array owns its memory and may be written: states are changed in place."""
    return _decode_extension(code, data).copy()  # type: ignore[attr-defined]  # always an ndarray here


def _decode_hook(declared: type, value: object) -> object:
    origin = typing.get_origin(declared) or declared
    if isinstance(origin, type) and isinstance(value, origin):
        return value
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(origin, type) and issubclass(origin, numpy.generic):
        return origin(value)  # saved as the plain number that it is
    raise NotImplementedError(f"a {type(value).__qualname__} where {declared} is declared")


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)


def encode_body(value: object) -> bytes:
    """Encode one value.

    Raises:
        TypeError, ValueError, NotImplementedError, OverflowError, RecursionError: it cannot be encoded.
    """
    return _encoder.encode(value)


def state_decoder(declared: Any) -> "msgspec.msgpack.Decoder[Any]":
    """A decoder for states of one declared type; arrays are writable copies."""
    return msgspec.msgpack.Decoder(declared, ext_hook=_decode_own_extension, dec_hook=_decode_hook)


def message_decoder(declared: Any) -> "msgspec.msgpack.Decoder[Any]":
    """A decoder for messages of one declared type; arrays are read-only views of the received bytes."""
    return msgspec.msgpack.Decoder(declared, ext_hook=_decode_extension, dec_hook=_decode_hook)


def message_name(kind: type) -> str:
    """The name a message type travels under."""
    return kind.__qualname__


_prefixes: dict[type, bytes] = {}


def _prefix_of(kind: type) -> bytes:
    prefix = _prefixes.get(kind)
    if prefix is None:
        name = message_name(kind).encode()
        if len(name) > 255:
            raise EncodingError(f"message type {kind.__qualname__[:40]}…: use a name of at most 255 bytes")
        prefix = _prefixes[kind] = bytes((len(name),)) + name
    return prefix


def encode_message(message: object) -> bytes:
    """Encode a message with its type's name.

    Raises:
        EncodingError: some part of it cannot be encoded; names the type and the field.
        MessageTooLargeError: it is above 16 MiB.
    """
    kind = type(message)
    try:
        payload = _prefix_of(kind) + _encoder.encode(message)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise EncodingError(
            f"message {kind.__qualname__} cannot be encoded: {describe_failure(message, error)}"
        ) from error
    if len(payload) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"message {kind.__qualname__} takes {len(payload):,} bytes, the limit is {MESSAGE_BYTES_MAX:,}: "
            "send it in pieces, or put it into shared storage and send its name"
        )
    return payload


def split_message(payload: bytes) -> tuple[str, memoryview]:
    """Take a payload apart into the type's name and the body."""
    end = 1 + payload[0]
    return payload[1:end].decode(), memoryview(payload)[end:]


def field_names(kind: type) -> list[str]:
    """The fields of a struct or dataclass; none of anything else."""
    return list(getattr(kind, "__struct_fields__", ()) or getattr(kind, "__dataclass_fields__", ()))


def describe_failure(value: object, error: BaseException) -> str:
    """Say which field of a struct or dataclass cannot be encoded, and why."""
    for name in field_names(type(value)):
        try:
            _encoder.encode(getattr(value, name))
        except Exception as cause:
            return f"field {name!r} holds {_why(cause)}"
    return _why(error)


def _why(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, RecursionError):
        text = "a structure that contains itself"
    return text


def plain(value: object) -> object:
    """Decode bytes of unknown type for people to read: structs become dicts, arrays a short description."""
    return msgspec.msgpack.decode(value, ext_hook=_describe_extension) if isinstance(value, bytes) else value


def _describe_extension(code: int, data: memoryview) -> object:
    if code != ARRAY_EXTENSION:
        return f"<extension {code}, {len(data)} bytes>"
    dtype, shape, body = array_parts(data)
    return {"dtype": dtype, "shape": list(shape), "values": _preview(dtype, body)}


def _preview(dtype: str, body: memoryview, most: int = 8) -> object:
    """The first values of an array of a plain number type, read without NumPy."""
    formats = {
        "i1": "b",
        "u1": "B",
        "i2": "h",
        "u2": "H",
        "i4": "i",
        "u4": "I",
        "i8": "q",
        "u8": "Q",
        "f4": "f",
        "f8": "d",
    }
    letter = formats.get(dtype.lstrip("<|="))
    if letter is None:
        return f"<{len(body)} bytes>"
    count = len(body) // struct.calcsize(letter)
    values: list[object] = list(struct.unpack_from(f"<{min(count, most)}{letter}", body))
    return values if count <= most else [*values, "…"]
