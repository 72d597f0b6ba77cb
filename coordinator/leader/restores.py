"""Restores, by which operators return the fleet to an epoch, and rollbacks, which agents request by `ctx.rollback`.

*Restores.* One restore at a time is active. `recovery_plans.py` makes the plan for a restore like any other plan, but from the requested
epoch. The plan is committed together with the marks that make later epochs void (`state/lineage.py`). The client's token identifies the
request. If the client repeats the request, to this leader or the next, it is the same restore, and the plan in the log is the answer. A
leader that dies before it has written that log entry has changed nothing.

*Rollbacks.* Each rollback request becomes a restore. A second rollback for the same reason is refused until an operator intervenes. The
requesting agent waits and loses nothing: its turn had no effect, and its message is kept. The agent's host repeats the request on every new
stream, so the request survives a leader's death. A request belongs to one incarnation of its agent. The next plan, whatever its reason,
ends both that incarnation and the request: the turn runs again, and may make the request again.

Agents that were rolled back do not remember the reason, so the log keeps it. Earlier requests count as long as their plans are kept.
Requests before an operator's last restore do not count, because the operator has seen them.
"""

import msgspec

from snapline.coordinator.leader.events import AnswerRestore, ResolveSnapshot, RestoreRequested, SnapshotResolved
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.lineage import refusal_of_restore
from snapline.messages.host_messages import RollbackRefused, WantRollback
from snapline.messages.status import Concern

REFUSE_NS = 60 * SECOND_NS
"""Time limit, in nanoseconds, for the plan to be made. Waiting for lost hosts takes seconds; waiting for an unreadable store takes longer.
An operator's request must not be executed long after it was made."""

SHOWN_NS = SECOND_NS


class RestoreDemand(msgspec.Struct, frozen=True):
    """The active restore. `agent` and `place` are the caller and the code location of `ctx.rollback`; both are empty for an operator's
    restore."""

    token: str
    epoch: int
    reason: str
    drop_inputs: bool
    asked_ns: int
    agent: str = ""
    place: str = ""


class Restores:
    """The active restore and the requests that wait for it. This state is volatile, except for the committed plan.

    Attributes:
        wanted: the active restore, until its plan is committed or refused.
    """

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self.wanted: RestoreDemand | None = None
        self._requests: list[int] = []
        """Requests that wait for the active restore, by number."""
        self._refused: dict[str, str] = {}
        """Token of an agent's restore → the reason why the restore was refused."""

    def on_requested(self, event: RestoreRequested) -> None:
        """Handle an operator's request to restore an epoch; the operator may repeat it."""
        wanted = self.wanted
        if wanted is None:
            self.wanted = RestoreDemand(event.token, event.epoch, event.reason, event.drop_inputs, self._shared.now)
        elif wanted.token != event.token:
            refused = f"the fleet is about to go back to epoch {wanted.epoch}: ask again when it has"
            self._shared.out.append(AnswerRestore(event.request, refused=refused, may_pass=True))
            return
        self._requests.append(event.request)

    def want(self, wanted: RestoreDemand) -> None:
        """Start an agent's restore, which `Rollbacks` requests. No other restore may be active."""
        assert self.wanted is None, self.wanted
        self.wanted = wanted

    def withdraw(self, token: str) -> None:
        """Drop a restore whose requester, an incarnation of an agent, has ended."""
        self._refused.pop(token, None)
        if self.wanted is not None and self.wanted.token == token:
            self.wanted = None

    def take_refusal(self, token: str) -> str:
        """Remove and return the reason why an agent's restore was refused, or "" if it was not refused."""
        return self._refused.pop(token, "")

    def evaluate(self) -> None:
        """Answer the requests of the active restore if it is done or impossible."""
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
        """Return a concern if the active restore has waited for SHOWN_NS or longer."""
        wanted = self.wanted
        lasts_ns = 0 if wanted is None else self._shared.now - wanted.asked_ns
        if wanted is None or lasts_ns < SHOWN_NS:
            return []
        text = f"the fleet is to go back to epoch {wanted.epoch}, and no plan could be made for {lasts_ns / 1e9:.1f} s"
        return [Concern("restore", (), lasts_ns, text)]


LAST = "last"


class RollbackDemand(msgspec.Struct):
    """A rollback request of one incarnation of an agent.

    Attributes:
        said: the host's message with the request.
        epoch: the epoch to restore; 0 until it is known.
        refused: why the request was refused, for operators; "" if it was not refused.
        received_ns: time when this leader first received the request.
    """

    said: WantRollback
    received_ns: int
    epoch: int = 0
    refused: str = ""

    @property
    def token(self) -> str:
        """Return the token of the restore. The token is the same for each repetition of the request."""
        return f"{self.said.agent}@{self.said.incarnation}"

    @property
    def reason(self) -> str:
        """Return the reason for the plan. The reason is the same for a repeated request from the same code location."""
        return op.clip(f"agent {self.said.agent} asked to go back, at {self.said.place}: {self.said.reason}")


class Rollbacks:
    """Open rollback requests. This state need not be durable, because hosts repeat the requests."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, restores: Restores) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._restores = restores
        self._demands: dict[str, RollbackDemand] = {}

    def on_wanted(self, session: HostSession, message: WantRollback) -> None:
        """Handle the rollback request of a turn; the host may repeat the request."""
        record = self._shared.state.image.agents.get(message.agent)
        if record is None or record.host != session.host or not self._is_current(message):
            return
        earlier = self._demands.get(message.agent)
        if earlier is None or earlier.said.incarnation != message.incarnation:
            self._demands[message.agent] = demand = RollbackDemand(message, self._shared.now)
            if message.snapshot != LAST:
                self._shared.out.append(ResolveSnapshot(message.snapshot))
            self._shared.note("warning", demand.reason)
        elif earlier.refused:
            self._send_refusal(earlier)

    def on_resolved(self, event: SnapshotResolved) -> None:
        """Record the epoch to restore, or refuse the request if there is no such epoch."""
        for demand in self._demands.values():
            if demand.said.snapshot == event.snapshot and not demand.refused:
                demand.epoch = event.epoch
                if event.error:
                    self._refuse(demand, event.error)

    def evaluate(self) -> None:
        """Start one restore at a time, and drop requests whose incarnation or fleet has ended."""
        for agent, demand in list(self._demands.items()):
            if not self._is_current(demand.said) or self._shared.state.image.outcome:
                del self._demands[agent]
                self._restores.withdraw(demand.token)
            elif not demand.refused:
                self._start_restore(demand)

    def _is_current(self, said: WantRollback) -> bool:
        record = self._shared.state.image.agents.get(said.agent)
        return record is not None and record.left_plan is None and record.incarnation == said.incarnation

    def _start_restore(self, demand: RollbackDemand) -> None:
        refused = self._restores.take_refusal(demand.token)
        refused = refused or self._shared.state.refusal_of_rollback(demand.said.agent, demand.reason)
        if refused:
            self._refuse(demand, refused)
            return
        epoch = demand.epoch or (self._shared.state.newest_complete() if demand.said.snapshot == LAST else 0)
        if demand.said.snapshot == LAST and not epoch:
            self._refuse(demand, "no snapshot is complete yet")
        elif epoch and self._restores.wanted is None:
            request = demand.said
            self._restores.want(
                RestoreDemand(
                    demand.token,
                    epoch,
                    demand.reason,
                    False,
                    self._shared.now,
                    agent=request.agent,
                    place=op.clip(request.place),
                )
            )

    def _refuse(self, demand: RollbackDemand, why: str) -> None:
        demand.refused = f"{demand.reason}. The fleet does not go back: {why}. The agent stands"
        self._shared.note("error", demand.refused)
        self._send_refusal(demand)

    def _send_refusal(self, demand: RollbackDemand) -> None:
        request = demand.said
        session = self._host_sessions.attached_session(self._shared.state.image.agents[request.agent].host)
        if session is not None:
            self._shared.send((session.id,), RollbackRefused(request.agent, request.incarnation, demand.refused))

    def concerns(self) -> list[Concern]:
        """Return a concern for each agent whose request was refused and which waits for an operator."""
        now, refused = self._shared.now, [x for x in self._demands.values() if x.refused]
        return [Concern("rollback", (), now - x.received_ns, x.refused, (x.said.agent,)) for x in refused]
