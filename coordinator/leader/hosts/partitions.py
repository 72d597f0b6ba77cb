"""Network partitions between hosts that can all reach the coordinator. This module decides which hosts are evicted, and which are kept on
standby.

The problem. If two hosts cannot reach each other, both still send heartbeats, so neither is suspected. But markers and messages between
them wait, and no epoch completes. In every heartbeat, a host names the hosts of its plan to which it has no link, since when, and whether
anything waits for the link. Reports about missing links are level-triggered, so a late, lost or duplicate report is harmless. A new leader
knows all cut links half a second after the hosts reconnect. A link for which nothing waits is ignored.

The decision. CUT_NS after a link broke on which something waits, hosts are evicted until each such pair has lost one host. (Detecting the
break takes as long again.) Each time, the host that is cut off from the most other hosts is evicted; in a tie, the host with the larger id.
No host is evicted twice within the rejoin grace. Pairs that have been cut for at least COUNTED_NS also count in that comparison, since a
host that loses all its links loses them within about one heartbeat. The agents of an evicted host are placed elsewhere, so the fleet
continues even if the cut is permanent.

A quiet host is busy (`failure_detector.py`): it does not answer when its peers open links, and its own reports are old. The time of its
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

from snapline.coordinator.leader.hosts.host_sessions import QUIET_NS, Attached, HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RUNNING, PlanRecord
from snapline.messages.status import Concern

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
