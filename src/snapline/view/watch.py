"""Read a fleet's state once for all viewers.

For any number of viewers, the coordinator receives one request per second, and without viewers it receives none. `FleetCalls` declares
these requests. `LatestStatus` contains the latest status, the agents, and the turns per second.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from snapline.errors import SnaplineError, UsageError
from snapline.ids import natural_key
from snapline.messages.answers import LocatedAgent, ReadConsumersReply, ReadOutputsReply
from snapline.messages.client_requests import AgentState, RecentTrace
from snapline.messages.status import AskedReplica, FleetStatus

COURSE_MAX = 120
"""Largest number of samples in the sparkline. With one sample per second, they cover two minutes."""

WINDOW_S = 5.0
"""Length in seconds of the window over which a rate is computed. Hosts report their counts with heartbeats, not on request."""


ENDED = ("finished", "failed")
"""Phases of a fleet that has ended."""


class FleetCalls(Protocol):
    """Requests to a fleet that the pages of the live fleet need. These requests are methods of `snapline.Client`."""

    async def status(self) -> FleetStatus: ...
    async def agents(self) -> list[LocatedAgent]: ...
    async def describe(self, agent: str, timeout_s: float = ...) -> dict[str, object]: ...


class ViewCalls(FleetCalls, Protocol):
    """Additional requests that the other screens of the view need."""

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
        facts: latest status reply, or None if none has arrived yet.
        updated_s: time of the latest status reply, in seconds since 1970.
        trouble: reason why the latest request was not answered, or "" if it was.
        turns_per_s: total turns per second of all hosts, or None if unknown.
        host_turns_per_s: turns per second of each host with a known rate.
        course: samples of the fleet's total turns per second, oldest first.
        agents: all agents and their hosts, sorted by agent.
    """

    facts: FleetStatus | None = None
    updated_s: float = 0.0
    trouble: str = ""
    turns_per_s: float | None = None
    host_turns_per_s: Mapping[str, float] = {}
    course: tuple[float, ...] = ()
    agents: tuple[LocatedAgent, ...] = ()


class TurnRates:
    """Computes rates in turns per second from the counts that hosts report."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        self._course: deque[float] = deque(maxlen=COURSE_MAX)

    def note(self, now_s: float, facts: FleetStatus) -> tuple[dict[str, float], tuple[float, ...]]:
        """Add a sample. Return the rate of each host with at least two samples, and the past samples of the total rate."""
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


PERIOD_S = 1.0
"""Time in seconds between two status requests. A shorter time would be useless, because hosts report their state with heartbeats, which are
not more frequent."""

AGENTS_S = 30.0
"""Time in seconds between two requests for the placement. The time is long because the reply for ten thousand agents is large. A change of
the hosts, the plan or the number of agents causes an earlier request."""

VIEWERS_MAX = 64
"""Largest number of concurrent viewer streams."""


class FleetWatch:
    """Keeps the latest known state of the fleet, and the viewers that are waiting for changes. Each instance may be used from only one
    event loop."""

    def __init__(self, calls: FleetCalls, period_s: float = PERIOD_S) -> None:
        self._calls = calls
        self._period_s = period_s
        self._rates = TurnRates()
        self._state = LatestStatus()
        self._asked_s = float("-inf")
        self._asking = asyncio.Lock()
        self._agents_of: tuple[object, ...] = ()
        self._agents_s = float("-inf")
        self._news: set[asyncio.Event] = set()
        self._looking: asyncio.Task[None] | None = None

    @property
    def last(self) -> LatestStatus:
        """The latest known state of the fleet."""
        return self._state

    async def now(self) -> LatestStatus:
        """Return the state of the fleet, which is at most one period old."""
        async with self._asking:
            if time.monotonic() - self._asked_s >= self._period_s:
                await self._ask()
        return self._state

    async def follow(self) -> AsyncGenerator[LatestStatus, None]:
        """Yield the state of the fleet at once, and again after every status request.

        Raises:
            UsageError: If there are already `VIEWERS_MAX` viewers.
        """
        if len(self._news) >= VIEWERS_MAX:
            raise UsageError(f"{VIEWERS_MAX} viewers look already: close one")
        news = asyncio.Event()
        self._news.add(news)
        try:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
            yield await self.now()
            while True:
                await news.wait()
                news.clear()
                yield self._state
        finally:
            self._news.discard(news)
            if not self._news:
                await self.close()

    async def close(self) -> None:
        """Stop requesting the state of the fleet."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + self._period_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            async with self._asking:
                await self._ask()
            for news in self._news:
                news.set()

    async def _ask(self) -> None:
        try:
            facts = await self._calls.status()
            agents = await self._agents(facts)
        except SnaplineError as error:
            self._asked_s = time.monotonic()
            self._state = msgspec.structs.replace(self._state, trouble=str(error), turns_per_s=None)
            return
        self._asked_s = time.monotonic()
        rates, course = self._rates.note(self._asked_s, facts)
        self._state = LatestStatus(
            facts=facts,
            updated_s=time.time(),
            turns_per_s=sum(rates.values()) if rates else None,
            host_turns_per_s=rates,
            course=course,
            agents=agents,
        )

    async def _agents(self, facts: FleetStatus) -> tuple[LocatedAgent, ...]:
        key: tuple[Any, ...] = (
            *(facts.phase, facts.plan, facts.agents),
            *((host.host, host.state, host.host_start) for host in facts.hosts),
        )
        now_s = time.monotonic()
        if key != self._agents_of or now_s >= self._agents_s + AGENTS_S:
            agents = tuple(sorted(await self._calls.agents(), key=lambda each: natural_key(each.agent)))
            self._agents_of, self._agents_s = key, now_s
            return agents
        return self._state.agents
