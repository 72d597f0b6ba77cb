"""The fleet of `world.py`: agents that answer, and agents that walk through long plans."""

import msgspec

import snapline


class Paid(snapline.Message):
    """A message of about 64 bytes."""

    amount: int
    note: str


class Balance(snapline.Message):
    amount: int


class Walk(snapline.Message):
    steps: int
    durability: str = "log"


class Account(msgspec.Struct):
    amount: int = 0


def look(number: int) -> int:
    """A step that does nothing outside."""
    return number


class Till(snapline.Agent):
    state: Account

    @snapline.handler
    async def on_paid(self, message: Paid, ctx: snapline.Context) -> None:
        self.state.amount += message.amount
        ctx.reply(Balance(self.state.amount))

    @snapline.handler(durable=True)
    async def on_walk(self, message: Walk, ctx: snapline.Context) -> None:
        for number in range(message.steps):
            self.state.amount += await ctx.step("look", look, number, durability=message.durability)
        ctx.reply(Balance(self.state.amount))


def fleet(agents: str = "64", period: str = "1.0", protocol: str = "chandy-lamport") -> snapline.Fleet:
    tills = {f"till-{number}": Till(Account()) for number in range(int(agents))}
    return snapline.Fleet("tills", agents=tills, protocol=protocol, triggers=[snapline.Every(seconds=float(period))])
