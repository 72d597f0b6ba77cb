"""The bank, slowed down by timers, until a file tells it to stop; with one agent that holds every epoch open for a while.

Each agent counts what it does, so that every cut can be checked agent by agent, not only in its sum (`cuts.py`).
"""

import asyncio
import functools
import os
import time

import msgspec

import snapline
from snapline.examples.bank import Account, Tokens

THOUGHT_S = 0.12
"""Longer than it takes until the next transfer comes to it: some wait in its mailbox nearly always, for a cut to find."""


class Due(snapline.Message):
    """To itself, by a timer: pass something on."""


class Nap(snapline.Message):
    """To itself, by a timer: sleep again."""


class Purse(Account):
    """`handled` messages consumed, `passed` messages sent, `kept` transfers that ended here once there was the file."""

    stop: str
    delay_s: float
    handled: int = 0
    passed: int = 0
    kept: int = 0


class PacedTeller(snapline.Agent):
    """Answers each transfer with one of its own, a little later."""

    state: Purse

    async def on_start(self, ctx: snapline.Context) -> None:
        for line in range(self.state.lines):
            ctx.set_timer(f"start-{line}", self.state.delay_s, Due())

    @snapline.handler
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        self.state.balance += message.amount
        self.state.handled += 1
        ctx.set_timer(f"due-{self.state.handled}", self.state.delay_s, Due())

    @snapline.handler
    async def on_due(self, message: Due, ctx: snapline.Context) -> None:
        if os.path.exists(self.state.stop):
            self.state.kept += 1
            return
        amount = int(ctx.random() * (self.state.balance + 1))
        self.state.balance -= amount
        self.state.passed += 1
        ctx.send(self.state.others[int(ctx.random() * len(self.state.others))], Tokens(amount=amount))


class SlowTeller(PacedTeller):
    """Thinks about each transfer, so that others wait in its mailbox: that is where most messages in transit are."""

    @snapline.handler
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        await ctx.step("think", functools.partial(asyncio.sleep, THOUGHT_S))
        await super().on_tokens(message, ctx)


class Pillow(msgspec.Struct):
    """How long a nap takes, and how many there were."""

    nap_s: float
    stop: str
    naps: int = 0


class Sleeper(snapline.Agent):
    """Is nearly always in a turn, so an epoch stays open until that ends."""

    state: Pillow

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("nap", 0.0, Nap())

    @snapline.handler
    async def on_nap(self, message: Nap, ctx: snapline.Context) -> None:
        await ctx.step("sleep", functools.partial(time.sleep, self.state.nap_s))
        self.state.naps += 1
        if not os.path.exists(self.state.stop):
            ctx.set_timer("nap", 0.0, Nap())


def fleet(
    stop: str,
    agents: str = "9",
    tokens: str = "50",
    lines: str = "2",
    delay: str = "0.1",
    period: str = "0.2",
    nap: str = "0",
    protocol: str = "chandy-lamport",
    rpo: str = "",
    rto: str = "",
    recovery: str = "global",
) -> snapline.Fleet:
    """`agents` with `tokens` each until there is a file `stop`; `nap` above 0 adds the sleeper; `period` 0: by hand."""
    names = [f"teller-{index}" for index in range(int(agents))]
    made: dict[str, snapline.Agent] = {}
    for name in names:
        others = [other for other in names if other != name]
        kind = PacedTeller if made else SlowTeller
        made[name] = kind(Purse(others, int(tokens), -1, int(lines), stop, float(delay)))
    if float(nap):
        made["sleeper"] = Sleeper(Pillow(float(nap), stop))
    triggers = [snapline.Every(seconds=float(period))] if float(period) else []
    return snapline.Fleet(
        "paced-bank",
        agents=made,
        protocol=protocol,
        triggers=triggers,
        stop_when=lambda cut: cut.is_quiet,
        rpo_s=float(rpo) if rpo else None,
        rto_s=float(rto) if rto else None,
        recovery=recovery,
    )
