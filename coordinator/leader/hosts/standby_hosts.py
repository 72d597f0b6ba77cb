"""Reachable hosts that blocked the fleet: evicted from the plan, then kept on standby for a while.

An evicted host is lost like any other (LoseHosts), so it is fenced; but it rejoins at once on its next stream. So the state records why
it was evicted, and the next plan excludes it although it is attached. Afterwards it stays on standby: agents that lose their host are
placed on other hosts first. A standby host is used again when its process was restarted, after SPARE_NS, or when no other host is left.
Only the times here are volatile.
"""

from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.messages.concerns import Concern

STANDBY_NS = 60 * SECOND_NS
"""Shortest time on standby. The cause may last: with a shorter time, agents could move back and forth between evicted hosts, and no epoch
would complete."""


class StandbyHosts:
    """Evicted hosts and standby hosts."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._since_ns: dict[str, int] = {}
        """Standby host → time when this leader first saw it on standby."""
        self._evicted_ns: dict[str, int] = {}
        """Host → time of its last eviction, as far as this leader saw."""

    # ---- queries --------------------------------------------------------------------------------------------------

    def usable(self, hosts: list[str]) -> list[str]:
        """Return those of `hosts` that a plan may use: all but standby hosts, or all if there are no others."""
        return [host for host in hosts if not self._is_kept_away(host)] or hosts

    def is_evicted(self, host: str) -> bool:
        """Return whether the plan that is needed now excludes `host`, even if it has rejoined."""
        need = self._shared.state.image.need
        return need is not None and host in need.lost and bool(self._shared.state.image.hosts[host].spare)

    def may_be_evicted(self, host: str) -> bool:
        """Return whether `host` has not been evicted within the rejoin grace."""
        gone_ns = self._evicted_ns.get(host)
        return gone_ns is None or self._shared.now - gone_ns >= self._shared.options.rejoin_grace_ns

    def _is_kept_away(self, host: str) -> bool:
        if not self._shared.state.image.hosts[host].spare:
            return False
        limit_ns = max(STANDBY_NS, self._shared.options.rejoin_grace_ns)
        return self.is_evicted(host) or self._shared.now - self._since_ns.get(host, self._shared.now) < limit_ns

    def concerns(self) -> list[Concern]:
        """Return the hosts that get no agents, and why."""
        concerns = []
        for host, since_ns in self._since_ns.items():
            record = self._shared.state.image.hosts[host]
            text = f"host {host} is alive and gets no agents for now: {record.spare}"
            concerns.append(Concern("spare", (host,), self._shared.now - since_ns, text))
        return concerns

    # ---- decisions ------------------------------------------------------------------------------------------------

    def evict(self, reasons: dict[str, str]) -> bool:
        """Evict hosts (host → reason): propose their loss, and exclude them from the next plan; return whether it was proposed."""
        hosts = self._shared.state.image.hosts
        lost = tuple([op.LostHost(host, hosts[host].start) for host in reasons])
        reason = "; ".join([f"host {host}: {why}" for host, why in reasons.items()])
        is_proposed = self._shared.propose("spare", op.LoseHosts(lost, op.clip(reason), is_spare=True))
        if is_proposed:
            self._shared.note("warning", f"evicted: {reason}")
        return is_proposed

    def evaluate(self) -> None:
        """Follow the state."""
        hosts = self._shared.state.image.hosts
        for forgotten in [host for host in self._since_ns if host not in hosts]:
            del self._since_ns[forgotten]
        for host, record in hosts.items():
            if not record.spare:
                self._since_ns.pop(host, None)
            elif host not in self._since_ns:
                self._since_ns[host] = self._evicted_ns[host] = self._shared.now
