"""Fleets with something wrong in them."""

import os
import threading
from typing import Any

import msgspec

import snapline


class Go(snapline.Message):
    """To itself, by a timer."""


class Anything(msgspec.Struct):
    """Holds what it is given."""

    value: Any = None
    count: int = 0


class Holder(snapline.Agent):
    """Does nothing."""

    state: Anything


class Repenter(snapline.Agent):
    """Puts something into its state, in the middle of its life, that cannot be saved; that turn is undone."""

    state: Anything

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("go", 0.3, Go())

    @snapline.handler
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        self.state.value = threading.Lock()


class Spoiler(Repenter):
    """The same once there is a file, but it keeps what it did."""

    on_error = "keep"

    @snapline.handler
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        if os.path.exists(self.state.value):
            self.state.value = threading.Lock()
        else:
            ctx.set_timer("go", 0.05, Go())


class Fragile(snapline.Agent):
    """Counts, and crashes at one number, each time it comes to it."""

    on_error = "recover"
    retries = 1
    state: Anything

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("go", 0.05, Go())
        for number in range(1, 6):
            ctx.send(ctx.agent, Step(number=number))

    @snapline.handler
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        self.state.count += 100

    @snapline.handler
    async def on_step(self, message: "Step", ctx: snapline.Context) -> None:
        self.state.count += message.number
        if message.number == 3:
            raise RuntimeError("three is too much")


class Step(snapline.Message):
    """One step."""

    number: int


TRIGGERS = [snapline.Every(seconds=0.2)]

unsavable = snapline.Fleet("unsavable", agents={"holder": Holder(Anything(value=threading.Lock()))}, triggers=TRIGGERS)


def spoiled(file: str) -> snapline.Fleet:
    """It is spoiled as soon as there is this file."""
    agents = {"spoiler": Spoiler(Anything(value=file))}
    return snapline.Fleet("spoiled", agents=agents, triggers=TRIGGERS, epoch_timeout_s=5.0)


undone = snapline.Fleet("undone", agents={"repenter": Repenter(Anything())}, triggers=TRIGGERS, epoch_timeout_s=5.0)
fragile = snapline.Fleet(
    "fragile", agents={"fragile": Fragile(Anything())}, triggers=TRIGGERS, stop_when=lambda cut: cut.is_quiet
)
