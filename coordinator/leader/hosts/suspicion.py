"""Who is lost: a host is *suspected*, and its loss proposed, when nothing is heard of it for 2 s (more, if hosts have ten thousand agents each);
when its stream has been broken for 1 s, or at once if a peer says in that time that its link broke too; at once when a launcher says that the process
is over, or an operator that it shall be.

A suspicion may be wrong: the loss is then committed all the same, the host joins again under its start, and the plan that follows
makes everything it did meanwhile void.

Deadlines move when this process itself was late: a coordinator that was stopped for ten seconds has heard nobody, and that
is not the hosts' fault.
"""

from snapline.conversation.messages import Leave, PeerSuspected, TurnedAway
from snapline.coordinator.leader.desk import SECOND_NS, Desk
from snapline.coordinator.leader.hosts.attendance import Attached, Attendance, HostSession
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ALIVE, RUNNING, HostRecord

SILENCE_NS = 2 * SECOND_NS
"""Four heartbeats. Only a hung or frozen host is found this way: the streams of dead ones break."""

AGENTS_A_SECOND = 10_000
"""What concerns all of its agents takes a host so long in one piece: for every so many, on average over the plan's hosts, it may be silent for a second more; and for
every so many of the whole fleet while there is a plan to be read, which names them all. A host with a hundred thousand was given up, and told the same plan again, for ever."""

DEFINING_NS = 10 * SECOND_NS
"""For a host that was asked what the fleet is: how large it is nobody knows yet."""

BROKEN_NS = 1 * SECOND_NS
"""A stream that broke is opened again within 50 to 500 ms, if the host lives."""

RESTART_GRACE_NS = 3 * SECOND_NS
"""For hosts that were alive when the leader started: their streams have yet to come back."""

ENDED = "an operator has ended it"


class Suspicion:
    """What speaks against a host. Volatile: a new leader waits for all that the state calls alive."""

    def __init__(self, desk: Desk, attendance: Attendance) -> None:
        self._desk = desk
        self._attendance = attendance
        self._deadlines: dict[str, int] = {}
        """Hosts alive in the state without a session: when they count as lost."""
        self._exits: dict[str, tuple[int, str]] = {}
        self._leaves: dict[str, tuple[int, str]] = {}
        self._peer_suspicions: dict[str, tuple[int, int]] = {}
        """Host → (start, when): a link to that run broke."""

    def on_started(self) -> None:
        """All hosts that are alive in the state get time to come back."""
        for host, record in self._desk.state.image.hosts.items():
            if record.state == ALIVE:
                self._deadlines[host] = self._desk.now + RESTART_GRACE_NS

    def on_peer_suspected(self, message: PeerSuspected) -> None:
        """A link to that host broke. That counts within a second of its stream to us breaking."""
        record = self._desk.state.image.hosts.get(message.host)
        if record is None or record.start != message.host_start:
            return
        if message.host in self._deadlines:
            self._deadlines[message.host] = min(self._deadlines[message.host], self._desk.now)
        else:
            self._peer_suspicions[message.host] = (message.host_start, self._desk.now)

    def on_exit_reported(self, host: str, instance: str, reason: str) -> None:
        """A launcher's word."""
        record = self._desk.state.image.hosts.get(host)
        if record is not None and record.instance == instance and record.state == ALIVE:
            self._exits[host] = (record.start, reason)

    def on_end_requested(self, host: str) -> None:
        """An operator's: it is told, and nothing of it counts whether it hears that or not."""
        record, session = self._desk.state.image.hosts.get(host), self._attendance.session_of(host)
        if record is not None and record.state == ALIVE:
            self._exits[host] = (record.start, ENDED)
        if session is not None:
            self._desk.send((session.id,), TurnedAway(f"host {host}: {ENDED}", True))

    def on_leave(self, session: HostSession, message: Leave) -> None:
        """The host says goodbye."""
        self._leaves[session.host] = (session.start, message.reason)

    def shift(self, late_ns: int) -> None:
        """This process was late by so much: nobody is suspected for that."""
        self._deadlines = {host: deadline + late_ns for host, deadline in self._deadlines.items()}

    def evaluate(self) -> None:
        """Propose losses."""
        if not self._desk.state.image.outcome:
            self._propose_losses()

    def _propose_losses(self) -> None:
        leaving: list[op.LostHost] = []
        lost: list[op.LostHost] = []
        reasons: list[str] = []
        for host, record in self._desk.state.image.hosts.items():
            if record.state != ALIVE:
                for known in (self._deadlines, self._leaves, self._exits):
                    known.pop(host, None)
                continue
            if self._leaves.get(host, (0, ""))[0] == record.start:
                leaving.append(op.LostHost(host, record.start))
                continue
            reason = self._suspicion_of(host, record)
            if reason:
                lost.append(op.LostHost(host, record.start))
                reasons.append(f"host {host}: {reason}")
        if leaving and self._desk.propose("leave", op.LoseHosts(tuple(leaving), "the host leaves", True)):
            self._desk.note("info", f"leaving: {', '.join(x.host for x in leaving)}")
        if lost and self._desk.propose("lose", op.LoseHosts(tuple(lost), op.clip("; ".join(reasons)))):
            self._desk.note("warning", f"lost: {'; '.join(reasons)}")

    def _silence_ns(self, session: HostSession) -> int:
        """How long it may be silent."""
        state = self._desk.state
        if session.is_asked and not state.is_defined:
            return DEFINING_NS
        hosts = len(state.plan.hosts) if state.plan is not None and state.phase == RUNNING else 1
        return SILENCE_NS + len(state.image.agents) // (hosts * AGENTS_A_SECOND) * SECOND_NS

    def _suspicion_of(self, host: str, record: HostRecord) -> str:
        now = self._desk.now
        start, reason = self._exits.get(host, (0, ""))
        if start == record.start:
            return reason or "its process has ended"
        session = self._attendance.session_of(host)
        if session is not None:
            if self._deadlines:
                self._deadlines.pop(host, None)
            silent_ns = now - session.stage.heard_ns if isinstance(session.stage, Attached) else 0
            if silent_ns < SILENCE_NS:
                return ""
            limit_ns = self._silence_ns(session)
            return f"nothing heard of it for {limit_ns / 1e9:g} s" if silent_ns >= limit_ns else ""
        if host not in self._deadlines:
            start, since_ns = self._peer_suspicions.get(host, (0, 0))
            is_agreed = start == record.start and now - since_ns <= BROKEN_NS
            self._deadlines[host] = now + (0 if is_agreed else BROKEN_NS)
        return "its stream broke and did not come back" if now >= self._deadlines[host] else ""
