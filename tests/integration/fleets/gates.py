"""One plan of steps that are counted outside, each behind a gate that the test opens; no snapshot is ever taken in its middle."""

import time
from pathlib import Path

import msgspec

import snapline

STEPS = 2


class Walked(msgspec.Struct):
    notes: str
    seen: list[int] = []


class Go(snapline.Message):
    pass


def work(notes: str, number: int) -> int:
    """Outside: a line in a file."""
    with open(notes, "a") as file:
        file.write(f"step{number}\n")
    return number * 10


def gate(notes: str, number: int) -> None:
    """Says that it is reached, and goes on when the test has opened it."""
    with open(notes, "a") as file:
        file.write(f"gate{number}\n")
    wait_for(Path(f"{notes}.{number}"))


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


class Walker(snapline.Agent):
    state: Walked

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Go())

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        for number in range(STEPS):
            started = ctx.now()
            self.state.seen.append(await ctx.step("work", work, self.state.notes, number))
            await ctx.step("gate", gate, self.state.notes, number)
            assert ctx.now() >= started


def is_over(cut: snapline.Cut) -> bool:
    state = cut.states["walker"]
    assert isinstance(state, Walked)
    return len(state.seen) == STEPS


def fleet(notes: str, protocol: str = "chandy-lamport") -> snapline.Fleet:
    return snapline.Fleet("gates", agents={"walker": Walker(Walked(notes))}, protocol=protocol, stop_when=is_over)
