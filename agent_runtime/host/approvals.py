"""The part of the host core that decides what becomes of people's answers to approvals (`Context.approval`).

A durable turn waits for an approval as for a message. Of several answers, and the expiry, the first one in the mailbox decides. Answers are
inputs, so they come again after a recovery, perhaps before the turn has come to its question. Such an answer is kept in the agent's state
until the question is asked. Decisions are remembered, so that later answers learn who has decided.
"""

from collections.abc import Iterator

import msgspec

from snapline.agent_runtime.durable import approval_id, read_approval
from snapline.agent_runtime.host.entries import CommandEntry, Entry, StashedEntry, key_of, sender_of
from snapline.agent_runtime.host.host_state import DurableTurn, LocalAgent
from snapline.messages import client_requests
from snapline.messages.approvals import (
    DECIDED,
    KEPT,
    TAKEN,
    AnswerOutcome,
    ApprovalAnswer,
    decision_text,
    is_approval_answer,
    outcome_payload,
    read_approval_answer,
)
from snapline.messages.client_requests import REFUSED, InputOutcome
from snapline.storage.packs.checkpoint import ApprovalDecision, JournalEntry, SavedApprovals, StashedMessage

KEPT_MAX = DECISIONS_MAX = 100
"""Largest numbers of answers that an agent keeps until its turn asks, and of decisions that it remembers."""


def open_approvals(turn: DurableTurn) -> Iterator[tuple[str, int, JournalEntry]]:
    """Yield the approvals for which the turn waits: id, place in the journal, and request. The result of the request contains the
    details."""
    for place, request in turn.open_requests():
        if request.kind == "approval":
            yield id_of(turn, place, request), place, request


def id_of(turn: DurableTurn, place: int, request: JournalEntry) -> str:
    """Return the id of the approval that the turn requests at this place."""
    return approval_id(turn.seed, place, request.digest)


def answer_in(entry: Entry | StashedMessage) -> ApprovalAnswer | None:
    """Return the answer that the entry contains, or None if it contains none."""
    if not isinstance(entry, CommandEntry | StashedEntry | StashedMessage) or not is_approval_answer(entry.payload):
        return None
    return read_approval_answer(entry.payload)


def result_of(answer: ApprovalAnswer) -> bytes:
    """Return the result of an approval with this answer for the turn's journal."""
    return msgspec.msgpack.encode((answer.is_granted, answer.note))


def reply_to_taken() -> bytes:
    """Return the reply to the author of an answer that a turn has taken."""
    return outcome_payload(AnswerOutcome(TAKEN))


def decide(agent: LocalAgent, decision: ApprovalDecision) -> None:
    """Remember a decision."""
    before = agent.approvals or SavedApprovals()
    decided = [*[each for each in before.decided if each.id != decision.id], decision]
    agent.approvals = SavedApprovals(before.kept, decided[-DECISIONS_MAX:])


def take_kept(agent: LocalAgent, approval: str) -> StashedMessage | None:
    """Remove and return the first kept answer to an approval."""
    before = agent.approvals
    if before is None:
        return None
    for index, kept in enumerate(before.kept):
        answer = answer_in(kept)
        if answer is not None and answer.id == approval:
            agent.approvals = SavedApprovals([*before.kept[:index], *before.kept[index + 1 :]], before.decided)
            return kept
    return None


def settled(agent: LocalAgent, entry: Entry) -> bytes:
    """Handle an answer for which no turn waits, and return the reply to its author. The answer is kept unless the approval is decided."""
    answer = answer_in(entry)
    assert answer is not None, "the caller has looked"
    decision = _decision(agent, answer.id)
    if decision is not None:
        return outcome_payload(AnswerOutcome(DECIDED, decision))
    before = agent.approvals or SavedApprovals()
    kept = [*before.kept, StashedMessage(sender_of(agent, entry), entry.payload, key_of(entry))]
    agent.approvals = SavedApprovals(kept[-KEPT_MAX:], before.decided)
    return outcome_payload(AnswerOutcome(KEPT))


def refusal_of(agent: LocalAgent, payload: bytes) -> InputOutcome | None:
    """Return the refusal of an answer to an approval that is decided or that the agent does not request. Return None if a turn waits for
    the answer."""
    answer, turn = read_approval_answer(payload), agent.turn
    shown = f"approval {answer.id} of agent {agent.id!r}"
    if turn is not None and any(approval == answer.id for approval, _, _ in open_approvals(turn)):
        return None
    decision = _decision(agent, answer.id)
    if decision is not None:
        return InputOutcome(REFUSED, reason=f"{shown} is decided already: {decision_text(decision)}")
    if turn is not None and not turn.is_live and not turn.problem:
        return InputOutcome(client_requests.RETRY, reason=f"agent {agent.id} runs its turn again")
    return InputOutcome(REFUSED, reason=f"nobody waits for {shown}: see `snapline approval list`")


def _decision(agent: LocalAgent, approval: str) -> ApprovalDecision | None:
    decided = agent.approvals.decided if agent.approvals is not None else []
    return next((each for each in decided if each.id == approval), None)


def of_entry(approval: str, entry: JournalEntry) -> ApprovalDecision:
    """Return the decision in the journal entry of an approval that has not expired."""
    answer = read_approval(entry)
    return ApprovalDecision(approval, answer.is_granted, answer.by)


def of_answer(answer: ApprovalAnswer, sender: str) -> ApprovalDecision:
    """Return the decision that an answer makes. `sender` is "@" followed by the name of its author."""
    return ApprovalDecision(answer.id, answer.is_granted, sender.removeprefix("@"))
