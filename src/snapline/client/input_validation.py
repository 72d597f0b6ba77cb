"""Validation of inputs and time-outs from a program."""

import secrets
import sys
from contextvars import ContextVar
from typing import Any

import msgspec

from snapline.agent_runtime.message_encoding import Traceparent, encode_message, with_tail
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.errors import EncodingError, MessageTooLargeError, UsageError
from snapline.ids import check_id
from snapline.messages.inputs import KEY_CHARACTERS_MAX, GivenInput

TIMEOUT_S_MAX = 86_400.0
"""Largest time-out of any call: one day."""

AgentInput = tuple[str, Any] | tuple[str, Any, str | None]
"""An agent, a message for it, and an optional key."""


class ExternalMessage(msgspec.Struct, frozen=True):
    """A message from an external program: its type's name, and its JSON. `public_only`: only a public handler may accept it."""

    type: str
    fields: Any
    public_only: bool


def check_timeout(timeout_s: float) -> None:
    """Raise UsageError if the time-out is invalid."""
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise UsageError(f"timeout_s must be above 0, and a day at most, it is {timeout_s!r}")


def input_of(agent: str, message: Any, key: str | None) -> GivenInput:
    """Return an input in the form that is sent to a host.

    Raises:
        UsageError: agent or key is invalid.
        EncodingError, MessageTooLargeError: the message cannot be sent.
    """
    check_id(agent)
    if key is None:
        key = secrets.token_hex(16)
    elif not isinstance(key, str) or not 0 < len(key) <= KEY_CHARACTERS_MAX:
        raise UsageError(f"{key!r} is no key: use a text of 1 to {KEY_CHARACTERS_MAX} characters")
    if isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], str):
        message = ExternalMessage(*message, public_only=False)
    if isinstance(message, ExternalMessage):
        text, name = _json_of(message.type, message.fields), message.type + current_tail().decode()
        return GivenInput(agent, key, text, name, message.public_only)
    return GivenInput(agent, key, with_tail(encode_message(message), current_tail()))


CALLER_TRACE: ContextVar[bytes] = ContextVar("snapline_tail", default=b"")
"""Trace context passed by a caller; used if the program itself has no current trace, as in a gateway."""


def current_tail() -> bytes:
    """Return the reference to the program's current trace that is added to a message; b"": no sampled trace.

    It uses OpenTelemetry only if the program has already imported it.
    """
    api = sys.modules.get("opentelemetry.trace")
    span_context = None if api is None else api.get_current_span().get_span_context()
    if span_context is None or not span_context.is_valid:
        return CALLER_TRACE.get()
    return Traceparent(span_context.trace_id, span_context.span_id).tail() if span_context.trace_flags.sampled else b""


def _json_of(name: str, fields: object) -> bytes:
    try:
        text = msgspec.json.encode(fields)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise EncodingError(f"the fields of {name} cannot be written as JSON: {error}") from error
    if len(text) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(f"the fields of {name} take {len(text):,} bytes, the limit is {MESSAGE_BYTES_MAX:,}")
    return text
