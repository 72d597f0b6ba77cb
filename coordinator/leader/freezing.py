"""Freezing: the hosts start no more turns and make the live states of their agents checkpoints.

Autonomous fleets freeze for two reasons. Before a plan, so that what survives is in the store and the line of the plan is the
line "survivors at their live state" (protocols.md, section 6). And when the sender logs have outgrown their limit while the
line does not advance: a cut of live states ends the domino.

A host that answers has made its checkpoints durable and reported them before, on the same stream. `running` names agents in
the middle of a long turn: they count as failed, and so do all agents of a host that does not answer in time. Asking is
idempotent, and ends with the plan or with ThawAgents.

A host says AgentsFrozen once, and either word may be lost with its stream, or with the leader. So every new stream begins with
what holds now: FreezeAgents, or ThawAgents for whatever freeze the host is in, asked for by whom ever. Unless a plan is
needed: it ends the freeze, and what stands still until then is not lost.
"""

from snapline.conversation.messages import AgentsFrozen, FreezeAgents, ThawAgents
from snapline.coordinator.leader.attendance import Attendance, Session
from snapline.coordinator.leader.desk import SECOND_NS, Desk
from snapline.coordinator.leader.spares import Spares

FREEZE_NS = 5 * SECOND_NS
"""For a host to answer, from when it is asked on its stream. Its agents end long turns within one second or are left out; the rest is for the disk."""

ANY_FREEZE = 0
"""Number of the freeze that a ThawAgents ends: whichever it is. Numbers of freezes begin at 1."""


class Freezing:
    """The freeze on its way. Volatile.

    Attributes:
        number: of the freeze; 0: there is none.
    """

    def __init__(self, desk: Desk, attendance: Attendance, spares: Spares) -> None:
        self._desk = desk
        self._attendance = attendance
        self._spares = spares
        self.number = 0
        self._plan = 0
        self._latest = 0
        self._asked_ns: dict[int, int] = {}
        """Session → when it was asked."""
        self._answers: dict[int, AgentsFrozen] = {}
        """By session: a host that comes back is asked again, since a leader that does not know that it was deposed may have thawed it."""

    def ask(self) -> bool:
        """Freeze the hosts of the current plan; return whether all that are there have answered, or had time to."""
        plan = self._desk.state.plan
        assert plan is not None, "a freeze without a plan"
        if not self.number or self._plan != plan.number:
            # Numbers must differ from those of earlier leaders: each operation moves now_ns, and who is frozen tells.
            self._latest = max(self._latest + 1, self._desk.state.image.now_ns)
            self.number, self._plan, self._answers, self._asked_ns = self._latest, plan.number, {}, {}
            self._desk.send(self._attendance.sessions_of(plan.hosts), FreezeAgents(plan.number, self.number))
        return not [host for host in plan.hosts if self._is_waited_for(host)]

    def _is_waited_for(self, host: str) -> bool:
        session = self._attendance.attached_session(host)
        if session is None or session.id in self._answers or self._spares.is_put_out(host):
            return False
        return self._desk.now < self._asked_ns.setdefault(session.id, self._desk.now) + FREEZE_NS

    def on_frozen(self, session: Session, message: AgentsFrozen) -> None:
        """A host stands still."""
        self._latest = max(self._latest, message.number)
        is_asked = self.number > 0 and (message.plan, message.number) == (self._plan, self.number)
        if is_asked and message.host_start == session.start:
            self._answers[session.id] = message

    def has_kept(self, host: str, agent: str) -> bool:
        """Whether the live state of `agent` is its newest checkpoint, as its host said."""
        session = self._attendance.attached_session(host)
        answer = self._answers.get(session.id) if session is not None else None
        return answer is not None and agent not in answer.running

    def thaw(self) -> None:
        """Let the agents go on."""
        if self.number and self._plan == self._desk.state.plan_number:
            self._desk.send(self._attendance.all_sessions(), ThawAgents(self._plan, self.number))
        self.number, self._answers = 0, {}

    def directives_for(self, host: str) -> list[FreezeAgents | ThawAgents]:
        """What a host that has just come back must hear."""
        state, plan = self._desk.state, self._desk.state.plan
        if plan is None or host not in plan.hosts or not state.is_autonomous:
            return []
        if self.number and self._plan == plan.number:
            return [FreezeAgents(self._plan, self.number)]
        return [] if state.image.need is not None else [ThawAgents(plan.number, ANY_FREEZE)]

    def evaluate(self) -> None:
        """A new plan has ended the freeze."""
        if self.number and self._plan != self._desk.state.plan_number:
            self.number, self._answers = 0, {}
