"""Ten stops that hand parcels on, one to the next. The sixth stands behind a gate that the test opens; the eighth looks something up by a library, and the last delivers."""

import time
from pathlib import Path

import msgspec
from opentelemetry import trace

import snapline

STOPS = 10
GATED, LIBRARY = 5, 7


class Route(msgspec.Struct):
    gate: str
    handed_on: list[str] = []


class Parcel(snapline.Message):
    name: str
    stop: int


def wait_at(gate: str) -> None:
    """Goes on when the test has opened it."""
    while not Path(gate).exists():
        time.sleep(0.01)


class Stop(snapline.Agent):
    state: Route

    @snapline.handler
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        if message.stop == LIBRARY:
            with trace.get_tracer("a library").start_as_current_span("look up"):
                pass
        hand_on(self.state, message, ctx)


class GatedStop(snapline.Agent):
    state: Route

    @snapline.handler(durable=True)
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        await ctx.step("weigh", len, message.name)
        await ctx.step("gate", wait_at, self.state.gate)
        hand_on(self.state, message, ctx)


def deliver(name: str, key: str) -> str:
    """Outside."""
    return f"{name} was delivered"


class LastStop(snapline.Agent):
    state: Route

    @snapline.handler(durable=True)
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        await ctx.effect("deliver", deliver, message.name)
        hand_on(self.state, message, ctx)


def hand_on(state: Route, message: Parcel, ctx: snapline.Context) -> None:
    state.handed_on.append(message.name)
    if message.stop + 1 < STOPS:
        ctx.send(f"stop-{message.stop + 1}", Parcel(message.name, message.stop + 1))


def fleet(gate: str, parcels: str) -> snapline.Fleet:
    """Ends when so many parcels have come to the last stop."""

    def is_over(cut: snapline.Cut) -> bool:
        last = cut.states[f"stop-{STOPS - 1}"]
        assert isinstance(last, Route)
        return len(last.handed_on) == int(parcels)

    kinds = {GATED: GatedStop, STOPS - 1: LastStop}
    agents = {f"stop-{number}": kinds.get(number, Stop)(Route(gate)) for number in range(STOPS)}
    return snapline.Fleet("couriers", agents=agents, stop_when=is_over)
