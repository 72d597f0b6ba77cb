"""What the view asks of a fleet, and the last answers: status, agents, and turns per second."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from snapline.messages.answers import LocatedAgent, ReadConsumersReply, ReadOutputsReply
from snapline.messages.client_requests import AgentState, RecentTrace
from snapline.messages.status import AskedReplica, FleetStatus

COURSE_MAX = 120
"""Largest number of samples in the sparkline: two minutes, one a second."""

WINDOW_S = 5.0
"""Window of a rate, the last few seconds: hosts report their counts with heartbeats, not on request."""


ENDED = ("finished", "failed")
"""Phases in which the fleet has ended."""


class FleetCalls(Protocol):
    """Calls of the view to a fleet: a subset of `snapline.Client`."""

    async def status(self) -> FleetStatus: ...
    async def agents(self) -> list[LocatedAgent]: ...
    async def describe(self, agent: str, timeout_s: float = ...) -> dict[str, object]: ...


class ViewCalls(FleetCalls, Protocol):
    """Calls that the view's other screens need as well."""

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


class Heard(msgspec.Struct, frozen=True):
    """Latest known state of the fleet.

    Attributes:
        facts: the last answer; None: there was none yet.
        heard_s: time of the last answer, in seconds since 1970.
        trouble: why the last request has no answer; "" if it has one.
        turns_per_s: turns per second of all hosts; None: unknown. host_turns_per_s: by host, if known.
        course: turns per second, from the oldest sample to the newest.
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
    """Turns per second, from the counts of hosts."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        self._course: deque[float] = deque(maxlen=COURSE_MAX)

    def note(self, now_s: float, facts: FleetStatus) -> tuple[dict[str, float], tuple[float, ...]]:
        """Add a sample; return the rate of each host with two samples or more, and the course of the sum."""
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
