"""Agents that talk to each other and say to the outside what they have counted; until a file tells them to stop."""

import os
import random

import msgspec

import snapline


class Word(snapline.Message):
    """From one speaker to the next."""

    number: int


class Heard(snapline.Message):
    """To the outside: the how manieth word this agent heard, and what chance said: a turn that is undone says something else the next time."""

    count: int
    token: int


class Look(snapline.Message):
    """To itself, by a timer."""


class Speech(msgspec.Struct):
    stop: str
    following: str
    sent: int = 0
    tokens: list[int] = []
    is_over: bool = False


class Speaker(snapline.Agent):
    state: Speech

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("look", 0.01, Look())

    @snapline.handler
    async def on_look(self, message: Look, ctx: snapline.Context) -> None:
        state = self.state
        state.is_over = state.sent > 10 and os.path.exists(state.stop)
        if not state.is_over:
            state.sent += 1
            ctx.send(state.following, Word(state.sent))
            ctx.set_timer("look", 0.01, Look())

    @snapline.handler
    async def on_word(self, message: Word, ctx: snapline.Context) -> None:
        self.state.tokens.append(random.getrandbits(32))
        ctx.emit("heard", Heard(len(self.state.tokens), self.state.tokens[-1]))


def is_done(cut: snapline.Cut) -> bool:
    """Everybody has seen the file."""
    return cut.is_quiet and all(getattr(state, "is_over", False) for state in cut.states.values())


def fleet(stop: str, speakers: str = "4", period: str = "0.3", protocol: str = "chandy-lamport") -> snapline.Fleet:
    count = int(speakers)
    agents = {f"speaker-{n}": Speaker(Speech(stop, f"speaker-{(n + 1) % count}")) for n in range(count)}
    return snapline.Fleet(
        "speakers",
        agents=agents,
        protocol=protocol,
        triggers=[snapline.Every(seconds=float(period))],
        stop_when=is_done,
    )
