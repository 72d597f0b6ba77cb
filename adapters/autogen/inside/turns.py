"""Runs turns of the program's agents for a host: state and message in, what the turn has sent, answered and become out.

A host knows the states; this process knows nothing that it could not be told again. An agent's object is used for its next turn too, if that begins with the state with which the last one
ended here. Otherwise its factory makes a new one, which is given the state.
"""

import logging
import random
import traceback
from typing import Any

from autogen_core import AgentId, CancellationToken, MessageContext, TopicId
from autogen_core._message_handler_context import MessageHandlerContext

from snapline.adapters.autogen.inside.keeping import AgentKeeper, Kept, keep_error, keep_message, read_kept
from snapline.adapters.autogen.inside.live_turn import LiveTurn
from snapline.adapters.autogen.inside.registry import ProgramRegistry
from snapline.adapters.autogen.inside.turn_chance import drawing

Frame = dict[str, Any]

TEXT_CHARACTERS_MAX = 4000
"""Of a traceback: as much as a dead letter keeps."""

logger = logging.getLogger(__name__)


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
        tokens: cancellation tokens of the messages that this process has sent, by the messages' ids; None where agents are in several processes.
    """

    def __init__(self, runtime: Any, registry: ProgramRegistry, *, is_alone: bool = False) -> None:
        self._runtime = runtime
        self._registry = registry
        self._objects: dict[AgentId, AgentObject] = {}
        self._live: dict[str, tuple[LiveTurn, Frame, AgentObject]] = {}
        self.tokens: dict[str, CancellationToken] | None = {} if is_alone else None

    async def begin(self, frame: Frame) -> Frame:
        """A turn begins; returns what it has come to where it first stands."""
        self.drop(frame)
        agent = AgentId.from_str(frame["agent"])
        try:
            held = await self.object_with(agent, frame["state"])
            handling = self._handling(held.made, frame)
        except BaseException as error:
            return _failed(error)
        turn = LiveTurn()
        self._live[frame["turn"]] = (turn, frame, held)
        return await self._segment(frame["turn"], await turn.begin(handling))

    async def go_on(self, frame: Frame) -> Frame | None:
        """The same of a turn that stands: a reply has come for it, or its host looks again. None: it is not here any more."""
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

    def drop_all(self) -> None:
        """Their host is gone."""
        for key in list(self._live):
            self.drop({"turn": key})

    # -- agents --------------------------------------------------------------------------------------------------------

    def add_object(self, agent: AgentId, made: Any) -> None:
        """An agent that no factory makes."""
        self._objects[agent] = AgentObject(made, is_given=True)

    def objects(self) -> dict[AgentId, AgentObject]:
        """Those that are here."""
        return dict(self._objects)

    async def object_of(self, agent: AgentId) -> AgentObject:
        """An agent's object; a new one if there is none."""
        held = self._objects.get(agent)
        if held is None:
            held = self._objects[agent] = AgentObject(await self._registry.make(agent, self._runtime))
        return held

    async def object_with(self, agent: AgentId, state: Kept | None) -> AgentObject:
        """An agent's object in this state; None: as it was made."""
        held = self._objects.get(agent)
        if held is not None and held.state != state:
            self._spoil(agent, held)
        held = await self.object_of(agent)
        if state is not None and held.state != state:
            await held.keeper.load(read_kept(state, self._registry.serializers))
            held.state = state
        return held

    def _spoil(self, agent: AgentId, held: AgentObject) -> None:
        """Nobody knows what is in it. One that no factory makes is given its next state as it is."""
        held.state = None
        if not held.is_given and self._objects.get(agent) is held:
            del self._objects[agent]

    # -- one turn ------------------------------------------------------------------------------------------------------

    async def _handling(self, made: Any, frame: Frame) -> Any:
        """The handler's run."""
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
        try:
            found = turn.result()
        except BaseException as raised:
            found, error = None, raised
        try:
            state = await held.keeper.save()
            found = await self._answer(found, begun) if error is None else found
            answer = keep_message(found, self._registry.serializers) if error is None else None
        except BaseException as raised:
            turn.close()
            self._spoil(AgentId.from_str(begun["agent"]), held)
            return _failed(raised)
        held.state = state
        segment = {"items": turn.take_items(is_over=True), "is_over": True, "state": state, "answer": answer}
        turn.close()
        return segment if error is None else {**segment, **_told(error)}

    async def _answer(self, found: Any, begun: Frame) -> Any:
        if begun["topic"]:
            return None  # nobody waits for it
        sender = AgentId.from_str(begun["sender"]) if begun["sender"] else None
        return await self._registry.responded(found, AgentId.from_str(begun["agent"]), sender)


def _told(error: BaseException) -> Frame:
    text = "".join(traceback.format_exception(error))[-TEXT_CHARACTERS_MAX:]
    return {"error": keep_error(error), "text": text}


def _failed(error: BaseException) -> Frame:
    """A turn that leaves its agent as it was."""
    return {"items": [], "is_over": True, "state": None, "answer": None, **_told(error)}
