"""Counters that answer what is asked of them from outside with a running count; until a file tells them to stop."""

import os
import random

import msgspec

import snapline


class Tick(snapline.Message):
    """From outside."""

    serial: int


class Counted(snapline.Message):
    """The answer: the how manieth it was, what was asked, and what chance said: a turn that is undone says something else when it comes again."""

    count: int
    serial: int
    token: int = 0


class Look(snapline.Message):
    """To itself, by a timer: is there the file?"""


class Count(msgspec.Struct):
    stop: str
    serials: list[int] = []
    tokens: list[int] = []
    is_over: bool = False


class Counter(snapline.Agent):
    state: Count

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("look", 0.02, Look())

    @snapline.handler
    async def on_look(self, message: Look, ctx: snapline.Context) -> None:
        if os.path.exists(self.state.stop):
            self.state.is_over = True
        else:
            ctx.set_timer("look", 0.02, Look())

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        if message.serial < 0:
            raise ValueError("no such serial")
        self.state.serials.append(message.serial)
        self.state.tokens.append(random.getrandbits(32))
        ctx.reply(Counted(len(self.state.serials), message.serial, self.state.tokens[-1]))


def is_done(cut: snapline.Cut) -> bool:
    """Everybody has seen the file."""
    return cut.is_quiet and all(getattr(state, "is_over", False) for state in cut.states.values())


def fleet(stop: str, counters: str = "3", period: str = "0.5", protocol: str = "chandy-lamport") -> snapline.Fleet:
    agents = {f"counter-{number}": Counter(Count(stop)) for number in range(int(counters))}
    return snapline.Fleet(
        "counters",
        agents=agents,
        protocol=protocol,
        triggers=[snapline.Every(seconds=float(period))],
        stop_when=is_done,
    )
