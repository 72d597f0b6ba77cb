"""The fleet that launchers are tested with: five agents pass tokens to each other, slowly, for ever, and count what they do.

No token may be lost or made, and each agent must have handled every message that it received, and answered it, exactly once.
So every snapshot can be judged on its own (`judge.py`).
"""

import functools

import msgspec

import snapline

AGENTS, TOKENS, LINES = 5, 100, 2
"""Agents, what each begins with, and how many of each agent's transfers are under way at a time."""

PAUSE_S = 0.02
"""Between a transfer and its answer: some hundred messages a second in all, next to nothing for a machine."""


class Transfer(snapline.Message):
    """Some tokens change hands."""

    amount: int


class AnswerDue(snapline.Message):
    """Message to itself, by a timer: pass something on."""


class TransferCounts(msgspec.Struct):
    """`handled` transfers received, `passed` transfers sent."""

    others: list[str]
    balance: int
    handled: int = 0
    passed: int = 0


class CountingTeller(snapline.Agent):
    """Answers each transfer with one of its own, to anybody, a little later."""

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
    """The fleet; `period`: seconds between checkpoints."""
    names = [f"teller-{number}" for number in range(AGENTS)]
    return snapline.Fleet(
        "launched-tellers",
        agents={name: functools.partial(_open, name, names) for name in names},
        triggers=[snapline.Every(seconds=float(period))],
    )


def _open(name: str, names: list[str]) -> CountingTeller:
    return CountingTeller(TransferCounts([other for other in names if other != name], TOKENS))
