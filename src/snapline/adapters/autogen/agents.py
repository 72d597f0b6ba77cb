"""`AutogenAgent`: an unchanged agent of AutoGen core as an agent of a fleet.

The problem: AutoGen's runtime saves its agents one after the other while messages are under way between them, and no message. What it saves never was.

So AutoGen's agents are agents of ours. The state is the host's, and messages are the host's. AutoGen itself runs in a process beside it (its protobuf is not ours), which is given a state
and a message, runs the agent's own handler, and gives back what that has sent, answered and become (`worker.py`).

The turn is a durable one, whose steps are what the process does from one stand to the next. A handler that awaits no reply is one step: its sends and its state stand or fall together, as in
a plain turn. One that does has the replies that it has got in the turn's journal, and is run again by them.
"""

import base64
import logging
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from snapline.adapters.autogen.messages import (
    AgentWanted,
    AutogenAnswer,
    AutogenMessage,
    ForwardedMessage,
    KeptValue,
    StateGiven,
)
from snapline.adapters.autogen.names import agent_name, autogen_id
from snapline.adapters.autogen.worker import HeardReply, TurnItem, TurnSegment, worker_of
from snapline.agent_runtime.agent import Agent, OnError, handler
from snapline.agent_runtime.context import Context
from snapline.errors import FleetDefinitionError, SnaplineError, StepFailedError, WaitTimeoutError

MAKER = "autogen"
"""The agent that makes those that a fleet does not name, when the first message comes for them."""

PROGRAM = "@program"
"""Value in place of a turn: the answer is received where the handler has run."""

LOOK_S, LOOK_S_MAX = 1.0, 60.0
"""Time that a turn waits for a reply before it looks whether its handler has gone on without it, after its own time-out;
and twice as long each time."""


log = logging.getLogger(__name__)


class AutogenHandlerError(SnaplineError):
    """A handler of AutoGen's has raised, and nobody waits for its reply. Its message is a dead letter."""


class AutogenState(msgspec.Struct):
    """State that a fleet keeps of an AutoGen agent.

    Attributes:
        kept: what `save_state` gave, or the agent's attributes; None: as its factory makes it.
        made: of the agent that makes others, AutoGen's ids of these.
    """

    kept: KeptValue | None = None
    made: set[str] = msgspec.field(default_factory=set)


class AutogenAgent(Agent):
    """Base of AutoGen's agents. A subclass says which program registers them, and names those that the fleet begins with:

        class Tellers(AutogenAgent):
            program = "my_agents:register"
            ids = ("teller/north", "teller/south")

        fleet = snapline.Fleet("bank", agents=Tellers.agents())

    Attributes:
        program: `module:function` in AutoGen's environment; the function takes an AgentRuntime.
        ids: AutoGen's ids. Others are made when something is sent to them, on the host of agent `autogen`, through which goes what is sent to them.
    """

    program: ClassVar[str] = ""
    ids: ClassVar[tuple[str, ...]] = ()
    on_error: ClassVar[OnError | None] = "undo"
    retries: ClassVar[Any] = 0  # a segment that has ended is not run again
    state: AutogenState

    def __init__(self, state: AutogenState | None = None) -> None:
        super().__init__(AutogenState() if state is None else state)

    @classmethod
    def agents(cls) -> Mapping[str, Agent]:
        """Return these agents for a Fleet, and the one that makes others.

        Raises:
            FleetDefinitionError: one of `ids` is no id of an AutoGen agent.
        """
        try:
            return {MAKER: cls(), **{agent_name(each): cls() for each in cls.ids}}
        except ValueError as error:
            raise FleetDefinitionError(f"{cls.__qualname__}.ids: {error}") from error

    @handler(durable=True)
    async def on_autogen_message(self, message: AutogenMessage, ctx: Context) -> None:
        """One run of the agent's own handler."""
        turn = str(ctx.uuid())
        begin = self._begin(message, ctx, turn)
        heard: list[HeardReply] = []
        said: list[list[Any]] = []
        looks = 0
        while True:
            try:
                segment = await self._segment(ctx, begin, heard, said)
            except StepFailedError as error:
                segment = _failed(error, is_heard=bool(message.turn) or ctx.may_reply)
            for item in segment.items:
                self._send(ctx, item, turn)
                said.append(item.likeness())
            if segment.is_over:
                break
            reply = await _next_reply(ctx, turn, min(LOOK_S * 2**looks, LOOK_S_MAX))
            looks = min(looks + 1, 8) if reply is None else 0
            heard += [reply] if reply is not None else []
        if segment.state is not None:
            self.state.kept = segment.state
        _answer(ctx, message, segment)

    @handler
    async def on_autogen_answer(self, message: AutogenAnswer, ctx: Context) -> None:
        """A reply that nobody waits for any more."""

    @handler
    async def on_forwarded(self, message: ForwardedMessage, ctx: Context) -> None:
        """Something for an agent that may not be there yet."""
        self._make(ctx, message.to)
        ctx.send(agent_name(message.to), message.message)
        if ctx.may_reply:
            ctx.reply(AgentWanted(message.to))

    @handler
    async def on_wanted(self, message: AgentWanted, ctx: Context) -> None:
        """Make an agent, and say when it is made."""
        self._make(ctx, message.agent)
        if ctx.may_reply:
            ctx.reply(message)

    @handler
    async def on_state_given(self, message: StateGiven, ctx: Context) -> None:
        """Take a state that a program has changed outside its turns."""
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
        self, ctx: Context, begin: dict[str, Any], heard: list[HeardReply], said: list[list[Any]]
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
                ctx.send(MAKER, ForwardedMessage(to, message))


async def _next_reply(ctx: Context, turn: str, wait_s: float) -> HeardReply | None:
    """Return the next one for this turn; None: it is time to look whether the handler goes on without."""
    while True:
        try:
            found = await ctx.receive(AutogenAnswer, timeout_s=wait_s)
        except WaitTimeoutError:
            return None
        if found.turn == turn:
            return HeardReply(found.call, found.value, found.is_error)


def _failed(error: StepFailedError, *, is_heard: bool) -> TurnSegment:
    """A turn that cannot go on: who waits for its reply hears why, and its agent is as it was. Where nobody does its message is a dead letter."""
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
