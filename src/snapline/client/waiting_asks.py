"""Programs that wait for answers: the client's record of each, and the limit on their number."""

import asyncio
from collections.abc import Callable

from snapline.client import events as ev
from snapline.client.outcomes import Receipt
from snapline.messages.client_wire import encode_ask

ASKS_MAX = 1000
"""Largest number of answers that a client waits for at once; further asks wait until one of them ends."""

ROOM_S = 1.0
"""Extra time that an ask waits for a free slot after its deadline, so that the core's decision comes first."""


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

    async def wait_for_answer(self, agent: str, key: str, deadline_s: float, *, is_early: bool = False) -> ev.FinishAsk:
        """Wait for the outcome of an accepted input with this key, until the loop's time `deadline_s`."""
        try:
            async with asyncio.timeout_at(deadline_s + ROOM_S), self._room:
                return await self._ask(agent, key, deadline_s, is_early=is_early)
        except TimeoutError:
            return ev.FinishAsk(0, ev.LATE, "this client waits for too many answers")

    async def wait_for_answer_to(self, receipt: Receipt, deadline_s: float, *, is_early: bool = False) -> ev.FinishAsk:
        """Wait for the outcome of the input of a receipt."""
        return await self.wait_for_answer(receipt.agent, receipt.key, deadline_s, is_early=is_early)

    async def _ask(self, agent: str, key: str, deadline_s: float, *, is_early: bool) -> ev.FinishAsk:
        self._count += 1
        number = self._count
        waiting = self._waiting[number] = _Waiting(encode_ask(agent, key, is_early=is_early))
        try:
            self._feed(ev.AnswerRequested(number, agent, round(deadline_s * 1e9)))
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
        """Record the core's decision; the waiting program may be gone."""
        waiting = self._waiting.get(said.ask)
        if waiting is not None and not waiting.ending.done():
            waiting.ending.set_result(said)

    @property
    def endings(self) -> list[asyncio.Future[ev.FinishAsk]]:
        """Return the futures of all waiting asks."""
        return [waiting_ask.ending for waiting_ask in self._waiting.values()]
