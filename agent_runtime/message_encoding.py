"""Encodes messages and states as MessagePack with msgspec. NumPy arrays and some other types are encoded as extension types.

A message on a channel consists of the name of its type and its body: `length of name (1 byte) | name | MessagePack`. `ctx.send` encodes a
message immediately, so the sender may change its objects afterwards. Decoding runs no code from the message, because pickle is not used.
Programs outside the fleet decode messages either to plain values or to objects of a given class.

The extension types are defined in `storage/capture/values.py`. A message is encoded as a single record. A checkpoint, in contrast, stores
large arrays and histories outside the state's record (`storage/capture/encoder.py`).

*Trace references.* Only a message that belongs to a sampled trace contains a trace reference. The reference is a *tail* after the name of
the message's type: `name | "@" | W3C traceparent (55 characters) | further turns to trace (two hexadecimal digits)`. The reference stays
with the message wherever the message is stored: in channel states, logs, outboxes, timers, inputs and dead letters. The tail of a call is
inside the wrapped message. The tail of a creation message follows the agent's kind. A reply has no tail, because the turn that waits for
the reply is already part of the trace. This module does not depend on OpenTelemetry.

A tail is ASCII text, so code that does not know about tails simply reads a longer name. Other code that reads payloads must treat two
messages as equal if they differ only in their tails (`without_tail`).
"""

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import msgspec.inspect

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.errors import EncodingError, MessageTooLargeError, UsageError
from snapline.messages.payloads import CALL, CALL_ID_BYTES, CREATE, MARK, REPLY, TAIL_BYTES, split_message
from snapline.storage.capture.declared_values import check_declared, survives_round_trip
from snapline.storage.capture.decoder import StateDecoder
from snapline.storage.capture.values import decode_declared, decode_own_value, decode_value, encode_value
from snapline.storage.disk.record import Buffer
from snapline.storage.outputs.output_record import matches_topic

if TYPE_CHECKING:
    from snapline.storage.outputs.output_files import OutputBatch, RevertedEpochs

_encoder = msgspec.msgpack.Encoder(enc_hook=encode_value)
_ordered = msgspec.msgpack.Encoder(enc_hook=encode_value, order="deterministic")


def encode_body(value: object) -> bytes:
    """Encode one value, without a type name.

    Raises:
        TypeError, ValueError, NotImplementedError, OverflowError, RecursionError: If the value cannot be encoded.
    """
    return _encoder.encode(value)


def encode_ordered(value: object) -> bytes:
    """Encode one value deterministically. Equal sets, and equal dictionaries whose order differs, are encoded to the same bytes in every
    process.

    The bytes may still depend on the order if a set's members cannot be sorted or a dictionary's keys are not text.

    Raises:
        TypeError, ValueError, NotImplementedError, OverflowError, RecursionError: If the value cannot be encoded.
    """
    try:
        return _ordered.encode(value)
    except TypeError:
        return _encoder.encode(value)


@functools.cache
def has_one_order(declared: Any) -> bool:
    """Return whether `encode_body` encodes equal values of this type to the same bytes in every process.

    The result is False for types that may contain sets, and for all custom types other than arrays.
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
    """Return a decoder for states of one declared type. Decoded arrays are writable copies."""
    return StateDecoder(declared, allow_pickle=allow_pickle)


def message_decoder(declared: Any) -> "msgspec.msgpack.Decoder[Any]":
    """Return a decoder for messages of one declared type. Decoded arrays are read-only views of the received bytes."""
    return msgspec.msgpack.Decoder(declared, ext_hook=decode_value, dec_hook=decode_declared)


def result_decoder(declared: Any) -> "msgspec.msgpack.Decoder[Any]":
    """Return a decoder for a function's result that is stored in a journal. Decoded arrays are writable copies, as if the function had just
    returned them."""
    return msgspec.msgpack.Decoder(declared, ext_hook=decode_own_value, dec_hook=decode_declared)


def message_name(kind: type) -> str:
    """Return the name that identifies a message type in encoded messages."""
    return kind.__qualname__


NAME_BYTES_MAX = 255
"""Largest size of a message type's name, whose length is encoded in one byte."""


def message_head(name: str) -> bytes:
    """Return the first bytes of every encoded message with this type name.

    Raises:
        EncodingError: If the name is too long.
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
        EncodingError: If any part of the message cannot be encoded. The error names the type and the field.
        MessageTooLargeError: If the message is larger than 16 MiB.
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
    """Return the field names of a struct or dataclass, or an empty list for any other type."""
    return list(getattr(kind, "__struct_fields__", ()) or getattr(kind, "__dataclass_fields__", ()))


def describe_failure(value: object, error: BaseException) -> str:
    """Return the reason why a value cannot be encoded. For a struct or dataclass, the text names the first field that cannot be encoded."""
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


class MessageReader:
    """Decodes messages for client programs.

    `kind` is the class of the decoded messages. If `kind` is None, a message is decoded to `{"type": its name, "fields": plain values}`. If
    `kind` is msgspec.Raw, the fields stay encoded as MessagePack. Error messages use `option` for the class and `what` for the message.
    """

    def __init__(self, kind: Any, option: str, what: str) -> None:
        try:
            self._decoder = message_decoder(Any if kind is None else kind)
        except (TypeError, NameError) as error:
            raise UsageError(f"{option} {kind!r} is none that a message can have: {error}") from error
        self._name = message_name(kind) if isinstance(kind, type) and kind is not msgspec.Raw else ""
        self._option, self._what = option, what

    def read(self, name: str, body: Buffer) -> object:
        """Decode a message whose type has this name.

        Raises:
            EncodingError: If the message's type is not `kind`, or the message cannot be decoded.
        """
        if self._name and name != self._name:
            raise EncodingError(f"{self._what} is a {name}, and {self._option} says {self._name}")
        try:
            message: object = self._decoder.decode(body)
        except Exception as error:  # the message's own classes may raise anything
            raise EncodingError(f"{self._what}, a {name}, cannot be read: {error}") from error
        return message if self._name else {"type": name, "fields": message}


class Output(msgspec.Struct, frozen=True):
    """A released output that an agent emitted with `ctx.emit`. A complete snapshot contains the turn that emitted it, so no failure reverts
    the output.

    Attributes:
        number: sequence number of the output among all outputs of its agent, counted from 1.
        topic: topic that the agent passed to `ctx.emit`.
        message: `{"type": name of its type, "fields": plain values}`, or an object of the caller's class.
        cursor: position from which a reader resumes after this output.
        epoch: number of the snapshot with which the output was released.
        emitted_ns: wall-clock time at which the agent emitted the output, in nanoseconds since 1970.
    """

    agent: str
    number: int
    topic: str
    message: Any
    cursor: str
    epoch: int
    emitted_ns: int = 0


class OutputsReverted(msgspec.Struct, frozen=True):
    """A rollback of the fleet to an earlier snapshot, either requested or because later snapshots were lost. Outputs released after that
    snapshot are discarded.

    Attributes:
        after: number of the epoch to which the fleet returned. Every output of a later epoch is reverted.
        epochs: numbers of the reverted epochs whose outputs are still stored, in ascending order.
        cursor: position from which a reader resumes in order to read the outputs that replace the reverted outputs.
    """

    after: int
    epochs: tuple[int, ...]
    cursor: str


def read_batch(batch: "OutputBatch", topic: str, reader: MessageReader) -> Iterator[Output | OutputsReverted]:
    """Yield a batch's reverted epochs, if any, and then the batch's outputs under `topic`, or all its outputs if `topic` is empty. Raise
    EncodingError if a message cannot be decoded."""
    if batch.undone is not None:
        yield undone_of(batch.undone, str(batch.cursor(0)))
    for index, output in enumerate(batch.outputs):
        if matches_topic(output.topic, topic):
            name, body = split_message(output.payload)
            message, cursor = reader.read(name, body), str(batch.cursor(index + 1))
            yield Output(output.agent, output.number, output.topic, message, cursor, batch.epoch, output.emitted_ns)


def undone_of(undone: "RevertedEpochs", cursor: str) -> OutputsReverted:
    """Convert a store's record of reverted epochs to the form that client programs receive."""
    return OutputsReverted(undone.after, undone.epochs, cursor)


HOPS_MAX = 255
"""Largest number of successive turns in a trace. Traces must be limited, since agents may send messages in cycles."""

TAILED_NAME_BYTES_MAX, TAILED_KIND_BYTES_MAX = 255, 0xFFFF
"""Largest sizes of a name and of a kind, including the tail. The length of a name is encoded in one byte, and the length of a kind in two.
If the tail does not fit, the trace ends."""

_CALL_BYTES = len(CALL) + CALL_ID_BYTES
_SAMPLED = 1

_TAIL = re.compile(rb"@00-([0-9a-f]{32})-([0-9a-f]{16})-01([0-9a-f]{2})")
_HEADER = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class Traceparent(NamedTuple):
    """Reference to the span that sent a message, and the number of further turns to trace."""

    trace: int
    span: int
    hops: int = HOPS_MAX

    def tail(self) -> bytes:
        """Return the tail to add to a payload, or b"" if no further turns must be traced."""
        return b"@00-%032x-%016x-01%02x" % self if self.hops > 0 else b""


def read_tail(tail: bytes) -> Traceparent | None:
    """Parse a tail. Return None if `tail` is malformed."""
    match = _TAIL.fullmatch(tail)
    return None if match is None else _valid(int(match[1], 16), int(match[2], 16), int(match[3], 16))


def read_header(header: str) -> Traceparent | None:
    """Parse a W3C `traceparent` header. Return None if the header is malformed or its trace is not sampled."""
    match = _HEADER.fullmatch(header.strip())
    if match is None or not int(match[3], 16) & _SAMPLED:
        return None
    return _valid(int(match[1], 16), int(match[2], 16), HOPS_MAX)


def _valid(trace: int, span: int, hops: int) -> Traceparent | None:
    return Traceparent(trace, span, hops) if trace and span else None


class _Name(NamedTuple):
    """The position of the type name in a payload or, in a creation message, of the agent's kind. The name's length is in the `width` bytes
    before `start`."""

    start: int
    end: int
    width: int

    def has_tail(self, payload: bytes) -> bool:
        return self.end - self.start >= TAIL_BYTES and payload.startswith(MARK, self.end - TAIL_BYTES)

    def changed(self, payload: bytes, name: bytes) -> bytes:
        """Return the payload with the name at this position replaced by the given name."""
        length = len(name).to_bytes(self.width, "big")
        return b"".join((payload[: self.start - self.width], length, name, payload[self.end :]))


def _name_in(payload: bytes) -> _Name:
    offset = _CALL_BYTES if payload.startswith(CALL) else 0
    width = 2 if payload.startswith(CREATE, offset) else 1
    start = offset + (3 if width == 2 else 1)
    return _Name(start, start + int.from_bytes(payload[start - width : start], "big"), width)


def tail_of(payload: bytes) -> bytes:
    """Return the tail of a message, call or creation message, or b"" if the message is not traced."""
    if not payload:
        return b""
    name = _name_in(payload)
    return payload[name.end - TAIL_BYTES : name.end] if name.has_tail(payload) else b""


def with_tail(payload: bytes, tail: bytes) -> bytes:
    """Return the message with this tail added. Return the message unchanged if it already has a tail, is a reply, or would become too
    large."""
    if not payload or payload.startswith(REPLY):
        return payload
    name = _name_in(payload)
    size = name.end - name.start + len(tail)
    is_room = size <= (TAILED_NAME_BYTES_MAX if name.width == 1 else TAILED_KIND_BYTES_MAX)
    if not is_room or len(payload) + len(tail) > MESSAGE_BYTES_MAX or name.has_tail(payload):
        return payload
    return name.changed(payload, payload[name.start : name.end] + tail)


def without_tail(payload: bytes) -> bytes:
    """Return the message without its tail. A message without a tail is returned unchanged."""
    name = _name_in(payload)
    return name.changed(payload, payload[name.start : name.end - TAIL_BYTES]) if name.has_tail(payload) else payload


def is_of_type(payload: bytes, name: str) -> bool:
    """Return whether the message has the type `name`, with or without a tail."""
    size, known = payload[0], name.encode()
    return payload.startswith(known, 1) and (
        size == len(known) or (size == len(known) + TAIL_BYTES and payload.startswith(MARK, 1 + len(known)))
    )
