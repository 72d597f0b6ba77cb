"""A user's fleet that does nothing until somebody gives it inputs, sound and wrong, and inputs for it."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec

import snapline

CHARGED: dict[int, int] = {}
"""Order → how often it was charged, in the present run."""


KEYS: dict[int, str] = {}
"""Order → the key under which it was charged."""


TOTAL = 0


class Order(snapline.Message):
    number: int
    amount: int = 5


class Receipt(snapline.Message):
    number: int


class Till(msgspec.Struct):
    taken: list[int] = []


def charge(number: int) -> int:
    """What the fleet does where it is not simulated."""
    raise AssertionError("the simulation calls the stub")


def strict_charge(number: int) -> int:
    assert number not in CHARGED, f"order {number} is charged twice"
    CHARGED[number] = 1
    return number


def charge_once(number: int, *, key: str) -> int:
    """What knows its keys: the same key again is the same charge."""
    assert KEYS.setdefault(number, key) == key, f"order {number} is charged under two keys"
    return number


def ship(number: int) -> int:
    """Every fifth order is not there."""
    if number % 5 == 0:
        raise LookupError(f"nothing is there for order {number}")
    return number


def bank() -> dict[str, Any]:
    """Stubs of one run."""
    CHARGED.clear()
    KEYS.clear()
    return {"charge": strict_charge, "pay": charge_once, "ship": ship, "reserve": int, "look": int}


class Clerk(snapline.Agent):
    """Charges in a plain turn: a crash after the charge and before the next snapshot gives it the order again."""

    state: Till

    @snapline.handler
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        await self.take(order, ctx)

    async def take(self, order: Order, ctx: snapline.Context) -> None:
        await ctx.step("charge", charge, order.number)
        self.state.taken.append(order.number)
        ctx.emit("receipts", Receipt(order.number))
        ctx.reply(Receipt(order.number))


class DurableClerk(snapline.Agent):
    """Charges by an effect in a durable turn, at a bank that knows its keys."""

    state: Till

    @snapline.handler(durable=True)
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        await ctx.effect("pay", charge_once, order.number, timeout_s=5.0, retries=(0.1, 1.0, 5.0))
        self.state.taken.append(order.number)
        ctx.emit("receipts", Receipt(order.number))
        ctx.reply(Receipt(order.number))


class ForgetfulClerk(snapline.Agent):
    """Charges, and gives nothing back where the order cannot be shipped."""

    state: Till

    @snapline.handler(durable=True)
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        await ctx.effect("pay", charge_once, order.number, timeout_s=5.0, retries=(0.1, 1.0, 5.0))
        try:
            await ctx.step("ship", ship, order.number)
        except snapline.StepFailedError:
            return
        self.state.taken.append(order.number)


class RandomClerk(snapline.Agent):
    """Throws dice of its own on what to do."""

    state: Till

    @snapline.handler(durable=True)
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        if random.random() < 0.5:
            await ctx.step("reserve", int, order.number)
        await ctx.step("look", int, order.number)
        self.state.taken.append(order.number)


class TotallingClerk(snapline.Agent):
    """Counts orders where no checkpoint sees it."""

    state: Till

    @snapline.handler
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        global TOTAL
        TOTAL += 1
        self.state.taken.append(TOTAL)


class Counter(snapline.Agent):
    """Takes orders, and pays nobody."""

    state: Till

    @snapline.handler
    async def on_order(self, order: Order, ctx: snapline.Context) -> None:
        self.state.taken.append(order.number)
        ctx.emit("receipts", Receipt(order.number))
        ctx.reply(Receipt(order.number))


def shop(kind: type[snapline.Agent]) -> snapline.Fleet:
    agents: dict[str, Any] = {name: kind(Till()) for name in ("clerk1", "clerk2")}
    return snapline.Fleet("shop", agents=agents, triggers=[snapline.Every(0.3)], simulate=bank)


def careless() -> snapline.Fleet:
    return shop(Clerk)


def durable() -> snapline.Fleet:
    return shop(DurableClerk)


def forgetful() -> snapline.Fleet:
    return shop(ForgetfulClerk)


def random_clerks() -> snapline.Fleet:
    return shop(RandomClerk)


def totalling() -> snapline.Fleet:
    return shop(TotallingClerk)


def counting() -> snapline.Fleet:
    return shop(Counter)


ORDERS = [("clerk1" if number % 2 else "clerk2", Order(number)) for number in range(1, 21)]
"""Inputs as a list."""

SAME = [("clerk1", Order(1)), ("clerk1", Order(1)), ("clerk2", ("Order", {"number": 1}))]
"""Two of them have the same bytes, and another key."""

WRONG = [("clerk1", Receipt(1)), ("nobody", Order(2)), ("clerk2", Order(3))]


def drawn(chance: random.Random) -> Iterator[tuple[str, Any]]:
    """Inputs as a function."""
    for number in range(1, chance.randint(5, 15)):
        yield chance.choice(["clerk1", "clerk2"]), Order(number, amount=chance.randrange(100))


def endless() -> Iterator[tuple[str, Any]]:
    number = 0
    while True:
        number += 1
        yield "clerk1", Order(number)


def raising() -> Iterator[tuple[str, Any]]:
    yield "clerk1", Order(1)
    raise ValueError("no more orders")


def once_each(cut: snapline.Cut) -> None:
    """An invariant."""
    for state in cut.states.values():
        assert isinstance(state, Till) and len(set(state.taken)) == len(state.taken)


def all_taken(states: Any) -> bool:
    return sorted([number for state in states.values() for number in state.taken]) == list(range(1, 21))


def only_what_is_taken_is_paid(states: Any) -> str:
    taken = {number for state in states.values() for number in state.taken}
    wrong = [number for number in KEYS if number not in taken]
    return f"order {wrong[0]} is charged, and neither shipped nor refunded" if wrong else ""
