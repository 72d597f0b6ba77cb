"""The fleet that `benchmarks/snapshot.py` and others measure: agents that pass tokens to their neighbours without pause."""

import functools
import mmap
import os
import random
from pathlib import Path

import msgspec

import snapline

_counter: memoryview | None = None


def _count(folder: str) -> memoryview:
    """This process's counter of handled messages, in a file that the benchmark reads."""
    global _counter
    if _counter is None:
        path = Path(folder) / f"{os.getpid()}.count"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            _counter = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
    return _counter


def _is_wanted(folder: str) -> bool:
    """Whether tokens may rest just now: the benchmark's word, in a file that it makes and removes."""
    return (Path(folder) / RESTING).exists()


RESTING = "resting"


class Token(snapline.Message):
    hops: int
    padding: bytes


class Later(snapline.Message):
    """A token that its agent has kept for a moment: what sends it on is a timer, so a trace may begin there."""

    token: Token


class Place(msgspec.Struct):
    neighbours: list[str]
    folder: str
    tokens: int
    handled: int = 0
    notes: bytes = b""
    rests_every: int = 0


class Passer(snapline.Agent):
    state: Place
    on_error = "keep"  # handlers change no state before they can fail

    async def on_start(self, ctx: snapline.Context) -> None:
        _count(self.state.folder)
        for number in range(self.state.tokens):
            ctx.send(self.state.neighbours[number % len(self.state.neighbours)], Token(0, bytes(48)))

    @snapline.handler
    async def on_token(self, message: Token, ctx: snapline.Context) -> None:
        state = self.state
        state.handled += 1
        counter = _counter if _counter is not None else _count(state.folder)
        counter[0] += 1
        if state.rests_every and counter[0] % state.rests_every == 0 and _is_wanted(state.folder):
            ctx.set_timer("rest", 0.0, Later(message))
            return
        ctx.send(state.neighbours[state.handled % len(state.neighbours)], Token(message.hops + 1, message.padding))

    @snapline.handler
    async def on_later(self, message: Later, ctx: snapline.Context) -> None:
        place, token = self.state, message.token
        ctx.send(place.neighbours[place.handled % len(place.neighbours)], Token(token.hops + 1, token.padding))


def fleet(
    folder: str,
    agents: str = "100",
    degree: str = "8",
    tokens: str = "4",
    rests: str = "0",
    period: str = "0",
    notes: str = "500",
    across: str = "0",
    recovery: str = "global",
) -> snapline.Fleet:
    """`agents` that send to `degree` random others each; `tokens` per agent are under way. Each `rests`th turn of a host may keep its token for a moment.

    A snapshot each `period` seconds; 0: none. `notes`: bytes in each state. With `across`, all messages go from h1 to h2 or back.
    """
    chance = random.Random(1)
    names = [f"p{number}" for number in range(int(agents))]
    place = {}
    if int(across):
        names = [f"{'pq'[number % 2]}{number}" for number in range(int(agents))]
        place = {"p*": "h1", "q*": "h2"}
    others = {side: [name for name in names if not int(across) or name[0] != side] for side in "pq"}
    neighbours = {
        name: chance.sample([candidate for candidate in others[name[0]] if candidate != name], int(degree))
        for name in names
    }
    return snapline.Fleet(
        "passers",
        agents={
            name: functools.partial(
                _make, Place(neighbours[name], folder, int(tokens), notes=bytes(int(notes)), rests_every=int(rests))
            )
            for name in names
        },
        triggers=[snapline.Every(seconds=float(period))] if float(period) else [],
        place=place,
        recovery=recovery,
    )


def _make(place: Place) -> Passer:
    return Passer(msgspec.structs.replace(place))
