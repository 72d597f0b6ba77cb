"""Heartbeats of steps. A long-running function reports that it is alive, and learns when nobody waits for it any more.

The function is a coroutine, or runs in a thread, which cannot be stopped from outside. Both find the `Heartbeats` of their attempt in a context
variable. Each attribute is written by one side and read by the other, so no lock is needed. Details are in memory only: they pass from one attempt to
the next, and a recovery starts without them.
"""

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

from snapline.errors import StepCancelledError

_present: ContextVar["Heartbeats | None"] = ContextVar("snapline_step", default=None)


class Heartbeats:
    """Heartbeats of one attempt of a step.

    Attributes:
        before: last details sent by the previous attempt; None if there are none.
        told: last details sent by this attempt; initially `before`.
        count: number of heartbeats sent.
        is_over: nobody waits for this attempt any more.
    """

    __slots__ = ("before", "count", "is_over", "told")

    def __init__(self, before: Any) -> None:  # any details of the step
        self.before = self.told = before
        self.count = 0
        self.is_over = False

    def of(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Return the same function, with this beat where it runs."""
        if inspect.iscoroutinefunction(function):
            return functools.partial(self._awaited, function)

        def run() -> Any:  # the function's own result
            with self._present():
                outcome = function()
            return self._awaited(lambda: outcome) if inspect.isawaitable(outcome) else outcome

        return run

    async def _awaited(self, function: Callable[[], Any]) -> Any:  # the function's own result
        with self._present():
            return await function()

    @contextlib.contextmanager
    def _present(self) -> Iterator[None]:
        outer = _present.get()
        _present.set(self)
        try:
            yield
        finally:
            _present.set(outer)


def heartbeat(details: Any = None) -> Any:  # whatever the step tells
    """Report that the running step is alive. The step's function calls this now and then; outside a step it has no effect.

    A thread started by the function does not belong to the step: call this there through `contextvars.copy_context().run`.

    Args:
        details: progress of the step. The next attempt, if there is one, gets the last details; a recovery forgets them.

    Returns:
        The last details of the previous attempt; None if there are none.

    Raises:
        StepCancelledError: nobody waits for this attempt any more: its turn was undone, it timed out, or it sent no heartbeat for too long. Release
            all resources and return.
    """
    beat = _present.get()
    if beat is None:
        return None
    if beat.is_over:
        raise StepCancelledError("nobody waits for this step any more: let go of everything, and end")
    if details is not None:
        beat.told = details
    beat.count += 1
    return beat.before


async def await_with_heartbeats(
    running: Awaitable[Any], beat: Heartbeats, seconds: float
) -> Any:  # the result of what runs
    """Wait for `running` as long as it sends heartbeats.

    Raises:
        TimeoutError: no heartbeat came between two checks, `seconds` apart.
    """
    task = asyncio.ensure_future(running)
    try:
        while True:
            count = beat.count
            done, _ = await asyncio.wait([task], timeout=seconds)
            if done:
                return task.result()
            if beat.count == count:
                raise TimeoutError(f"it was not heard of for {seconds:g} s")
    finally:
        if task.cancel():
            await asyncio.wait([task])
