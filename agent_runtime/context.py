"""Collects the requests that a handler makes to the runtime.

Requests such as sends, timers, spawns and stops are collected in the context until the turn ends, or in a durable turn until its current
segment ends. When the turn or segment ends, either all of its requests take effect or none does. A context is valid only during its own
turn.

Most turns only send messages and reply. To save time, a context creates the record for all other requests only when one of them is made.
"""

import functools
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar, cast, overload

from msgspec.structs import replace

from snapline.agent_runtime import durable, groups, rollback_errors
from snapline.agent_runtime.agent import Agent, agent_type
from snapline.agent_runtime.breaker import CircuitBreaker
from snapline.agent_runtime.durable import (
    ADOPTED,
    LOST,
    REFUSED,
    Approval,
    EffectWork,
    GroupEnd,
    Pause,
    StepWork,
    TurnJournal,
    argument_digest,
    read_message,
    read_result,
)
from snapline.agent_runtime.fleet import check_state_image, encode_unchecked
from snapline.agent_runtime.groups import Group
from snapline.agent_runtime.guards import OutputGuard
from snapline.agent_runtime.host.host_events import Emission, Spawn, TurnEnded
from snapline.agent_runtime.message_encoding import encode_message, message_name
from snapline.agent_runtime.sagas import (
    EffectOptions,
    Saga,
    do_nothing,
    effect_work,
    load_undo,
    read_outcome,
    undo_work,
)
from snapline.agent_runtime.turn_environment import (
    DELAY_S_MAX,
    TurnEnvironment,
    nanoseconds,
    plain_name,
    run_step,
    step_work,
    waits_of,
)
from snapline.agent_runtime.unawaited import UnawaitedCoroutines, awaited
from snapline.errors import (
    CircuitOpenError,
    GuardViolationError,
    StepFailedError,
    UnansweredCallError,
    UsageError,
    WaitTimeoutError,
)
from snapline.ids import check_id, check_receiver
from snapline.messages.past_rollbacks import PastRollback
from snapline.storage.packs.checkpoint import AbandonedTurn, JournalEntry, MadeEffect


class RareRequests:
    """Requests that only few turns make: outputs, timers, spawns and checkpoints. One record belongs to a single turn, or to a single
    segment of a durable turn."""

    __slots__ = ("cancelled", "outputs", "spawns", "timers", "wants_checkpoint")

    def __init__(self) -> None:
        self.timers: list[tuple[str, int, bytes]] = []
        self.cancelled: list[str] = []
        self.spawns: dict[str, Spawn] = {}
        self.outputs: list[Emission] = []
        self.wants_checkpoint = False

    def copy(self) -> "RareRequests":
        """Return a copy to which later requests are not added."""
        copied = RareRequests()
        copied.timers, copied.cancelled, copied.outputs = self.timers[:], self.cancelled[:], self.outputs[:]
        copied.spawns, copied.wants_checkpoint = self.spawns.copy(), self.wants_checkpoint
        return copied


UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

WAITED_WHOLE_NS = 15 * 60 * 10**9
"""`sleep_until` waits for the last 15 minutes without reading the clock again."""

_Result = TypeVar("_Result")
_Message = TypeVar("_Message")


class Context:
    """A handler's access to the runtime during one turn. The runtime carries out the turn's requests only if the turn succeeds.

    Attributes:
        agent: id of the agent whose turn this is.
        incarnation: incarnation number of the agent, which increases with each restart.
        sender: id of the agent that sent the message. For timers and `on_start`, the sender is the agent itself. For an input, the sender
            is `@` followed by the client's name.
    """

    __slots__ = (
        "_asked",
        "_call",
        "_closed",
        "_guard",
        "_journal",
        "_reply",
        "_sagas",
        "_sends",
        "_stops",
        "_world",
        "agent",
        "incarnation",
        "sender",
        "unawaited",
    )

    _sagas: list[Saga]  # open sagas of a durable turn

    def __init__(self, agent: str, incarnation: int, sender: str, world: TurnEnvironment) -> None:
        self.agent = agent
        self.incarnation = incarnation
        self.sender = sender
        self._world = world
        self._sends: list[tuple[str, bytes]] = []
        self._stops = False
        self._asked: RareRequests | None = None
        self._reply: bytes | None = None
        self._call = b""
        self._journal: TurnJournal | None = None
        self._guard: OutputGuard | None = None
        self._closed = ""
        self.unawaited: UnawaitedCoroutines | None = None

    @property
    def received_from(self) -> str:
        """Return the sender of the message that `receive` last returned, or "" if `receive` has not returned a message yet."""
        return self._journal.received_from if self._journal is not None else ""

    @property
    def may_reply(self) -> bool:
        """Return whether this turn may still reply. A turn may reply if it handles a client's input or a call and has not replied yet."""
        return self._reply is None and (bool(self._call) or self.sender.startswith("@"))

    def send(self, to: str, message: object) -> None:
        """Send `message` to the agent `to` when the turn ends. The message is encoded immediately.

        Raises:
            EncodingError: If the message cannot be encoded.
            MessageTooLargeError: If the message is larger than 16 MiB.
            UsageError: If `to` is not a valid agent id.
        """
        if self._closed:
            self._check_open()
        if not isinstance(to, str) or not to.isascii():
            check_receiver(to)
        payload = encode_message(message)
        self._sends.append((to, payload))
        if self._guard is not None:
            self._guard.add_sent(to, message, payload)

    def send_encoded(self, to: str, payload: bytes) -> None:
        """Send an already encoded message. Only the runtime calls this method."""
        check_receiver(to)
        self._sends.append((to, payload))

    def reply(self, message: object) -> None:
        """Reply to the call (`ctx.call`) or the input (`Client.ask`) that this turn handles. The reply is encoded immediately.

        A recovery that undoes the turn also undoes its reply. A client receives the reply when a complete epoch contains the turn. If the
        client requested an early reply, it receives the reply at the end of the turn.

        Raises:
            UsageError: If this turn handles neither an input nor a call, or if it has already replied.
            EncodingError: If the message cannot be encoded.
            MessageTooLargeError: If the message is larger than 16 MiB.
        """
        self._check_open()
        if self._reply is not None:
            raise UsageError("ctx.reply was called twice in one turn: an input, or a call, has one answer")
        if not self.may_reply:
            raise UsageError(
                f"ctx.reply answers inputs from outside and calls, and this turn is for a message of {self.sender!r}: use ctx.send"
            )
        self._reply = encode_message(message)
        if self._guard is not None:
            self._guard.add_reply(message, self._reply)
        if self._call:
            self._sends.append((self.sender, durable.reply_payload(self._call, self._reply)))

    def emit(self, topic: str, message: object) -> None:
        """Emit `message` as an output under the topic `topic`. Clients read outputs with `Client.outputs`. The message is encoded
        immediately.

        An output is released exactly once, when a complete epoch contains its turn. After its release, an output is never reverted. A
        recovery undoes only outputs that have not been released, and that no client has received. Until its release, an output is part of
        the agent's state. A stopped agent is therefore kept until all its outputs are released.

        Args:
            topic: 1 to 128 letters, digits, '_', '.' or '-', as in an agent id.

        Raises:
            UsageError: If the topic is invalid.
            EncodingError: If the message cannot be encoded.
            MessageTooLargeError: If the message is larger than 16 MiB.
        """
        rare = self._more()
        if not isinstance(topic, str):
            raise UsageError(f"a topic is text, this one is a {type(topic).__qualname__}")
        payload = encode_message(message)
        rare.outputs.append((check_id(topic, "topic"), payload, self._world.now_ns()))
        if self._guard is not None:
            self._guard.add_emitted(topic, message, payload)

    def set_timer(self, name: str, delay_s: float, message: object) -> None:
        """Send `message` to this agent itself after `delay_s` seconds. A new timer replaces an existing timer with the same name.

        Timers are part of the agent's state, so after a recovery, a timer waits only for its remaining delay. The time that has passed
        since the checkpoint is deducted only on the machine that took the checkpoint, and only until that machine reboots. Other machines
        cannot measure this time, so a timer restored there waits for the whole delay that remained at the checkpoint. To wait until a
        specific time, use `sleep_until`.
        """
        rare = self._more()
        name = plain_name("a timer", name)
        if name.startswith("\0"):
            raise UsageError(f"timer {name!r} begins with a zero character: those names are the runtime's")
        if not 0 <= delay_s <= DELAY_S_MAX:
            raise UsageError(f"timer {name!r}: the delay must be from 0 to {DELAY_S_MAX:.0e} seconds, it is {delay_s}")
        if name in rare.cancelled:
            rare.cancelled.remove(name)
        rare.timers.append((name, round(delay_s * 1e9), encode_message(message)))

    def cancel_timer(self, name: str) -> None:
        """Cancel the timer with this name, if it exists."""
        rare = self._more()
        rare.timers = [timer for timer in rare.timers if timer[0] != name]
        rare.cancelled.append(name)

    def spawn(self, agent: str, instance: Agent) -> None:
        """Create the agent `agent` on this host when the turn ends, before the turn's messages are sent.

        A fleet never reuses an agent id. If an agent with this id exists or has existed, the spawn request becomes a dead letter, usually
        of the requesting agent. After a recovery, two agents may have requested the same id, and the dead letter may belong to the existing
        agent. Messages to the id `agent` either reach the existing agent or become dead letters. This also applies to messages that this
        agent sent to the id before it requested the spawn.

        Raises:
            UsageError: If this turn has already spawned an agent with that id, or if the agent's state cannot be saved as declared.
        """
        rare = self._more()
        if not isinstance(agent, str) or not isinstance(instance, Agent):
            raise UsageError(
                f"ctx.spawn takes an agent id and a snapline.Agent, not a {type(agent).__qualname__} "
                f"and a {type(instance).__qualname__}"
            )
        if agent in rare.spawns:
            raise UsageError(f"agent {agent!r} is spawned twice in one turn: an id stands for one agent, for ever")
        kind = agent_type(type(instance))
        image = encode_unchecked(agent, instance, kind)
        check_state_image(agent, instance, kind, image)
        rare.spawns[check_id(agent)] = (agent, kind.kind, image)

    def stop(self) -> None:
        """Stop this agent after the current turn. Later messages to the agent, and client inputs that are still waiting for it, become dead
        letters."""
        self._check_open()
        self._stops = True

    def rollback(self, reason: str, *, to: str = "last", at_most: int = 1) -> NoReturn:
        """Discard this turn, and restore the whole fleet from an earlier snapshot (docs/going-back.md). If only this agent must try another
        way, use `restart_turn`.

        Args:
            to: "last", a tag, an epoch number, or "turn", which is the newest snapshot in which this turn has not begun. A durable turn
                keeps what it has read before the snapshot, also from `rolled_back`.
            at_most: number of rollbacks for this reason from this line of code, after which an operator must restore the fleet: 1 to 16.

        Raises:
            UsageError: If an argument is invalid.
        """
        self._check_open()
        request = rollback_errors.make_rollback_request(reason, to, at_most)
        self._closed = "has asked that the fleet goes back"
        raise rollback_errors.RollbackRequestedError(request)

    @awaited
    async def rolled_back(self) -> tuple[PastRollback, ...]:
        """Return how often the fleet has returned to an earlier snapshot, and why: the newest 16 returns, oldest first. Only durable turns
        may call this method.

        A restart of a failed host is no return. The turn keeps this answer like other results: after a rollback to a snapshot in which the
        turn had this answer already, the answer is the old one.

        Raises:
            UsageError: If this turn is not durable.
        """
        if self._durable("ctx.rolled_back").grouped is not None:
            raise UsageError(f"ctx.rolled_back is known at once and is no member of a group: {groups.GROUP_TAKES}")
        entry = await self._wait(durable.ROLLED_BACK, "", b"")
        return durable.read_rollbacks(entry)

    def restart_turn(self, reason: str, *, at_most: int = 3) -> NoReturn:
        """Give up this attempt at a durable turn, and begin the turn again from its first state and message.

        The attempt ends as a turn that fails permanently: its effects are compensated, and what it has sent stays sent. The turn then begins
        again as the agent's next one, with other random numbers and steps that run again. `abandoned` tells it what happened before. A
        client or caller that waits gets the answer of the last attempt. No other agent goes back.

        Args:
            at_most: number of restarts after which the turn fails permanently, and its message becomes a dead letter.

        Raises:
            UsageError: If this turn is not durable, or an argument is invalid.
        """
        self._durable("ctx.restart_turn")
        request, self._closed = rollback_errors.make_restart_request(reason, at_most), "has asked to begin again"
        raise rollback_errors.RestartRequestedError(request)

    @property
    def abandoned(self) -> tuple[AbandonedTurn, ...]:
        """Return the earlier attempts at this turn (`restart_turn`), oldest first."""
        return self._journal.abandoned if self._journal is not None else ()

    def checkpoint(self) -> None:
        """Take a checkpoint of this agent after the turn, even if its policy requires none.

        The request applies to fleets whose agents checkpoint independently (uncoordinated and communication-induced protocols). The request
        has no effect in coordinated fleets, where the coordinator decides when all agents take checkpoints.
        """
        self._more().wants_checkpoint = True

    def now(self) -> int:
        """Return wall-clock time in nanoseconds since 1970. If a durable turn is rerun, each call returns the same time as in the first
        run."""
        self._check_open()
        return self._journal.now(self._world.now_ns) if self._journal is not None else self._world.now_ns()

    def random(self) -> float:
        """Return a random number x with 0 ≤ x < 1. If a durable turn is rerun, it gets the same random numbers as in the first run."""
        self._check_open()
        if self._journal is None:
            return self._world.random()
        return (int.from_bytes(self._journal.draw()[:8], "big") >> 11) / 2**53

    def uuid(self) -> uuid.UUID:
        """Return a random UUID (version 4). If a durable turn is rerun, it gets the same UUIDs as in the first run."""
        self._check_open()
        if self._journal is None:
            return uuid.UUID(bytes=random.Random(repr(self._world.random())).randbytes(16), version=4)
        return uuid.UUID(bytes=self._journal.draw()[:16], version=4)

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Awaitable[_Result]],
        *args: Any,
        timeout_s: float | None = None,
        heartbeat_s: float | None = None,
        retries: int | Sequence[float] = 0,
        durability: str = "log",
        guard: Callable[[_Result], str | None] | None = None,
        fallback: Callable[..., Awaitable[_Result] | _Result] | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> _Result: ...

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., _Result],
        *args: Any,
        timeout_s: float | None = None,
        heartbeat_s: float | None = None,
        retries: int | Sequence[float] = 0,
        durability: str = "log",
        guard: Callable[[_Result], str | None] | None = None,
        fallback: Callable[..., Awaitable[_Result] | _Result] | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> _Result: ...

    @awaited  # type: ignore[misc]  # it takes what it decorates takes, which a decorator's type cannot say of several
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float | None = None,
        heartbeat_s: float | None = None,
        retries: int | Sequence[float] = 0,
        durability: str = "log",
        guard: Callable[[Any], str | None] | None = None,
        fallback: Callable[..., Any] | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> Any:  # the function's own result
        """Perform external I/O. `function(*args)` is awaited if `function` is a coroutine function, and otherwise runs in a thread.

        The turn waits for the step, and meanwhile other agents run. In a plain turn, no checkpoint is taken until the turn ends, and all
        steps run again if the turn is retried or is repeated by a recovery. In a durable turn, the result of a completed step is recorded
        in the journal and the host log. A recovery does not run a completed step again, unless the rerun turn has a different history. A
        step that was still running at the time of the failure is run again.

        Args:
            timeout_s: time limit of each attempt. After the timeout, a function in a thread continues to run, but its result is discarded.
            heartbeat_s: maximum interval in seconds between heartbeats, which the function sends with `snapline.heartbeat`. An attempt that
                sends no heartbeats fails after at most twice this interval.
            retries: number of retries if the function raises an error, or the seconds to wait before each retry, such as `(0.5, 5)`.
            durability: determines when the result of a step is durable in a durable turn. With "log", the turn continues once the result is
                in the store, after some milliseconds. With "checkpoint", the turn continues immediately, and the result is part of the
                agent's next checkpoint. A recovery to an earlier checkpoint may run the step again.
            guard: function that returns why a result must not be used, or None. Such a result counts as a failed attempt. The guard runs
                within the step, so a replay does not run it. It must not wait; to ask a model, use another step.
            fallback: function that is called with the same arguments when all attempts have failed. Its result is the step's, without a
                guard.
            breaker: circuit breaker in the agent's state, which counts each failure of all attempts. While it is open, `fallback` is called
                at once. The fallback is then a step of its own, named `name/fallback`. Not in groups.

        Returns:
            The function's result. In a durable turn, the result is decoded from the journal as the type that the function's return
            annotation declares. Without an annotation, the result is decoded as plain values (dictionaries, lists, numbers, text).

        Raises:
            StepFailedError: In a durable turn, if the function raised an error or if its result cannot be encoded. In a plain turn, the
                function's own error is raised instead.
            EncodingError: In a durable turn, if the arguments cannot be encoded.
            DivergenceError: If the result in the journal no longer has the type that the function declares. The turn is then suspended.
            CircuitOpenError: If the breaker is open and there is no fallback.
            UsageError: If `durability`, `retries` or a time limit is invalid, or if a member of a group has a breaker.
        """
        self._check_open()
        call = functools.partial(function, *args) if args else function
        instead = functools.partial(fallback, *args) if fallback is not None else None
        work = step_work(name, call, timeout_s, heartbeat_s, retries, durability, guard, instead)
        if breaker is not None:
            return await self._step_with_breaker(name, function, args, work, breaker)
        return await self._step(name, function, args, work)

    async def _step_with_breaker(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], work: StepWork, breaker: CircuitBreaker
    ) -> Any:  # the function's own result
        if self._journal is not None and self._journal.grouped is not None:
            raise UsageError(
                f"step {name!r} of a group has a breaker: await it before or behind the group, or leave it out"
            )
        self.check_output()  # a violation is no failure of the service
        try:
            with breaker.guard(self):
                return await self._step(name, function, args, replace(work, fallback=None))
        except Exception as error:
            is_failure = isinstance(error, StepFailedError | CircuitOpenError) or self._journal is None
            if work.fallback is None or not is_failure or isinstance(error, UsageError):
                raise
        return await self._step(f"{name}/fallback", function, args, StepWork(work.fallback, is_logged=work.is_logged))

    async def _step(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], work: StepWork
    ) -> Any:  # the function's own result
        if self._journal is None:
            if self._world.has_all_answers:
                raise UsageError(
                    f"step {name!r} is in a plain turn, which records nothing, and the fleet runs on recorded answers only: mark the handler "
                    "@snapline.handler(durable=True)"
                )
            return await run_step(self._world, name, work)
        name = plain_name("a step", name)
        entry = await self._wait("step", name, argument_digest(name, args), work=work)
        with self._journal.reading():
            return read_result(name, entry, function)

    @awaited
    async def gather(self, *members: Awaitable[Any], on_error: str = "wait") -> list[Any]:  # the members' own results
        """Wait for several things at the same time: `a, b = await ctx.gather(ctx.step(…), ctx.call(…))`. Only durable turns can.

        Members are steps, effects, calls, messages to receive, approvals and sleeps. Each has its own time limits and retries. The results of
        steps and effects are always in the log before the turn continues. A recovery does not run completed ones again, even if others were
        still running. The order in which the members end has no effect on the turn.

        Args:
            on_error: "wait" waits until all members have ended. "cancel" ends with the first failure. Steps that still run are then
                cancelled: a coroutine at once, a function in a thread at its next heartbeat. Replies that come later are dropped, but called
                agents do what they were asked. A message that was to be received is not consumed.

        Returns:
            The results, in the order of the members.

        Raises:
            StepFailedError, EffectFailedError, WaitTimeoutError, UnansweredCallError: If a member failed. The error is that of the first
                failed member in their order, and is raised when the group has ended. If the turn is retried, only failed and cancelled
                steps run again.
            UsageError: If a member is something else, if there are more than 64 members, if two receive messages of the same type or are
                effects with the same key, or if a group that may be cancelled has effects.
            DivergenceError: If the rerun turn asks for another group. The turn is then suspended.
        """
        ends_at = groups.end_on_error("ctx.gather", on_error)
        coroutines, entries = await self._wait_for_group(members, ends_at)
        return groups.results_of(coroutines, entries, ends_at)

    @awaited
    async def race(self, *members: Awaitable[Any]) -> tuple[int, Any]:  # the member's own result
        """Wait for the first of several things: `index, result = await ctx.race(ctx.call(…), ctx.sleep(5))`. Only durable turns can.

        Members are as in `gather`, and the others are cancelled as there. Which member came first is recorded, and a recovery does not
        change it, unless the rerun turn has a different history.

        Returns:
            The index of the member that ended first, and its result.

        Raises:
            StepFailedError, WaitTimeoutError, UnansweredCallError: If the member that ended first failed.
            UsageError, DivergenceError: As for `gather`, or if there are no members.
        """
        if not members:
            raise UsageError("ctx.race has no members: give it what may come first")
        coroutines, entries = await self._wait_for_group(members, "first")
        index = next(index for index, entry in enumerate(entries) if entry.outcome != LOST)
        (result,) = groups.results_of(coroutines, entries, "first")
        return index, result

    def group(self, on_error: str = "wait") -> Group:
        """Gather members that a block adds: `async with ctx.group() as group: price = group.add(ctx.step(…))`. Behind the block,
        `price.result` is its result. Everything else is as for `gather`."""
        self._durable("ctx.group")
        return Group(self.gather, on_error)

    async def _wait_for_group(
        self, members: Sequence[Awaitable[Any]], ends_at: GroupEnd
    ) -> tuple[list[groups.Member], list[JournalEntry]]:
        """Return the members' coroutines, which wait for their entries, and these entries."""
        journal = self._durable("ctx.race" if ends_at == "first" else "ctx.gather")
        coroutines = [cast(groups.Member, member) for member in members]
        entries: list[JournalEntry] = []
        try:
            requests = groups.requested(journal, coroutines, ends_at)
            if requests:
                self.check_output()
                entries = await journal.wait_for_group(requests, ends_at)
                if journal.has_left:
                    self.take_segment()
        except BaseException:
            groups.close(coroutines)
            raise
        return coroutines, entries

    @awaited
    async def effect(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        key: str = "",
        compensate: tuple[Any, ...] | None = None,
        probe: Callable[..., Any] | None = None,
        timeout_s: float = 30.0,
        retries: int | Sequence[float] = 0,
        repeatable: bool = True,
    ) -> Any:  # the function's own result
        """Perform an external action that must not be repeated, by calling `function(*args, key=outside_key)`. Effects can be requested
        only in durable turns (docs/effects.md).

        The function is called only when the request is durable, which is the case when the next snapshot is complete. After a crash during
        the call, the function is called again with the same outside key. The external service must therefore detect duplicate keys. If a
        `probe` is given, the probe is called before the function is called again.

        Args:
            key: id of the effect within this agent. If any turn makes a request with the same key and arguments, the request refers to the
                same effect, which is not performed again. Without a key, the effect is identified by its position in this turn.
            compensate: `(function, *args)`, a call that undoes the effect if the turn or its saga fails permanently. The compensating call
                has its own `key`. The compensating function must be defined at the top level of a module.
            probe: function that is called as `probe(*args, key=outside_key)`. If an earlier call performed the effect, the probe returns
                the effect's result, otherwise None. After a crash or a failure, the probe runs before the effect's function is called
                again. The probe runs `timeout_s` seconds after the earlier call, because that call may still be running.
            timeout_s: time limit in seconds for each call.
            retries: number of retries, as for `step`.
            repeatable: whether the function may be called again after a crash. If the function may not be called again and there is no
                probe, the agent is suspended until an operator reports whether the effect was performed.

        Returns:
            The function's result, decoded as for `step`.

        Raises:
            EffectFailedError: If every call of the function raised an error. The effect may still have been performed.
            UsageError: If this turn is not durable, the key belongs to a different effect, the function in `compensate` cannot be found by
                its name, or the store accepts no outputs.
            EncodingError: If the arguments cannot be encoded.
            DivergenceError: If the result in the journal no longer has the type that the function declares. The turn is then suspended.
        """
        journal = self._durable("ctx.effect")
        name = plain_name("an effect", name)
        options = EffectOptions(key, compensate, probe, timeout_s, waits_of(f"effect {name!r}", retries), repeatable)
        saga = self._sagas[-1].name if self._sagas else ""
        work = effect_work(journal, name, function, args, options, asked_ns=self._world.now_ns(), saga=saga)
        entry = await self._wait("effect", name, work.digest, work=work)
        intent = work.intent
        if self._sagas and intent.undo and entry.outcome not in (ADOPTED, REFUSED):
            self._sagas[-1].add(MadeEffect(intent.key, 0, name, intent.undo, intent.undo_arguments))
        with journal.reading():
            return read_outcome(name, intent.key, entry, function)

    @awaited
    async def before_risk(self) -> None:
        """Wait until a complete snapshot contains this turn up to this point, so that no failure can undo the work done so far. Only
        durable turns may call this method. The wait works like an effect that calls no function."""
        await self.effect("before-risk", do_nothing)

    def saga(self, name: str) -> Saga:
        """Group effects in a block so that either all of them are performed or all are undone: `async with ctx.saga("trip"):`. Only durable
        turns may contain saga blocks.

        If a saga block raises an error, the compensations of its effects run, newest first. The error is then re-raised. Failed effects are
        also compensated, because they may have been performed nevertheless. The compensations run even if the host crashes at any point. If
        a compensation fails, a note with its name is added to the error.
        """
        journal = self._durable("ctx.saga")
        name = plain_name("a saga", name)
        return Saga(name, journal, self._sagas, functools.partial(self.undo_effect, saga=name))

    @awaited
    async def call(
        self, agent: str, message: object, reply_type: type[_Message], *, timeout_s: float = 60.0
    ) -> _Message:
        """Send `message` to the agent `agent`, and wait for the reply that the agent sends with `ctx.reply`. Only durable turns may call
        this method.

        Raises:
            WaitTimeoutError: If no reply arrives within `timeout_s` seconds. A reply that arrives later is discarded.
            UnansweredCallError: If the called agent does not exist, or if its turn failed permanently or ended without `ctx.reply`.
            EncodingError: If the reply does not have the type `reply_type`.
            UsageError: If this turn is not durable, the agent calls itself, or `reply_type` is not a class.
        """
        journal = self._durable("ctx.call")
        _check_class("ctx.call", reply_type)
        if agent == self.agent:
            raise UsageError(f"agent {agent!r} calls itself: its turn for that would have to wait for this one")
        payload = encode_message(message)
        self.send_encoded(agent, durable.call_payload(journal.call_id(), payload))
        if self._guard is not None:
            self._guard.add_sent(agent, message, payload)
        entry = await self._wait(
            "call", agent, argument_digest("call", (message_name(type(message)), message)), timeout_s=timeout_s
        )
        if entry.outcome == durable.LATE:
            raise WaitTimeoutError(f"agent {agent!r} has not answered within {timeout_s:g} s")
        if not entry.result:
            raise UnansweredCallError(
                f"agent {agent!r} will not answer: its turn has ended without ctx.reply or failed, or there is no such agent"
            )
        return read_message(entry.result, reply_type, f"the answer of agent {agent!r}")

    @awaited
    async def receive(self, kind: type[_Message], *, timeout_s: float | None = None) -> _Message:
        """Wait for the next message of type `kind` from any sender. After the wait, `received_from` contains the sender's id. Only durable
        turns may call this method.

        If the sender sent messages of other types before this message, those messages wait until this turn has ended. The waiting messages
        are then handled in order, each in its own turn.

        Raises:
            WaitTimeoutError: If no message of this type arrives within `timeout_s` seconds.
            UsageError: If this turn is not durable, or `kind` is not a class.
        """
        journal = self._durable("ctx.receive")
        _check_class("ctx.receive", kind)
        entry = await self._wait("receive", message_name(kind), b"", timeout_s=timeout_s)
        if entry.outcome == durable.LATE:
            raise WaitTimeoutError(f"no message of type {message_name(kind)!r} has come within {timeout_s:g} s")
        journal.received_from = entry.sender
        return read_message(entry.result, kind, f"a message of {entry.sender!r}")

    @awaited
    async def approval(
        self, title: str, details: object = None, *, expires_s: float | None = None, default: bool | None = None
    ) -> Approval:
        """Wait until somebody grants or denies something (`snapline approval`, the view, the gateway). Only durable turns may call this
        method. The first answer counts.

        An answer belongs to exactly this question: who saw other details, or an earlier question, answers nothing.

        Args:
            title: what is to be approved, in a few words.
            details: plain values that people need for the decision.
            expires_s: seconds after which the approval expires. They count on over recoveries, as for timers. None means never.
            default: answer if the approval expires.

        Raises:
            WaitTimeoutError: If the approval expires and there is no default.
            UsageError: If this turn is not durable, or the title is no text.
            EncodingError, MessageTooLargeError: If the details cannot be encoded, or are larger than 64 KiB.
        """
        self._durable("ctx.approval")
        title = plain_name("an approval", title)
        encoded = durable.encode_details(title, details)
        entry = await self._wait(
            "approval", title, durable.approval_digest(title, encoded), timeout_s=expires_s, details=encoded
        )
        if entry.outcome != durable.LATE:
            return durable.read_approval(entry)
        if default is None:
            raise WaitTimeoutError(f"nobody has decided on {title!r} within {expires_s:g} s")
        return Approval(default)

    @awaited
    async def sleep(self, seconds: float) -> None:
        """Suspend this durable turn for `seconds`. As with timers, the agent's checkpoints contain the remaining time."""
        self._durable("ctx.sleep")
        delay_ns = nanoseconds("ctx.sleep", seconds)
        await self._wait("sleep", "", delay_ns.to_bytes(8, "big"), timeout_s=seconds)

    @awaited
    async def sleep_until(self, instant: datetime) -> None:
        """Suspend this durable turn until the clock of the agent's host reaches the time `instant`. If `instant` is in the past, return
        immediately.

        The method repeatedly waits for half of the remaining time and reads the clock again. When at most 15 minutes remain, the method
        waits for the rest as `ctx.sleep` does. The turn therefore wakes at the right time even if the fleet was down or was moved, or if
        the clock was corrected.

        Raises:
            UsageError: If `instant` has no time zone and is therefore ambiguous.
        """
        self._durable("ctx.sleep_until")
        if not isinstance(instant, datetime) or instant.tzinfo is None:
            raise UsageError(
                f"ctx.sleep_until: {instant!r} is no instant: it takes a datetime with a time zone, such as datetime.now(UTC)"
            )
        due_ns = (instant - UNIX_EPOCH) // timedelta(microseconds=1) * 1000
        while (left_ns := due_ns - self.now()) > 0:
            wait_ns = min(left_ns, max(left_ns // 2, WAITED_WHOLE_NS))
            await self._wait("sleep", "", due_ns.to_bytes(8, "big", signed=True), timeout_s=wait_ns / 1e9)

    async def _wait(
        self,
        kind: str,
        name: str,
        digest: bytes,
        *,
        timeout_s: float | None = None,
        work: StepWork | EffectWork | None = None,
        details: bytes = b"",
    ) -> JournalEntry:
        assert self._journal is not None
        timeout_ns = None if timeout_s is None else nanoseconds(f"ctx.{kind}", timeout_s)
        if self._journal.grouped is None:
            self.check_output()
        entry = await self._journal.wait(kind, name, digest, timeout_ns=timeout_ns, work=work, details=details)
        if self._journal.has_left:
            self.take_segment()  # necessary only if the turn runs again, since otherwise the segment is empty
        return entry

    def _durable(self, what: str) -> TurnJournal:
        self._check_open()
        if self._journal is None:
            raise UsageError(f"{what} waits, and a plain turn cannot: mark the handler @snapline.handler(durable=True)")
        return self._journal

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the turn of agent {self.agent!r} {self._closed}")

    def _more(self) -> RareRequests:
        """Return the record of this turn's less common requests, creating it if necessary."""
        self._check_open()
        if self._asked is None:
            self._asked = RareRequests()
        return self._asked

    # ---- for the runtime ------------------------------------------------------------------------------------------

    def guard_with(self, guard: OutputGuard) -> None:
        """Let this guard check what the turn requests."""
        self._guard = guard

    def is_final(self, error: BaseException) -> bool:
        """Return whether a turn that fails with this error must not be retried, because its guard has rejected its output."""
        return self._guard is not None and self._guard.is_final and error is self._guard.violation

    def check_output(self, *, is_over: bool = False) -> None:
        """Let the handler's guard check what the turn has requested since the last check, and drop it if the guard rejects it. If the
        handler is over, the guard is called even if there is nothing to check, since it may look at the state.

        Raises:
            GuardViolationError: If the guard rejects the output.
        """
        guard = self._guard
        if guard is None or (guard.is_empty and not is_over):
            return
        reason = guard.rejects() if self._journal is None else self._journal.violation(guard.rejects)
        guard.clear()
        if reason:
            count, self._asked, self._reply, self._stops = guard.checked
            del self._sends[count:]
            guard.raise_violation(reason)
        rare = self._asked.copy() if self._asked is not None else None
        guard.checked = len(self._sends), rare, self._reply, self._stops

    def begin(self, *, call: bytes = b"", journal: TurnJournal | None = None) -> None:
        """Begin the turn. `call` is the id of the call that the turn handles, and `journal` is the journal of a durable turn."""
        self._call, self._journal, self._sagas = call, journal, []

    @property
    def journal(self) -> TurnJournal | None:
        """Return the journal of a durable turn, or None if the turn is plain."""
        return self._journal

    async def undo_effect(self, made: MadeEffect, *, saga: str = "") -> None:
        """Undo an effect by running its compensation, which is itself an effect.

        Raises:
            EffectFailedError: If every call of the compensation raised an error.
        """
        name = f"{made.name}/undo"
        function = load_undo(made.name, made.undo, made.undo_arguments, self._durable("undo_effect").own_modules)
        work = undo_work(made, function, self._world.now_ns(), saga)
        violation = self._guard.violation if self._guard is not None else None
        try:
            self.check_output()
        except GuardViolationError:  # what is rejected is dropped, and the error of the saga's block goes on
            assert self._guard is not None
            self._guard.violation = violation
        entry = await self._wait("effect", name, work.digest, work=work)
        read_outcome(name, made.key, entry, lambda: None)

    def close(self) -> bool:
        """Close the context when its turn ends. Return whether the context was still open."""
        was_open, self._closed = not self._closed, "has ended: use a context in its own turn only"
        return was_open

    def suspend(self) -> None:
        """Suspend the context while its durable turn waits. Tasks that the handler has started must not use a suspended context."""
        self._closed = "waits: only its handler may use the context, not a task beside it"

    def resume(self) -> None:
        """Reopen the context when its durable turn stops waiting."""
        self._closed = ""

    def take_segment(self, pause: Pause | None = None) -> TurnEnded:
        """End the current segment of a durable turn, and return the requests made in that segment. Requests to stop the agent and replies
        are not included. `outcome` returns replies and requests to stop when the turn ends."""
        rare = self._asked or RareRequests()
        outcome = TurnEnded(
            *(self.agent, self.incarnation, self._sends, rare.timers, rare.cancelled, list(rare.spawns.values())),
            wants_checkpoint=rare.wants_checkpoint,
            outputs=rare.outputs,
            pause=pause,
        )
        self._sends, self._asked = [], None
        if self._guard is not None:
            self._guard.checked = 0, None, self._reply, self._stops
        return outcome

    def outcome(self, *, is_durable: bool = False) -> TurnEnded:
        """Return the requests made in this turn. If the turn handles a call and has not replied, add an empty reply, so that the caller
        stops waiting."""
        reply = self._reply
        if self._call:
            if reply is None:
                self._sends.append((self.sender, durable.reply_payload(self._call, b"")))
            reply = None
        if self._asked is None and reply is None and not self._stops and not is_durable:
            return TurnEnded(self.agent, self.incarnation, self._sends)
        rare = self._asked or RareRequests()
        return TurnEnded(
            *(self.agent, self.incarnation, self._sends, rare.timers, rare.cancelled, list(rare.spawns.values())),
            *(self._stops, rare.wants_checkpoint, reply or b"", rare.outputs),
            is_durable=is_durable,
            entries=self._journal.entries if self._journal is not None else [],
        )


def _check_class(method: str, kind: object) -> None:
    if not isinstance(kind, type):
        raise UsageError(
            f"{method} waits for one class of messages, not for {kind!r}: give one class a field for each case"
        )
