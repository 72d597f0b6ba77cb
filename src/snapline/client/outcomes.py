"""Outcome of a send or an ask for the program: a receipt, a reply or an error."""

from typing import Any

import msgspec

from snapline.agent_runtime.message_encoding import MessageReader
from snapline.client import events as ev
from snapline.errors import (
    AgentMissingError,
    AnswerMissingError,
    FleetEndedError,
    HandlerNotPublicError,
    InputDeadLetteredError,
    InputRefusedError,
    InputRejectedError,
    InputUnknownError,
    SnaplineError,
    SnapshotAbortedError,
    UsageError,
)
from snapline.messages.documents import document_of
from snapline.messages.inputs import AskOutcome
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
