"""The fleet that `benchmarks/latency.py` measures: agents that ask one of the other host and wait for the answer, beside agents that keep both busy."""

import functools
import os
import random
import struct
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

import snapline

RECORD = struct.Struct("<QQ")
"""When a question was asked (monotonic ns), and how long its answer took (ns)."""

_file: BinaryIO | None = None


def _note(folder: str, asked_ns: int) -> None:
    """Into this process's file, which the benchmark reads."""
    global _file
    if _file is None:
        _file = (Path(folder) / f"{os.getpid()}.latencies").open("ab", buffering=0)
    _file.write(RECORD.pack(asked_ns, time.monotonic_ns() - asked_ns))


class Question(snapline.Message):
    asked_ns: int
    of: str


class Answer(snapline.Message):
    asked_ns: int


class Ask(snapline.Message):
    """A timer's."""


class Load(snapline.Message):
    """A timer's."""


class Work(snapline.Message):
    padding: bytes


class Asking(msgspec.Struct):
    other: str
    folder: str
    period_s: float


class Asker(snapline.Agent):
    state: Asking
    on_error = "keep"

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("ask", random.random() * self.state.period_s, Ask())

    @snapline.handler
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        ctx.set_timer("ask", self.state.period_s, Ask())
        ctx.send(self.state.other, Question(time.monotonic_ns(), ctx.agent))

    @snapline.handler
    async def on_question(self, message: Question, ctx: snapline.Context) -> None:
        ctx.send(message.of, Answer(message.asked_ns))

    @snapline.handler
    async def on_answer(self, message: Answer, ctx: snapline.Context) -> None:
        _note(self.state.folder, message.asked_ns)


class Loading(msgspec.Struct):
    others: list[str]
    messages: int
    period_s: float
    sent: int = 0


class Loader(snapline.Agent):
    state: Loading
    on_error = "keep"

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("load", random.random() * self.state.period_s, Load())

    @snapline.handler
    async def on_load(self, message: Load, ctx: snapline.Context) -> None:
        state = self.state
        ctx.set_timer("load", state.period_s, Load())
        for _ in range(state.messages):
            state.sent += 1
            ctx.send(state.others[state.sent % len(state.others)], Work(bytes(48)))

    @snapline.handler
    async def on_work(self, message: Work, ctx: snapline.Context) -> None:
        """It has been handled."""


def fleet(folder: str, askers: str = "20", loaders: str = "100", rate: str = "0") -> snapline.Fleet:
    """`askers` on each of the hosts h1 and h2 ask one of the other ten times a second; `loaders` send `rate` messages a second, all together."""
    chance = random.Random(1)
    count, many = int(askers), int(loaders)
    asking = {
        f"{side}{number}": functools.partial(_asker, Asking(f"{'a' if side == 'b' else 'b'}{number}", folder, 0.1))
        for side in "ab"
        for number in range(count)
    }
    names = [f"{'uv'[number % 2]}{number}" for number in range(many)]
    period_s = 0.02
    each = int(rate) * period_s / many
    loading = {
        name: functools.partial(
            _loader,
            Loading(
                chance.sample([other for other in names if other != name], 8),
                max(1, round(each)),
                period_s * max(1.0, 1 / each),
            ),
        )
        for name in names
        if each
    }
    place = {"a*": "h1", "b*": "h2", "u*": "h1", "v*": "h2"}
    return snapline.Fleet("latency", agents={**asking, **loading}, place=place)


def _asker(state: Asking) -> Asker:
    return Asker(msgspec.structs.replace(state))


def _loader(state: Loading) -> Loader:
    return Loader(msgspec.structs.replace(state))
