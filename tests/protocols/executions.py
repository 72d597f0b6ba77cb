"""Random executions that drive checkpoint rules, reference rules to compare with, and oracles that judge the result.

A *script* is what a fleet does by itself: basic checkpoints, sends, receives, in one global order. Driving rules through
it adds the forced checkpoints and gives *histories*: per agent its own events. The oracles know histories only: which
checkpoint is useless, and which Z-path no vector shows, by the R-graph (R. Netzer and J. Xu; Y.-M. Wang); all cuts,
where the execution is tiny. The reference rules are the protocols as the papers have them: lists of fixed length,
absolute piggybacks, copied. They share no code with the product.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import and_, gt, or_
from random import Random
from typing import NamedTuple, Protocol, Self, TypeVar

from snapline.protocols.rule import CheckpointRule

P = TypeVar("P")

BASIC, FORCED, SEND, RECEIVE = "basic", "forced", "send", "receive"


class Step(NamedTuple):
    """One step of a script; `to` with SEND only, `message` with SEND and RECEIVE."""

    kind: str
    agent: int
    message: int = -1
    to: int = -1


class Event(NamedTuple):
    """One event of a history."""

    kind: str
    message: int = -1


Script = list[Step]
Histories = list[list[Event]]


class Driven(Protocol[P]):
    """What the driver asks of a rule, of the product or of the references."""

    @property
    def checkpoints_after_sends(self) -> bool: ...
    def checkpoint(self, cause: P | None = None) -> None: ...
    def send(self, to: int) -> P: ...
    def forces(self, sender: int, piggyback: P) -> bool: ...
    def receive(self, sender: int, piggyback: P) -> None: ...


# -- scripts ----------------------------------------------------------------------------------------------------------


def random_script(
    random: Random,
    *,
    agents: int,
    steps: int,
    basic: float,
    is_fifo: bool = True,
    in_turns: bool = False,
    to_self: float = 0.0,
) -> Script:
    """A script of about `steps` steps, each a basic checkpoint with probability `basic`.

    Args:
        is_fifo: every channel delivers in order; otherwise any message may overtake.
        in_turns: sends follow a receive, none to two of them; otherwise sends and receives are independent.
        to_self: probability that an agent sends to itself.
    """
    script: Script = []
    waiting: list[Step] = []

    def send(agent: int) -> None:
        others = [other for other in range(agents) if other != agent]
        to = agent if random.random() < to_self else random.choice(others)
        step = Step(SEND, agent, next(numbers), to)
        script.append(step)
        waiting.append(step)

    def receive() -> int:
        step = random.choice(waiting)
        if is_fifo:
            step = next(other for other in waiting if (other.agent, other.to) == (step.agent, step.to))
        waiting.remove(step)
        script.append(Step(RECEIVE, step.to, step.message))
        return step.to

    numbers = itertools.count()
    while len(script) < steps:
        if random.random() < basic:
            script.append(Step(BASIC, random.randrange(agents)))
        elif in_turns:
            agent = receive() if waiting and random.random() < 0.9 else random.randrange(agents)
            for _ in range(random.choice((0, 1, 1, 2))):
                send(agent)
        elif waiting and random.random() < 0.5:
            receive()
        else:
            send(random.randrange(agents))
    return script


def small_scripts(seeds: range, *, is_fifo: bool | None = None) -> Iterator[Script]:
    """One small script a seed, of all shapes; `is_fifo` None: of both kinds."""
    for seed in seeds:
        random = Random(seed)
        yield random_script(
            random,
            agents=random.choice((2, 3, 3, 4, 5)),
            steps=random.choice((12, 25, 40)),
            basic=random.choice((0.05, 0.15, 0.3)),
            is_fifo=bool(seed % 2) if is_fifo is None else is_fifo,
            in_turns=random.random() < 0.4,
            to_self=random.choice((0.0, 0.0, 0.1)),
        )


def parse(text: str, agents: str = "abcde") -> Script:
    """The notation of the vectors: `a!` a checkpoint, `a>b` a message sent and received at once."""
    script: Script = []
    for number, word in enumerate(text.replace("*", "").split()):
        agent = agents.index(word[0])
        if word[1] == "!":
            script.append(Step(BASIC, agent))
        else:
            to = agents.index(word[2])
            script += [Step(SEND, agent, number, to), Step(RECEIVE, to, number)]
    return script


def agents_of(script: Script) -> int:
    """Above every agent in it."""
    return max(max(step.agent, step.to) for step in script) + 1


# -- driving ----------------------------------------------------------------------------------------------------------


class Execution(NamedTuple):
    """`forced`: for each forced checkpoint the position in the script of the step that forced it."""

    histories: Histories
    forced: list[int]


def drive(script: Script, rules: Sequence[Driven[P]], each: Callable[[int], None] | None = None) -> Execution:
    """Let the rules, one an agent, take part in the script. `each` is called with every position before its step."""
    histories: Histories = [[] for _ in rules]
    forced: list[int] = []
    piggybacks: dict[int, tuple[int, P]] = {}
    for position, (kind, agent, message, to) in enumerate(script):
        if each is not None:
            each(position)
        rule, history = rules[agent], histories[agent]
        if kind == BASIC:
            rule.checkpoint()
        elif kind == SEND:
            piggybacks[message] = agent, rule.send(to)
        else:
            sender, piggyback = piggybacks.pop(message)
            if rule.forces(sender, piggyback):
                rule.checkpoint(piggyback)
                history.append(Event(FORCED))
                forced.append(position)
            rule.receive(sender, piggyback)
        history.append(Event(kind, message))
        if kind == SEND and rule.checkpoints_after_sends:
            rule.checkpoint()
            history.append(Event(FORCED))
            forced.append(position)
    return Execution(histories, forced)


class Full:
    """A rule whose every piggyback is absolute, for channels that are not FIFO."""

    def __init__(self, rule: CheckpointRule) -> None:
        self.checkpoints_after_sends = rule.checkpoints_after_sends
        self.checkpoint, self.send = rule.checkpoint, rule.send_full
        self.forces, self.receive = rule.forces, rule.receive


# -- oracles ----------------------------------------------------------------------------------------------------------


class Graph:
    """The R-graph of histories, and true dependency vectors.

    Attributes:
        nodes: by agent, the nodes of its intervals in order; the last one is live.
        reached_by: by node, the mask of nodes that reach it, itself included.
        vectors: by node, at the end of its interval, per agent the latest interval in the causal past, or -1.
    """

    def __init__(self, histories: Histories) -> None:
        agents = range(len(histories))
        self.nodes: list[list[int]] = [[] for _ in agents]
        self.vectors: list[list[int]] = []
        self._sources: list[list[int]] = []
        self._sent: dict[int, tuple[int, list[int]]] = {}
        for agent in agents:
            self._open(agent, [-1 for _ in agents])
        places = [0 for _ in agents]
        while any(self._replay(agent, histories[agent], places) for agent in agents):
            pass
        assert places == [len(history) for history in histories], "a receive without its send"
        self.reached_by = self._close()

    def _open(self, agent: int, vector: list[int]) -> None:
        node = len(self.vectors)
        self._sources.append(self.nodes[agent][-1:])
        self.nodes[agent].append(node)
        vector[agent] += 1
        self.vectors.append(vector)

    def _replay(self, agent: int, history: list[Event], places: list[int]) -> bool:
        """As far as the sends known allow; whether there was anything to do."""
        start = places[agent]
        for kind, message in history[start:]:
            node = self.nodes[agent][-1]
            vector = self.vectors[node]
            if kind in (BASIC, FORCED):
                self._open(agent, list(vector))
            elif kind == SEND:
                self._sent[message] = node, list(vector)
            elif message in self._sent:
                source, news = self._sent[message]
                self._sources[node].append(source)
                vector[:] = map(max, vector, news)
            else:
                break
            places[agent] += 1
        return places[agent] > start

    def _close(self) -> list[int]:
        reached_by = [1 << node for node in range(len(self.vectors))]
        is_growing = True
        while is_growing:
            is_growing = False
            for node, sources in enumerate(self._sources):
                mask = reached_by[node]
                for source in sources:
                    mask |= reached_by[source]
                if mask != reached_by[node]:
                    reached_by[node] = mask
                    is_growing = True
        return reached_by

    def useless(self) -> list[tuple[int, int]]:
        """(agent, number) of every checkpoint on a Z-cycle."""
        return [
            (agent, number)
            for agent, nodes in enumerate(self.nodes)
            for number in range(1, len(nodes))
            if self.reached_by[nodes[number - 1]] >> nodes[number] & 1
        ]

    def untracked(self) -> list[tuple[int, int, int, int]]:
        """(i, x, j, y): I(i,x) reaches I(j,y), and no causal path says so."""
        masks = [sum(1 << node for node in nodes) for nodes in self.nodes]
        found = []
        for j, nodes in enumerate(self.nodes):
            for y, node in enumerate(nodes):
                for i, mask in enumerate(masks):
                    latest = (self.reached_by[node] & mask).bit_length() - 1
                    if latest >= 0 and (x := self.nodes[i].index(latest)) > self.vectors[node][i]:
                        found.append((i, x, j, y))
        return found


Messages = list[tuple[int, int, int, int]]
"""Of every message received: sender and interval of the send, receiver and interval of the receive."""


def messages_of(histories: Histories) -> Messages:
    places: dict[tuple[str, int], tuple[int, int]] = {}
    for agent, history in enumerate(histories):
        interval = 0
        for kind, message in history:
            if kind in (BASIC, FORCED):
                interval += 1
            else:
                places[kind, message] = agent, interval
    return [(*places[SEND, message], *place) for (kind, message), place in places.items() if kind == RECEIVE]


def is_consistent(messages: Messages, cut: Sequence[int]) -> bool:
    """No message is received before `cut` and sent after it. The live state has the number after the last checkpoint."""
    return not any(received < cut[receiver] and sent >= cut[sender] for sender, sent, receiver, received in messages)


def useless_by_all_cuts(histories: Histories) -> list[tuple[int, int]]:
    """The definition: no consistent cut contains it. Exponential."""
    lasts = [sum(event.kind in (BASIC, FORCED) for event in history) for history in histories]
    messages = messages_of(histories)
    cuts = [cut for cut in itertools.product(*(range(last + 2) for last in lasts)) if is_consistent(messages, cut)]
    useful = {(agent, number) for cut in cuts for agent, number in enumerate(cut)}
    return [
        (agent, number)
        for agent, last in enumerate(lasts)
        for number in range(last + 1)
        if (agent, number) not in useful
    ]


# -- reference rules --------------------------------------------------------------------------------------------------


class Reference:
    """A rule as the papers have it, for a fleet of known size. A piggyback is a copy of the whole sender."""

    checkpoints_after_sends = False

    def __init__(self, own: int, agents: int) -> None:
        self.own = own
        self.others = [k for k in range(agents) if k != own]
        self.sent_to = [False] * agents
        self.has_sent = self.has_acted = False
        self.start(agents)
        self.checkpoint()

    def start(self, agents: int) -> None:
        """The protocol's own variables before the initial checkpoint."""

    def checkpoint(self, cause: Self | None = None) -> None:
        self.sent_to = [False for _ in self.sent_to]
        self.has_sent = self.has_acted = False

    def copy(self) -> Self:
        twin = object.__new__(type(self))
        for name, value in vars(self).items():
            is_matrix = isinstance(value, list) and value and isinstance(value[0], list)
            setattr(twin, name, [row[:] for row in value] if is_matrix else copy.copy(value))
        return twin

    def send(self, to: int) -> Self:
        self.sent_to[to] = self.has_sent = self.has_acted = True
        return self.copy()

    def forces(self, sender: int, m: Self) -> bool:
        return False

    def receive(self, sender: int, m: Self) -> None:
        self.has_acted = True


class ReferenceBcs(Reference):
    def start(self, agents: int) -> None:
        self.index = -1

    def checkpoint(self, cause: Self | None = None) -> None:
        self.index += 1
        if cause is not None:
            self.index = cause.index

    def forces(self, sender: int, m: Self) -> bool:
        return m.index > self.index

    def receive(self, sender: int, m: Self) -> None:
        self.index = max(self.index, m.index)


class ReferenceHmnr(Reference):
    def start(self, agents: int) -> None:
        self.clock = 0
        self.count = [0] * agents
        self.taken, self.greater = [False] * agents, [False] * agents

    def checkpoint(self, cause: Self | None = None) -> None:
        super().checkpoint(cause)
        for k in self.others:
            self.taken[k] = self.greater[k] = True
        self.clock += 1
        self.count[self.own] += 1

    def forces(self, sender: int, m: Self) -> bool:
        c1 = m.clock > self.clock and any(map(and_, self.sent_to, m.greater))
        c2 = m.count[self.own] == self.count[self.own] and m.taken[self.own]
        return c1 or c2

    def receive(self, sender: int, m: Self) -> None:
        if m.clock > self.clock:
            self.clock, self.greater = m.clock, m.greater[:]
            self.greater[self.own] = False
        elif m.clock == self.clock:
            self.greater = list(map(and_, self.greater, m.greater))
        for k in self.others:
            if m.count[k] > self.count[k]:
                self.count[k], self.taken[k] = m.count[k], m.taken[k]
            elif m.count[k] == self.count[k]:
                self.taken[k] |= m.taken[k]


class ReferenceVector(Reference):
    def start(self, agents: int) -> None:
        self.vector = [-1] * agents

    def checkpoint(self, cause: Self | None = None) -> None:
        super().checkpoint(cause)
        self.vector[self.own] += 1

    def is_raised_by(self, m: Self) -> bool:
        return any(map(gt, m.vector, self.vector))

    def receive(self, sender: int, m: Self) -> None:
        super().receive(sender, m)
        self.vector = list(map(max, self.vector, m.vector))


class ReferenceFdas(ReferenceVector):
    def forces(self, sender: int, m: Self) -> bool:
        return self.has_sent and self.is_raised_by(m)


class ReferenceFdi(ReferenceVector):
    def forces(self, sender: int, m: Self) -> bool:
        return self.has_acted and self.is_raised_by(m)


class ReferenceBhmr(ReferenceVector):
    def start(self, agents: int) -> None:
        super().start(agents)
        self.simple = [k == self.own for k in range(agents)]
        self.causal = [[k == other for other in range(agents)] for k in range(agents)]

    def checkpoint(self, cause: Self | None = None) -> None:
        super().checkpoint(cause)
        for k in self.others:
            self.simple[k] = self.causal[self.own][k] = False

    def forces(self, sender: int, m: Self) -> bool:
        newer = [k for k in range(len(self.vector)) if m.vector[k] > self.vector[k]]
        targets = [other for other, is_sent in enumerate(self.sent_to) if is_sent]
        if any(not m.causal[k][other] for k in newer for other in targets):
            return True
        return m.vector[self.own] == self.vector[self.own] and not m.simple[self.own]

    def receive(self, sender: int, m: Self) -> None:
        for k in range(len(self.vector)):
            if m.vector[k] > self.vector[k]:
                self.simple[k], self.causal[k] = m.simple[k], m.causal[k][:]
            elif m.vector[k] == self.vector[k]:
                self.simple[k] &= m.simple[k]
                self.causal[k] = list(map(or_, self.causal[k], m.causal[k]))
        super().receive(sender, m)
        for k in range(len(self.vector)):
            if self.vector[k] >= 0:
                self.causal[k][self.own] = True
        self.simple[self.own] = True


class ReferenceNras(Reference):
    def forces(self, sender: int, m: Self) -> bool:
        return self.has_sent


class ReferenceCbr(Reference):
    def forces(self, sender: int, m: Self) -> bool:
        return True


class ReferenceCas(Reference):
    checkpoints_after_sends = True


REFERENCES: dict[str, type[Reference]] = {
    "uncoordinated": Reference,
    "bcs": ReferenceBcs,
    "hmnr": ReferenceHmnr,
    "fdas": ReferenceFdas,
    "fdi": ReferenceFdi,
    "bhmr": ReferenceBhmr,
    "nras": ReferenceNras,
    "cbr": ReferenceCbr,
    "cas": ReferenceCas,
}
