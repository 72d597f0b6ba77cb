"""The fleet that `benchmarks/scale.py` measures: every tenth agent has a token, which goes round slowly."""

import msgspec

import snapline

PAUSE_S = 0.5
"""Before a token goes on: the fleet lives, and hosts have time."""


class Token(snapline.Message):
    hops: int


class GoOn(snapline.Message):
    hops: int


class Place(msgspec.Struct):
    number: int
    agents: int
    handled: int = 0


class Passer(snapline.Agent):
    state: Place

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.number % 10 == 0:
            ctx.set_timer("go on", PAUSE_S, GoOn(0))

    @snapline.handler
    async def on_token(self, message: Token, ctx: snapline.Context) -> None:
        self.state.handled += 1
        ctx.set_timer("go on", PAUSE_S, GoOn(message.hops))

    @snapline.handler
    async def on_go_on(self, message: GoOn, ctx: snapline.Context) -> None:
        ctx.send(f"passer-{(self.state.number + 1 + message.hops % 4) % self.state.agents}", Token(message.hops + 1))


def fleet(agents: str = "100") -> snapline.Fleet:
    count = int(agents)
    return snapline.Fleet(
        "passers",
        agents={f"passer-{number}": Passer(Place(number, count)) for number in range(count)},
        protocol="chandy-lamport",
    )
