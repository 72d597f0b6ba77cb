"""A function in a thread of its own that runs in turns with its caller: of the two exactly one runs at any time.

A handler of a durable turn is a coroutine, which the runtime drives by hand; a graph's nodes are plain functions, deep inside LangGraph's loop.
So the graph runs in a thread, and when a node wants something awaited it hands the awaitable over and stands until its handler has the
result. While the thread runs its caller stands: the handler stays as deterministic as one without threads.
"""

import contextvars
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any

SHUTDOWN_S = 5.0
"""Time for a node to let go of its work. One that does not is left: its thread ends with the process at the latest."""


class TurnUndoneError(BaseException):
    """Raised inside a node whose turn goes on no more. No `except Exception` of a node or a graph keeps it."""


class SteppedThread:
    """Runs `function`. Its caller calls `go_on`, then `close`; what runs inside calls `wait`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._thread: threading.Thread | None = None
        self._asked: SimpleQueue[Awaitable[Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._outcome: Callable[[], Any] = _undone
        self._waiting = threading.Lock()
        self._is_over = False

    async def run(self) -> Any:  # the function's own result
        """Run it to its end; whatever it wants awaited is awaited here. When this is closed, the thread ends."""
        try:
            wanted = self._start()
            while wanted is not None:
                wanted = self._go_on(await _outcome_of(wanted))
        finally:
            self._close()
        return self._outcome()

    def wait(self, wanted: Awaitable[Any]) -> Any:  # what it comes to
        """Inside the thread: have it awaited, and stand until it is."""
        with self._waiting:  # should a node have threads of its own, they take turns
            if self._is_over:
                getattr(wanted, "close", lambda: None)()
                raise TurnUndoneError
            self._asked.put(wanted)
            return self._answers.get()()

    def _start(self) -> Awaitable[Any] | None:
        context = contextvars.copy_context()
        # A daemon, so that a node that does not let go keeps no process from its end.
        self._thread = threading.Thread(target=context.run, args=(self._main,), name="snapline-graph", daemon=True)
        self._thread.start()
        return self._asked.get()

    def _go_on(self, answer: Callable[[], Any]) -> Awaitable[Any] | None:
        self._answers.put(answer)
        return self._asked.get()

    def _close(self) -> None:
        self._is_over = True
        if self._thread is not None and self._thread.is_alive():
            self._answers.put(_undone)
            self._thread.join(SHUTDOWN_S)

    def _main(self) -> None:
        try:
            found = self._function()
            self._outcome = lambda: found
        except BaseException as error:  # it is the caller's: among them is how a handler asks for a rollback
            self._outcome = _raiser(error)
        self._asked.put(None)


async def _outcome_of(wanted: Awaitable[Any]) -> Callable[[], Any]:
    try:
        found = await wanted
    except Exception as error:
        return _raiser(error)
    return lambda: found


def _raiser(error: BaseException) -> Callable[[], Any]:
    def again() -> Any:
        raise error

    return again


def _undone() -> Any:
    raise TurnUndoneError
