"""Seeded bugs of a client's core that violate its promises to its program (`client/core.py`)."""

import heapq
from collections.abc import Iterable

from msgspec.structs import replace

from snapline.client import client_events
from snapline.client.core import ClientCore, OpenAsks
from snapline.client.queues import AgentQueue, AgentQueues, Entry
from snapline.messages.client_requests import ACCEPTED, REPLIED, RETRY, InputOutcome
from snapline.sim.mutants.registry import Mutant, crash_at, template
from snapline.sim.scenario import ClientsPart
from snapline.sim.world.product_patches import Patch


def retry_counted_as_accepted() -> list[Patch]:
    """Count an input as accepted although the host has asked for a retry."""
    original = ClientCore._on_request_answered

    def on_request_answered(self: ClientCore, event: client_events.RequestAnswered) -> None:
        outcomes = [InputOutcome(ACCEPTED, 1) if each.status == RETRY else each for each in event.outcomes]
        original(self, replace(event, outcomes=tuple(outcomes)))

    return [(ClientCore, "_on_request_answered", on_request_answered)]


def unanswered_requests_ignored() -> list[Patch]:
    """Take a rejection as final although earlier requests for the input are unanswered."""

    def end(self: ClientCore, entry: Entry, ending: str, reason: str) -> None:
        self._over(entry)
        self._out.append(client_events.FinishSend(entry.send, ending, reason))

    return [(ClientCore, "_end", end)]


def order_lost() -> list[Patch]:
    """Queue the undecided inputs of a request behind newer ones."""

    def put_back(self: AgentQueues, queue: AgentQueue, entries: list[Entry]) -> None:
        queue.waiting.extend([entry for entry in entries if not entry.is_over])

    return [(AgentQueues, "put_back", put_back)]


def deadlines_forgotten() -> list[Patch]:
    """Ignore deadlines: a send ends only with its outcome."""

    def expire(self: ClientCore) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._now:
            heapq.heappop(self._deadlines)

    return [(ClientCore, "_expire", expire)]


def answered_upon_retry() -> list[Patch]:
    """Take a pending answer for the answer of a turn that has ended without a reply."""
    original = OpenAsks.on_answer_heard

    def on_answer_heard(
        self: OpenAsks, event: client_events.AnswerHeard, now_ns: int
    ) -> Iterable[client_events.Command]:
        outcome = event.outcome
        status = REPLIED if outcome.status == RETRY else outcome.status
        return original(self, replace(event, outcome=replace(outcome, status=status)), now_ns)

    return [(OpenAsks, "on_answer_heard", on_answer_heard)]


_GIVING = template(
    patterns=("random", "bank"),
    faults=crash_at("500ms", "900ms", "1.3s"),
    clients=ClientsPart(count=3, inputs=60, pause="10ms"),
)

MUTANTS: dict[str, Mutant] = {
    "client-takes-retry-for-taken": Mutant(
        text="a client says that an input was taken which its host did not take just now",
        patches=retry_counted_as_accepted,
        scenario=_GIVING,
        oracle="inputs",
        seed=0,
    ),
    "client-forgets-doubt": Mutant(
        text="a client says that an input was not taken, though an earlier request had no answer",
        patches=unanswered_requests_ignored,
        scenario=_GIVING,
        oracle="inputs",
        seed=1,
    ),
    "client-loses-order": Mutant(
        text="a client gives what was not decided after what has come since",
        patches=order_lost,
        scenario=_GIVING,
        oracle="inputs",
        seed=3,
    ),
    "client-forgets-deadlines": Mutant(
        text="a send ends when there is a word on it, and not at its deadline",
        patches=deadlines_forgotten,
        scenario=_GIVING,
        oracle="inputs",
        seed=0,
    ),
    "client-takes-retry-for-an-answer": Mutant(
        text="a client says that a turn has answered nothing which has not ended",
        patches=answered_upon_retry,
        scenario=_GIVING,
        oracle="answers",
        seed=1,
    ),
}
