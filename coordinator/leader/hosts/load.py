"""Load per agent and host, measured from heartbeats, for the placement of agents that must move.

Theory of operation
-------------------
A host counts the turns that its agents have taken. The difference of two counts under one plan gives the average turns per agent and
second. Counts are taken only while the fleet runs, since no agent works otherwise. An idle agent uses memory, so it weighs as much as
one turn per second.

Invariants:

1. Measures belong to the present plan, because another plan places agents differently.
2. If any host of the plan is not measured, none counts: otherwise agents would move to the unmeasured hosts.
3. Nothing is decided here. Weights go into the plan's log entry, and every replica places by that entry alone. A new leader has no
   measures, so it places by numbers of agents.
"""

from collections import Counter

import msgspec

from snapline.coordinator.leader.hosts.host_sessions import HostSession
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state.fleet_records import RUNNING

LEAST_NS = 2 * SECOND_NS
"""Shortest measuring time: some heartbeats."""

WINDOW_NS = 30 * SECOND_NS
"""Length of the measuring window; work counts for at most twice this time."""

AT_REST, WEIGHT_MAX = 10, 10_000
"""Weights of an idle agent and of one with a thousand turns per second, in tenths of a turn per second. Weights fit into two bytes."""


class _Mark(msgspec.Struct, frozen=True):
    """A host's turn count at one time."""

    at_ns: int
    turns: int


class _Measure(msgspec.Struct):
    """Marks of a host: start of the present window, start of the next window, and the latest."""

    first: _Mark
    second: _Mark
    latest: _Mark


class Loads:
    """Measured load of hosts. Volatile: the next leader measures again."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._plan = 0
        """Plan under which the measures were taken."""
        self._measures: dict[str, _Measure] = {}

    def on_heartbeat(self, session: HostSession) -> None:
        """Take the number of turns from a host's heartbeat."""
        state = self._shared.state
        if state.phase != RUNNING:
            return
        if self._plan != state.plan_number:
            self._plan, self._measures = state.plan_number, {}
        mark = _Mark(self._shared.now, session.heartbeat.turns)
        measure = self._measures.get(session.host)
        if measure is None or mark.turns < measure.latest.turns:
            self._measures[session.host] = _Measure(mark, mark, mark)
            return
        measure.latest = mark
        if mark.at_ns - measure.second.at_ns >= WINDOW_NS:
            measure.first, measure.second = measure.second, mark

    def weights(self) -> tuple[int, ...]:
        """Return the weight per agent for each host of the plan, in the plan's order; empty: unknown, or all equal."""
        state, plan = self._shared.state, self._shared.state.plan
        if plan is None or self._plan != plan.number:
            return ()
        agents = Counter(record.host for _, record in state.living_agents())
        weights = [self._weight(host, agents[host]) for host in plan.hosts]
        return () if None in weights or len(set(weights)) == 1 else tuple([weight for weight in weights if weight])

    def _weight(self, host: str, agents: int) -> int | None:
        """Return the weight; None: the host was not measured for long enough."""
        measure = self._measures.get(host)
        passed_ns = measure.latest.at_ns - measure.first.at_ns if measure is not None else 0
        if measure is None or passed_ns < LEAST_NS:
            return None
        tenths = 10 * (measure.latest.turns - measure.first.turns) * SECOND_NS // (passed_ns * max(1, agents))
        return min(AT_REST + tenths, WEIGHT_MAX)
