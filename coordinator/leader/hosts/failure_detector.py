"""Failure detector: decides which hosts are lost, because they are *suspected* or because a network partition blocks the fleet. This module
also removes the records of lost hosts.

*Suspicion.* A host is suspected

- when its stream has been broken for 1 s;
- at once when its stream breaks after one second without a message;
- at once when its stream is broken and, within that second, a peer reports that its link to the host broke too;
- at once when a launcher reports that the host's process has ended, or an operator ends the process.

While the stream is open, silence alone does not make a host suspected, because user code may block its event loop or interpreter. gRPC's
own threads still answer for such a process (`channels/servers.py`). gRPC breaks the stream of a dead, frozen or unreachable process 2 s
after its last byte. A *busy* host is shown as a concern. A thread of its process reports what blocks the event loop (`HostBusyReported`).
The thread can send this report without a stream, for example after a leader change. A busy report defers the loss of the host.

A suspicion may be wrong. The loss is committed nevertheless. The host then rejoins with its old start, and the next plan discards the work
that the host has done since.

Deadlines are extended when this process itself did not run for a while. A coordinator that was paused for ten seconds has received nothing
during that time, and its hosts are not the cause.

*Removal.* The record of a lost or departed host without agents is removed after ten minutes, or when an operator requests it. An operator
may request the removal while agents are still placed on the host, or while the log is slow. In that case the removal is proposed again for
some seconds before the request is refused.

*Partitions.* A network partition may separate hosts that can all reach the coordinator. If two hosts cannot reach each other, both still send heartbeats, so neither is suspected. But markers and messages between
them wait, and no epoch completes. In every heartbeat, a host names the hosts of its plan to which it has no link, since when, and whether
anything waits for the link. Reports about missing links are level-triggered, so a late, lost or duplicate report is harmless. A new leader
knows all cut links half a second after the hosts reconnect. A link for which nothing waits is ignored.

CUT_NS after a link broke on which something waits, hosts are evicted until each such pair has lost one host. (Detecting the
break takes as long again.) Each time, the host that is cut off from the most other hosts is evicted; in a tie, the host with the larger id.
No host is evicted twice within the rejoin grace. Pairs that have been cut for at least COUNTED_NS also count in that comparison, since a
host that loses all its links loses them within about one heartbeat. The agents of an evicted host are placed elsewhere, so the fleet
continues even if the cut is permanent.

A quiet host is busy: it does not answer when its peers open links, and its own reports are old. The time of its
cuts counts from its next message.

While a plan is being applied, links are still being opened. So the time of a cut counts from the moment when the fleet runs, plus one
second for every ten thousand agents, whose first turns occupy their hosts.

*Standby hosts* are reachable hosts that blocked the fleet. A host that blocks the fleet is evicted from the plan, and then kept on standby
for a while. An evicted host counts as lost like any other (LoseHosts), so it is fenced; but it rejoins at once on its next stream.
Therefore the state records why the host was evicted, and the next plan excludes it although it is attached. While the host is on standby,
it receives displaced agents only if no other host can take them. A standby host is used again when its process has been restarted, after
STANDBY_NS, or when no other host is left. Only the times in this module are volatile.
"""

import msgspec

from snapline.coordinator.leader.events import AnswerForgetHost, ForgetHostRequested, HostBusyReported, HostExitReported
from snapline.coordinator.leader.hosts.host_sessions import QUIET_NS, Attached, HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ALIVE, LEFT, RUNNING, HostRecord, PlanRecord
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
    """The end of a host run's process, and the turns that the end interrupted."""

    start: int
    reason: str
    died_in: tuple[TurnDeath, ...] = ()


class BusyReport(msgspec.Struct, frozen=True):
    """The last report of a host's run about the cause that blocks its event loop, with the time of the report."""

    start: int
    at_ns: int
    busy_ns: int
    what: str


class FailureDetector:
    """Evidence that hosts have failed. This state need not be durable, because a new leader first lets every host reconnect that is alive
    in the state."""

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
        """Set a deadline by which each host that is alive in the state must reconnect."""
        for host, record in self._shared.state.image.hosts.items():
            if record.state == ALIVE:
                self._deadlines[host] = self._shared.now + RESTART_GRACE_NS

    def on_peer_suspected(self, message: PeerSuspected) -> None:
        """Handle a peer's report that its link to a host is broken.

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
        """Handle a launcher's report that a host's run has ended."""
        record = self._shared.state.image.hosts.get(event.host)
        if record is not None and record.instance == event.instance and record.state != LEFT:
            self._exits[event.host] = Exited(record.start, event.reason, event.died_in)

    def on_end_requested(self, host: str) -> None:
        """End a host's run at an operator's request. The host is notified, and counts as lost even if it misses the notification."""
        record, session = self._shared.state.image.hosts.get(host), self._host_sessions.session_of(host)
        if record is not None and record.state == ALIVE:
            self._exits[host] = Exited(record.start, ENDED)
        if session is not None:
            self._shared.send((session.id,), TurnedAway(f"host {host}: {ENDED}", True))

    def on_leave(self, session: HostSession, message: Leave) -> None:
        """Handle a host's Leave message."""
        self._leaves[session.host] = (session.start, message.reason)

    def shift(self, late_ns: int) -> None:
        """Move all times by `late_ns`, the time during which this process did not run."""
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
        """Return the turns that were running when the host's process died, if these are known and have not been counted yet."""
        exited = self._exits.get(host)
        is_news = exited is not None and exited.start == record.start and record.died != record.instance
        return exited.died_in if exited is not None and is_news else ()

    def _propose_late_deaths(self, host: str, record: HostRecord) -> None:
        """Propose the turns that were running when a lost host's process died, if LoseHosts did not contain them. One log entry cannot hold
        the turns of many hosts."""
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
        """Return the time at which a host whose stream has just broken will count as lost."""
        now = self._shared.now
        if self._is_reported(host, record):
            return self._busy[host].at_ns + BUSY_NS
        start, since_ns = self._peer_suspicions.get(host, (0, 0))
        is_agreed = start == record.start and now - since_ns <= BROKEN_NS
        is_quiet = now - self._heard_ns.get(host, now) >= QUIET_NS
        return now + (0 if is_agreed or is_quiet else BROKEN_NS)

    def _is_reported(self, host: str, record: HostRecord) -> bool:
        """Return whether the host's process has reported within BUSY_NS that it is alive but blocked."""
        report = self._busy.get(host)
        return report is not None and report.start == record.start and self._shared.now - report.at_ns < BUSY_NS

    # ---- concerns ---------------------------------------------------------------------------------------------------

    def concerns(self) -> list[Concern]:
        """Return one concern for each turn that killed processes, and one for each busy host, with the cause if it is known."""
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
        """Return how long the host has been busy, and the cause, or "" if the cause is unknown. If the host is not busy, the returned time
        is 0."""
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
    """An operator's request to forget `host`, made at `asked_ns`."""

    host: str
    asked_ns: int


class HostRemoval:
    """Removes the records of hosts. This state is volatile."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._over_ns: dict[str, int] = {}
        """Lost or departed host without agents → time at which this leader first saw it in that state."""
        self._requests: dict[int, OperatorRequest] = {}
        """Number of an operator's request → the request."""

    def on_requested(self, event: ForgetHostRequested) -> None:
        """Handle an operator's request to forget a host."""
        self._requests[event.request] = OperatorRequest(event.host, self._shared.now)

    def evaluate(self) -> None:
        """Propose to forget hosts after FORGET_NS, or at an operator's request, and answer operators."""
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


STANDBY_NS = 60 * SECOND_NS
"""Shortest time on standby, in nanoseconds. The cause may persist: with a shorter time, agents could move back and forth between evicted
hosts, and no epoch would complete."""


class StandbyHosts:
    """Evicts hosts, and decides when standby hosts are used again."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._since_ns: dict[str, int] = {}
        """Standby host → time when this leader first saw it on standby."""
        self._evicted_ns: dict[str, int] = {}
        """Host → time of its last eviction that this leader has observed."""

    # ---- queries --------------------------------------------------------------------------------------------------

    def usable(self, hosts: list[str]) -> list[str]:
        """Return those of `hosts` that a plan may use: all except standby hosts, or all of them if only standby hosts are left."""
        return [host for host in hosts if not self._is_kept_away(host)] or hosts

    def is_evicted(self, host: str) -> bool:
        """Return whether the plan that is needed now excludes `host`, even if `host` has rejoined."""
        need = self._shared.state.image.need
        return need is not None and host in need.lost and bool(self._shared.state.image.hosts[host].spare)

    def may_be_evicted(self, host: str) -> bool:
        """Return whether `host` has not been evicted within the rejoin grace period."""
        gone_ns = self._evicted_ns.get(host)
        return gone_ns is None or self._shared.now - gone_ns >= self._shared.options.rejoin_grace_ns

    def _is_kept_away(self, host: str) -> bool:
        if not self._shared.state.image.hosts[host].spare:
            return False
        limit_ns = max(STANDBY_NS, self._shared.options.rejoin_grace_ns)
        return self.is_evicted(host) or self._shared.now - self._since_ns.get(host, self._shared.now) < limit_ns

    def concerns(self) -> list[Concern]:
        """Return a concern, with the reason, for each host that receives no agents because it was evicted."""
        concerns = []
        for host, since_ns in self._since_ns.items():
            record = self._shared.state.image.hosts[host]
            text = f"host {host} is alive and gets no agents for now: {record.spare}"
            concerns.append(Concern("spare", (host,), self._shared.now - since_ns, text))
        return concerns

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evict(self, reasons: dict[str, str]) -> bool:
        """Evict hosts: propose their loss, and exclude them from the next plan. `reasons` maps each host to its reason. Return whether the
        loss was proposed."""
        hosts = self._shared.state.image.hosts
        lost = tuple([op.LostHost(host, hosts[host].start) for host in reasons])
        reason = "; ".join([f"host {host}: {why}" for host, why in reasons.items()])
        is_proposed = self._shared.propose("spare", op.LoseHosts(lost, op.clip(reason), is_spare=True))
        if is_proposed:
            self._shared.note("warning", f"evicted: {reason}")
        return is_proposed

    def evaluate(self) -> None:
        """Record hosts that are newly on standby, and drop hosts that no longer are."""
        hosts = self._shared.state.image.hosts
        for forgotten in [host for host in self._since_ns if host not in hosts]:
            del self._since_ns[forgotten]
        for host, record in hosts.items():
            if not record.spare:
                self._since_ns.pop(host, None)
            elif host not in self._since_ns:
                self._since_ns[host] = self._evicted_ns[host] = self._shared.now


CUT_NS = 2 * SECOND_NS
"""Duration, in nanoseconds, of a cut that leads to evictions, equal to the detection time of a broken stream."""

AGENTS_A_SECOND = 10_000
"""Number of agents whose first turns take one second in total. Links are opened after these turns."""

COUNTED_NS = CUT_NS // 2
"""Duration, in nanoseconds, from which a cut pair counts when the host to evict is chosen."""

SHOWN_NS = SECOND_NS
"""Duration, in nanoseconds, of a cut from which it is shown. In a healthy network, a broken link is restored within half that time."""

Pair = tuple[str, str]


class NetworkCut(msgspec.Struct):
    """A missing link between two hosts, as reported by one or both of them. `is_waited` tells whether anything waits for the link."""

    since_ns: int
    is_waited: bool


class Running(msgspec.Struct, frozen=True):
    """The plan under which the fleet runs, and the time since which it has been running, as far as this leader knows."""

    plan: int
    since_ns: int


class Partitions:
    """The network cuts that hosts have reported, and the evictions that follow from them. This state need not be durable, because hosts
    repeat their reports."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, standby_hosts: StandbyHosts) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._standby_hosts = standby_hosts
        self._running: Running | None = None

    def shift(self, late_ns: int) -> None:
        """Move the fleet's start time by `late_ns`, the time during which this process did not run."""
        if self._running is not None:
            since_ns = min(self._running.since_ns + late_ns, self._shared.now)
            self._running = Running(self._running.plan, since_ns)

    # ---- queries --------------------------------------------------------------------------------------------------

    def _partitions(self) -> dict[Pair, NetworkCut]:
        """Return all pairs of hosts in the current plan that currently have no link, with the cut of each pair."""
        plan, running, cuts = self._shared.state.plan, self._running, dict[Pair, NetworkCut]()
        if plan is None or self._shared.state.phase != RUNNING or running is None or running.plan != plan.number:
            return cuts
        begins_ns = running.since_ns + len(self._shared.state.image.agents) // AGENTS_A_SECOND * SECOND_NS
        for host in plan.hosts:
            session = self._host_sessions.attached_session(host)
            if session is None or session.heartbeat.plan != plan.number or self._is_busy(session):
                continue
            for peer in session.heartbeat.unreached[: len(plan.hosts)]:
                other = self._other(plan, host, peer.host, peer.host_start)
                if other is None or self._is_busy(other):
                    continue
                since_ns = max(session.beaten_ns - peer.elapsed_ns, begins_ns, _woken_ns(session), _woken_ns(other))
                cut = cuts.setdefault(
                    (min(host, peer.host), max(host, peer.host)), NetworkCut(since_ns, peer.is_waited)
                )
                cut.since_ns = min(cut.since_ns, since_ns)
                cut.is_waited = cut.is_waited or peer.is_waited
        return cuts

    def _other(self, plan: PlanRecord, host: str, peer: str, start: int) -> HostSession | None:
        session = self._host_sessions.attached_session(peer) if peer != host and peer in plan.hosts else None
        return session if session is not None and session.start == start else None

    def _is_busy(self, session: HostSession) -> bool:
        return self._host_sessions.quiet_ns(session) >= QUIET_NS

    def concerns(self) -> list[Concern]:
        """Return one concern for each pair of hosts that cannot reach each other."""
        concerns = []
        for pair, cut in self._partitions().items():
            lasts_ns = self._shared.now - cut.since_ns
            if cut.is_waited and lasts_ns >= SHOWN_NS:
                text = f"hosts {pair[0]} and {pair[1]} have not reached each other for {lasts_ns / 1e9:.1f} s"
                concerns.append(Concern("cut", pair, lasts_ns, text))
        return concerns

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Evict hosts if a link on which something waits has been cut for CUT_NS."""
        state = self._shared.state
        if state.phase != RUNNING:
            self._running = None
            return
        if self._running is None or self._running.plan != state.plan_number:
            self._running = Running(state.plan_number, self._shared.now)
        partitions, now = self._partitions(), self._shared.now
        if any(cut.is_waited and now - cut.since_ns >= CUT_NS for cut in partitions.values()):
            reasons = self._choose({pair: cut for pair, cut in partitions.items() if now - cut.since_ns >= COUNTED_NS})
            if reasons:
                self._standby_hosts.evict(reasons)

    def _choose(self, partitions: dict[Pair, NetworkCut]) -> dict[str, str]:
        """Return the hosts to evict, with the reason for each."""
        reasons: dict[str, str] = {}
        open_pairs = [pair for pair, cut in partitions.items() if cut.is_waited]
        while open_pairs:
            others: dict[str, list[str]] = {}
            for one, other in partitions:
                if one not in reasons and other not in reasons:
                    others.setdefault(one, []).append(other)
                    others.setdefault(other, []).append(one)
            ends = [host for pair in open_pairs for host in pair]
            host = max(ends, key=lambda host: (len(others[host]), host))
            open_pairs = [pair for pair in open_pairs if host not in pair]
            if self._standby_hosts.may_be_evicted(host):
                longest_ns = self._shared.now - min(partitions[pair].since_ns for pair in partitions if host in pair)
                reasons[host] = f"cut from {', '.join(sorted(others[host]))} for {longest_ns / 1e9:.1f} s"
        return reasons


def _woken_ns(session: HostSession) -> int:
    return session.stage.woken_ns if isinstance(session.stage, Attached) else 0
