"""The fleet of `world.py` and `local.py`: agents that answer, walk through long plans, and call an effect."""

import time

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


class Act(snapline.Message):
    """A request for an effect, which is answered with `Acted`."""


class Acted(snapline.Message):
    """Time from the turn's request to the call of the effect."""

    waited_ns: int


class Account(msgspec.Struct):
    amount: int = 0


def look(number: int) -> int:
    """A step that does nothing outside."""
    return number


def act(asked_ns: int, key: str) -> int:
    """An effect that does nothing outside; returns how long it has waited for its call."""
    return time.time_ns() - asked_ns


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

    @snapline.handler(durable=True)
    async def on_act(self, message: Act, ctx: snapline.Context) -> None:
        ctx.reply(Acted(await ctx.effect("act", act, ctx.now())))


def fleet(
    agents: str = "64", period: str = "1.0", protocol: str = "chandy-lamport", recovery: str = "global"
) -> snapline.Fleet:
    return snapline.Fleet(
        "tills",
        agents={f"till-{number}": Till(Account()) for number in range(int(agents))},
        protocol=protocol,
        triggers=[snapline.Every(seconds=float(period))],
        recovery=recovery,
    )
