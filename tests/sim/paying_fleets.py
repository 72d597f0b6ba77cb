"""Fleets whose turns pay, with stubs in place of the bank: for tests of stubs."""

import asyncio
import functools
from typing import Any

import msgspec

import snapline

ORDERS = 12
TIMEOUT_S = 3.0

PAID: dict[int, int] = {}
"""Order → how often it was charged, in the present run."""

REALLY: list[int] = []
"""Orders of which the step's own function was called."""


class Order(snapline.Message):
    number: int


class Till(msgspec.Struct):
    orders: int
    done: int = 0
    sum: int = 0
    failed: list[int] = []


def charge(order: int, amount: int) -> int:
    """What the fleet does where it is not simulated."""
    REALLY.append(order)
    return amount


def fake_charge(order: int, amount: int) -> int:
    """It counts."""
    PAID[order] = PAID.get(order, 0) + 1
    return amount


def strict_charge(order: int, amount: int) -> int:
    """It says so at once."""
    assert order not in PAID, f"order {order} is charged twice"
    return fake_charge(order, amount)


async def slow_charge(order: int, amount: int) -> int:
    await asyncio.sleep(0.25)
    await asyncio.sleep(0)
    return fake_charge(order, amount)


class Clerk(snapline.Agent):
    """Charges one order after the other, each in one plain turn."""

    state: Till

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Order(1))

    @snapline.handler
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        await self.pay(order, ctx)

    async def pay(self, order: Order, ctx: snapline.Context) -> None:
        try:
            self.state.sum += await ctx.step("charge", charge, order.number, 5, timeout_s=TIMEOUT_S)
            self.state.done += 1
        except (OSError, TimeoutError, snapline.StepFailedError):
            self.state.failed.append(order.number)
        if order.number < self.state.orders:
            ctx.send(ctx.agent, Order(order.number + 1))


class DurableClerk(Clerk):
    """The same in durable turns."""

    state: Till

    @snapline.handler(durable=True)
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        await self.pay(order, ctx)


CALL_S = 25.0
"""Longer than the simulator has a request on its way: then a probe knows of all that were made."""


class AskingClerk(Clerk):
    """Charges each order in an effect, at a bank that knows no keys and tells what it has done."""

    state: Till

    @snapline.handler(durable=True)
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        asked: dict[str, Any] = {"probe": find_charge, "timeout_s": CALL_S, "retries": (0.1, 1.0, 5.0)}
        self.state.sum += await ctx.effect("charge", charge_blindly, order.number, 5, **asked)
        self.state.done += 1
        if order.number < self.state.orders:
            ctx.send(ctx.agent, Order(order.number + 1))


def charge_blindly(order: int, amount: int, *, key: str) -> int:
    """It looks at no key."""
    return strict_charge(order, amount)


def find_charge(order: int, amount: int, *, key: str) -> int | None:
    return amount if order in PAID else None


def clerk(kind: type[Clerk], orders: int) -> Clerk:
    """A till of its own: one that a recovery to the initial states would find half used is a bug, and is found."""
    return kind(Till(orders))


def asking_shop() -> snapline.Fleet:
    def bank() -> dict[str, Any]:
        PAID.clear()
        return {"charge": charge_blindly, "charge/probe": find_charge}

    agents: dict[str, Any] = {"clerk": functools.partial(clerk, AskingClerk, 2), "other": functools.partial(Idle, 0)}
    return snapline.Fleet("shop", agents=agents, triggers=[snapline.Every(5.0)], simulate=bank)


def shop(kind: type[Clerk] = Clerk, **options: Any) -> snapline.Fleet:
    agents: dict[str, Any] = {"clerk": functools.partial(clerk, kind, ORDERS), "other": functools.partial(Idle, 0)}
    return snapline.Fleet("shop", agents=agents, triggers=[snapline.Every(0.1)], **options)


class Idle(snapline.Agent):
    """Is there, so that there are two hosts."""

    state: int


def counted() -> dict[str, Any]:
    """Stubs of one run."""
    PAID.clear()
    return {"charge": fake_charge}


def convicting() -> dict[str, Any]:
    PAID.clear()
    return {"charge": strict_charge}


def plain_shop() -> snapline.Fleet:
    return shop(simulate=convicting)
