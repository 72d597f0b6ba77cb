"""A fleet that handles orders, with a planner, a ledger, workers that look up prices, and short-lived receipt agents. Money is never lost
or created.

For each order, the ledger sends the customer's money to a worker. The worker looks up the price and keeps this amount. The worker returns
the change and spawns a receipt agent that holds the fee. The receipt agent sends the fee to the ledger and stops. Some orders always fail,
and end as dead letters that contain their money. Workers sometimes fail, and their turns are then retried. In every consistent cut, the
total amount of money equals the customers' initial money. It consists of balances, tills, receipts, dead letters and messages in transit.
At the end, each order has been completed, rejected or dead-lettered exactly once.

    snapline run snapline.examples.orders:fleet --hosts 2 --arg orders=200 --arg protocol=hmnr
"""

import functools
import time
from typing import ClassVar

import msgspec

import snapline

CUSTOMERS, FEE = 16, 1

TICK_ORDERS = 4
"""Number of orders that the planner sends at each tick."""

POISON_EVERY, POISON = 29, 13
"""Every 29th order, from number 13 on, always fails."""

SLOW_EVERY = 7
"""Every order whose number is a multiple of this must have its price requested three times."""

FAILS = 0.1
"""Probability that the price service does not answer a request."""

PRINT_S = 0.05


class Tick(snapline.Message):
    """A timer message that an agent sends to itself."""


class Order(snapline.Message):
    id: int


class Job(snapline.Message):
    id: int
    amount: int


class Change(snapline.Message, tag=True):
    id: int
    amount: int


class Fee(snapline.Message, tag=True):
    id: int
    amount: int


class Money(snapline.Message):
    """A message that carries money to the ledger."""

    body: Change | Fee


class Refused(snapline.Message):
    id: int


class Done(snapline.Message):
    id: int


class Entry(snapline.Message, frozen=True):
    """An entry in the ledger's book. An entry records that an order's money was paid out or that the order's change was returned."""

    id: int
    amount: int


class Plan(msgspec.Struct):
    """State of the planner. `done` counts how often each order was reported as completed. `pause_s` is the number of seconds between two
    ticks."""

    orders: int
    pause_s: float
    planned: int = 0
    done: dict[int, int] = {}
    refused: list[int] = []


class Accounts(msgspec.Struct):
    balances: list[int]
    entries: snapline.History[Entry]
    workers: int
    receipts: int = 0


class Till(msgspec.Struct):
    """State of a worker. `wait_s` is the simulated response time of the price service in seconds; it applies only on real hosts."""

    wait_s: float
    money: int = 0
    handled: list[int] = []


class Paper(msgspec.Struct):
    id: int
    money: int


class Planner(snapline.Agent):
    """An agent that sends a few orders at each tick and receives their outcomes."""

    state: Plan

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("tick", self.state.pause_s, Tick())

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        state = self.state
        until = min(state.planned + TICK_ORDERS, state.orders)
        for order in range(state.planned, until):
            ctx.send("ledger", Order(order))
        state.planned = until
        if until < state.orders:
            ctx.set_timer("tick", state.pause_s, Tick())

    @snapline.handler
    async def on_done(self, message: Done, ctx: snapline.Context) -> None:
        self.state.done[message.id] = self.state.done.get(message.id, 0) + 1

    @snapline.handler
    async def on_refused(self, message: Refused, ctx: snapline.Context) -> None:
        self.state.refused.append(message.id)


class Ledger(snapline.Agent):
    """An agent that holds the customers' money."""

    state: Accounts

    @snapline.handler
    async def on_order(self, message: Order, ctx: snapline.Context) -> None:
        state, amount = self.state, amount_of(message.id)
        if state.balances[customer_of(message.id)] < amount:
            ctx.send("planner", Refused(message.id))
            return
        self._enter(message.id, -amount)
        ctx.send(f"worker-{message.id % state.workers}", Job(message.id, amount))

    @snapline.handler
    async def on_money(self, message: Money, ctx: snapline.Context) -> None:
        match message.body:
            case Change(id=order, amount=amount):
                self._enter(order, amount)
            case Fee(amount=amount):
                self.state.balances[0] += amount
                self.state.receipts += 1

    def _enter(self, order: int, amount: int) -> None:
        self.state.balances[customer_of(order)] += amount
        self.state.entries.append(Entry(order, amount))


class Worker(snapline.Agent):
    """An agent that handles orders. A failed turn is undone and retried often enough that only orders that always fail become dead
    letters."""

    retries: ClassVar[int] = 5
    state: Till

    @snapline.handler
    async def on_job(self, message: Job, ctx: snapline.Context) -> None:
        state = self.state
        state.handled.append(message.id)
        if is_poison(message.id):
            raise ValueError(f"order {message.id} cannot be handled")
        price = await self._price(message, ctx)
        state.money += price - FEE
        ctx.spawn(f"receipt-{message.id}", Printer(Paper(message.id, FEE)))
        ctx.send("ledger", Money(Change(message.id, message.amount - price)))
        ctx.send("planner", Done(message.id))

    async def _price(self, message: Job, ctx: snapline.Context) -> int:
        times = 3 if message.id % SLOW_EVERY == 0 else 1
        ask = functools.partial(price_of, message.id, message.amount, self.state.wait_s)
        prices = [await ctx.step(f"price {time_}", ask) for time_ in range(times)]
        if ctx.random() < FAILS:
            raise ConnectionError("the price service did not answer")
        return prices[-1]


class Printer(snapline.Agent):
    """An agent that represents a receipt. The agent sends the fee to the ledger and stops."""

    state: Paper

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("print", PRINT_S, Tick())

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        ctx.send("ledger", Money(Fee(self.state.id, self.state.money)))
        self.state.money = 0
        ctx.stop()


def start_of(orders: int) -> int:
    """Return each customer's initial balance, which is slightly too small for this number of orders."""
    return 100 + 40 * orders // CUSTOMERS


def customer_of(order: int) -> int:
    """Return the number of the customer who placed an order."""
    return order * 7919 % CUSTOMERS


def amount_of(order: int) -> int:
    """Return the largest amount that the customer is willing to pay for an order."""
    return 10 + order * 37 % 90


def is_poison(order: int) -> bool:
    """Return whether the order always fails."""
    return order % POISON_EVERY == POISON


def price_of(order: int, amount: int, wait_s: float) -> int:
    """Return the price from the price service, which takes `wait_s` seconds to reply."""
    if wait_s:
        time.sleep(wait_s)
    return amount - order % 5


def fleet(
    protocol: str = "chandy-lamport",
    workers: str = "6",
    orders: str = "400",
    pause: str = "0.05",
    wait: str = "0",
    period: str = "0.3",
) -> snapline.Fleet:
    """Return the fleet. `pause` is the number of seconds between two ticks of the planner. `wait` is the response time of the price service
    in seconds."""
    ledger = Accounts([start_of(int(orders))] * CUSTOMERS, snapline.History[Entry](), int(workers))
    agents: dict[str, snapline.Agent] = {"planner": Planner(Plan(int(orders), float(pause))), "ledger": Ledger(ledger)}
    agents |= {f"worker-{index}": Worker(Till(float(wait))) for index in range(int(workers))}
    return snapline.Fleet(
        "orders",
        agents=agents,
        protocol=protocol,
        triggers=[snapline.Every(seconds=float(period))],
        stop_when=lambda cut: cut.is_quiet,
    )
