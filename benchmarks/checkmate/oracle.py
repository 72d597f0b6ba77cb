"""What has to come out of a query, by plain Python over the events of all streams: no agents, no messages, no windows that are forgotten."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from benchmarks.checkmate.generator import Auction, Bid, Happening, Link, Person, Start, Stream, happening
from benchmarks.checkmate.queries import DIGESTS, WINDOW_NS, converted, digest

Values = tuple[int | str, ...]


def expected(query: str, of: Sequence[Stream]) -> tuple[int, int]:
    """How many rows, and the sum of their digests."""
    rows = list(ROWS[query]([happening(stream, number) for stream in of for number in range(stream.events)]))
    return len(rows), sum(map(digest, rows)) % DIGESTS


def q1(events: Sequence[Happening]) -> Iterator[Values]:
    for event in events:
        if isinstance(event, Bid):
            yield converted(event)


def q12(events: Sequence[Happening]) -> Iterator[Values]:
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for event in events:
        if isinstance(event, Bid):
            counts[event.at_ns // WINDOW_NS, event.bidder] += 1
    for (window, bidder), count in counts.items():
        yield from ((window, bidder, number) for number in range(1, count + 1))


def q3(events: Sequence[Happening]) -> Iterator[Values]:
    names = {x.id: x.name for x in events if isinstance(x, Person) and x.state in ("OR", "ID", "CA")}
    for event in events:
        if isinstance(event, Auction) and event.category == 0 and event.seller in names:
            yield 0, event.seller, names[event.seller], event.id


def q8(events: Sequence[Happening]) -> Iterator[Values]:
    persons = {x.id: x for x in events if isinstance(x, Person)}
    for event in events:
        if isinstance(event, Auction):
            seller, window = persons.get(event.seller), event.at_ns // WINDOW_NS
            if seller is not None and seller.at_ns // WINDOW_NS == window:
                yield window, seller.id, seller.name, event.id


def reachable(events: Sequence[Happening]) -> Iterator[Values]:
    links: dict[int, set[int]] = defaultdict(set)
    for event in events:
        if isinstance(event, Link):
            links[event.start].add(event.end)
    waiting: list[tuple[int, ...]] = [(node,) for node in {event.node for event in events if isinstance(event, Start)}]
    while waiting:
        nodes = waiting.pop()
        longer = [(*nodes, end) for end in links.get(nodes[-1], ()) if end not in nodes]
        yield from longer
        waiting += longer


ROWS = {"q1": q1, "q3": q3, "q8": q8, "q12": q12, "reachable": reachable}
