"""Clerks that pay into tills and wait for each receipt, in turns that last for seconds. For AutoGen's environment."""

import asyncio
import random
from dataclasses import dataclass

from autogen_core import AgentId, AgentRuntime, MessageContext, RoutedAgent, message_handler

TILLS = 2


@dataclass
class Work:
    payments: int


@dataclass
class Payment:
    amount: int


@dataclass
class Receipt:
    amount: int
    number: int


class Clerk(RoutedAgent):
    def __init__(self) -> None:
        super().__init__("pays")
        self.paid = 0
        self.receipts: list[int] = []

    @message_handler
    async def on_work(self, message: Work, ctx: MessageContext) -> None:
        for _ in range(message.payments):
            till = AgentId("till", str(random.randrange(TILLS)))
            amount = random.randint(1, 9)
            receipt: Receipt = await self.send_message(Payment(amount), till)
            assert receipt.amount == amount
            self.paid += amount
            self.receipts.append(receipt.number)
            await asyncio.sleep(0.02)


class Till(RoutedAgent):
    """It is made when the first payment comes."""

    def __init__(self) -> None:
        super().__init__("is paid into")
        self.total = 0
        self.payments = 0

    @message_handler
    async def on_payment(self, message: Payment, ctx: MessageContext) -> Receipt:
        await asyncio.sleep(0.005)
        self.total += message.amount
        self.payments += 1
        return Receipt(message.amount, self.payments)


async def register(runtime: AgentRuntime) -> None:
    await Clerk.register(runtime, "clerk", Clerk)
    await Till.register(runtime, "till", Till)
