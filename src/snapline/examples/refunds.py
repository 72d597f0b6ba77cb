"""Measure how many refunds are paid twice or not at all when agents' processes crash while they call a refund tool.

Clerk agents make each refund as an effect. The effect runs only after its request is durable, and always uses the same key. The service
(`payment_service.py`) pays once per key. With `unsafe`, the clerks call the service like an ordinary tool, so a payment made just before a
crash is repeated afterwards.

The customer agents request `orders` refunds, and then the fleet ends. With `crash_every=N`, the clerk's host is killed immediately after
the first payment for every N-th order, before the outcome is recorded:

    python -m snapline.examples.payment_service payments.jsonl -- \\
      sh -c 'snapline run snapline.examples.refunds:fleet --arg service=$PAYMENTS --arg orders=40 --arg crash_every=20'

With `orders=0`, the fleet waits for requests from outside, which this program sends:

    python -m snapline.examples.refunds --data-dir DIR --orders 209
"""

import argparse
import asyncio
import contextlib
import os
import signal
from pathlib import Path

import msgspec

import snapline
from snapline.examples.payments import Receipt, pay

CLERKS = 4

CALL_S = 600.0
"""Timeout of a customer's call in seconds. The timeout is longer than any recovery."""

RETRIES_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Waiting times in seconds before the service is called again, because it may be starting."""

ASKED_AT_ONCE = 8


class Refund(snapline.Message):
    order: int
    amount: int


class Refunded(snapline.Message):
    """A positive answer to a refund request. `receipt` is the sequence number of the payment in the payment service's ledger."""

    order: int
    receipt: int


class Go(snapline.Message):
    """A message that an agent sends to itself in order to start."""


class Desk(msgspec.Struct):
    """State of a clerk. `refunded` contains the receipt for each refunded order."""

    service: str
    crash_every: int
    refunded: dict[int, int] = {}


class Wishes(msgspec.Struct):
    """State of a customer. `orders` contains the orders to refund, and `refunded` contains those already refunded."""

    orders: list[int]
    refunded: list[int] = []


def refund(service: str, order: int, amount: int, crash_every: int, *, key: str = "") -> Receipt:
    """Refund an order. The agents call this function as a tool. The tool may crash on purpose, as part of the experiment."""
    receipt = pay(service, f"order-{order}", amount, key=key)
    if crash_every and order % crash_every == 0 and receipt.is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt


class Clerk(snapline.Agent):
    """An agent that makes the requested refunds."""

    state: Desk

    @snapline.handler(durable=True)
    async def on_refund(self, message: Refund, ctx: snapline.Context) -> None:
        state, order = self.state, message.order
        arguments = (state.service, order, message.amount, state.crash_every)
        receipt = await ctx.effect("refund", refund, *arguments, key=f"refund-{order}", retries=RETRIES_S)
        state.refunded[order] = receipt.number
        ctx.reply(Refunded(order, receipt.number))


class UnsafeClerk(snapline.Agent):
    """A clerk that calls the tool directly instead of as an effect."""

    state: Desk

    @snapline.handler
    async def on_refund(self, message: Refund, ctx: snapline.Context) -> None:
        state, order = self.state, message.order
        arguments = (state.service, order, message.amount, state.crash_every)
        receipt = await ctx.step("refund", refund, *arguments, retries=RETRIES_S)
        state.refunded[order] = receipt.number
        ctx.reply(Refunded(order, receipt.number))


class Customer(snapline.Agent):
    """An agent that requests its refunds one after another."""

    state: Wishes

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Go())

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        for order in self.state.orders:
            await ctx.call(clerk_of(order), Refund(order, amount_of(order)), Refunded, timeout_s=CALL_S)
            self.state.refunded.append(order)


def clerk_of(order: int) -> str:
    return f"clerk-{order % CLERKS}"


def amount_of(order: int) -> int:
    return 1 + order * 37 % 90


def is_over(cut: snapline.Cut) -> bool:
    """Return whether all customers have received all of their refunds."""
    customers = [state for state in cut.states.values() if isinstance(state, Wishes)]
    return cut.is_quiet and all(customer.refunded == customer.orders for customer in customers)


def fleet(
    service: str = "",
    orders: str = "0",
    crash_every: str = "0",
    unsafe: str = "no",
    period: str = "0.2",
    protocol: str = "chandy-lamport",
) -> snapline.Fleet:
    """Return the fleet. `service` is the URL of the payment service. If `orders` is 0, the requests come from outside the fleet. If
    `unsafe` is "yes", the clerks call the tool without effects."""
    asked = int(orders)
    desk, kind = Desk(service, int(crash_every)), UnsafeClerk if unsafe == "yes" else Clerk
    agents: dict[str, snapline.Agent] = {f"clerk-{number}": kind(desk) for number in range(CLERKS)}
    if asked:
        agents |= {f"customer-{n}": Customer(Wishes(list(range(n + 1, asked + 1, CLERKS)))) for n in range(CLERKS)}
    return snapline.Fleet(
        "refunds",
        agents=agents,
        protocol=protocol,
        triggers=[snapline.Every(seconds=float(period))],
        stop_when=is_over if asked else None,
    )


async def ask_for_all(data_dir: Path, orders: int) -> int:
    """Request the refund of each order from outside the fleet. Repeat each request until it is answered. Return the number of refunds.

    The program may be killed and restarted, because a repeated request has the same key.
    """
    at_once = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(client: snapline.Client, order: int) -> None:
        async with at_once:
            while True:
                with contextlib.suppress(
                    snapline.AnswerMissingError, snapline.UnknownOutcomeError, snapline.InputRejectedError
                ):
                    await client.ask(
                        clerk_of(order), Refund(order, amount_of(order)), f"order-{order}", reply_type=Refunded
                    )
                    return

    async with await _connected(data_dir) as client:
        await asyncio.gather(*[ask(client, order) for order in range(1, orders + 1)])
    return orders


async def _connected(data_dir: Path) -> snapline.Client:
    while True:
        with contextlib.suppress(snapline.CoordinatorUnavailableError):
            return await snapline.Client.connect(data_dir=data_dir)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ask a fleet of clerks for refunds, from outside.")
    parser.add_argument("--data-dir", type=Path, required=True, help="of the fleet")
    parser.add_argument("--orders", type=int, default=209)
    options = parser.parse_args()
    print(f"{asyncio.run(ask_for_all(options.data_dir, options.orders))} refunds answered")
