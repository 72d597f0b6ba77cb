"""A bank whose agents pass tokens to each other at random. No token may ever be lost or created.

This is the smallest fleet in which every consistent cut can be checked. The number of tokens in the agents and in transit is always the
same. A lost, duplicated or invented message changes this number.

    snapline run snapline.examples.bank:fleet --hosts 2 --arg transfers=1000
"""

import functools

import msgspec

import snapline


class Tokens(snapline.Message):
    """A transfer of tokens."""

    amount: int


class Account(msgspec.Struct):
    """State of a teller.

    `transfers_left` is the number of transfers that the teller will still send before it keeps the tokens that it receives. A negative
    value means no limit.
    """

    others: list[str]
    balance: int
    transfers_left: int
    lines: int


class Teller(snapline.Agent):
    """An agent that answers each transfer with a transfer to a randomly chosen agent."""

    state: Account

    async def on_start(self, ctx: snapline.Context) -> None:
        for _ in range(self.state.lines):
            self._pass_on(ctx)

    @snapline.handler
    async def on_tokens(self, message: Tokens, ctx: snapline.Context) -> None:
        self.state.balance += message.amount
        self._pass_on(ctx)

    def _pass_on(self, ctx: snapline.Context) -> None:
        if self.state.transfers_left == 0:
            return
        self.state.transfers_left -= 1
        amount = int(ctx.random() * (self.state.balance + 1))
        self.state.balance -= amount
        ctx.send(self.state.others[int(ctx.random() * len(self.state.others))], Tokens(amount=amount))


def fleet(
    agents: str = "8",
    tokens: str = "1000",
    transfers: str = "-1",
    lines: str = "2",
    period: str = "0.3",
    protocol: str = "chandy-lamport",
) -> snapline.Fleet:
    """Return a fleet of `agents` agents, each of which starts with `tokens` tokens.

    Each agent starts `lines` transfers. The total number of transfers in transit stays the same until an agent has sent `transfers`
    transfers. A negative number means no limit. If `period` is 0, no checkpoints are taken.
    """
    names = [f"teller-{index}" for index in range(int(agents))]
    return snapline.Fleet(
        "bank",
        agents={name: functools.partial(_open, name, names, int(tokens), int(transfers), int(lines)) for name in names},
        protocol=protocol,
        triggers=[snapline.Every(seconds=float(period))] if float(period) else [],
        stop_when=lambda cut: cut.is_quiet,
    )


def _open(name: str, names: list[str], tokens: int, transfers: int, lines: int) -> Teller:
    others = [other for other in names if other != name]
    return Teller(Account(others=others, balance=tokens, transfers_left=transfers, lines=lines))


def tokens_in(cut: snapline.Cut) -> int:
    """Return the number of tokens in a cut, which is the same in every consistent cut."""
    tokens_in_states = sum(account.balance for account in cut.states.values() if isinstance(account, Account))
    return tokens_in_states + sum(
        transit.message.amount for transit in cut.in_transit if isinstance(transit.message, Tokens)
    )
