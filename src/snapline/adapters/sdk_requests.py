"""Makes the requests of an SDK's agent, such as those to a model, as steps and effects of the turn that runs the agent (`rounds.py`)."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, TypedDict

from pydantic_core import to_jsonable_python

from snapline.adapters.rounds import Rounds, outside
from snapline.agent_runtime.message_encoding import encode_ordered
from snapline.telemetry.model_requests import SdkRequest, following

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
    rounds: Rounds,
    name: str,
    body: Body,
    options: StepOptions,
    *,
    arguments: Sequence[object],
    request: SdkRequest | None,
    context: contextvars.Context | None = None,
) -> Any:  # the result as plain values
    """Make a request as a step of the turn, or as an effect.

    Args:
        arguments: what is asked, as plain values. A recorded answer is taken only for equal arguments.
        request: what to tell of the request in spans and metrics, or None if it goes neither to a model nor to a tool.
        context: the context in which `body` runs; by default, a copy of the caller's context in which no turn runs it.
    """
    more: dict[str, Any] = {**options}
    work = functools.partial(_work, context or outside(), body, request)
    if more.pop("effect", False):
        return await rounds.wait(lambda: rounds.ctx.effect(name, work, *arguments, **more))
    return await rounds.wait(lambda: rounds.ctx.step(name, work, *arguments, **more))


DIGEST_BYTES = 8

_TIMES_AND_RUNS = frozenset({"timestamp", "run_id", "conversation_id"})
"""Fields of messages that differ between two runs that ask the same."""


def digest_of_request(parts: object) -> str:
    """Return a digest of what an SDK asks a model: the content of messages and settings, without times and the ids of runs.

    Messages must not be arguments themselves, because effects show their arguments to people, and a conversation is long.
    """
    plain = to_jsonable_python(parts, fallback=lambda value: type(value).__qualname__, bytes_mode="base64")
    return blake2b(encode_ordered(_content(plain)), digest_size=DIGEST_BYTES).hexdigest()


def _content(value: Any) -> Any:
    if isinstance(value, dict):
        names = [name for name in value if name not in _TIMES_AND_RUNS and not str(name).startswith("_")]
        return {name: _content(value[name]) for name in names}
    return [_content(each) for each in value] if isinstance(value, list) else value


async def _work(
    context: contextvars.Context, body: Body, request: SdkRequest | None, *_: object, key: str = ""
) -> object:
    """Make one request in the loop of this process's requests, whose connections it may use again."""

    async def made() -> object:
        return await body()

    context.run(_key.set, key)
    with following(request, context) as answered:
        future = context.run(asyncio.run_coroutine_threadsafe, made(), _request_loop())
        # The simulator has no running loop, and its time stands still meanwhile.
        is_simulated = asyncio._get_running_loop() is None
        result = future.result() if is_simulated else await asyncio.wrap_future(future)
        answered(result)
    return result


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
