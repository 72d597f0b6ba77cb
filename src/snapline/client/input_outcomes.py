"""Inputs of a program, validated with their time-outs, and the outcome of a send or an ask: a receipt, a reply or an error."""

import secrets
import sys
from contextvars import ContextVar
from typing import Any

import msgspec

from snapline.agent_runtime.message_encoding import MessageReader, Traceparent, encode_message, with_tail
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.client import events as ev
from snapline.errors import (
    AgentMissingError,
    AnswerMissingError,
    EncodingError,
    FleetEndedError,
    HandlerNotPublicError,
    InputDeadLetteredError,
    InputRefusedError,
    InputRejectedError,
    InputUnknownError,
    MessageTooLargeError,
    SnaplineError,
    SnapshotAbortedError,
    UsageError,
)
from snapline.ids import check_id
from snapline.messages.answers import document_of
from snapline.messages.client_requests import KEY_CHARACTERS_MAX, AskOutcome, GivenInput
from snapline.messages.status import SnapshotOutcome


class Receipt(msgspec.Struct, frozen=True):
    """An input that is durable in the fleet's log: its agent consumes it once, despite any crash or rollback.

    Attributes:
        number: its number, 1, 2, 3 …, among the inputs of its agent, which consumes them in this order.
        key: its idempotency key, unique among the inputs of its agent.
        is_repeated: it had been accepted before, under this number.
    """

    agent: str
    number: int
    key: str
    is_repeated: bool = False


class Reply(msgspec.Struct, frozen=True):
    """Answer of an agent to an input.

    Attributes:
        number: number of the input, among those of its agent.
        message: `{"type": its type's name, "fields": plain values}`, or an instance of the class that the caller gave; None: the turn gave no
            answer, or the answer is too old to be stored.
        is_early: the answer was requested as soon as its turn had ended: a recovery may undo that turn, and the answer may then differ.
        key: key of the input.
    """

    agent: str
    number: int
    message: Any
    is_early: bool
    key: str


class ReplyReader:
    """Decodes the message of a reply. `kind`: its class; None: plain values."""

    def __init__(self, kind: Any) -> None:
        self._reader = MessageReader(kind, "reply_type", "the answer")

    def read(self, outcome: AskOutcome) -> object:
        """Return the message.

        Raises:
            EncodingError: the message is of another type.
        """
        return self._reader.read(outcome.type, outcome.body) if outcome.type else None


def snapshot_of(outcome: SnapshotOutcome) -> dict[str, object]:
    """Return the document of a requested snapshot; raise SnapshotAbortedError if there is none."""
    if not outcome.is_complete:
        which = f"epoch {outcome.epoch} was aborted" if outcome.epoch else "no snapshot was taken"
        raise SnapshotAbortedError(f"{which}: {outcome.reason}")
    return document_of(outcome)


def answer_error(said: ev.FinishAsk, receipt: Receipt) -> SnaplineError:
    """Return the error that explains why there is no reply."""
    accepted_text = f"it was taken as input {receipt.number} of agent {receipt.agent} under key {receipt.key}"
    error: InputDeadLetteredError | AnswerMissingError
    if said.ending == ev.BURIED:
        error = InputDeadLetteredError(
            f"{accepted_text}, and became a dead letter: `snapline agent dead-letters list` shows the error, in the next snapshot; "
            "after `… retry` the same key gets the answer"
        )
    elif said.ending == ev.LATE:
        error = AnswerMissingError(
            f"{accepted_text}, and its answer did not come in time ({said.reason}): ask again with the same key"
        )
    else:
        error = AnswerMissingError(f"{accepted_text}, and its answer cannot be heard: {said.reason}")
    error.agent, error.key, error.number = receipt.agent, receipt.key, receipt.number
    return error


def ending_of(said: ev.FinishSend, agent: str, key: str) -> Receipt | SnaplineError:
    """Return the result for the program."""
    if said.ending == ev.TAKEN:
        return Receipt(agent, said.number, key, said.is_repeated)
    error = _error_of(said.ending, said.reason, agent, key)
    if isinstance(error, _ABOUT_INPUTS):
        error.agent, error.key = agent, key
    return error


_ABOUT_INPUTS = (AgentMissingError, FleetEndedError, InputRejectedError, InputRefusedError, InputUnknownError)


def _error_of(ending: str, reason: str, agent: str, key: str) -> SnaplineError:
    match ending:
        case ev.REFUSED:
            return InputRefusedError(reason)
        case ev.NOT_PUBLIC:
            return HandlerNotPublicError(reason)
        case ev.MISSING:
            return AgentMissingError(reason)
        case ev.ENDED:
            return FleetEndedError(reason)
        case ev.DENIED:
            return UsageError(reason)
        case ev.NOT_TAKEN:
            return InputRejectedError(f"the input with key {key} for agent {agent} was not taken in time: {reason}")
        case _:
            return InputUnknownError(
                f"the input with key {key} for agent {agent} may have been taken, or may be yet ({reason}): "
                "give it again with the same key"
            )


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
