"""Programs that wait for answers: the client's record of each, and the room for them."""

import asyncio
from collections.abc import Callable

from snapline.client import events as ev
from snapline.client.endings import Receipt
from snapline.messages.input_wire import encode_ask

ASKS_MAX = 1000
"""Largest number of answers that a client waits for at once; more wait for room."""

ROOM_S = 1.0
"""Time after an ask's end at which its wait for room ends: the core's decision at the end comes first."""


class _Waiting:
    __slots__ = ("ending", "question")

    def __init__(self, question: bytes) -> None:
        self.question = question
        self.ending: asyncio.Future[ev.FinishAsk] = asyncio.get_running_loop().create_future()


class WaitingAsks:
    """Waiting asks of one client. `feed`: hands an event to its core."""

    def __init__(self, feed: Callable[[ev.Event], None]) -> None:
        self._feed = feed
        self._room = asyncio.Semaphore(ASKS_MAX)
        self._waiting: dict[int, _Waiting] = {}
        self._count = 0

    async def hear(self, agent: str, key: str, deadline_s: float, *, is_early: bool = False) -> ev.FinishAsk:
        """Wait for the outcome of the input of this key, which must have been given; until the loop's time `deadline_s`."""
        try:
            async with asyncio.timeout_at(deadline_s + ROOM_S), self._room:
                return await self._ask(agent, key, deadline_s, is_early=is_early)
        except TimeoutError:
            return ev.FinishAsk(0, ev.LATE, "this client waits for too many answers")

    async def hear_of(self, receipt: Receipt, deadline_s: float, *, is_early: bool = False) -> ev.FinishAsk:
        """Wait for the outcome of an input that was taken."""
        return await self.hear(receipt.agent, receipt.key, deadline_s, is_early=is_early)

    async def _ask(self, agent: str, key: str, deadline_s: float, *, is_early: bool) -> ev.FinishAsk:
        self._count += 1
        number = self._count
        waiting = self._waiting[number] = _Waiting(encode_ask(agent, key, is_early=is_early))
        try:
            self._feed(ev.AnswerWanted(number, agent, round(deadline_s * 1e9)))
            return await waiting.ending
        except asyncio.CancelledError:
            self._feed(ev.AskDropped(number))
            raise
        finally:
            self._waiting.pop(number, None)

    def question(self, ask: int) -> bytes:
        """Return the question for a host."""
        return self._waiting[ask].question

    def finish(self, said: ev.FinishAsk) -> None:
        """Record the core's decision; the waiting program may have gone."""
        waiting = self._waiting.get(said.ask)
        if waiting is not None and not waiting.ending.done():
            waiting.ending.set_result(said)

    @property
    def endings(self) -> list[asyncio.Future[ev.FinishAsk]]:
        """Return the endings of all that wait."""
        return [each.ending for each in self._waiting.values()]
