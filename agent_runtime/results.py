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
"""Largest number of characters of an error's text. It is in the journal, and so in checkpoints."""

_CANNOT = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError)


ARGUMENT_DIGEST_BYTES = 8


def argument_digest(step: str, arguments: object) -> bytes:
    """Return a digest that distinguishes arguments, sets whatever their order; "" for none.

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
    """Encode an argument of a compensation as it is kept, and will be read as `declared`.

    Raises:
        EncodingError: it cannot be, or would come back as another value.
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
    """Describe the result of an effect, for people."""
    try:
        found = message_decoder(Any).decode(result)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return f"<{len(result)} bytes>"
    return readable(found) if is_done else ": ".join([str(each) for each in found])[:TEXT_CHARACTERS_MAX]


def encode_result(
    step: str, value: object, function: Callable[..., Any] | None = None, *, is_effect: bool = False
) -> bytes:
    """Encode a step's result as the journal keeps it; `function`: declares the result's type. That of an effect may lose its type if it is not
    declared.

    Raises:
        EncodingError: it cannot be kept, or would come back as another value.
        MessageTooLargeError: it is above 16 MiB.
    """
    try:
        result = encode_body(value)
    except _CANNOT as error:
        reason = describe_failure(value, error)
        raise EncodingError(
            f"step {step!r} returned what the journal cannot keep ({reason}): return plain values"
        ) from error
    declared = returned_by(function)
    # What was done outside has not failed, and the handler only ever sees the journal's copy of an undeclared result.
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
        StepFailedError: it has none, for it raised.
        EncodingError: it is not what the function declares to return.
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
    except TypeError:  # it cannot be hashed
        return Any


@functools.lru_cache(maxsize=1024)
def _hint_of(function: Callable[..., Any]) -> Any:  # any annotation
    try:
        declared = typing.get_type_hints(function).get("return", Any)
    except Exception:  # whatever evaluating an annotation raises
        return Any
    return Any if isinstance(declared, TypeVar) else declared


@functools.lru_cache(maxsize=1024)
def _decoder_of(kind: Any) -> Any:  # msgspec's decoder of that type
    return message_decoder(kind)


def read_message(payload: bytes, kind: type[_T], what: str) -> _T:
    """Decode a message.

    Raises:
        EncodingError: it is of another type, or does not decode.
    """
    hashed: Any = kind  # mypy thinks that not every class can be
    name, body = split_message(payload)
    if name != message_name(kind):
        raise EncodingError(f"{what} is a {name!r}, not a {message_name(kind)!r}")
    try:
        found: _T = _decoder_of(hashed).decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise EncodingError(f"{what} is no {name!r} as it is declared here: {error}") from error
    return found
