"""Defines the environment in which handlers run: clocks, random numbers, external calls and the execution of steps.

*Heartbeats of steps.* A long-running function sends heartbeats to report that it is alive, and learns from them when its result is no
longer needed. The function is a coroutine or runs in a thread, and a thread cannot be stopped from outside. In both cases, a context
variable holds the `Heartbeats` of the current attempt. Each attribute of `Heartbeats` is written either only by the function or only by the
runtime, so no lock is needed. The details of heartbeats are kept only in memory. Each attempt gets the details of the previous attempt, but
a recovery loses these details.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from snapline.agent_runtime.agent import Handler
from snapline.agent_runtime.durable import StepWork
from snapline.channels.child_processes import exit_if_child
from snapline.errors import GuardViolationError, StepCancelledError, UsageError
from snapline.ids import is_plain
from snapline.storage.log.answer_files import RecordedAnswer

_present: ContextVar["Heartbeats | None"] = ContextVar("snapline_step", default=None)


class Heartbeats:
    """The heartbeats that one attempt of a step sends.

    Attributes:
        before: last details that the previous attempt sent, or None if there are none.
        reported: last details that this attempt sent. The initial value is `before`.
        count: number of heartbeats that this attempt has sent.
        is_over: whether the result of this attempt is no longer needed.
    """

    __slots__ = ("before", "count", "is_over", "reported")

    def __init__(self, before: Any) -> None:  # any details of the step
        self.before = self.reported = before
        self.count = 0
        self.is_over = False

    def of(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap `function` so that calls of `heartbeat` inside it use these heartbeats."""
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


def heartbeat(details: Any = None) -> Any:  # any details that the step reports
    """Report that the running step is alive. The function of a step must call `heartbeat` regularly. Outside a step the call has no effect.

    A thread that the step's function starts does not inherit the step's context. In such a thread, call `heartbeat` through
    `contextvars.copy_context().run`.

    Args:
        details: description of the step's progress, of any type. The next attempt, if there is one, gets the last details. A recovery loses
            them.

    Returns:
        The last details that the previous attempt sent, or None if there are none.

    Raises:
        StepCancelledError: If this attempt's result is no longer needed because the turn was undone, the attempt timed out, or heartbeats
            were missing for too long. The function should then release all resources and return.
    """
    beat = _present.get()
    if beat is None:
        return None
    if beat.is_over:
        raise StepCancelledError("nobody waits for this step any more: let go of everything, and end")
    if details is not None:
        beat.reported = details
    beat.count += 1
    return beat.before


async def await_with_heartbeats(
    running: Awaitable[Any], beat: Heartbeats, seconds: float
) -> Any:  # the result of what runs
    """Wait for `running` and return its result, provided that it keeps sending heartbeats.

    Raises:
        TimeoutError: If no heartbeat arrives between two consecutive checks. The interval between checks is `seconds`.
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


DELAY_S_MAX = 3e9
"""Longest valid delay, about a hundred years. In nanoseconds this delay still fits into 64 bits."""

HANDLER_THREADS_MAX = 64
"""Largest number of handlers that run in threads on one host at the same time. Further handlers wait in a queue. A handler whose turn was
undone still counts until it returns."""


def _unmarked(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    return function(*arguments, **named)


IN_THREAD: contextvars.ContextVar[Callable[..., Any]] = contextvars.ContextVar("IN_THREAD", default=_unmarked)
"""Function that calls the current turn's handler in its thread, and records turn marks (`host/turn_marks.py`)."""


class TurnEnvironment:
    """Provides clocks, random numbers and external calls to handlers. The simulator substitutes its own environment.

    Attributes:
        has_all_answers: whether the fleet runs on recorded answers only, so that nothing outside may be asked.
    """

    has_all_answers: bool = False

    def run_on_answers(self, *, has_all: bool) -> None:
        """Set whether the fleet runs on recorded answers only."""
        self.has_all_answers = has_all

    _handler_threads: asyncio.Semaphore | None = None

    def now_ns(self) -> int:
        return time.time_ns()

    def elapsed_ns(self) -> int:
        """Return the time of a monotonic clock in nanoseconds, for measuring durations within this process."""
        return time.monotonic_ns()

    def random(self) -> float:
        return random.random()

    async def step(self, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        if inspect.iscoroutinefunction(function):
            return await function()
        outcome = await asyncio.to_thread(_in_thread, function)
        if inspect.isawaitable(outcome):
            return await outcome
        return outcome

    def function_of(self, handler: Handler) -> Callable[..., Any]:
        """Return the function to call for a turn of this handler. If the handler is threaded, the function runs it in a thread."""
        return functools.partial(self.in_thread, handler.function) if handler.is_threaded else handler.function

    async def in_thread(self, handler: Callable[..., Any], *arguments: Any) -> None:
        """Run a blocking handler in its own thread. If the handler returns a coroutine, run the coroutine on its own event loop.

        The thread does not keep the process running. If the caller is cancelled, the thread continues to run, and its result is discarded.
        """
        threads = self._handler_threads = self._handler_threads or asyncio.Semaphore(HANDLER_THREADS_MAX)
        await threads.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            threads.release()
            if ended.cancelled():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        def work() -> None:
            error = IN_THREAD.get()(_error_of, handler, arguments)
            with contextlib.suppress(RuntimeError):  # the loop is closed because the process ends
                loop.call_soon_threadsafe(tell, error)

        threading.Thread(
            target=contextvars.copy_context().run, args=(work,), name="snapline-handler", daemon=True
        ).start()
        await ended

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, for example before a step is retried."""
        await asyncio.sleep(seconds)

    async def limited(self, running: Awaitable[Any], seconds: float) -> Any:  # the result of what runs
        """Wait for an awaitable and return its result. Raise TimeoutError if this takes longer than `seconds`."""
        return await asyncio.wait_for(running, seconds)

    def beating(
        self, name: str, function: Callable[[], Any], beat: Heartbeats, heartbeat_s: float | None
    ) -> Coroutine[Any, Any, Any]:
        """Run a step whose function can send heartbeats. Raise TimeoutError if no heartbeat arrives for `heartbeat_s`."""
        running = self.step(name, beat.of(function))
        return running if heartbeat_s is None else await_with_heartbeats(running, beat, heartbeat_s)


_call: ContextVar[str] = ContextVar("snapline_call", default="")
_lock = threading.Lock()
_calls: Counter[str] = Counter()
"""How many threads currently run the function of each effect, by outside key. A thread may still run after its call has timed out."""

_LOOK_S = 0.05


def _in_thread(function: Callable[[], Any]) -> Any:  # the function's own result
    call = _call.get()
    try:
        with _lock:
            _calls[call] += 1
        return function()
    finally:
        exit_if_child()  # before the lock, since a forked child may inherit the lock locked
        with _lock:
            _calls[call] -= 1
            if not _calls[call]:
                del _calls[call]


def _error_of(handler: Callable[..., Any], arguments: tuple[Any, ...]) -> BaseException | None:
    try:
        outcome = handler(*arguments)
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)
    except StopIteration as error:  # a future cannot hold StopIteration
        raised = RuntimeError("the handler raised StopIteration")
        raised.__cause__ = error
        return raised
    except BaseException as error:  # every error is re-raised on the event loop
        return error
    return None


@contextlib.contextmanager
def calling(key: str) -> Iterator[None]:
    """Mark the calls in this block as calls of the effect with this outside key."""
    outer = _call.set(key)
    try:
        yield
    finally:
        _call.reset(outer)


async def no_call_of(world: TurnEnvironment, key: str) -> None:
    """Wait until no thread of this process is running the function of the effect with this outside key."""
    while key in _calls:
        await world.pause(_LOOK_S)


async def taken(answer: RecordedAnswer) -> RecordedAnswer:
    """Return a recorded answer, in place of a step's function."""
    return answer


async def run_step(
    world: TurnEnvironment, name: str, work: StepWork, began: Callable[[], None] = lambda: None
) -> Any:  # the function's own result
    """Run a step, and retry it if it raises an error or its guard rejects the result. If the last retry fails too, return what the fallback
    returns, or re-raise the error if there is no fallback. `began` is called before each attempt."""
    try:
        return await _attempts(world, name, work, began)
    except Exception:
        if work.fallback is None:
            raise
    return await world.step(f"{name}/fallback", work.fallback)


async def _attempts(
    world: TurnEnvironment, name: str, work: StepWork, began: Callable[[], None]
) -> Any:  # the function's own result
    beat = Heartbeats(None)
    for wait_s in work.waits_s:
        began()
        try:
            return await _attempt(world, name, work, beat)
        except Exception:
            beat = Heartbeats(beat.reported)
            await world.pause(wait_s)
    began()
    return await _attempt(world, name, work, beat)


async def _attempt(
    world: TurnEnvironment, name: str, work: StepWork, beat: Heartbeats
) -> Any:  # the function's own result
    try:
        running = world.beating(name, work.function, beat, work.heartbeat_s)
        result = await running if work.timeout_s is None else await world.limited(running, work.timeout_s)
    finally:
        beat.is_over = True
    violation = work.guard(result) if work.guard is not None else None
    if violation:
        raise GuardViolationError(f"the guard of step {name!r} rejects its result: {violation}")
    return result


def waits_of(what: str, retries: int | Sequence[float]) -> tuple[float, ...]:
    """Return the number of seconds to wait before each retry.

    Raises:
        UsageError: If `retries` is invalid.
    """
    waits = (0.0,) * retries if isinstance(retries, int) and retries >= 0 else retries
    if isinstance(waits, list | tuple) and all(
        isinstance(seconds, int | float) and 0 <= seconds <= DELAY_S_MAX for seconds in waits
    ):
        return tuple(waits)
    raise UsageError(f"retries of {what} are {retries!r}: use a number from 0 on, or the seconds before each retry")


def plain_name(what: str, name: object) -> str:
    """Check the name of a step, an effect or a saga. Return it as plain text, because journals and the ledger decode it as text.

    Raises:
        UsageError: If the name is not text, or UTF-8 cannot encode it.
    """
    if is_plain(name):
        return str.__str__(name)
    raise UsageError(f"{what} is named by a text, this one by {name!r}")


def step_work(
    name: str,
    function: Callable[[], Any],
    timeout_s: float | None,
    heartbeat_s: float | None,
    retries: int | Sequence[float],
    durability: str,
    guard: Callable[[Any], str | None] | None,
    fallback: Callable[[], Any] | None,
) -> StepWork:
    """Check the arguments of `ctx.step`, and return the work that runs the step.

    Raises:
        UsageError: If `durability`, `retries` or `heartbeat_s` is invalid.
    """
    if durability not in ("log", "checkpoint"):
        raise UsageError(f'durability of step {name!r} is {durability!r}: use "log" or "checkpoint"')
    if heartbeat_s is not None and not 0 < heartbeat_s <= DELAY_S_MAX:
        raise UsageError(f"heartbeat_s of step {name!r} is {heartbeat_s!r}: use a number of seconds above 0")
    waits_s = waits_of(f"step {name!r}", retries)
    return StepWork(function, timeout_s, waits_s, durability == "log", heartbeat_s, guard, fallback)


def nanoseconds(what: str, seconds: float) -> int:
    """Check a waiting time in seconds, and convert it to nanoseconds.

    Raises:
        UsageError: If the time is negative or too long.
    """
    if not 0 <= seconds <= DELAY_S_MAX:
        raise UsageError(f"{what} waits from 0 to {DELAY_S_MAX:.0e} seconds, not {seconds}")
    return round(seconds * 1e9)
