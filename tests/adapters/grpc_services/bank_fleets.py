"""Fleets of services that hand tokens to each other. A module of its own: programs that are run as a module have classes of another name."""

import msgspec

import snapline
from snapline.adapters.grpc.service_agent import ServiceAgent

PROTO = "tests/adapters/grpc_services/tokens.proto"
TOKENS = 100
PERIOD_S = 0.1


class Kept(msgspec.Struct):
    tokens: int = TOKENS


class Coins(snapline.Message):
    """Tokens on their way between a bank and a till."""

    amount: int


TILL_KEEPS = 5


class Till(snapline.Agent):
    """A native agent, which keeps a few tokens, and of the others sends half to the one bank and half to the other: so banks never run dry."""

    state: Kept

    @snapline.handler
    async def on_coins(self, message: Coins, ctx: snapline.Context) -> None:
        self.state.tokens += message.amount
        half = max(0, self.state.tokens - TILL_KEEPS) // 2
        self.state.tokens -= half * len(BESIDE_TILLS)
        for bank in BESIDE_TILLS:
            ctx.send(bank, Coins(half))


class BankAgent(ServiceAgent):
    @snapline.handler
    async def on_coins(self, message: Coins, ctx: snapline.Context) -> None:
        self.service.earn(message.amount)


BESIDE_TILLS = ("a", "b")
TILLS = {"till-1": "h1", "till-2": "h2"}
"""Agent → host."""


def mesh(*names: str) -> snapline.Fleet:
    """Services alone."""
    return snapline.Fleet(
        "mesh",
        agents={name: BankAgent() for name in names},
        place={name: name for name in names},
        triggers=[snapline.Every(seconds=PERIOD_S)],
    )


def mixed() -> snapline.Fleet:
    """Two services and two native agents."""
    return snapline.Fleet(
        "mixed",
        agents={**{name: BankAgent() for name in BESIDE_TILLS}, **{till: Till(Kept(0)) for till in TILLS}},
        place={**{name: name for name in BESIDE_TILLS}, **TILLS},
        triggers=[snapline.Every(seconds=PERIOD_S)],
    )
