"""Values that durable turns get back from their journals: results of steps, and messages."""

import functools
import typing
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from snapline.agent_runtime.durable import FAILED
from snapline.agent_runtime.encoding import (
    describe_failure,
    encode_body,
    encode_ordered,
    message_decoder,
    message_name,
    result_decoder,
)
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.errors import EncodingError, MessageTooLargeError, StepFailedError
from snapline.messages.effect_records import TEXT_CHARACTERS_MAX, readable
from snapline.messages.payloads import split_message
from snapline.storage.capture.declared_values import check_declared
from snapline.storage.packs.checkpoint import JournalEntry

_T = TypeVar("_T")

REASON_CHARACTERS_MAX = 1000
"""Largest number of characters of an error's text. The text is in the journal, and so in checkpoints."""

_CANNOT = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError)


ARGUMENT_DIGEST_BYTES = 8


def argument_digest(step: str, arguments: object) -> bytes:
    """Return a digest of the arguments, independent of the order of sets; "" for no arguments.

    Raises:
        EncodingError: they cannot be encoded.
    """
    try:
        return blake2b(encode_ordered(arguments), digest_size=ARGUMENT_DIGEST_BYTES).digest() if arguments else b""
    except _CANNOT as error:
        reason = describe_failure(arguments, error)
        raise EncodingError(
            f"the arguments of step {step!r} cannot be kept in the journal ({reason}): give it plain values, and make of them "
            "what it needs inside"
        ) from error


def encode_argument(effect: str, value: object, declared: Any = Any) -> bytes:
    """Encode an argument of a compensation for storage; it will be decoded as `declared`.

    Raises:
        EncodingError: the argument cannot be encoded, or would decode to another value.
    """
    try:
        encoded = encode_ordered(value)
    except _CANNOT as error:
        raise EncodingError(
            f"an argument of the compensation of effect {effect!r} cannot be kept ({describe_failure(value, error)}): give it plain values"
        ) from error
    check_declared(value, declared, f"an argument of the compensation of effect {effect!r}")
    return encoded


def describe_result(result: bytes, *, is_done: bool) -> str:
    """Describe the result of an effect, for display."""
    try:
        value = message_decoder(Any).decode(result)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return f"<{len(result)} bytes>"
    return readable(value) if is_done else ": ".join([str(part) for part in value])[:TEXT_CHARACTERS_MAX]


def encode_result(
    step: str, value: object, function: Callable[..., Any] | None = None, *, is_effect: bool = False
) -> bytes:
    """Encode a step's result for the journal; `function` declares the result's type. An effect's result may lose its type if undeclared.

    Raises:
        EncodingError: the result cannot be encoded, or would decode to another value.
        MessageTooLargeError: the result is larger than 16 MiB.
    """
    try:
        result = encode_body(value)
    except _CANNOT as error:
        reason = describe_failure(value, error)
        raise EncodingError(
            f"step {step!r} returned what the journal cannot keep ({reason}): return plain values"
        ) from error
    declared = returned_by(function)
    # The effect itself has succeeded, and the handler sees only the journal's copy of an undeclared result.
    if not is_effect or declared is not Any:
        check_declared(value, declared, f"the result of step {step!r}")
    if len(result) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"step {step!r} returned {len(result):,} bytes, the limit is {MESSAGE_BYTES_MAX:,}: put it into shared storage and "
            "return its name"
        )
    return result


def encode_error(error: BaseException) -> bytes:
    """Encode the error that a step has raised."""
    try:
        reason = str(error)
    except Exception:  # of the error's own class
        reason = "it does not say why"
    return encode_body([type(error).__name__, reason[:REASON_CHARACTERS_MAX].encode(errors="replace").decode()])


def read_result(step: str, entry: JournalEntry, function: Callable[..., Any]) -> Any:  # the function's own result
    """Return the step's result by the journal.

    Raises:
        StepFailedError: the step raised.
        EncodingError: the result is not what the function declares to return.
    """
    if entry.outcome == FAILED:
        name, reason = msgspec.msgpack.decode(entry.result, type=tuple[str, str])
        raise StepFailedError(f"step {step!r} failed: {name}: {reason}", step=step, error=name, reason=reason)
    try:
        return result_decoder(returned_by(function)).decode(entry.result)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise EncodingError(
            f"the result of step {step!r} is not what {function!r} declares to return: {error}"
        ) from error


def returned_by(function: Callable[..., Any] | None) -> Any:  # any annotation
    """Return the declared return type of a function; Any without a declaration."""
    inner = function.func if isinstance(function, functools.partial) else function
    if inner is None:
        return Any
    try:
        return _hint_of(inner)
    except TypeError:  # not hashable
        return Any


@functools.lru_cache(maxsize=1024)
def _hint_of(function: Callable[..., Any]) -> Any:  # any annotation
    try:
        declared = typing.get_type_hints(function).get("return", Any)
    except Exception:  # evaluating an annotation may raise anything
        return Any
    return Any if isinstance(declared, TypeVar) else declared


@functools.lru_cache(maxsize=1024)
def _decoder_of(kind: Any) -> Any:  # msgspec's decoder of that type
    return message_decoder(kind)


def read_message(payload: bytes, kind: type[_T], what: str) -> _T:
    """Decode a message.

    Raises:
        EncodingError: the message is of another type, or does not decode.
    """
    hashed: Any = kind  # mypy assumes that some classes are not hashable
    name, body = split_message(payload)
    if name != message_name(kind):
        raise EncodingError(f"{what} is a {name!r}, not a {message_name(kind)!r}")
    try:
        message: _T = _decoder_of(hashed).decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise EncodingError(f"{what} is no {name!r} as it is declared here: {error}") from error
    return message
