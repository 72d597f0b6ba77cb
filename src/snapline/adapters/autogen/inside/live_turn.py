"""One turn of an unchanged agent, from one stand to the next.

The problem: AutoGen's handlers are coroutines in a loop that does not say what they wait for. A turn has to leave for its host when nothing goes on in it any more
without others: when it is over, or when it waits for replies.

The model: a turn is its handler, and the tasks that it has created, and theirs (`track_tasks`). It *stands* when each of them has ended or waits for a reply. It is *over* when each has ended; but a
task that is nothing but a `send_message` of whose reply nobody hears (`asyncio.create_task(self.send_message(…))`, and the handler has returned) counts as ended. It is a send without a reply.

What a task waits for is read from the task. Most things are seen through (tasks, `gather`); where something else is waited for besides a reply, a lock or the network, the turn is
given a moment, and then stands as it is: its host looks again.
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
"""A turn that waits for a reply and for something else that is quick stands once, and not twice."""

Item = dict[str, Any]
"""One message that leaves: `to` whom, `message`, `topic`, `id`, and `call`: the number of the reply that is awaited."""

current: ContextVar["LiveTurn | None"] = ContextVar("snapline-autogen-turn", default=None)

_SENDS: set[CodeType] = {BaseAgent.send_message.__code__}
"""Coroutines that are a send, and nothing but that."""


def is_send(method: Callable[..., Any]) -> None:
    """Declare one more of them."""
    _SENDS.add(method.__code__)


def track_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Have each task that is created in a turn known to that turn."""

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, context=context)
        turn = current.get() if context is None else context.get(current)
        if turn is not None:
            turn.created(task)
        return task

    loop.set_task_factory(factory)


class LiveTurn:
    """A turn that goes on in this process.

    Attributes:
        items: what it has sent since its last stand.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._replies: dict[int, asyncio.Future[Any]] = {}  # asked for, and not there yet
        self._early: dict[
            int, Any
        ] = {}  # there, and not asked for yet: a turn that is run again is told in its old order
        self._calls = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._main: asyncio.Task[Any] | None = None
        self._stand: asyncio.Future[bool] | None = None
        self._is_checking = False
        self._patience: asyncio.TimerHandle | None = None
        self._is_closed = False

    # -- for its host --------------------------------------------------------------------------------------------------

    async def begin(self, handling: Coroutine[Any, Any, Any]) -> bool:
        """Run the handler until the turn stands; return whether it is over."""
        token = current.set(self)
        try:
            self._main = asyncio.get_running_loop().create_task(handling)
        finally:
            current.reset(token)
        return await self.go_on()

    async def go_on(self) -> bool:
        """Wait until the turn stands; return whether it is over."""
        self._stand = asyncio.get_running_loop().create_future()
        self._check_soon()
        return await self._stand

    def answered(self, call: int, answer: Any) -> None:
        """Take the reply to a call."""
        future = self._replies.pop(call, None)
        if future is None:
            self._early[call] = answer
        elif not future.done():
            future.set_result(answer)

    def result(self) -> Any:  # the handler's own
        """Return what the handler has returned; raise what it has raised."""
        assert self._main is not None
        return self._main.result()

    def take_items(self, *, is_over: bool) -> list[Item]:
        """Return what has been sent since the last stand. When the turn is over nobody waits for replies to it."""
        taken, self.items = self.items, []
        return [{**item, "call": -1} for item in taken] if is_over else taken

    def close(self) -> None:
        """Close a turn that is over, or has been undone: what is left of it has no effect."""
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

    # -- for the runtime -----------------------------------------------------------------------------------------------

    def send(self, item: Item) -> None:
        """Send a message without a reply."""
        if not self._is_closed:
            self.items.append({**item, "call": -1})

    def ask(self, item: Item) -> asyncio.Future[Any]:
        """A message, and its reply."""
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

    # -- does it stand? ------------------------------------------------------------------------------------------------

    def created(self, task: asyncio.Task[Any]) -> None:
        """A task that belongs to it."""
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
            return  # for something of its own, and its tasks say when they have ended
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
