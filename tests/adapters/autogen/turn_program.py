"""Agents for tests of turns: they wait for replies, in all the ways that a handler may. For AutoGen's environment."""

import asyncio
import os
import random
import threading
from dataclasses import dataclass

from autogen_core import (
    AgentId,
    AgentRuntime,
    MessageContext,
    RoutedAgent,
    TopicId,
    TypeSubscription,
    message_handler,
)


@dataclass
class Order:
    """What a handler is to do."""

    what: str
    number: int = 0


@dataclass
class Number:
    value: int


PEER = AgentId("peer", "0")


class Doer(RoutedAgent):
    def __init__(self) -> None:
        super().__init__("does what it is told")
        self.heard: list[int] = []
        self.lock = threading.Lock()  # pickle does not take it: made anew

    @message_handler
    async def on_order(self, message: Order, ctx: MessageContext) -> Number:
        found = await getattr(self, f"_{message.what}")(message.number)
        self.heard.append(found)
        return Number(found)

    async def _ask(self, number: int) -> int:
        return (await self.send_message(Number(number), PEER)).value

    async def _chain(self, number: int) -> int:
        """One after the other; whom it asks next is by chance."""
        total = 0
        for each in range(number):
            other = AgentId("peer", str(random.randrange(3)))
            total += (await self.send_message(Number(each), other)).value
        return total

    async def _gather(self, number: int) -> int:
        found = await asyncio.gather(*(self._ask(each) for each in range(number)))
        return sum(found)

    async def _tell(self, number: int) -> int:
        """Nobody awaits these."""
        for each in range(number):
            asyncio.create_task(self.send_message(Number(each), PEER))  # noqa: RUF006  as in AutoGen's examples
        return number

    async def _later(self, number: int) -> int:
        """A task that goes on after the handler has returned, and does something with a reply."""

        async def later() -> None:
            self.heard.append(await self._ask(number))

        asyncio.create_task(later())  # noqa: RUF006  the runtime holds it
        return 0

    async def _wait(self, number: int) -> int:
        """`asyncio.wait` does not say what it waits for."""
        done, _ = await asyncio.wait([asyncio.create_task(self._ask(each)) for each in range(number)])
        return sum(each.result() for each in done)

    async def _hurry(self, number: int) -> int:
        """A reply that does not come."""
        try:
            return (await asyncio.wait_for(self.send_message(Number(number), PEER), 0.3)).value
        except TimeoutError:
            return -1

    async def _publish(self, number: int) -> int:
        await self.publish_message(Number(number), TopicId("news", "x"))
        return number

    async def _fail(self, number: int) -> int:
        self.heard.append(number)
        raise KeyError(number)

    async def _die(self, number: int) -> int:
        """The first process that comes here ends."""
        path = os.environ["DIED"]
        if not os.path.exists(path):
            os.close(os.open(path, os.O_CREAT))
            os._exit(1)
        return number

    async def _unkeepable(self, number: int) -> int:
        self.heard.append(lambda: number)  # type: ignore[arg-type]  # the mistake
        return number


class Peer(RoutedAgent):
    """Doubles numbers, and adds up what it was asked."""

    def __init__(self) -> None:
        super().__init__("doubles")
        self.total = 0

    @message_handler
    async def on_number(self, message: Number, ctx: MessageContext) -> Number:
        self.total += message.value
        return Number(2 * message.value)


async def register(runtime: AgentRuntime) -> None:
    await Doer.register(runtime, "doer", Doer)
    await Peer.register(runtime, "peer", Peer)
    for kind in ("doer", "peer"):
        await runtime.add_subscription(TypeSubscription("news", kind))
