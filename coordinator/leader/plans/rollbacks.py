"""Rollback requests of agents (`ctx.rollback`): each becomes a restore, and a second one for the same reason needs an operator.

The requesting agent waits and loses nothing: its turn had no effect, and its message is kept. Its host repeats the request on every new
stream, so requests survive a leader's death. A request belongs to one incarnation of its agent. The next plan, whatever its reason, ends
that incarnation and the request: the turn runs again, and may repeat the request.

Agents that were rolled back do not remember why, so the log does. Earlier requests count as long as their plans are kept, and only since an
operator's last restore, because the operator has seen those before it.
"""

import msgspec

from snapline.coordinator.leader.events import ResolveSnapshot, SnapshotResolved
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.leader.plans.restores import RestoreDemand, Restores
from snapline.coordinator.state import operations as op
from snapline.messages.concerns import Concern
from snapline.messages.host_messages import RollbackRefused, WantRollback

LAST = "last"


class RollbackDemand(msgspec.Struct):
    """Rollback request of one incarnation of an agent.

    Attributes:
        said: the host's message.
        epoch: the target; 0 while it is being looked up.
        refused: why the request was refused, for operators; "": it was not.
        heard_ns: time when this leader first received it.
    """

    said: WantRollback
    received_ns: int
    epoch: int = 0
    refused: str = ""

    @property
    def token(self) -> str:
        """Token of the restore; equal for each repetition."""
        return f"{self.said.agent}@{self.said.incarnation}"

    @property
    def reason(self) -> str:
        """Reason in the plan; equal for a repeated request from the same place."""
        return op.clip(f"agent {self.said.agent} asked to go back, at {self.said.place}: {self.said.reason}")


class Rollbacks:
    """Open rollback requests. Volatile: hosts repeat them."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, restores: Restores) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._restores = restores
        self._demands: dict[str, RollbackDemand] = {}

    def on_wanted(self, session: HostSession, message: WantRollback) -> None:
        """Take a turn's request, perhaps repeated."""
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
        """Take the target epoch, or the reason why there is none."""
        for demand in self._demands.values():
            if demand.said.snapshot == event.snapshot and not demand.refused:
                demand.epoch = event.epoch
                if event.error:
                    self._refuse(demand, event.error)

    def evaluate(self) -> None:
        """Start one restore at a time, and forget requests that are over."""
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
        """Return the agents that wait for an operator."""
        now, wishes = self._shared.now, [x for x in self._demands.values() if x.refused]
        return [Concern("rollback", (), now - x.received_ns, x.refused, (x.said.agent,)) for x in wishes]
