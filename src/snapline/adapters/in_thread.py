"""Work of coroutines that goes to the disk: in a thread, and over when its caller is over."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `function` in a thread of the event loop's pool.

    Nobody can stop a thread. So a caller that is cancelled waits until the function has ended, and is cancelled then: what it writes
    never comes later than what is written next.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():  # cancelled more than once, perhaps; it ends when the disk has answered
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:
                continue
        if not running.cancelled():
            running.exception()  # seen: the caller does not want it any more
        raise
