"""Proposals in flight, and their time-outs."""

import asyncio
import math
from typing import TypeVar

from snapline.coordinator.raft.outcomes import Outcome, Unknown

T = TypeVar("T")


class Pending:
    """Futures that get their proposal's outcome, or *unknown* after a time-out. On one event loop.

    All share one timer: a timer for each would be a seventh of a proposal's cost.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadlines: dict[asyncio.Future[Outcome], tuple[float, float]] = {}
        """Future → (deadline by the loop's time, time-out), in seconds."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, timeout_s: float) -> "asyncio.Future[Outcome]":
        """Return a future for one more proposal. Once it has its outcome, `discard` it."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        at_s = self._loop.time() + timeout_s
        self._deadlines[future] = at_s, timeout_s
        if at_s < self._timer_s:
            self._set_timer(at_s)
        return future

    def discard(self, future: "asyncio.Future[Outcome]") -> None:
        """Stop waiting for a future."""
        del self._deadlines[future]

    def give_up(self, reason: str) -> None:
        """Settle all futures as unknown."""
        for future in self._deadlines:
            settle(future, Unknown(reason))

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(at_s, self._look), at_s

    def _look(self) -> None:
        now_s = self._loop.time()
        for future, (at_s, timeout_s) in self._deadlines.items():
            if at_s <= now_s:
                settle(future, Unknown(f"no answer within {timeout_s} s"))
        self._timer, self._timer_s = None, math.inf
        next_s = min([at_s for at_s, _ in self._deadlines.values() if at_s > now_s], default=math.inf)
        if next_s < math.inf:
            self._set_timer(next_s)


def settle(future: "asyncio.Future[T]", value: T) -> None:
    """Set a future's result, unless it is done or cancelled."""
    if not future.done():
        future.set_result(value)


def settle_error(future: "asyncio.Future[T]", error: BaseException) -> None:
    """Set a future's exception, unless it is done or cancelled."""
    if not future.done():
        future.set_exception(error)
