"""What the coordinator pays for dependency records: one more checkpoint, and what each failure would cost.

    python benchmarks/recovery_history.py

100 agents, at least 5,000 kept checkpoints. Traffic is drawn before the clock runs: agents send to random others of their
neighbours, messages are consumed a little later, and an agent takes a checkpoint after a fixed number of sends.

- sparse: 10 sends to up to 10 of 99 others between two checkpoints, so about 20 channels change;
- neighbours: the same, to 8 fixed neighbours, so about 16 channels change;
- induced: as sparse, and a checkpoint is forced before a message of a higher index is received (BCS), so that the
  total-failure line advances all the time;
- dense: one message to each of the 99 others.

channels: changed per record, sent and received together; each: `lines` for every agent and four hosts of 25; line: the
slowest of ten single failures; line lags: checkpoints between the last and the one on the total-failure line, mean.
In all but "induced" that line hardly ever advances: the domino effect, and the hardest case here.
"""

import functools
import gc
import random
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator

from snapline.recovery.dependency_history import FleetHistory

AGENTS = 100
KEPT = 5_000
"""Number of checkpoints before the measurement."""

MEASURED = 2_500
STEPS = 1_000
"""Checkpoints per agent of the staircase."""

Report = tuple[str, int, dict[str, int], dict[str, int]]


class Fleet:
    """Agents that send, consume and take checkpoints."""

    def __init__(self, seed: int, sends: int, *, neighbours: int, is_induced: bool) -> None:
        self.chance = random.Random(seed)
        self.sends, self.is_induced = sends, is_induced
        self.names = [f"a{number}" for number in range(AGENTS)]
        self.peers = [
            self.chance.sample([candidate for candidate in range(AGENTS) if candidate != agent], neighbours)
            for agent in range(AGENTS)
        ]
        self.sent: list[dict[str, int]] = [{} for _ in self.names]
        self.received: list[dict[str, int]] = [{} for _ in self.names]
        self.changed: list[tuple[set[str], set[str]]] = [(set(), set()) for _ in self.names]
        self.number, self.index, self.since = [0] * AGENTS, [0] * AGENTS, [0] * AGENTS
        self.under_way: deque[tuple[int, int, int, int]] = deque()  # sender, receiver, number, index

    def checkpoint(self, agent: int) -> Report:
        self.number[agent] += 1
        self.index[agent] += 1
        self.since[agent] = 0
        sent, received = self.changed[agent]
        self.changed[agent] = (set(), set())
        return (
            self.names[agent],
            self.number[agent],
            {peer: self.sent[agent][peer] for peer in sorted(sent)},
            {peer: self.received[agent][peer] for peer in sorted(received)},
        )

    def reports(self) -> Iterator[Report]:
        while True:
            agent = self.chance.randrange(AGENTS)
            peer = self.chance.choice(self.peers[agent])
            name = self.names[peer]
            self.sent[agent][name] = self.sent[agent].get(name, 0) + 1
            self.changed[agent][0].add(name)
            self.under_way.append((agent, peer, self.sent[agent][name], self.index[agent]))
            self.since[agent] += 1
            if len(self.under_way) > AGENTS // 2:
                yield from self.consume(*self.under_way.popleft())
            if self.since[agent] >= self.sends:
                yield self.checkpoint(agent)

    def consume(self, sender: int, receiver: int, number: int, index: int) -> Iterator[Report]:
        if self.is_induced and index > self.index[receiver]:
            yield self.checkpoint(receiver)
            self.index[receiver] = index
        self.received[receiver][self.names[sender]] = number
        self.changed[receiver][1].add(self.names[sender])


def draw(*, sends: int = 10, neighbours: int = AGENTS - 1, is_induced: bool = False) -> list[Report]:
    fleet = Fleet(1, sends, neighbours=neighbours, is_induced=is_induced)
    reports = fleet.reports()
    return [next(reports) for _ in range(KEPT + MEASURED)]


def timed(function: Callable[[], object]) -> float:
    """Return the CPU time in seconds, which excludes other programs."""
    gc.collect()
    start = time.process_time()
    function()
    return time.process_time() - start


def filled(reports: list[Report], history: FleetHistory | None = None) -> FleetHistory:
    history = history or FleetHistory([f"a{number}" for number in range(AGENTS)])
    for agent, number, sent, received in reports:
        history.add(agent, number, sent, received)
    return history


def row(name: str, reports: list[Report]) -> str:
    before, after = reports[:KEPT], reports[KEPT:]
    history = filled(before)
    add_s = timed(lambda: filled(after, history)) / len(after)
    channels = sum(len(sent) + len(received) for _, _, sent, received in after) / len(after)
    history = filled(before)
    names = [f"a{number}" for number in range(AGENTS)]
    failures = [[name] for name in names] + [
        names[start : start + AGENTS // 4] for start in range(0, AGENTS, AGENTS // 4)
    ]
    each_s = timed(lambda: history.lines(failures))
    one_s = max(timed(functools.partial(history.line, [name])) for name in names[::10])
    garbage_s = timed(history.obsolete)
    tracemalloc.start()
    kept = filled(before)
    size = tracemalloc.get_traced_memory()[0] / len(before)
    tracemalloc.stop()
    line = kept.total_line()
    lag = sum(reports_of - line[name] for name, reports_of in last_numbers(before).items()) / AGENTS
    figures = (add_s * 1e6, each_s * 1e3, one_s * 1e3, garbage_s * 1e3, size / 1024, lag)
    return f"{name:<11} {channels:>8.1f} " + " ".join(f"{figure:>11.1f}" for figure in figures)


def last_numbers(reports: list[Report]) -> dict[str, int]:
    return {agent: number for agent, number, _, _ in reports}


def staircase() -> tuple[float, float, float]:
    """Seconds per add, for the line if both fail, and for the line of each: the vector V3 of protocols.md, repeated."""
    history = FleetHistory(["a", "b"])

    def climb() -> None:
        for step in range(1, STEPS + 1):
            history.add("a", step, {"b": step - 1}, {"b": step - 1})  # the next message a>b is sent after this
            history.add("b", step, {"a": step - 1}, {"a": step})  # and received before this

    add_s = timed(climb) / (2 * STEPS)
    line_s = timed(lambda: history.line(["a", "b"]))
    assert history.line(["a", "b"]).checkpoints == {"a": 1, "b": 0} == history.total_line(), "not the domino effect"
    return add_s, line_s, timed(lambda: history.lines([["a"], ["b"]]))


def history_table() -> str:
    """The table, and a line on the staircase."""
    lines = [f"{AGENTS} agents, {KEPT} checkpoints kept; mean of {MEASURED} more"]
    heads = ("us/add", "each ms", "line ms", "obsolete ms", "KiB/record", "line lags")
    lines.append(f"{'traffic':<11} {'channels':>8} " + " ".join(f"{head:>11}" for head in heads))
    lines.append(row("sparse", draw()))
    lines.append(row("neighbours", draw(neighbours=8)))
    lines.append(row("induced", draw(is_induced=True)))
    lines.append(row("dense", draw(sends=300)))
    add_s, line_s, each_s = staircase()
    lines.append(
        f"staircase of {STEPS} checkpoints per agent: {add_s * 1e6:.1f} us/add, line {line_s * 1e3:.1f} ms, "
        f"each {each_s * 1e3:.1f} ms"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(history_table())
