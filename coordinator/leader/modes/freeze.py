"""Freezing: the hosts start no more turns and take checkpoints of their agents' live states.

Autonomous fleets freeze for two reasons. Before a plan, so that surviving states are in the store and the line of the plan is the
line "survivors at their live state" (protocols.md, section 6). And when the sender logs have outgrown their limit while the
line does not advance: a cut of live states ends the domino.

A host that answers has made its checkpoints durable and reported them before, on the same stream. `running` names agents in
the middle of a long turn: they count as failed, and so do all agents of a host that does not answer in time. Asking is
idempotent, and ends with the plan or with ThawAgents.

A host sends AgentsFrozen once, and either message may be lost with its stream, or with the leader. So every new stream begins with
the present state: FreezeAgents, or ThawAgents for any freeze that the host is in, of any leader. Unless a plan is
needed: it ends the freeze, and agents that are frozen until then lose nothing.
"""

import msgspec

from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.hosts.standby_hosts import StandbyHosts
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.messages.host_messages import AgentsFrozen, FreezeAgents, ThawAgents

FREEZE_NS = 5 * SECOND_NS
"""Time for a host to answer, from the request on its stream. Agents end long turns within one second or are left out; the rest is
for the disk."""

ANY_FREEZE = 0
"""Number in a ThawAgents that ends any freeze. Numbers of freezes begin at 1."""


class Freeze(msgspec.Struct, frozen=True):
    """Request to the hosts of a plan to freeze.

    Attributes:
        number: of the freeze.
        asked_ns: session → when it was asked.
        answers: by session: a host that comes back is asked again, since a leader that does not know that it was deposed may
            have thawed it.
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
        """Number of the latest freeze that is known."""

    def ask(self) -> bool:
        """Freeze the hosts of the current plan; return whether all that are there have answered, or had time to."""
        plan, freeze = self._shared.state.plan, self._freeze
        assert plan is not None, "a freeze without a plan"
        if freeze is None or freeze.plan != plan.number:
            # Numbers must differ from those of earlier leaders: each operation moves now_ns, and who is frozen tells.
            self._latest = max(self._latest + 1, self._shared.state.image.now_ns)
            freeze = self._freeze = Freeze(plan.number, self._latest)
            self._shared.send(self._host_sessions.sessions_of(plan.hosts), FreezeAgents(freeze.plan, freeze.number))
        return not [host for host in plan.hosts if self._is_waited_for(host, freeze)]

    def _is_waited_for(self, host: str, freeze: Freeze) -> bool:
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

    def has_kept(self, host: str, agent: str) -> bool:
        """Return whether the live state of `agent` is its newest checkpoint, as its host reported."""
        session = self._host_sessions.attached_session(host)
        if session is None or self._freeze is None:
            return False
        answer = self._freeze.answers.get(session.id)
        return answer is not None and agent not in answer.running

    def thaw(self) -> None:
        """End the freeze: the agents go on."""
        freeze, self._freeze = self._freeze, None
        if freeze is not None and freeze.plan == self._shared.state.plan_number:
            self._shared.send(self._host_sessions.all_sessions(), ThawAgents(freeze.plan, freeze.number))

    def directives_for(self, host: str) -> list[FreezeAgents | ThawAgents]:
        """Return the directives for a host that has just come back."""
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
