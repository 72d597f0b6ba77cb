"""Registrations of a program: factories of agents, subscriptions, serializers, intervention handlers.

They behave as in AutoGen's runtime, and raise the same classes of errors."""

import inspect
import logging
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from autogen_core import AgentId, AgentInstantiationContext, DropMessage, MessageContext, TopicId
from autogen_core._runtime_impl_helpers import SubscriptionManager
from autogen_core._serialization import SerializationRegistry
from autogen_core.exceptions import MessageDroppedException

logger = logging.getLogger("autogen_core")

Factory = Callable[..., Any | Awaitable[Any]]


class ProgramRegistry:
    """Registrations, which are the same in every process that runs the program.

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
        """Add a factory; raise ValueError if the type has one already."""
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

        checked.__signature__ = inspect.signature(factory)  # type: ignore[attr-defined]  # how many arguments it takes
        self._factories[kind] = checked

    def add_instance(self, kind: str, made: Any) -> None:
        """Add an agent without a factory. Raise ValueError if its type is in use."""
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
        """Create an object of this agent. Raises LookupError if its type is not registered, and the errors of its factory."""
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
        """Return the agents subscribed to the topic, except the publisher."""
        subscribed = await self.subscriptions.get_subscribed_recipients(topic)
        return [agent for agent in subscribed if agent != sender]

    # -- intervention handlers: each may change a message, or drop it --------------------------------------------------

    async def sent(self, message: Any, context: MessageContext, recipient: AgentId) -> Any:
        """Pass a message to be sent through the handlers. Raises MessageDroppedException, and the errors of the handlers."""
        for intervention in self._interventions:
            message = _passed(
                await intervention.on_send(message, message_context=context, recipient=recipient), "on_send"
            )
        return message

    async def published(self, message: Any, context: MessageContext) -> Any:
        """Pass a message to be published through the handlers. Raises as `sent`."""
        for intervention in self._interventions:
            message = _passed(await intervention.on_publish(message, message_context=context), "on_publish")
        return message

    async def responded(self, message: Any, sender: AgentId, recipient: AgentId | None) -> Any:
        """Pass a response through the handlers. Raises as `sent`."""
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
