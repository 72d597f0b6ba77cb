"""Fleet for tests of launchers: five agents slowly pass tokens to each other without end, and count their transfers.

No token may be lost or created. Each agent must handle and answer every received message exactly once.
So every snapshot can be checked on its own (`judge` in `launcher_checks.py`).
"""

import functools

import msgspec

import snapline

AGENTS, TOKENS, LINES = 5, 100, 2
"""Number of agents, tokens that each begins with, and concurrent transfers of each agent."""

PAUSE_S = 0.02
"""Pause between a transfer and its answer, in seconds: about a hundred messages a second in all, a negligible load."""


class Transfer(snapline.Message):
    """Transfer of some tokens to another agent."""

    amount: int


class AnswerDue(snapline.Message):
    """Timer message of an agent to itself: pass tokens on."""


class TransferCounts(msgspec.Struct):
    """Counts of an agent. `handled`: transfers received; `passed`: transfers sent."""

    others: list[str]
    balance: int
    handled: int = 0
    passed: int = 0


class CountingTeller(snapline.Agent):
    """Answers each transfer with a transfer to a random agent, a little later."""

    state: TransferCounts

    async def on_start(self, ctx: snapline.Context) -> None:
        for line in range(LINES):
            ctx.set_timer(f"start-{line}", PAUSE_S, AnswerDue())

    @snapline.handler
    async def on_transfer(self, message: Transfer, ctx: snapline.Context) -> None:
        self.state.balance += message.amount
        self.state.handled += 1
        ctx.set_timer(f"answer-{self.state.handled}", PAUSE_S, AnswerDue())

    @snapline.handler
    async def on_answer_due(self, message: AnswerDue, ctx: snapline.Context) -> None:
        amount = int(ctx.random() * (self.state.balance + 1))
        self.state.balance -= amount
        self.state.passed += 1
        ctx.send(self.state.others[int(ctx.random() * len(self.state.others))], Transfer(amount=amount))


def fleet(period: str = "0.3") -> snapline.Fleet:
    """Return the fleet; `period`: seconds between checkpoints."""
    names = [f"teller-{number}" for number in range(AGENTS)]
    return snapline.Fleet(
        "launched-tellers",
        agents={name: functools.partial(_open, name, names) for name in names},
        triggers=[snapline.Every(seconds=float(period))],
    )


def _open(name: str, names: list[str]) -> CountingTeller:
    return CountingTeller(TransferCounts([other for other in names if other != name], TOKENS))
