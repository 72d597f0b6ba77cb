"""Coroutines that a handler has made and nobody has awaited: what they stand for was not done, so their turn fails.

There are two kinds. What a context gives (`ctx.step`, `ctx.sleep` …) is an `ContextCall`: it is noted when it is made, and crossed out when somebody awaits it. Of
others, such as `client.send(…)` or a method of the agent's own, Python says that they were never awaited when it frees them. A host's process hears of
that in place of Python's warning (`watch`).
"""

import asyncio
import contextlib
import functools
import gc
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

NOTED_MAX = 16
"""Coroutines that were freed and that no turn was asked of yet. Of more Python warns."""

_HERE = __name__.partition(".")[0]
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class Unawaited:
    """Of one turn.

    Attributes:
        waiting: what its context was asked for and nobody has awaited yet, by the id of the object.
        dropped: what nobody can await any more.
    """

    __slots__ = ("dropped", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, str] = {}
        self.dropped: list[str] = []


class Noting(Protocol):
    """What a context must have; None: it was asked for nothing that is awaited."""

    unawaited: Unawaited | None


_Ctx = TypeVar("_Ctx", bound=Noting)


class ContextCall(Coroutine[Any, Any, Any]):
    """A call of a context's method: a coroutine that begins when it is awaited."""

    __slots__ = ("_begin", "_coroutine", "_noted")

    def __init__(self, ctx: Noting, begin: Callable[[], Coroutine[Any, Any, Any]], said: str) -> None:
        self._begin = begin
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        if ctx.unawaited is None:
            ctx.unawaited = Unawaited()
        self._noted = ctx.unawaited
        self._noted.waiting[id(self)] = said

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begun().__await__()

    def send(self, value: Any) -> Any:
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        return self._begun().throw(*error)

    def close(self) -> None:
        """It is not wanted after all."""
        self._begun().close()

    def __del__(self) -> None:
        said = self._noted.waiting.pop(id(self), None)
        if said is not None:
            self._noted.dropped.append(said)

    def _begun(self) -> Coroutine[Any, Any, Any]:
        if self._coroutine is None:
            self._noted.waiting.pop(id(self), None)
            self._coroutine = self._begin()
        return self._coroutine


def awaited(
    method: Callable[Concatenate[_Ctx, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Ctx, P], Coroutine[Any, Any, R]]:
    """Decorator of a context's method: a call of it that nobody awaits is found when the turn ends."""

    @functools.wraps(method)
    def asked(ctx: _Ctx, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        name = f"{args[0]!r}, …" if args and isinstance(args[0], str) else "…" if args or kwargs else ""
        said = f"ctx.{method.__name__}({name}) at {_line(sys._getframe(1))}"
        return ContextCall(ctx, lambda: method(ctx, *args, **kwargs), said)

    return asked  # type: ignore[return-value]  # its first argument has a name here


def _line(frame: Any) -> str:
    """The innermost line that is not the runtime's."""
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _HERE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextlib.contextmanager
def no_task() -> Iterator[None]:
    """Let what runs in here be in no task of asyncio's: `asyncio.timeout` in a durable handler would cancel the host's."""
    task = _present()
    if task is None:
        yield
        return
    loop = task.get_loop()
    asyncio.tasks._leave_task(loop, task)
    try:
        yield
    finally:
        asyncio.tasks._enter_task(loop, task)


# ---- other coroutines -----------------------------------------------------------------------------------------------

freed: list[tuple[object, str]] = []
"""Coroutines that were never awaited: the task that freed them, None for the loop itself, and what they are. In hosts' processes only."""

_warn = warnings._warn_unawaited_coroutine  # type: ignore[attr-defined]  # what Python calls, by this name, since 3.8


_is_collecting = False
"""Python looks for cycles of dead objects: whoever runs just now has not made them."""


def watch() -> None:
    """Hear of coroutines that were never awaited, in this process from now on."""
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
    is_elsewhere = _is_collecting or threading.current_thread() is not threading.main_thread()
    if is_elsewhere or len(freed) >= NOTED_MAX or (file.startswith(_LIBRARIES) and not is_ours):
        _warn(coroutine)
    else:
        freed.append((_present(), f"{coroutine.__qualname__}(…) at {_line(sys._getframe(1))}"))


def _present() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def left_by(ctx: Noting, *, is_over: bool) -> list[str]:
    """What the turn of this context has left behind, that stands, or `is_over`."""
    noted, found = ctx.unawaited, list[str]()
    if noted is not None:
        found = [*noted.dropped, *(noted.waiting.values() if is_over else ())]
    if freed:
        own = (_present(), None)  # none: it ran within `no_task`
        found += [said for owner, said in freed if owner in own]
        freed[:] = [each for each in freed if each[0] not in own]
    return found


def sentence(left: list[str]) -> str:
    """Why the turn fails."""
    more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
    return f"{left[0]}{more} was never awaited, so it was not done: write await before it"
