"""Clerks that cannot book an order until a file is there, and tell a ledger what they have booked; until another file tells it to stop.

A clerk's `order` lists the orders in the order in which they were booked, and the ledger lists what the clerks told it: what was booked twice shows in either.
"""

import os

import msgspec
from tests.integration.fleets.tills import Ledger, Noted, Notes, Watching, is_done

import snapline


class Ordered(snapline.Message):
    """From outside: nobody can book it before the catalogue is there."""

    serial: int


class Booked(snapline.Message):
    """What is answered."""

    serial: int


class Book(msgspec.Struct):
    stop: str
    catalogue: str
    order: list[int] = []
    is_over: bool = False


class Clerk(Watching):
    retries = 0
    state: Book

    @snapline.handler
    async def on_ordered(self, message: Ordered, ctx: snapline.Context) -> None:
        self.state.order.append(message.serial)
        if not os.path.exists(self.state.catalogue):
            raise LookupError(f"no catalogue for order {message.serial}")
        ctx.send("ledger", Noted(ctx.agent, message.serial))
        ctx.reply(Booked(message.serial))


def fleet(stop: str, catalogue: str, clerks: str = "3", protocol: str = "chandy-lamport") -> snapline.Fleet:
    agents: dict[str, snapline.Agent] = {f"clerk-{n}": Clerk(Book(stop, catalogue)) for n in range(int(clerks))}
    agents["ledger"] = Ledger(Notes(stop))
    return snapline.Fleet(
        "clerks", agents=agents, protocol=protocol, triggers=[snapline.Every(seconds=0.2)], stop_when=is_done
    )
