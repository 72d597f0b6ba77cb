"""Tills that count what they are paid from outside, by its serial number, and tell a ledger; until a file tells it to stop.

A till's state says which inputs it has consumed and how often each; the ledger counts what the tills told it, so an input that
took effect twice shows in either, also if it was undone in between.
"""

import os

import msgspec

import snapline


class Paid(snapline.Message):
    """From outside."""

    serial: int
    amount: int = 1


class Noted(snapline.Message):
    """From a till to the ledger."""

    till: str
    serial: int


class Look(snapline.Message):
    """To itself, by a timer: is there the file?"""


class Counts(msgspec.Struct):
    """`order`: the serial numbers in the order in which they were consumed."""

    stop: str
    order: list[int] = []
    is_over: bool = False


class Notes(msgspec.Struct):
    stop: str
    seen: dict[str, list[int]] = {}
    is_over: bool = False


class Watching(snapline.Agent):
    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("look", 0.02, Look())

    @snapline.handler
    async def on_look(self, message: Look, ctx: snapline.Context) -> None:
        if os.path.exists(self.state.stop):
            self.state.is_over = True
            ctx.checkpoint()  # there may be no message after this one
        else:
            ctx.set_timer("look", 0.02, Look())


class Till(Watching):
    state: Counts

    @snapline.handler(public=True)
    async def on_paid(self, message: Paid, ctx: snapline.Context) -> None:
        self.state.order.append(message.serial)
        ctx.send("ledger", Noted(ctx.agent, message.serial))


class Ledger(Watching):
    state: Notes

    @snapline.handler
    async def on_noted(self, message: Noted, ctx: snapline.Context) -> None:
        self.state.seen.setdefault(message.till, []).append(message.serial)


def is_done(cut: snapline.Cut) -> bool:
    """Everybody has seen the file, and nothing is on its way."""
    return cut.is_quiet and all(getattr(state, "is_over", False) for state in cut.states.values())


def fleet(
    stop: str, tills: str = "6", period: str = "0.2", protocol: str = "chandy-lamport", messages: str = ""
) -> snapline.Fleet:
    """`messages`: instead of by the clock, autonomous agents take checkpoints after so many."""
    agents: dict[str, snapline.Agent] = {f"till-{number}": Till(Counts(stop)) for number in range(int(tills))}
    agents["ledger"] = Ledger(Notes(stop))
    trigger = snapline.EveryMessages(int(messages)) if messages else snapline.Every(seconds=float(period))
    return snapline.Fleet("tills", agents=agents, protocol=protocol, triggers=[trigger], stop_when=is_done)
