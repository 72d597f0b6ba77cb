"""Executions to test recovery with, and what recovery is by definition: oracles that read events, and nothing else.

The oracles share no code with `recovery/`, and are as slow as definitions are: cuts are enumerated.
"""

import itertools
import random
import re
from collections.abc import Collection, Iterator, Sequence

from snapline.recovery.trace import CheckpointTaken, Event, Kind, MessageReceived, MessageSent, Trace

Cut = dict[str, int]
"""Agent → checkpoint; one more than its last one stands for its live state."""


def parse(text: str, agents: str = "") -> Trace:
    """`a! a>b b!`: `a!` a takes a checkpoint, `a!f` a forced one, `a>b` a sends and b receives at once, `a>m1:b` a sends
    m1 to b, `m1>b` b receives it. A `*` is ignored.
    """
    events: list[Event] = []
    names = dict.fromkeys(agents)
    numbers: dict[str, int] = {}
    for position, word in enumerate(text.replace("*", "").split(), 1):
        if taken := re.fullmatch(r"(\w)!(f?)", word):
            agent = taken[1]
            names[agent] = None
            numbers[agent] = numbers.get(agent, 0) + 1
            events.append(CheckpointTaken(agent, numbers[agent], "forced" if taken[2] else "basic"))
        elif sent := re.fullmatch(r"(\w)>(\w+):(\w)", word):
            names |= dict.fromkeys((sent[1], sent[3]))
            events.append(MessageSent(sent[1], sent[2], sent[3]))
        elif both := re.fullmatch(r"(\w)>(\w)", word):
            names |= dict.fromkeys(both.groups())
            events += [MessageSent(both[1], f"m{position}", both[2]), MessageReceived(both[2], f"m{position}")]
        else:
            message, _, receiver = word.partition(">")
            names[receiver] = None
            events.append(MessageReceived(receiver, message))
    return Trace(list(names), events)


class Going:
    """A random execution that goes on, event by event."""

    def __init__(self, source: random.Random, trace: Trace, *, is_fifo: bool = False) -> None:
        self.agents, self.events = list(trace.agents), list(trace.events)
        self._source, self._is_fifo = source, is_fifo
        self._next_message = itertools.count(1)
        self._numbers = dict.fromkeys(self.agents, 0)
        self._numbers |= {event.agent: event.number for event in self.events if isinstance(event, CheckpointTaken)}
        received = {event.message for event in self.events if isinstance(event, MessageReceived)}
        sends = [event for event in self.events if isinstance(event, MessageSent)]
        self._waiting = [event for event in sends if event.message not in received]
        self._used = {event.message for event in sends}

    def step(self, checkpoints: float) -> None:
        """One event: a checkpoint with this probability, else a send or a receive."""
        agent = self._source.choice(self.agents)
        if self._source.random() < checkpoints:
            self._numbers[agent] += 1
            kind: Kind = "forced" if self._source.random() < 0.3 else "basic"
            self.events.append(CheckpointTaken(agent, self._numbers[agent], kind))
        elif self._waiting and self._source.random() < 0.55:
            sent = self._source.choice(self._waiting)
            if self._is_fifo:
                sent = next(other for other in self._waiting if (other.agent, other.to) == (sent.agent, sent.to))
            self._waiting.remove(sent)
            self.events.append(MessageReceived(sent.to, sent.message))
        else:
            message = next(name for number in self._next_message if (name := f"m{number}") not in self._used)
            self._used.add(message)
            sent = MessageSent(agent, message, self._source.choice(self.agents))
            self._waiting.append(sent)
            self.events.append(sent)

    def trace(self) -> Trace:
        return Trace(list(self.agents), list(self.events))


def random_trace(source: random.Random, agents: int, steps: int, checkpoints: float, *, is_fifo: bool = False) -> Trace:
    """Messages between any two agents, also from one to itself; some are never received."""
    going = Going(source, Trace([chr(ord("a") + i) for i in range(agents)], []), is_fifo=is_fifo)
    for _ in range(steps):
        going.step(checkpoints)
    return going.trace()


def small_trace(seed: int) -> Trace:
    """One that can be searched through: 2 to 4 agents, a few checkpoints."""
    source = random.Random(seed)
    agents = source.randint(2, 4)
    return random_trace(source, agents, source.randint(3, 26), source.choice((0.15, 0.3, 0.45)))


def subsets(agents: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All sets of agents, the empty one too."""
    for size in range(len(agents) + 1):
        yield from itertools.combinations(agents, size)


# -- what is what, by definition ---------------------------------------------------------------------------------------


class Ends:
    """Where messages were sent and received, and how many checkpoints there are."""

    def __init__(self, trace: Trace) -> None:
        self.last = dict.fromkeys(trace.agents, 0)
        self.sent: dict[str, tuple[str, int]] = {}
        self.received: dict[str, tuple[str, int]] = {}
        for event in trace.events:
            if isinstance(event, CheckpointTaken):
                self.last[event.agent] = event.number
            elif isinstance(event, MessageSent):
                self.sent[event.message] = (event.agent, self.last[event.agent])
            else:
                self.received[event.message] = (event.agent, self.last[event.agent])

    def orphans(self, cut: Cut) -> list[str]:
        """Received inside the cut, sent outside it."""
        return [
            message
            for message, (agent, interval) in self.received.items()
            if interval < cut[agent] and not self.sent[message][1] < cut[self.sent[message][0]]
        ]

    def start(self, failed: Collection[str]) -> Cut:
        return {agent: last if agent in failed else last + 1 for agent, last in self.last.items()}


def consistent_cuts(trace: Trace) -> list[Cut]:
    """All of them, live states included."""
    ends = Ends(trace)
    ranges = [range(last + 2) for last in ends.last.values()]
    cuts = (dict(zip(ends.last, numbers, strict=True)) for numbers in itertools.product(*ranges))
    return [cut for cut in cuts if not ends.orphans(cut)]


def line_by_search(cuts: Sequence[Cut], start: Cut) -> Cut:
    """The greatest of the consistent cuts below the start. Fails if none is greatest."""
    below = [cut for cut in cuts if all(cut[agent] <= start[agent] for agent in start)]
    greatest = {agent: max(cut[agent] for cut in below) for agent in start}
    assert greatest in below, "the greatest consistent cut is not unique"
    return greatest


def line_by_fix_point(trace: Trace, failed: Collection[str]) -> Cut:
    """One orphan after another, its receiver goes back to the checkpoint before its receipt."""
    ends = Ends(trace)
    cut = ends.start(failed)
    while found := ends.orphans(cut):
        agent, interval = ends.received[found[-1]]
        cut[agent] = interval
    return cut


def rounds_by_definition(trace: Trace, failed: Collection[str]) -> list[tuple[Cut, list[str]]]:
    """Who moves in each synchronous round, where to, and the orphans that force it."""
    ends = Ends(trace)
    cut = ends.start(failed)
    steps: list[tuple[Cut, list[str]]] = [({agent: cut[agent] for agent in trace.agents if agent in failed}, [])]
    while found := ends.orphans(cut):
        moved: Cut = {}
        for message in found:
            agent, interval = ends.received[message]
            moved[agent] = min(interval, moved.get(agent, interval))
        steps.append((moved, [message for message in ends.sent if message in set(found)]))
        cut |= moved
    return steps


def useless_by_definition(trace: Trace, cuts: Sequence[Cut]) -> dict[str, list[int]]:
    """No consistent cut contains them."""
    last = Ends(trace).last
    found = {
        agent: [number for number in range(last[agent] + 1) if all(cut[agent] != number for cut in cuts)]
        for agent in last
    }
    return {agent: numbers for agent, numbers in found.items() if numbers}


def undo(trace: Trace, cut: Cut) -> Trace:
    """The execution that survives a recovery to `cut`."""
    numbers = dict.fromkeys(trace.agents, 0)
    kept: list[Event] = []
    for event in trace.events:
        number = numbers[event.agent]
        if isinstance(event, CheckpointTaken):
            number = numbers[event.agent] = event.number
            if number <= cut[event.agent]:
                kept.append(event)
        elif number < cut[event.agent]:
            kept.append(event)
    return Trace(list(trace.agents), kept)


def names_of(line: Sequence[int], trace: Trace) -> Cut:
    """A line of ordinals in names."""
    return dict(zip(trace.agents, line, strict=True))
