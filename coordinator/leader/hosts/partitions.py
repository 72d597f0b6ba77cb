"""Handling of network partitions between hosts that can all reach the coordinator. This module decides which hosts to evict, and how long
to keep them on standby.

The problem. If two hosts cannot reach each other, neither is suspected of failure, because both still send heartbeats. While two hosts
cannot reach each other, no epoch completes, because markers and messages between them cannot be delivered. In every heartbeat, a host lists
the hosts of its plan to which it has no link, since when, and whether messages are waiting for that link. Every heartbeat repeats the full
list, so a late, lost or duplicate report is harmless. A new leader knows all missing links half a second after the hosts reconnect. A
missing link is ignored if no messages wait for it.

The decision. If messages have been waiting for a missing link for CUT_NS, hosts are evicted until at least one host of each such pair is
gone. (Detecting that a link is broken takes equally long.) The host with missing links to the most hosts is evicted first. If several
hosts are missing equally many links, the host with the largest id is evicted. A host that was evicted within the rejoin grace period is not
evicted again. To choose a host, all links missing for at least COUNTED_NS are counted, because a host that loses all its links loses them
within about one heartbeat. Because the agents of an evicted host move elsewhere, the fleet continues even if the partition is permanent.

A host that sends nothing is busy (`failure_detector.py`): it neither accepts links from its peers nor reports its current links. The
duration of a busy host's missing links is therefore counted from its next message.

While hosts apply a plan, they are still opening links. After a plan, the duration of a missing link is therefore counted from the time
when the fleet runs, plus one second per ten thousand agents.

*Standby hosts* are reachable hosts that receive no agents because they have blocked the fleet. If a host blocks the fleet, it is evicted
and then kept on standby for a while. An evicted host is recorded as lost (LoseHosts) and therefore fenced, but it rejoins at once on its
next stream. The replicated state therefore records why the host was evicted, and the next plan excludes the host although it is attached.
A standby host receives displaced agents only if no other host can take them. A standby host is used again after its process has
restarted, after STANDBY_NS, or if no other host is left. Apart from the reason for the eviction, this module's state is volatile.
"""

import msgspec

from snapline.coordinator.leader.hosts.host_sessions import QUIET_NS, Attached, HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RUNNING, PlanRecord
from snapline.messages.status import Concern

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
