"""Connects a service's threads with the event loop of the service's member.

The loop carries out the threads' requests, each atomically with the requesting thread's own work.

A thread is *inside* the gate from its beginning to its end, except while it waits for the answer to a call. The thread's work between two
waits is one atomic piece. The threads of handlers and of `start` are registered (`RegisteredThread`). `step` runs a function in the loop
while the thread remains inside the gate. `wait` makes a call and waits for its answer. During `wait`, the thread is outside the gate. The
thread leaves the gate when the call enters the ledger, and re-enters the gate when the call's answer leaves the ledger. Between two
iterations of the loop, a cut may be taken if no thread is inside the gate. To the member, `QuiescentService` makes the service look
single-threaded, because cuts and recoveries happen only while no thread is inside the gate.

When the fleet rolls back, each thread of the older history gets a `HistoryOverError` at its next wait or request. The error acts like
CancelledError in a coroutine. If a thread catches the error and continues to run, the rollback waits until the thread has ended. The event
loop is not blocked during this time. The loop never waits for a thread, so a thread may wait for the loop.

The gate
--------
`QuiescenceGate` decides when a cut may be taken and when the fleet may roll back. The gate does no I/O and uses no threads. Cuts and
recoveries must not split an atomic piece of a thread's work. Cuts and recoveries therefore require that no thread is inside the gate,
although threads may still be running. The gate is a readers-writer lock (Courtois, Heymans and Parnas 1971). Threads are the readers and
may run in parallel, and cuts are the writers.

- A request for a cut closes the gate. While the gate is closed, no thread can enter. The cut is taken when every thread inside the gate has
  ended or waits for a call. Threads that wait at the gate enter after the cut.
- The gate must not simply stay closed until the cut is taken. If a thread inside the gate needed a lock held by a thread that waits at the
  gate, the thread inside would never leave. If a thread stayed inside for a long time, all other threads would have to wait. The gate is
  therefore closed for PATIENCE_NS and then open for the same time. The closed time and the open time are then doubled repeatedly until the
  cut is taken or its epoch has timed out. A cut is taken at the latest when the gate stays closed for longer than a piece of work takes.
  Threads can enter the gate for half of the time.
- The caller repeats the request for as long as it wants a cut. The caller does not report that it no longer wants a cut. If the gate has
  received no request for LAPSE_NS, it assumes that no cut is wanted any longer.
- Threads cannot be killed. Threads that began before a recovery may remain inside the gate. The rollback is complete only when all threads
  that began before the recovery have ended.

Call all methods of the gate in the loop's thread. The caller must call `leave` atomically with entering the call in the ledger, and `end`
atomically with storing the handler's answer.
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
from time import monotonic_ns
from typing import Any, Protocol

from snapline.adapters.grpc.ledger import CallAnswer, ServiceCall
from snapline.adapters.grpc.service_agent import CutService
from snapline.errors import UsageError

PATIENCE_NS = 50_000_000
"""Time for which the gate is shut at first. It is long compared with a piece, which only computes, and short compared with an epoch's
timeout."""

LAPSE_NS = 25_000_000
"""Time without a request after which the gate assumes that no cut is wanted anymore. It is five times `member.READY_CHECK_PERIOD_S`."""


class QuiescenceGate:
    """The gate described in the module docstring.

    Attributes:
        inside: numbers of the threads that are inside the gate, all of which are also in `begun`.
        begun: number of each running thread → plan under which the thread began.
    """

    def __init__(self) -> None:
        self.inside: set[int] = set()
        self.begun: dict[int, int] = {}
        self._wanted_since_ns = 0
        self._asked_ns: int | None = None

    def ask(self, now_ns: int) -> bool:
        """Request a cut. Return whether the cut may be taken now."""
        if not self._is_wanted(now_ns):
            self._wanted_since_ns = now_ns
        self._asked_ns = now_ns
        return not self.inside

    def open(self) -> None:
        """Open the gate, because the cut has been taken or is no longer wanted."""
        self._asked_ns = None

    def may_enter(self, now_ns: int) -> bool:
        """Return whether a thread may enter the gate. If the result is True, the caller must call `enter` in the same atomic piece of
        work."""
        if not self._is_wanted(now_ns):
            return True
        elapsed = (now_ns - self._wanted_since_ns) // PATIENCE_NS
        round_ = (
            1 << (elapsed // 2 + 1).bit_length() - 1
        )  # 1, 2, 4 …: length of the period for which the gate is shut and then open, in PATIENCE_NS
        return elapsed - 2 * (round_ - 1) >= round_

    def enter(self, thread: int, plan: int) -> None:
        """Mark a thread as inside the gate. The thread keeps the plan under which it began."""
        self.begun.setdefault(thread, plan)
        self.inside.add(thread)

    def leave(self, thread: int) -> None:
        """Mark a thread as outside the gate. If the thread is already outside, do nothing."""
        self.inside.discard(thread)

    def end(self, thread: int) -> None:
        """Remove a thread that has ended."""
        self.inside.discard(thread)
        self.begun.pop(thread, None)

    def are_over(self, plan: int) -> bool:
        """Return whether all threads that began under other plans have ended."""
        return all(thread_plan == plan for thread_plan in self.begun.values())

    def _is_wanted(self, now_ns: int) -> bool:
        return self._asked_ns is not None and now_ns - self._asked_ns < LAPSE_NS


LOOK_S = LAPSE_NS / 1e9
"""Longest time in seconds until a waiter at the gate checks again, even if it was not woken."""

WAIT_LOG_AFTER_S = 5.0
"""Time in seconds after which a recovery logs that it waits for threads. Normally, threads end much sooner, whether they compute or
wait."""

log = logging.getLogger("snapline.grpc")

Reenter = Callable[[], Awaitable[None]]
Finish = Callable[[Reenter], Awaitable[Any]]
"""Function that waits for an answer. It takes the answer in the step of the loop in which the `Reenter` function passed to it ends."""

Work = Callable[[], None]


class HistoryOverError(BaseException):
    """The fleet has rolled back, and the calling thread belongs to a discarded history.

    Do not catch this error, so that the thread ends. Like CancelledError, this error is a BaseException.
    """


class RegisteredThread:
    """A thread that is registered with the gate.

    Attributes:
        plan: plan under which the thread began.
        context: context variables for the work that the loop does for this thread.
    """

    __slots__ = ("context", "is_over", "number", "plan")
    _numbers = itertools.count(1)

    def __init__(self, plan: int) -> None:
        self.number = next(self._numbers)
        self.plan = plan
        self.context = contextvars.Context()
        self.is_over = False


def in_new_thread(work: Work) -> None:
    """Run `work` in a daemon thread, so that it does not delay the exit of the process."""
    threading.Thread(target=work, name="snapline-service", daemon=True).start()


class ThreadsOfMember(Protocol):
    """The interface that this module requires from `Member`, which documents the methods."""

    plan: int

    def start(self, work: Coroutine[object, None, Any]) -> "asyncio.Task[Any]": ...


class ServedThread(Protocol):
    """The interface that this module requires from `RequestThread`, which documents the methods."""

    def context(self) -> contextvars.Context: ...

    def ended(self, task: "asyncio.Task[Any]") -> None: ...

    def cancel(self) -> object: ...

    def work(self) -> Any: ...


class MemberThreads:
    """Connects a service's threads with the event loop of the service's member.

    Attributes:
        gate: gate that the threads must enter before they work.
        is_ending: whether the member has stopped taking part in the fleet.
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
        """Run the function in the loop as part of the calling thread's current atomic piece of work. Return the function's result. If the
        caller already runs in the loop, the function is called directly.

        Raises:
            UsageError: the calling thread is not registered with the gate.
            HistoryOverError: the thread began before a recovery of the fleet.
        """
        if self._is_loop():
            return function()
        return self.ask(self._step, function)

    def wait(self, begin: Callable[[], Finish]) -> Any:
        """Make a call as part of the calling thread's current atomic piece of work. While waiting for the answer, the thread is outside the
        gate. Raise the errors of `step` and of the call."""
        return self.ask(self._wait, begin)

    def ask(self, how: Callable[[RegisteredThread, Any, "Future[Any]"], None], what: object) -> Any:
        """Pass a request of the calling thread to the loop, and return the result."""
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
        """Run `does` in the loop, and wait for its result. Raise HistoryOverError if no result will follow."""
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
        """Let the loop serve a gRPC request. Run in the calling thread all work that the loop passes to it. The calling thread need not be
        registered.

        Raise the errors of `serve`. Raise HistoryOverError if the fleet rolls back or the member stops.
        """

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
        """Register the calling thread, and wait until it is inside the gate. The thread stays registered until `left` is called. Raise
        HistoryOverError if the fleet rolls back or the member stops."""

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
        """Unregister a thread that `register_thread` has registered."""
        self._here.thread = None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.end, thread)

    def outside(self) -> None:
        """Mark the calling thread as outside the gate while it waits for something other than a call. The thread must re-enter the gate
        with `wait`."""
        self.ask(self._leave, None)

    def _is_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def _work(self, thread: RegisteredThread, function: Callable[[], Any], outcome: "asyncio.Future[Any]") -> None:
        result, raised = None, None
        self._here.thread = thread
        try:
            result = function()
        except Exception as error:
            raised = error
        except BaseException as error:  # in a thread, such an error must end only this function
            raised = RuntimeError(f"a thread of the service has ended by {error!r}")
        finally:
            self._here.thread = None
        try:
            self.loop.call_soon_threadsafe(self._over, thread, outcome, result, raised)
        except RuntimeError:
            return  # the loop is closed

    # ---- in the loop --------------------------------------------------------------------------------------------------

    async def enter(self, thread: RegisteredThread) -> None:
        """Wait until this thread may enter the gate, and mark it as inside. If the thread is already inside, return immediately."""
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
        """Wait until threads may enter the gate. The caller may then let a thread enter in the same iteration of the loop."""
        while not self.gate.may_enter(time.monotonic_ns()):
            await self._opening()

    async def _opening(self) -> None:
        opened = self._opened
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await opened.wait()

    async def run(self, thread: RegisteredThread, function: Callable[[], Any], carry: Callable[[Work], None]) -> Any:
        """Run the function in an existing thread and return the function's result. `carry` passes the function to that thread.

        When this method returns, the thread is outside the gate, but the caller's next work still belongs to the thread's last atomic
        piece.
        """
        await self.enter(thread)
        return await self._outcome(thread, self._launched(thread, function, carry))

    def start(self, function: Callable[[], Any]) -> None:
        """Run the function in a new thread as soon as the gate lets the thread enter."""
        self.member.start(self.run(RegisteredThread(self.member.plan), function, in_new_thread))

    def begin(self, function: Callable[[], Any]) -> None:
        """Run the function in a new thread that is immediately inside the gate.

        The thread enters even if the gate is closed for a cut, because its piece of work has already begun in this iteration of the loop.
        """
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
            outcome.cancel()  # only the end of the thread matters, not its result
            self.end(thread)
        elif raised is not None:
            outcome.set_exception(raised)
        else:
            outcome.set_result(result)

    def end(self, thread: RegisteredThread) -> None:
        """Unregister a thread that has ended."""
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
        task.add_done_callback(lambda _: answer.cancel())  # has no effect if the future has a result

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
        """Open the gate, because no cut is wanted any longer, and wake the threads that wait at the gate."""
        self.gate.open()
        self.look_again()

    def look_again(self) -> None:
        """Wake the threads that wait at the gate."""
        self._opened.set()
        self._opened = asyncio.Event()

    def when_work_ended(self, then: Work) -> None:
        """Call `then` when all threads of older histories have ended."""
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
        """Raise HistoryOverError in all threads that still wait for the closed loop."""
        for answer in list(self._asked):
            answer.cancel()


class QuiescentService:
    """A `CutService` that wraps the user's service so that cuts are taken only while no thread is inside the gate."""

    def __init__(self, service: CutService, threads: MemberThreads) -> None:
        self._service, self._threads = service, threads

    def capture(self) -> bytes:
        return self._service.capture()

    def restore(self, state: bytes) -> None:
        self._threads.open()
        self._service.restore(state)

    def on_cut(self, epoch: int) -> None:
        self._threads.open()
        self._service.on_cut(epoch)

    def ready(self) -> bool:
        """Return whether a cut may be taken.

        The service's own `ready` is called before the gate is closed, because it may depend on a thread that would then wait at the gate.
        `ready` is called again when no thread is inside the gate.
        """
        threads = self._threads
        if not self._service.ready():
            return False
        if not threads.gate.ask(monotonic_ns()):
            threads.look_again()
            return False
        if self._service.ready():
            return True
        threads.open()
        return False

    def answered(self, call: ServiceCall, answer: CallAnswer) -> None:
        """Pass the answer to the service in a new thread that is already inside the gate. A thread is used because the service may have to
        wait for one of its own locks."""
        take: Callable[..., Any] | None = getattr(self._service, "answered", None)
        if take is not None:
            self._threads.begin(lambda: take(call, answer))

    def when_work_ended(self, then: Work) -> None:
        self._threads.when_work_ended(then)
