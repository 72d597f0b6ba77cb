"""Implements AutoGen's runtime interface on top of a fleet (`SnaplineRuntime`).

A program registers its agents and subscriptions in the same way as with AutoGen's own runtime:

    async def register(runtime: AgentRuntime) -> None: await Teller.register(runtime, "teller", lambda: Teller(100))

Messages that an agent sends during a turn are collected by the turn (`live_turn.py`). A host can start a process that runs the program
(`serve_program`). The process runs turns for that host, and exits when the host exits. Alternatively, a program can use the runtime in
place of `SingleThreadedAgentRuntime`. In that case, the runtime has its own fleet (`home.py`), which receives the messages sent outside of
turns.
"""

import asyncio
import importlib
import inspect
import os
import socket
import traceback
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

from snapline.adapters.autogen.inside import live_turn, turns
from snapline.adapters.autogen.inside.home import ProgramFleet
from snapline.adapters.autogen.inside.live_turn import Item, track_tasks
from snapline.adapters.autogen.inside.turns import ProgramRegistry, TurnRunner, serve_frames
from snapline.adapters.autogen.inside.value_encoding import decode_encoded_value, encode_autogen_message
from snapline.adapters.autogen.pipe_protocol import to_bytes

POLL_PERIOD_S = 0.01
"""Time in seconds between two checks while the runtime waits for a turn to arrive or for a condition to become true."""


class SnaplineRuntime(AgentRuntime):
    """Implementation of AutoGen's runtime that runs agents on snapline's hosts.

    Attributes:
        registry: the factories, subscriptions and serializers that the program has registered.
        runner: runs the agents' turns in this process.
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
        """Create a runtime. The constructor accepts the parameters of AutoGen's own runtime. The fleet's processes are started when they
        are first needed.

        Args:
            tracer_provider: accepted but ignored, because hosts export the traces (docs/tracing.md).
            hosts: number of processes of the program's fleet.
            python: Python interpreter of snapline's environment. If `python` is empty, the value of the environment variable
                `SNAPLINE_PYTHON` is used.
        """
        self.registry = ProgramRegistry(intervention_handlers or ())
        self.runner = TurnRunner(self, self.registry)
        self._fleet: ProgramFleet | None = ProgramFleet(self.runner, hosts, python)
        self._ignores_unhandled = ignore_unhandled_exceptions
        self._is_started = False

    def serve_host(self) -> TurnRunner:
        """Configure this runtime for use in a process that a host has started.

        Such a process has no fleet of its own. Other agents' turns may run in other processes.
        """
        self._fleet = self.runner.gate = self.runner.tokens = None
        return self.runner

    # -- lifecycle -----------------------------------------------------------------------------------------------------

    @property
    def unprocessed_messages_count(self) -> int:
        """Return the number of turns that wait for `start` or `process_next`."""
        return self._home().gate.waiting

    def start(self) -> None:
        """Allow turns to begin."""
        if self._is_started:
            raise RuntimeError("the runtime runs already")
        self._is_started = True
        self._home().gate.open()

    async def process_next(self) -> None:
        """Start the next turn. If no turn is waiting, wait until one arrives."""
        self._raise_unhandled()
        await self._home().up()
        begun = self.runner.begun
        while not self._home().gate.admit_one():
            await asyncio.sleep(POLL_PERIOD_S)
        while self.runner.begun == begun:
            await asyncio.sleep(0)

    _process_next = process_next

    async def stop(self) -> None:
        """Take a snapshot and stop the fleet's processes.

        The snapshot contains the messages in transit, which are handled after the next `start`.
        """
        self._check_started()
        self._is_started = False
        self._home().gate.close()
        await self._home().down()

    async def stop_when_idle(self) -> None:
        """Stop the runtime as soon as no work is pending."""
        self._check_started()
        await self._home().idle()
        await self.stop()
        self._raise_unhandled()

    async def stop_when(self, condition: Callable[[], bool]) -> None:
        """Stop the runtime as soon as the condition is true."""
        self._check_started()
        while not condition():
            await asyncio.sleep(POLL_PERIOD_S)
        await self.stop()

    async def close(self) -> None:
        """Stop the fleet, close the agents' objects, and delete the fleet's data."""
        if self._is_started:
            await self.stop()
        await self._home().end()
        for agent_object in self.runner.objects().values():
            await agent_object.made.close()

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
        """Send a message and return the result of its handler. Raise the handler's error if the handler fails."""
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
            raise raised or decode_encoded_value(answer["value"], self.registry.serializers)
        return decode_encoded_value(answer["value"], self.registry.serializers)

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
            "message": encode_autogen_message(message, self.registry.serializers),
            "sender": "" if context.sender is None else str(context.sender),
            "topic": "" if context.topic_id is None else str(context.topic_id),
            "id": context.message_id,
            "call": -1,
        }

    # -- registrations -------------------------------------------------------------------------------------------------

    async def register_factory(
        self,
        type: str | AgentType,
        agent_factory: Callable[[], Any | Awaitable[Any]],
        *,
        expected_class: type[Any] | None = None,
    ) -> AgentType:
        """Register a factory, as in AutoGen's own runtime."""
        kind = AgentType(type) if isinstance(type, str) else type
        self.registry.add_factory(kind.type, agent_factory, expected_class)
        return kind

    async def register_agent_instance(self, agent_instance: Any, agent_id: AgentId) -> AgentId:
        """Register an instance, as in AutoGen's own runtime."""
        if agent_id in self.runner.objects():
            raise ValueError(f"agent {agent_id} is registered already")
        self.registry.add_instance(agent_id.type, agent_instance)
        await agent_instance.bind_id_and_runtime(id=agent_id, runtime=self)
        self.runner.add_object(agent_id, agent_instance)
        return agent_id

    async def add_subscription(self, subscription: Subscription) -> None:
        """Add a subscription, as in AutoGen's own runtime. Subscriptions cannot be added during a turn, because other processes would not
        learn of them."""
        _refuse_in_turn("add_subscription")
        await self.registry.subscriptions.add_subscription(subscription)

    async def remove_subscription(self, id: str) -> None:
        """Remove a subscription, as in AutoGen's own runtime. Subscriptions cannot be removed during a turn."""
        _refuse_in_turn("remove_subscription")
        await self.registry.subscriptions.remove_subscription(id)

    def add_message_serializer(self, serializer: MessageSerializer[Any] | Sequence[MessageSerializer[Any]]) -> None:
        """Add serializers, as in AutoGen's own runtime."""
        self.registry.serializers.add_serializer(serializer)

    # -- agents --------------------------------------------------------------------------------------------------------

    async def get(self, id_or_type: Any, /, key: str = "default", *, lazy: bool = True) -> AgentId:
        """Return an agent's id, as in AutoGen's own runtime."""
        return await get_impl(id_or_type=id_or_type, key=key, lazy=lazy, instance_getter=self._object)

    async def try_get_underlying_agent_instance(self, id: AgentId, type: type[Any] = object) -> Any:
        """Return this process's object for the agent. The object has the state that it had after the agent's last turn in this process."""
        if not self.registry.knows(id):
            raise LookupError(f"no agent type {id.type!r} is registered")
        made = await self._object(id)
        if not isinstance(made, type):
            raise TypeError(f"agent {id} is a {_class(made)}, and no {type.__name__}")
        return made

    async def agent_metadata(self, agent: AgentId) -> AgentMetadata:
        """Return an agent's metadata, as in AutoGen's own runtime."""
        metadata: AgentMetadata = (await self._object(agent)).metadata
        return metadata

    async def agent_save_state(self, agent: AgentId) -> Mapping[str, Any]:
        """Return the result of `save_state` for this process's object of the agent."""
        saved: Mapping[str, Any] = await (await self._object(agent)).save_state()
        return saved

    async def agent_load_state(self, agent: AgentId, state: Mapping[str, Any]) -> None:
        """Load a state into this process's object of the agent, using the object's `load_state`."""
        await (await self._object(agent)).load_state(state)

    async def save_state(self) -> Mapping[str, Any]:
        """Return a snapshot of the fleet as JSON, including all agents and all messages in transit. The agents keep running while the
        snapshot is taken.

        Before the snapshot, the fleet receives the changes that the program has made to agents' objects outside of turns.
        """
        for agent, agent_object in self.runner.objects().items():
            if not self.runner.is_busy(agent):
                state = await agent_object.keeper.save()
                if state != agent_object.state:
                    await self._home().give(str(agent), state, agent_object.state)
                    agent_object.state = state
        saved = await self._home().save()
        return {"snapline": saved["snapshot"], "agents": saved["states"]}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the fleet's data with a saved snapshot. The snapshot's messages in transit are handled as soon as this runtime is
        started."""
        await self._home().load(state["snapline"])
        for agent, saved in state["agents"].items():
            if self.registry.knows(AgentId.from_str(agent)):
                await self.runner.fill(AgentId.from_str(agent), saved)
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


def serve_program(program: str) -> None:
    """Run turns of the program `module:function` for the host at the other end of this process's standard input and output."""
    turns.replace_sources()
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(2, 1)  # redirects the program's prints to stderr, away from the frames
    asyncio.run(_serve(program, channel))


async def _serve(program: str, channel: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=channel)
    try:
        runtime = await _load(program)
    except BaseException as error:
        # The host logs only one sentence, so print the traceback to this process's own log.
        traceback.print_exc()
        writer.write(to_bytes({"hello": f"{program} cannot be registered: {type(error).__name__}: {error}"}))
        await writer.drain()
        return
    track_tasks(asyncio.get_running_loop())
    writer.write(to_bytes({"hello": ""}))
    await serve_frames(runtime.serve_host(), reader, writer)
    os._exit(0)  # ends running handlers immediately, since without the host their turns have no effect


async def _load(program: str) -> SnaplineRuntime:
    """Run the program's registration function, and return the runtime in which the agents are registered. A registration function without
    parameters creates its own runtime and returns it."""
    module, _, name = program.partition(":")
    function = getattr(importlib.import_module(module), name)
    runtime = None if not inspect.signature(function).parameters else SnaplineRuntime()
    found = function() if runtime is None else function(runtime)
    made = await found if inspect.isawaitable(found) else found
    if not isinstance(runtime or made, SnaplineRuntime):
        raise TypeError(f"it returned a {type(made).__name__}: let it take a runtime, or return a SnaplineRuntime")
    return runtime or made
