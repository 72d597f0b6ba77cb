"""The fleet whose failure `benchmarks/local.py` measures: agents that take turns at regular times, and record when.

The last host has `lost` agents, and each other host has `each`. A turn of a timer sends a message to an agent of the last host or to an agent
of another host, in turns, so the channels to and from the last host are in use when it fails.
"""

import functools
import os
import random
import struct
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

import snapline

RECORD = struct.Struct("<IIQ")
"""An agent's number, its incarnation, and the time at which its turn began (monotonic ns)."""

_file: BinaryIO | None = None


def _note(folder: str, number: int, incarnation: int) -> None:
    """Append a record to this process's file, which the benchmark reads."""
    global _file
    if _file is None:
        _file = (Path(folder) / f"{os.getpid()}.turns").open("ab", buffering=0)
    _file.write(RECORD.pack(number, incarnation, time.monotonic_ns()))


class Tick(snapline.Message):
    """A timer's."""


class Work(snapline.Message):
    padding: bytes


class Ticking(msgspec.Struct):
    number: int
    hosts: int
    lost: int
    each: int
    folder: str
    period_s: float
    ticks: int = 0
    notes: bytes = b""


class Ticker(snapline.Agent):
    state: Ticking
    on_error = "keep"  # handlers change no state before they can fail

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("tick", random.random() * self.state.period_s, Tick())

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        state = self.state
        _note(state.folder, state.number, ctx.incarnation)
        ctx.set_timer("tick", state.period_s, Tick())
        state.ticks += 1
        among = range(state.lost) if state.ticks % 2 else range(state.lost, state.lost + (state.hosts - 1) * state.each)
        other = among[int(ctx.random() * len(among))]
        if other != state.number:
            ctx.send(name_of(other, state.lost, state.each), Work(bytes(48)))

    @snapline.handler
    async def on_work(self, message: Work, ctx: snapline.Context) -> None:
        _note(self.state.folder, self.state.number, ctx.incarnation)


def name_of(number: int, lost: int, each: int) -> str:
    """The agents of the last host come first."""
    return f"lost-{number}" if number < lost else f"h{(number - lost) // each + 1}-{number}"


def fleet(
    folder: str,
    hosts: str = "8",
    lost: str = "1000",
    each: str = "2",
    lost_period: str = "4.0",
    period: str = "0.02",
    recovery: str = "global",
    lost_bytes: str = "900",
    is_pinned: str = "yes",
) -> snapline.Fleet:
    """The agents of the last host take a turn of a timer each `lost_period` seconds, the others each `period` seconds. A snapshot each second."""
    count, first, survivors = int(hosts), int(lost), int(each)
    agents = {}
    for number in range(first + (count - 1) * survivors):
        period_s = float(lost_period if number < first else period)
        notes = bytes(int(lost_bytes) if number < first else 900)
        state = Ticking(number, count, first, survivors, folder, period_s, notes=notes)
        agents[name_of(number, first, survivors)] = functools.partial(_ticker, state)
    place = {f"h{number}-*": f"h{number}" for number in range(1, count)}
    return snapline.Fleet(
        "tickers",
        agents=agents,
        place={"lost-*": f"h{count}", **place} if is_pinned == "yes" else {},
        triggers=[snapline.Every(seconds=1.0)],
        recovery=recovery,
    )


def _ticker(state: Ticking) -> Ticker:
    return Ticker(msgspec.structs.replace(state))
