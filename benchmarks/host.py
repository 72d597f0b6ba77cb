"""What the host core costs: CPU microseconds for each message that two hosts handle, without handlers, sockets or a store.

    python benchmarks/host.py [--against SRC] [--rounds 15] [--messages 40000]

Two host cores in one process, eight agents on each. In "here" every turn sends one message on to an agent of the same host, in
"link" to one of the other host, by the hosts' own frames; in "epochs" the same with an epoch begun and ended every thousand
messages. Logged protocols send over the link. The loop that carries commands out is in the figure; it is the same for all.

`--against SRC` names the `src` of another checkout: both run in turns, each in a process of its own, and the ratio within a round is
shown as median, with an interval of 95 % for it from the rounds' order statistics.
"""

import argparse
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.protocols.names import CHANDY_LAMPORT, KOO_TOUEG, UNCOORDINATED

AGENTS = 8
TOKENS = 8
"""Messages under way, for each agent."""

PAYLOAD = b"\x01t" + b"." * 62
EPOCH_EVERY = 1000
WINDOWS = 3

LOADS = {
    "here": (CHANDY_LAMPORT, False, False),
    "link": (CHANDY_LAMPORT, True, False),
    "epochs": (CHANDY_LAMPORT, True, True),
    "uncoordinated": (UNCOORDINATED, True, False),
    "bcs": ("bcs", True, False),
    "hmnr": ("hmnr", True, False),
    "koo-toueg": (KOO_TOUEG, True, False),
}
"""Name → protocol, over the link, with epochs."""


def word(now: str, before: str) -> Any:
    """A word of the coordinator's; the checkout of `--against` may have an event of its host core for it."""
    return getattr(ev, before, None) or getattr(importlib.import_module("snapline.messages.host_messages"), now)


Welcome, Roster, RosterEntry = (
    word("Welcome", "Welcomed"),
    word("Roster", "RosterReceived"),
    word("RosterEntry", "RosterEntry"),
)
BeginEpoch, EndEpoch = word("BeginEpoch", "EpochBegun"), word("EndEpoch", "EpochEnded")


class Pair:
    """Two hosts and what is under way between them."""

    def __init__(self, protocol: str, *, is_linked: bool, has_epochs: bool) -> None:
        self.cores = {host: HostCore(host, protocol=protocol) for host in ("h1", "h2")}
        self.queues: dict[str, deque[ev.StartTurn]] = {host: deque() for host in self.cores}
        self.now = self.handled = self.epoch = 0
        self.has_epochs = has_epochs
        names = [f"{host}-{index}" for index in range(AGENTS) for host in self.cores]
        step = 1 if is_linked else 2
        self.to = {name: names[(place + step) % len(names)] for place, name in enumerate(names)}
        roster = tuple(RosterEntry(host, "", 1) for host in self.cores)
        places = tuple(ev.Placement(name, "k", name[:2], 1, place) for place, name in enumerate(names))
        for host in self.cores:
            self.feed(host, Welcome(1, "c"))
            self.feed(host, Roster(roster))
            self.feed(host, ev.PlanReceived(1, 0, "", 0, tuple(self.cores), places))
            mine = tuple(ev.LoadedAgent(place.agent, 1, None) for place in places if place.host == host)
            self.feed(host, ev.AgentsLoaded(1, mine))
        for host, other in (("h1", "h2"), ("h2", "h1")):
            self.feed(host, ev.StreamOpened(other, 1))
        for _ in range(4):
            self.exchange()
        self.play_starts()

    def feed(self, host: str, event: "ev.Heard") -> None:
        queue = self.queues[host]
        for command in self.cores[host].handle(self.now, event):
            if type(command) is ev.StartTurn:
                queue.append(command)
            elif type(command) is ev.WriteFrame:
                self.feed(command.peer, ev.FrameReceived(host, command.frame))
            elif type(command) is ev.StoreEpoch:
                self.feed(host, ev.EpochStored(command.epoch, 1))

    def play_starts(self) -> None:
        """Each agent's first turn puts its messages under way."""
        for host, queue in self.queues.items():
            for _ in range(len(queue)):
                turn = queue.popleft()
                self.feed(host, ev.TurnEnded(turn.agent, 1, [(self.to[turn.agent], PAYLOAD)] * TOKENS))

    def exchange(self) -> None:
        self.now += 1_000_000
        for host, core in self.cores.items():
            self.feed(host, ev.BatchEnded())
            wakeup_ns = core.wakeup_ns
            if wakeup_ns is not None and wakeup_ns <= self.now:
                self.feed(host, ev.TimerFired())
        for host, other in (("h1", "h2"), ("h2", "h1")):
            self.feed(host, ev.WriteReady(other))

    def run(self, messages: int) -> None:
        to = self.to
        end = self.handled + messages
        while self.handled < end:
            for host, queue in self.queues.items():
                for _ in range(len(queue)):
                    turn = queue.popleft()
                    self.feed(host, ev.TurnEnded(turn.agent, 1, [(to[turn.agent], turn.payload)]))
                    self.handled += 1
            self.exchange()
            if self.has_epochs and self.handled // EPOCH_EVERY > self.epoch:
                self.next_epoch()

    def next_epoch(self) -> None:
        for host in self.cores:
            if self.epoch:
                self.feed(host, EndEpoch(self.epoch, True))
        self.epoch += 1
        for host in self.cores:
            self.feed(host, BeginEpoch(self.epoch, 1))


def measure(load: str, messages: int) -> float:
    """The best window's microseconds for a message: a neighbour only ever makes things slower."""
    protocol, is_linked, has_epochs = LOADS[load]
    pair = Pair(protocol, is_linked=is_linked, has_epochs=has_epochs)
    pair.run(messages // 4)
    gc.collect()
    gc.disable()
    best = float("inf")
    for _ in range(WINDOWS):
        handled, before = pair.handled, time.process_time()
        pair.run(messages // WINDOWS)
        best = min(best, (time.process_time() - before) / (pair.handled - handled) * 1e6)
    return best


def child(source: str | None, loads: list[str], messages: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": source} if source else dict(os.environ)
    command = [sys.executable, str(Path(__file__)), "--child", "--messages", str(messages), "--loads", *loads]
    return dict(json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout))


def interval(values: list[float]) -> tuple[float, float]:
    """Of the median, 95 %: the order statistics that a fair coin would not leave between (normal approximation)."""
    ordered, count = sorted(values), len(values)
    off = round(0.98 * count**0.5)
    middle = count / 2
    return ordered[max(0, int(middle - off))], ordered[min(count - 1, int(middle + off))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="SRC")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps({load: measure(load, options.messages) for load in options.loads}))
        return
    ours: dict[str, list[float]] = {load: [] for load in options.loads}
    theirs: dict[str, list[float]] = {load: [] for load in options.loads}
    for number in range(options.rounds):
        pair = [(None, ours), (options.against, theirs)] if options.against else [(None, ours)]
        for source, found in pair if number % 2 else pair[::-1]:
            for load, micros in child(source, options.loads, options.messages).items():
                found[load].append(micros)
    for load, values in ours.items():
        line = f"{load:<14} {statistics.median(values):6.2f} µs"
        if theirs[load]:
            ratios = [one / other for one, other in zip(values, theirs[load], strict=True)]
            low, high = interval(ratios)
            line += f"   before {statistics.median(theirs[load]):6.2f} µs   ratio {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]"
        print(line, flush=True)


if __name__ == "__main__":
    main()
