"""Driver of handlers that wait: they may await only `ctx.step`.

A step calls its stub if the fleet has stubs (`stubs.py`). Otherwise the step's function runs at one instant of virtual time, in the thread of the
simulation. The duration in virtual time is drawn.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host import events as ev
from snapline.sim.world.host_run import HostRun
from snapline.sim.world.kernel import NotSimulatedError
from snapline.sim.world.stubs import StubServices
from snapline.sim.world.waiting import Wait

STEP_LEAST_NS, STEP_JITTER_NS, STEP_STEPS = 1_000_000, 50_000_000, 16
"""Duration of a step: as long as a fast call of a tool or model, so that waiting turns overlap with other work."""

FOREIGN = "no running event loop"
"""Error text of asyncio for calls outside its loop."""


class Steps:
    """Executor of `ctx.step`."""

    def __init__(self, stubs: StubServices) -> None:
        self.stubs = stubs
        self._count = 0

    async def step(self, host: HostRun, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        """Call the step's stub, or run `function` once, after a drawn time."""
        call = self.stubs.call(name, function, host.driver.core.plan)
        if call is not None:
            return await call.answered()
        self._count += 1
        drawn = host.shared.choices.pick("schedule", ("step", host.instance, name, self._count), STEP_STEPS)
        await Wait(STEP_LEAST_NS + STEP_JITTER_NS * drawn // STEP_STEPS)
        outcome = function()
        return run_alone(name, outcome) if inspect.iscoroutine(outcome) else outcome


async def limited(host: HostRun, running: Awaitable[Any], limit_ns: int) -> Any:  # the result of what runs
    """Wait at most for the limit for a step; then raise TimeoutError."""
    ends_ns = host.shared.kernel.now_ns + limit_ns
    inner = running.__await__()
    try:
        while True:
            try:
                wait = next(inner)
            except StopIteration as ended:
                return ended.value
            assert isinstance(wait, Wait), "steps wait for nothing else"
            await _first(host, wait, ends_ns)
    finally:
        getattr(inner, "close", lambda: None)()


async def _first(host: HostRun, wait: Wait, ends_ns: int) -> None:
    """Wait for an event or the timeout."""
    left_ns = ends_ns - host.shared.kernel.now_ns
    if wait.delay_ns is None:
        host.later(ends_ns, wait.expire)
        await wait
        is_late = wait.is_late
    else:
        await Wait(min(wait.delay_ns, left_ns))
        is_late = wait.delay_ns > left_ns
    if is_late:
        raise TimeoutError


def run_alone(name: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Drive a step's coroutine to its end; raise NotSimulatedError if it really waits."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise NotSimulatedError(
        f"step {name!r} waits for something outside: give the fleet a stub, Fleet(simulate={{{name!r}: …}})"
    )


class Drawing(Protocol):
    """Recorder of the running turn's draws: `outside.SimOutside`."""

    draws: list[object]


class DrivenTurn:
    """A handler that may wait while other turns run."""

    def __init__(self, host: HostRun, coroutine: "Coroutine[object, None, None]", drawing: Drawing) -> None:
        self._host = host
        self._drawing, self._draws = drawing, drawing.draws
        self._coroutine = coroutine
        self._is_over = False
        host.later(host.shared.kernel.now_ns, self._go_on)

    def cancel(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._coroutine.close()

    def _go_on(self, _: object) -> None:
        if self._is_over:
            return
        self._drawing.draws = self._draws
        try:
            waits_for = self._coroutine.send(None)
        except StopIteration:
            self._is_over = True
            return
        if not isinstance(waits_for, Wait):
            self._is_over = True
            self._host.shared.misused(_foreign(self._coroutine, waits_for))
        elif waits_for.delay_ns is None:
            waits_for.begin(lambda: self._host.later(self._host.shared.kernel.now_ns, self._go_on))
        else:
            self._host.later(self._host.shared.kernel.now_ns + waits_for.delay_ns, self._go_on)


def _foreign(coroutine: "Coroutine[object, None, None]", waits_for: object) -> str:
    """Return a message that names the innermost waiting line."""
    inner: Any = coroutine  # coroutines and awaitables of any kind
    where = ""
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
        if frame is not None and "/asyncio/" not in frame.f_code.co_filename:
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_qualname}"
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
    return (
        f"a handler awaits something that is not snapline's ({where}): "
        "wrap it in `await ctx.step(name, function)`, which the simulation can repeat"
    )


def may_wait(known: AgentType | None) -> bool:
    """Return whether the class has a durable handler."""
    return known is not None and any(handler.is_durable for handler in known.handlers.values())


def check_handler_error(turn: ev.StartTurn, failed: ev.TurnFailed) -> None:
    """Raise an error if a handler failed because it called asyncio, which cannot be simulated.

    Raises:
        NotSimulatedError: the handler called asyncio; the message names the line.
    """
    if FOREIGN in failed.error:
        lines = [line.strip() for line in failed.error.splitlines() if line.strip().startswith("File ")]
        where = next((line for line in reversed(lines) if "asyncio" not in line), "")
        raise NotSimulatedError(
            f"a handler of agent {turn.agent!r} awaits something that is not snapline's ({where}): "
            "wrap it in `await ctx.step(name, function)`, which the simulation can repeat"
        )
