"""What communication-induced protocols put on messages, and what they cost: bytes and microseconds per message.

    .venv/bin/python benchmarks/piggyback.py [--neighbours 8] [--every 100] [--turns 5000]

Agents send to a few fixed neighbours in turns: a message is received, and one is sent. An agent takes a basic checkpoint
after `--every` turns without any, forced ones counted, as a periodic policy does; they start spread. Channels are FIFO.
The warm-up and each measured window last `--every` turns an agent, `--turns` in all at least. "delta" is what travels;
"absolute" is the same fleet, going on with all known entries on every message. µs are for one send, its test and its
merge, with the checkpoint action where there is one; what saving a checkpoint costs is not in it. Of three windows the
fastest is shown; with 1,000 agents there is one. Takes about five minutes.
"""

import argparse
import itertools
import platform
import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from snapline.protocols.rules import RULES, make_rule

SIZES = (3, 10, 100, 1_000)
QUADRATIC = ("bhmr",)
"""Not measured with 1,000 agents: a matrix of bits on every message."""

WINDOWS = 3


class Result(NamedTuple):
    """Result of one window: means per message, and the mean image of an agent at its end."""

    size_bytes: float
    micros: float
    forced: float
    image_bytes: float


class Fleet:
    """Rules under one random, repeatable load."""

    def __init__(self, name: str, agents: int, neighbours: int, every: int) -> None:
        random = self.random = Random(agents)
        self.rules = [make_rule(name, agent, agents) for agent in range(agents)]
        self.sends: list[Callable[[int], bytes]] = [rule.send for rule in self.rules]
        others_count = min(neighbours, agents - 1)
        self.neighbours = [
            random.sample([candidate for candidate in range(agents) if candidate != agent], others_count)
            for agent in range(agents)
        ]
        self.waiting: list[dict[int, deque[bytes]]] = [{} for _ in range(agents)]
        self.every = every
        self.turns_since = [random.randrange(every) for _ in range(agents)]
        self.messages = self.size_bytes = self.forced = 0
        self.seconds = 0.0
        for agent in range(agents):  # two messages in transit for each agent
            self.send_one(agent)
            self.send_one(agent)

    def send_one(self, agent: int) -> None:
        to = self.random.choice(self.neighbours[agent])
        start = time.perf_counter()
        piggyback = self.sends[agent](to)
        self.seconds += time.perf_counter() - start
        self.size_bytes += len(piggyback)
        self.messages += 1
        self.waiting[to].setdefault(agent, deque()).append(piggyback)

    def turn(self) -> None:
        agent = self.random.randrange(len(self.rules))
        channels = self.waiting[agent]
        if not channels:
            return
        self.turns_since[agent] += 1
        if self.turns_since[agent] >= self.every:
            self.rules[agent].checkpoint()
            self.turns_since[agent] = 0
        sender = self.random.choice(list(channels))
        piggyback = channels[sender].popleft()
        if not channels[sender]:
            del channels[sender]
        self.receive(agent, sender, piggyback)
        self.send_one(agent)
        if self.rules[agent].checkpoints_after_sends:
            self.rules[agent].checkpoint()
            self.note_forced(agent)

    def receive(self, agent: int, sender: int, piggyback: bytes) -> None:
        rule = self.rules[agent]
        start = time.perf_counter()
        is_forced = rule.forces(sender, piggyback)
        if is_forced:
            rule.checkpoint(piggyback)
        rule.receive(sender, piggyback)
        self.seconds += time.perf_counter() - start
        if is_forced:
            self.note_forced(agent)

    def note_forced(self, agent: int) -> None:
        self.forced += 1
        self.turns_since[agent] = 0


def measure(fleet: Fleet, turns: int) -> Result:
    """Measure one window; the cost of reading the clock is subtracted."""
    fleet.messages = fleet.size_bytes = fleet.forced = 0
    fleet.seconds = 0.0
    for _ in range(turns):
        fleet.turn()
    micros = (fleet.seconds / fleet.messages - 2 * clock_s()) * 1e6
    image = sum(len(rule.freeze()) for rule in fleet.rules) / len(fleet.rules)
    return Result(fleet.size_bytes / fleet.messages, max(0.0, micros), fleet.forced / fleet.messages, image)


def clock_s() -> float:
    """What one pair of clock readings costs, undisturbed."""
    readings = [time.perf_counter() for _ in range(2_000)]
    return min(after - before for before, after in itertools.pairwise(readings))


def row(name: str, agents: int, options: argparse.Namespace) -> str:
    fleet = Fleet(name, agents, options.neighbours, options.every)
    turns = max(options.turns, options.every * agents)
    windows = 1 if agents >= 1_000 else WINDOWS
    measure(fleet, turns)
    delta = min((measure(fleet, turns) for _ in range(windows)), key=lambda result: result.micros)
    fleet.sends = [rule.send_full for rule in fleet.rules]
    measure(fleet, options.turns)  # until hardly any delta is in transit
    absolute = min((measure(fleet, options.turns) for _ in range(windows)), key=lambda result: result.micros)
    return (
        f"{name:<13} {agents:>6,} {delta.size_bytes:>9.1f} {absolute.size_bytes:>9.1f} {delta.micros:>9.1f}"
        f" {absolute.micros:>9.1f} {delta.forced:>9.3f} {delta.image_bytes:>9.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5_000)
    parser.add_argument("--every", type=int, default=100)
    options = parser.parse_args()
    print(f"python {platform.python_version()}, {options.neighbours} neighbours, {options.every} turns a checkpoint")
    print(f"{'':<13} {'':>6} {'bytes per message':^19} {'µs per message':^19} {'forced':>9} {'image':>9}")
    heads = ("delta", "absolute", "delta", "absolute", "/message", "bytes")
    print(f"{'protocol':<13} {'agents':>6} " + " ".join(f"{head:>9}" for head in heads))
    for name in RULES:
        for agents in SIZES:
            if agents < 1_000 or name not in QUADRATIC:
                print(row(name, agents, options), flush=True)


if __name__ == "__main__":
    main()
