"""Sessions of hosts with the leader, and the stages of a session.

A *session* is one stream of a host to the leader. A session passes through these stages:

    Joining      Join has arrived; a fresh probe file is being written into the store
    Probing      the host must report the content of the probe file. Without this check, hosts whose --store names different directories
                 would make checkpoints that cannot be restored
    Admitting    the host has read the probe; AdmitHost is pending. This stage is skipped if this run of the host has already been admitted
    Attached     the host receives directives and may be part of plans

If the same run of a host opens a new session, it replaces the older session. A session of a newer run ends the older run (G9).
`admission.py` decides whether a host is admitted, and `failure_detector.py` decides whether a host is lost.
"""

from collections.abc import Mapping

import msgspec

from snapline.coordinator.leader.events import CloseStream, RemoveProbe
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state.fleet_records import ALIVE
from snapline.messages.host_messages import Finish, Heartbeat, Join, Roster, RosterEntry, TurnedAway, Welcome

ASKED_MAX = 4
"""Largest number of hosts that are asked for the fleet's definition at a time. The limit exceeds one, so that one slow or dead host causes
no delay. With a hundred thousand agents, sending a definition and receiving it take half a second each. If all hosts sent the definition,
their sessions would time out and the hosts would rejoin forever."""


QUIET_NS = 1 * SECOND_NS
"""Time, in nanoseconds, without a message on an open stream, after which a host counts as busy. Two heartbeats are then missing, and the
host's event loop is presumably blocked."""

DEFINING_NS = 10 * SECOND_NS
"""Time, in nanoseconds, without a message from a host that was asked for the fleet's definition, after which another host is asked."""


class Joining(msgspec.Struct):
    """Stage in which the probe file is being written into the store, since `since_ns`."""

    since_ns: int


class Probing(msgspec.Struct):
    """Stage in which the host must read the probe file, since `since_ns`."""

    path: str
    content: bytes
    since_ns: int


class Admitting(msgspec.Struct, frozen=True):
    """Stage in which the host, having read the probe file, waits for admission."""


class Attached(msgspec.Struct):
    """Stage in which the host takes part in the fleet.

    `heard_ns` is the time of the host's last message. `woken_ns` is the time of its last message after a quiet period.
    """

    heard_ns: int
    woken_ns: int = 0


class HostSession(msgspec.Struct):
    """One stream of a host to the leader.

    Attributes:
        start: number of the host's run; 0 until a new run is admitted.
        beaten_ns: time at which the last heartbeat arrived.
        is_asked: whether the host has been asked for the fleet's definition.
        changes: how the dependencies of a run that is being admitted differ from those before, as part of a sentence.
    """

    id: int
    join: Join
    stage: Joining | Probing | Admitting | Attached
    start: int = 0
    heartbeat: Heartbeat = Heartbeat(0)
    beaten_ns: int = 0
    is_asked: bool = False
    changes: str = ""

    @property
    def host(self) -> str:
        return self.join.host


class HostSessions:
    """All sessions of hosts. Sessions need not be durable, because they are rebuilt from the hosts' messages."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._sessions: dict[int, HostSession] = {}
        self._current: dict[str, HostSession] = {}
        """Host → the session of its run that the replicated state knows."""
        self._roster: Roster | None = None
        self._newly_attached: list[HostSession] = []
        self._seen: dict[str, int] = {}
        """Host that has had a stream to this leader → the host start of its run."""
        self._led_until_ns = 0

    def on_started(self) -> None:
        """Record the time of the newest log entry, which the previous leader proposed."""
        self._led_until_ns = self._shared.state.image.now_ns

    # ---- queries --------------------------------------------------------------------------------------------------

    def session(self, number: int) -> HostSession | None:
        """Return the session with this number if it is the current session of its host, otherwise None."""
        session = self._sessions.get(number)
        return session if session is not None and self._current.get(session.host) is session else None

    def opened(self, number: int) -> HostSession | None:
        """Return the session with this number, whatever its stage, or None if it is closed."""
        return self._sessions.get(number)

    def all_sessions_in_any_stage(self) -> list[HostSession]:
        """Return all open sessions, oldest first."""
        return list(self._sessions.values())

    def session_of(self, host: str) -> HostSession | None:
        """Return a host's current session, whether attached or not, or None if it has none."""
        return self._current.get(host)

    def attached_session(self, host: str) -> HostSession | None:
        """Return a host's session if it is attached and the replicated state lists this run as alive, otherwise None."""
        session = self._current.get(host)
        if session is None or not isinstance(session.stage, Attached):
            return None
        record = self._shared.state.image.hosts.get(host)
        is_alive = record is not None and record.state == ALIVE and record.start == session.start
        return session if is_alive else None

    def attached(self) -> list[str]:
        """Return the sorted names of the attached hosts."""
        return [host for host in sorted(self._current) if self.attached_session(host) is not None]

    def sessions_of(self, hosts: list[str]) -> tuple[int, ...]:
        """Return the session numbers of those hosts in the list that are attached."""
        sessions = [self.attached_session(host) for host in hosts]
        return tuple([session.id for session in sessions if session is not None])

    def all_sessions(self) -> tuple[int, ...]:
        """Return the numbers of all attached sessions."""
        return tuple([session.id for session in self._current.values() if isinstance(session.stage, Attached)])

    def heartbeats(self) -> dict[str, Heartbeat]:
        """Return the last heartbeat of each host that has a current session."""
        return {host: session.heartbeat for host, session in self._current.items()}

    def ran_until_ns(self, hosts: Mapping[str, int]) -> int:
        """Return the latest wall-clock time at which any of the host runs in `hosts` (host → start) is known to have worked. Return 0 if
        any of these runs has had a stream to this leader, because it may have worked until now.

        Runs without a stream to this leader may have ended while the previous leader led.
        """
        return 0 if any(self._seen.get(host) == start for host, start in hosts.items()) else self._led_until_ns

    def take_newly_attached(self) -> list[HostSession]:
        """Return all sessions that were attached since the last call, to send them the current directives."""
        sessions, self._newly_attached = self._newly_attached, []
        return sessions

    def quiet_ns(self, session: HostSession) -> int:
        """Return the time, in nanoseconds, since the session's last message, or 0 if the session is not attached."""
        return self._shared.now - session.stage.heard_ns if isinstance(session.stage, Attached) else 0

    def log_bytes(self) -> int:
        """Return the size, in bytes, of the largest sender logs that any host keeps in memory."""
        return max([session.heartbeat.log_bytes for session in self._current.values()], default=0)

    @property
    def is_empty(self) -> bool:
        """Return whether no stream is open."""
        return not self._sessions

    # ---- opening and closing --------------------------------------------------------------------------------------

    def open(self, number: int, join: Join) -> HostSession:
        """Open a session when the first message on a stream arrives."""
        session = self._sessions[number] = HostSession(number, join, Joining(self._shared.now))
        return session

    def make_current(self, session: HostSession, start: int) -> None:
        """Make `session` the current session of its host, whose run has the number `start`. Close the older session."""
        older = self._current.pop(session.host, None)
        if older is not None:
            if older.join.instance != session.join.instance:
                reason = f"a newer process has taken the place of host {session.host}: end this one"
                self._shared.send((older.id,), TurnedAway(reason, True))
            self._close(older)
        session.start = start
        self._current[session.host] = session

    def attach(self, session: HostSession) -> None:
        """Attach the session, so that its host takes part in the fleet."""
        session.stage = Attached(self._shared.now)
        self._seen[session.host] = session.start
        self._welcome(session)
        self._newly_attached.append(session)

    def _welcome(self, session: HostSession) -> None:
        session.is_asked = self._needs_more_definitions()
        shared, fork = self._shared, self._shared.state.image.fork
        cluster = shared.state.image.cluster or shared.options.cluster
        is_shadow = fork is not None and not fork.is_live
        wants, heartbeat_ns = session.is_asked, shared.options.heartbeat_ns
        shared.send((session.id,), Welcome(session.start, cluster, wants, heartbeat_ns, is_shadow))

    def _needs_more_definitions(self) -> bool:
        """Return whether one more host must be asked for the fleet's definition."""
        return (
            not self._shared.state.is_defined
            and sum(map(self._is_definition_expected, self._sessions.values())) < ASKED_MAX
        )

    def _is_definition_expected(self, session: HostSession) -> bool:
        return session.is_asked and self.quiet_ns(session) < DEFINING_NS

    def reject_session(self, session: HostSession, reason: str, *, is_final: bool) -> None:
        """Reject the host for the given reason, and close its session."""
        self._shared.note("warning", f"host rejected: {reason}")
        self._shared.send((session.id,), TurnedAway(reason, is_final))
        self._close(session)

    def send_off(self, session: HostSession) -> None:
        """Send Finish to a host that joins after the fleet has ended, and close its session."""
        image = self._shared.state.image
        self._shared.send((session.id,), Finish(image.outcome_epoch, image.outcome, image.ending))
        self._close(session)

    def _close(self, session: HostSession) -> None:
        self._shared.out.append(CloseStream(session.id))
        self.on_closed(session.id)

    def on_closed(self, number: int) -> None:
        """Remove the session of a stream that has ended."""
        session = self._sessions.pop(number, None)
        if session is None:
            return
        if isinstance(session.stage, Probing):
            self._shared.out.append(RemoveProbe(session.stage.path))
        if self._current.get(session.host) is session:
            del self._current[session.host]

    # ---- heartbeats -----------------------------------------------------------------------------------------------

    def on_activity(self, session: HostSession) -> None:
        """Record when a message of any kind has arrived from the host."""
        if isinstance(session.stage, Attached):
            if self.quiet_ns(session) >= QUIET_NS:
                session.stage.woken_ns = self._shared.now
            session.stage.heard_ns = self._shared.now

    def on_heartbeat(self, session: HostSession, message: Heartbeat) -> None:
        """Store the host's heartbeat."""
        session.heartbeat, session.beaten_ns = message, self._shared.now

    def shift(self, late_ns: int) -> None:
        """Move all times by `late_ns`, the time for which this process was suspended."""
        now = self._shared.now
        for session in self._sessions.values():
            match session.stage:
                case Joining() | Probing():
                    session.stage.since_ns = min(session.stage.since_ns + late_ns, now)
                case Attached():
                    session.stage.heard_ns = min(session.stage.heard_ns + late_ns, now)
                    session.stage.woken_ns = min(session.stage.woken_ns + late_ns, now)
                    session.beaten_ns = min(session.beaten_ns + late_ns, now)
                case Admitting():
                    pass

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Close the sessions of ended runs, ask more hosts for the definition if needed, and send the roster if it has changed."""
        self._drop_lost_sessions()
        self._ask_others()
        roster = self.roster()
        if roster != self._roster:
            self._roster = roster
            self._shared.send(self.all_sessions(), roster)

    def _ask_others(self) -> None:
        """Ask more hosts for the fleet's definition, because the hosts asked earlier may be gone."""
        for session in self._current.values() if self._needs_more_definitions() else ():
            if isinstance(session.stage, Attached) and not session.is_asked and self._needs_more_definitions():
                self._welcome(session)

    def roster(self) -> Roster:
        """Return the addresses of all hosts that the replicated state lists as alive."""
        hosts = sorted(self._shared.state.image.hosts.items())
        return Roster(tuple([RosterEntry(host, x.address, x.start) for host, x in hosts if x.state == ALIVE]))

    def _drop_lost_sessions(self) -> None:
        """Close the sessions of runs that have ended in the replicated state, so that the hosts rejoin."""
        hosts = self._shared.state.image.hosts
        for host, session in list(self._current.items()):
            record = hosts.get(host)
            is_over = record is None or record.state != ALIVE or record.start != session.start
            if is_over and not self._shared.state.image.outcome:
                self._close(session)
