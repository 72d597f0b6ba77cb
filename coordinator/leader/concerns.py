"""Collection of a fleet's concerns: each part reports what it waits for, and this adds since when, and the remedy."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state.fleet_records import RUNNING
from snapline.messages.concerns import KINDS, Concern, remedy_of

LOOK_NS = SECOND_NS // 2
"""Time between two checks of all parts: heartbeats come as often, and this core handles thousands of events."""


ABORTED_MIN = 3
"""Smallest number of aborted epochs in a row for a concern: a recovery, or a long turn, aborts one or two."""

Source = Callable[[], Sequence[Concern]]
"""Returns the present concerns; `since_ns` is 0 where the part does not keep since when."""


class Concerns:
    """The fleet's concerns. Volatile: a new leader sees them anew."""

    def __init__(self, shared: LeaderState, sources: Sequence[Source]) -> None:
        self._shared = shared
        self._sources = sources
        self._since_ns: dict[tuple[str, tuple[str, ...], tuple[str, ...]], int] = {}
        self._look_ns = 0

    def evaluate(self) -> None:
        """Note which concerns are new and which are over."""
        if self._shared.now >= self._look_ns:
            self._look_ns = self._shared.now + LOOK_NS
            self.current()

    def current(self) -> tuple[Concern, ...]:
        """Return the present concerns; a fleet that has ended has none."""
        now, known = self._shared.now, self._since_ns
        told = () if self._shared.state.image.outcome else [x for source in self._sources for x in source()]
        found = []
        self._since_ns = {}
        for concern in told:
            key = concern.kind, concern.hosts, concern.agents
            since_ns = self._since_ns[key] = min(now - concern.since_ns, known.get(key, now))
            found.append(replace(concern, since_ns=now - since_ns, remedy=remedy_of(concern)))
        return tuple(found)


def standing_agents(shared: LeaderState, host_sessions: HostSessions) -> list[Concern]:
    """Return agents that wait in the middle of a durable turn, from heartbeats: the named ones, and the number of others by host."""
    found: list[Concern] = []
    for host in host_sessions.attached():
        session = host_sessions.attached_session(host)
        if session is None:
            continue
        heard_ns, beat = max(0, shared.now - session.beaten_ns), session.heartbeat
        named = [told for told in beat.standing if told.kind in KINDS]  # a host of another release may say more
        for told in named:
            text = f"agent {told.agent} on host {host} stands in the middle of a turn: {told.reason}"
            found.append(Concern(told.kind, (host,), told.elapsed_ns + heard_ns, text, (told.agent,)))
        more = beat.agents_standing - len(named)
        if more > 0 and named:
            last = named[-1]
            text = (
                f"{more:,} more {'agents stand' if more > 1 else 'agent stands'} in the middle of a turn on host {host}"
            )
            found.append(Concern(last.kind, (host,), last.elapsed_ns + heard_ns, text))
    return found


def aborted_epochs(shared: LeaderState, store: StoreWatch) -> list[Concern]:
    """Return the concern that epochs are aborted in a row, though the store is healthy: the fleet works, and nothing is saved."""
    state = shared.state
    if state.phase != RUNNING or store.is_degraded:
        return []
    count = 0
    for end in reversed(state.image.ends):
        if end.is_complete:
            break
        count += 1
    if count < ABORTED_MIN:
        return []
    text = f"the last {count} epochs were aborted, and nothing is saved of what agents do; the last one: {state.image.ends[-1].reason}"
    return [Concern("epochs", (), 0, text)]
