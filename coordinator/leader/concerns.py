"""Collection of a fleet's concerns. Each part reports what it waits for; this module adds the start time and the remedy."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.hosts.host_sessions import HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state.fleet_records import RUNNING
from snapline.messages.concerns import KINDS, Concern, remedy_of

LOOK_NS = SECOND_NS // 2
"""Time between two checks of all parts: the heartbeat interval. Checking on each of thousands of events would be too much work."""


ABORTED_MIN = 3
"""Number of consecutive aborted epochs that raises a concern: a recovery, or a long turn, aborts one or two."""

Source = Callable[[], Sequence[Concern]]
"""Returns a part's present concerns; `since_ns` is 0 if the part does not record the start time."""


class Concerns:
    """The fleet's concerns. Volatile: a new leader collects them again."""

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
        reported = () if self._shared.state.image.outcome else [x for source in self._sources for x in source()]
        concerns = []
        self._since_ns = {}
        for concern in reported:
            key = concern.kind, concern.hosts, concern.agents
            since_ns = self._since_ns[key] = min(now - concern.since_ns, known.get(key, now))
            concerns.append(replace(concern, since_ns=now - since_ns, remedy=remedy_of(concern)))
        return tuple(concerns)


def standing_agents(shared: LeaderState, host_sessions: HostSessions) -> list[Concern]:
    """Return concerns for agents that wait inside a durable turn, from heartbeats: by name as far as reported, the rest as a count by host."""
    concerns: list[Concern] = []
    for host in host_sessions.attached():
        session = host_sessions.attached_session(host)
        if session is None:
            continue
        heard_ns, beat = max(0, shared.now - session.beaten_ns), session.heartbeat
        named = [
            standing for standing in beat.standing if standing.kind in KINDS
        ]  # skip kinds that only another release knows
        for standing in named:
            text = f"agent {standing.agent} on host {host} stands in the middle of a turn: {standing.reason}"
            concerns.append(Concern(standing.kind, (host,), standing.elapsed_ns + heard_ns, text, (standing.agent,)))
        unnamed = beat.agents_standing - len(named)
        if unnamed > 0 and named:
            last = named[-1]
            text = f"{unnamed:,} more {'agents are' if unnamed > 1 else 'agent is'} blocked in the middle of a turn on host {host}"
            concerns.append(Concern(last.kind, (host,), last.elapsed_ns + heard_ns, text))
    return concerns


def aborted_epoch_concerns(shared: LeaderState, store: StoreWatch) -> list[Concern]:
    """Return a concern if consecutive epochs were aborted although the store is healthy: the fleet works, but its work is not saved."""
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
