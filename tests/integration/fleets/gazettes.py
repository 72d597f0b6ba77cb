"""Agents that give an issue to the outside every few milliseconds; until a file tells them to stop."""

import os
import random

import msgspec

import snapline


class Issue(snapline.Message):
    """An output: the how manieth it was, and what chance said: a turn that is undone says something else when it comes again."""

    serial: int
    token: int


class Print(snapline.Message):
    """To itself, by a timer."""


class Gazette(msgspec.Struct):
    stop: str
    tokens: list[int] = []
    is_over: bool = False


class Printer(snapline.Agent):
    state: Gazette

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("print", 0.02, Print())

    @snapline.handler
    async def on_print(self, message: Print, ctx: snapline.Context) -> None:
        self.state.is_over = os.path.exists(self.state.stop)
        if not self.state.is_over:
            self.state.tokens.append(random.getrandbits(32))
            ctx.emit(
                "even" if len(self.state.tokens) % 2 == 0 else "odd",
                Issue(len(self.state.tokens), self.state.tokens[-1]),
            )
            ctx.set_timer("print", 0.02, Print())


def is_done(cut: snapline.Cut) -> bool:
    """Everybody has seen the file."""
    return cut.is_quiet and all(getattr(state, "is_over", False) for state in cut.states.values())


def fleet(stop: str, printers: str = "3", period: str = "0.3", protocol: str = "chandy-lamport") -> snapline.Fleet:
    agents = {f"printer-{number}": Printer(Gazette(stop)) for number in range(int(printers))}
    return snapline.Fleet(
        "gazettes",
        agents=agents,
        protocol=protocol,
        triggers=[snapline.Every(seconds=float(period))],
        stop_when=is_done,
    )
