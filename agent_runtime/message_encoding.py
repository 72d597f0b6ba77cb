"""Encodes messages and states: MessagePack by msgspec, with NumPy arrays and some other types as extension types.

A message on a channel is its type's name and its body: `length of name (1 byte) | name | MessagePack`. `ctx.send` encodes at once, so the
sender may change its objects afterwards. Decoding runs no code of the message, since no pickle is used. Programs outside the fleet read
messages as plain values, or as objects of a class that they pass.

The extensions are those of `storage/capture/values.py`. All of a message is in one record; `storage/capture/encoder.py` handles what a checkpoint
keeps next to a state's record (large arrays, histories).

*Trace references.* Only messages of sampled traces have a reference; the bytes of other messages do not change. The name of a traced
message has a *tail*:

    name | "@" | W3C traceparent, 55 characters | further turns to trace, two hexadecimal digits

So the reference is part of the message wherever the message is kept: in channel states, logs, outboxes, timers, inputs and dead letters.
The tail of a call is in the wrapped message; the tail of a creation follows its kind. A reply has no tail, since the turn that waits for it
is already in the trace. This module does not depend on OpenTelemetry.

A tail is ASCII: code that does not know tails reads a longer name. Other code that reads a payload must not depend on the tail: two messages that
differ only in their tails are equal (`without_tail`).
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
    """Encode one value.

    Raises:
        TypeError, ValueError, NotImplementedError, OverflowError, RecursionError: If the value cannot be encoded.
    """
    return _encoder.encode(value)


def encode_ordered(value: object) -> bytes:
    """Encode one value deterministically. Equal sets give the same bytes, although their order differs between processes, and so do equal
    dictionaries in another order.

    The function does not support sets whose members cannot be ordered, or keys that are not text.

    Raises:
        TypeError, ValueError, NotImplementedError, OverflowError, RecursionError: If the value cannot be encoded.
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
    """Return a decoder for a function's result: its arrays belong to the caller, as if the result had not been in a journal."""
    return msgspec.msgpack.Decoder(declared, ext_hook=decode_own_value, dec_hook=decode_declared)


def message_name(kind: type) -> str:
    """Return the name that identifies a message type in encoded messages."""
    return kind.__qualname__


NAME_BYTES_MAX = 255
"""Largest size of a message type's name: one byte before the name holds its length."""


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
        EncodingError: If some part of the message cannot be encoded. The error names the type and the field.
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
    """Return the field names of a struct or dataclass; no names for other values."""
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


class MessageReader:
    """Decoder of messages for client programs.

    `kind`: class of the messages; None: `{"type": its name, "fields": plain values}`; msgspec.Raw: the same with MessagePack as fields.
    Errors call the class `option` and a message `what`, the caller's names for them.
    """

    def __init__(self, kind: Any, option: str, what: str) -> None:
        try:
            self._decoder = message_decoder(Any if kind is None else kind)
        except (TypeError, NameError) as error:
            raise UsageError(f"{option} {kind!r} is none that a message can have: {error}") from error
        self._name = message_name(kind) if isinstance(kind, type) and kind is not msgspec.Raw else ""
        self._option, self._what = option, what

    def read(self, name: str, body: Buffer) -> object:
        """Return the message of the type `name`.

        Raises:
            EncodingError: If the message is of another type.
        """
        if self._name and name != self._name:
            raise EncodingError(f"{self._what} is a {name}, and {self._option} says {self._name}")
        try:
            message: object = self._decoder.decode(body)
        except Exception as error:  # the message's own classes may raise anything
            raise EncodingError(f"{self._what}, a {name}, cannot be read: {error}") from error
        return message if self._name else {"type": name, "fields": message}


class Output(msgspec.Struct, frozen=True):
    """An output that an agent has sent to the outside (`ctx.emit`). A complete snapshot contains the output's turn, so no failure reverts
    the output.

    Attributes:
        number: number among the outputs of its agent, from 1.
        topic: topic given by the agent.
        message: `{"type": its type's name, "fields": plain values}`, or an object of the caller's class.
        cursor: position to resume reading after this output.
        epoch: number of the snapshot with which the output was released.
        emitted_ns: wall-clock time since 1970.
    """

    agent: str
    number: int
    topic: str
    message: Any
    cursor: str
    epoch: int
    emitted_ns: int = 0


class OutputsReverted(msgspec.Struct, frozen=True):
    """A return of the fleet to an earlier snapshot, on purpose or because later ones were lost. Outputs released after that snapshot are
    discarded.

    Attributes:
        after: every output of a later epoch than this is reverted.
        epochs: the reverted epochs, ascending, as far as their outputs are still kept.
        cursor: position to resume reading, with the outputs that replace the reverted ones.
    """

    after: int
    epochs: tuple[int, ...]
    cursor: str


def read_batch(batch: "OutputBatch", topic: str, reader: MessageReader) -> Iterator[Output | OutputsReverted]:
    """Yield a batch's contents for a program: undone epochs, then the outputs of `topic`, or of all topics if `topic` is empty.
    EncodingError."""
    if batch.undone is not None:
        yield undone_of(batch.undone, str(batch.cursor(0)))
    for index, output in enumerate(batch.outputs):
        if matches_topic(output.topic, topic):
            name, body = split_message(output.payload)
            message, cursor = reader.read(name, body), str(batch.cursor(index + 1))
            yield Output(output.agent, output.number, output.topic, message, cursor, batch.epoch, output.emitted_ns)


def undone_of(undone: "RevertedEpochs", cursor: str) -> OutputsReverted:
    """Return the reverted epochs in the form for programs."""
    return OutputsReverted(undone.after, undone.epochs, cursor)


HOPS_MAX = 255
"""Largest number of successive turns in a trace. Fleets may send messages in cycles, and nobody reads longer traces."""

TAILED_NAME_BYTES_MAX, TAILED_KIND_BYTES_MAX = 255, 0xFFFF
"""Largest sizes with the tail: the length of a name has one byte, the length of a kind two. If the tail does not fit, the trace ends."""

_CALL_BYTES = len(CALL) + CALL_ID_BYTES
_SAMPLED = 1

_TAIL = re.compile(rb"@00-([0-9a-f]{32})-([0-9a-f]{16})-01([0-9a-f]{2})")
_HEADER = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class Traceparent(NamedTuple):
    """The span that a message comes from, and the number of further turns to trace."""

    trace: int
    span: int
    hops: int = HOPS_MAX

    def tail(self) -> bytes:
        """Return the tail for a payload; b"" where the trace ends."""
        return b"@00-%032x-%016x-01%02x" % self if self.hops > 0 else b""


def read_tail(tail: bytes) -> Traceparent | None:
    """Parse a tail; return None if the text is not a tail."""
    match = _TAIL.fullmatch(tail)
    return None if match is None else _valid(int(match[1], 16), int(match[2], 16), int(match[3], 16))


def read_header(header: str) -> Traceparent | None:
    """Parse a W3C `traceparent` header; return None if it is malformed or its trace is not sampled."""
    match = _HEADER.fullmatch(header.strip())
    if match is None or not int(match[3], 16) & _SAMPLED:
        return None
    return _valid(int(match[1], 16), int(match[2], 16), HOPS_MAX)


def _valid(trace: int, span: int, hops: int) -> Traceparent | None:
    return Traceparent(trace, span, hops) if trace and span else None


class _Name(NamedTuple):
    """Place of the name of a message's type, or of the kind of a creation; its length is in the `width` bytes before `start`."""

    start: int
    end: int
    width: int

    def has_tail(self, payload: bytes) -> bool:
        return self.end - self.start >= TAIL_BYTES and payload.startswith(MARK, self.end - TAIL_BYTES)

    def changed(self, payload: bytes, name: bytes) -> bytes:
        """Return the payload with this name in its place."""
        length = len(name).to_bytes(self.width, "big")
        return b"".join((payload[: self.start - self.width], length, name, payload[self.end :]))


def _name_in(payload: bytes) -> _Name:
    offset = _CALL_BYTES if payload.startswith(CALL) else 0
    width = 2 if payload.startswith(CREATE, offset) else 1
    start = offset + (3 if width == 2 else 1)
    return _Name(start, start + int.from_bytes(payload[start - width : start], "big"), width)


def tail_of(payload: bytes) -> bytes:
    """Return the tail of this message, call or creation; b"" if it is not traced."""
    if not payload:
        return b""
    name = _name_in(payload)
    return payload[name.end - TAIL_BYTES : name.end] if name.has_tail(payload) else b""


def with_tail(payload: bytes, tail: bytes) -> bytes:
    """Return the message with this tail; unchanged if it already has a tail, cannot have one, or has no room."""
    if not payload or payload.startswith(REPLY):
        return payload
    name = _name_in(payload)
    size = name.end - name.start + len(tail)
    is_room = size <= (TAILED_NAME_BYTES_MAX if name.width == 1 else TAILED_KIND_BYTES_MAX)
    if not is_room or len(payload) + len(tail) > MESSAGE_BYTES_MAX or name.has_tail(payload):
        return payload
    return name.changed(payload, payload[name.start : name.end] + tail)


def without_tail(payload: bytes) -> bytes:
    """Return the message without its tail."""
    name = _name_in(payload)
    return name.changed(payload, payload[name.start : name.end - TAIL_BYTES]) if name.has_tail(payload) else payload


def is_of_type(payload: bytes, name: str) -> bool:
    """Return whether this is a message of that type, traced or not."""
    size, known = payload[0], name.encode()
    return payload.startswith(known, 1) and (
        size == len(known) or (size == len(known) + TAIL_BYTES and payload.startswith(MARK, 1 + len(known)))
    )
