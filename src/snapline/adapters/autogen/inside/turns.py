"""Runs turns of the program's agents for a host. Input: state and message; output: messages sent, answer and new state.

The host owns the states; this process has no state that cannot be rebuilt. An agent's object is reused for its next turn if that begins with the
state with which the last turn ended here. Otherwise the factory creates a new object, which loads the state.
"""

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from autogen_core import AgentId, CancellationToken, MessageContext, TopicId
from autogen_core._message_handler_context import MessageHandlerContext

from snapline.adapters.autogen.inside.live_turn import LiveTurn
from snapline.adapters.autogen.inside.registry import ProgramRegistry
from snapline.adapters.autogen.inside.turn_random import drawing
from snapline.adapters.autogen.inside.value_encoding import (
    AgentStateCodec,
    EncodedValue,
    decode_encoded_value,
    encode_autogen_message,
    encode_handler_error,
)

Frame = dict[str, Any]

TEXT_CHARACTERS_MAX = 4000
"""Largest length of a traceback, the same as in a dead letter."""


class AgentObject:
    """An agent's object.

    Attributes:
        state: state at the end of its last turn; None: it had no turn, or the state is unknown.
        is_given: it was not created by a factory.
    """

    def __init__(self, made: Any, *, has_no_factory: bool = False) -> None:
        self.made = made
        self.has_no_factory = has_no_factory
        self.keeper = AgentStateCodec(made)
        self.state: EncodedValue | None = None


class TurnRunner:
    """The running turns of this process, by the names that their hosts give them.

    Attributes:
        raised: message id → error of its turn, for waiting callers in this process; only if all agents are in this process.
        begun: number of turns begun.
        heard: message id → future of a caller outside of turns that waits for the answer.
        unhandled: first error of a turn whose reply no caller waits for.
        gate: awaited at the beginning of each turn.
        tokens: message id → cancellation token of a message sent by this process; None if agents are in several processes.
    """

    def __init__(self, runtime: Any, registry: ProgramRegistry) -> None:
        self._runtime = runtime
        self._registry = registry
        self._objects: dict[AgentId, AgentObject] = {}
        self._live: dict[str, tuple[LiveTurn, Frame, AgentObject]] = {}
        self.tokens: dict[str, CancellationToken] | None = {}
        self.raised: dict[str, BaseException] = {}
        self.heard: dict[str, asyncio.Future[Any]] = {}
        self.begun = 0
        self.unhandled: BaseException | None = None
        self.gate: Callable[[], Awaitable[None]] | None = None

    async def begin(self, frame: Frame) -> Frame:
        """Begin a turn; return its segment up to the first wait."""
        self.drop(frame)
        if self.gate is not None:
            await self.gate()
        agent = AgentId.from_str(frame["agent"])
        try:
            agent_object = await self.object_with(agent, frame["state"])
            handling = self._handling(agent_object.made, frame)
        except BaseException as error:
            self.begun += 1
            return self._failed(error, frame)
        turn = LiveTurn()
        self._live[frame["turn"]] = (turn, frame, agent_object)
        return await self._segment(frame["turn"], await turn.begin(handling))

    async def go_on(self, frame: Frame) -> Frame | None:
        """Continue a blocked turn, with a reply or because its host checks again. None: the turn is not in this process."""
        live = self._live.get(frame["turn"])
        if live is None:
            return None
        if frame["call"] >= 0:
            live[0].answered(frame["call"], frame["answer"])
        return await self._segment(frame["turn"], await live[0].go_on())

    def drop(self, frame: Frame) -> None:
        """Drop a turn that was undone, with its changes to the agent's object."""
        live = self._live.pop(frame["turn"], None)
        if live is not None:
            turn, begun, agent_object = live
            turn.close()
            self._discard_object(AgentId.from_str(begun["agent"]), agent_object)

    # -- agents --------------------------------------------------------------------------------------------------------

    def add_object(self, agent: AgentId, made: Any) -> None:
        """Add an agent's object that was not created by a factory."""
        self._objects[agent] = AgentObject(made, has_no_factory=True)

    def objects(self) -> dict[AgentId, AgentObject]:
        """Return the objects in this process."""
        return dict(self._objects)

    async def object_of(self, agent: AgentId) -> AgentObject:
        """Return an agent's object; create it if necessary."""
        agent_object = self._objects.get(agent)
        if agent_object is None:
            agent_object = self._objects[agent] = AgentObject(await self._registry.make(agent, self._runtime))
        return agent_object

    async def object_with(self, agent: AgentId, state: EncodedValue | None) -> AgentObject:
        """Return an agent's object with this state; None: initial state."""
        agent_object = self._objects.get(agent)
        if agent_object is not None and agent_object.state != state:
            self._discard_object(agent, agent_object)
        agent_object = await self.object_of(agent)
        if state is not None and agent_object.state != state:
            await agent_object.keeper.load(decode_encoded_value(state, self._registry.serializers))
            agent_object.state = state
        return agent_object

    async def fill(self, agent: AgentId, state: EncodedValue) -> None:
        """Load a state into the agent's object in this process."""
        agent_object = await self.object_of(agent)
        await agent_object.keeper.load(decode_encoded_value(state, self._registry.serializers))
        agent_object.state = state

    def is_busy(self, agent: AgentId) -> bool:
        """Return whether the agent has an open turn."""
        return any(begun["agent"] == str(agent) for _, begun, _ in self._live.values())

    def _discard_object(self, agent: AgentId, held: AgentObject) -> None:
        """Discard an object with unknown state. An object without a factory remains, and loads its next state as it is."""
        held.state = None
        if not held.has_no_factory and self._objects.get(agent) is held:
            del self._objects[agent]

    # -- one turn ------------------------------------------------------------------------------------------------------

    async def _handling(self, made: Any, frame: Frame) -> Any:
        """Run the handler."""
        self.begun += 1
        drawing.set(random.Random(frame["seed"]))
        message = decode_encoded_value(frame["message"], self._registry.serializers)
        token = (self.tokens or {}).get(frame["id"])
        context = MessageContext(
            sender=AgentId.from_str(frame["sender"]) if frame["sender"] else None,
            topic_id=TopicId.from_str(frame["topic"]) if frame["topic"] else None,
            is_rpc=not frame["topic"],
            cancellation_token=CancellationToken() if token is None else token,
            message_id=frame["id"],
        )
        with MessageHandlerContext.populate_context(made.id):
            return await made.on_message(message, ctx=context)

    async def _segment(self, key: str, is_over: bool) -> Frame:
        turn, begun, agent_object = self._live[key]
        if not is_over:
            return {"items": turn.take_items(is_over=False), "is_over": False}
        del self._live[key]
        error: BaseException | None = None
        answer = None
        try:
            response = await self._answer(turn.result(), begun)
            answer = encode_autogen_message(response, self._registry.serializers)
        except BaseException as raised:
            error = raised
        try:
            state = await agent_object.keeper.save()
        except BaseException as raised:
            turn.close()
            self._discard_object(AgentId.from_str(begun["agent"]), agent_object)
            return self._failed(raised, begun)
        agent_object.state = state
        segment = {"items": turn.take_items(is_over=True), "is_over": True, "state": state, "answer": answer}
        turn.close()
        return self._ended(segment if error is None else {**segment, **self._told(error, begun)}, begun)

    def _ended(self, segment: Frame, begun: Frame) -> Frame:
        waiting = self.heard.get(begun["id"])
        if waiting is not None and not waiting.done() and not begun["topic"]:
            error = segment.get("error")
            waiting.set_result({"value": error or segment["answer"], "is_error": error is not None})
        return segment

    def _told(self, error: BaseException, begun: Frame) -> Frame:
        if begun["topic"]:
            self.unhandled = self.unhandled or error
        elif self.tokens is not None and begun["id"] in self.tokens:
            self.raised[begun["id"]] = error
        text = "".join(traceback.format_exception(error))[-TEXT_CHARACTERS_MAX:]
        return {"error": encode_handler_error(error), "text": text}

    def _failed(self, error: BaseException, begun: Frame) -> Frame:
        """Return the segment of a failed turn, which leaves its agent unchanged."""
        failed = {"items": [], "is_over": True, "state": None, "answer": None, **self._told(error, begun)}
        return self._ended(failed, begun)

    async def _answer(self, found: Any, begun: Frame) -> Any:
        if begun["topic"]:
            return None  # no caller waits for it
        sender = AgentId.from_str(begun["sender"]) if begun["sender"] else None
        return await self._registry.responded(found, AgentId.from_str(begun["agent"]), sender)
