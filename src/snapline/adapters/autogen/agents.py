"""Runs an unmodified AutoGen Core agent as an agent of a fleet (`AutogenAgent`).

The problem: AutoGen's runtime saves its agents one after another while messages are in transit, and does not save messages. The saved
states are therefore inconsistent.

The solution: each AutoGen agent becomes a snapline agent, and its host owns its state and messages. AutoGen itself runs in a separate
process, because it needs an incompatible version of protobuf. For each message, AutoGen's process receives the agent's state and the
message, and runs the agent's own handler. The process returns the handler's outgoing messages, its return value and the agent's new state
(`worker.py`).

Each message is handled in a durable turn. In each step of the turn, the process runs the handler until the handler waits for a reply or
ends. A handler that awaits no replies runs in one step, so its messages and its state change are atomic, as in an ordinary turn. If a
handler awaits replies, the turn's journal contains the received replies. After a failure, the handler is rerun with the replies in the
journal.
"""

import base64
import logging
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

import snapline
from snapline.adapters.autogen.pipe_protocol import agent_name, autogen_id
from snapline.adapters.autogen.worker import (
    AgentWanted,
    AutogenAnswer,
    AutogenMessage,
    ForwardedMessage,
    KeptValue,
    ReceivedReply,
    StateGiven,
    TurnItem,
    TurnSegment,
    worker_of,
)
from snapline.agent_runtime.agent import Agent, OnError, handler
from snapline.agent_runtime.context import Context
from snapline.errors import FleetDefinitionError, SnaplineError, StepFailedError, WaitTimeoutError

AGENT_CREATOR = "autogen"
"""Id of the agent that creates all agents that are not in the fleet's definition. It creates an agent when the first message to that agent
arrives."""

PROGRAM = "@program"
"""Value used in place of a turn's name if the answer goes to the program itself, in whose process the handler runs."""

CHECK_PERIOD_S, CHECK_PERIOD_S_MAX = 1.0, 60.0
"""Initial and longest time in seconds for which a turn waits for a reply before it checks whether its handler has continued without the
reply, for example after a timeout. The time is doubled after each check."""


log = logging.getLogger(__name__)


class AutogenHandlerError(SnaplineError):
    """An AutoGen handler raised an error, and no caller waits for the handler's result. The message becomes a dead letter."""


class AutogenState(msgspec.Struct):
    """The state of an AutoGen agent.

    Attributes:
        kept: the state that the agent's `save_state` returned, or the agent's attributes. None if the agent has not changed since its
            factory created it.
        made: AutoGen ids of the agents that this agent has created. Only the agent `AGENT_CREATOR` uses it.
    """

    kept: KeptValue | None = None
    made: set[str] = msgspec.field(default_factory=set)


class AutogenAgent(Agent):
    """Base class of AutoGen agents. A subclass specifies the program that registers the agents, and the agents that exist from the start:

        class Tellers(AutogenAgent):
            program = "my_agents:register"
            ids = ("teller/north", "teller/south")

        fleet = snapline.Fleet("bank", agents=Tellers.agents())

    Attributes:
        program: `module:function` in AutoGen's environment. The function takes an AgentRuntime.
        ids: AutoGen ids of the agents that exist from the start. Any other agent is created on the host of the agent `autogen` when its
            first message arrives. Messages to agents that are not in `ids` pass through the agent `autogen`.
    """

    program: ClassVar[str] = ""
    ids: ClassVar[tuple[str, ...]] = ()
    on_error: ClassVar[OnError | None] = "undo"
    retries: ClassVar[Any] = 0  # a segment that has ended must not be rerun
    state: AutogenState

    def __init__(self, state: AutogenState | None = None) -> None:
        super().__init__(AutogenState() if state is None else state)

    @classmethod
    def agents(cls) -> Mapping[str, Agent]:
        """Return the agents to pass to a `Fleet`. The result contains the agents in `ids`, and the agent that creates all other AutoGen
        agents.

        Raises:
            FleetDefinitionError: one of `ids` is not a valid AutoGen id.
        """
        try:
            return {AGENT_CREATOR: cls(), **{agent_name(id_): cls() for id_ in cls.ids}}
        except ValueError as error:
            raise FleetDefinitionError(f"{cls.__qualname__}.ids: {error}") from error

    @handler(durable=True)
    async def on_autogen_message(self, message: AutogenMessage, ctx: Context) -> None:
        """Run the AutoGen agent's own handler for one message, and send the handler's messages and its return value."""
        turn = str(ctx.uuid())
        begin = self._begin(message, ctx, turn)
        replies: list[ReceivedReply] = []
        sent_items: list[list[Any]] = []
        checks = 0
        while True:
            try:
                segment = await self._segment(ctx, begin, replies, sent_items)
            except StepFailedError as error:
                segment = _failed(error, is_heard=bool(message.turn) or ctx.may_reply)
            for item in segment.items:
                self._send(ctx, item, turn)
                sent_items.append(item.comparison_key())
            if segment.is_over:
                break
            reply = await _next_reply(ctx, turn, min(CHECK_PERIOD_S * 2**checks, CHECK_PERIOD_S_MAX))
            checks = min(checks + 1, 8) if reply is None else 0
            replies += [reply] if reply is not None else []
        if segment.state is not None:
            self.state.kept = segment.state
        _answer(ctx, message, segment)

    @handler
    async def on_autogen_answer(self, message: AutogenAnswer, ctx: Context) -> None:
        """Ignore a reply that no turn is waiting for any longer."""

    @handler
    async def on_forwarded(self, message: ForwardedMessage, ctx: Context) -> None:
        """Forward a message to its receiver, creating the receiver first if necessary."""
        self._make(ctx, message.to)
        ctx.send(agent_name(message.to), message.message)
        if ctx.may_reply:
            ctx.reply(AgentWanted(message.to))

    @handler
    async def on_wanted(self, message: AgentWanted, ctx: Context) -> None:
        """Create the agent if it does not exist, and confirm that it exists."""
        self._make(ctx, message.agent)
        if ctx.may_reply:
            ctx.reply(message)

    @handler
    async def on_state_given(self, message: StateGiven, ctx: Context) -> None:
        """Adopt a state that the program has set outside the agent's turns, unless the agent's state has changed in the meantime."""
        if self.state.kept == message.before:
            self.state.kept = message.state
        if ctx.may_reply:
            ctx.reply(message)

    def _make(self, ctx: Context, agent: str) -> None:
        if agent not in self.state.made and agent not in type(self).ids:
            self.state.made.add(agent)
            ctx.spawn(agent_name(agent), type(self)())

    def _begin(self, message: AutogenMessage, ctx: Context, turn: str) -> dict[str, Any]:
        return {
            "turn": ctx.agent,
            "seed": turn,
            "agent": autogen_id(ctx.agent),
            "state": msgspec.to_builtins(self.state.kept),
            "message": msgspec.to_builtins(message.message),
            "sender": message.sender,
            "topic": message.topic,
            "id": message.id or turn,
        }

    async def _segment(
        self, ctx: Context, begin: dict[str, Any], heard: list[ReceivedReply], said: list[list[Any]]
    ) -> TurnSegment:
        program, heard, said = type(self).program, list(heard), list(said)

        async def segment() -> TurnSegment:
            return await worker_of(program).segment(begin, heard, said)

        return await ctx.step("autogen", segment, durability="checkpoint")

    def _send(self, ctx: Context, item: TurnItem, turn: str) -> None:
        turn = turn if item.call >= 0 else ""
        message = AutogenMessage(item.message, item.sender, item.topic, item.id, turn, max(item.call, 0))
        for to in item.to:
            if to in type(self).ids or agent_name(to) == ctx.agent:
                ctx.send(agent_name(to), message)
            else:
                ctx.send(AGENT_CREATOR, ForwardedMessage(to, message))


async def _next_reply(ctx: Context, turn: str, wait_s: float) -> ReceivedReply | None:
    """Return the next reply for this turn, or None if no reply arrives within `wait_s`.

    If the result is None, the caller must check whether the handler has continued without a reply."""
    while True:
        try:
            answer = await ctx.receive(AutogenAnswer, timeout_s=wait_s)
        except WaitTimeoutError:
            return None
        if answer.turn == turn:
            return ReceivedReply(answer.call, answer.value, answer.is_error)


def _failed(error: StepFailedError, *, is_heard: bool) -> TurnSegment:
    """Return the final result of a failed turn, which leaves the agent's state unchanged.

    If a caller waits for the turn's answer, the error is sent to the caller. Otherwise, the error is raised, so that the message becomes a
    dead letter.
    """
    if not is_heard:
        raise error
    log.warning("%s", error)
    body = base64.b64encode(pickle.dumps(RuntimeError(str(error)))).decode()
    return TurnSegment([], is_over=True, error=KeptValue("pickle", body, "RuntimeError"), text=str(error))


def _answer(ctx: Context, message: AutogenMessage, segment: TurnSegment) -> None:
    value = segment.error or segment.answer
    assert value is not None
    answer = AutogenAnswer(value, is_error=segment.error is not None, turn=message.turn, call=message.call)
    if message.turn == PROGRAM:
        return
    if message.turn:
        ctx.send(agent_name(message.sender), answer)
    elif ctx.may_reply:
        ctx.reply(answer)
    elif segment.error is not None:
        raise AutogenHandlerError(segment.text)


def fleet() -> snapline.Fleet:
    """Return a fleet in which each agent is created when its first message arrives."""
    return snapline.Fleet("program", agents=AutogenAgent.agents(), triggers=[snapline.Every(seconds=1)])
