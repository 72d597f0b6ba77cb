"""Inputs from a program, checked: an input as it goes to a host, a time-out."""

import secrets
import sys
from contextvars import ContextVar
from typing import Any

import msgspec

from snapline.agent_runtime.encoding import encode_message
from snapline.agent_runtime.traceparents import Traceparent, with_tail
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.errors import EncodingError, MessageTooLargeError, UsageError
from snapline.ids import check_id
from snapline.messages.inputs import KEY_CHARACTERS_MAX, GivenInput

TIMEOUT_S_MAX = 86_400.0
"""Longest wait of any call: a day."""

AgentInput = tuple[str, Any] | tuple[str, Any, str | None]
"""An agent, a message for it, and perhaps a key."""


class OutsideMessage(msgspec.Struct, frozen=True):
    """A message as an outside program describes it: its type's name, and its JSON. `public_only`: only a public handler may take it."""

    type: str
    fields: Any
    public_only: bool


def check_timeout(timeout_s: float) -> None:
    """Raise UsageError if it is no valid time-out."""
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise UsageError(f"timeout_s must be above 0, and a day at most, it is {timeout_s!r}")


def input_of(agent: str, message: Any, key: str | None) -> GivenInput:
    """Return an input as it goes to a host.

    Raises:
        UsageError: agent or key are none.
        EncodingError, MessageTooLargeError: the message cannot be sent.
    """
    check_id(agent)
    if key is None:
        key = secrets.token_hex(16)
    elif not isinstance(key, str) or not 0 < len(key) <= KEY_CHARACTERS_MAX:
        raise UsageError(f"{key!r} is no key: use a text of 1 to {KEY_CHARACTERS_MAX} characters")
    if isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], str):
        message = OutsideMessage(*message, public_only=False)
    if isinstance(message, OutsideMessage):
        text, name = _json_of(message.type, message.fields), message.type + current_tail().decode()
        return GivenInput(agent, key, text, name, message.public_only)
    return GivenInput(agent, key, with_tail(encode_message(message), current_tail()))


TOLD: ContextVar[bytes] = ContextVar("snapline_tail", default=b"")
"""The trace that a caller has passed, used where the program itself is in none, as in a gateway."""


def current_tail() -> bytes:
    """Return a message's reference to the program's current trace; b"": none that is sampled.

    OpenTelemetry is asked if the program uses it; it is not loaded for that.
    """
    api = sys.modules.get("opentelemetry.trace")
    found = None if api is None else api.get_current_span().get_span_context()
    if found is None or not found.is_valid:
        return TOLD.get()
    return Traceparent(found.trace_id, found.span_id).tail() if found.trace_flags.sampled else b""


def _json_of(name: str, fields: object) -> bytes:
    try:
        text = msgspec.json.encode(fields)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise EncodingError(f"the fields of {name} cannot be written as JSON: {error}") from error
    if len(text) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(f"the fields of {name} take {len(text):,} bytes, the limit is {MESSAGE_BYTES_MAX:,}")
    return text
