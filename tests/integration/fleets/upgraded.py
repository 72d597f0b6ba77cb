"""An agent in the middle of a durable turn whose code changes as soon as a file is there, and so asks for something else than its journal says."""

import os

import msgspec

import snapline


class Go(snapline.Message):
    pass


class Approved(snapline.Message):
    pass


class Build(msgspec.Struct):
    changed: str
    done: int = 0


def load(source: str) -> str:
    return source


class Builder(snapline.Agent):
    state: Build

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send("builder", Go())

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        if os.path.exists(self.state.changed):
            await ctx.step("audit", load, "v2")
        await ctx.step("load", load, "v1")
        await ctx.receive(Approved)
        self.state.done += 1

    @snapline.handler
    async def on_approved(self, message: Approved, ctx: snapline.Context) -> None:
        pass


def fleet(changed: str) -> snapline.Fleet:
    return snapline.Fleet(
        "upgraded", agents={"builder": Builder(Build(changed))}, triggers=[snapline.Every(seconds=0.2)]
    )
