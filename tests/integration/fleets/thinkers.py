"""Agents with large states: an array, a chat and a document each. One thought goes round, so the outcome is known."""

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import snapline

LENGTH = 1_000_000
"""Of each agent's weights: 8 MB, of which a thought changes 128 bytes."""


class Thought(snapline.Message):
    """The number of the step that its receiver is to take."""

    step: int


class Line(snapline.Message):
    text: str
    step: int


class Memory(msgspec.Struct):
    next_agent: str
    last: int
    nap: float
    weights: np.ndarray[Any, Any]
    chat: snapline.History[Line]
    document: snapline.Blob


def think(state: Memory, step: int) -> None:
    """What one step does to its agent's state."""
    start = step * 7919 % (LENGTH - 16)
    state.weights[start : start + 16] += step
    state.chat.append(Line(f"step {step}", step))
    if step % 10 == 0:
        state.chat[0] = Line(f"looked at in step {step}", step)
    if step % 17 == 0:
        del state.chat[1]
    if step % 50 == 0:
        state.document = snapline.Blob(state.document.data[:1000] + b"|" + state.document.data[1000:])


class Thinker(snapline.Agent):
    state: Memory
    on_error = "keep"

    async def on_start(self, ctx: snapline.Context) -> None:
        if ctx.agent == "t0":
            ctx.send(self.state.next_agent, Thought(1))

    @snapline.handler
    async def on_thought(self, message: Thought, ctx: snapline.Context) -> None:
        think(self.state, message.step)
        time.sleep(self.state.nap)  # noqa: ASYNC251  # the whole host is to be slow
        if message.step < self.state.last:
            ctx.send(self.state.next_agent, Thought(message.step + 1))


def make(number: int, agents: int, last: int, nap: float) -> Memory:
    """An agent's state at the beginning."""
    numbers = np.random.default_rng(number)
    chat = snapline.History([Line(f"hello from {number}", 0) for _ in range(100)])
    document = snapline.Blob(numbers.bytes(500_000))
    return Memory(f"t{(number + 1) % agents}", last, nap, numbers.random(LENGTH), chat, document)


def fleet(
    agents: str = "4",
    last: str = "2000",
    nap: str = "0.002",
    period: str = "0.3",
    protocol: str = "chandy-lamport",
    stop: str = "",
) -> snapline.Fleet:
    """Thinkers in a ring. The fleet ends when the thought has come to its end and, if `stop` names a file, the file exists."""
    count = int(agents)
    return snapline.Fleet(
        "thinkers",
        agents={f"t{i}": Thinker(make(i, count, int(last), float(nap))) for i in range(count)},
        triggers=[snapline.Every(seconds=float(period))],
        protocol=protocol,
        stop_when=lambda cut: cut.is_quiet and (not stop or os.path.exists(stop)),
    )


def expected(agents: int, last: int) -> dict[str, Memory]:
    """The states at the end, without a fleet."""
    states = [make(i, agents, last, 0.0) for i in range(agents)]
    for step in range(1, last + 1):
        think(states[step % agents], step)
    return {f"t{i}": state for i, state in enumerate(states)}


def store_bytes(store: Path) -> int:
    """What all files of a store take."""
    return sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
