"""Runs the turns of a program's agents on behalf of a host.

Each turn receives a state and a message. The turn returns the messages that it has sent, its answer and the new state.

The host owns the agents' states, and this process holds no state that cannot be rebuilt. An agent's object is reused if the next turn
begins with the state that the agent's last turn in this process left. Otherwise, the factory creates a new object, and the state is loaded
into it. Factories, subscriptions, serializers and intervention handlers are registered as in AutoGen's runtime, and registration raises the
same errors (`ProgramRegistry`).

After a failure, a handler that has awaited a reply is rerun up to the point where it was waiting, and must make the same calls again.
Within a turn, `random` and `uuid.uuid4` therefore use a generator that belongs to this turn alone. Outside of turns, `random` and
`uuid.uuid4` work as usual. `numpy`, `secrets` and clocks are never changed.
"""

import asyncio
import functools
import inspect
import logging
import random
import traceback
import uuid
import warnings
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

from autogen_core import AgentId, AgentInstantiationContext, CancellationToken, DropMessage, MessageContext, TopicId
from autogen_core._message_handler_context import MessageHandlerContext
from autogen_core._runtime_impl_helpers import SubscriptionManager
from autogen_core._serialization import SerializationRegistry
from autogen_core.exceptions import MessageDroppedException

from snapline.adapters.autogen.inside.live_turn import LiveTurn
from snapline.adapters.autogen.inside.value_encoding import (
    AgentStateCodec,
    EncodedValue,
    decode_encoded_value,
    encode_autogen_message,
    encode_handler_error,
)
from snapline.adapters.autogen.pipe_protocol import read_frame, to_bytes

drawing: ContextVar[random.Random | None] = ContextVar("snapline-turn-chance", default=None)
"""Random generator of the current turn. None outside of turns."""

_replaced: list[bool] = []


def replace_sources() -> None:
    """Patch `uuid.uuid4` and the functions of `random` so that they use the current turn's random generator.

    Call this function before the program is imported, because the program may import the patched functions by name.
    """
    if _replaced:
        return
    _replaced.append(True)
    for name in random.__all__:
        function = getattr(random, name)
        if isinstance(getattr(function, "__self__", None), random.Random):
            setattr(random, name, _of_turn(name, function))
    drawn_by_chance = uuid.uuid4

    def uuid4() -> uuid.UUID:
        source = drawing.get()
        return drawn_by_chance() if source is None else uuid.UUID(bytes=source.randbytes(16), version=4)

    uuid.uuid4 = uuid4


def _of_turn(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        source = drawing.get()
        return (original if source is None else getattr(source, name))(*args, **kwargs)

    draw.__name__, draw.__doc__ = name, original.__doc__
    return draw


logger = logging.getLogger("autogen_core")

Factory = Callable[..., Any | Awaitable[Any]]


class ProgramRegistry:
    """The factories, subscriptions, serializers and intervention handlers that a program has registered. The registrations are the same in
    every process that runs the program.

    Attributes:
        serializers, subscriptions: AutoGen's own objects.
    """

    def __init__(self, interventions: Sequence[Any] = ()) -> None:
        self.serializers = SerializationRegistry()
        self.subscriptions = SubscriptionManager()
        self._interventions = tuple(interventions)
        self._factories: dict[str, Factory] = {}
        self._instance_types: dict[str, type[Any]] = {}

    def add_factory(self, kind: str, factory: Factory, expected: type[Any] | None) -> None:
        """Add a factory. Raise ValueError if the agent type is already registered."""
        if kind in self._factories:
            raise ValueError(f"agent type {kind!r} is registered already: choose another name")

        async def checked(*arguments: Any) -> Any:
            made = factory(*arguments)
            made = await made if inspect.isawaitable(made) else made
            if expected is not None and not issubclass(type(made), expected):
                raise ValueError(
                    f"the factory of agent type {kind!r} has made a {type(made).__name__}, and was registered for {expected.__name__}"
                )
            return made

        checked.__signature__ = inspect.signature(factory)  # type: ignore[attr-defined]  # tells how many arguments the factory takes
        self._factories[kind] = checked

    def add_instance(self, kind: str, made: Any) -> None:
        """Register the type of an agent that was created without a factory. Raise ValueError if the type has a factory, or objects of a
        different class."""
        if kind not in self._factories:
            self._factories[kind] = _no_factory
            self._instance_types[kind] = type(made)
        elif kind not in self._instance_types:
            raise ValueError(f"agent type {kind!r} has a factory: register this object under another type")
        elif self._instance_types[kind] is not type(made):
            raise ValueError(
                f"objects of agent type {kind!r} are of class {self._instance_types[kind].__name__}, and this one is a {type(made).__name__}"
            )

    def knows(self, agent: AgentId) -> bool:
        """Return whether the agent's type is registered."""
        return agent.type in self._factories

    async def make(self, agent: AgentId, runtime: Any) -> Any:
        """Create an object for this agent. Raise LookupError if the agent's type is not registered, and any error that the factory
        raises."""
        if agent.type not in self._factories:
            raise LookupError(f"no agent type {agent.type!r} is registered")
        factory = self._factories[agent.type]
        takes = len(inspect.signature(factory).parameters)
        with AgentInstantiationContext.populate_context((runtime, agent)):
            try:
                if takes not in (0, 2):
                    raise ValueError(
                        f"the factory of agent type {agent.type!r} takes {takes} arguments: let it take none"
                    )
                if takes == 2:
                    warnings.warn(
                        f"the factory of agent type {agent.type!r} takes two arguments: let it take none, AutoGen will not give them much longer",
                        stacklevel=2,
                    )
                return await factory(*((runtime, agent) if takes else ()))
            except BaseException:
                logger.exception("Error constructing agent %s", agent)
                raise

    async def subscribers(self, topic: TopicId, sender: AgentId | None) -> list[AgentId]:
        """Return the agents that are subscribed to the topic, except for the publisher."""
        subscribed = await self.subscriptions.get_subscribed_recipients(topic)
        return [agent for agent in subscribed if agent != sender]

    # -- intervention handlers: each may change a message, or drop it --------------------------------------------------

    async def sent(self, message: Any, context: MessageContext, recipient: AgentId) -> Any:
        """Pass an outgoing message through the intervention handlers before it is sent. Raise MessageDroppedException if a handler drops
        the message, and any error that a handler raises."""
        for intervention in self._interventions:
            message = _passed(
                await intervention.on_send(message, message_context=context, recipient=recipient), "on_send"
            )
        return message

    async def published(self, message: Any, context: MessageContext) -> Any:
        """Pass an outgoing message through the intervention handlers before it is published. Raise the same errors as `sent`."""
        for intervention in self._interventions:
            message = _passed(await intervention.on_publish(message, message_context=context), "on_publish")
        return message

    async def responded(self, message: Any, sender: AgentId, recipient: AgentId | None) -> Any:
        """Pass a response through the intervention handlers before it is sent. Raise the same errors as `sent`."""
        for intervention in self._interventions:
            message = _passed(
                await intervention.on_response(message, sender=sender, recipient=recipient), "on_response"
            )
        return message


def _passed(message: Any, name: str) -> Any:
    if message is None:
        warnings.warn(
            f"an intervention handler's {name} has returned None, which goes on as the message: return what is to go on, or DropMessage",
            RuntimeWarning,
            stacklevel=3,
        )
    if message is DropMessage or isinstance(message, DropMessage):
        raise MessageDroppedException
    return message


def _no_factory() -> Any:
    raise RuntimeError(
        "a message has come for an agent whose type has objects and no factory, and this one was never given: register it, or keep its type "
        "out of the topic's subscriptions (skip_class_subscriptions)"
    )


Frame = dict[str, Any]

TEXT_CHARACTERS_MAX = 4000
"""Largest length of a traceback in characters, the same as in a dead letter."""


class AgentObject:
    """An agent's object in this process.

    Attributes:
        state: the agent's state at the end of its last turn in this process. None if the agent had no turn in this process yet, or if the
            state is unknown.
        has_no_factory: whether the object was registered as an instance instead of being created by a factory.
    """

    def __init__(self, made: Any, *, has_no_factory: bool = False) -> None:
        self.made = made
        self.has_no_factory = has_no_factory
        self.keeper = AgentStateCodec(made)
        self.state: EncodedValue | None = None


class TurnRunner:
    """Runs turns in this process. Each turn is identified by a name that its host has assigned.

    Attributes:
        raised: message id → error that the handler of the message raised, kept for callers in this process that wait for the reply. The map
            is used only if all agents are in this process.
        heard: message id → future with which a caller outside of turns waits for the answer.
        unhandled: first error raised by a turn whose reply no caller waits for.
        gate: function that is awaited at the beginning of each turn. None if there is no gate.
        tokens: message id → cancellation token of a message that this process has sent. None if agents are in several processes.
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
        """Begin a turn, and run it until it first waits or ends. Return what the turn has produced so far."""
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
        """Continue a blocked turn, either because a reply has arrived or because the host checks the turn again. Return None if this
        process has no such turn."""
        live = self._live.get(frame["turn"])
        if live is None:
            return None
        if frame["call"] >= 0:
            live[0].answered(frame["call"], frame["answer"])
        return await self._segment(frame["turn"], await live[0].go_on())

    def drop(self, frame: Frame) -> None:
        """Drop a turn that the host has undone, and discard the turn's changes to the agent's object."""
        live = self._live.pop(frame["turn"], None)
        if live is not None:
            turn, begun, agent_object = live
            turn.close()
            self._discard_object(AgentId.from_str(begun["agent"]), agent_object)

    # -- agents --------------------------------------------------------------------------------------------------------

    def add_object(self, agent: AgentId, made: Any) -> None:
        """Add an agent's object that the program has created without a factory."""
        self._objects[agent] = AgentObject(made, has_no_factory=True)

    def objects(self) -> dict[AgentId, AgentObject]:
        """Return a map from agent id to object, for all objects in this process."""
        return dict(self._objects)

    async def object_of(self, agent: AgentId) -> AgentObject:
        """Return an agent's object, creating it if necessary."""
        agent_object = self._objects.get(agent)
        if agent_object is None:
            agent_object = self._objects[agent] = AgentObject(await self._registry.make(agent, self._runtime))
        return agent_object

    async def object_with(self, agent: AgentId, state: EncodedValue | None) -> AgentObject:
        """Return the agent's object after setting it to the given state. If `state` is None, return the object in its initial state."""
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
        """Return whether a turn of the agent is in progress."""
        return any(begun["agent"] == str(agent) for _, begun, _ in self._live.values())

    def _discard_object(self, agent: AgentId, held: AgentObject) -> None:
        """Discard an object whose state is unknown. If the object was registered without a factory, keep it, and load the next state into
        it."""
        held.state = None
        if not held.has_no_factory and self._objects.get(agent) is held:
            del self._objects[agent]

    # -- one turn ------------------------------------------------------------------------------------------------------

    async def _handling(self, made: Any, frame: Frame) -> Any:
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
        return self._ended(segment if error is None else {**segment, **self._error_frame(error, begun)}, begun)

    def _ended(self, segment: Frame, begun: Frame) -> Frame:
        waiting = self.heard.get(begun["id"])
        if waiting is not None and not waiting.done() and not begun["topic"]:
            error = segment.get("error")
            waiting.set_result({"value": error or segment["answer"], "is_error": error is not None})
        return segment

    def _error_frame(self, error: BaseException, begun: Frame) -> Frame:
        if begun["topic"]:
            self.unhandled = self.unhandled or error
        elif self.tokens is not None and begun["id"] in self.tokens:
            self.raised[begun["id"]] = error
        text = "".join(traceback.format_exception(error))[-TEXT_CHARACTERS_MAX:]
        return {"error": encode_handler_error(error), "text": text}

    def _failed(self, error: BaseException, begun: Frame) -> Frame:
        """Return the final result of a failed turn, which leaves the agent's state unchanged."""
        failed = {"items": [], "is_over": True, "state": None, "answer": None, **self._error_frame(error, begun)}
        return self._ended(failed, begun)

    async def _answer(self, found: Any, begun: Frame) -> Any:
        if begun["topic"]:
            return None  # no caller waits for the answer
        sender = AgentId.from_str(begun["sender"]) if begun["sender"] else None
        return await self._registry.responded(found, AgentId.from_str(begun["agent"]), sender)


async def serve_frames(runner: TurnRunner, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve a host's requests until the host disconnects. Turns of different agents run concurrently."""
    under_way: dict[str, asyncio.Task[None]] = {}
    turns_seen: dict[str, None] = {}
    while (frame := await read_frame(reader)) is not None:
        key = frame["turn"]
        turns_seen[key] = None
        earlier = under_way.pop(key, None)
        if frame["do"] == "drop":
            if earlier is not None:
                earlier.cancel()
            runner.drop(frame)
            continue
        task = asyncio.get_running_loop().create_task(_answer(runner, frame, writer))
        under_way[key] = task
        task.add_done_callback(functools.partial(_over, under_way, key))
    for key in turns_seen:
        if key in under_way:
            under_way[key].cancel()
        runner.drop({"turn": key})


def _over(under_way: dict[str, asyncio.Task[None]], key: str, task: asyncio.Task[None]) -> None:
    if under_way.get(key) is task:
        del under_way[key]


async def _answer(runner: TurnRunner, frame: Frame, writer: asyncio.StreamWriter) -> None:
    if frame["do"] == "begin":
        segment: Frame | None = await runner.begin(frame)
    else:
        segment = await runner.go_on(frame)
    try:
        reply = to_bytes({"number": frame["number"], "segment": segment})
    except ValueError as error:
        reply = to_bytes({"number": frame["number"], "failed": str(error)})
    writer.write(reply)
    await writer.drain()
