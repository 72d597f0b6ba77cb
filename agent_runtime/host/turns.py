"""Runs turns: decodes a message, calls its handler, and returns the outcome. This module makes no protocol decisions.

A handler that cannot suspend is called directly, without a task. A handler that can suspend (for example in `ctx.step`) runs in a task, so
that other agents run while it waits. A durable handler runs without a task, one segment at a time (`durable.py`), but its steps run in
tasks.
"""

import asyncio
import contextlib
import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from msgspec.structs import replace

from snapline.agent_runtime import unawaited
from snapline.agent_runtime.agent import UNDO_STATE_BYTES_MAX, Agent, AgentType, Handler, agent_type
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import (
    DONE,
    FAILED,
    LATE_REPLY,
    LOST,
    EffectWork,
    SegmentEnd,
    StepWork,
    TurnJournal,
    encode_error,
    encode_result,
    read_call,
    read_result,
    turn_seed,
)
from snapline.agent_runtime.effect_ledger import UNDO_NAME, read_undo
from snapline.agent_runtime.fleet import (
    Fleet,
    check_skeleton,
    encode_state,
    find_class,
    own_modules,
    restore_agent,
    unsavable,
)
from snapline.agent_runtime.guarded_handlers import guarded
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.message_encoding import encode_ordered, has_one_order, message_name, without_tail
from snapline.agent_runtime.rollback_errors import CAUGHT, FAILURES, RestartRequestedError, request_in
from snapline.agent_runtime.sagas import do_nothing, not_undone
from snapline.agent_runtime.turn_environment import TurnEnvironment, calling, no_call_of, run_step, taken
from snapline.errors import DivergenceError, EffectFailedError, EncodingError, StepFailedError, StoreError, UsageError
from snapline.messages.payloads import read_creation, split_message
from snapline.protocols.names import LOCAL, is_logged
from snapline.storage.capture import forked
from snapline.storage.capture.encoder import StateEncoder
from snapline.storage.capture.image import ArenaBusyError, ArenaPool, Authors, ChunkTable, StateImage
from snapline.storage.log.answer_files import RecordedAnswer
from snapline.storage.packs.checkpoint import JournalEntry, MadeEffect, SavedTurn


class WaitingTurn:
    """A durable turn whose handler is waiting for a journal entry. `work` is the step or effect that the handler waits for, if any. `works`
    contains the steps and effects of a group, by place in the journal."""

    __slots__ = ("coroutine", "ctx", "work", "works")

    def __init__(self, ctx: Context, coroutine: Any) -> None:
        self.ctx = ctx
        self.coroutine = coroutine
        self.work: StepWork | EffectWork | None = None
        self.works: dict[int, StepWork | EffectWork] = {}

    def close(self) -> None:
        """Close the handler of a turn that was undone. If the handler awaits again or raises an error while it is closed, ignore this."""
        self.ctx.resume()
        with contextlib.suppress(Exception):
            self.coroutine.close()
            self.ctx.close()


async def step_of(
    command: ev.RunStep, work: StepWork | EffectWork, world: TurnEnvironment, report: Callable[[ev.StepEnded], None]
) -> None:
    """Run a step or an effect of a durable turn, and report its outcome."""
    call = LastCall(work.timeout_s or 0.0, world)
    unawaited.enter_turn()
    try:
        step_result = await _result_of_work(command, work, world, call)
        if isinstance(step_result, RecordedAnswer):
            outcome, result = step_result.outcome, step_result.result
        else:
            left = unawaited.take_freed()
            if left:
                raise UsageError(unawaited.sentence(left))
            is_effect = isinstance(work, EffectWork)
            declares = None if isinstance(work, EffectWork) and work.intent.is_undo else work.function
            outcome, result = DONE, encode_result(command.name, step_result, declares, is_effect=is_effect)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # a recovery plan has undone this turn
        outcome, result = FAILED, encode_error(error)
    except (Exception, SystemExit) as error:
        outcome, result = FAILED, encode_error(error)
    late_s = call.late_s() if outcome == FAILED and isinstance(work, EffectWork) else 0.0
    report(ev.StepEnded(command.agent, command.incarnation, command.place, outcome, result, world.now_ns(), late_s))


def _work_of(command: ev.RunStep, work: StepWork, world: TurnEnvironment) -> StepWork:
    """Return the work that takes a step's recorded answer, or the step's own work if it has none. An answer that the step's function would
    not return any more counts as none, unless all answers are recorded."""
    if not isinstance(command, ev.TakeAnswer):
        return work

    def value_of(answer: RecordedAnswer) -> Any:  # the step's own result
        return read_result(command.name, JournalEntry("step", command.name, b"", DONE, answer.result), work.function)

    def violation_of(answer: RecordedAnswer) -> str | None:
        value = value_of(answer) if answer.outcome == DONE else None
        return work.guard(value) if work.guard is not None and answer.outcome == DONE else None

    try:
        if command.answer.outcome == DONE:
            value_of(command.answer)
    except EncodingError:
        if not world.has_all_answers:
            return work
    return replace(work, function=functools.partial(taken, command.answer), heartbeat_s=None, guard=violation_of)


class LastCall:
    """Tracks the calls of one effect, so that the runtime knows for how long the last call may still be running."""

    def __init__(self, timeout_s: float, world: TurnEnvironment) -> None:
        self._timeout_s = timeout_s
        self._world = world
        self._begun_ns: int | None = None

    def began(self) -> None:
        """Record that a call of the effect starts now."""
        self._begun_ns = self._world.elapsed_ns()

    def late_s(self) -> float:
        """Return the number of seconds for which the last call may still be running, or 0 if there was no call."""
        if self._begun_ns is None:
            return 0.0
        return max(0.0, self._timeout_s - (self._world.elapsed_ns() - self._begun_ns) / 1e9)


async def _result_of_work(
    command: ev.RunStep, work: StepWork | EffectWork, world: TurnEnvironment, call: LastCall
) -> Any:  # the function's own result
    if isinstance(work, StepWork):
        return await run_step(world, command.name, _work_of(command, work, world))
    result = await _effect_of(command, work, world, call)
    # No code reads a compensation's result, so a result that cannot be encoded is not a failure.
    return None if work.intent.is_undo else result


async def _effect_of(
    command: ev.RunStep, work: EffectWork, world: TurnEnvironment, call: LastCall
) -> Any:  # the function's own result
    assert isinstance(command, ev.RunEffect)
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
    command: ev.RunEffect, work: StepWork, asking: StepWork, world: TurnEnvironment, call: LastCall
) -> Any:  # the function's own result
    """Run an effect that has a probe. Call the probe before each repetition of the effect. An earlier call may have performed the effect,
    even in this process, or may still be running for up to `timeout_s`."""
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
    """Return the failure of a turn that is refused without calling its handler. If the turn is a "create" turn and `is_made` is true, the
    agent is created nevertheless."""
    if turn.what == "create" and turn.is_made:
        with contextlib.suppress(Exception):
            create(turn)
    known, is_durable = type_of(turn.agent), False
    if known is not None and turn.payload and turn.what not in ("create", "segment"):
        with contextlib.suppress(Exception):  # the payload cannot be decoded
            name, _ = split_message(read_call(turn.payload)[1])
            is_durable = name in known.handlers and known.handlers[name].is_durable
    is_final = known is None
    return ev.TurnFailed(
        *(turn.agent, turn.incarnation, turn.refusal, now_ns, "keep", 0, is_final), is_durable=is_durable
    )


_DURABLE_HANDLER_ADVICE = (
    "asyncio.create_task, gather, TaskGroup, wait_for, timeout and sleep do not work in a durable handler: run steps together with ctx.gather or ctx.race, await ctx.call, ctx.sleep or "
    "ctx.receive one after the other, give them a timeout_s, and do what is outside in a step"
)


def foreign(awaited: object) -> UsageError:
    """Return the error for a durable handler that has awaited an object that the runtime did not provide."""
    kind = type(awaited).__qualname__
    return UsageError(
        f"a durable handler has awaited a {kind}, which a recovery could not wait for again. {_DURABLE_HANDLER_ADVICE}"
    )


def no_tasks(_loop: asyncio.AbstractEventLoop, coroutine: Any, **_options: object) -> Any:
    """Reject the creation of a task. While a durable handler runs, this function is the event loop's task factory.

    Raises:
        UsageError: Always, because after a recovery a task outside the turn would run twice or not at all.
    """
    coroutine.close()
    raise UsageError(f"a durable handler has started a task. {_DURABLE_HANDLER_ADVICE}")


def of_a_task(error: BaseException) -> BaseException:
    """Return a UsageError for an error that says that a running asyncio task is required, because durable handlers run without a task.
    Return all other errors unchanged."""
    message = str(error)
    if isinstance(error, RuntimeError) and ("inside a task" in message or "parent task" in message):
        usage_error = UsageError(f"a durable handler runs in no task of asyncio's. {_DURABLE_HANDLER_ADVICE}")
        usage_error.__cause__ = error
        return usage_error
    return error


CAUSES_MAX = 20
"""Largest number of chained exceptions that are searched. Real code chains fewer exceptions."""


def is_of_step(error: BaseException | None) -> bool:
    """Return whether an error is a StepFailedError, or was raised from one or while one was being handled."""
    for _ in range(CAUSES_MAX):
        if error is None or isinstance(error, EffectFailedError):
            return False
        if isinstance(error, StepFailedError):
            return True
        error = error.__cause__ or error.__context__
    return False


def changed(turn: ev.StartTurn, why: object) -> DivergenceError:
    """Return the error for a durable turn that the current code of the agent cannot continue."""
    return DivergenceError(f"the turn of agent {turn.agent!r} cannot continue: {why}. Run the code that began the turn")


COPIED_BYTES_MAX = 4096
"""Largest message whose body is faster to copy than to view."""

_DROPPED = Handler(LATE_REPLY, lambda agent, message, ctx: None, type(None), None, awaits=True)
"""Handler for a reply that arrives after its call has timed out."""


class NotUndoneError(EffectFailedError):
    """Raised if the compensations of a failed turn have failed too. Retrying the undo turn automatically cannot help."""


async def _undo(agent: Agent, message: list[MadeEffect], ctx: Context) -> None:
    """Undo the effects of a turn that failed permanently. This function is the handler of the turn that follows the failed turn."""
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
    """Return the handler for a turn's message, the decoded message, and the id of the call to answer, or b"" if the message is not a call.

    Raises:
        EncodingError: If there is no handler for the message, or the message cannot be decoded.
    """
    payload = turn.payload
    end = 1 + payload[0]
    handler = known.heads.get(payload[:end])
    if handler is None:
        return _decode_odd(turn, known)
    body = payload[end:] if len(payload) <= COPIED_BYTES_MAX else memoryview(payload)[end:]
    return handler, _decode(turn, handler, body), b""


def _decode_odd(turn: ev.StartTurn, known: AgentType) -> tuple[Handler, object, bytes]:
    """Same as `decode_for`, but for calls, messages from the runtime itself, and messages with a trace reference."""
    name, body = split_message(turn.payload)
    handler, call = known.handlers.get(name), b""
    if handler is None:
        if name == LATE_REPLY:
            return _DROPPED, None, b""
        if name == UNDO_NAME and turn.sender == turn.agent:  # otherwise a sender could choose functions
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


_Coroutine = Coroutine[object, None, None]

TRACEBACK_CHARACTERS_MAX = 4000
"""Number of characters that are kept from the end of a dead letter's traceback. An agent's 100 newest dead letters thus need at most 400
KB."""

RESERVED_BYTES_MIN = 64 * 2**20
"""Smallest total size of buffers that are allocated in advance. Below this size the first capture is only some tens of milliseconds slower
than later captures."""

FORK_TIMEOUT_S = 60.0
"""Time limit of a forked capture. It equals the default epoch timeout, after which the image would be useless."""

VIEWED_ARRAYS_BYTES_MAX = 64 * 2**20
"""Largest total size of the arrays in a live state that can be displayed. Copying arrays of this size takes some tens of milliseconds."""

CHECKED_BYTES_MAX = 512
"""Largest image that is decoded after each turn, to check that it can be restored as the declared type. The check takes 0.4 µs for most
images, and about 10 µs at most. Larger states are checked only when they are captured."""


class RunningTurn(Protocol):
    """A handler that has started and may await."""

    def cancel(self) -> object:
        """Cancel the handler because its turn has been undone."""


def _as_task(coroutine: "_Coroutine") -> RunningTurn:
    return asyncio.get_running_loop().create_task(coroutine)


def _on_start(agent: Agent, _message: object, ctx: Context) -> "_Coroutine | None":
    return agent.on_start(ctx)


class _Running:
    """One agent's object, together with an encoded copy of its state after the last turn. If the next turn fails, the state is restored
    from this copy."""

    __slots__ = (
        "agent",
        "authors",
        "before",
        "encoder",
        "flight",
        "image",
        "imaged_authors",
        "is_turning",
        "known",
        "on_error",
        "tasks",
        "warned",
    )

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.known: AgentType = agent_type(type(agent))
        self.on_error = type(agent).on_error or "undo"
        self.encoder: StateEncoder | None = None
        self.image = b""
        self.before: object = None  # decoded image, set from a turn's failure until its undo
        self.tasks: list[
            tuple[_Coroutine, RunningTurn]
        ] = []  # coroutines of the handler or the steps, and what runs them
        self.flight: WaitingTurn | None = None
        self.is_turning = False  # whether a turn runs in a task
        self.warned = False
        self.authors: dict[str, None] = {}  # handlers that have run since the last capture
        self.imaged_authors = Authors()  # handlers that had run before that capture

    def goes_on(self, handling: "_Coroutine", task: RunningTurn) -> None:
        """Record the coroutine of a handler or step that may await, together with the task that runs it."""
        self.tasks.append((handling, task))

    def cancel(self) -> None:
        """Cancel the tasks of a turn because the turn was undone. If a task has not started the coroutine, close the coroutine too. Without
        this, Python would warn that the coroutine was never awaited."""
        for handling, task in self.tasks:
            task.cancel()
            if inspect.iscoroutine(handling) and inspect.getcoroutinestate(handling) == inspect.CORO_CREATED:
                handling.close()

    def take_authors(self) -> Authors:
        """Return the handlers that have run since the last capture. If the image from that capture was rejected, include the handlers that
        ran before it."""
        earlier = self.imaged_authors.handlers if self.imaged_authors.is_refused else {}
        self.imaged_authors, self.authors = Authors({**earlier, **self.authors}), {}
        return self.imaged_authors


class Turns:
    """Holds the agent objects of one host and runs their turns.

    `report` is called with TurnEnded or TurnFailed when a turn that runs in a task has ended. `step_ended` is called when a step of a
    durable turn has ended. `warn` is called with the text of a warning. `start` starts a task for a handler or a step that may await.
    """

    def __init__(
        self,
        fleet: Fleet,
        report: Callable[[ev.TurnEnded | ev.TurnFailed], None],
        warn: Callable[[str], None],
        world: TurnEnvironment | None = None,
        *,
        start: "Callable[[_Coroutine], RunningTurn]" = _as_task,
        step_ended: Callable[[ev.StepEnded], None] = lambda event: None,
    ) -> None:
        self._fleet = fleet
        self._is_logged = is_logged(fleet.protocol)
        self._commits = fleet.recovery == LOCAL
        self._report = report
        self._warn = warn
        self._world = world or TurnEnvironment()
        self._start = start
        self._step_ended = step_ended
        self._running: dict[str, _Running] = {}
        self._cluster = ""
        self._takes_effects = True
        self.arena = ArenaPool()
        """Pool of buffers for images of large arrays."""

    # ---- agents ---------------------------------------------------------------------------------------------------

    def welcomed(self, cluster: str) -> None:
        """Set the id of the fleet's run, from which the random seeds of durable turns are derived."""
        self._cluster = cluster

    def add(self, agent: str, made: Agent) -> None:
        self._running[agent] = _Running(made)

    def use_store(self, *, takes_outputs: bool, has_all_answers: bool = False) -> None:
        """Set whether the store accepts outputs, because effects require this, and whether the fleet runs on recorded answers only."""
        self._takes_effects = takes_outputs
        self._world.run_on_answers(has_all=has_all_answers)

    def has(self, agent: str) -> bool:
        """Return whether this host has the agent's object."""
        return agent in self._running

    def type_of(self, agent: str) -> AgentType | None:
        """Return the description of the agent's class, or None if this host does not have the agent's object."""
        running = self._running.get(agent)
        return None if running is None else running.known

    def look_at(self, agent: str) -> bytes:
        """Return an agent's current state for display, encoded as a single record. While the agent's turn is suspended, return the state
        from before the turn.

        Raises:
            EncodingError: If the state cannot be saved. The message names the agent, the field and the next step.
            UsageError: If the arrays are too large to copy.
        """
        running = self._running[agent]
        if running.flight is not None:
            return running.image
        encoder = self._encoder_for(running.agent, ArenaPool())
        try:
            size_bytes = sum(encoder.buffer_sizes(running.agent.state))
            if size_bytes > VIEWED_ARRAYS_BYTES_MAX:
                raise UsageError(
                    f"agent {agent!r} has {size_bytes:,} bytes of arrays, and would be blocked while they are copied; "
                    f"up to {VIEWED_ARRAYS_BYTES_MAX:,} are: ask for the state of the newest snapshot"
                )
            return encoder.encode_inline(running.agent.state)
        except EncodingError as error:
            raise EncodingError(unsavable(agent, running.known, error, running.authors)) from error

    def object_of(self, agent: str) -> Agent:
        """Return the agent's object itself, not a copy."""
        return self._running[agent].agent

    def forget(self, agent: str) -> None:
        running = self._running.pop(agent, None)
        if running is not None and running.flight is not None:
            running.flight.close()
        if running is not None:
            running.cancel()

    def forget_all(self) -> None:
        for agent in list(self._running):
            self.forget(agent)

    def capture(self, agent: str, base: ChunkTable | None = None) -> tuple[AgentType, int, StateImage]:
        """Return an agent's type, its state version and an encoded image of its state. The image may omit data that is already in `base`.

        Raises:
            EncodingError: If the state cannot be saved. The message names the agent, the field and the next step.
            ArenaBusyError: If earlier images have not been written yet. ArenaBusyError is never raised in fleets whose agents checkpoint
                independently.
        """
        running = self._running[agent]
        image = self._image(agent, running, base)
        image.authors = running.take_authors()
        return running.known, type(running.agent).state_version, image

    def committed_state(self, agent: str) -> tuple[AgentType, int, bytes]:
        """Return an agent's type, its state version and its state after its last turn, encoded as a single record. A turn that runs has not
        changed this state.

        Raises:
            EncodingError: If the state cannot be saved. The message names the agent, the field and the next step.
        """
        running = self._running[agent]
        known, version = running.known, type(running.agent).state_version
        if running.image and (running.on_error == "undo" or running.is_turning or running.flight is not None):
            return known, version, running.image
        return known, version, encode_state(agent, running.agent, known, running.authors)

    def _image(self, agent: str, running: _Running, base: ChunkTable | None) -> StateImage:
        if running.flight is not None:
            return self._image_before(running, base)
        if running.encoder is None:
            running.encoder = self._encoder_for(running.agent, self.arena)
        try:
            return self._forked(running) or running.encoder.encode(running.agent.state, base)
        except ArenaBusyError:
            if not self._is_logged:
                raise
            # A forced checkpoint cannot be skipped while earlier checkpoints wait for the store, so it gets memory of
            # its own.
            return self._encoder_for(running.agent, ArenaPool()).encode(running.agent.state, base)
        except EncodingError as error:
            raise EncodingError(unsavable(agent, running.known, error, running.authors)) from error

    def _image_before(self, running: _Running, base: ChunkTable | None) -> StateImage:
        """Return an image of the agent's state at the start of its suspended turn. If the state is large, the image may refer to chunks in
        `base` that contain the same data."""
        if len(running.image) > UNDO_STATE_BYTES_MAX:
            with contextlib.suppress(Exception):  # the image checks report a state that does not decode
                state = running.known.state_decoder.decode(running.image)
                return self._encoder_for(running.agent, ArenaPool()).encode(state, base)
        return StateImage(running.image)

    def _encoder_for(self, made: Agent, arena: ArenaPool) -> StateEncoder:
        known = agent_type(type(made))
        return StateEncoder(arena, allow_pickle=known.agent_class.allow_pickle, declared=known.state_type)

    def buffers_for(self, objects: Iterable[Agent]) -> list[int]:
        """Return the sizes of the buffers that a full capture of these agents needs, or an empty list if the total size is small. Any
        thread may call this method before the agents start."""
        sizes: list[int] = []
        if "numpy" in sys.modules or "torch" in sys.modules:
            for agent in objects:
                with contextlib.suppress(EncodingError):  # the capture will report the error
                    sizes += self._encoder_for(agent, self.arena).buffer_sizes(agent.state)
        return sizes if sum(sizes) >= RESERVED_BYTES_MIN else []

    def reserve(self, sizes: Iterable[int]) -> None:
        """Allocate buffers of these sizes in advance. Do not call this on the event loop, because allocating gibibytes takes seconds."""
        for size in sizes:
            self.arena.reserve(size)

    def _forked(self, running: _Running) -> StateImage | None:
        """Return an image of the agent's state that a forked child process encodes.

        Return None if the agent does not use forks, or no fork is currently possible. If the child process dies, its epoch fails, and the
        next epoch takes a new image. Checkpoints that an agent takes independently are never forked, because they could not be retaken once
        the sender log has been dropped.
        """
        encoder, state = running.encoder, running.agent.state
        if type(running.agent).capture != "fork" or self._is_logged or encoder is None:
            return None
        reason = forked.fork_unsafe_reason()
        if reason:
            if not running.warned:
                running.warned = True
                self._warn(f"class {running.known.agent_class.__qualname__} is captured without a fork: {reason}")
            return None
        try:
            child = forked.fork_capture(lambda: encoder.encode_inline(state), timeout_s=FORK_TIMEOUT_S)
        except StoreError:  # too many child processes, or no memory for another
            return None
        return StateImage(b"", pending=child.result, on_release=[child.close])

    def undo(self, agent: str) -> None:
        """Restore the agent's state to what it was before the turn that has just failed."""
        running = self._running[agent]
        running.agent.state, running.before = running.before, None
        running.authors = {}

    # ---- turns ----------------------------------------------------------------------------------------------------

    def run(self, turn: ev.StartTurn) -> ev.Event | None:
        """Run one turn or segment and return its outcome. If the turn continues in a task, return None. The task will report the
        outcome."""
        if turn.refusal:
            return refused(turn, self.type_of, self._world.now_ns(), create=self._create)
        if turn.what == "segment":
            return self._go_on(turn)
        ctx = Context(turn.agent, turn.incarnation, turn.sender, self._world)
        try:
            handle, message, awaits = self._prepare(turn, ctx)
        except Exception as error:
            return self._failed(turn, ctx, error, is_final=True)
        try:
            coroutine = handle(self._running[turn.agent].agent, message, ctx)
        except FAILURES as error:
            return self._failed(turn, ctx, error)
        if coroutine is None:
            return self._ended(turn, ctx)
        if awaits:
            if ctx.journal is not None:
                return self._advance(turn, self._running[turn.agent], WaitingTurn(ctx, coroutine), None)
            if not inspect.isawaitable(coroutine):
                kind = type(coroutine).__qualname__
                return self._failed(
                    turn, ctx, TypeError(f"the handler returned a {kind}: nothing uses the return value")
                )
            running = self._running[turn.agent]
            running.is_turning = True
            running.tasks.clear()  # those of earlier turns have ended
            running.goes_on(coroutine, self._start(self._finish(turn, ctx, coroutine)))
            return None
        has_ended = True
        try:
            for _ in coroutine.__await__():  # unlike `send`, this raises no exception at the end
                has_ended = False
                break
        except FAILURES as error:
            return self._failed(turn, ctx, error)
        assert has_ended, f"the handler of {turn.agent} suspended although its code has no await"
        return self._ended(turn, ctx)

    # ---- durable turns --------------------------------------------------------------------------------------------

    def _go_on(self, turn: ev.StartTurn) -> ev.TurnEnded | ev.TurnFailed:
        """Run the next segment of a durable turn. After a recovery, replay all earlier segments from the journal first."""
        running, durable_turn = self._running[turn.agent], turn.turn
        if durable_turn is None:
            assert running.flight is not None, f"no turn of {turn.agent} waits"
            return self._advance(turn, running, running.flight, list(turn.group) if turn.group else turn.found)
        ctx = Context(turn.agent, turn.incarnation, durable_turn.sender, self._world)
        again = replace(turn, what=durable_turn.what, sender=durable_turn.sender, payload=durable_turn.payload)
        try:
            handle, message, _ = self._prepare(again, ctx, durable_turn)
        except Exception as error:
            return self._failed(turn, ctx, changed(turn, error), is_final=True)
        if ctx.journal is None:
            return self._failed(turn, ctx, changed(turn, "its handler is not durable any more"), is_final=True)
        return self._advance(turn, running, WaitingTurn(ctx, handle(running.agent, message, ctx)), None)

    def _advance(
        self,
        turn: ev.StartTurn,
        running: _Running,
        flight: WaitingTurn,
        found: JournalEntry | list[JournalEntry] | None,
    ) -> ev.TurnEnded | ev.TurnFailed:
        """Run the handler until it awaits or ends."""
        ctx, running.flight = flight.ctx, None
        if isinstance(found, list) and any(member.outcome == LOST for member in found):
            running.cancel()
        running.tasks.clear()  # the steps of earlier segments have ended
        journal = ctx.journal
        assert journal is not None
        ctx.resume()
        try:
            with unawaited.no_task(no_tasks):
                segment = flight.coroutine.send(found)
        except StopIteration:
            journal.end()
            return self._ended(turn, ctx) if journal.divergence is None else self._failed(turn, ctx, journal.divergence)
        except (*FAILURES, asyncio.CancelledError) as error:
            is_final = isinstance(error, NotUndoneError)
            return self._failed(turn, ctx, journal.divergence or of_a_task(error), is_final=is_final)
        problem = journal.divergence if type(segment) is SegmentEnd else foreign(segment)
        if problem is None and (ctx.unawaited or unawaited.freed):
            left = unawaited.left_by(ctx, is_over=False)
            problem = UsageError(unawaited.sentence(left)) if left else None
        if problem is not None:
            flight.close()
            return self._failed(turn, ctx, problem)
        running.flight, flight.work, flight.works = flight, segment.work, segment.works
        ctx.suspend()
        pause = segment.pause(journal.seed, journal.place)
        outcome = ctx.take_segment(pause)
        return ev.TurnEnded(turn.agent, turn.incarnation, pause=pause) if segment.is_repeated else outcome

    def run_step(self, command: ev.RunStep) -> None:
        """Run the step that an agent's turn waits for. `step_ended` is called when the step has ended."""
        running = self._running.get(command.agent)
        if running is None or running.flight is None:
            return
        works = running.flight.works
        work = works.get(command.place) if works else running.flight.work
        if work is not None:
            coroutine = step_of(command, work, self._world, self._step_ended)
            running.goes_on(coroutine, self._start(coroutine))

    # ---- how turns end --------------------------------------------------------------------------------------------

    async def _finish(self, turn: ev.StartTurn, ctx: Context, coroutine: "_Coroutine") -> None:
        unawaited.enter_turn()
        try:
            await coroutine
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                ctx.close()
                raise  # a recovery plan has undone this turn
            self._report(self._failed(turn, ctx, error))  # the handler awaited a task or future that was cancelled
        except FAILURES as error:
            self._report(self._failed(turn, ctx, error))
        else:
            self._report(self._ended(turn, ctx))

    def _prepare(
        self, turn: ev.StartTurn, ctx: Context, begun: SavedTurn | None = None
    ) -> tuple[Callable[[Agent, Any, Context], "_Coroutine | None"], object, bool]:
        """Return the handler for a turn, the turn's decoded message, and whether the handler may await. An error in this method would recur
        on every retry, and leaves the state unchanged."""
        if turn.what == "create":
            self._create(turn)
        running = self._running.get(turn.agent)
        if running is None:
            raise EncodingError(f"agent {turn.agent!r} was never created: its creating message failed")
        if running.on_error == "undo" and not running.image:
            self._take_image(turn.agent, running)
        elif running.on_error != "undo" and self._commits:
            running.image = b""
        if turn.what in ("start", "create"):
            running.authors["on_start"] = None
            if self._commits and running.known.start_awaits and running.on_error != "undo":
                self._take_image(turn.agent, running)
            return _on_start, None, running.known.start_awaits
        handler, message, call = decode_for(turn, running.known)
        if call or handler.is_durable:
            ctx.begin(call=call, journal=self._journal(turn, running, begun) if handler.is_durable else None)
        running.authors[handler.name] = None
        if self._commits and handler.awaits and running.on_error != "undo":
            self._take_image(turn.agent, running)  # a commit during the turn contains the state from before it
        function_of = self._world.function_of
        function = guarded(handler, running.agent, running.known, ctx, lambda: running.image, function_of=function_of)
        return function, message, handler.awaits

    def _journal(self, turn: ev.StartTurn, running: _Running, begun: SavedTurn | None) -> TurnJournal:
        modules = own_modules(type(running.agent), self._fleet.compensation_modules)
        if begun is not None:
            return TurnJournal(b"", begun, turn.logged, takes_effects=self._takes_effects, own_modules=modules)
        is_imaged = type(running.agent).allow_pickle or has_one_order(running.known.state_type)
        state = running.image if is_imaged else encode_ordered(running.agent.state)
        begun_for = without_tail(turn.payload)
        seed = turn_seed(self._cluster, turn.agent, turn.number, sender=turn.sender, payload=begun_for, state=state)
        return TurnJournal(
            *(seed, None, turn.logged),
            takes_effects=self._takes_effects,
            own_modules=modules,
            abandoned=turn.abandoned,
        )

    def _create(self, turn: ev.StartTurn) -> None:
        kind, state = read_creation(turn.payload)
        self.add(turn.agent, restore_agent(find_class(self._fleet, kind), state))

    def _take_image(self, agent: str, running: _Running) -> None:
        """Encode an image of the agent's state. If the image is small, check that it can be restored. The image of a larger state is
        checked only when a checkpoint captures the state.

        Raises:
            EncodingError: If the state cannot be saved, or a field's value does not have the declared type.
        """
        image = encode_state(agent, running.agent, running.known, running.authors)
        if len(image) <= CHECKED_BYTES_MAX:
            if image != running.image:
                check_skeleton(agent, running.known, image, running.authors)
            running.authors = {}
        running.image = image
        if len(running.image) > UNDO_STATE_BYTES_MAX and not running.warned:
            running.warned = True
            if type(running.agent).on_error is None:
                self._warn(
                    f"the state of agent {agent} has grown to {len(running.image):,} bytes and is imaged after every "
                    f"turn: set on_error in class {running.known.agent_class.__qualname__} to 'undo', 'keep' or 'recover'"
                )

    def _ended(self, turn: ev.StartTurn, ctx: Context) -> ev.TurnEnded | ev.TurnFailed:
        """End the turn of a handler that has returned. If the new state cannot be saved, the turn fails, so that no later epoch fails
        because of it."""
        if not ctx.close():
            return self._failed(turn, ctx, UsageError(CAUGHT))
        if ctx.unawaited or unawaited.freed:
            left = unawaited.left_by(ctx, is_over=True)
            if left:
                return self._failed(turn, ctx, UsageError(unawaited.sentence(left)))
        running = self._running.get(turn.agent)
        if running is not None:
            running.is_turning = False
        if running is not None and running.on_error == "undo":
            try:
                self._take_image(turn.agent, running)
            except EncodingError as error:
                return self._failed(turn, ctx, error)
        return ctx.outcome(is_durable=ctx.journal is not None)

    def _failed(
        self, turn: ev.StartTurn, ctx: Context, error: BaseException, *, is_final: bool = False
    ) -> ev.TurnFailed:
        ctx.close()
        unawaited.take_freed()  # the turn has failed, and its error is reported instead
        running = self._running.get(turn.agent)
        on_error = running.on_error if running is not None else "keep"
        if running is not None:
            running.is_turning = False
        request, error = request_in(error, on_error)
        text = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS_MAX:]
        may_retry = running is not None and not ctx.is_final(error)
        retries, waits_ns = (
            (running.known.retries, running.known.waits_ns) if running is not None and may_retry else (0, ())
        )
        if running is not None and on_error == "undo" and not is_final:
            try:
                running.before = running.known.state_decoder.decode(running.image)
            except Exception as cause:  # the state's own classes may raise anything
                on_error = "recover"
                text += f"the state from before the turn does not decode as declared: {cause}\n"
        is_divergent, is_durable = isinstance(error, DivergenceError), ctx.journal is not None
        return ev.TurnFailed(
            *(turn.agent, turn.incarnation, text, self._world.now_ns(), on_error, retries, is_final, waits_ns),
            is_divergent=is_divergent,
            is_durable=is_durable,
            rollback=request if on_error == "undo" else None,
            is_of_step=is_durable and is_of_step(error),
            restart=error.restart_request if isinstance(error, RestartRequestedError) else None,
            entries=ctx.journal.entries if ctx.journal is not None else [],
        )
