"""Declare the requests of the view to a fleet, and store the last answers: status, agents, and turns per second."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from snapline.messages.answers import LocatedAgent, ReadConsumersReply, ReadOutputsReply
from snapline.messages.client_requests import AgentState, RecentTrace
from snapline.messages.status import AskedReplica, FleetStatus

COURSE_MAX = 120
"""Largest number of samples in the sparkline: two minutes, with one sample per second."""

WINDOW_S = 5.0
"""Length of the window over which a rate is computed. Hosts report their counts with heartbeats, not on request."""


ENDED = ("finished", "failed")
"""Phases of a fleet that has ended."""


class FleetCalls(Protocol):
    """Requests of the view to a fleet: a subset of the methods of `snapline.Client`."""

    async def status(self) -> FleetStatus: ...
    async def agents(self) -> list[LocatedAgent]: ...
    async def describe(self, agent: str, timeout_s: float = ...) -> dict[str, object]: ...


class ViewCalls(FleetCalls, Protocol):
    """Requests that the view's other screens need in addition."""

    async def state(self, agent: str, *, live: bool = ..., timeout_s: float = ...) -> AgentState: ...
    async def snapshot_at(self, snapshot: str) -> dict[str, object]: ...
    async def line_of(self, failed: Sequence[str]) -> Mapping[str, object]: ...
    async def lines_of_each(self) -> dict[str, object]: ...
    async def recoveries(self) -> dict[str, object]: ...
    async def epoch_history(self) -> dict[str, object] | None: ...
    async def replicas(self) -> list[AskedReplica]: ...
    async def waiting(self) -> dict[str, object]: ...
    async def outputs_page(self, after: str, topic: str = ...) -> ReadOutputsReply: ...
    async def consumers(self) -> ReadConsumersReply: ...
    async def recent_traces(
        self, after: Mapping[str, str], *, every: int, most: int
    ) -> Mapping[str, RecentTrace | None]: ...


class LatestStatus(msgspec.Struct, frozen=True):
    """Latest known state of the fleet.

    Attributes:
        facts: the last answer; None if no answer has arrived yet.
        updated_s: time of the last answer, in seconds since 1970.
        trouble: reason why the last request has no answer; "" if the request was answered.
        turns_per_s: turns per second of all hosts; None if unknown.
        host_turns_per_s: host → turns per second, for hosts whose rate is known.
        course: samples of turns per second, oldest first.
        agents: all agents, sorted.
    """

    facts: FleetStatus | None = None
    updated_s: float = 0.0
    trouble: str = ""
    turns_per_s: float | None = None
    host_turns_per_s: Mapping[str, float] = {}
    course: tuple[float, ...] = ()
    agents: tuple[LocatedAgent, ...] = ()


class TurnRates:
    """Computes turns per second from the counts that hosts report."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        self._course: deque[float] = deque(maxlen=COURSE_MAX)

    def note(self, now_s: float, facts: FleetStatus) -> tuple[dict[str, float], tuple[float, ...]]:
        """Add a sample. Return the rate of each host that has at least two samples, and the history of the total rate."""
        turns = {host.host: host.turns for host in facts.hosts if host.state == "alive"}
        self._samples.append((now_s, turns))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()
        earlier_s, before = self._samples[0]
        passed_s = now_s - earlier_s
        if passed_s <= 0:
            return {}, tuple(self._course)
        rates = {
            host: max(0, count - before[host]) / passed_s  # a restarted host counts from 0
            for host, count in turns.items()
            if host in before
        }
        self._course.append(sum(rates.values()))
        return rates, tuple(self._course)
