"""Failure detector, which decides whether a host is *suspected* of having failed, and then proposes its loss. This module also removes
the records of hosts that were lost long ago.

A host is suspected

- when its stream has been broken for 1 s;
- immediately, when its stream breaks and no message has arrived for one second;
- immediately, when a peer reports a broken link to the host within one second of the break of the host's stream;
- immediately, when a launcher reports that its process has ended, or an operator ends it.

A host with an open stream is not suspected merely because it sends nothing, because user code may block its event loop or interpreter.
gRPC's own threads still answer while user code blocks the process (`channels/servers.py`). If a process is dead, frozen or unreachable,
gRPC breaks its stream 2 s after the last byte. A *busy* host, whose event loop is blocked, is reported as a concern. A separate thread of
the host reports what blocks the event loop (`HostBusyReported`). A busy report needs no stream, so the host can send it after a leader
change. A busy report defers the loss of the host.

The loss of a suspected host is committed although the suspicion may be wrong. A host suspected in error rejoins with its old start
number, and the next plan discards all work that it has done in the meantime.

Deadlines are extended if the coordinator's own process was suspended. After a pause of ten seconds, for example, the coordinator has
received no messages for ten seconds, but that is not the hosts' fault.

*Removal.* The record of a lost or departed host that has no agents is removed after ten minutes, or at an operator's request. If agents are
still placed on the host, or the log is slow, the removal is proposed repeatedly for some seconds. If the removal remains impossible for
some seconds, the operator's request is refused.
"""

import msgspec

from snapline.coordinator.leader.events import AnswerForgetHost, ForgetHostRequested, HostBusyReported, HostExitReported
from snapline.coordinator.leader.hosts.host_sessions import QUIET_NS, Attached, HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ALIVE, LEFT, HostRecord
from snapline.messages.host_messages import CAPTURE, STOP_WHEN, Leave, PeerSuspected, TurnDeath, TurnedAway
from snapline.messages.status import Concern

BROKEN_NS = 1 * SECOND_NS
"""Time limit, in nanoseconds, for a host to reopen a broken stream. A living host needs 50 to 500 ms."""

BUSY_NS = 2 * SECOND_NS
"""How long a busy report is valid, in nanoseconds. A busy host reports every second, and one report may be lost."""

RESTART_GRACE_NS = 3 * SECOND_NS
"""Grace period, in nanoseconds, for hosts that were alive when the leader started, because they must first reconnect."""

DEATHS_SHOWN = 10
"""Number of latest deaths to show. Hundreds of deaths usually have the same cause."""

ENDED = "an operator has ended it"


class Exited(msgspec.Struct, frozen=True):
    """The end of a host's process, and the turns that were running at that time."""

    start: int
    reason: str
    died_in: tuple[TurnDeath, ...] = ()


class BusyReport(msgspec.Struct, frozen=True):
    """The last report about what blocks a host's event loop, and the time of the report."""

    start: int
    at_ns: int
    busy_ns: int
    what: str


class FailureDetector:
    """Evidence of hosts' failures. This state need not be durable, because a new leader first gives all living hosts time to reconnect."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._deadlines: dict[str, int] = {}
        """Host that is alive in the state but has no session → time at which it counts as lost."""
        self._exits: dict[str, Exited] = {}
        self._leaves: dict[str, tuple[int, str]] = {}
        self._peer_suspicions: dict[str, tuple[int, int]] = {}
        """Host → (host start, time) of the last broken link to it that a peer reported."""
        self._heard_ns: dict[str, int] = {}
        """Host with a session → time of its last message."""
        self._busy: dict[str, BusyReport] = {}

    def on_started(self) -> None:
        """Set the deadline by which every living host must reconnect to this leader."""
        for host, record in self._shared.state.image.hosts.items():
            if record.state == ALIVE:
                self._deadlines[host] = self._shared.now + RESTART_GRACE_NS

    def on_peer_suspected(self, message: PeerSuspected) -> None:
        """Handle a peer's report of a broken link to a host.

        The report counts only if the host's stream to this leader breaks within a second.
        """
        record = self._shared.state.image.hosts.get(message.host)
        if record is None or record.start != message.host_start or self._is_reported(message.host, record):
            return
        if message.host in self._deadlines:
            self._deadlines[message.host] = min(self._deadlines[message.host], self._shared.now)
        else:
            self._peer_suspicions[message.host] = (message.host_start, self._shared.now)

    def on_busy_reported(self, event: HostBusyReported) -> None:
        """Handle a host's report that its process is alive but its event loop is blocked."""
        record, now = self._shared.state.image.hosts.get(event.host), self._shared.now
        if record is None or record.instance != event.instance or record.state != ALIVE:
            return
        self._busy[event.host] = BusyReport(record.start, now, event.busy_ns, op.clip(event.what))
        if event.host in self._deadlines:
            self._deadlines[event.host] = max(self._deadlines[event.host], now + BUSY_NS)

    def on_exit_reported(self, event: HostExitReported) -> None:
        """Handle a launcher's report that the process of a host's run has ended."""
        record = self._shared.state.image.hosts.get(event.host)
        if record is not None and record.instance == event.instance and record.state != LEFT:
            self._exits[event.host] = Exited(record.start, event.reason, event.died_in)

    def on_end_requested(self, host: str) -> None:
        """End the current run of a host at an operator's request. The host is notified, but counts as lost even if the notification does
        not arrive."""
        record, session = self._shared.state.image.hosts.get(host), self._host_sessions.session_of(host)
        if record is not None and record.state == ALIVE:
            self._exits[host] = Exited(record.start, ENDED)
        if session is not None:
            self._shared.send((session.id,), TurnedAway(f"host {host}: {ENDED}", True))

    def on_leave(self, session: HostSession, message: Leave) -> None:
        """Handle a host's Leave message."""
        self._leaves[session.host] = (session.start, message.reason)

    def shift(self, late_ns: int) -> None:
        """Move all deadlines and times by `late_ns`, the time for which this process was suspended."""
        now = self._shared.now
        self._deadlines = {host: deadline + late_ns for host, deadline in self._deadlines.items()}
        self._heard_ns = {host: min(heard_ns + late_ns, now) for host, heard_ns in self._heard_ns.items()}
        self._busy = {
            host: msgspec.structs.replace(report, at_ns=min(report.at_ns + late_ns, now))
            for host, report in self._busy.items()
        }

    def evaluate(self) -> None:
        """Propose the loss of suspected hosts."""
        if not self._shared.state.image.outcome:
            self._propose_losses()

    def _propose_losses(self) -> None:
        leaving: list[op.LostHost] = []
        lost: list[op.LostHost] = []
        reasons: list[str] = []
        for host, record in self._shared.state.image.hosts.items():
            if record.state != ALIVE:
                self._propose_late_deaths(host, record)
                for by_host in (self._deadlines, self._leaves, self._exits, self._heard_ns, self._busy):
                    by_host.pop(host, None)
                continue
            if self._leaves.get(host, (0, ""))[0] == record.start:
                leaving.append(op.LostHost(host, record.start))
                continue
            reason = self._why_suspected(host, record)
            if reason:
                lost.append(op.LostHost(host, record.start, () if lost else self._died_in(host, record)))
                reasons.append(f"host {host}: {reason}")
        if leaving and self._shared.propose("leave", op.LoseHosts(tuple(leaving), "the host leaves", True)):
            self._shared.note("info", f"leaving: {', '.join(x.host for x in leaving)}")
        if lost and self._shared.propose("lose", self._loss_of(lost, reasons)):
            self._shared.note("warning", f"lost: {'; '.join(reasons)}")

    def _loss_of(self, lost: list[op.LostHost], reasons: list[str]) -> op.LoseHosts:
        until_ns = self._host_sessions.ran_until_ns({host.host: host.host_start for host in lost})
        return op.LoseHosts(tuple(lost), op.clip("; ".join(reasons)), ran_until_ns=until_ns)

    def _died_in(self, host: str, record: HostRecord) -> tuple[TurnDeath, ...]:
        """Return the turns that were running when the host's process died, or () if they are unknown or already recorded."""
        exited = self._exits.get(host)
        is_news = exited is not None and exited.start == record.start and record.died != record.instance
        return exited.died_in if exited is not None and is_news else ()

    def _propose_late_deaths(self, host: str, record: HostRecord) -> None:
        """Record the turns that were running when a lost host's process died, if LoseHosts did not contain them. The operation LoseHosts
        contains the turns of only one host, because a log entry is limited in size."""
        died_in = self._died_in(host, record)
        if died_in:
            late = op.LostHost(host, record.start, died_in)
            self._shared.propose(f"died/{host}", op.LoseHosts((late,), f"host {host} died in the middle of a turn"))

    def _why_suspected(self, host: str, record: HostRecord) -> str:
        now = self._shared.now
        exited = self._exits.get(host)
        if exited is not None and exited.start == record.start:
            return exited.reason or "its process has ended"
        session = self._host_sessions.session_of(host)
        if session is not None:
            if self._deadlines:
                self._deadlines.pop(host, None)
            self._heard_ns[host] = session.stage.heard_ns if isinstance(session.stage, Attached) else now
            return ""
        if host not in self._deadlines:
            self._deadlines[host] = self._deadline_of(host, record)
        return "its stream broke and did not come back" if now >= self._deadlines[host] else ""

    def _deadline_of(self, host: str, record: HostRecord) -> int:
        """Return when a host whose stream has just broken will count as lost."""
        now = self._shared.now
        if self._is_reported(host, record):
            return self._busy[host].at_ns + BUSY_NS
        start, since_ns = self._peer_suspicions.get(host, (0, 0))
        is_agreed = start == record.start and now - since_ns <= BROKEN_NS
        is_quiet = now - self._heard_ns.get(host, now) >= QUIET_NS
        return now + (0 if is_agreed or is_quiet else BROKEN_NS)

    def _is_reported(self, host: str, record: HostRecord) -> bool:
        """Return whether the host has reported within the last BUSY_NS that it is alive but blocked."""
        report = self._busy.get(host)
        return report is not None and report.start == record.start and self._shared.now - report.at_ns < BUSY_NS

    # ---- concerns ---------------------------------------------------------------------------------------------------

    def concerns(self) -> list[Concern]:
        """Return one concern for each turn that killed processes and one for each busy host."""
        concerns = [_concern_of(death) for death in self._shared.state.image.deaths[-DEATHS_SHOWN:]]
        for host, record in self._shared.state.image.hosts.items():
            busy_ns, what = self._busy_state(host, record) if record.state == ALIVE else (0, "")
            if busy_ns:
                text = (
                    f"host {host} is alive, and its agents have stood still for {busy_ns / 1e9:.1f} s: "
                    f"{what or 'something holds its event loop; its log says what, as soon as it can'}"
                )
                concerns.append(Concern("busy", (host,), busy_ns, text))
        return concerns

    def _busy_state(self, host: str, record: HostRecord) -> tuple[int, str]:
        """Return how long the host has been busy, in nanoseconds, and the cause, or "" if the cause is unknown. If the host is not busy,
        the duration is 0."""
        session = self._host_sessions.session_of(host)
        quiet_ns = 0 if session is None else self._host_sessions.quiet_ns(session)
        if self._is_reported(host, record) and (session is None or quiet_ns >= QUIET_NS):
            report = self._busy[host]
            return report.busy_ns + self._shared.now - report.at_ns, report.what
        return (quiet_ns, "") if quiet_ns >= BUSY_NS else (0, "")


def _concern_of(death: TurnDeath) -> Concern:
    is_set_aside = death.times > death.limit
    consequence = "this has no turn any more, and is a dead letter" if is_set_aside else "this is tried again"
    if death.what == STOP_WHEN:
        consequence = "the fleet fails" if is_set_aside else "it is asked again"
    elif death.what == CAPTURE:
        consequence = "this is not tried any more, and no epoch completes" if is_set_aside else "this is tried again"
    agents = (death.agent,) if death.agent else ()
    return Concern("killer", (), 0, f"{death.sentence()}: {consequence}", agents)


FORGET_NS = 600 * SECOND_NS
"""How long, in nanoseconds, a lost or departed host remains in `status`, so that operators can see what happened."""

REFUSE_NS = 5 * SECOND_NS
"""Time limit, in nanoseconds, for an operator's request to forget a host. A log entry takes milliseconds."""


class OperatorRequest(msgspec.Struct, frozen=True):
    """An operator's request, made at `asked_ns`, to remove the record of `host`."""

    host: str
    asked_ns: int


class HostRemoval:
    """Removes the records of hosts that are no longer needed. This state is volatile."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._over_ns: dict[str, int] = {}
        """Lost or departed host without agents → time at which this leader first saw it in that state."""
        self._requests: dict[int, OperatorRequest] = {}
        """Number of an operator's request → the request."""

    def on_requested(self, event: ForgetHostRequested) -> None:
        """Handle an operator's request to remove a host's record."""
        self._requests[event.request] = OperatorRequest(event.host, self._shared.now)

    def evaluate(self) -> None:
        """Remove the records of hosts after FORGET_NS or at an operator's request, and answer operators."""
        state, now = self._shared.state, self._shared.now
        for request, asked in list(self._requests.items()):
            self._follow(request, asked)
        if state.image.outcome:
            return
        self._over_ns = {host: self._over_ns.get(host, now) for host in state.image.hosts if state.may_forget(host)}
        due = tuple([host for host, since_ns in self._over_ns.items() if now - since_ns >= FORGET_NS])
        if due:
            self._shared.propose("forget-hosts", op.ForgetHosts(due))

    def _follow(self, request: int, asked: OperatorRequest) -> None:
        host, state = asked.host, self._shared.state
        record = state.image.hosts.get(host)
        if record is None or record.state == ALIVE:
            self._answer(request, "")
        elif self._shared.now >= asked.asked_ns + REFUSE_NS:
            self._answer(request, f"host {host} is not forgotten yet: ask again in a moment")
        elif state.may_forget(host):
            self._shared.propose(f"forget-host/{host}", op.ForgetHosts((host,)))

    def _answer(self, request: int, refused: str) -> None:
        del self._requests[request]
        self._shared.out.append(AnswerForgetHost(request, refused))
