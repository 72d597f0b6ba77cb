"""Load of agents, host by host, from heartbeats: for the placement of agents that must move.

Theory of operation
-------------------
A host counts the turns that its agents have taken. Two of these numbers, under one plan and so of one run of the host, give the average
turns of an agent there in a second; only while the fleet runs, since no agent works otherwise. An agent at rest weighs something too,
its memory, as much as one turn in a second.

Invariants:

1. Measures belong to the present plan: under another one other agents are there.
2. All hosts of the plan are measured, or none counts: half of a comparison would send agents to the hosts that were not measured.
3. Nothing is decided here. Weights go into the plan's entry, and every replica places by that entry alone; a leader that has just been
   elected has measured nothing, and places by numbers of agents.
"""

from collections import Counter

import msgspec

from snapline.coordinator.leader.hosts.host_sessions import HostSession
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state.fleet_records import RUNNING

LEAST_NS = 2 * SECOND_NS
"""Shortest time to measure: some heartbeats."""

WINDOW_NS = 30 * SECOND_NS
"""Age after which work does not count any more; twice that at most."""

AT_REST, WEIGHT_MAX = 10, 10_000
"""Weight of an idle agent, in tenths of a turn in a second; and of one with a thousand turns. Two bytes for each host of a plan."""


class _Mark(msgspec.Struct, frozen=True):
    """Number of turns that a host had taken at some time."""

    at_ns: int
    turns: int


class _Measure(msgspec.Struct):
    """Marks of a host: the beginning of the window and of the next one, and the latest."""

    first: _Mark
    second: _Mark
    latest: _Mark


class Loads:
    """Measured load of hosts. Volatile: the next leader measures again."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._plan = 0
        """The plan under which all of this was measured."""
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
        """Return the weight of an agent of each host of the plan, in their order; empty: not known, or all the same."""
        state, plan = self._shared.state, self._shared.state.plan
        if plan is None or self._plan != plan.number:
            return ()
        agents = Counter(record.host for _, record in state.living_agents())
        found = [self._weight(host, agents[host]) for host in plan.hosts]
        return () if None in found or len(set(found)) == 1 else tuple([weight for weight in found if weight])

    def _weight(self, host: str, agents: int) -> int | None:
        """Return the weight; None: the host was not measured for long enough."""
        measure = self._measures.get(host)
        passed_ns = measure.latest.at_ns - measure.first.at_ns if measure is not None else 0
        if measure is None or passed_ns < LEAST_NS:
            return None
        tenths = 10 * (measure.latest.turns - measure.first.turns) * SECOND_NS // (passed_ns * max(1, agents))
        return min(AT_REST + tenths, WEIGHT_MAX)
