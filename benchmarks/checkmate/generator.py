"""What happens in the world that the queries look at: NEXMark's persons, auctions and bids, and links of a graph. Our own, after the papers' descriptions.

An event is a function of its stream and its number, and of nothing else: a source that goes back to a checkpoint says the same once more, and an
oracle (`oracle.py`) can say without any fleet what there is to come out. NEXMark (P. Tucker, K. Tufte, V. Papadimos, D. Maier, *NEXMark: A
Benchmark for Queries over Data Streams*, 2002) makes of fifty events one person, three auctions and 46 bids; a query's stream holds those that
it reads. The first of each hundred persons is popular: a part `hot` of all auctions and bids is theirs, and one worker owns them all, as in
CheckMate's generator (ICDE 2024), where they are the multiples of a hundred.
"""

import msgspec

import snapline

PERSONS, AUCTIONS, BIDS = 1, 3, 46
"""Persons, auctions and bids in fifty events."""

POPULAR_EVERY = 100
"""The first of this number of persons is popular. Auctions and bids are of persons among the last ones of this number."""

EARLIER = 1_000
"""Number of persons before the stream began."""

STATES = ("OR", "ID", "CA", "AZ", "WA", "WY")
CATEGORIES = 5

PERSON_EXTRA, AUCTION_EXTRA, BID_EXTRA = "p" * 120, "a" * 400, "b" * 50
"""Padding to about 200, 500 and 100 bytes, NEXMark's sizes."""

NODES = 1_000_000
"""Nodes of the graph, whose links mostly do not meet."""

SOURCE_SHARE = 0.2
FROM_SOURCE, FROM_END = 0.1, 0.2
"""Shares of the links that begin at a source, and at the end of another link."""

_MASK = (1 << 64) - 1


class Stream(msgspec.Struct, frozen=True):
    """One worker's part of the input. `kind`: "bids", "people" or "graph"; `hot`: of auctions or bids, those of popular persons.
    `tick_s`: interval at which its source sends due events."""

    kind: str
    partition: int
    workers: int
    rate_per_s: float
    events: int
    hot: float = 0.0
    tick_s: float = 0.05
    seed: int = 1


class Person(snapline.Message):
    """`at_ns`: when it happens, in the stream's time; `born_ns`: the same by the clock."""

    at_ns: int
    born_ns: int
    id: int
    name: str
    city: str
    state: str
    extra: str


class Auction(snapline.Message):
    at_ns: int
    born_ns: int
    id: int
    seller: int
    category: int
    reserve: int
    extra: str


class Bid(snapline.Message):
    at_ns: int
    born_ns: int
    auction: int
    bidder: int
    price: int
    extra: str


class Link(snapline.Message):
    at_ns: int
    born_ns: int
    start: int
    end: int


class Start(snapline.Message):
    """A node from which reachability is computed."""

    at_ns: int
    born_ns: int
    node: int


Happening = Person | Auction | Bid | Link | Start


def mixed(*parts: int) -> int:
    """64 bits that depend on all parts (the finaliser of splitmix64, part by part)."""
    value = 0x9E3779B97F4A7C15
    for part in parts:
        value = (value ^ part) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
        value ^= value >> 31
    return value


def chance(*parts: int) -> float:
    """0 ≤ x < 1."""
    return mixed(*parts) / (_MASK + 1)


def at_ns(stream: Stream, number: int) -> int:
    """When the event is due; workers take turns."""
    return round((number + stream.partition / stream.workers) * 1e9 / stream.rate_per_s)


def due(stream: Stream, since_start_ns: int) -> int:
    """How many events are due by then."""
    number = int(since_start_ns * stream.rate_per_s / 1e9 - stream.partition / stream.workers)
    while number < stream.events and at_ns(stream, number) <= since_start_ns:
        number += 1
    return min(number, stream.events)


def owner(key: int, workers: int) -> int:
    """The worker that a person, a seller, a bidder or a node belongs to."""
    return key % workers


def person_id(stream: Stream, index: int) -> int:
    """Of the stream's person of that index: unique in all streams."""
    workers = stream.workers
    worker = 0 if index % POPULAR_EVERY == 0 else mixed(stream.seed, 1, stream.partition, index) % workers
    return (index * workers + stream.partition) * workers + worker


def someone(stream: Stream, newest: int, *draw: int) -> int:
    """Id of a person who owns an auction or a bid, at a time when `newest` is the newest person's index."""
    if chance(*draw, 1) < stream.hot:
        return person_id(stream, newest // POPULAR_EVERY * POPULAR_EVERY)
    return person_id(stream, newest - mixed(*draw, 2) % POPULAR_EVERY)


def happening(stream: Stream, number: int, started_ns: int = 0) -> Happening:
    """The stream's event of that number; `started_ns`: when its time began, by the clock."""
    when = at_ns(stream, number)
    draw = (stream.seed, stream.partition, number)
    if stream.kind == "graph":
        return edge(stream, number, when, started_ns + when)
    if stream.kind == "bids":
        bidder = someone(stream, EARLIER + number // BIDS, *draw, 3)
        return Bid(when, started_ns + when, mixed(*draw, 4) % 1000, bidder, mixed(*draw, 5) % 10_000, BID_EXTRA)
    index, offset = EARLIER + number // (PERSONS + AUCTIONS), number % (PERSONS + AUCTIONS)
    if offset == 0:
        state = STATES[mixed(*draw, 6) % len(STATES)]
        key = person_id(stream, index)
        return Person(
            when, started_ns + when, key, f"person {key}", f"city {mixed(*draw, 7) % 100}", state, PERSON_EXTRA
        )
    seller, category = someone(stream, index, *draw, 3), mixed(*draw, 8) % CATEGORIES
    key = number * stream.workers + stream.partition
    return Auction(when, started_ns + when, key, seller, category, mixed(*draw, 9) % 10_000, AUCTION_EXTRA)


def edge(stream: Stream, number: int, when: int, born_ns: int) -> Link | Start:
    """An event of the graph's stream: a start or a link."""
    if is_start(stream, number):
        return Start(when, born_ns, end_of(stream, number))
    draw = (stream.seed, 10, stream.partition, number)
    earlier, drawn = mixed(*draw, 1) % (2 * number + 1), chance(*draw, 2)  # half of them come later
    limit = FROM_SOURCE / SOURCE_SHARE if is_start(stream, earlier) else FROM_END / (1 - SOURCE_SHARE)
    start = end_of(stream, earlier) if earlier != number and drawn < limit else mixed(*draw, 3) % NODES
    return Link(when, born_ns, start, end_of(stream, number))


def is_start(stream: Stream, number: int) -> bool:
    return chance(stream.seed, 11, stream.partition, number) < SOURCE_SHARE


def end_of(stream: Stream, number: int) -> int:
    """Where the event's link ends, or the node that it starts from."""
    return mixed(stream.seed, 12, stream.partition, number) % NODES
