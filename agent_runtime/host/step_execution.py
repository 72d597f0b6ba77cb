"""Parts shared by running plain and durable turns: the handler of a message, handlers that wait, and steps in progress."""

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

from snapline.agent_runtime import unawaited
from snapline.agent_runtime.agent import Agent, AgentType, Handler
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import (
    DONE,
    FAILED,
    LATE_REPLY,
    EffectWork,
    StepWork,
    encode_error,
    encode_result,
    read_call,
)
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.host_events import RunEffect, RunStep, StepEnded
from snapline.agent_runtime.message_encoding import message_name
from snapline.agent_runtime.sagas import UNDO_NAME, do_nothing, not_undone, read_undo
from snapline.agent_runtime.turn_environment import TurnEnvironment, calling, no_call_of, run_step
from snapline.errors import DivergenceError, EffectFailedError, EncodingError, StepFailedError, UsageError
from snapline.messages.payloads import split_message
from snapline.storage.packs.checkpoint import MadeEffect


class WaitingTurn:
    """A durable turn whose handler waits at an entry of its journal. `work`: that of the step, or effect, at which it waits."""

    __slots__ = ("coroutine", "ctx", "work")

    def __init__(self, ctx: Context, coroutine: Any) -> None:
        self.ctx = ctx
        self.coroutine = coroutine
        self.work: StepWork | EffectWork | None = None

    def close(self) -> None:
        """Close the handler of a turn that was undone. A handler that does not end (it waits again, or raises) is abandoned."""
        self.ctx.go_on()
        with contextlib.suppress(Exception):
            self.coroutine.close()
            self.ctx.close()


async def step_of(
    command: RunStep, work: StepWork | EffectWork, world: TurnEnvironment, told: Callable[[StepEnded], None]
) -> None:
    """Run a step, or an effect, of a durable turn; report how it has ended."""
    call = LastCall(work.timeout_s or 0.0, world)
    unawaited.enter_turn()
    try:
        step_result = await _result_of_work(command, work, world, call)
        left = unawaited.take_freed()
        if left:
            raise UsageError(unawaited.sentence(left))
        is_effect = isinstance(work, EffectWork)
        declares = None if isinstance(work, EffectWork) and work.intent.is_undo else work.function
        outcome, result = DONE, encode_result(command.name, step_result, declares, is_effect=is_effect)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # a plan has undone the turn
        outcome, result = FAILED, encode_error(error)
    except (Exception, SystemExit) as error:
        outcome, result = FAILED, encode_error(error)
    late_s = call.late_s() if outcome == FAILED and isinstance(work, EffectWork) else 0.0
    told(StepEnded(command.agent, command.incarnation, command.place, outcome, result, world.now_ns(), late_s))


class LastCall:
    """Calls of an effect, and how long the last one may still run."""

    def __init__(self, timeout_s: float, world: TurnEnvironment) -> None:
        self._timeout_s = timeout_s
        self._world = world
        self._begun_ns: int | None = None

    def began(self) -> None:
        """Record that a call begins now."""
        self._begun_ns = self._world.elapsed_ns()

    def late_s(self) -> float:
        """Return how long the last call may still run, in seconds; 0 if there was none."""
        if self._begun_ns is None:
            return 0.0
        return max(0.0, self._timeout_s - (self._world.elapsed_ns() - self._begun_ns) / 1e9)


async def _result_of_work(
    command: RunStep, work: StepWork | EffectWork, world: TurnEnvironment, call: LastCall
) -> Any:  # the function's own result
    if isinstance(work, StepWork):
        return await run_step(world, command.name, work)
    result = await _effect_of(command, work, world, call)
    return (
        None if work.intent.is_undo else result
    )  # nobody reads a compensation's result, so an unencodable one is not a failure


async def _effect_of(
    command: RunStep, work: EffectWork, world: TurnEnvironment, call: LastCall
) -> Any:  # the function's own result
    assert isinstance(command, RunEffect)
    if getattr(work.function, "func", None) is do_nothing:
        return None
    await no_call_of(world, command.key)
    if command.undoes:
        await no_call_of(world, command.undoes)
        if command.wait_s:
            await world.pause(command.wait_s)
    function = functools.partial(work.function, key=command.key)
    with calling(command.key):
        if work.probe is None:
            return await run_step(world, command.name, StepWork(function, work.timeout_s, work.waits_s), call.began)
        asking = StepWork(functools.partial(work.probe, key=command.key), work.timeout_s, work.waits_s)
        return await _probe_first(command, StepWork(function, work.timeout_s), asking, world, call)


async def _probe_first(
    command: RunEffect, work: StepWork, asking: StepWork, world: TurnEnvironment, call: LastCall
) -> Any:  # the function's own result
    """Never repeat a call without a probe: an earlier call, of this life too, may have done it, or may still be on its way, for `timeout_s`."""
    assert work.timeout_s is not None
    left_s = work.timeout_s if command.is_in_doubt else None
    for wait_s in (*asking.waits_s, None):
        if left_s is not None:
            await world.pause(left_s)
            await no_call_of(world, command.key)
            with calling(""):
                result = await run_step(world, f"{command.name}/probe", asking)
            if result is not None:
                return result
        try:
            return await run_step(world, command.name, work, call.began)
        except Exception:
            if wait_s is None:
                raise
            left_s = max(wait_s, call.late_s())
    raise AssertionError("the last attempt returns or raises")


def refused(
    turn: ev.StartTurn,
    type_of: Callable[[str], AgentType | None],
    now_ns: int,
    *,
    create: Callable[[ev.StartTurn], None],
) -> ev.TurnFailed:
    """Return the end of a turn whose handler is not called. An agent that it was to create lives on in its first state, unless not to be made."""
    if turn.what == "create" and turn.is_made:
        with contextlib.suppress(Exception):
            create(turn)
    known, is_durable = type_of(turn.agent), False
    if known is not None and turn.payload and turn.what not in ("create", "segment"):
        with contextlib.suppress(Exception):  # the result cannot be decoded
            name, _ = split_message(read_call(turn.payload)[1])
            is_durable = name in known.handlers and known.handlers[name].is_durable
    is_final = known is None
    return ev.TurnFailed(
        *(turn.agent, turn.incarnation, turn.refusal, now_ns, "keep", 0, is_final), is_durable=is_durable
    )


_DURABLE_HANDLER_ADVICE = (
    "asyncio.create_task, gather, TaskGroup, wait_for, timeout and sleep do not work in a durable handler: await ctx.step, ctx.call, ctx.sleep or ctx.receive one after the "
    "other, give them a timeout_s, and do what is outside in a step"
)


def foreign(awaited: object) -> UsageError:
    """The error of a durable handler that awaited something else than the runtime's."""
    kind = type(awaited).__qualname__
    return UsageError(
        f"a durable handler has awaited a {kind}, which a recovery could not wait for again. {_DURABLE_HANDLER_ADVICE}"
    )


def no_tasks(_loop: asyncio.AbstractEventLoop, coroutine: Any, **_options: object) -> Any:
    """The loop's task factory while a durable handler runs.

    Raises:
        UsageError: always. After a recovery a task outside the turn would run again, or not at all.
    """
    coroutine.close()
    raise UsageError(f"a durable handler has started a task. {_DURABLE_HANDLER_ADVICE}")


def of_a_task(error: BaseException) -> BaseException:
    """Return the same error for code that demands to run in an asyncio task, as a durable handler does not; others unchanged."""
    message = str(error)
    if isinstance(error, RuntimeError) and ("inside a task" in message or "parent task" in message):
        usage_error = UsageError(f"a durable handler runs in no task of asyncio's. {_DURABLE_HANDLER_ADVICE}")
        usage_error.__cause__ = error
        return usage_error
    return error


CAUSES_MAX = 20
"""Largest number of chained errors that are searched: real code raises fewer."""


def is_of_step(error: BaseException | None) -> bool:
    """Return whether a failed step caused this error: itself, or one that was raised from it, or while it was handled."""
    for _ in range(CAUSES_MAX):
        if error is None or isinstance(error, EffectFailedError):
            return False
        if isinstance(error, StepFailedError):
            return True
        error = error.__cause__ or error.__context__
    return False


def changed(turn: ev.StartTurn, why: object) -> DivergenceError:
    """The error of a durable turn that the present code cannot go on with."""
    return DivergenceError(f"the turn of agent {turn.agent!r} cannot continue: {why}. Run the code that began the turn")


COPIED_BYTES_MAX = 4096
"""Largest message whose body costs less to copy than to view."""

_DROPPED = Handler(LATE_REPLY, lambda agent, message, ctx: None, type(None), None, awaits=True)
"""Handler of the reply to a call that has given up."""


class NotUndoneError(EffectFailedError):
    """Compensations of a failed turn have failed as well; another attempt of the same turn cannot change that."""


async def _undo(agent: Agent, message: list[MadeEffect], ctx: Context) -> None:
    """Undo the effects of a permanently failed turn, in the turn after it."""
    failed = []
    for effect in message:
        try:
            await ctx.undo_effect(effect)
        except EffectFailedError as error:
            failed.append((effect, error))
    if failed:
        raise NotUndoneError(not_undone(failed))


_UNDOING = Handler(UNDO_NAME, _undo, type(None), None, awaits=True, is_durable=True)


def decode_for(turn: ev.StartTurn, known: AgentType) -> tuple[Handler, object, bytes]:
    """Return the handler of a turn's message, the message, and the id of the call to answer, or b"".

    Raises:
        EncodingError: there is no handler, or the message does not decode.
    """
    payload = turn.payload
    end = 1 + payload[0]
    handler = known.heads.get(payload[:end])
    if handler is None:
        return _decode_odd(turn, known)
    body = payload[end:] if len(payload) <= COPIED_BYTES_MAX else memoryview(payload)[end:]
    return handler, _decode(turn, handler, body), b""


def _decode_odd(turn: ev.StartTurn, known: AgentType) -> tuple[Handler, object, bytes]:
    """Return the same for a message followed by a trace, of a call, or of the runtime's own."""
    name, body = split_message(turn.payload)
    handler, call = known.handlers.get(name), b""
    if handler is None:
        if name == LATE_REPLY:
            return _DROPPED, None, b""
        if name == UNDO_NAME and turn.sender == turn.agent:  # else a sender could choose the functions
            return _UNDOING, read_undo(body), b""
        call, payload = read_call(turn.payload)
        name, body = split_message(payload)
        handler = known.handlers.get(name)
    if handler is None:
        raise EncodingError(
            f"agent {turn.agent!r} ({known.agent_class.__qualname__}) has no handler for messages of type {name!r}, "
            f"sent by {turn.sender!r}: add a method with @snapline.handler that takes one"
        )
    return handler, _decode(turn, handler, body), call


def _decode(turn: ev.StartTurn, handler: Handler, body: bytes | memoryview) -> object:
    try:
        return handler.decoder.decode(body)
    except Exception as error:
        raise EncodingError(
            f"agent {turn.agent!r}: a message of type {message_name(handler.message_type)!r} from {turn.sender!r} does not decode ({error}): "
            "sender and receiver must use the same definition"
        ) from error
