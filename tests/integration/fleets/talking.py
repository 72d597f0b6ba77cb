"""Two agents that log as any program does: in a handler that runs through, in a step that waits, and in one that awaits."""

import asyncio
import logging

import msgspec

import snapline

log = logging.getLogger("talking")


class Talk(snapline.Message):
    """Say what you do."""


class Mouth(msgspec.Struct):
    name: str
    said: int = 0


async def think(name: str) -> int:
    log.info("%s waits", name)
    await asyncio.sleep(0)
    log.info("%s hears", name)
    return 1


class Talker(snapline.Agent):
    """Logs at each place where its code may be."""

    state: Mouth

    async def on_start(self, ctx: snapline.Context) -> None:
        log.info("%s starts", self.state.name)
        ctx.send(ctx.agent, Talk())

    @snapline.handler
    async def on_talk(self, message: Talk, ctx: snapline.Context) -> None:
        self.state.said += await ctx.step("think", think, self.state.name)
        log.info("%s ends", self.state.name)


fleet = snapline.Fleet(
    "talking",
    agents={name: Talker(Mouth(name=name)) for name in ("a", "b")},
    triggers=[snapline.Every(seconds=0.2)],
    stop_when=lambda cut: cut.is_quiet,
)
