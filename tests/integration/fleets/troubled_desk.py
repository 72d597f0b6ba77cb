"""The order desk, a trip service whose bookings know no keys, and an agent that blocks its host or kills its process when asked to."""

import os
import time
from pathlib import Path

import msgspec

import snapline
from snapline.examples import order_desk

BOOKED = ("flight", "hotel")


class Trip(snapline.Message):
    id: str


class Travelled(snapline.Message):
    id: str
    lines: list[int]


class Block(snapline.Message):
    seconds: float


class Poison(snapline.Message):
    serial: int


class Trips(msgspec.Struct):
    """`book`: the file in which all bookings stand, a line each. `done`: trip → its lines."""

    book: str
    done: dict[str, list[int]] = {}


def reserve(book: str, what: str, *, key: str) -> int:
    """Said twice it is done twice: the service knows no keys. Slow before and after, where kills hurt."""
    time.sleep(0.02)
    with open(book, "ab") as file:
        file.write(f"{what}\n".encode())
    time.sleep(0.02)
    return len(lines(book))


def find_line(book: str, what: str, *, key: str) -> int | None:
    """Whether there is such a booking: asked of one that is in doubt."""
    return next((number for number, line in enumerate(lines(book), 1) if line == what), None)


def lines(book: str) -> list[str]:
    """What was booked so far."""
    path = Path(book)
    return path.read_text().splitlines() if path.exists() else []


class Travels(snapline.Agent):
    state: Trips

    @snapline.handler(durable=True, public=True)
    async def on_trip(self, message: Trip, ctx: snapline.Context) -> None:
        book, found = self.state.book, []
        for kind in BOOKED:
            what = f"{kind}-{message.id}"
            found.append(await ctx.effect(kind, reserve, book, what, key=what, probe=find_line, timeout_s=2.0))
        self.state.done[message.id] = found
        ctx.reply(Travelled(message.id, found))


class Trouble(snapline.Agent):
    state: int

    @snapline.handler
    async def on_block(self, message: Block, ctx: snapline.Context) -> None:
        time.sleep(message.seconds)  # noqa: ASYNC251  # that is what this is about
        self.state += 1

    @snapline.handler
    async def on_poison(self, message: Poison, ctx: snapline.Context) -> None:
        os._exit(1)


def fleet(book: str = "", **desk: str) -> snapline.Fleet:
    """`book`: where trips are booked; the rest as for the order desk."""
    plain = order_desk.fleet(**desk)
    return snapline.Fleet(
        "troubled-desk",
        agents={
            **plain.agents,
            "travels-0": Travels(Trips(book)),
            "travels-1": Travels(Trips(book)),
            "trouble": Trouble(0),
        },
        protocol=plain.protocol,
        triggers=plain.triggers,
    )
