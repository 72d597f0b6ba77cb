"""An agent whose turn runs steps and calls at the same time; each step says outside when it begins and when it ends."""

import asyncio
import time
from pathlib import Path

import msgspec

import snapline

CALLS = 2
SIZE, WAITING = 16, 1
"""The step `WAITING` ends only when the test says so, and all others meanwhile."""


class Seen(msgspec.Struct):
    notes: str
    results: list[int] = []
    totals: list[int] = []


class Ask(snapline.Message):
    pass


class Sum(snapline.Message):
    numbers: list[int]


class Total(snapline.Message):
    value: int


def note(notes: str, text: str) -> None:
    with open(notes, "a") as file:
        file.write(f"{text}\n")


async def look(notes: str, number: int) -> int:
    note(notes, f"begin {number}")
    while number == WAITING and not Path(f"{notes}.go").exists():
        await asyncio.sleep(0.01)
    note(notes, f"end {number}")
    return number


def read(notes: str, number: int) -> int:
    """A step in a thread."""
    note(notes, f"begin {number}")
    time.sleep(0.01)
    note(notes, f"end {number}")
    return number


class Reader(snapline.Agent):
    state: Seen

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Ask())

    @snapline.handler(durable=True)
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        notes = self.state.notes
        steps = [ctx.step(f"step {n}", look if n % 2 else read, notes, n) for n in range(SIZE)]
        calls = [ctx.call("adder", Sum([n, 10]), Total) for n in range(CALLS)]
        *results, first, second, _ = await ctx.gather(*steps, *calls, ctx.sleep(0.01))
        self.state.results, self.state.totals = results, [first.value, second.value]


class Adder(snapline.Agent):
    """An agent that answers calls."""

    state: Seen

    @snapline.handler
    async def on_sum(self, message: Sum, ctx: snapline.Context) -> None:
        self.state.results.append(sum(message.numbers))
        ctx.reply(Total(sum(message.numbers)))


def beat(notes: str) -> int:
    """A step in a thread that ends only when it is cancelled."""
    note(notes, "begin beat")
    try:
        while True:
            snapline.heartbeat()
            time.sleep(0.01)
    except snapline.StepCancelledError:
        note(notes, "cancelled")
        raise


class Racer(snapline.Agent):
    """An agent whose steps race: what comes first must stay first."""

    state: Seen

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Ask())

    @snapline.handler(durable=True)
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        notes = self.state.notes
        raced = await ctx.race(ctx.step("beat", beat, notes), ctx.step("read", read, notes, 7), ctx.sleep(3600))
        number = await ctx.step("wait", look, notes, WAITING)
        self.state.results = [*raced, number]


def has_raced(cut: snapline.Cut) -> bool:
    state = cut.states["racer"]
    return isinstance(state, Seen) and bool(state.results)


def races(notes: str, recovery: str = "global") -> snapline.Fleet:
    return snapline.Fleet(
        "races",
        agents={"racer": lambda: Racer(Seen(notes))},
        triggers=[snapline.Every(seconds=0.2)],
        stop_when=has_raced,
        recovery=recovery,
    )


PAID = ("seat", "hotel", "car")


async def pay(notes: str, what: str, *, key: str) -> str:
    """A payment that its service repeats under the same key without harm. The hotel's answer comes when the test says so."""
    note(notes, f"call {what} {key}")
    while what == "hotel" and not Path(f"{notes}.go").exists():
        await asyncio.sleep(0.01)
    return f"{what} paid"


def refund(notes: str, what: str, *, key: str) -> None:
    note(notes, f"undo {what} {key}")


class Booker(snapline.Agent):
    """An agent that pays three times at once, and gives up one trip of two behind that."""

    state: Seen

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Ask())

    @snapline.handler(durable=True)
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        notes = self.state.notes
        try:
            async with ctx.saga("trip"):
                paid = await ctx.gather(
                    *[ctx.effect(x, pay, notes, x, key=f"k-{x}", compensate=(refund, notes, x)) for x in PAID]
                )
                raise LookupError(", ".join(paid))
        except LookupError as error:
            self.state.results = [1] * (str(error) == "seat paid, hotel paid, car paid")


def has_booked(cut: snapline.Cut) -> bool:
    state = cut.states["booker"]
    return isinstance(state, Seen) and bool(state.results)


def bookings(notes: str, recovery: str = "global") -> snapline.Fleet:
    return snapline.Fleet(
        "bookings",
        agents={"booker": lambda: Booker(Seen(notes))},
        triggers=[snapline.Every(seconds=0.2)],
        stop_when=has_booked,
        recovery=recovery,
    )


def is_over(cut: snapline.Cut) -> bool:
    state = cut.states["reader"]
    assert isinstance(state, Seen)
    return len(state.results) == SIZE


def fleet(notes: str, recovery: str = "global") -> snapline.Fleet:
    return snapline.Fleet(
        "groups",
        agents={"reader": lambda: Reader(Seen(notes)), "adder": lambda: Adder(Seen(notes))},
        triggers=[snapline.Every(seconds=0.2)],
        stop_when=is_over,
        recovery=recovery,
    )
