"""Nine agents, of which every third works and the others only wait: on three hosts all who work begin on the same one."""

import msgspec

import snapline

AGENTS = tuple(f"a{number}" for number in range(9))
PAUSE_S = 0.01


class Due(snapline.Message):
    """To itself, by a timer: work again."""


class Done(msgspec.Struct):
    """Turns that were taken."""

    turns: int = 0


class Worker(snapline.Agent):
    """Some hundred turns in a second, at most; or none."""

    state: Done

    async def on_start(self, ctx: snapline.Context) -> None:
        if int(ctx.agent[1:]) % 3 == 0:
            ctx.set_timer("due", PAUSE_S, Due())

    @snapline.handler
    async def on_due(self, message: Due, ctx: snapline.Context) -> None:
        self.state.turns += 1
        ctx.set_timer("due", PAUSE_S, Due())


def fleet() -> snapline.Fleet:
    return snapline.Fleet(
        "uneven", agents={agent: Worker(Done()) for agent in AGENTS}, triggers=[snapline.Every(seconds=0.3)]
    )
