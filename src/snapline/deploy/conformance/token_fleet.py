"""A fleet for testing launchers. Five agents slowly pass tokens to each other forever and count their transfers.

No token may be lost or created, and each agent must handle and answer every received message exactly once. So `judge` in
`launcher_checks.py` can check each snapshot on its own.
"""

import functools

import msgspec

import snapline

AGENTS, TOKENS, LINES = 5, 100, 2
"""Number of agents, number of tokens with which each agent begins, and number of concurrent transfers per agent."""

PAUSE_S = 0.02
"""Pause in seconds between a transfer and its answer. The fleet sends about a hundred messages per second in total, which is a negligible
load."""


class Transfer(snapline.Message):
    """A transfer of tokens to another agent."""

    amount: int


class AnswerDue(snapline.Message):
    """Timer message that reminds an agent to send its next transfer."""


class TransferCounts(msgspec.Struct):
    """State of an agent. `handled` counts the transfers that the agent has received, and `passed` counts the transfers that it has sent."""

    others: list[str]
    balance: int
    handled: int = 0
    passed: int = 0


class CountingTeller(snapline.Agent):
    """An agent that pauses after each received transfer, and then sends a transfer to a random agent."""

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
    """Return the token fleet. `period` is the number of seconds between checkpoints."""
    names = [f"teller-{number}" for number in range(AGENTS)]
    return snapline.Fleet(
        "launched-tellers",
        agents={name: functools.partial(_open, name, names) for name in names},
        triggers=[snapline.Every(seconds=float(period))],
    )


def _open(name: str, names: list[str]) -> CountingTeller:
    return CountingTeller(TransferCounts([other for other in names if other != name], TOKENS))
