"""A function in its own thread that alternates with its caller: exactly one of the two runs at any time.

The handler of a durable turn is a coroutine, which the runtime drives; a graph's nodes are plain functions, deep inside LangGraph's loop.
So the graph runs in a thread. When a node needs to await something, it passes the awaitable to the handler and blocks until the handler
has the result. The caller is blocked while the thread runs, so the handler is as deterministic as one without threads.
"""

import contextvars
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any

SHUTDOWN_S = 5.0
"""Time for a node to end its work at shutdown. After that the thread is abandoned; it ends with the process at the latest."""


class TurnUndoneError(BaseException):
    """Raised inside a node whose turn was ended. A BaseException, so that `except Exception` in a node or graph does not catch it."""


class SteppedThread:
    """Runs `function` in a thread. The caller awaits `run`; the function calls `wait`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._thread: threading.Thread | None = None
        self._asked: SimpleQueue[Awaitable[Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._outcome: Callable[[], Any] = _undone
        self._waiting = threading.Lock()
        self._is_over = False

    async def run(self) -> Any:  # the function's own result
        """Run the function to its end, awaiting each awaitable that it passes. If this coroutine is closed, the thread ends."""
        try:
            awaitable = self._start()
            while awaitable is not None:
                awaitable = self._go_on(await _outcome_of(awaitable))
        finally:
            self._close()
        return self._outcome()

    def wait(self, wanted: Awaitable[Any]) -> Any:  # what it comes to
        """Called in the thread: let the caller await `wanted`, and block until it has the result."""
        with self._waiting:  # serializes threads that a node may have created
            if self._is_over:
                getattr(wanted, "close", lambda: None)()
                raise TurnUndoneError
            self._asked.put(wanted)
            return self._answers.get()()

    def _start(self) -> Awaitable[Any] | None:
        context = contextvars.copy_context()
        # A daemon thread, so that a blocked node does not prevent the process from ending.
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
        except BaseException as error:  # passed to the caller, since a handler requests a rollback with one
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
