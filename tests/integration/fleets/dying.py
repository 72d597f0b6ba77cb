"""Agents whose process dies of one message, each in its way, as long as a file is not there."""

import asyncio
import os
import signal
import sys

import msgspec

import snapline


class Die(snapline.Message):
    """`unless`: a file."""

    unless: str


class Ping(snapline.Message):
    serial: int


class Count(msgspec.Struct):
    turns: int = 0


def die(message: Die) -> None:
    if not os.path.exists(message.unless):
        os.kill(os.getpid(), signal.SIGKILL)


class Plain(snapline.Agent):
    state: Count

    @snapline.handler
    async def on_die(self, message: Die, ctx: snapline.Context) -> None:
        die(message)
        self.state.turns += 1

    @snapline.handler
    async def on_ping(self, message: Ping, ctx: snapline.Context) -> None:
        ctx.reply(message)


class Threaded(snapline.Agent):
    state: Count

    @snapline.handler
    async def on_die(self, message: Die, ctx: snapline.Context) -> None:
        await asyncio.to_thread(die, message)


class Durable(snapline.Agent):
    state: Count

    @snapline.handler(durable=True)
    async def on_die(self, message: Die, ctx: snapline.Context) -> None:
        await ctx.sleep(0.01)
        await ctx.step("die", die, message)


class Exiting(snapline.Agent):
    state: Count

    @snapline.handler
    async def on_die(self, message: Die, ctx: snapline.Context) -> None:
        sys.exit(7)


agents = {
    "plain": Plain(Count()),
    "threaded": Threaded(Count()),
    "durable": Durable(Count()),
    "exiting": Exiting(Count()),
}
fleet = snapline.Fleet("dying", agents=agents, triggers=[snapline.Every(seconds=0.2)])
