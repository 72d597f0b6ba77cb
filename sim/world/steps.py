"""Drivers for handlers that wait, and stubs that replace external services. A handler may await only operations of its context, such as
`ctx.step`. When a handler or stub waits (`Wait`), a scheduled call ends the wait, and the handler or stub resumes.

If the fleet has stubs, a step calls its stub. If the fleet has no stubs, the step's own function is executed in the simulation's thread, at
a single instant of virtual time. Whether a stub or the step's own function is called, the duration of the step in virtual time is random.

A *stub* is a function that the simulator calls instead of a step's own function (`Fleet(simulate=…)`). The stub represents an external
service, so a host crash does not affect it. A call of a stub consists of a request in transit, the execution of the stub, and an answer in
transit. Once a request has left its host, it arrives even if the host crashes or the step times out. The transit times are random.
Depending on the scenario's section `steps`, a call may also be late, get no answer or fail, whether or not the stub was executed.

An `assert` that fails in a stub reports a violation. Any other exception that a stub raises is treated as the service's answer.

`SimOutside` provides time, random numbers and calls to external services for the handlers of one host.
"""

import asyncio
import contextlib
import copy
import functools
import inspect
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from typing import Any, NoReturn, Protocol

from snapline.agent_runtime.agent import Agent, AgentType
from snapline.agent_runtime.fleet import Stubs, stubs_of
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.message_encoding import encode_body, encode_ordered, has_one_order
from snapline.agent_runtime.turn_environment import Heartbeats, TurnEnvironment, taken
from snapline.errors import SnaplineError, StoreError
from snapline.sim.faults.content_faults import CONTENT_FAULTS, with_content_fault
from snapline.sim.oracles.ground_truth_records import StepOutcome
from snapline.sim.result import ExecutedFault
from snapline.sim.world.host_streams import HostRun
from snapline.sim.world.kernel import MS, SECOND_NS, Kernel, NotSimulatedError
from snapline.sim.world.world_state import WorldState
from snapline.storage.log.answer_files import RecordedAnswer

# -- waits -------------------------------------------------------------------------------------------------------------


class Wait:
    """Object that a handler yields to its driver in order to wait. The handler resumes after `delay_ns` nanoseconds. If `delay_ns` is None,
    the handler resumes when the method `end` is called.

    Attributes:
        is_late: whether the wait ended because its time limit was reached.
    """

    __slots__ = ("_is_over", "_then", "delay_ns", "is_late")

    def __init__(self, delay_ns: int | None = None) -> None:
        self.delay_ns = delay_ns
        self.is_late = False
        self._is_over = False
        self._then: Callable[[], object] | None = None

    def __await__(self) -> "Generator[Wait, None, None]":
        if not self._is_over:
            yield self

    def begin(self, then: Callable[[], object]) -> None:
        """Start the wait. `then` is called exactly once, when the wait ends."""
        self._then = then

    def end(self) -> None:
        """End the wait. Do nothing if the wait has already ended."""
        if not self._is_over:
            self._is_over = True
            if self._then is not None:
                self._then()

    def expire(self, _: object = None) -> None:
        """End the wait because its time limit was reached. Do nothing if the wait has already ended."""
        self.is_late = self.is_late or not self._is_over
        self.end()


class Call:
    """A scheduled function call that may be cancelled."""

    __slots__ = ("_function", "_is_cancelled")

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def make(self, _: object) -> None:
        if not self._is_cancelled:
            self._function()


Future = asyncio.Future[Any]
"""Future of a `VirtualLoop`."""


def settle(future: Future, function: Callable[[], Any]) -> None:
    """Complete a future with the result of the function, or with the `SnaplineError` that the function raises. If the function raises
    OSError, for example at a failpoint, the future gets a StoreError."""
    try:
        result = function()
    except SnaplineError as error:
        future.set_exception(error)
    except OSError as error:
        future.set_exception(StoreError(f"the store cannot be read: {error}"))
    else:
        future.set_result(result)


class VirtualLoop:
    """Minimal event loop in virtual time. The loop supports `asyncio.sleep`, futures and locks."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def time(self) -> float:
        return self._kernel.now_ns / SECOND_NS

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":  # the result may have any type
        return asyncio.Future(loop=self)  # type: ignore[arg-type]  # futures ask no more of it than there is

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Call:
        return self.call_later(0, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Call:
        call = Call(partial((context or copy_context()).run, callback, *args))
        self._kernel.at(self._kernel.now_ns + max(0, round(delay * SECOND_NS)), call.make)
        return call

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: object) -> NoReturn:
        coro.close()
        raise NotSimulatedError("a stub starts a task: it may await asyncio.sleep, futures and locks, and nothing else")


def drive(loop: VirtualLoop, coroutine: Coroutine[Any, None, Any], ended: Callable[[Callable[[], Any]], None]) -> None:
    """Run a coroutine on this loop until it ends. `ended` is called with a function that returns the coroutine's result or raises its
    error."""
    asyncio.events._set_running_loop(loop)  # type: ignore[arg-type]  # it has what `asyncio.sleep` looks for
    try:
        waits_for = coroutine.send(None)
    except StopIteration as stop:
        value = stop.value
        ended(lambda: value)
        return
    except Exception as error:
        ended(_raiser(error))
        return
    finally:
        asyncio.events._set_running_loop(None)
    if waits_for is None:
        loop.call_soon(drive, loop, coroutine, ended)
    elif isinstance(waits_for, asyncio.Future) and waits_for.get_loop() is loop:  # type: ignore[comparison-overlap]  # as made above
        waits_for._asyncio_future_blocking = False
        waits_for.add_done_callback(lambda _: drive(loop, coroutine, ended))
    else:
        coroutine.close()
        ended(_raiser(NotSimulatedError(f"a stub awaits a {type(waits_for).__qualname__}: it may await asyncio.sleep")))


def _raiser(error: Exception) -> Callable[[], Any]:
    def again() -> Any:
        raise error

    return again


# -- stubs ----------------------------------------------------------------------------------------------------------------

WAY_LEAST_NS, WAY_JITTER_NS, WAY_STEPS = MS // 2, 25 * MS, 16
"""Delays of a request and of its answer. Together, they are as long as a step without a stub."""

LATE_NS = (200 * MS, 1_000 * MS, 5_000 * MS, 20_000 * MS)
"""Extra delays of late calls. Some are shorter than a step's usual timeout, and some are longer."""

LOST_NS = 15_000 * MS
"""Time until a step detects a broken connection. Otherwise a step without a timeout would wait forever, which would look like a bug."""

_PER_MILLE = 1000


class Outages:
    """Draws which calls of stubs fail. Once `is_over` is set, no call fails."""

    def __init__(self, shared: WorldState) -> None:
        self._shared = shared
        self.is_over = False

    def drawn(self, name: str, number: int) -> str:
        """Draw how a call fails: return "late", "lost" or "failed", or "" if the call succeeds."""
        steps = self._shared.scenario.steps
        drawn = _PER_MILLE - 1 - self._shared.choices.pick("steps", (name, number, "fate"), _PER_MILLE)
        if self.is_over:
            return ""
        for fate, per_mille in (
            ("lost", steps.lost_per_mille),
            ("failed", steps.failed_per_mille),
            ("late", steps.late_per_mille),
        ):
            if drawn < per_mille:
                return fate
            drawn -= per_mille
        return ""

    def spoilt(self, name: str, number: int) -> str:
        """Draw how the content of a recorded answer is wrong: one of `CONTENT_FAULTS`, or "" if it is right."""
        per_mille = self._shared.scenario.steps.wrong_per_mille
        if not per_mille:
            return ""
        drawn = _PER_MILLE - 1 - self._shared.choices.pick("steps", (name, number, "content"), _PER_MILLE)
        if self.is_over or drawn >= per_mille:
            return ""
        return CONTENT_FAULTS[self._shared.choices.pick("steps", (name, number, "wrong"), len(CONTENT_FAULTS))]

    def note(self, text: str) -> None:
        """Record the description of a failing call."""
        self._shared.faults.append(ExecutedFault("step", text, self._shared.kernel.now_ns))


class StubCall:
    """A call of a stub.

    Attributes:
        wait: the caller's wait, which ends when the answer arrives.
    """

    def __init__(
        self,
        shared: WorldState,
        outages: Outages,
        name: str,
        number: int,
        function: Callable[[], Any],
        arrived: Callable[[Callable[[], Any] | None], None],
        *,
        plan: int,
    ) -> None:
        """`arrived` is called with a function that returns the stub's answer, or with None if the request was lost. `plan` is the recovery
        plan that the calling host follows."""
        self._shared = shared
        self._name = name
        self._number = number
        self._function = function
        self._arrived = arrived
        self._plan = plan
        self._answer: Callable[[], Any] = lambda: None
        self.wait = Wait()
        self._begin(outages)

    def _pick(self, what: str, n: int) -> int:
        return self._shared.choices.pick("steps", (self._name, self._number, what), n)

    def _way_ns(self, way: str) -> int:
        return WAY_LEAST_NS + WAY_JITTER_NS * self._pick(way, WAY_STEPS) // WAY_STEPS

    def _begin(self, outages: Outages) -> None:
        there_ns, self._back_ns = self._way_ns("there"), self._way_ns("back")
        self._fate = outages.drawn(self._name, self._number)
        if not self._fate:
            self._in(there_ns, self._arrive)
            return
        is_before = self._pick("before", 2) == 1
        where = f"step {self._name!r}, call {self._number}"
        match self._fate:
            case "late":
                late_ns = LATE_NS[self._pick("late", len(LATE_NS))]
                if is_before:
                    there_ns += late_ns
                else:
                    self._back_ns += late_ns
                outages.note(f"{where}: the {'request' if is_before else 'answer'} takes {late_ns / 1e9:g} s longer")
            case "lost":
                self._back_ns = LOST_NS
                outages.note(f"{where}: the {'request' if is_before else 'answer'} is lost")
            case _:
                outages.note(f"{where}: ends in an error {'before' if is_before else 'after'} it was done")
        self._in(there_ns, self._lose if is_before and self._fate != "late" else self._arrive)

    def _in(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._shared.call_at(self._shared.kernel.now_ns + delay_ns, call)

    def _arrive(self) -> None:
        loop = VirtualLoop(self._shared.kernel)
        self._shared.workload.calling_plan = self._plan
        drive(loop, _called(self._function), self._done)

    def _lose(self) -> None:
        """Lose the request. After this, the stub is never executed."""
        self._arrived(None)
        self._broken()

    def _done(self, answer: Callable[[], Any]) -> None:
        """Handle the answer of the stub. Send the answer to the caller unless it is lost."""
        self._answer = answer
        self._arrived(answer)
        with contextlib.suppress(Exception):  # an exception is the service's answer
            self._look_at(answer)
        if self._fate in ("lost", "failed"):
            self._broken()
        else:
            self._in(self._back_ns, self.wait.end)

    def _look_at(self, answer: Callable[[], Any]) -> None:
        try:
            answer()
        except AssertionError as error:
            self._shared.say("stub", "stub", f"the stub of step {self._name!r}: {_said(error)}")
        except NotSimulatedError as error:
            self._shared.misused(f"step {self._name!r}: {error}")

    def _broken(self) -> None:
        """Break the connection, so that the caller never learns the outcome of the call."""
        error = ConnectionError(f"the connection of step {self._name!r} was lost, says the simulation")
        self._answer = functools.partial(_raise, error)
        self._in(self._back_ns, self.wait.end)

    async def answered(self) -> Any:  # what the stub returns
        """Wait for the answer of the stub, and return it."""
        await self.wait
        return self._answer()


class StubServices:
    """All stubs of a fleet in one run.

    Attributes:
        without_stub: names of the steps whose own functions were called, because the fleet has no stubs.
        done: the stub's answer for each effect, by the effect's external key. The dict `done` is the service's record, which an operator
            can consult.
    """

    def __init__(self, shared: WorldState) -> None:
        self._shared = shared
        self._stubs: Stubs | None = stubs_of(shared.workload.fleet)
        self._calls: dict[str, int] = {}
        self.outages = Outages(shared)
        self.without_stub: dict[str, None] = {}
        self.done: dict[str, Any] = {}
        self._under_way: dict[str, int] = {}

    def is_in_transit(self, key: str) -> bool:
        """Return whether a call of the effect with this external key is in transit."""
        return self._under_way.get(key, 0) > 0

    def _note_arrived(self, key: str, answer: Callable[[], Any] | None) -> None:
        self._under_way[key] -= 1
        if answer is not None:
            with contextlib.suppress(Exception):  # an exception is the service's answer
                self.done[key] = answer()

    def call(self, name: str, function: Callable[[], Any], plan: int) -> StubCall | None:
        """Call the stub of a step with the same arguments as `function`. `plan` is the recovery plan that the calling host follows. Return
        None if the fleet has no stubs.

        Raises:
            NotSimulatedError: If the fleet has stubs, but no stub for this step.
        """
        if self._stubs is None:
            self.without_stub[name] = None
            return None
        if name not in self._stubs:
            known = ", ".join(sorted(self._stubs)) or "none"
            text = (
                f"step {name!r} has no stub; Fleet(simulate=…) has for: {known}. Add one; if the step's function touches nothing outside, "
                "give that function itself"
            )
            self._shared.misused(text)
            raise NotSimulatedError(text)
        number = self._calls[name] = self._calls.get(name, 0) + 1
        key = _outside_key_of(name, function)
        self._under_way[key] = self._under_way.get(key, 0) + 1
        arrived = functools.partial(self._note_arrived, key)
        stub = _with_arguments(self._stubs[name], function)
        return StubCall(self._shared, self.outages, name, number, stub, arrived, plan=plan)

    def recorded(self, name: str, answer: RecordedAnswer, plan: int) -> StubCall:
        """Return the recorded answer to a step like the answer of a stub, which may be late, lost or wrong."""
        number = self._calls[name] = self._calls.get(name, 0) + 1
        how = self.outages.spoilt(name, number)
        if how:
            answer = with_content_fault(answer, how)
            self.outages.note(f"step {name!r}, call {number}: the recorded answer is {how}")
        return StubCall(self._shared, self.outages, name, number, lambda: answer, lambda _: None, plan=plan)


def _outside_key_of(name: str, function: Callable[[], Any]) -> str:
    """Return the external key of a call that executes an effect. Return "" for a step, a probe or a compensation, because they do not
    execute the effect."""
    keywords = function.keywords if isinstance(function, functools.partial) else {}
    return "" if "/" in name else str(keywords.get("key", ""))


def _with_arguments(stub: Callable[..., Any], function: Callable[[], Any]) -> Callable[[], Any]:
    if isinstance(function, functools.partial):
        return functools.partial(stub, *function.args, **function.keywords)
    return stub


async def _called(function: Callable[[], Any]) -> Any:  # what the stub returns
    outcome = function()
    return await outcome if inspect.isawaitable(outcome) else outcome


def _raise(error: Exception) -> Any:
    raise error


def _said(error: AssertionError) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    first = (str(error) or frame.line or "assert").splitlines()[0]
    return f"{first} ({frame.filename}:{frame.lineno})"


# -- steps ----------------------------------------------------------------------------------------------------------------

STEP_LEAST_NS, STEP_JITTER_NS, STEP_STEPS = 1_000_000, 50_000_000, 16
"""Duration of a step, which is drawn. A step takes as long as a fast call of a tool or model, so that waiting turns
overlap with other work."""

FOREIGN = "no running event loop"
"""Text of asyncio's error for a call without a running event loop."""


class Steps:
    """Executes the steps that handlers request by calling `ctx.step`."""

    def __init__(self, stubs: StubServices) -> None:
        self.stubs = stubs
        self._count = 0

    async def step(self, host: HostRun, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        """Call the stub of the step, and return its answer. If the fleet has no stubs, call `function` once, after a random delay. A recorded
        answer is returned as that of a stub."""
        call: StubCall | None
        if isinstance(function, functools.partial) and function.func is taken:
            call = self.stubs.recorded(name, function.args[0], host.driver.core.plan)
        else:
            call = self.stubs.call(name, function, host.driver.core.plan)
        if call is not None:
            return await call.answered()
        self._count += 1
        drawn = host.shared.choices.pick("schedule", ("step", host.instance, name, self._count), STEP_STEPS)
        await Wait(STEP_LEAST_NS + STEP_JITTER_NS * drawn // STEP_STEPS)
        outcome = function()
        return run_alone(name, outcome) if inspect.iscoroutine(outcome) else outcome


async def limited(host: HostRun, running: Awaitable[Any], limit_ns: int) -> Any:  # the result of what runs
    """Wait for a step to end, and return its result. Raise TimeoutError if the step does not end before its time limit."""
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
    """Wait until `wait` ends. Raise TimeoutError if the time limit is reached before the wait ends."""
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
    """Run the coroutine of a step to its end, and return its result. Raise NotSimulatedError if the coroutine waits for something."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise NotSimulatedError(
        f"step {name!r} waits for something outside: give the fleet a stub, Fleet(simulate={{{name!r}: …}})"
    )


class Drawing(Protocol):
    """Interface of the object that records the random values drawn in the running turn. Implemented by `SimOutside`."""

    draws: list[object]


class DrivenTurn:
    """A running handler that can wait while its host runs other turns."""

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
            self._host.shared.misused(_foreign(self._coroutine))
        elif waits_for.delay_ns is None:
            waits_for.begin(lambda: self._host.later(self._host.shared.kernel.now_ns, self._go_on))
        else:
            self._host.later(self._host.shared.kernel.now_ns + waits_for.delay_ns, self._go_on)


def _foreign(coroutine: "Coroutine[object, None, None]") -> str:
    """Return an error message that names the innermost line of code at which a coroutine is waiting."""
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
    """Return whether the agent class is known to have a durable handler."""
    return known is not None and any(handler.is_durable for handler in known.handlers.values())


def state_identity(known: AgentType | None, agent: Agent) -> bytes:
    """Return bytes that two equal states of an agent share. The same keys in another order are another state of a dictionary, because a
    handler may iterate over it. The order of sets does not count."""
    if known is not None and has_one_order(known.state_type):
        return encode_body(agent.state)
    return encode_ordered(agent.state)


def check_handler_error(turn: ev.StartTurn, failed: ev.TurnFailed) -> None:
    """Check whether a handler failed because it used asyncio, which the simulator does not support.

    Raises:
        NotSimulatedError: If the handler used asyncio. The message names the line of code that used asyncio.
    """
    if FOREIGN in failed.error:
        lines = [line.strip() for line in failed.error.splitlines() if line.strip().startswith("File ")]
        where = next((line for line in reversed(lines) if "asyncio" not in line), "")
        raise NotSimulatedError(
            f"a handler of agent {turn.agent!r} awaits something that is not snapline's ({where}): "
            "wrap it in `await ctx.step(name, function)`, which the simulation can repeat"
        )


# -- outside calls --------------------------------------------------------------------------------------------------------


class SimOutside(TurnEnvironment):
    """Time, random numbers and external calls for the handlers of one host. `draws` records the random values and step outcomes of the
    current turn of `agent`."""

    def __init__(self, host: HostRun, steps: Steps) -> None:
        self._host = host
        self._steps = steps
        self.draws: list[object] = []
        self.agent = ""

    def now_ns(self) -> int:
        now = self._host.wall_ns()
        self.draws.append(now)
        return now

    def elapsed_ns(self) -> int:
        return self._host.shared.kernel.now_ns

    def random(self) -> float:
        drawn = self._host.shared.random_of(self.agent)
        self.draws.append(drawn)
        return drawn

    def beating(self, name: str, function: Callable[[], Any], _beat: Heartbeats, _heartbeat_s: float | None) -> Any:
        return self.step(name, function)  # a stub needs no heartbeats

    async def step(self, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        try:
            value = await self._steps.step(self._host, name, function)
        except Exception as error:
            self.draws.append(StepOutcome(error=error))
            raise
        self.draws.append(StepOutcome(_kept(value)))
        return value

    async def in_thread(self, handler: Callable[..., Any], *arguments: Any) -> None:
        """Run a handler in the simulation's own thread, at a single instant of virtual time."""
        outcome = handler(*arguments)
        if inspect.iscoroutine(outcome):
            await outcome

    async def pause(self, seconds: float) -> None:
        await Wait(round(seconds * SECOND_NS))

    async def limited(self, running: Awaitable[Any], seconds: float) -> Any:  # the result of the awaited coroutine
        draws, known = self.draws, len(self.draws)
        try:
            return await limited(self._host, running, round(seconds * SECOND_NS))
        except TimeoutError as error:
            if len(draws) == known:  # the step itself has not ended
                draws.append(StepOutcome(error=error))
            raise


def _kept(value: Any) -> Any:  # what a step returned
    """Return a copy of a step's result, so that the handler cannot change the recorded result. If the result cannot be copied, return it
    unchanged."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value
