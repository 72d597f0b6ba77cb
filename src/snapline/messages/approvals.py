"""Approvals: questions of durable turns that people answer (`Context.approval`), and the answers. This module does no I/O.

The id of an approval is derived from the turn, its place in the turn's journal, and the digest of what people see. So an answer counts only
for the details that its author saw, and only in a history in which the turn asks the same again. An answer is an operator's command to the
agent, which is logged and recovered like an input (`agent_commands.py`).
"""

from typing import Any

import msgspec

from snapline.errors import ProtocolError
from snapline.messages.agent_commands import COMMAND_PREFIX
from snapline.storage.capture.saved_value_formats import plain
from snapline.storage.capture.saved_values import FAILURES
from snapline.storage.packs.checkpoint import ApprovalDecision

APPROVAL_PREFIX = COMMAND_PREFIX + b"approval"
"""Prefix of the payload of an answer to an approval."""

ID_CHARACTERS = 32
"""Length of the id of an approval, in hexadecimal digits."""

NOTE_CHARACTERS_MAX = 1000
"""Largest length of the note in an answer. Checkpoints contain it."""

TAKEN, KEPT, DECIDED = "taken", "kept", "decided"
"""Outcomes of an answer. "taken": the turn goes on with it. "kept": the turn has not come to its question again after a recovery, and
will take the answer then. "decided": another answer or the expiry came first."""


class ApprovalAnswer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An answer to an approval. Who answers is the client of the input."""

    id: str
    is_granted: bool
    note: str = ""


class AnswerOutcome(msgspec.Struct, frozen=True, gc=False):
    """Outcome of an answer: "taken", "kept" or "decided". `decision` is the one that came first if the status is "decided"."""

    status: str
    decision: ApprovalDecision | None = None


class OpenApproval(msgspec.Struct, frozen=True):
    """An approval for which a durable turn waits.

    Attributes:
        title, details: what the agent asks. `details` consists of plain values.
        asked_s: seconds for which the turn has waited on its present host.
        expires_s: seconds until the approval expires, or None if it does not.
    """

    id: str
    agent: str
    host: str
    title: str
    details: Any
    asked_s: float
    expires_s: float | None = None


_answers = msgspec.msgpack.Decoder(ApprovalAnswer)
_outcomes = msgspec.msgpack.Decoder(AnswerOutcome)


def approval_answer_payload(answer: ApprovalAnswer) -> bytes:
    """Encode the answer as the payload of an input."""
    return APPROVAL_PREFIX + msgspec.msgpack.encode(answer)


def is_approval_answer(payload: bytes) -> bool:
    """Return whether the payload is an encoded `ApprovalAnswer`."""
    return payload.startswith(APPROVAL_PREFIX)


def read_approval_answer(payload: bytes) -> ApprovalAnswer:
    """Decode an answer to an approval.

    Raises:
        ProtocolError: If the payload is not an answer, or its note is too long.
    """
    try:
        answer = _answers.decode(payload[len(APPROVAL_PREFIX) :])
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an answer to an approval that cannot be read: {error}") from error
    if not is_approval_answer(payload) or len(answer.id) != ID_CHARACTERS:
        raise ProtocolError(f"an answer to an approval names it by {ID_CHARACTERS} hexadecimal digits")
    if len(answer.note) > NOTE_CHARACTERS_MAX:
        raise ProtocolError(f"a note of {len(answer.note):,} characters; {NOTE_CHARACTERS_MAX:,} are allowed")
    return answer


def outcome_payload(outcome: AnswerOutcome) -> bytes:
    """Encode the outcome as a message of the type "", which no agent's message has."""
    return b"\x00" + msgspec.msgpack.encode(outcome)


def read_outcome(body: bytes) -> AnswerOutcome:
    """Decode the body of an outcome."""
    return _outcomes.decode(body)


def readable_details(encoded: bytes) -> Any:
    """Return the details of an approval as plain values that JSON can contain."""
    try:
        return plain(encoded)
    except FAILURES:
        return f"<{len(encoded)} bytes>"


def decision_text(decision: ApprovalDecision) -> str:
    """Return a decision in words, such as "granted by ada"."""
    if not decision.by:
        return "expired"
    return f"{'granted' if decision.is_granted else 'denied'} by {decision.by}"
