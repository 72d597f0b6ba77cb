"""Runs an SDK's asynchronous code inside a durable turn, in rounds.

An SDK starts tasks of its own, each with several waits in a row. If their results came back as they end, a rerun of the turn might make its
requests in another order. So the code runs in an event loop of its own that knows nothing but the turn: it lets all tasks run until each of
them waits. What they wait for is then one group of the turn (`Context.gather`), in the order in which it was requested. All tasks go on when
all results are there, in that order. This is slower than running free, but it is a sequence, which a rerun repeats.

The loop's clock is the turn's: it stands still while tasks run, and `asyncio.sleep` becomes `Context.sleep`. Time limits that the SDK sets
around a step therefore never end it; steps have time limits of their own. Code that waits for a thread or for the network, outside of a
step, cannot be repeated, and gets an error.
"""

import asyncio
import contextlib
import contextvars
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TypeVar

from snapline.adapters.stepped_thread import SteppedThread, TurnUndoneError
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import GROUP_MAX
from snapline.errors import UsageError

_Result = TypeVar("_Result")

_running: ContextVar["Rounds | None"] = ContextVar("snapline-rounds", default=None)

Make = Callable[[], Awaitable[Any]]


class _Request:
    """Something that a task waits for. `make` creates the awaitable of the context."""

    __slots__ = ("future", "make")

    def __init__(self, make: Make, future: "asyncio.Future[Any]") -> None:
        self.make = make
        self.future = future


class Rounds:
    """A run of an SDK inside a durable turn.

    Attributes:
        ctx: the turn's context. Its methods that need no `await` may be called directly, and all others through `wait`.
        now_ns: the turn's time in nanoseconds since 1970: that of its begin or of the end of the last round.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._thread = SteppedThread(lambda: None)
        self._pending: list[_Request] = []
        self._slept_s = 0.0
        self.now_ns = 0

    async def run(self, main: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run `main` in the turn, and return its result. The handler awaits this method."""
        self.now_ns = self.ctx.now()
        self._thread = SteppedThread(lambda: self._run(main))
        result: _Result = await self._thread.run()
        return result

    async def wait(self, make: Callable[[], Awaitable[_Result]]) -> _Result:
        """Wait for what `make` returns, such as `lambda: rounds.ctx.call(…)`. Tasks of the run call this method."""
        future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._pending.append(_Request(make, future))
        return await future

    def block(self, wanted: Awaitable[_Result]) -> _Result:
        """Wait for an awaitable of the context, and let no task go on meanwhile. Code that is no coroutine calls this method."""
        result: _Result = self._thread.wait(wanted)
        return result

    def now(self) -> datetime:
        """Return the turn's time (`now_ns`)."""
        return datetime.fromtimestamp(self.now_ns / 1e9, UTC)

    def elapsed_s(self) -> float:
        """Return the time in seconds for which the run has slept."""
        return self._slept_s

    def idle(self, timeout_s: float | None) -> None:
        """Wait because no task can go on. `timeout_s` is the time until the loop's next timer, or None if there is none.

        Raises:
            UsageError: If the tasks wait for something that is not the turn's.
        """
        if self._pending:
            self._round()
        elif timeout_s is not None:
            self._thread.wait(self.ctx.sleep(timeout_s))
            self._slept_s += timeout_s
            self.now_ns = self.ctx.now()
        else:
            raise UsageError(
                f"code that agent {self.ctx.agent!r} runs in a durable turn waits for a thread or the network: do that in a tool, or "
                "in a step (`rounds.wait(lambda: rounds.ctx.step(…))`)"
            )

    def _round(self) -> None:
        batch, self._pending = self._pending[:GROUP_MAX], self._pending[GROUP_MAX:]
        members = [_outcome_of(request.make()) for request in batch]
        is_alone = len(members) == 1
        outcomes = [self._thread.wait(members[0])] if is_alone else self._thread.wait(self.ctx.gather(*members))
        self.now_ns = self.ctx.now()
        for request, (found, error) in zip(batch, outcomes, strict=True):
            if request.future.cancelled():
                continue
            if error is not None:
                request.future.set_exception(error)
            else:
                request.future.set_result(found)

    def _run(self, main: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run `main` to its end. This method runs in the stepped thread."""
        _running.set(self)
        loop = _RoundLoop(self)
        try:
            return loop.run_until_complete(main())
        finally:
            self._pending.clear()
            with contextlib.suppress(TurnUndoneError, UsageError):
                loop.run_until_complete(_end_all(asyncio.all_tasks(loop)))
                loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


async def _end_all(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _outcome_of(wanted: Awaitable[_Result]) -> tuple[_Result | None, Exception | None]:
    try:
        return await wanted, None
    except Exception as error:
        return None, error


class _RoundSelector(selectors.BaseSelector):
    """Selector that lets a turn wait when the loop would wait for its sockets."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._inner = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._inner.select(0)
        if not found and (timeout is None or timeout > 0):
            self._rounds.idle(timeout)
        return found

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class _RoundLoop(asyncio.SelectorEventLoop):
    """Event loop whose waits and clock are those of a turn."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        super().__init__(_RoundSelector(rounds))

    def time(self) -> float:
        return self._rounds.elapsed_s()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Call the function at once, because a thread's end would decide which requests are in one round."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def current_rounds() -> Rounds | None:
    """Return the run that the calling code belongs to, or None if no durable turn runs it."""
    return _running.get()


def outside() -> contextvars.Context:
    """Return a copy of the caller's context in which no turn runs the code, for the work of a step."""
    context = contextvars.copy_context()
    context.run(_running.set, None)
    return context
