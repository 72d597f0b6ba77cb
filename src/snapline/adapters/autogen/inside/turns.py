"""Runs turns of the program's agents for a host: state and message in, what the turn has sent, answered and become out.

A host knows the states; this process knows nothing that it could not be told again. An agent's object is used for its next turn too, if that begins with the state with which the last one
ended here. Otherwise its factory makes a new one, which is given the state.
"""

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from autogen_core import AgentId, CancellationToken, MessageContext, TopicId
from autogen_core._message_handler_context import MessageHandlerContext

from snapline.adapters.autogen.inside.keeping import AgentKeeper, Kept, keep_error, keep_message, read_kept
from snapline.adapters.autogen.inside.live_turn import LiveTurn
from snapline.adapters.autogen.inside.registry import ProgramRegistry
from snapline.adapters.autogen.inside.turn_chance import drawing

Frame = dict[str, Any]

TEXT_CHARACTERS_MAX = 4000
"""Largest length of a traceback: as much as a dead letter keeps."""


class AgentObject:
    """An agent's object.

    Attributes:
        state: with which its last turn has ended; None: it has had none, or nobody knows.
        is_given: no factory has made it.
    """

    def __init__(self, made: Any, *, is_given: bool = False) -> None:
        self.made = made
        self.is_given = is_given
        self.keeper = AgentKeeper(made)
        self.state: Kept | None = None


class TurnRunner:
    """The turns that are under way here, by the names that their hosts give them.

    Attributes:
        raised: the errors with which turns have ended for which somebody waits in this process, by their messages' ids; where it is the only one.
        begun: how many turns have begun.
        heard: who waits, outside of turns, for the answer to a message, by its id.
        unhandled: the first error of a turn for whose reply nobody waits.
        gate: what a turn waits for before it begins.
        tokens: cancellation tokens of the messages that this process has sent, by the messages' ids; None where agents are in several processes.
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
        """Begin a turn; return what it has come to where it first stands."""
        self.drop(frame)
        if self.gate is not None:
            await self.gate()
        agent = AgentId.from_str(frame["agent"])
        try:
            held = await self.object_with(agent, frame["state"])
            handling = self._handling(held.made, frame)
        except BaseException as error:
            self.begun += 1
            return self._failed(error, frame)
        turn = LiveTurn()
        self._live[frame["turn"]] = (turn, frame, held)
        return await self._segment(frame["turn"], await turn.begin(handling))

    async def go_on(self, frame: Frame) -> Frame | None:
        """Continue a turn that stands: a reply has come, or its host looks again. None: it is not here any more."""
        found = self._live.get(frame["turn"])
        if found is None:
            return None
        if frame["call"] >= 0:
            found[0].answered(frame["call"], frame["answer"])
        return await self._segment(frame["turn"], await found[0].go_on())

    def drop(self, frame: Frame) -> None:
        """A turn has been undone, and with it whatever it has made of its agent's object."""
        found = self._live.pop(frame["turn"], None)
        if found is not None:
            turn, begun, held = found
            turn.close()
            self._spoil(AgentId.from_str(begun["agent"]), held)

    # -- agents --------------------------------------------------------------------------------------------------------

    def add_object(self, agent: AgentId, made: Any) -> None:
        """Add an agent that no factory makes."""
        self._objects[agent] = AgentObject(made, is_given=True)

    def objects(self) -> dict[AgentId, AgentObject]:
        """Return the objects that are here."""
        return dict(self._objects)

    async def object_of(self, agent: AgentId) -> AgentObject:
        """Return an agent's object; a new one if there is none."""
        held = self._objects.get(agent)
        if held is None:
            held = self._objects[agent] = AgentObject(await self._registry.make(agent, self._runtime))
        return held

    async def object_with(self, agent: AgentId, state: Kept | None) -> AgentObject:
        """Return an agent's object in this state; None: as it was made."""
        held = self._objects.get(agent)
        if held is not None and held.state != state:
            self._spoil(agent, held)
        held = await self.object_of(agent)
        if state is not None and held.state != state:
            await held.keeper.load(read_kept(state, self._registry.serializers))
            held.state = state
        return held

    async def fill(self, agent: AgentId, state: Kept) -> None:
        """Give the object that is here this state."""
        held = await self.object_of(agent)
        await held.keeper.load(read_kept(state, self._registry.serializers))
        held.state = state

    def is_busy(self, agent: AgentId) -> bool:
        """Return whether it is in the middle of a turn."""
        return any(begun["agent"] == str(agent) for _, begun, _ in self._live.values())

    def _spoil(self, agent: AgentId, held: AgentObject) -> None:
        """Nobody knows what is in it. One that no factory makes is given its next state as it is."""
        held.state = None
        if not held.is_given and self._objects.get(agent) is held:
            del self._objects[agent]

    # -- one turn ------------------------------------------------------------------------------------------------------

    async def _handling(self, made: Any, frame: Frame) -> Any:
        """The handler's run."""
        self.begun += 1
        drawing.set(random.Random(frame["seed"]))
        message = read_kept(frame["message"], self._registry.serializers)
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
        turn, begun, held = self._live[key]
        if not is_over:
            return {"items": turn.take_items(is_over=False), "is_over": False}
        del self._live[key]
        error: BaseException | None = None
        answer = None
        try:
            found = await self._answer(turn.result(), begun)
            answer = keep_message(found, self._registry.serializers)
        except BaseException as raised:
            error = raised
        try:
            state = await held.keeper.save()
        except BaseException as raised:
            turn.close()
            self._spoil(AgentId.from_str(begun["agent"]), held)
            return self._failed(raised, begun)
        held.state = state
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
        return {"error": keep_error(error), "text": text}

    def _failed(self, error: BaseException, begun: Frame) -> Frame:
        """A turn that leaves its agent as it was."""
        failed = {"items": [], "is_over": True, "state": None, "answer": None, **self._told(error, begun)}
        return self._ended(failed, begun)

    async def _answer(self, found: Any, begun: Frame) -> Any:
        if begun["topic"]:
            return None  # nobody waits for it
        sender = AgentId.from_str(begun["sender"]) if begun["sender"] else None
        return await self._registry.responded(found, AgentId.from_str(begun["agent"]), sender)
