"""A walker that counts its visits from outside, and asks to go back at the unlucky one until a file tells that somebody has looked."""

import os

import msgspec

import snapline


class Visit(snapline.Message):
    """From outside."""

    serial: int


class Visits(msgspec.Struct):
    order: list[int] = []


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


def is_done(cut: snapline.Cut) -> bool:
    return cut.is_quiet and os.path.exists(os.environ["WALKER_STOP"])


def fleet(durable: str = "") -> snapline.Fleet:
    walker = Guide(Visits()) if durable else Walker(Visits())
    return snapline.Fleet(
        "walkers", agents={"walker": walker}, triggers=[snapline.Every(seconds=3600)], stop_when=is_done
    )
