"""Threads of a service and the event loop of its member: requests of threads are carried out in the loop, atomically with the thread's own work.

Threads of handlers and of `start` are registered (`RegisteredThread`). A thread makes two kinds of requests. `step` runs a function in the loop while
the thread remains inside. `wait` makes a call, and the thread is outside from that step of the loop on; it is inside again from the
step in which the call's answer leaves the ledger. Between two steps of the loop a cut may be taken, if the gate reports that no thread is inside
(`quiescence_gate.py`).

When the fleet rolls back, an older thread gets `HistoryOverError` at its next wait or request, like CancelledError in a coroutine. It may catch
that and continue for a while: the rollback waits until it has ended, but the loop does not block. The loop never waits for a thread, so a thread
may wait for the loop.
"""

import asyncio
import contextlib
import contextvars
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError as NeverAnsweredError
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from snapline.adapters.grpc.quiescence_gate import LAPSE_NS, QuiescenceGate
from snapline.errors import UsageError

LOOK_S = LAPSE_NS / 1e9
"""Longest time until a waiter at the gate checks again, even without a signal."""

WAIT_LOG_AFTER_S = 5.0
"""Time after which a recovery that waits for threads logs that; computing or waiting threads normally end long before."""

log = logging.getLogger("snapline.grpc")

Reenter = Callable[[], Awaitable[None]]
Finish = Callable[[Reenter], Awaitable[Any]]
"""Function that waits for an answer and takes it in the step in which its `Reenter` ends."""

Work = Callable[[], None]


class HistoryOverError(BaseException):
    """The fleet has rolled back, and this thread belongs to a discarded history: let it end. A BaseException, like CancelledError."""


class RegisteredThread:
    """A registered thread.

    Attributes:
        number: its number at the gate.
        plan: plan under which it began.
        context: context of its work in the loop.
        is_over: it has ended.
    """

    __slots__ = ("context", "is_over", "number", "plan")
    _numbers = itertools.count(1)

    def __init__(self, plan: int) -> None:
        self.number = next(self._numbers)
        self.plan = plan
        self.context = contextvars.Context()
        self.is_over = False


def in_new_thread(work: Work) -> None:
    """Run `work` in a daemon thread, which does not delay the end of the process."""
    threading.Thread(target=work, name="snapline-service", daemon=True).start()


class ThreadsOfMember(Protocol):
    """Interface of `Member`, documented there."""

    plan: int

    def start(self, work: Coroutine[object, None, Any]) -> "asyncio.Task[Any]": ...


class ServedThread(Protocol):
    """Interface of `RequestThread`, documented there."""

    def context(self) -> contextvars.Context: ...

    def ended(self, task: "asyncio.Task[Any]") -> None: ...

    def cancel(self) -> object: ...

    def work(self) -> Any: ...


class MemberThreads:
    """See the module.

    Attributes:
        gate: see `QuiescenceGate`.
        member: member that owns the threads.
        loop: event loop of the member.
        is_ending: the member no longer takes part in the fleet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.gate = QuiescenceGate()
        self.loop = loop
        self.is_ending = False
        self.member: ThreadsOfMember
        self._here = threading.local()
        self._opened = asyncio.Event()
        self._asked: set[ServedThread | Future[Any]] = set()
        self._deferred: list[Work] = []

    # ---- in threads ---------------------------------------------------------------------------------------------------

    def step(self, function: Callable[[], Any]) -> Any:
        """Run the function in the loop, within the piece of this thread; in the loop itself, call it directly.

        Raises:
            UsageError: this thread is not registered.
            HistoryOverError: it began before a recovery.
        """
        if self._is_loop():
            return function()
        return self.ask(self._step, function)

    def wait(self, begin: Callable[[], Finish]) -> Any:
        """Make a call within the piece of this thread, and wait for it outside. Raises the errors of `step` and of the call."""
        return self.ask(self._wait, begin)

    def ask(self, how: Callable[[RegisteredThread, Any, "Future[Any]"], None], what: object) -> Any:
        """Pass a request of the calling thread to the loop, and return its result."""
        thread: RegisteredThread | None = getattr(self._here, "thread", None)
        if thread is None:
            raise UsageError(
                "this thread is unknown to the member: its calls and changes could fall into two cuts. Call in a handler's own thread (side by side "
                "by stub.Method.future), or in a function that is given to member.start"
            )
        if thread.plan != self.member.plan:
            raise HistoryOverError
        return self.run_in_loop(thread.context, partial(how, thread, what))

    def run_in_loop(self, context: contextvars.Context, does: "Callable[[Future[Any]], None]") -> Any:
        """Run `does` in the loop, and wait for its result. Raise HistoryOverError if there will be none."""
        answer: Future[Any] = Future()
        self._asked.add(answer)
        try:
            self.loop.call_soon_threadsafe(does, answer, context=context)
            return answer.result()
        except (NeverAnsweredError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self.loop.is_closed():
                raise
            raise HistoryOverError from None
        finally:
            self._asked.discard(answer)

    def served(self, asking: "ServedThread", serve: Callable[[], Coroutine[object, None, Any]]) -> Any:
        """Let the loop serve a request, and run the returned work in this unregistered thread. Raises the errors of `serve`, or HistoryOverError."""

        def begin() -> None:
            if self.is_ending:
                asking.cancel()
            else:
                self.loop.create_task(serve()).add_done_callback(asking.ended)

        self._asked.add(asking)
        try:
            self.loop.call_soon_threadsafe(begin, context=asking.context())
        except RuntimeError:
            raise HistoryOverError from None
        else:
            return asking.work()
        finally:
            self._asked.discard(asking)

    def register_thread(self, admitted: Callable[[], Coroutine[object, None, RegisteredThread]]) -> RegisteredThread:
        """Register this thread until `left`. Raises HistoryOverError."""

        async def enter() -> RegisteredThread:
            thread = await admitted()
            await self.enter(thread)
            return thread

        def begin(answer: "Future[Any]") -> None:
            if self.is_ending:
                answer.cancel()
                return
            task = self.loop.create_task(enter())
            task.add_done_callback(lambda _: answer.cancel() if task.cancelled() else answer.set_result(task.result()))

        thread: RegisteredThread = self.run_in_loop(contextvars.Context(), begin)
        self._here.thread = thread
        return thread

    def left(self, thread: RegisteredThread) -> None:
        """Unregister this thread after `register_thread`."""
        self._here.thread = None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.end, thread)

    def outside(self) -> None:
        """Leave while this thread waits for something other than a call. It re-enters with `wait`."""
        self.ask(self._leave, None)

    def _is_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def _work(self, thread: RegisteredThread, function: Callable[[], Any], outcome: "asyncio.Future[Any]") -> None:
        """Run the whole work of this thread."""
        result, raised = None, None
        self._here.thread = thread
        try:
            result = function()
        except Exception as error:
            raised = error
        except BaseException as error:  # in a thread, such an error must end only this work
            raised = RuntimeError(f"a thread of the service has ended by {error!r}")
        finally:
            self._here.thread = None
        try:
            self.loop.call_soon_threadsafe(self._over, thread, outcome, result, raised)
        except RuntimeError:
            return  # the loop is closed

    # ---- in the loop --------------------------------------------------------------------------------------------------

    async def enter(self, thread: RegisteredThread) -> None:
        """Wait until this thread may be inside, and mark it; return at once if it is inside already."""
        while True:
            if thread.plan != self.member.plan:
                raise asyncio.CancelledError
            if thread.number in self.gate.inside:
                return
            if self.gate.may_enter(time.monotonic_ns()):
                self.gate.enter(thread.number, thread.plan)
                return
            await self._opening()

    async def passed(self) -> None:
        """Wait until a thread may enter; the caller may let it enter in the same step."""
        while not self.gate.may_enter(time.monotonic_ns()):
            await self._opening()

    async def _opening(self) -> None:
        opened = self._opened
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await opened.wait()

    async def run(self, thread: RegisteredThread, function: Callable[[], Any], carry: Callable[[Work], None]) -> Any:
        """Run the function in a thread, to which `carry` passes work. On return the thread is outside, but its last piece continues."""
        await self.enter(thread)
        return await self._outcome(thread, self._launched(thread, function, carry))

    def start(self, function: Callable[[], Any]) -> None:
        """Run the function in a new thread, once the gate lets it enter."""
        self.member.start(self.run(RegisteredThread(self.member.plan), function, in_new_thread))

    def begin(self, function: Callable[[], Any]) -> None:
        """Run the function in a new thread that is inside from this step on, even if a cut waits, since this step already began its piece."""
        thread = RegisteredThread(self.member.plan)
        self.gate.enter(thread.number, thread.plan)
        outcome = contextvars.Context().run(self._launched, thread, function, in_new_thread)
        self.member.start(self._outcome(thread, outcome))

    def _launched(
        self, thread: RegisteredThread, function: Callable[[], Any], carry: Callable[[Work], None]
    ) -> "asyncio.Future[Any]":
        outcome: asyncio.Future[Any] = self.loop.create_future()
        thread.context = contextvars.copy_context()
        carry(partial(self._work, thread, function, outcome))
        return outcome

    async def _outcome(self, thread: RegisteredThread, outcome: "asyncio.Future[Any]") -> Any:
        try:
            return await outcome
        finally:
            if thread.is_over:
                self.end(thread)

    def _over(
        self, thread: RegisteredThread, outcome: "asyncio.Future[Any]", result: Any, raised: Exception | None
    ) -> None:
        thread.is_over = True
        if thread.plan != self.member.plan or outcome.done():
            outcome.cancel()  # the result is not needed, only the end of the thread
            self.end(thread)
        elif raised is not None:
            outcome.set_exception(raised)
        else:
            outcome.set_result(result)

    def end(self, thread: RegisteredThread) -> None:
        """Remove a thread that has ended."""
        self.gate.end(thread.number)
        self._look()

    def _leave(self, thread: RegisteredThread, _: None, answer: "Future[Any]") -> None:
        self.gate.leave(thread.number)
        answer.set_result(None)

    def _step(self, thread: RegisteredThread, function: Callable[[], Any], answer: "Future[Any]") -> None:
        if thread.plan != self.member.plan:
            answer.cancel()
            return
        try:
            answer.set_result(function())
        except Exception as error:
            answer.set_exception(error)

    def _wait(self, thread: RegisteredThread, begin: Callable[[], Finish], answer: "Future[Any]") -> None:
        if thread.plan != self.member.plan:
            answer.cancel()
            return
        try:
            finish = begin()
        except Exception as error:
            answer.set_exception(error)
            return
        self.gate.leave(thread.number)
        task = self.member.start(self._waited(thread, finish, answer))
        task.add_done_callback(lambda _: answer.cancel())  # no effect if the future has a result

    async def _waited(self, thread: RegisteredThread, finish: Finish, answer: "Future[Any]") -> None:
        try:
            result = await finish(partial(self.enter, thread))
        except Exception as error:
            await self.enter(thread)
            answer.set_exception(error)
        else:
            answer.set_result(result)

    # ---- cuts and recoveries ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the gate, since no cut is wanted any more; waiters enter."""
        self.gate.open()
        self.look_again()

    def look_again(self) -> None:
        """Wake the waiters at the gate."""
        self._opened.set()
        self._opened = asyncio.Event()

    def when_work_ended(self, then: Work) -> None:
        """Call `then` when all threads of other histories have ended."""
        if self._deferred or not self.gate.are_over(self.member.plan):
            self.loop.call_later(WAIT_LOG_AFTER_S, self._say)
        self._deferred.append(then)
        self._look()

    def _look(self) -> None:
        while self._deferred and self.gate.are_over(self.member.plan):
            self._deferred.pop(0)()

    def _say(self) -> None:
        if self._deferred:
            log.warning(
                "the fleet goes back, and waits for %d threads of this service that have begun before: they wait for something else than a call "
                "over member.channel, or member.sleep. If they never end, end this process: it is started again from the cut",
                len(self.gate.begun),
            )

    def close(self) -> None:
        """Fail the threads that still wait for the loop, which is closed."""
        for answer in list(self._asked):
            answer.cancel()
