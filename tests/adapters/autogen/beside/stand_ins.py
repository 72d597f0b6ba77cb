"""Agents that AutoGen's tests ask for under this name, and that its source distribution does not have: written anew, by what the tests expect of them."""

from dataclasses import dataclass
from typing import Any

from autogen_core import (
    BaseAgent,
    DefaultTopicId,
    MessageContext,
    RoutedAgent,
    default_subscription,
    event,
    message_handler,
)


@dataclass
class MessageType: ...


@dataclass
class CascadingMessageType:
    round: int


class NoopAgent(BaseAgent):
    """Takes everything, and does nothing."""

    def __init__(self) -> None:
        super().__init__("does nothing")

    async def on_message_impl(self, message: Any, ctx: MessageContext) -> Any:
        raise NotImplementedError


class LoopbackAgent(RoutedAgent):
    """Counts, and gives back what it was given."""

    def __init__(self) -> None:
        super().__init__("gives back")
        self.num_calls = 0
        self.received_messages: list[Any] = []

    @message_handler
    async def on_new_message(self, message: MessageType, ctx: MessageContext) -> MessageType:
        self.num_calls += 1
        self.received_messages.append(message)
        return message


@default_subscription
class LoopbackAgentWithDefaultSubscription(LoopbackAgent): ...


@default_subscription
class CascadingAgent(RoutedAgent):
    """Tells all others of every message, up to a round."""

    def __init__(self, max_rounds: int) -> None:
        super().__init__("cascades")
        self.num_calls = 0
        self.max_rounds = max_rounds

    @event
    async def on_new_message(self, message: CascadingMessageType, ctx: MessageContext) -> None:
        self.num_calls += 1
        if message.round < self.max_rounds:
            await self.publish_message(CascadingMessageType(round=message.round + 1), topic_id=DefaultTopicId())
