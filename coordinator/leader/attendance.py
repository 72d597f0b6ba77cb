"""Which hosts are there: admission, the probe, heartbeats, suspicion.

A host's stream (a *session*) goes through the stages

    probing     Join arrived; a fresh file lies in the store, and the host must say what is in it. Two hosts with different
                directories behind one --store would else make checkpoints nobody can restore
    admitting   it has read the probe; AdmitHost is on its way, unless this run of the host is known
    attached    gets directives, counts for plans

So nothing is committed for who cannot take part. A run that has read its probe is not probed again by this leader, and of a
host one new run is probed at a time: the one that came last. A session of a run replaces the one before it; a session of a
newer run ends the older run (G9). A host is *suspected*, and its loss proposed, when nothing is heard of it for 2 s; when its stream has been broken for 1 s, or at once if a peer says in that time that its link broke too; at once when a
launcher says that the process is over. A suspicion may be wrong: the loss is then committed all the same, the host joins
again under its start, and the plan that follows makes everything it did meanwhile void.

Deadlines move when this process itself was late: a coordinator that was stopped for ten seconds has heard nobody, and that
is not the hosts' fault.
"""

import msgspec

from snapline.conversation.messages import (
    Finish,
    Heartbeat,
    Join,
    Leave,
    PeerSuspected,
    ProbeRead,
    ReadProbe,
    Roster,
    RosterEntry,
    TurnedAway,
    Welcome,
)
from snapline.coordinator.leader.desk import SECOND_NS, Desk
from snapline.coordinator.leader.events import CloseStream, ProbeWritten, RemoveProbe, WriteProbe
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ALIVE, HostRecord, OperationResult

SILENCE_NS = 2 * SECOND_NS
"""Four heartbeats. Only a hung or frozen host is found this way: the streams of dead ones break."""

BROKEN_NS = 1 * SECOND_NS
"""A stream that broke is opened again within 50 to 500 ms, if the host lives."""

RESTART_GRACE_NS = 3 * SECOND_NS
"""For hosts that were alive when the leader started: their streams have yet to come back."""

PROBE_NS = 10 * SECOND_NS
"""Who cannot write or read a small file for so long, the coordinator or the host, has a store it cannot use."""

PROBING, ADMITTING, ATTACHED = "probing", "admitting", "attached"


class HostSession(msgspec.Struct):
    """One stream of a host.

    Attributes:
        start: host start; 0 before a new run is admitted.
        heard_ns: when it was last heard of; 0 before its Welcome, when it owes no heartbeats yet.
        heartbeat, beaten_ns: its last heartbeat, and when that came.
        asked_ns: when it came, or was asked to read its probe.
        probe: path and content of the probe it has to read.
    """

    id: int
    join: Join
    stage: str = PROBING
    start: int = 0
    heard_ns: int = 0
    asked_ns: int = 0
    probe: tuple[str, bytes] | None = None
    heartbeat: Heartbeat = Heartbeat(0)
    beaten_ns: int = 0

    @property
    def host(self) -> str:
        """The host it speaks for."""
        return self.join.host


class Attendance:
    """Sessions and suspicions. Volatile: rebuilt from the state and from what hosts say again."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._sessions: dict[int, HostSession] = {}
        self._current: dict[str, HostSession] = {}
        self._deadlines: dict[str, int] = {}
        """Hosts alive in the state without a session: when they count as lost."""
        self._read_probe: dict[str, str] = {}
        """Host → the run of it that has read its probe."""
        self._exits: dict[str, tuple[int, str]] = {}
        self._leaves: dict[str, tuple[int, str]] = {}
        self._peer_suspicions: dict[str, tuple[int, int]] = {}
        self._roster: Roster | None = None
        self._newly_attached: list[HostSession] = []

    # ---- questions ------------------------------------------------------------------------------------------------

    def session(self, number: int) -> HostSession | None:
        """The session, if it is the current one of a run that the state knows."""
        session = self._sessions.get(number)
        return session if session is not None and self._current.get(session.host) is session else None

    def session_of(self, host: str) -> HostSession | None:
        """The current session of a host, attached or not."""
        return self._current.get(host)

    def attached_session(self, host: str) -> HostSession | None:
        """The session of a host that is attached and, for the state, alive."""
        session = self._current.get(host)
        if session is None or session.stage != ATTACHED:
            return None
        record = self._desk.state.image.hosts.get(host)
        is_alive = record is not None and record.state == ALIVE and record.start == session.start
        return session if is_alive else None

    def attached(self) -> list[str]:
        """Hosts that are attached, by name."""
        return [host for host in sorted(self._current) if self.attached_session(host) is not None]

    def sessions_of(self, hosts: list[str]) -> tuple[int, ...]:
        """The attached sessions of these hosts."""
        sessions = [self.attached_session(host) for host in hosts]
        return tuple([session.id for session in sessions if session is not None])

    def all_sessions(self) -> tuple[int, ...]:
        """Every session that is attached."""
        return tuple([session.id for session in self._current.values() if session.stage == ATTACHED])

    def heartbeats(self) -> dict[str, Heartbeat]:
        """Host → its last heartbeat, of those that have a stream."""
        return {host: session.heartbeat for host, session in self._current.items()}

    def take_newly_attached(self) -> list[HostSession]:
        """The sessions that have been attached since this was asked last: they are to be greeted."""
        sessions, self._newly_attached = self._newly_attached, []
        return sessions

    def log_bytes(self) -> int:
        """Of the sender logs in memory, those of the host that has most."""
        return max([session.heartbeat.log_bytes for session in self._current.values()], default=0)

    @property
    def is_empty(self) -> bool:
        """Whether no stream is open."""
        return not self._sessions

    # ---- joining --------------------------------------------------------------------------------------------------

    def on_joined(self, number: int, join: Join) -> None:
        """The first message of a stream."""
        if number in self._sessions:
            return
        session = self._sessions[number] = HostSession(number, join, asked_ns=self._desk.now)
        record = self._desk.state.image.hosts.get(join.host)
        refusal = self._refusal_of(join, record)
        if refusal:
            self.turn_away(session, refusal, is_final=True)
            return
        if record is not None and _is_run_of(record, join):
            self._take_place(session, record.start)
        elif self._desk.state.image.outcome:
            self._send_off(session)
            return
        if self._read_probe.get(join.host) == join.instance:
            self._on_probed(session)
            return
        for older in list(self._sessions.values()):
            if older.host == join.host and older is not session and not older.start:
                self.turn_away(older, f"a newer stream of host {join.host} has come", is_final=False)
        self._desk.out.append(WriteProbe(session.id))

    def _on_probed(self, session: HostSession) -> None:
        """It sees the store; a run that the state does not know is admitted now."""
        if session.start:
            self._attach(session)
        else:
            session.stage = ADMITTING
            self._propose_admission(session)

    def _propose_admission(self, session: HostSession) -> None:
        join = session.join
        record = self._desk.state.image.hosts.get(join.host)
        start = 0 if record is None else record.start
        self._desk.propose(f"admit/{session.id}", op.AdmitHost(join.host, join.instance, join.address, start))

    def _refusal_of(self, join: Join, record: HostRecord | None) -> str:
        state = self._desk.state
        known = state.image.definition_digest
        if record is not None and join.instance in record.past:
            return f"a newer process has taken the place of host {join.host}: end this one"
        if known and known != join.definition_digest:
            same = join.fleet == state.image.name
            return (
                f"host {join.host} defines another fleet ({join.fleet!r}{', of the same name' * same}) than the one here "
                f"({state.image.name!r}): start it with that one's code and arguments, or give the new fleet a --data-dir of its own"
            )
        if join.plan > state.plan_number:
            return f"host {join.host} has applied plan {join.plan} of another run of the fleet: start it anew"
        return ""

    def on_admission_ended(self, key: str, kind: op.AdmitHost, result: OperationResult | None) -> None:
        """AdmitHost came back. If it was late or rejected, `evaluate` proposes it again."""
        session = self._sessions.get(int(key.removeprefix("admit/")))
        if session is None or session.stage != ADMITTING or result is None:
            return
        record = self._desk.state.image.hosts.get(session.host)
        refusal = self._refusal_of(session.join, record)
        if refusal:
            self.turn_away(session, refusal, is_final=True)
        elif self._desk.state.image.outcome and (record is None or record.instance != session.join.instance):
            self._send_off(session)
        elif result.is_refused:
            if record is None or record.start == kind.expected_start:
                self.turn_away(session, result.reason, is_final=True)
        elif record is not None and record.instance == session.join.instance:
            self._desk.note("info", f"host {session.host} joins from {session.join.address}, start {record.start}")
            self._take_place(session, record.start)
            self._attach(session)

    def _take_place(self, session: HostSession, start: int) -> None:
        older = self._current.pop(session.host, None)
        if older is not None:
            if older.join.instance != session.join.instance:
                reason = f"a newer process has taken the place of host {session.host}: end this one"
                self._desk.send((older.id,), TurnedAway(reason, True))
            self._close(older)
        session.start = start
        self._current[session.host] = session
        self._deadlines.pop(session.host, None)

    def on_probe_written(self, event: ProbeWritten) -> None:
        """The file lies in the store, or could not be written."""
        session = self._sessions.get(event.session)
        if session is None or session.stage != PROBING:
            if event.path:
                self._desk.out.append(RemoveProbe(event.path))
        elif event.error:
            self._desk.note("error", f"the store cannot be written: {event.error}")
            self.turn_away(session, f"the coordinator cannot write the store: {event.error}", is_final=False)
        else:
            session.probe, session.asked_ns = (event.path, event.content), self._desk.now
            self._desk.send((session.id,), ReadProbe(event.path))

    def on_probe_read(self, number: int, message: ProbeRead) -> None:
        """The host says what it found."""
        session = self._sessions.get(number)
        if session is None or session.probe is None or message.path != session.probe[0]:
            return
        path, content = session.probe
        session.probe = None
        self._desk.out.append(RemoveProbe(path))
        if message.content == content:
            self._read_probe[session.host] = session.join.instance
            self._on_probed(session)
            return
        reason = message.error or "it found other bytes"
        self.turn_away(
            session,
            f"host {session.host} does not see the coordinator's store ({path}: {reason}): "
            "--store must be the same shared directory for all",
            is_final=True,
        )

    def _attach(self, session: HostSession) -> None:
        desk = self._desk
        session.stage, session.heard_ns = ATTACHED, desk.now
        cluster = desk.state.image.cluster or desk.options.cluster
        wants = not desk.state.is_defined
        desk.send((session.id,), Welcome(session.start, cluster, wants, desk.options.heartbeat_ns))
        self._newly_attached.append(session)

    def turn_away(self, session: HostSession, reason: str, *, is_final: bool) -> None:
        """Send it off, with a reason."""
        self._desk.note("warning", f"turned away: {reason}")
        self._desk.send((session.id,), TurnedAway(reason, is_final))
        self._close(session)

    def _send_off(self, session: HostSession) -> None:
        """The fleet has ended, and this run of a host had no part in it."""
        image = self._desk.state.image
        self._desk.send((session.id,), Finish(image.outcome_epoch, image.outcome, image.ending))
        self._close(session)

    def turn_away_other_definitions(self) -> None:
        """The fleet has just been defined: those who joined earlier may define another."""
        for session in list(self._sessions.values()):
            refusal = self._refusal_of(session.join, None)
            if refusal and not self._desk.state.image.outcome:
                self.turn_away(session, refusal, is_final=True)

    def _close(self, session: HostSession) -> None:
        self._desk.out.append(CloseStream(session.id))
        self.on_closed(session.id)

    # ---- signs of life --------------------------------------------------------------------------------------------

    def on_heard(self, session: HostSession) -> None:
        """Any message is a sign of life."""
        if session.heard_ns:
            session.heard_ns = self._desk.now

    def on_heartbeat(self, session: HostSession, message: Heartbeat) -> None:
        """It lives, and says how it stands."""
        session.heartbeat, session.beaten_ns = message, self._desk.now

    def on_closed(self, number: int) -> None:
        """The stream ended, whoever ended it."""
        session = self._sessions.pop(number, None)
        if session is None:
            return
        if session.probe is not None:
            self._desk.out.append(RemoveProbe(session.probe[0]))
        if self._current.get(session.host) is session:
            del self._current[session.host]
            start, since = self._peer_suspicions.get(session.host, (0, 0))
            is_agreed = start == session.start and self._desk.now - since <= BROKEN_NS
            self._deadlines[session.host] = self._desk.now + (0 if is_agreed else BROKEN_NS)

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

    def on_leave(self, session: HostSession, message: Leave) -> None:
        """The host says goodbye."""
        self._leaves[session.host] = (session.start, message.reason)

    def on_started(self) -> None:
        """All hosts that are alive in the state get time to come back."""
        for host, record in self._desk.state.image.hosts.items():
            if record.state == ALIVE:
                self._deadlines[host] = self._desk.now + RESTART_GRACE_NS

    def shift(self, late_ns: int) -> None:
        """This process was late by so much: nobody is suspected for that."""
        for session in self._sessions.values():
            if session.heard_ns:
                session.heard_ns = min(session.heard_ns + late_ns, self._desk.now)
                session.beaten_ns = min(session.beaten_ns + late_ns, self._desk.now)
            session.asked_ns = min(session.asked_ns + late_ns, self._desk.now)
        for host in self._deadlines:
            self._deadlines[host] += late_ns

    # ---- deciding -------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Propose losses, send the roster, give up on probes."""
        image = self._desk.state.image
        self._drop_lost_sessions()
        if not image.outcome:
            for session in self._sessions.values():
                if session.stage == ADMITTING:
                    self._propose_admission(session)
            self._propose_losses()
            self._give_up_probes()
        roster = self.roster()
        if roster != self._roster:
            self._roster = roster
            self._desk.send(self.all_sessions(), roster)

    def _give_up_probes(self) -> None:
        for session in list(self._sessions.values()):
            if session.stage == PROBING and self._is_over(session.asked_ns, PROBE_NS):
                reason = f"host {session.host} did not say what its probe holds: is its --store reachable?"
                if session.probe is None:
                    reason = f"the coordinator could not write a probe for host {session.host} in time: is its --store reachable?"
                self.turn_away(session, reason, is_final=False)

    def roster(self) -> Roster:
        """Where the living hosts are."""
        hosts = sorted(self._desk.state.image.hosts.items())
        return Roster(tuple([RosterEntry(host, x.address, x.start) for host, x in hosts if x.state == ALIVE]))

    def _drop_lost_sessions(self) -> None:
        """A session whose run the state calls over has to join again."""
        hosts = self._desk.state.image.hosts
        for host, session in list(self._current.items()):
            record = hosts.get(host)
            is_over = record is None or record.state != ALIVE or record.start != session.start
            if is_over and not self._desk.state.image.outcome:
                self._close(session)

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

    def _suspicion_of(self, host: str, record: HostRecord) -> str:
        start, reason = self._exits.get(host, (0, ""))
        if start == record.start:
            return reason or "its process has ended"
        session = self._current.get(host)
        if session is not None:
            is_silent = session.heard_ns and self._is_over(session.heard_ns, SILENCE_NS)
            return f"nothing heard of it for {SILENCE_NS / 1e9:g} s" if is_silent else ""
        deadline = self._deadlines.setdefault(host, self._desk.now + BROKEN_NS)
        return "its stream broke and did not come back" if self._desk.now >= deadline else ""

    def _is_over(self, since_ns: int, limit_ns: int) -> bool:
        return self._desk.now - since_ns >= limit_ns


def _is_run_of(record: HostRecord, join: Join) -> bool:
    return record.instance == join.instance and record.state == ALIVE and record.address == join.address
