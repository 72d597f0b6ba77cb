"""Makes the requests of an SDK's agent, such as those to a model, as steps and effects of the turn that runs the agent (`rounds.py`)."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypedDict

from snapline.adapters.rounds import Rounds, outside

Body = Callable[[], Awaitable[object]]
"""Function that makes a request and returns its result as plain values."""


class StepOptions(TypedDict, total=False):
    """Options of the step or effect that makes a request, as for `Context.step` and `Context.effect`. `effect` is for tools only."""

    timeout_s: float
    retries: int | Sequence[float]
    effect: bool


_key: ContextVar[str] = ContextVar("snapline-effect-key", default="")


def effect_key() -> str:
    """Return the idempotency key under which a tool that is an effect must act, or "" in other tools and outside of a turn."""
    return _key.get()


async def make_request(
    rounds: Rounds, name: str, body: Body, options: StepOptions, context: contextvars.Context | None = None
) -> Any:  # the result as plain values
    """Make a request as a step of the turn, or as an effect. `context` is the context in which `body` runs; by default, a copy of the
    caller's context in which no turn runs it."""
    more: dict[str, Any] = {**options}
    work = functools.partial(_work, context or outside(), body)
    if more.pop("effect", False):
        return await rounds.wait(lambda: rounds.ctx.effect(name, work, **more), is_single=True)
    return await rounds.wait(lambda: rounds.ctx.step(name, work, **more))


async def _work(context: contextvars.Context, body: Body, *, key: str = "") -> object:
    """Make one request in the loop of this process's requests, whose connections it may use again."""

    async def made() -> object:
        return await body()

    context.run(_key.set, key)
    future = context.run(asyncio.run_coroutine_threadsafe, made(), _request_loop())
    if asyncio._get_running_loop() is None:  # the simulator's time stands still meanwhile
        return future.result()
    return await asyncio.wrap_future(future)


_loop_lock = threading.Lock()


@functools.cache
def _loop_of_process() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="snapline-requests", daemon=True).start()
    return loop


def _request_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop in which this process makes its requests. Clients of models keep connections that belong to one loop."""
    with _loop_lock:
        return _loop_of_process()
