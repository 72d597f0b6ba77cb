"""Heartbeats of steps. A function that takes long reports that it lives, and learns when nobody waits for it any more.

The function runs in a thread, which nobody can end from outside; or it is a coroutine. Both see the *beat* of their attempt in a context variable. It
is written by the one side and read by the other, one attribute at a time: so it needs no lock. Details are in memory alone: they go from one attempt
to the next, and a recovery begins anew.
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
        before: details that the attempt before has sent last; None: none, or there was no attempt.
        told: details that this one has sent last; until then `before`.
        count: number of heartbeats.
        is_over: nobody waits for it any more.
    """

    __slots__ = ("before", "count", "is_over", "told")

    def __init__(self, before: Any) -> None:  # whatever steps tell
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
    """Report that the running step lives; to be called by its function, now and then. Outside a step it does nothing.

    A thread that the function starts itself is not the step's: call it there by `contextvars.copy_context().run`.

    Args:
        details: how far it has come. The next attempt, if there is one, gets the last ones; a recovery forgets them.

    Returns:
        The last details of the attempt before this one; None if there was none, or it sent none.

    Raises:
        StepCancelledError: nobody waits for this attempt any more: its turn was undone, its time is over, or it sent no heartbeat for too long.
            Release everything, and end.
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


async def heard_of(running: Awaitable[Any], beat: Heartbeats, seconds: float) -> Any:  # the result of what runs
    """Wait for it as long as it sends heartbeats.

    Raises:
        TimeoutError: it sent none from one check to the next, `seconds` later.
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
