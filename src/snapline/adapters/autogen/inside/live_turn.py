"""Runs a turn of an unmodified AutoGen agent until it waits for a reply or ends.

The problem: AutoGen's handlers are coroutines in an event loop, and the loop does not reveal what a coroutine waits for. The turn must
return control to the host when it ends or waits for replies.

The model: a turn consists of its handler and of all tasks that the handler creates directly or indirectly (`track_tasks`). A turn is
*blocked* when each of its tasks has ended or waits for a reply. A turn is *over* when all of its tasks have ended. A waiting task that only
runs `send_message` (`asyncio.create_task(self.send_message(…))`) counts as ended once the handler has returned, because its reply is not
used. The message of such a task counts as sent without waiting for a reply.

To learn what a task waits for, this module reads the awaited future from the task object. This module can trace most waits, such as those
for tasks and for `gather`. A task may wait for something other than a reply, such as a lock or the network. The turn then gets a short time
to continue before it counts as blocked. The host later checks again whether the turn can continue.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from types import CodeType
from typing import Any

from autogen_core import BaseAgent

logger = logging.getLogger(__name__)

PATIENCE_S = 0.02
"""Time in seconds that a turn gets for other short waits while it also waits for a reply. It prevents the turn from returning to the host
twice instead of once."""

Item = dict[str, Any]
"""An outgoing message with the keys `to` (receivers), `message`, `topic`, `id`, and `call` (number of the awaited reply)."""

current: ContextVar["LiveTurn | None"] = ContextVar("snapline-autogen-turn", default=None)

_SENDS: set[CodeType] = {BaseAgent.send_message.__code__}
"""Code objects of the coroutine functions that only send a message."""


def is_send(method: Callable[..., Any]) -> None:
    """Register a coroutine function as one that only sends a message."""
    _SENDS.add(method.__code__)


def track_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Make the event loop add each task that is created during a turn to that turn."""

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, context=context)
        turn = current.get() if context is None else context.get(current)
        if turn is not None:
            turn.created(task)
        return task

    loop.set_task_factory(factory)


class LiveTurn:
    """A turn that runs in this process.

    Attributes:
        items: messages sent since the turn last returned to the host.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._replies: dict[int, asyncio.Future[Any]] = {}  # replies that are awaited, but not yet received
        self._early: dict[
            int, Any
        ] = {}  # replies that are received, but not yet awaited, since a rerun turn gets its replies in the original order
        self._calls = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._main: asyncio.Task[Any] | None = None
        self._stand: asyncio.Future[bool] | None = None
        self._is_checking = False
        self._patience: asyncio.TimerHandle | None = None
        self._is_closed = False

    # -- interface for the host ----------------------------------------------------------------------------------------

    async def begin(self, handling: Coroutine[Any, Any, Any]) -> bool:
        """Run the handler until the turn is blocked or over (see the module docstring). Return True if the turn is over."""
        token = current.set(self)
        try:
            self._main = asyncio.get_running_loop().create_task(handling)
        finally:
            current.reset(token)
        return await self.go_on()

    async def go_on(self) -> bool:
        """Wait until the turn is blocked or over. Return True if the turn is over."""
        self._stand = asyncio.get_running_loop().create_future()
        self._check_soon()
        return await self._stand

    def answered(self, call: int, answer: Any) -> None:
        """Pass a reply to the call that awaits it."""
        future = self._replies.pop(call, None)
        if future is None:
            self._early[call] = answer
        elif not future.done():
            future.set_result(answer)

    def result(self) -> Any:  # whatever the handler returns
        """Return the handler's result, or raise its error."""
        assert self._main is not None
        return self._main.result()

    def take_items(self, *, is_over: bool) -> list[Item]:
        """Return the messages sent since the last call. If `is_over` is set, mark the messages as ones whose senders await no replies."""
        items, self.items = self.items, []
        return [{**item, "call": -1} for item in items] if is_over else items

    def close(self) -> None:
        """Close a turn that has ended or has been undone. The turn's remaining tasks are cancelled."""
        self._is_closed = True
        if self._patience is not None:
            self._patience.cancel()
        for task in self._tasks:
            if not task.done():
                task.cancel()
            elif not task.cancelled() and task is not self._main and task.exception() is not None:
                logger.error("a task of a turn has raised, and nobody has awaited it", exc_info=task.exception())
        if self._stand is not None and not self._stand.done():
            self._stand.cancel()

    # -- interface for the runtime -------------------------------------------------------------------------------------

    def send(self, item: Item) -> None:
        """Send a message for which no reply is awaited."""
        if not self._is_closed:
            self.items.append({**item, "call": -1})

    def ask(self, item: Item) -> asyncio.Future[Any]:
        """Send a message and return the future of its reply."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.cancel()
            return future
        call = self._calls
        self._calls += 1
        self.items.append({**item, "call": call})
        if call in self._early:
            future.set_result(self._early.pop(call))
        else:
            self._replies[call] = future
        self._check_soon()
        return future

    # -- detection of a blocked turn -----------------------------------------------------------------------------------

    def created(self, task: asyncio.Task[Any]) -> None:
        """Add a task to the turn."""
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task is not self._main and (task.cancelled() or task.exception() is None):
            del self._tasks[task]
        self._check_soon()

    def _check_soon(self) -> None:
        if not self._is_checking and not self._is_closed:
            self._is_checking = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._is_checking = False
        if self._stand is None or self._stand.done():
            return
        undone = [task for task in self._tasks if not task.done()]
        if not undone or (self._has_returned() and all(self._is_unheard(task) for task in undone)):
            self._stand.set_result(True)
        elif any(_is_ready(task) for task in undone):
            self._check_soon()
        elif not self._waiting():
            return  # a task waits for another task of the turn, and the end of that task triggers the next check
        elif all(self._waits_for_replies(_waits_for(task)) for task in undone):
            self._stand.set_result(False)
        elif self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._lose_patience)

    def _lose_patience(self) -> None:
        self._patience = None
        if self._stand is not None and not self._stand.done():
            is_over = not any(not task.done() for task in self._tasks)
            if is_over or self._waiting():
                self._stand.set_result(is_over)

    def _has_returned(self) -> bool:
        return self._main is not None and self._main.done()

    def _waiting(self) -> bool:
        return any(not future.done() for future in self._replies.values())

    def _is_unheard(self, task: asyncio.Task[Any]) -> bool:
        code = getattr(task.get_coro(), "cr_code", None)
        return code in _SENDS and self._waits_for_replies(_waits_for(task))

    def _waits_for_replies(self, future: Any) -> bool:
        if future is None or future.done():
            return False
        if isinstance(future, asyncio.Task):
            return future in self._tasks and self._waits_for_replies(_waits_for(future))
        children = [child for child in getattr(future, "_children", ()) if not child.done()]
        if children:
            return all(self._waits_for_replies(child) for child in children)
        return any(future is reply for reply in self._replies.values())


def _waits_for(task: asyncio.Task[Any]) -> Any:  # a future, or None
    return getattr(task, "_fut_waiter", None)


def _is_ready(task: asyncio.Task[Any]) -> bool:
    waits = _waits_for(task)
    return waits is None or waits.done()
