"""Two agents hit a ball back and forth a thousand times."""

import msgspec

import snapline


class Ball(snapline.Message):
    hits: int


class Player(msgspec.Struct):
    opponent: str
    has_service: bool
    hits_seen: int = 0


class PingPong(snapline.Agent):
    state: Player

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.has_service:
            ctx.send(self.state.opponent, Ball(hits=1))

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        self.state.hits_seen = message.hits
        if message.hits < 1000:
            ctx.send(self.state.opponent, Ball(hits=message.hits + 1))


fleet = snapline.Fleet(
    "hello",
    agents={"ping": PingPong(Player("pong", has_service=True)), "pong": PingPong(Player("ping", has_service=False))},
    triggers=[snapline.Every(seconds=0.1)],
    stop_when=lambda cut: cut.is_quiet,
)
