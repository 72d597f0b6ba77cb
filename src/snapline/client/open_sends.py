"""Open inputs of a client, up to a limit and in the order of the calls, each with the program that waits for its receipt."""

import asyncio
from collections.abc import Callable, Sequence

from snapline.client import events as ev
from snapline.client.input_validation import check_timeout
from snapline.client.outcomes import Receipt, ending_of
from snapline.client.waiting import WaitingSend, late
from snapline.errors import SnaplineError
from snapline.messages.inputs import GivenInput

SENDS_MAX = 10_000
SENDS_BYTES_MAX = 64 * 1024 * 1024
"""Largest size of inputs that a client holds at once, several requests for many hosts. Beyond either limit, further inputs wait."""


class Sends:
    """Open sends of one client. `feed` hands events to its core; `waiting`: number → send."""

    def __init__(self, feed: Callable[[ev.Event], None]) -> None:
        self._feed = feed
        self.waiting: dict[int, WaitingSend] = {}
        self._bytes = 0
        self._count = 0
        self._gate = asyncio.Lock()
        self._room = asyncio.Event()

    async def outcomes(self, inputs: Sequence[GivenInput], timeout_s: float) -> list[Receipt | SnaplineError]:
        """Return the outcome of each input, in order."""
        check_timeout(timeout_s)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        entered: dict[int, WaitingSend] = {}
        try:
            await self._enter(inputs, deadline_s, entered)
            endings = [await waiting.ending for waiting in entered.values()]
        except asyncio.CancelledError:
            self._drop(entered)
            raise
        return [*endings, *[late(given) for given in inputs[len(endings) :]]]

    async def _enter(self, inputs: Sequence[GivenInput], deadline_s: float, entered: dict[int, WaitingSend]) -> None:
        """Hand the inputs to the core in the order of the calls, within the limits."""
        try:
            async with asyncio.timeout_at(deadline_s), self._gate:
                at = 0
                while at < len(inputs):
                    await self._wait_for_room()
                    at += self._enter_some(inputs[at:], deadline_s, entered)
        except TimeoutError:
            return

    async def _wait_for_room(self) -> None:
        while len(self.waiting) >= SENDS_MAX or self._bytes >= SENDS_BYTES_MAX:
            self._room.clear()
            await self._room.wait()

    def _enter_some(self, inputs: Sequence[GivenInput], deadline_s: float, entered: dict[int, WaitingSend]) -> int:
        """Enter as many inputs as the limits allow, at least one; return their number."""
        sends: list[ev.Send] = []
        for item in inputs:
            if sends and (len(self.waiting) >= SENDS_MAX or self._bytes >= SENDS_BYTES_MAX):
                break
            self._count += 1
            size_bytes = len(item.payload)
            entered[self._count] = self.waiting[self._count] = WaitingSend(item)
            self._bytes += size_bytes
            sends.append(ev.Send(self._count, item.agent, size_bytes, round(deadline_s * 1e9)))
        self._feed(ev.InputsGiven(tuple(sends)))
        return len(sends)

    def _drop(self, entered: dict[int, WaitingSend]) -> None:
        """Drop sends that no program waits for any more. Sends in a request may still be accepted."""
        dropped = tuple([send for send in entered if send in self.waiting])
        for send in dropped:
            self._forget(send)
        self._feed(ev.SendsDropped(dropped))

    def _forget(self, send: int) -> WaitingSend:
        waiting = self.waiting.pop(send)
        self._bytes -= len(waiting.given.payload)
        self._room.set()
        return waiting

    def finish(self, said: ev.FinishSend) -> None:
        """Record the core's outcome of a send."""
        waiting = self._forget(said.send)
        if not waiting.ending.done():
            waiting.ending.set_result(ending_of(said, waiting.given.agent, waiting.given.key))
