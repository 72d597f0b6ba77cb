"""Connect the threads of a service with the event loop of its member.

The loop carries out the requests of threads, atomically with the thread's own work.

A thread is *inside* from its beginning to its end, except while it waits in a call of the member. The thread's work inside, between two of
these waits, is one atomic piece. Threads of handlers and of `start` are registered (`RegisteredThread`). A thread makes two kinds of
requests. `step` runs a function in the loop while the thread remains inside. `wait` makes a call. From that step of the loop on the thread
is outside; it is inside again from the step in which the call's answer leaves the ledger. Between two steps of the loop a cut may be taken,
if the gate reports that no thread is inside. `QuiescentService` makes the service look single-threaded to its member: each of its
answers is valid while no thread is inside.

When the fleet rolls back, a thread of the older history gets `HistoryOverError` at its next wait or request, like CancelledError in a
coroutine. If the thread catches the error and continues for a while, the rollback waits until the thread has ended, but the loop does not
block. The loop never waits for a thread, so a thread may wait for the loop.

The gate
--------
`QuiescenceGate` decides when a cut may be taken and when the fleet may roll back, without I/O and without threads. Cuts and recoveries must
not split a piece. So they require that no thread is inside, although threads may still be running. The gate is a readers-writer lock
(Courtois, Heymans and Parnas 1971): threads are the readers, which run in parallel as usual, and cuts are the writers.

- A request for a cut shuts the gate. Then no thread enters, and the cut is taken when the last thread inside has ended or waits. Threads
  that wait at the gate enter between two cuts.
- Cuts alternate with threads. A thread inside may need a lock held by a thread at the gate, and would then never leave. Or a thread may
  stay inside for long, and all other threads would wait together with the cut. So the gate is shut for PATIENCE_NS, then open for the same
  time, then shut and open for twice that time each, and so on, until the cut is taken or its epoch has timed out. A cut is taken at the
  latest when the gate is shut for longer than a piece takes, and threads can run half of the time.
- A cut is wanted as long as it is requested. The end of a request is not reported: the gate assumes the end when it got no request for
  LAPSE_NS.
- Threads cannot be killed. Threads from before a recovery may remain inside; the rollback is complete only when all of them have ended.

The loop's thread calls all methods of the gate. The caller must call `leave` and `end` in one piece with the thread's work: with the call's entry in
the ledger, and with the handler's answer.
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
"""Initial time for which the gate is shut. The time is long compared to a piece, which only computes, and short compared to an epoch's
time-out."""

LAPSE_NS = 25_000_000
"""Time without a request after which the gate assumes that no cut is wanted: five times `member.READY_CHECK_PERIOD_S`."""


class QuiescenceGate:
    """See the module.

    Attributes:
        inside: numbers of the threads that are inside, a subset of `begun`.
        begun: number of each thread that has begun and not ended → plan under which the thread began.
    """

    def __init__(self) -> None:
        self.inside: set[int] = set()
        self.begun: dict[int, int] = {}
        self._wanted_since_ns = 0
        self._asked_ns: int | None = None

    def ask(self, now_ns: int) -> bool:
        """Request a cut; return whether it may be taken now."""
        if not self._is_wanted(now_ns):
            self._wanted_since_ns = now_ns
        self._asked_ns = now_ns
        return not self.inside

    def open(self) -> None:
        """Open the gate, because the cut was taken or is no longer wanted."""
        self._asked_ns = None

    def may_enter(self, now_ns: int) -> bool:
        """Return whether a thread may enter. If so, the caller must call `enter` in the same piece."""
        if not self._is_wanted(now_ns):
            return True
        elapsed = (now_ns - self._wanted_since_ns) // PATIENCE_NS
        round_ = (
            1 << (elapsed // 2 + 1).bit_length() - 1
        )  # 1, 2, 4 …: length of the period for which the gate is shut and then open, in PATIENCE_NS
        return elapsed - 2 * (round_ - 1) >= round_

    def enter(self, thread: int, plan: int) -> None:
        """Mark a thread as inside. The thread keeps the plan under which it began."""
        self.begun.setdefault(thread, plan)
        self.inside.add(thread)

    def leave(self, thread: int) -> None:
        """Mark a thread as waiting in a call. No effect on a thread that is outside."""
        self.inside.discard(thread)

    def end(self, thread: int) -> None:
        """Remove a thread that has ended."""
        self.inside.discard(thread)
        self.begun.pop(thread, None)

    def are_over(self, plan: int) -> bool:
        """Return whether all threads of other plans have ended."""
        return all(thread_plan == plan for thread_plan in self.begun.values())

    def _is_wanted(self, now_ns: int) -> bool:
        return self._asked_ns is not None and now_ns - self._asked_ns < LAPSE_NS


LOOK_S = LAPSE_NS / 1e9
"""Longest time until a waiter at the gate checks again, even without a signal."""

WAIT_LOG_AFTER_S = 5.0
"""Time after which a recovery logs that it waits for threads. Computing or waiting threads normally end long before."""

log = logging.getLogger("snapline.grpc")

Reenter = Callable[[], Awaitable[None]]
Finish = Callable[[Reenter], Awaitable[Any]]
"""Function that waits for an answer and takes the answer in the step of the loop in which its `Reenter` ends."""

Work = Callable[[], None]


class HistoryOverError(BaseException):
    """The fleet has rolled back, and this thread belongs to a discarded history.

    Let the thread end. The class is a BaseException, like CancelledError.
    """


class RegisteredThread:
    """A registered thread.

    Attributes:
        number: number of the thread at the gate.
        plan: plan under which the thread began.
        context: context variables of the thread's work in the loop.
        is_over: the thread has ended.
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
        """Run the function in the loop, within this thread's piece. If the caller runs in the loop itself, call the function directly.

        Raises:
            UsageError: this thread is not registered.
            HistoryOverError: the thread began before a recovery.
        """
        if self._is_loop():
            return function()
        return self.ask(self._step, function)

    def wait(self, begin: Callable[[], Finish]) -> Any:
        """Make a call within this thread's piece, and wait for the answer outside. Raises the errors of `step` and of the call."""
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
        """Run `does` in the loop, and wait for the result. Raise HistoryOverError if no result will come."""
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
        """Let the loop serve a request, and run the returned work in this unregistered thread.

        Raises the errors of `serve`, or HistoryOverError.
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
        """Leave the gate while this thread waits for something other than a call. The thread re-enters with `wait`."""
        self.ask(self._leave, None)

    def _is_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def _work(self, thread: RegisteredThread, function: Callable[[], Any], outcome: "asyncio.Future[Any]") -> None:
        """Run the thread's function from beginning to end."""
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
        """Wait until this thread may be inside, and mark the thread as inside. Return at once if it is inside already."""
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
        """Wait until a thread may enter. The caller may let a thread enter in the same step of the loop."""
        while not self.gate.may_enter(time.monotonic_ns()):
            await self._opening()

    async def _opening(self) -> None:
        opened = self._opened
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await opened.wait()

    async def run(self, thread: RegisteredThread, function: Callable[[], Any], carry: Callable[[Work], None]) -> Any:
        """Run the function in a thread; `carry` passes work to that thread.

        On return the thread is outside, but its last piece continues.
        """
        await self.enter(thread)
        return await self._outcome(thread, self._launched(thread, function, carry))

    def start(self, function: Callable[[], Any]) -> None:
        """Run the function in a new thread, once the gate lets it enter."""
        self.member.start(self.run(RegisteredThread(self.member.plan), function, in_new_thread))

    def begin(self, function: Callable[[], Any]) -> None:
        """Run the function in a new thread that is inside from this step on.

        It enters even if a cut waits, since this step has already begun its piece.
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
        """Raise an error in the threads that still wait for the loop, which is closed."""
        for answer in list(self._asked):
            answer.cancel()


class QuiescentService:
    """A `CutService` that wraps the user's service (see the module)."""

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

        The service is asked before the gate is shut, since it may need a thread at the gate, and again afterwards.
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
        """Pass the answer to the service in a new thread that is inside, since the service may wait for a lock of its own."""
        take: Callable[..., Any] | None = getattr(self._service, "answered", None)
        if take is not None:
            self._threads.begin(lambda: take(call, answer))

    def when_work_ended(self, then: Work) -> None:
        self._threads.when_work_ended(then)
