"""Concern about missing hosts: no host is attached, or the fleet waits for its first ones. Nothing is decided from it."""

from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.messages.concerns import Concern

SHOWN_NS = 3 * SECOND_NS
"""Time until missing hosts are shown: starting or restarted hosts are attached by then."""

NAMED_MAX = 10


class MissingHosts:
    """Monitor of missing hosts. Volatile: a new leader gives the hosts time to reconnect."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._since_ns: int | None = None

    def evaluate(self) -> None:
        """Note since when hosts are missing."""
        are_missing = bool(self._text())
        self._since_ns = (self._since_ns or self._shared.now) if are_missing else None

    def concerns(self) -> list[Concern]:
        """Return a concern if no host is attached, or too few to begin."""
        lasts_ns = 0 if self._since_ns is None else self._shared.now - self._since_ns
        text = self._text() if lasts_ns >= SHOWN_NS else ""
        return [Concern("hosts", (), lasts_ns, text)] if text else []

    def _text(self) -> str:
        state, attached = self._shared.state, self._host_sessions.attached()
        if not state.image.plans:
            expected = self._shared.options.hosts_expected
            return (
                f"the fleet waits for its hosts: {len(attached)} of {expected} are there"
                if len(attached) < expected
                else ""
            )
        if attached:
            return ""
        records = sorted(state.image.hosts.items())
        names = ", ".join(
            [f"{host} {'unreachable' if x.state == 'alive' else x.state}" for host, x in records[:NAMED_MAX]]
        )
        agents = sum(1 for _ in state.living_agents())
        return (
            f"no host of the fleet is there ({names or 'all are forgotten'}), and its agents ({agents:,}) stand still"
        )
