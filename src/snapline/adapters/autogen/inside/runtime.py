"""`SnaplineRuntime`: AutoGen's runtime whose agents are agents of a fleet.

A program registers its agents and subscriptions with it as with AutoGen's own:

    async def register(runtime: AgentRuntime) -> None:
        await Teller.register(runtime, "teller", lambda: Teller(100))

What an agent sends in a turn belongs to the turn (`live_turn.py`). Where hosts start processes that run the program (`serve.py`), that is all. Where a program uses it in place of
`SingleThreadedAgentRuntime`, it has a fleet of its own (`home.py`), to which goes what is sent from outside of turns.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from autogen_core import (
    AgentId,
    AgentMetadata,
    AgentRuntime,
    AgentType,
    CancellationToken,
    MessageContext,
    MessageSerializer,
    Subscription,
    TopicId,
)
from autogen_core._runtime_impl_helpers import get_impl

from snapline.adapters.autogen.inside import live_turn
from snapline.adapters.autogen.inside.home import ProgramFleet
from snapline.adapters.autogen.inside.keeping import keep_message, read_kept
from snapline.adapters.autogen.inside.live_turn import Item
from snapline.adapters.autogen.inside.registry import ProgramRegistry
from snapline.adapters.autogen.inside.turns import TurnRunner

NEXT_S = 0.01
"""Between two looks whether a turn has come."""


class SnaplineRuntime(AgentRuntime):
    """AutoGen's runtime on our hosts.

    Attributes:
        registry: what the program has registered.
        runner: the turns that go on in this process.
    """

    def __init__(
        self,
        *,
        intervention_handlers: Sequence[Any] | None = None,
        tracer_provider: Any = None,
        ignore_unhandled_exceptions: bool = True,
        hosts: int = 1,
        python: str = "",
    ) -> None:
        """Make a runtime as AutoGen's; nothing is started before something is sent, or `start`.

        Args:
            tracer_provider: taken and not used: hosts trace (docs/tracing.md).
            hosts: number of processes of the program's fleet.
            python: the Python of snapline's environment; "": as `SNAPLINE_PYTHON` says.
        """
        self.registry = ProgramRegistry(intervention_handlers or ())
        self.runner = TurnRunner(self, self.registry)
        self._fleet: ProgramFleet | None = ProgramFleet(self.runner, hosts, python)
        self._ignores_unhandled = ignore_unhandled_exceptions
        self._is_started = False

    def serve_host(self) -> TurnRunner:
        """Prepare a process that a host has started: it has no fleet of its own, and others run other agents' turns."""
        self._fleet = self.runner.gate = self.runner.tokens = None
        return self.runner

    # -- its life ------------------------------------------------------------------------------------------------------

    @property
    def unprocessed_messages_count(self) -> int:
        """Number of turns that wait for `start` or `process_next`."""
        return self._home().gate.waiting

    def start(self) -> None:
        """Let turns begin."""
        if self._is_started:
            raise RuntimeError("the runtime runs already")
        self._is_started = True
        self._home().gate.open()

    async def process_next(self) -> None:
        """Let one turn begin, the next that comes."""
        self._raise_unhandled()
        await self._home().up()
        begun = self.runner.begun
        while not self._home().gate.let_one():
            await asyncio.sleep(NEXT_S)
        while self.runner.begun == begun:
            await asyncio.sleep(0)

    _process_next = process_next

    async def stop(self) -> None:
        """Take a snapshot, and end the fleet's processes. Messages under way are kept: they have their turns after the next `start`."""
        self._check_started()
        self._is_started = False
        self._home().gate.close()
        await self._home().down()

    async def stop_when_idle(self) -> None:
        """The same when nothing is under way any more."""
        self._check_started()
        await self._home().idle()
        await self.stop()
        self._raise_unhandled()

    async def stop_when(self, condition: Callable[[], bool]) -> None:
        """The same when the program says so."""
        self._check_started()
        while not condition():
            await asyncio.sleep(NEXT_S)
        await self.stop()

    async def close(self) -> None:
        """Stop, close the agents' objects, and leave nothing behind."""
        if self._is_started:
            await self.stop()
        await self._home().end()
        for held in self.runner.objects().values():
            await held.made.close()

    def _check_started(self) -> None:
        if not self._is_started:
            raise RuntimeError("the runtime does not run: start() it first")

    def _raise_unhandled(self) -> None:
        error, self.runner.unhandled = self.runner.unhandled, None
        if error is not None and not self._ignores_unhandled:
            raise error

    def _home(self) -> ProgramFleet:
        if self._fleet is None:
            raise RuntimeError("a host's process sends messages of its agents' turns only: send from a message handler")
        return self._fleet

    # -- messages ------------------------------------------------------------------------------------------------------

    async def send_message(
        self,
        message: Any,
        recipient: AgentId,
        *,
        sender: AgentId | None = None,
        cancellation_token: CancellationToken | None = None,
        message_id: str | None = None,
    ) -> Any:
        """Send a message, and wait for what its handler returns; raises what that raises."""
        if not self.registry.knows(recipient):
            raise Exception(f"no agent type {recipient.type!r} is registered")  # noqa: TRY002  AutoGen's class
        token = cancellation_token or CancellationToken()
        context = _context(sender, None, token, message_id)
        message = await self.registry.sent(message, context, recipient)
        item = self._item([recipient], message, context)
        turn = live_turn.current.get()
        if self.runner.tokens is not None:
            self.runner.tokens[context.message_id] = token
        try:
            if turn is None:
                answer = await self._home().ask(item, token)
            else:
                answer = await token.link_future(turn.ask(item))
        finally:
            if self.runner.tokens is not None:
                self.runner.tokens.pop(context.message_id, None)
        raised = self.runner.raised.pop(context.message_id, None)
        if answer["is_error"]:
            raise raised or read_kept(answer["value"], self.registry.serializers)
        return read_kept(answer["value"], self.registry.serializers)

    async def publish_message(
        self,
        message: Any,
        topic_id: TopicId,
        *,
        sender: AgentId | None = None,
        cancellation_token: CancellationToken | None = None,
        message_id: str | None = None,
    ) -> None:
        """Send a message to all subscribers of a topic."""
        context = _context(sender, topic_id, cancellation_token or CancellationToken(), message_id)
        message = await self.registry.published(message, context)
        recipients = await self.registry.subscribers(topic_id, sender)
        item = self._item(recipients, message, context)
        turn = live_turn.current.get()
        if not recipients:
            return
        if turn is None:
            await self._home().send(item)
        else:
            turn.send(item)

    def _item(self, recipients: Sequence[AgentId], message: Any, context: MessageContext) -> Item:
        return {
            "to": [str(agent) for agent in recipients],
            "message": keep_message(message, self.registry.serializers),
            "sender": "" if context.sender is None else str(context.sender),
            "topic": "" if context.topic_id is None else str(context.topic_id),
            "id": context.message_id,
            "call": -1,
        }

    # -- what a program registers --------------------------------------------------------------------------------------

    async def register_factory(
        self,
        type: str | AgentType,
        agent_factory: Callable[[], Any | Awaitable[Any]],
        *,
        expected_class: type[Any] | None = None,
    ) -> AgentType:
        """Register a factory, as in AutoGen."""
        kind = AgentType(type) if isinstance(type, str) else type
        self.registry.add_factory(kind.type, agent_factory, expected_class)
        return kind

    async def register_agent_instance(self, agent_instance: Any, agent_id: AgentId) -> AgentId:
        """Register an instance, as in AutoGen."""
        if agent_id in self.runner.objects():
            raise ValueError(f"agent {agent_id} is registered already")
        self.registry.add_instance(agent_id.type, agent_instance)
        await agent_instance.bind_id_and_runtime(id=agent_id, runtime=self)
        self.runner.add_object(agent_id, agent_instance)
        return agent_id

    async def add_subscription(self, subscription: Subscription) -> None:
        """Add a subscription, as in AutoGen. Not in a turn: other processes would not know of it."""
        _refuse_in_turn("add_subscription")
        await self.registry.subscriptions.add_subscription(subscription)

    async def remove_subscription(self, id: str) -> None:
        """Remove a subscription, as in AutoGen. Not in a turn."""
        _refuse_in_turn("remove_subscription")
        await self.registry.subscriptions.remove_subscription(id)

    def add_message_serializer(self, serializer: MessageSerializer[Any] | Sequence[MessageSerializer[Any]]) -> None:
        """Add serializers, as in AutoGen."""
        self.registry.serializers.add_serializer(serializer)

    # -- agents --------------------------------------------------------------------------------------------------------

    async def get(self, id_or_type: Any, /, key: str = "default", *, lazy: bool = True) -> AgentId:
        """Return an agent's id, as in AutoGen."""
        return await get_impl(id_or_type=id_or_type, key=key, lazy=lazy, instance_getter=self._object)

    async def try_get_underlying_agent_instance(self, id: AgentId, type: type[Any] = object) -> Any:
        """Return the agent's object in this process: as of its last turn that went on here."""
        if not self.registry.knows(id):
            raise LookupError(f"no agent type {id.type!r} is registered")
        made = await self._object(id)
        if not isinstance(made, type):
            raise TypeError(f"agent {id} is a {_class(made)}, and no {type.__name__}")
        return made

    async def agent_metadata(self, agent: AgentId) -> AgentMetadata:
        """Return an agent's metadata, as in AutoGen."""
        found: AgentMetadata = (await self._object(agent)).metadata
        return found

    async def agent_save_state(self, agent: AgentId) -> Mapping[str, Any]:
        """Return an agent's saved state, as in AutoGen, of the object in this process."""
        found: Mapping[str, Any] = await (await self._object(agent)).save_state()
        return found

    async def agent_load_state(self, agent: AgentId, state: Mapping[str, Any]) -> None:
        """The same."""
        await (await self._object(agent)).load_state(state)

    async def save_state(self) -> Mapping[str, Any]:
        """Return a snapshot of the fleet: all agents, and all messages under way between them, as JSON. Agents go on meanwhile.

        What the program has changed in objects outside their turns is given to the fleet first.
        """
        for agent, held in self.runner.objects().items():
            if not self.runner.is_busy(agent):
                state = await held.keeper.save()
                if state != held.state:
                    await self._home().give(str(agent), state, held.state)
                    held.state = state
        found = await self._home().save()
        return {"snapline": found["snapshot"], "agents": found["states"]}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Become the fleet that was saved. Messages that were under way have their turns when this runtime is started."""
        await self._home().load(state["snapline"])
        for agent, kept in state["agents"].items():
            if self.registry.knows(AgentId.from_str(agent)):
                await self.runner.fill(AgentId.from_str(agent), kept)
        if self._is_started:
            await self._home().up()

    async def _object(self, agent: AgentId) -> Any:
        return (await self.runner.object_of(agent)).made


def _context(
    sender: AgentId | None, topic: TopicId | None, token: CancellationToken, message_id: str | None
) -> MessageContext:
    return MessageContext(
        sender=sender,
        topic_id=topic,
        is_rpc=topic is None,
        cancellation_token=token,
        message_id=message_id or str(uuid.uuid4()),
    )


def _refuse_in_turn(what: str) -> None:
    if live_turn.current.get() is not None:
        raise RuntimeError(f"{what} is for the program that registers agents, not for a message handler")


def _class(made: object) -> str:
    return type(made).__name__


live_turn.is_send(SnaplineRuntime.send_message)
