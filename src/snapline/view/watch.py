"""Read the state of a fleet for all viewers.

The coordinator gets one request a second for any number of viewers, and no requests without viewers.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from snapline.errors import SnaplineError, UsageError
from snapline.ids import natural_key
from snapline.messages.answers import LocatedAgent
from snapline.messages.status import FleetStatus
from snapline.view.facts import FleetCalls, LatestStatus, TurnRates

PERIOD_S = 1.0
"""Time between two status requests. Shorter is useless, because hosts report their state with heartbeats, which are not more frequent."""

AGENTS_S = 30.0
"""Time between two requests for the placement, because the answer is long for ten thousand agents. A change of hosts, plan or agent count
causes an earlier request."""

VIEWERS_MAX = 64
"""Largest number of concurrent viewer streams."""


class FleetWatch:
    """Latest known state of the fleet, and the viewers that wait for changes. Use an instance from one event loop only."""

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
        """Latest known state of the fleet."""
        return self._state

    async def now(self) -> LatestStatus:
        """Return the state of the fleet, at most one period old."""
        async with self._asking:
            if time.monotonic() - self._asked_s >= self._period_s:
                await self._ask()
        return self._state

    async def follow(self) -> AsyncGenerator[LatestStatus, None]:
        """Yield the state of the fleet, now and after every request.

        Raises:
            UsageError: there are too many viewers.
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
