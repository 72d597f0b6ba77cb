"""Restores: requests to return to an epoch, and their results.

One restore at a time is active. `plans.py` makes its plan like any other, but from the requested epoch, and commits it together with
the marks that make later epochs void (`state/lineage.py`). The client's token identifies the request: if it is repeated, to this leader
or the next one, it is the same restore, and its plan in the log is the answer. A leader that dies before that entry has done nothing.
"""

import msgspec

from snapline.coordinator.leader.events import AnswerRestore, RestoreRequested
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state.lineage import refusal_of_restore
from snapline.messages.concerns import Concern

REFUSE_NS = 60 * SECOND_NS
"""Time limit for the plan: waiting for lost hosts takes seconds, waiting for an unreadable store takes longer. An operator's
request must not be carried out long after it was made."""

SHOWN_NS = SECOND_NS


class RestoreDemand(msgspec.Struct, frozen=True):
    """The active restore. `agent`, `place`: caller and code location of `ctx.rollback`."""

    token: str
    epoch: int
    reason: str
    drop_inputs: bool
    asked_ns: int
    agent: str = ""
    place: str = ""


class Restores:
    """The active restore and its requests. Volatile, except for the plan.

    Attributes:
        wanted: the active restore, until its plan is committed or refused.
    """

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self.wanted: RestoreDemand | None = None
        self._requests: list[int] = []
        """Requests that wait for the active restore."""
        self._refused: dict[str, str] = {}
        """Token of an agent's restore → why it was refused."""

    def on_requested(self, event: RestoreRequested) -> None:
        """Take an operator's request, perhaps a repeated one."""
        wanted = self.wanted
        if wanted is None:
            self.wanted = RestoreDemand(event.token, event.epoch, event.reason, event.drop_inputs, self._shared.now)
        elif wanted.token != event.token:
            refused = f"the fleet is about to go back to epoch {wanted.epoch}: ask again when it has"
            self._shared.out.append(AnswerRestore(event.request, refused=refused, may_pass=True))
            return
        self._requests.append(event.request)

    def want(self, wanted: RestoreDemand) -> None:
        """Start an agent's restore (`rollbacks.py`), when no other is active."""
        assert self.wanted is None, self.wanted
        self.wanted = wanted

    def withdraw(self, token: str) -> None:
        """Drop the restore of an agent's ended incarnation."""
        self._refused.pop(token, None)
        if self.wanted is not None and self.wanted.token == token:
            self.wanted = None

    def take_refusal(self, token: str) -> str:
        """Remove and return the reason why an agent's restore was refused; "": it was not."""
        return self._refused.pop(token, "")

    def evaluate(self) -> None:
        """Answer requests whose restore is done or impossible."""
        wanted, state = self.wanted, self._shared.state
        if wanted is None:
            return
        plan = state.plan_of_request(wanted.token)
        if plan is not None:
            self._answer(plan.number, "")
        elif state.image.outcome:
            self._answer(0, "the fleet has ended: make a new one of that snapshot")
        elif state.plan is None:
            self._answer(0, "the fleet has not begun: there is nothing to go back to")
        elif refusal := refusal_of_restore(state.image, wanted.epoch):
            self._answer(0, refusal)
        elif self._shared.now >= wanted.asked_ns + REFUSE_NS and not self._shared.is_pending("plan"):
            waited_s = REFUSE_NS // SECOND_NS
            refused = f"no plan could be made for {waited_s} s: `snapline status` says what the fleet waits for"
            self._answer(0, refused, may_pass=True)

    def _answer(self, plan: int, refused: str, *, may_pass: bool = False) -> None:
        wanted, requests = self.wanted, self._requests
        self.wanted, self._requests = None, []
        if wanted is not None and wanted.agent and refused and not may_pass:
            self._refused[wanted.token] = refused
        for request in requests:
            self._shared.out.append(AnswerRestore(request, plan, refused, may_pass))

    def concerns(self) -> list[Concern]:
        """Return the active restore if it waits for longer than SHOWN_NS."""
        wanted = self.wanted
        lasts_ns = 0 if wanted is None else self._shared.now - wanted.asked_ns
        if wanted is None or lasts_ns < SHOWN_NS:
            return []
        text = f"the fleet is to go back to epoch {wanted.epoch}, and no plan could be made for {lasts_ns / 1e9:.1f} s"
        return [Concern("restore", (), lasts_ns, text)]
