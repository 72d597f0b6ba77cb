"""Messages and states as bytes: MessagePack by msgspec, with NumPy arrays and some others as extension types.

A message on a channel is its type's name and its body: `length of name (1 byte) | name | MessagePack`. A message of a sampled trace has a tail after
the name (`traceparents.py`). `ctx.send` encodes at once, so the sender may change its objects afterwards. Decoding runs no code: there is no pickle.

The extensions are those of `storage/capture/values.py`. All of a message is in one record; `storage/capture/encoder.py` handles what a checkpoint
keeps next to a state's record (large arrays, histories).
"""

import functools
from typing import Any

import msgspec
import msgspec.inspect

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.errors import EncodingError, MessageTooLargeError
from snapline.storage.capture.declared_values import check_declared, survives_round_trip
from snapline.storage.capture.decoder import StateDecoder
from snapline.storage.capture.values import (
    decode_declared,
    decode_own_value,
    decode_value,
    encode_value,
)

encode_hook = encode_value
"""Encodes types that msgspec cannot encode, such as NumPy arrays. Uses NumPy only if it is already imported."""


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_ordered = msgspec.msgpack.Encoder(enc_hook=encode_hook, order="deterministic")


def encode_body(value: object) -> bytes:
    """Encode one value.

    Raises:
        TypeError, ValueError, NotImplementedError, OverflowError, RecursionError: it cannot be encoded.
    """
    return _encoder.encode(value)


def encode_ordered(value: object) -> bytes:
    """Encode one value deterministically: equal sets, whose order differs between processes, and equal dictionaries in another order give the same
    bytes.

    Not for sets whose members cannot be ordered, or with keys that are not text.

    Raises:
        TypeError, ValueError, NotImplementedError, OverflowError, RecursionError: it cannot be encoded.
    """
    try:
        return _ordered.encode(value)
    except TypeError:
        return _encoder.encode(value)


@functools.cache
def has_one_order(declared: Any) -> bool:
    """Return whether equal values of this type are encoded to the same bytes in every process, which requires that they contain no sets.

    The content of custom types is unknown, except for arrays.
    """
    try:
        waiting: list[object] = [msgspec.inspect.type_info(declared)]
    except Exception:  # evaluating an annotation may raise anything
        return False
    seen: list[object] = []
    while waiting:
        item = waiting.pop()
        if isinstance(item, _UNORDERED) or (isinstance(item, msgspec.inspect.CustomType) and not _is_array(item.cls)):
            return False
        if isinstance(item, msgspec.inspect.Type | msgspec.inspect.Field) and not any(
            item is seen_item for seen_item in seen
        ):
            seen.append(item)
            for name in item.__struct_fields__:
                inner = getattr(item, name)
                waiting.extend(inner if isinstance(inner, tuple) else (inner,))
    return True


_UNORDERED = (msgspec.inspect.SetType, msgspec.inspect.FrozenSetType, msgspec.inspect.AnyType)


def _is_array(kind: type) -> bool:
    return (kind.__module__, kind.__qualname__) == ("numpy", "ndarray")


def state_decoder(declared: Any, *, allow_pickle: bool = False) -> StateDecoder:
    """Return a decoder for states of one declared type; arrays are writable copies."""
    return StateDecoder(declared, allow_pickle=allow_pickle)


def message_decoder(declared: Any) -> "msgspec.msgpack.Decoder[Any]":
    """Return a decoder for messages of one declared type; arrays are read-only views of the received bytes."""
    return msgspec.msgpack.Decoder(declared, ext_hook=decode_value, dec_hook=decode_declared)


def result_decoder(declared: Any) -> "msgspec.msgpack.Decoder[Any]":
    """Return a decoder for a function's result: its arrays are the caller's own, as if it had not been in a journal."""
    return msgspec.msgpack.Decoder(declared, ext_hook=decode_own_value, dec_hook=decode_declared)


def message_name(kind: type) -> str:
    """Return the name a message type travels under."""
    return kind.__qualname__


NAME_BYTES_MAX = 255
"""Largest size of a message type's name: one byte before the name holds its length."""


def message_head(name: str) -> bytes:
    """Return the first bytes of every encoded message of that name.

    Raises:
        EncodingError: the name is too long.
    """
    encoded = name.encode()
    if len(encoded) > NAME_BYTES_MAX:
        raise EncodingError(f"message type {name[:40]}…: use a name of at most {NAME_BYTES_MAX} bytes")
    return bytes((len(encoded),)) + encoded


@functools.cache
def _head_of(kind: type) -> bytes:
    return message_head(message_name(kind))


def encode_message(message: object) -> bytes:
    """Encode a message with its type's name.

    Raises:
        EncodingError: some part of it cannot be encoded; names the type and the field.
        MessageTooLargeError: the message is larger than 16 MiB.
    """
    kind: Any = type(message)  # mypy assumes that some classes are not hashable
    try:
        payload = _head_of(kind) + _encoder.encode(message)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise EncodingError(
            f"message {kind.__qualname__} cannot be encoded: {describe_failure(message, error)}"
        ) from error
    if not survives_round_trip(message, kind):
        check_declared(message, kind, f"message {kind.__qualname__}")
    if len(payload) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"message {kind.__qualname__} takes {len(payload):,} bytes, the limit is {MESSAGE_BYTES_MAX:,}: "
            "send it in pieces, or put it into shared storage and send its name"
        )
    return payload


def field_names(kind: type) -> list[str]:
    """Return the fields of a struct or dataclass; none of anything else."""
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
