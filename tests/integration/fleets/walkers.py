"""A walker that counts its visits from outside, and asks to go back at the unlucky one until a file tells that somebody has looked."""

import os
from pathlib import Path

import msgspec

import snapline


class Visit(snapline.Message):
    """From outside."""

    serial: int


class Visits(msgspec.Struct):
    order: list[int] = []
    reasons: list[str] = []


UNLUCKY = 5


class Walker(snapline.Agent):
    state: Visits

    @snapline.handler
    async def on_visit(self, message: Visit, ctx: snapline.Context) -> None:
        self.state.order.append(message.serial)
        if message.serial == UNLUCKY and not os.path.exists(os.environ["WALKER_LOOKED"]):
            ctx.rollback("an unlucky visit")


class Guide(snapline.Agent):
    """The same in the middle of a durable turn."""

    state: Visits

    @snapline.handler(durable=True)
    async def on_visit(self, message: Visit, ctx: snapline.Context) -> None:
        self.state.order.append(message.serial)
        is_known = await ctx.step("look", os.path.exists, os.environ["WALKER_LOOKED"], durability="checkpoint")
        if message.serial == UNLUCKY and not is_known:
            ctx.rollback("an unlucky visit")


class Scout(snapline.Agent):
    """Goes back from the middle of a durable turn to before it, once, and then takes another way."""

    state: Visits

    @snapline.handler(durable=True)
    async def on_visit(self, message: Visit, ctx: snapline.Context) -> None:
        past = await ctx.rolled_back()
        if message.serial == UNLUCKY and not past:
            await ctx.step("call", Path(os.environ["WALKER_CALLED"]).touch, durability="checkpoint")
            while not await ctx.step("look", os.path.exists, os.environ["WALKER_LOOKED"], durability="checkpoint"):
                await ctx.sleep(0.02)
            ctx.rollback("an unlucky visit", to="turn")
        self.state.order.append(message.serial if not past else -message.serial)
        self.state.reasons = [f"{x.number} {x.agent} {x.epoch} {x.reason} {x.requests[:2]}" for x in past]


def is_done(cut: snapline.Cut) -> bool:
    return cut.is_quiet and os.path.exists(os.environ["WALKER_STOP"])


def fleet(durable: str = "") -> snapline.Fleet:
    walker = {"": Walker, "yes": Guide, "scout": Scout}[durable](Visits())
    return snapline.Fleet(
        "walkers", agents={"walker": walker}, triggers=[snapline.Every(seconds=3600)], stop_when=is_done
    )
