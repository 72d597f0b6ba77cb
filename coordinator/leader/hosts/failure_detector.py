"""Failure detector, which proposes the loss of a host if the host is *suspected* of having failed, or if a network partition blocks the
fleet. This module also removes the records of hosts that were lost long ago.

*Suspicion.* A host is suspected

- when its stream has been broken for 1 s;
- immediately, when its stream breaks and no message has arrived for one second;
- immediately, when a peer reports a broken link to the host within one second of the break of the host's stream;
- immediately, when a launcher reports that its process has ended, or an operator ends it.

A host with an open stream is not suspected merely because it sends nothing, because user code may block its event loop or interpreter.
gRPC's own threads still answer while user code blocks the process (`channels/servers.py`). If a process is dead, frozen or unreachable,
gRPC breaks its stream 2 s after the last byte. A *busy* host, whose event loop is blocked, is reported as a concern. A separate thread of
the host reports what blocks the event loop (`HostBusyReported`). The report needs no stream, so it also arrives after a leader change, and
it defers the loss of the host.

The loss of a suspected host is committed although the suspicion may be wrong. A host suspected in error rejoins with its old start
number, and the next plan discards all work that it has done in the meantime.

Deadlines are extended if the coordinator's own process was suspended. After a pause of ten seconds, for example, the coordinator has
received no messages for ten seconds, but that is not the hosts' fault.

*Removal.* The record of a lost or departed host that has no agents is removed after ten minutes, or at an operator's request. If agents are
still placed on the host, or the log is slow, the removal is proposed repeatedly for some seconds. If it remains impossible, the operator's
request is refused.

*Partitions.* A network partition may separate hosts that can all reach the coordinator. If two hosts cannot reach each other, neither is
suspected of failure, because both still send heartbeats. But no epoch completes, because markers and messages between them wait. In every
heartbeat, a host lists the hosts of its plan to which it has no link, since when, and whether messages are waiting for that link. Every
heartbeat repeats the full list, so a late, lost or duplicate report is harmless. A new leader knows all missing links half a second after
the hosts reconnect. A missing link is ignored if no messages wait for it.

If messages have been waiting for a missing link for CUT_NS, hosts are evicted until each such pair has lost at least one host. (Detecting
that a link is broken takes equally long.) The host with missing links to the most hosts is evicted first. If several hosts are missing
equally many links, the host with the largest id is evicted. A host that was evicted within the rejoin grace period is not evicted again. To
choose a host, all links missing for at least COUNTED_NS are counted, because a host that loses all its links loses them within about one
heartbeat. Because the agents of an evicted host move elsewhere, the fleet continues even if the partition is permanent.

A host that sends nothing is busy: it neither accepts links from its peers nor reports its current links. The
duration of a busy host's missing links is therefore counted from its next message.

While hosts apply a plan, they are still opening links. After a plan, the duration of a missing link is therefore counted from the time when
the fleet runs, plus one second per ten thousand agents, whose first turns occupy their hosts.

*Standby hosts* are reachable hosts that receive no agents because they have blocked the fleet. If a host blocks the fleet, it is evicted
and then kept on standby for a while. An evicted host is recorded as lost (LoseHosts) and therefore fenced, but it rejoins at once on its
next stream. The replicated state therefore records why the host was evicted, and the next plan excludes the host although it is attached.
A standby host receives displaced agents only if no other host can take them. A standby host is used again after its process has
restarted, after STANDBY_NS, or if no other host is left. Apart from the reason for the eviction, this module's state is volatile.
"""

import msgspec

from snapline.coordinator.leader.events import AnswerForgetHost, ForgetHostRequested, HostBusyReported, HostExitReported
from snapline.coordinator.leader.hosts.host_sessions import QUIET_NS, Attached, HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ALIVE, LEFT, PLANNED_STOP, RUNNING, HostRecord, PlanRecord
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
        if leaving and self._shared.propose("leave", op.LoseHosts(tuple(leaving), PLANNED_STOP, True)):
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


STANDBY_NS = 60 * SECOND_NS
"""Shortest time on standby, in nanoseconds. The cause may persist: with a shorter time, agents could move back and forth between evicted
hosts, and no epoch would complete."""


class StandbyHosts:
    """Evicts hosts, and decides when to use standby hosts again."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._since_ns: dict[str, int] = {}
        """Standby host → time when this leader first saw it on standby."""
        self._evicted_ns: dict[str, int] = {}
        """Host → time of its last eviction that this leader has observed."""

    # ---- queries --------------------------------------------------------------------------------------------------

    def usable(self, hosts: list[str]) -> list[str]:
        """Return the hosts in `hosts` that are not on standby, or all of them if every host is on standby."""
        return [host for host in hosts if not self._is_kept_away(host)] or hosts

    def is_evicted(self, host: str) -> bool:
        """Return whether the next plan excludes `host` because of an eviction, even if the host has rejoined."""
        need = self._shared.state.image.need
        return need is not None and host in need.lost and bool(self._shared.state.image.hosts[host].spare)

    def may_be_evicted(self, host: str) -> bool:
        """Return whether `host` may be evicted, because it has not been evicted within the rejoin grace period."""
        gone_ns = self._evicted_ns.get(host)
        return gone_ns is None or self._shared.now - gone_ns >= self._shared.options.rejoin_grace_ns

    def _is_kept_away(self, host: str) -> bool:
        if not self._shared.state.image.hosts[host].spare:
            return False
        limit_ns = max(STANDBY_NS, self._shared.options.rejoin_grace_ns)
        return self.is_evicted(host) or self._shared.now - self._since_ns.get(host, self._shared.now) < limit_ns

    def concerns(self) -> list[Concern]:
        """Return one concern for each host that receives no agents because of an eviction, with the reason."""
        concerns = []
        for host, since_ns in self._since_ns.items():
            record = self._shared.state.image.hosts[host]
            text = f"host {host} is alive and gets no agents for now: {record.spare}"
            concerns.append(Concern("spare", (host,), self._shared.now - since_ns, text))
        return concerns

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evict(self, reasons: dict[str, str]) -> bool:
        """Evict hosts by proposing their loss, so that the next plan excludes them. `reasons` maps each host to the reason for its
        eviction. Return whether the loss was proposed."""
        hosts = self._shared.state.image.hosts
        lost = tuple([op.LostHost(host, hosts[host].start) for host in reasons])
        reason = "; ".join([f"host {host}: {why}" for host, why in reasons.items()])
        is_proposed = self._shared.propose("spare", op.LoseHosts(lost, op.clip(reason), is_spare=True))
        if is_proposed:
            self._shared.note("warning", f"evicted: {reason}")
        return is_proposed

    def evaluate(self) -> None:
        """Update the list of standby hosts from the replicated state."""
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
    """A missing link between two hosts, as reported by one or both of them. `is_waited` tells whether any messages wait for the link."""

    since_ns: int
    is_waited: bool


class Running(msgspec.Struct, frozen=True):
    """The plan under which the fleet is running, and the time at which this leader first saw it running."""

    plan: int
    since_ns: int


class Partitions:
    """Missing links that hosts have reported, and the resulting evictions. This state need not be durable, because hosts repeat their
    reports."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, standby_hosts: StandbyHosts) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._standby_hosts = standby_hosts
        self._running: Running | None = None

    def shift(self, late_ns: int) -> None:
        """Move the time at which the fleet started to run by `late_ns`, the time for which this process was suspended."""
        if self._running is not None:
            since_ns = min(self._running.since_ns + late_ns, self._shared.now)
            self._running = Running(self._running.plan, since_ns)

    # ---- queries --------------------------------------------------------------------------------------------------

    def _partitions(self) -> dict[Pair, NetworkCut]:
        """Return all pairs of hosts in the current plan that have no link, each with the missing link's details."""
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
        """Evict hosts if messages have been waiting for a missing link for CUT_NS."""
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
        """Return the hosts to evict, each with the reason."""
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
