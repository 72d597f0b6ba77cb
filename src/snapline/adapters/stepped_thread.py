"""Runs code that cannot be a coroutine of a durable handler, in a thread that alternates with the handler.

A durable turn's handler is a coroutine driven by the runtime, while an SDK calls its users' code from a loop of its own. The SDK therefore
runs in a thread. When its code needs to wait, it passes an awaitable to the handler, and blocks until the handler has the result. While the
thread runs, the handler is blocked. At any time, only one of the two runs, so the handler is as deterministic as a handler without threads.
"""

import contextvars
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any

SHUTDOWN_S = 5.0
"""Time in seconds that the function has to end its work at shutdown. After this time, the thread is abandoned. It ends with the process at the
latest."""


class TurnUndoneError(BaseException):
    """The turn that runs this code was undone. The class is a BaseException, so that `except Exception` in the code does not catch
    this error."""


class SteppedThread:
    """Runs `function` in a thread that alternates with a coroutine. The coroutine awaits `run`, and the function calls `wait`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._thread: threading.Thread | None = None
        self._asked: SimpleQueue[Awaitable[Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._outcome: Callable[[], Any] = _undone
        self._waiting = threading.Lock()
        self._is_over = False

    async def run(self) -> Any:  # whatever the function returns
        """Run the function until it ends, and return its result. The method awaits each awaitable that the function passes to `wait`. If
        the coroutine that awaits `run` is closed, `wait` raises an error in the thread, so that the thread ends."""
        try:
            awaitable = self._start()
            while awaitable is not None:
                awaitable = self._go_on(await _outcome_of(awaitable))
        finally:
            self._close()
        return self._outcome()

    def wait(self, wanted: Awaitable[Any]) -> Any:  # the awaitable's result
        """Let the caller of `run` await `wanted`, and block the thread until the result is available. Call this method only in the
        thread."""
        with self._waiting:  # serializes calls by threads that the function may have created
            if self._is_over:
                getattr(wanted, "close", lambda: None)()
                raise TurnUndoneError
            self._asked.put(wanted)
            return self._answers.get()()

    def _start(self) -> Awaitable[Any] | None:
        context = contextvars.copy_context()
        # A daemon thread, so that blocked code does not prevent the process from ending.
        self._thread = threading.Thread(target=context.run, args=(self._main,), name="snapline-stepped", daemon=True)
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
