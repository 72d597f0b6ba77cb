"""Going back on purpose: who has asked for it, and what came of it.

One restore at a time is wanted. `plans.py` makes its plan as any other, but from the epoch that was asked for, and commits it together
with the marks that make later epochs void (`state/restore.py`). A request bears a token of its client: asked again, of this leader or
of the next one, it is the same restore, and its plan in the log is the answer. A leader that dies before that entry has done nothing.
"""

import msgspec

from snapline.coordinator.leader.events import AnswerRestore, RestoreRequested
from snapline.coordinator.leader.leader_state import SECOND_NS, Desk
from snapline.coordinator.state.restore import refusal_of_restore
from snapline.messages.concerns import Concern

REFUSE_NS = 60 * SECOND_NS
"""For the plan to be committed: hosts that were lost are waited for some seconds, a store that cannot be read longer. An operator's
word is not carried out when he has gone home."""

SHOWN_NS = SECOND_NS


class WantedRestore(msgspec.Struct, frozen=True):
    """The one that is wanted. `agent`, `place`: of `ctx.rollback`."""

    token: str
    epoch: int
    reason: str
    drop_inputs: bool
    asked_ns: int
    agent: str = ""
    place: str = ""


class Restores:
    """Who waits. Volatile, but for the plan.

    Attributes:
        wanted: until its plan is committed, or cannot be.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.wanted: WantedRestore | None = None
        self._requests: list[int] = []
        """Those that wait for what is wanted."""
        self._refused: dict[str, str] = {}
        """Token of an agent's → why it is not done."""

    def on_requested(self, event: RestoreRequested) -> None:
        """An operator wants it, perhaps again."""
        wanted = self.wanted
        if wanted is None:
            self.wanted = WantedRestore(event.token, event.epoch, event.reason, event.drop_inputs, self._desk.now)
        elif wanted.token != event.token:
            refused = f"the fleet is about to go back to epoch {wanted.epoch}: ask again when it has"
            self._desk.out.append(AnswerRestore(event.request, refused=refused, may_pass=True))
            return
        self._requests.append(event.request)

    def want(self, wanted: WantedRestore) -> None:
        """An agent's (`rollbacks.py`), when nothing else is wanted."""
        assert self.wanted is None, self.wanted
        self.wanted = wanted

    def withdraw(self, token: str) -> None:
        """The life of the agent that wanted it is over."""
        self._refused.pop(token, None)
        if self.wanted is not None and self.wanted.token == token:
            self.wanted = None

    def take_refusal(self, token: str) -> str:
        """Why an agent's is not done, once; "" while it may be."""
        return self._refused.pop(token, "")

    def evaluate(self) -> None:
        """Answer what is done, and what cannot be."""
        wanted, state = self.wanted, self._desk.state
        if wanted is None:
            return
        plan = state.plan_asked_for(wanted.token)
        if plan is not None:
            self._answer(plan.number, "")
        elif state.image.outcome:
            self._answer(0, "the fleet has ended: make a new one of that snapshot")
        elif state.plan is None:
            self._answer(0, "the fleet has not begun: there is nothing to go back to")
        elif refusal := refusal_of_restore(state.image, wanted.epoch):
            self._answer(0, refusal)
        elif self._desk.now >= wanted.asked_ns + REFUSE_NS and not self._desk.is_on_its_way("plan"):
            waited_s = REFUSE_NS // SECOND_NS
            refused = f"no plan could be made for {waited_s} s: `snapline status` says what the fleet waits for"
            self._answer(0, refused, may_pass=True)

    def _answer(self, plan: int, refused: str, *, may_pass: bool = False) -> None:
        wanted, requests = self.wanted, self._requests
        self.wanted, self._requests = None, []
        if wanted is not None and wanted.agent and refused and not may_pass:
            self._refused[wanted.token] = refused
        for request in requests:
            self._desk.out.append(AnswerRestore(request, plan, refused, may_pass))

    def concerns(self) -> list[Concern]:
        """What waits."""
        wanted = self.wanted
        lasts_ns = 0 if wanted is None else self._desk.now - wanted.asked_ns
        if wanted is None or lasts_ns < SHOWN_NS:
            return []
        text = f"the fleet is to go back to epoch {wanted.epoch}, and no plan could be made for {lasts_ns / 1e9:.1f} s"
        return [Concern("restore", (), lasts_ns, text)]
