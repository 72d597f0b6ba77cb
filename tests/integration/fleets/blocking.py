"""A worker that blocks its host until a file is there, with Python's lock or without it, and echoes elsewhere."""

import ctypes
import os
import time

import msgspec

import snapline


class Block(snapline.Message):
    """`is_locked`: Python's lock is held for that time, at least. `until`: a file; by then it is over."""

    until: str
    locked_s: int = 0


class Ping(snapline.Message):
    serial: int


class Count(msgspec.Struct):
    turns: int = 0


class Worker(snapline.Agent):
    state: Count

    @snapline.handler
    async def on_block(self, message: Block, ctx: snapline.Context) -> None:
        self.state.turns += 1
        if message.locked_s:
            ctypes.PyDLL(None).sleep(message.locked_s)
        while not os.path.exists(message.until):
            time.sleep(0.01)  # noqa: ASYNC251  # that is what this is about
        ctx.reply(Ping(self.state.turns))


class Echo(snapline.Agent):
    state: Count

    @snapline.handler
    async def on_ping(self, message: Ping, ctx: snapline.Context) -> None:
        self.state.turns += 1
        ctx.send("worker-2", message)
        ctx.reply(message)


class Neighbour(snapline.Agent):
    """On the worker's host: what it is sent waits."""

    state: Count

    @snapline.handler
    async def on_ping(self, message: Ping, ctx: snapline.Context) -> None:
        self.state.turns += 1


def fleet() -> snapline.Fleet:
    return snapline.Fleet(
        "blocking",
        agents={
            "worker": Worker(Count()),
            "worker-2": Neighbour(Count()),
            "echo-2": Echo(Count()),
            "echo-3": Echo(Count()),
        },
        place={"worker*": "h1", "echo-2": "h2", "echo-3": "h3"},
        triggers=[snapline.Every(seconds=0.3)],
    )
