"""Fleet of the stored formats' fixtures: tills pass tokens around until a file tells them to stop, an auditor is in the midst of a durable turn.

A fixture refers to the names and types of this module, so old ones may not change. Add agents for what a later release stores anew.
"""

import asyncio
import functools
import os
from pathlib import Path

import msgspec

import snapline

TOKENS = 50
PAUSE_S = 0.1
TILLS = ("till-0", "till-1", "till-2")


class Tokens(snapline.Message):
    amount: int


class Due(snapline.Message):
    """Sent by a timer: pass something on."""


class Deposit(snapline.Message):
    """Sent by a client; a negative amount fails, and becomes a dead letter."""

    amount: int


class Balance(snapline.Message):
    amount: int


class Purse(msgspec.Struct):
    """State of a till. `lines`: what it has received, newest last."""

    to: str
    balance: int
    lines: snapline.History[int]


class Note(snapline.Message):
    """Sent to the auditor, which puts it off until its durable turn has ended."""

    amount: int


class Till(snapline.Agent):
    state: Purse

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("due", PAUSE_S, Due())

    @snapline.handler
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        self.state.balance += message.amount
        if message.amount % 5 == 0:
            self.state.lines.append(message.amount)

    @snapline.handler
    async def on_due(self, message: Due, ctx: snapline.Context) -> None:
        if Path(os.environ["TILLS_STOP"]).exists():
            return
        amount = int(ctx.random() * (self.state.balance + 1))
        self.state.balance -= amount
        ctx.send(self.state.to, Tokens(amount))
        ctx.set_timer("due", PAUSE_S, Due())

    @snapline.handler
    async def on_deposit(self, message: Deposit, ctx: snapline.Context) -> None:
        if message.amount < 0:
            raise ValueError("no such tokens")
        self.state.balance += message.amount
        ctx.emit("deposits", Balance(message.amount))
        ctx.send("auditor", Note(message.amount))
        ctx.reply(Balance(self.state.balance))


class SlowTill(Till):
    """Takes longer for a message than until the next comes, so cuts find some in transit."""

    @snapline.handler
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        await ctx.step("wait", functools.partial(asyncio.sleep, 2 * PAUSE_S))
        await super().on_tokens(message, ctx)


class Report(snapline.Message):
    """Begins a durable turn."""


class Finish(snapline.Message):
    """Ends it."""


class Findings(msgspec.Struct):
    releases: list[str]
    notes: list[int]


class Auditor(snapline.Agent):
    state: Findings

    @snapline.handler(durable=True)
    async def on_report(self, message: Report, ctx: snapline.Context) -> None:
        began = await ctx.step("began", release)
        await ctx.receive(Finish)
        self.state.releases = [began, await ctx.step("ended", release)]

    @snapline.handler
    async def on_note(self, message: Note, ctx: snapline.Context) -> None:
        self.state.notes.append(message.amount)

    @snapline.handler
    async def on_finish(self, message: Finish, ctx: snapline.Context) -> None:
        """Take one that comes too early: inputs are received only if there is a handler for their type."""


def release() -> str:
    """Return the name of the release that runs, for a step: a later one must read the result, and not run the step again."""
    return os.environ["TILLS_RELEASE"]


def fleet(protocol: str) -> snapline.Fleet:
    """Return the fleet. `protocol`: of its checkpoints."""
    agents: dict[str, snapline.Agent] = {
        name: (SlowTill if number else Till)(Purse(TILLS[(number + 1) % len(TILLS)], TOKENS, snapline.History()))
        for number, name in enumerate(TILLS)
    }
    return snapline.Fleet(
        "tills",
        agents={**agents, "auditor": Auditor(Findings([], []))},
        protocol=protocol,
        triggers=[snapline.Every(seconds=1)],
        stop_when=lambda cut: cut.is_quiet,
    )


def tokens_in(snapshot: snapline.Snapshot) -> int:
    held = sum(agent.state.balance for agent in snapshot.agents.values() if isinstance(agent.state, Purse))
    return held + sum(each.message.amount for each in snapshot.in_transit if isinstance(each.message, Tokens))
