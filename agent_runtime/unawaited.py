"""Detects coroutines that a handler created but did not await. An unawaited coroutine did not run, so the turn fails.

A coroutine that a method of the context returns (`ctx.step`, `ctx.sleep` …) is a `ContextCall`. A `ContextCall` is registered when it is
created and unregistered when it is awaited. For all other coroutines, such as `client.send(…)` or a method of the agent, Python issues a
warning when it frees a coroutine that was never awaited. A host process registers these unawaited coroutines instead of printing Python's
warning (`watch`). An unawaited coroutine is attributed to the task of the turn or step, even if a task or thread that the turn or step
started has freed the coroutine. Python still warns about unawaited coroutines in tasks that outlive their turn or belong to no turn.
"""

import asyncio
import contextlib
import contextvars
import functools
import gc
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

NOTED_MAX = 16
"""Largest number of freed coroutines that wait for a turn to check them. Python warns about all further coroutines."""

_HERE = __name__.partition(".")[0]
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class UnawaitedCoroutines:
    """Unawaited coroutines of one turn.

    Attributes:
        waiting: descriptions of calls of the turn's context that have not been awaited yet, by object id.
        dropped: descriptions of calls that were freed without being awaited.
    """

    __slots__ = ("dropped", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, str] = {}
        self.dropped: list[str] = []


class CallTracking(Protocol):
    """Interface that `ContextCall` requires from a context. `unawaited` is None until the context makes the first call that must be
    awaited."""

    unawaited: UnawaitedCoroutines | None


_Ctx = TypeVar("_Ctx", bound=CallTracking)


class ContextCall(Coroutine[Any, Any, Any]):
    """A call of a context's method. The call is a coroutine that starts when it is awaited."""

    __slots__ = ("_begin", "_coroutine", "_noted")

    def __init__(self, ctx: CallTracking, begin: Callable[[], Coroutine[Any, Any, Any]], said: str) -> None:
        self._begin = begin
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        if ctx.unawaited is None:
            ctx.unawaited = UnawaitedCoroutines()
        self._noted = ctx.unawaited
        self._noted.waiting[id(self)] = said

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begun().__await__()

    def send(self, value: Any) -> Any:
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        return self._begun().throw(*error)

    def close(self) -> None:
        """Close the coroutine because it is not needed after all."""
        self._begun().close()

    def __del__(self) -> None:
        description = self._noted.waiting.pop(id(self), None)
        if description is not None:
            self._noted.dropped.append(description)

    def _begun(self) -> Coroutine[Any, Any, Any]:
        if self._coroutine is None:
            self._noted.waiting.pop(id(self), None)
            self._coroutine = self._begin()
        return self._coroutine


def awaited(
    method: Callable[Concatenate[_Ctx, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Ctx, P], Coroutine[Any, Any, R]]:
    """Decorate a context's method so that the end of the turn detects unawaited calls of the method."""

    @functools.wraps(method)
    def asked(ctx: _Ctx, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        name = f"{args[0]!r}, …" if args and isinstance(args[0], str) else "…" if args or kwargs else ""
        description = f"ctx.{method.__name__}({name}) at {_line(sys._getframe(1))}"
        return ContextCall(ctx, lambda: method(ctx, *args, **kwargs), description)

    return asked  # type: ignore[return-value]  # its first argument has a name here


def _line(frame: Any) -> str:
    """Return the file and line of the innermost stack frame outside the runtime."""
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _HERE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextlib.contextmanager
def no_task(make_task: Callable[..., Any]) -> Iterator[None]:
    """Run the block outside any asyncio task, because `asyncio.timeout` in a durable handler would otherwise cancel the host's task.

    While the block runs, `make_task` is the event loop's task factory. This task factory prevents the block from creating tasks.
    """
    loop = asyncio._get_running_loop()  # it returns None in the simulator
    if loop is None:
        yield
        return
    task, factory = asyncio.current_task(loop), loop.get_task_factory()
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    loop.set_task_factory(make_task)
    try:
        yield
    finally:
        loop.set_task_factory(factory)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)


# ---- other coroutines -----------------------------------------------------------------------------------------------


class FreedCoroutine(NamedTuple):
    """A coroutine that was freed without being awaited. `task` is the task responsible for the coroutine, or None for the event loop
    itself. If `task` runs a turn, the coroutine is reported when the turn ends."""

    task: "asyncio.Task[Any] | None"
    is_turn: bool
    said: str


freed: list[FreedCoroutine] = []
"""Freed coroutines that no turn has checked yet. The list is used only in host processes."""

_turn: "contextvars.ContextVar[asyncio.Task[Any] | None]" = contextvars.ContextVar("snapline_turn", default=None)
"""Task of the turn or step that runs in this context. Tasks and threads that the turn or step starts inherit this value."""


def enter_turn() -> None:
    """Mark the current task as running a turn or a step."""
    _turn.set(_running_task())


_warn = warnings._warn_unawaited_coroutine  # type: ignore[attr-defined]  # Python has called it by this name since 3.8


_is_collecting = False
"""True during a cycle collection, which may free objects that the running code did not create."""


def watch() -> None:
    """Register, from now on, coroutines in this process that are freed without being awaited."""
    gc.callbacks.append(_on_collection)
    warnings._warn_unawaited_coroutine = _on_freed  # type: ignore[attr-defined]  # as above


def _on_collection(phase: str, _: dict[str, int]) -> None:
    global _is_collecting
    _is_collecting = phase == "start"


def _on_freed(coroutine: Any) -> None:
    file = coroutine.cr_code.co_filename
    is_ours = coroutine.cr_frame is not None and coroutine.cr_frame.f_globals.get("__name__", "").startswith(
        "snapline."
    )
    turn = _turn.get()
    is_outside = turn.done() if turn is not None else threading.current_thread() is not threading.main_thread()
    if _is_collecting or is_outside or len(freed) >= NOTED_MAX or (file.startswith(_LIBRARIES) and not is_ours):
        _warn(coroutine)
    else:
        description = f"{coroutine.__qualname__}(…) at {_line(sys._getframe(1))}"
        freed.append(
            FreedCoroutine(_running_task(), False, description)
            if turn is None
            else FreedCoroutine(turn, True, description)
        )


def _running_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def left_by(ctx: CallTracking, *, is_over: bool) -> list[str]:
    """Return descriptions of the unawaited coroutines of this context's turn. `is_over` is True if the turn has ended, and False if the
    turn is only waiting."""
    noted, descriptions = ctx.unawaited, list[str]()
    if noted is not None:
        descriptions = [*noted.dropped, *(noted.waiting.values() if is_over else ())]
    return descriptions + take_freed()


def take_freed() -> list[str]:
    """Return descriptions of the coroutines that the current turn or step freed without awaiting them. Warn about such coroutines that
    belong to no running turn."""
    if not freed:
        return []
    own, noted = (_turn.get(), _running_task(), None), list(freed)  # None: the coroutine ran within `no_task`
    freed.clear()
    for coroutine in noted:
        if coroutine.task in own:
            continue
        if coroutine.is_turn and coroutine.task is not None and not coroutine.task.done():
            freed.append(coroutine)
        else:
            warnings.warn(f"coroutine {coroutine.said} was never awaited", RuntimeWarning, stacklevel=2)
    return [coroutine.said for coroutine in noted if coroutine.task in own]


def sentence(left: list[str]) -> str:
    """Return the error message for a turn that left these coroutines unawaited."""
    more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
    return f"{left[0]}{more} was never awaited, so it was not done: write await before it"
