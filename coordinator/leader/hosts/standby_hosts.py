"""Hosts that can be heard but held the fleet up: evicted from the plan, and kept on standby for a while.

Such a host is lost like any other (LoseHosts), so nothing that it does counts any more; but it is back on its next stream, at
once. So the state keeps why it was evicted, and the plan that answers the loss does without it, although it is there and
is not waited for. After that it stays on standby: agents that lose their host are placed on others first. It is used again when
its process has been restarted, after a time, or when no other host is left. Only the times here are volatile.
"""

from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.messages.concerns import Concern

SPARE_NS = 60 * SECOND_NS
"""Shortest time on standby. The cause may last: with less, the agents of an evicted host could go to one that was evicted
just before, and back, and no epoch would complete."""


class StandbyHosts:
    """Evicted hosts and standby hosts."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._since_ns: dict[str, int] = {}
        """Standby host → when this leader first saw it so."""
        self._gone_ns: dict[str, int] = {}
        """Host → when it was evicted last, as far as this leader saw."""

    # ---- questions ------------------------------------------------------------------------------------------------

    def usable(self, hosts: list[str]) -> list[str]:
        """Return those of `hosts` that a plan may place agents on: all but the standby ones, if there are others."""
        return [host for host in hosts if not self._is_kept_away(host)] or hosts

    def is_evicted(self, host: str) -> bool:
        """Return whether the plan that is needed now does without `host`, be it back or not."""
        need = self._shared.state.image.need
        return need is not None and host in need.lost and bool(self._shared.state.image.hosts[host].spare)

    def may_go(self, host: str) -> bool:
        """Return whether `host` has not been evicted within the rejoin grace."""
        gone_ns = self._gone_ns.get(host)
        return gone_ns is None or self._shared.now - gone_ns >= self._shared.options.rejoin_grace_ns

    def _is_kept_away(self, host: str) -> bool:
        if not self._shared.state.image.hosts[host].spare:
            return False
        limit_ns = max(SPARE_NS, self._shared.options.rejoin_grace_ns)
        return self.is_evicted(host) or self._shared.now - self._since_ns.get(host, self._shared.now) < limit_ns

    def concerns(self) -> list[Concern]:
        """Return the hosts that get no agents, and why."""
        found = []
        for host, since_ns in self._since_ns.items():
            record = self._shared.state.image.hosts[host]
            text = f"host {host} is alive and gets no agents for now: {record.spare}"
            found.append(Concern("spare", (host,), self._shared.now - since_ns, text))
        return found

    # ---- deciding -------------------------------------------------------------------------------------------------

    def evict(self, reasons: dict[str, str]) -> bool:
        """Evict these hosts, each for its reason: lose them, and keep them out of the next plan; return whether it was proposed."""
        hosts = self._shared.state.image.hosts
        lost = tuple([op.LostHost(host, hosts[host].start) for host in reasons])
        reason = "; ".join([f"host {host}: {why}" for host, why in reasons.items()])
        is_proposed = self._shared.propose("spare", op.LoseHosts(lost, op.clip(reason), is_spare=True))
        if is_proposed:
            self._shared.note("warning", f"put out: {reason}")
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
                self._since_ns[host] = self._gone_ns[host] = self._shared.now
