"""Fleet of the stored formats' fixtures: tills pass tokens around until there is a file `stop`. An auditor and a treasurer are in the midst of
durable turns: the treasurer's has a long journal, a deferred message, one finished and one open effect.

The variable `TILLS_FOLDER` names the folder of these files. A fixture refers to the names and types of this module, so old ones may not change.
Add agents for what a later release stores anew.
"""

import asyncio
import functools
import os
import time
from pathlib import Path

import msgspec
import numpy as np

import snapline

TOKENS = 50
PAUSE_S = 0.1
PAY_S = 300
LEDGER_CHARACTERS = 70_000
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
    """State of a till. `lines`: what it has received, newest last. `passed`: how often it was due to pass something on."""

    to: str
    balance: int
    lines: snapline.History[int]
    passed: int = 0


class Count(snapline.Message):
    """Sent by a client, which gets `Passed` as its answer."""


class Passed(snapline.Message):
    times: int


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
        if in_folder("stop").exists():
            return
        amount = int(ctx.random() * (self.state.balance + 1))
        self.state.balance -= amount
        self.state.passed += 1
        if amount:
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

    @snapline.handler
    async def on_count(self, message: Count, ctx: snapline.Context) -> None:
        ctx.reply(Passed(self.state.passed))


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


class Settle(snapline.Message):
    """Begins the treasurer's turn."""


class Forward(snapline.Message):
    """Lets the courier send a bill and, after it, the permit."""


class Bill(snapline.Message):
    amount: int


class Permit(snapline.Message):
    """For this the treasurer waits. It defers the bill that comes before."""


class Accounts(msgspec.Struct):
    releases: list[str]
    payments: list[str]
    bills: list[int]
    totals: np.ndarray
    seal: snapline.Blob


class Courier(snapline.Agent):
    state: int

    @snapline.handler
    async def on_forward(self, message: Forward, ctx: snapline.Context) -> None:
        self.state += 1
        ctx.send("treasurer", Bill(3))
        ctx.send("treasurer", Permit())


class Treasurer(snapline.Agent):
    state: Accounts

    @snapline.handler(durable=True)
    async def on_settle(self, message: Settle, ctx: snapline.Context) -> None:
        self.state.releases = [await ctx.step("began", release)]
        await ctx.step("read ledger", ledger)
        await ctx.receive(Permit)
        self.state.payments = [
            await ctx.effect("pay", pay, number, key=f"pay-{number}", timeout_s=PAY_S) for number in (1, 2)
        ]
        self.state.releases.append(await ctx.step("ended", release))
        self.state.totals += 1

    @snapline.handler
    async def on_bill(self, message: Bill, ctx: snapline.Context) -> None:
        self.state.bills.append(message.amount)

    @snapline.handler
    async def on_permit(self, message: Permit, ctx: snapline.Context) -> None:
        """Take one that comes outside the turn."""


def ledger() -> str:
    """Return a text after which the journal is stored as a chunk; a short one for an encrypted store, whose log of steps does not compress."""
    return "0" * (1 if in_folder("store.key").exists() else LEDGER_CHARACTERS)


def pay(number: int, *, key: str) -> str:
    """Note the call in a file. The second payment ends only when there is a file `open`."""
    with in_folder("payments").open("a") as file:
        file.write(f"{key} by {release()}\n")
    end = time.monotonic() + PAY_S
    while number == 2 and not in_folder("open").exists():
        if time.monotonic() > end:
            raise TimeoutError("nobody opened the bank")
        time.sleep(PAUSE_S)
    return key


def in_folder(name: str) -> Path:
    return Path(os.environ["TILLS_FOLDER"]) / name


def release() -> str:
    """Return the name of the release that runs, for a step: a later one must read the result, and not run the step again."""
    return os.environ["TILLS_RELEASE"]


def fleet(protocol: str = "chandy-lamport", recovery: str = "global") -> snapline.Fleet:
    """Return the fleet. `protocol`: of its checkpoints. `recovery`: "global" or "local"."""
    agents: dict[str, snapline.Agent] = {
        name: (SlowTill if number else Till)(Purse(TILLS[(number + 1) % len(TILLS)], TOKENS, snapline.History()))
        for number, name in enumerate(TILLS)
    }
    return snapline.Fleet(
        "tills",
        agents={
            **agents,
            "auditor": Auditor(Findings([], [])),
            "courier": Courier(0),
            "treasurer": Treasurer(Accounts([], [], [], np.arange(6.0).reshape(2, 3), snapline.Blob(bytes(range(64))))),
        },
        protocol=protocol,
        recovery=recovery,
        triggers=[snapline.Every(seconds=3)],
        stop_when=lambda cut: cut.is_quiet,
    )


def tokens_in(snapshot: snapline.Snapshot) -> int:
    held = sum(agent.state.balance for agent in snapshot.agents.values() if isinstance(agent.state, Purse))
    return held + sum(each.message.amount for each in snapshot.in_transit if isinstance(each.message, Tokens))
