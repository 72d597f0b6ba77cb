"""Threads of a service next to the event loop of its member: what they ask is done in the loop, in one piece with what they do.

A thread of a handler, or of `start`, is known (`StretchThread`). It asks in two ways. `step` has something done while the thread stays inside. `wait` has
a call made, after which the thread is outside, in the same step of the loop; and has it in again in the step in which the call's answer leaves
the ledger. Between two steps of the loop a cut may be taken, if the gate says that nobody is inside (`quiescence_gate.py`).

Where the fleet goes back, a thread of before ends by `HistoryOverError` when it waits or asks for something, as a coroutine does by CancelledError. It may
catch that and go on for a while: the fleet waits here until it has ended, and the loop does not. No thread is ever waited for by the loop, so that
a thread may wait for the loop.
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
"""Longest time until a waiter at the gate looks again, also without a signal."""

SAID_S = 5.0
"""After so long a recovery that waits for threads says so: what computes, or waits in a call, is over long before."""

log = logging.getLogger("snapline.grpc")

ComeIn = Callable[[], Awaitable[None]]
Finish = Callable[[ComeIn], Awaitable[Any]]
"""Waits for an answer, and takes it behind `ComeIn` in the same step."""

Work = Callable[[], None]


class HistoryOverError(BaseException):
    """The fleet has gone back to a cut, and this thread is of what came after it: let it end. No Exception, as CancelledError is none."""


class StretchThread:
    """A thread that is known.

    Attributes:
        number: of it, at the gate.
        plan: under which it began.
        context: of what is done for it in the loop.
        is_over: it does nothing any more.
    """

    __slots__ = ("context", "is_over", "number", "plan")
    _numbers = itertools.count(1)

    def __init__(self, plan: int) -> None:
        self.number = next(self._numbers)
        self.plan = plan
        self.context = contextvars.Context()
        self.is_over = False


def in_new_thread(work: Work) -> None:
    """Nobody waits for it when the process ends."""
    threading.Thread(target=work, name="snapline-service", daemon=True).start()


class ThreadsOfMember(Protocol):
    """Interface of `Member`, documented there."""

    plan: int

    def start(self, work: Coroutine[object, None, Any]) -> "asyncio.Task[Any]": ...


class ServedThread(Protocol):
    """Interface of `AskingThread`, documented there."""

    def context(self) -> contextvars.Context: ...

    def ended(self, task: "asyncio.Task[Any]") -> None: ...

    def cancel(self) -> object: ...

    def work(self) -> Any: ...


class MemberThreads:
    """See the module.

    Attributes:
        gate: see `QuiescenceGate`.
        member: whose they are.
        loop: in which it runs.
        is_ending: the member takes part in nothing any more.
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
        """Have this done in the loop, within the piece of this thread; in the loop itself: do it.

        Raises:
            UsageError: nothing is known of this thread.
            HistoryOverError: it is of before a recovery.
        """
        if self._is_loop():
            return function()
        return self.ask(self._step, function)

    def wait(self, begin: Callable[[], Finish]) -> Any:
        """Have a call made within the piece of this thread, and wait for it outside. Raises as `step`, and what the call raises."""
        return self.ask(self._wait, begin)

    def ask(self, how: Callable[[StretchThread, Any, "Future[Any]"], None], what: object) -> Any:
        """Have the loop do this for the calling thread."""
        thread: StretchThread | None = getattr(self._here, "thread", None)
        if thread is None:
            raise UsageError(
                "this thread is unknown to the member: its calls and changes could fall into two cuts. Call in a handler's own thread (side by side "
                "by stub.Method.future), or in a function that is given to member.start"
            )
        if thread.plan != self.member.plan:
            raise HistoryOverError
        return self.posted(thread.context, partial(how, thread, what))

    def posted(self, context: contextvars.Context, does: "Callable[[Future[Any]], None]") -> Any:
        """Have the loop do this, and wait for what it answers. Raises HistoryOverError: it never will."""
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
        """Have the loop serve a request, in a thread not known yet, and do what it gives. Raises what `serve` does, or HistoryOverError."""

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

    def visited(self, admitted: Callable[[], Coroutine[object, None, StretchThread]]) -> StretchThread:
        """Register this thread, not known yet, until `left`. Raises HistoryOverError."""

        async def enter() -> StretchThread:
            thread = await admitted()
            await self.enter(thread)
            return thread

        def begin(answer: "Future[Any]") -> None:
            if self.is_ending:
                answer.cancel()
                return
            task = self.loop.create_task(enter())
            task.add_done_callback(lambda _: answer.cancel() if task.cancelled() else answer.set_result(task.result()))

        thread: StretchThread = self.posted(contextvars.Context(), begin)
        self._here.thread = thread
        return thread

    def left(self, thread: StretchThread) -> None:
        """Unregister this thread, which has been `visited`."""
        self._here.thread = None
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody asks
            self.loop.call_soon_threadsafe(self.end, thread)

    def outside(self) -> None:
        """Leave while this thread waits for something other than a call. It comes in by `wait`."""
        self.ask(self._leave, None)

    def _is_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def _work(self, thread: StretchThread, function: Callable[[], Any], outcome: "asyncio.Future[Any]") -> None:
        """All that this thread does."""
        result, raised = None, None
        self._here.thread = thread
        try:
            result = function()
        except Exception as error:
            raised = error
        except BaseException as error:  # of a thread these end nothing else
            raised = RuntimeError(f"a thread of the service has ended by {error!r}")
        finally:
            self._here.thread = None
        try:
            self.loop.call_soon_threadsafe(self._over, thread, outcome, result, raised)
        except RuntimeError:
            return  # the loop is closed, and nobody asks any more

    # ---- in the loop --------------------------------------------------------------------------------------------------

    async def enter(self, thread: StretchThread) -> None:
        """Wait until this thread may be inside, and have it in; if it is, nothing."""
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
        """Wait until a thread may come in; that may be done in the same step."""
        while not self.gate.may_enter(time.monotonic_ns()):
            await self._opening()

    async def _opening(self) -> None:
        opened = self._opened
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await opened.wait()

    async def run(self, thread: StretchThread, function: Callable[[], Any], carry: Callable[[Work], None]) -> Any:
        """Have a thread run this; `carry` gives it what to do. When this returns the thread is outside: what follows is of its last piece still."""
        await self.enter(thread)
        return await self._outcome(thread, self._launched(thread, function, carry))

    def start(self, function: Callable[[], Any]) -> None:
        """Run this in a new thread, when the gate lets it in."""
        self.member.start(self.run(StretchThread(self.member.plan), function, in_new_thread))

    def begin(self, function: Callable[[], Any]) -> None:
        """Run this in a new thread, which is inside from this step on, even if a cut waits: what belongs to it has just been done."""
        thread = StretchThread(self.member.plan)
        self.gate.enter(thread.number, thread.plan)
        outcome = contextvars.Context().run(self._launched, thread, function, in_new_thread)
        self.member.start(self._outcome(thread, outcome))

    def _launched(
        self, thread: StretchThread, function: Callable[[], Any], carry: Callable[[Work], None]
    ) -> "asyncio.Future[Any]":
        outcome: asyncio.Future[Any] = self.loop.create_future()
        thread.context = contextvars.copy_context()
        carry(partial(self._work, thread, function, outcome))
        return outcome

    async def _outcome(self, thread: StretchThread, outcome: "asyncio.Future[Any]") -> Any:
        try:
            return await outcome
        finally:
            if thread.is_over:
                self.end(thread)

    def _over(
        self, thread: StretchThread, outcome: "asyncio.Future[Any]", result: Any, raised: Exception | None
    ) -> None:
        thread.is_over = True
        if thread.plan != self.member.plan or outcome.done():
            outcome.cancel()  # nobody takes it: the thread was waited for alone
            self.end(thread)
        elif raised is not None:
            outcome.set_exception(raised)
        else:
            outcome.set_result(result)

    def end(self, thread: StretchThread) -> None:
        """Remove a thread that does nothing any more."""
        self.gate.end(thread.number)
        self._look()

    def _leave(self, thread: StretchThread, _: None, answer: "Future[Any]") -> None:
        self.gate.leave(thread.number)
        answer.set_result(None)

    def _step(self, thread: StretchThread, function: Callable[[], Any], answer: "Future[Any]") -> None:
        if thread.plan != self.member.plan:
            answer.cancel()
            return
        try:
            answer.set_result(function())
        except Exception as error:
            answer.set_exception(error)

    def _wait(self, thread: StretchThread, begin: Callable[[], Finish], answer: "Future[Any]") -> None:
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
        task.add_done_callback(lambda _: answer.cancel())  # of no effect on one that is answered

    async def _waited(self, thread: StretchThread, finish: Finish, answer: "Future[Any]") -> None:
        try:
            result = await finish(partial(self.enter, thread))
        except Exception as error:
            await self.enter(thread)
            answer.set_exception(error)
        else:
            answer.set_result(result)

    # ---- cuts and recoveries ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the gate, as no cut is wanted any more: waiters come in."""
        self.gate.open()
        self.look_again()

    def look_again(self) -> None:
        """Wake the waiters at the gate."""
        self._opened.set()
        self._opened = asyncio.Event()

    def when_over(self, then: Work) -> None:
        """Do this when no thread of another history has anything left to do."""
        if self._deferred or not self.gate.are_over(self.member.plan):
            self.loop.call_later(SAID_S, self._say)
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
        """The loop is closed: who still waits for it ends."""
        for answer in list(self._asked):
            answer.cancel()
