"""The client's part of approvals: collect the open ones from all hosts, and send people's answers."""

import secrets

from snapline.client import client_events as ev
from snapline.client.host_calls import HostCalls, ask_every_host
from snapline.client.operator_commands import CommandSender, WaitForAnswer
from snapline.client.sends_and_asks import Receipt
from snapline.errors import InputUnknownError, UsageError
from snapline.messages.approvals import (
    DECIDED,
    AnswerOutcome,
    ApprovalAnswer,
    OpenApproval,
    approval_answer_payload,
    decision_text,
    read_outcome,
)
from snapline.messages.client_requests import APPROVALS, REFUSED, GivenInput, Question
from snapline.messages.coordinator_client import CoordinatorClient


async def open_approvals(coordinator: CoordinatorClient, hosts: HostCalls) -> list[OpenApproval]:
    """Return the approvals for which agents wait, oldest first. Hosts that do not answer are skipped."""
    replies = await ask_every_host(coordinator, hosts, lambda _: Question("", APPROVALS), list[OpenApproval])
    found = [approval for of_host in replies.values() for approval in of_host or ()]
    return sorted(found, key=lambda each: (-each.asked_s, each.id))


async def answer(
    sender: CommandSender, agent: str, answer: ApprovalAnswer, deadline_s: float, wait_for_answer: WaitForAnswer
) -> str:
    """Send an answer, and wait until no recovery can undo what has become of it. Return "taken" or "kept". Raises the errors of
    `CommandSender.give`.

    Raises:
        UsageError: Nobody waits for the approval, or it was decided before.
        InputUnknownError: The outcome did not arrive in time.
    """
    key = f"approval-{secrets.token_hex(12)}"
    (offered,) = await sender.give([GivenInput(agent, key, approval_answer_payload(answer))], deadline_s)
    if offered.status == REFUSED:
        raise UsageError(offered.reason)
    ending = await wait_for_answer(Receipt(agent, offered.number, key), deadline_s)
    if ending.ending != ev.ANSWERED or ending.outcome is None or ending.outcome.type:
        raise late(agent, ending.reason)
    outcome: AnswerOutcome = read_outcome(ending.outcome.body)
    if outcome.status == DECIDED and outcome.decision is not None:
        decided = decision_text(outcome.decision)
        raise UsageError(f"approval {answer.id} of agent {agent!r} is decided already: {decided}")
    return outcome.status


def late(agent: str, reason: str) -> InputUnknownError:
    """Return the error for an answer whose outcome is still unknown at the deadline."""
    error = InputUnknownError(
        f"whether agent {agent!r} has taken the answer, or will, is not known ({reason}): `snapline approval list` shows "
        "whether it still waits; answering again does no harm"
    )
    error.agent = agent
    return error
