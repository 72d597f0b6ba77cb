"""A fleet that uses everything an agent can do, and whose end is known exactly.

`root` grows a tree of agents that greet, rest in a step, report to their parents and stop. Meanwhile `source` sends work to
`clumsy`, which fails at some of it, and parcels of 5 MiB to `depot`.
"""

import asyncio
import functools
import hashlib
import time

import msgspec

import snapline

DEPTH, WIDTH = 3, 3
NODES = sum(WIDTH**level for level in range(DEPTH + 1))
WORK = 60
WORK_FAILING = 10
"""`clumsy` fails at every multiple of this."""

PARCELS, PARCEL_BYTES = 4, 5 << 20


class Grow(snapline.Message):
    """To itself, by a timer."""


class Greeting(snapline.Message):
    """From a parent to the child it has just created."""


class Report(snapline.Message):
    """How many nodes there are below, and how many of them were greeted."""

    nodes: int
    greeted: int


class Branch(msgspec.Struct):
    """`waiting`: children that have not reported yet."""

    parent: str
    depth: int
    waiting: int = 0
    nodes: int = 1
    greeted: int = 0
    growths: int = 0


class Node(snapline.Agent):
    """Creates children, waits for their reports, rests, reports, and stops (the root stays)."""

    state: Branch

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("grow", 0.15, Grow())
        ctx.set_timer("never", 60, Grow())
        ctx.cancel_timer("never")

    @snapline.handler
    async def on_greeting(self, message: Greeting, ctx: snapline.Context) -> None:
        self.state.greeted += 1

    @snapline.handler
    async def on_grow(self, message: Grow, ctx: snapline.Context) -> None:
        self.state.growths += 1
        if self.state.depth == 0:
            await self._report(ctx)
            return
        self.state.waiting = WIDTH
        for index in range(WIDTH):
            child = f"{ctx.agent}.{index}"
            ctx.send(child, Greeting())
            ctx.spawn(child, Node(Branch(ctx.agent, self.state.depth - 1)))

    @snapline.handler
    async def on_report(self, message: Report, ctx: snapline.Context) -> None:
        self.state.nodes += message.nodes
        self.state.greeted += message.greeted
        self.state.waiting -= 1
        if self.state.waiting == 0 and self.state.parent:
            await self._report(ctx)

    async def _report(self, ctx: snapline.Context) -> None:
        slept_s = await ctx.step("rest", _rest) if ctx.agent.endswith(".1.1") else 0.3
        assert slept_s >= 0.3
        assert await ctx.step("doze", _doze) == "dozed"
        ctx.send(self.state.parent, Report(nodes=self.state.nodes, greeted=self.state.greeted))
        ctx.stop()


def _rest() -> float:
    """Blocks, as a tool of the user's may: it runs in a thread."""
    started_s = time.monotonic()
    time.sleep(0.3)
    return time.monotonic() - started_s


async def _doze() -> str:
    await asyncio.sleep(0.01)
    return "dozed"


class Next(snapline.Message):
    """To itself, by a timer."""


class Work(snapline.Message):
    """Fails if `number` is a multiple of WORK_FAILING."""

    number: int


class Unheard(snapline.Message):
    """Nobody has a handler for it."""


class Parcel(snapline.Message):
    """A large message."""

    number: int
    data: bytes
    digest: bytes


class Sent(msgspec.Struct):
    """How far the source has come."""

    work: int = 0
    parcels: int = 0


class Source(snapline.Agent):
    """Sends one piece of work at a time, and now and then a parcel."""

    state: Sent

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send("clumsy", Unheard())
        ctx.send("nobody", Unheard())
        ctx.set_timer("next", 0.02, Next())

    @snapline.handler
    async def on_next(self, message: Next, ctx: snapline.Context) -> None:
        self.state.work += 1
        ctx.send("clumsy", Work(number=self.state.work))
        if self.state.work % (WORK // PARCELS) == 0:
            self.state.parcels += 1
            data = self.state.parcels.to_bytes(4, "big") * (PARCEL_BYTES // 4)
            digest = hashlib.sha256(data).digest()
            ctx.send("depot", Parcel(number=self.state.parcels, data=data, digest=digest))
        if self.state.work < WORK:
            ctx.set_timer("next", 0.02, Next())


class Done(msgspec.Struct):
    """Numbers in the order of their arrival."""

    numbers: list[int] = []


class Clumsy(snapline.Agent):
    """Changes its state before it fails: that must be undone."""

    retries = 1
    state: Done

    @snapline.handler
    async def on_work(self, message: Work, ctx: snapline.Context) -> None:
        self.state.numbers.append(message.number)
        ctx.set_timer(f"wrong-{message.number}", 0.0, Next())
        if message.number % WORK_FAILING == 0:
            raise ValueError(f"work {message.number} cannot be done")
        ctx.cancel_timer(f"wrong-{message.number}")

    @snapline.handler
    async def on_next(self, message: Next, ctx: snapline.Context) -> None:
        raise AssertionError("a timer of a turn that was undone")


class Depot(snapline.Agent):
    """Takes parcels that are whole."""

    state: Done

    @snapline.handler
    async def on_parcel(self, message: Parcel, ctx: snapline.Context) -> None:
        assert (len(message.data), hashlib.sha256(message.data).digest()) == (PARCEL_BYTES, message.digest)
        self.state.numbers.append(message.number)


fleet = snapline.Fleet(
    "everything",
    agents={
        "root": Node(Branch("", DEPTH)),
        "source": functools.partial(Source, Sent()),
        "clumsy": functools.partial(Clumsy, Done()),
        "depot": functools.partial(Depot, Done()),
    },
    triggers=[snapline.Every(seconds=0.25)],
    stop_when=lambda cut: cut.is_quiet,
)
