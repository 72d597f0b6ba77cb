"""CheckMate's queries as agents: sources, operators and sinks, one of each on every worker, which is a host.

    q1          bids → their price in another currency. No channel leaves a worker.
    q3          persons of three states, joined with their auctions of one category, over all that was seen
    q8          persons joined with their auctions, if both came in the same window
    q12         bids by bidder, counted as they come, in windows
    reachable   paths in a growing graph from given nodes: what the second operator finds goes back to the first, a cycle

Filters are in the sources, as engines chain them. Windows are of the stream's time, so that what comes out does not depend on when it was handled;
CheckMate's are of the clock. Its reachability query also deletes links; then the answer depends on the order in which the streams meet, and
nobody could say what it has to be, so ours only grows.

A source is behind when an event is due and not sent, and then sends at twice its rate at most. What `Sink` keeps is enough to compare with an
oracle: how many rows, and a sum of their digests, which no order changes.
"""

import functools
from collections.abc import Callable
from hashlib import blake2b

import msgspec
from benchmarks.checkmate.generator import (
    Auction,
    Bid,
    Link,
    Person,
    Start,
    Stream,
    due,
    happening,
    owner,
)

import snapline

QUERIES = {"q1": "bids", "q3": "people", "q8": "people", "q12": "bids", "reachable": "graph"}
"""Query → kind of its stream."""

NONE = "none"
"""Name for no protocol: no checkpoints."""

WINDOW_NS = 10_000_000_000
CATCH_UP = 2.0
"""Largest rate of a source that is behind, as a multiple of its normal rate."""

DIGESTS = 1 << 64


class Tick(snapline.Message):
    """A source's timer."""


class Path(snapline.Message):
    """From its first node, which was asked for, to its last one."""

    born_ns: int
    nodes: list[int]


class Step(snapline.Message):
    """A path and a link that goes on from it."""

    born_ns: int
    nodes: list[int]
    end: int


class Row(snapline.Message):
    """What comes out; `born_ns`: of the event that it comes of, the younger one where there are two."""

    born_ns: int
    values: tuple[int | str, ...]


def digest(values: tuple[int | str, ...]) -> int:
    """Of one row."""
    return int.from_bytes(blake2b(msgspec.msgpack.encode(values), digest_size=8).digest(), "big")


def bucket(ns: int) -> int:
    """Of a histogram whose buckets are 3 % wide, in microseconds."""
    micros = max(0, ns // 1000)
    shift = max(0, micros.bit_length() - 6)
    return (shift << 6) + (micros >> shift)


def middle_s(number: int) -> float:
    """Of a bucket."""
    shift, place = number >> 6, number & 63
    return ((place << shift) + (1 << shift) / 2) / 1e6


class Feed(msgspec.Struct):
    """`position`: of the next event. `sent`: those before it that some operator gets."""

    query: str
    stream: Stream
    started_ns: int = 0
    position: int = 0
    sent: int = 0


class Source(snapline.Agent):
    state: Feed

    async def on_start(self, ctx: snapline.Context) -> None:
        self.state.started_ns = ctx.now()
        ctx.set_timer("tick", self.state.stream.tick_s, Tick())

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        state = self.state
        stream = state.stream
        most = state.position + 1 + int(CATCH_UP * stream.tick_s * stream.rate_per_s)
        until = min(most, due(stream, ctx.now() - state.started_ns))
        for number in range(state.position, until):
            event = happening(stream, number, state.started_ns)
            to = receiver(state.query, stream, event)
            if to:
                state.sent += 1
                ctx.send(to, event)
        state.position = max(state.position, until)
        if state.position < stream.events:
            ctx.set_timer("tick", stream.tick_s, Tick())


def receiver(query: str, stream: Stream, event: object) -> str:
    """Which operator gets the event; "" for those that the source drops."""
    match query, event:
        case "q1", _:
            return f"convert-{stream.partition}"
        case "q12", Bid():
            return f"count-{owner(event.bidder, stream.workers)}"
        case (("q3" | "q8"), Person()):
            is_wanted = query == "q8" or event.state in ("OR", "ID", "CA")
            return f"join-{owner(event.id, stream.workers)}" if is_wanted else ""
        case (("q3" | "q8"), Auction()):
            is_wanted = query == "q8" or event.category == 0
            return f"join-{owner(event.seller, stream.workers)}" if is_wanted else ""
        case _, Link():
            return f"reach-{owner(event.start, stream.workers)}"
        case _, Start():
            return f"reach-{owner(event.node, stream.workers)}"
        case _:
            raise AssertionError(f"{query} has no use for {event}")


class Conversion(msgspec.Struct):
    """`taken`, of every operator: events of the sources so far."""

    sink: str
    taken: int = 0


class Convert(snapline.Agent):
    state: Conversion

    @snapline.handler
    async def on_bid(self, bid: Bid, ctx: snapline.Context) -> None:
        self.state.taken += 1
        ctx.send(self.state.sink, Row(bid.born_ns, converted(bid)))


def converted(bid: Bid) -> tuple[int, int, int]:
    return bid.auction, bid.bidder, bid.price * 908 // 1000


class Counts(msgspec.Struct):
    """`windows`: window → bidder → bids. `newest`: source → the newest window that it has sent of; `sources`: how many there are."""

    sink: str
    sources: int
    taken: int = 0
    windows: dict[int, dict[int, int]] = {}
    newest: dict[str, int] = {}


class Count(snapline.Agent):
    state: Counts

    @snapline.handler
    async def on_bid(self, bid: Bid, ctx: snapline.Context) -> None:
        state = self.state
        state.taken += 1
        window = bid.at_ns // WINDOW_NS
        counts = state.windows.setdefault(window, {})
        counts[bid.bidder] = number = counts.get(bid.bidder, 0) + 1
        ctx.send(state.sink, Row(bid.born_ns, (window, bid.bidder, number)))
        if moved(state.newest, ctx.sender, window) and len(state.newest) == state.sources:
            forget(state.windows, min(state.newest.values()))


def moved(newest: dict[str, int], sender: str, window: int) -> bool:
    """Note a message; return whether the sender has reached a new window."""
    is_new = newest.get(sender) != window
    newest[sender] = window
    return is_new


def forget(windows: dict[int, dict[int, int]] | dict[int, "Table"], oldest: int) -> None:
    """Drop windows that every source has left."""
    for window in [window for window in windows if window < oldest]:
        del windows[window]


class Table(msgspec.Struct):
    """Of one window. `persons`: id → name. `auctions`: seller → ids."""

    persons: dict[int, str] = {}
    auctions: dict[int, list[int]] = {}


class Tables(msgspec.Struct):
    """`window_ns`: 0 is one window for ever. `newest`, `sources`: as of `Counts`."""

    sink: str
    sources: int
    window_ns: int
    taken: int = 0
    windows: dict[int, Table] = {}
    newest: dict[str, int] = {}


class Join(snapline.Agent):
    """The later of the two makes the row."""

    state: Tables

    @snapline.handler
    async def on_person(self, person: Person, ctx: snapline.Context) -> None:
        window, table = self._table(person.at_ns, ctx)
        table.persons[person.id] = person.name
        for auction in table.auctions.get(person.id, ()):
            ctx.send(self.state.sink, Row(person.born_ns, (window, person.id, person.name, auction)))

    @snapline.handler
    async def on_auction(self, auction: Auction, ctx: snapline.Context) -> None:
        window, table = self._table(auction.at_ns, ctx)
        table.auctions.setdefault(auction.seller, []).append(auction.id)
        name = table.persons.get(auction.seller)
        if name is not None:
            ctx.send(self.state.sink, Row(auction.born_ns, (window, auction.seller, name, auction.id)))

    def _table(self, at_ns: int, ctx: snapline.Context) -> tuple[int, Table]:
        state = self.state
        state.taken += 1
        window = at_ns // state.window_ns if state.window_ns else 0
        table = state.windows.setdefault(window, Table())
        if moved(state.newest, ctx.sender, window) and len(state.newest) == state.sources:
            forget(state.windows, min(state.newest.values()))
        return window, table


class Reached(msgspec.Struct):
    """`links`: start → ends. `paths`: last node → paths that end there."""

    extend: str
    taken: int = 0
    links: dict[int, list[int]] = {}
    paths: dict[int, list[list[int]]] = {}


class Reach(snapline.Agent):
    """Joins paths with links that go on from them: the later of the two makes the step."""

    state: Reached

    @snapline.handler
    async def on_start_node(self, start: Start, ctx: snapline.Context) -> None:
        self.state.taken += 1
        self._go_on(ctx, start.born_ns, [start.node])

    @snapline.handler
    async def on_path(self, path: Path, ctx: snapline.Context) -> None:
        self._go_on(ctx, path.born_ns, path.nodes)

    @snapline.handler
    async def on_link(self, link: Link, ctx: snapline.Context) -> None:
        self.state.taken += 1
        ends = self.state.links.setdefault(link.start, [])
        if link.end in ends:
            return
        ends.append(link.end)
        for nodes in self.state.paths.get(link.start, ()):
            ctx.send(self.state.extend, Step(link.born_ns, nodes, link.end))

    def _go_on(self, ctx: snapline.Context, born_ns: int, nodes: list[int]) -> None:
        paths = self.state.paths.setdefault(nodes[-1], [])
        if nodes in paths:
            return  # two starts at one node
        paths.append(nodes)
        for end in self.state.links.get(nodes[-1], ()):
            ctx.send(self.state.extend, Step(born_ns, nodes, end))


class Extension(msgspec.Struct):
    sink: str
    workers: int


class Extend(snapline.Agent):
    """Paths that do not meet themselves come out, and go back to where they may be continued."""

    state: Extension

    @snapline.handler
    async def on_step(self, step: Step, ctx: snapline.Context) -> None:
        if step.end in step.nodes:
            return
        nodes = [*step.nodes, step.end]
        ctx.send(self.state.sink, Row(step.born_ns, tuple(nodes)))
        ctx.send(f"reach-{owner(step.end, self.state.workers)}", Path(step.born_ns, nodes))


class Seen(msgspec.Struct):
    """`rows`, `digests`: how many, and the sum of theirs. `latencies`: bucket → rows."""

    rows: int = 0
    digests: int = 0
    latencies: dict[int, int] = {}


class Sink(snapline.Agent):
    state: Seen

    @snapline.handler
    async def on_row(self, row: Row, ctx: snapline.Context) -> None:
        state = self.state
        state.rows += 1
        state.digests = (state.digests + digest(row.values)) % DIGESTS
        number = bucket(ctx.now() - row.born_ns)
        state.latencies[number] = state.latencies.get(number, 0) + 1


def streams(query: str, workers: int, rate_per_s: float, events: int, hot: float, tick_s: float) -> list[Stream]:
    """Of all workers. `rate_per_s`, `events`: of all of them together."""
    each = -(-events // workers)
    return [Stream(QUERIES[query], place, workers, rate_per_s / workers, each, hot, tick_s) for place in range(workers)]


def agents_of(query: str, stream: Stream) -> dict[str, snapline.Agent]:
    """Those of the stream's worker."""
    worker = stream.partition
    sink = f"sink-{worker}"
    found: dict[str, snapline.Agent] = {f"source-{worker}": Source(Feed(query, stream)), sink: Sink(Seen())}
    match query:
        case "q1":
            found[f"convert-{worker}"] = Convert(Conversion(sink))
        case "q12":
            found[f"count-{worker}"] = Count(Counts(sink, stream.workers))
        case "reachable":
            found[f"reach-{worker}"] = Reach(Reached(f"extend-{worker}"))
            found[f"extend-{worker}"] = Extend(Extension(sink, stream.workers))
        case _:
            found[f"join-{worker}"] = Join(Tables(sink, stream.workers, WINDOW_NS if query == "q8" else 0))
    return found


def fleet(
    query: str = "q12",
    protocol: str = "chandy-lamport",
    workers: str = "2",
    every: str = "5",
    rate: str = "100",
    events: str = "1000",
    hot: str = "0",
    tick: str = "0.05",
) -> snapline.Fleet:
    """The query on hosts h1, h2, …, with a checkpoint `every` seconds; it ends once all events were handled."""
    agents: dict[str, Callable[[], snapline.Agent]] = {}
    place: dict[str, str] = {}
    for stream in streams(query, int(workers), float(rate), int(events), float(hot), float(tick)):
        for name in agents_of(query, stream):
            agents[name] = functools.partial(_agent, query, stream, name)
            place[name] = f"h{stream.partition + 1}"
    triggers = [] if protocol == NONE else [snapline.Every(float(every))]
    return snapline.Fleet(
        f"checkmate-{query}",
        agents=agents,
        protocol="chandy-lamport" if protocol == NONE else protocol,
        triggers=triggers,
        stop_when=is_finished,
        place=place,
    )


def _agent(query: str, stream: Stream, name: str) -> snapline.Agent:
    return agents_of(query, stream)[name]


def is_finished(cut: snapline.Cut) -> bool:
    """Nothing is under way, and all events were sent. Other states are not decoded: they are large."""
    return cut.is_quiet and all(_is_at_its_end(cut.states[name]) for name in cut.states if name.startswith("source-"))


def _is_at_its_end(state: object) -> bool:
    return isinstance(state, Feed) and state.position == state.stream.events
