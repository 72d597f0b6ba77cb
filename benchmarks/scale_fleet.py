"""The fleet that `benchmarks/scale.py` measures: every tenth agent has a token, which goes round slowly; or each has one that goes fast."""

import msgspec

import snapline

IDLE_RATE = 2_000
"""Messages a second of an idle fleet of any size."""


class Token(snapline.Message):
    of: int
    hops: int


class GoOn(snapline.Message):
    of: int
    hops: int


class Place(msgspec.Struct):
    number: int
    agents: int
    pause_s: float
    has_token: bool
    handled: int = 0


class Passer(snapline.Agent):
    state: Place

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.has_token:
            ctx.set_timer(f"go on {self.state.number}", self.state.pause_s, GoOn(self.state.number, 0))

    @snapline.handler
    async def on_token(self, message: Token, ctx: snapline.Context) -> None:
        self.state.handled += 1
        ctx.set_timer(f"go on {message.of}", self.state.pause_s, GoOn(message.of, message.hops))

    @snapline.handler
    async def on_go_on(self, message: GoOn, ctx: snapline.Context) -> None:
        ctx.send(
            f"passer-{(self.state.number + 1 + message.hops % 4) % self.state.agents}",
            Token(message.of, message.hops + 1),
        )


def fleet(agents: str = "100", busy: str = "0") -> snapline.Fleet:
    """Each agent handles `busy` messages a second, on average; 0: one in five seconds or more, so that hosts have time."""
    count, rate = int(agents), float(busy)
    pause_s, one_in = (1 / rate, 1) if rate else (max(0.5, count / 10 / IDLE_RATE), 10)
    return snapline.Fleet(
        "passers",
        agents={
            f"passer-{number}": Passer(Place(number, count, pause_s, number % one_in == 0)) for number in range(count)
        },
        protocol="chandy-lamport",
    )
