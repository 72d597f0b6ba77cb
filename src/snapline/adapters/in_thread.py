"""Run blocking disk work of coroutines in a thread, and wait for its end even if the caller is cancelled."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `function` in a thread of the event loop's pool.

    A thread cannot be stopped. So a cancelled caller waits until the function has ended before it is cancelled; this way a
    write never lands after a later one.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while (
            not running.done()
        ):  # the caller may be cancelled more than once; the loop ends when the disk has answered
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:
                continue
        if not running.cancelled():
            running.exception()  # marks it as retrieved: the cancelled caller does not need it
        raise
