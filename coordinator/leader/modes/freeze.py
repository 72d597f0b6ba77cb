"""Freezing: the hosts start no more turns and take checkpoints of their agents' live states.

Autonomous fleets freeze for two reasons:

- Before a plan, so that surviving states are in the store and the plan's line has the survivors at their live states
  (protocols.md, section 6).
- When the sender logs exceed their limit while the line does not advance: a cut of live states ends the domino effect.

A host that answers has made its checkpoints durable, and has reported them earlier on the same stream. `running` names agents inside a
long turn: they count as failed, and so do all agents of a host that does not answer in time. The request is idempotent; the plan or
ThawAgents ends the freeze.

A host sends AgentsFrozen once, and either message may be lost with its stream or the leader. So every new stream begins with the present
state: FreezeAgents, or ThawAgents for any freeze of any leader. If a plan is needed, neither is sent: the plan ends the freeze, and
agents that stay frozen until then lose nothing.
"""

import msgspec

from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.hosts.partitions import StandbyHosts
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.messages.host_messages import AgentsFrozen, FreezeAgents, ThawAgents

FREEZE_NS = 5 * SECOND_NS
"""Time for a host to answer, from the request on its stream. Agents whose turn takes longer than a second are left out; the rest of the
time is for the disk."""

ANY_FREEZE = 0
"""Number in a ThawAgents that ends any freeze. Numbers of freezes begin at 1."""


class Freeze(msgspec.Struct, frozen=True):
    """Request to the hosts of a plan to freeze.

    Attributes:
        number: number of the freeze.
        asked_ns: session → time of the request.
        answers: session → answer. A host that reconnects is asked again, since a deposed leader that does not know it yet may have
            thawed it.
    """

    plan: int
    number: int
    asked_ns: dict[int, int] = {}
    answers: dict[int, AgentsFrozen] = {}


class Freezing:
    """The present freeze. Volatile."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, standby_hosts: StandbyHosts) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._standby_hosts = standby_hosts
        self._freeze: Freeze | None = None
        self._latest = 0
        """Number of the latest known freeze."""

    def ask(self) -> bool:
        """Freeze the hosts of the current plan; return whether each attached host has answered or exceeded FREEZE_NS."""
        plan, freeze = self._shared.state.plan, self._freeze
        assert plan is not None, "a freeze without a plan"
        if freeze is None or freeze.plan != plan.number:
            # Numbers must differ from those of earlier leaders: now_ns advances with each operation, and frozen hosts report their number.
            self._latest = max(self._latest + 1, self._shared.state.image.now_ns)
            freeze = self._freeze = Freeze(plan.number, self._latest)
            self._shared.send(self._host_sessions.sessions_of(plan.hosts), FreezeAgents(freeze.plan, freeze.number))
        return not [host for host in plan.hosts if self._is_awaited_host(host, freeze)]

    def _is_awaited_host(self, host: str, freeze: Freeze) -> bool:
        session = self._host_sessions.attached_session(host)
        if session is None or session.id in freeze.answers or self._standby_hosts.is_evicted(host):
            return False
        return self._shared.now < freeze.asked_ns.setdefault(session.id, self._shared.now) + FREEZE_NS

    def on_frozen(self, session: HostSession, message: AgentsFrozen) -> None:
        """Take the answer of a frozen host."""
        self._latest = max(self._latest, message.number)
        freeze = self._freeze
        is_asked = freeze is not None and (message.plan, message.number) == (freeze.plan, freeze.number)
        if freeze is not None and is_asked and message.host_start == session.start:
            freeze.answers[session.id] = message

    def has_checkpointed_live_state(self, host: str, agent: str) -> bool:
        """Return whether the live state of `agent` is its newest checkpoint, as its host reported."""
        session = self._host_sessions.attached_session(host)
        if session is None or self._freeze is None:
            return False
        answer = self._freeze.answers.get(session.id)
        return answer is not None and agent not in answer.running

    def thaw(self) -> None:
        """End the freeze: the agents continue."""
        freeze, self._freeze = self._freeze, None
        if freeze is not None and freeze.plan == self._shared.state.plan_number:
            self._shared.send(self._host_sessions.all_sessions(), ThawAgents(freeze.plan, freeze.number))

    def directives_for(self, host: str) -> list[FreezeAgents | ThawAgents]:
        """Return the directives for a host that has just reconnected."""
        state, plan, freeze = self._shared.state, self._shared.state.plan, self._freeze
        if plan is None or host not in plan.hosts:
            return []
        if freeze is not None and freeze.plan == plan.number:
            return [FreezeAgents(freeze.plan, freeze.number)]
        return [] if state.image.need is not None else [ThawAgents(plan.number, ANY_FREEZE)]

    def evaluate(self) -> None:
        """Drop a freeze that a new plan has ended."""
        if self._freeze is not None and self._freeze.plan != self._shared.state.plan_number:
            self._freeze = None
