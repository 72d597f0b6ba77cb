"""Agents that pay at a service outside: some orders stand, of some a saga gives up, and of some the turn fails; until all are settled."""

import msgspec

import snapline
from snapline.examples.payments import find, pay, undo

STANDS, CANCELLED, FAILS = range(3)
"""What becomes of an order, by its number."""


class Go(snapline.Message):
    order: int


class Books(msgspec.Struct):
    service: str
    orders: int
    receipts: dict[str, int] = {}
    cancelled: list[str] = []


class FullError(Exception):
    pass


class Payer(snapline.Agent):
    state: Books

    async def on_start(self, ctx: snapline.Context) -> None:
        for order in range(self.state.orders):
            ctx.send(ctx.agent, Go(order))

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        service, kind = self.state.service, message.order % 3
        order = f"{ctx.agent}.{message.order}"
        try:
            async with ctx.saga("order"):
                receipt = await ctx.effect(
                    "pay",
                    pay,
                    service,
                    order,
                    5,
                    key=order,
                    compensate=(undo, service, order),
                    probe=find,
                    timeout_s=1,
                    retries=(0.1,) * 20,
                )
                fee = f"{order}.fee"
                await ctx.effect("fee", pay, service, fee, 1, compensate=(undo, service, fee), probe=find, timeout_s=1)
                if kind == CANCELLED:
                    raise FullError
        except FullError:
            self.state.cancelled.append(order)
            return
        if kind == FAILS:
            raise ValueError("after all")
        self.state.receipts[order] = receipt.number


def is_over(cut: snapline.Cut) -> bool:
    """Each order has come to its end; whether what failed is undone, the runtime says."""
    ended = cut.dead_letter_count
    wanted = 0
    for state in cut.states.values():
        assert isinstance(state, Books)
        ended += len(state.receipts) + len(state.cancelled)
        wanted += state.orders
    return ended == wanted


def fleet(service: str, protocol: str = "chandy-lamport", orders: str = "6", agents: str = "3") -> snapline.Fleet:
    made: dict[str, snapline.Agent] = {f"payer-{n}": Payer(Books(service, int(orders))) for n in range(int(agents))}
    return snapline.Fleet(
        "payers",
        agents=made,
        protocol=protocol,
        triggers=[snapline.Every(seconds=0.2)],
        stop_when=is_over,
        compensation_modules=[undo.__module__],
    )
