"""Random fleets, what their coordinator is told of them and when, and oracles on the plain lists of events.

A world holds what really happens: per agent a list of sends and receives, and where in it checkpoints were taken. Reports
reach the `FleetHistory` under test late, in an order of their own per agent. The oracles know events and which reports have
arrived, nothing else: no counts, no columns, no graph.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import product
from math import prod
from random import Random

from snapline.recovery.dependency_history import AgentImage, CheckpointImage, FleetHistory, HistoryImage, Line

LIVE = 10**9  # a place above every checkpoint number

Cut = dict[str, int]  # by agent, a checkpoint number or LIVE


class Agent:
    """What one agent has done, and what of it has been reported."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int]] = []  # (kind, other agent, message number)
        self.taken = [0]  # by checkpoint number, how many events it contains
        self.durable = 0  # the last checkpoint that has been reported
        self.live = 0  # how many events the latest live report contained
        self.live_taken = 0  # its newest checkpoint, reported or not
        self.unreported: list[int] = []  # of live reports on their way, how many events they contain

    def counts(self, kind: str, start: int, end: int) -> dict[str, int]:
        """By other agent, the last number among events `start` to `end`."""
        return {other: number for what, other, number in self.events[start:end] if what == kind}

    def known(self) -> int:
        """How many events its live state is known to contain."""
        return max(self.live, self.taken[self.durable])


class World:
    """A fleet and its coordinator's `FleetHistory`; `coverage` counts what happened, so that no check is vacuous."""

    def __init__(self, random: Random, make: Callable[[Iterable[str]], FleetHistory], *, is_exact: bool) -> None:
        self.random = random
        self.is_exact = is_exact  # else what may be deleted is not compared, only what comes of it
        self.agents = {f"a{number}": Agent() for number in range(random.choice((2, 2, 3, 3, 4, 5)))}
        self.history = make(self.agents)
        self.sent_at: dict[
            tuple[str, str, int], int
        ] = {}  # by message, the index of its send among its sender's events
        self.mailboxes: dict[tuple[str, str], list[int]] = {}
        self.deletable: dict[str, list[int]] = {}  # named by obsolete(), not yet deleted
        self.deleted: set[tuple[str, int]] = set()
        self.coverage: dict[str, int] = {}

    # -- what happens -------------------------------------------------------------------------------------------------

    def send(self) -> None:
        sender, receiver = self.random.choice(list(self.agents)), self.random.choice(list(self.agents))
        number = 1 + sum(kind == "send" and other == receiver for kind, other, _ in self.agents[sender].events)
        self.sent_at[sender, receiver, number] = len(self.agents[sender].events)
        self.agents[sender].events.append(("send", receiver, number))
        self.mailboxes.setdefault((sender, receiver), []).append(number)

    def receive(self) -> None:
        waiting = [channel for channel, numbers in self.mailboxes.items() if numbers]
        if waiting:
            sender, receiver = self.random.choice(waiting)
            number = self.mailboxes[sender, receiver].pop(0)
            self.agents[receiver].events.append(("receive", sender, number))

    def checkpoint(self) -> None:
        agent = self.agents[self.random.choice(list(self.agents))]
        agent.taken.append(len(agent.events))

    def join(self) -> None:
        if len(self.agents) < 6:
            name = f"a{len(self.agents)}"
            self.agents[name] = Agent()
            self.history.join(name)

    # -- what the coordinator is told ---------------------------------------------------------------------------------

    def look(self) -> None:
        """An agent's live state goes on its way to the coordinator."""
        agent = self.agents[self.random.choice(list(self.agents))]
        agent.unreported.append(len(agent.events))

    def deliver(self) -> None:
        """One report arrives; a live one may overtake checkpoints that are still being written, and other live ones."""
        name = self.random.choice(list(self.agents))
        agent = self.agents[name]
        if agent.unreported and self.random.random() < 0.5:
            self.report_live(name, agent.unreported.pop(self.random.randrange(len(agent.unreported))))
        elif agent.durable + 1 < len(agent.taken):
            self.report_checkpoint(name)
        if self.random.random() < 0.05:
            self.history.add(name, self.random.randint(0, agent.durable), {"a0": 99}, {"a0": 99})  # a repeat

    def report_checkpoint(self, name: str) -> None:
        agent = self.agents[name]
        start, end = agent.taken[agent.durable], agent.taken[agent.durable + 1]
        agent.durable += 1
        sent, received = agent.counts("send", start, end), agent.counts("receive", start, end)
        self.history.add(name, agent.durable, sent, received, turns=end)

    def report_live(self, name: str, length: int) -> None:
        agent = self.agents[name]
        agent.live = max(agent.live, length)
        taken = max(number for number, contained in enumerate(agent.taken) if contained <= length)
        agent.live_taken = max(agent.live_taken, taken)
        start = agent.taken[agent.durable]
        received, sent = agent.counts("receive", start, length), agent.counts("send", start, length)
        self.history.report_live(name, received, sent, turns=length, taken=taken)

    def restart(self) -> None:
        """The coordinator's leader starts again: from an image, or from full records in the store."""
        image = self.history.freeze()
        if self.random.random() < 0.5:
            image = HistoryImage(tuple(self.stored(agent) for agent in image.agents))
        self.history = type(self.history).restore(image)

    def stored(self, image: AgentImage) -> AgentImage:
        found = []
        for known in image.checkpoints:
            record = self.history.record_of(image.agent, known.number)
            sent, received = tuple(record.sent.items()), tuple(record.received.items())
            found.append(CheckpointImage(known.number, sent, received, known.turns))
        return AgentImage(image.agent, tuple(found), image.live)

    # -- what the coordinator does ------------------------------------------------------------------------------------

    def collect_garbage(self) -> None:
        self.deletable = self.history.obsolete()
        assert not self.is_exact or self.deletable == self.oracle_obsolete(), "obsolete"
        if self.random.random() < 0.7:
            self.delete()

    def delete(self) -> None:
        for name, numbers in self.deletable.items():
            self.history.forget(name, numbers)
            self.deleted.update((name, number) for number in numbers)
            self.count("deleted", len(numbers))
        self.deletable = {}

    def idle(self) -> None:
        """Nothing happens."""

    def ask(self) -> None:
        """Everything that can be asked at any time, against the oracles."""
        failures = self.failures()
        expected = [self.oracle_line(failed) for failed in failures]
        assert [self.history.line(failed) for failed in failures] == expected, "line"
        assert self.history.lines(failures) == expected, "lines"
        total = self.oracle_line(set(self.agents)).checkpoints
        assert self.history.total_line() == total, "total_line"
        for name, agent in self.agents.items():
            for number in self.history.checkpoints_of(name):
                record = self.history.record_of(name, number)
                assert record.sent == agent.counts("send", 0, agent.taken[number]), "record_of"
                assert record.received == agent.counts("receive", 0, agent.taken[number]), "record_of"
        self.history.validate()

    def failures(self) -> list[set[str]]:
        """Every single failure, all, none and a few others."""
        names = list(self.agents)
        some = [set(self.random.sample(names, self.random.randint(1, len(names)))) for _ in range(2)]
        return [*({name} for name in names), set(names), set(), *some]

    def recover(self) -> None:
        """Some fail; survivors freeze and report; the line is taken, the fleet goes on from it."""
        failed = set(self.random.sample(list(self.agents), self.random.randint(1, len(self.agents))))
        for name in self.agents:
            if name not in failed:
                is_late = self.random.random() < 0.3  # its checkpoints are still being written
                while not is_late and self.agents[name].durable + 1 < len(self.agents[name].taken):
                    self.report_checkpoint(name)
                self.report_live(name, len(self.agents[name].events))
        line = self.history.line(failed)
        assert line == self.oracle_line(failed), "line of a recovery"
        assert self.history.lines([failed]) == [line], "lines of a recovery"
        assert not [used for used in line.checkpoints.items() if used in self.deleted], "the line needs a deleted one"
        in_transit = self.history.in_transit(line)
        assert in_transit == self.oracle_in_transit(line), "in_transit"
        self.check_cost(line)
        self.history.roll_back(line)
        self.undo(line)

    def check_cost(self, line: Line) -> None:
        cost = self.history.cost(line)
        back = {name: number for name, number in line.checkpoints.items() if number is not None}
        assert cost.checkpoints == {name: self.agents[name].durable - number for name, number in back.items()}, "cost"
        for name, number in back.items():
            agent = self.agents[name]
            assert cost.turns.get(name, 0) == agent.known() - agent.taken[number], "turns"
            self.count("passed over", cost.checkpoints[name])

    def undo(self, line: Line) -> None:
        self.count("recoveries")
        for name, number in line.checkpoints.items():
            agent = self.agents[name]
            if number is None:
                self.count("survivors")
                continue
            del agent.events[agent.taken[number] :], agent.taken[number + 1 :]
            agent.durable, agent.live, agent.live_taken, agent.unreported = number, 0, 0, []
            self.deleted = {(other, kept) for other, kept in self.deleted if other != name or kept <= number}
        self.deletable = {}
        self.sent_at = {
            (name, receiver, number): index
            for name, agent in self.agents.items()
            for index, (kind, receiver, number) in enumerate(agent.events)
            if kind == "send"
        }
        self.mailboxes = {}
        for sender, receiver, number in self.sent_at:
            if ("receive", sender, number) not in self.agents[receiver].events:
                self.mailboxes.setdefault((sender, receiver), []).append(number)

    def count(self, what: str, number: int = 1) -> None:
        self.coverage[what] = self.coverage.get(what, 0) + number

    # -- oracles ------------------------------------------------------------------------------------------------------

    def length(self, name: str, place: int) -> int:
        agent = self.agents[name]
        return agent.known() if place == LIVE else agent.taken[place]

    def orphan(self, cut: Cut, *, live_sent_all: bool) -> tuple[str, int] | None:
        """Some receiver, and the index of a receive that is in `cut` while its send is not."""
        for receiver, place in cut.items():
            for index, (kind, sender, number) in enumerate(
                self.agents[receiver].events[: self.length(receiver, place)]
            ):
                if kind == "send" or (live_sent_all and cut[sender] == LIVE):
                    continue
                if self.sent_at[sender, receiver, number] >= self.length(sender, cut[sender]):
                    return receiver, index
        return None

    def fix_point(self, start: Cut, *, live_sent_all: bool) -> Cut:
        """While there is an orphan, its receiver goes back to its last reported checkpoint before the receive."""
        cut = dict(start)
        while (found := self.orphan(cut, live_sent_all=live_sent_all)) is not None:
            receiver, index = found
            agent = self.agents[receiver]
            cut[receiver] = max(n for n in range(agent.durable + 1) if agent.taken[n] <= index)
        self.check_greatest(cut, start, live_sent_all=live_sent_all)
        return cut

    def check_greatest(self, cut: Cut, start: Cut, *, live_sent_all: bool) -> None:
        """By brute force over all cuts, if there are few."""
        places = {
            name: [n for n in range(self.agents[name].durable + 1) if n < place] + [place]
            for name, place in start.items()
        }
        if prod(map(len, places.values())) > 24:
            return
        self.count("brute force")
        for chosen in product(*places.values()):
            other = dict(zip(places, chosen, strict=True))
            if any(other[name] > cut[name] for name in cut):
                assert self.orphan(other, live_sent_all=live_sent_all) is not None, "the oracle is no maximum"

    def oracle_line(self, failed: Collection[str]) -> Line:
        start = {name: agent.durable if name in failed else LIVE for name, agent in self.agents.items()}
        cut = self.fix_point(start, live_sent_all=True)
        return Line({name: None if place == LIVE else place for name, place in cut.items()})

    def oracle_obsolete(self) -> dict[str, list[int]]:
        """Section 7, but for the newest checkpoints, which are never named."""
        start = {n: LIVE if agent.live_taken <= agent.durable else agent.durable for n, agent in self.agents.items()}
        known = self.fix_point(start, live_sent_all=False)
        needed = set()
        for name, place in known.items():
            failed = known | {name: self.agents[name].durable if place == LIVE else place}
            line = self.fix_point(failed, live_sent_all=False)
            needed |= {(other, number) for other, number in line.items() if number != known[other] or other == name}
        found = {}
        for name, place in known.items():
            numbers = [n for n in range(self.agents[name].durable) if n <= place and (name, n) not in needed]
            found[name] = [number for number in numbers if (name, number) not in self.deleted]
        return {name: numbers for name, numbers in found.items() if numbers}

    def oracle_in_transit(self, line: Line) -> dict[tuple[str, str], range]:
        cut = {name: LIVE if number is None else number for name, number in line.checkpoints.items()}
        found: dict[tuple[str, str], list[int]] = {}
        for (sender, receiver, number), index in self.sent_at.items():
            if cut[sender] == cut[receiver] == LIVE:
                continue
            received = self.agents[receiver].events[: self.length(receiver, cut[receiver])]
            if index < self.length(sender, cut[sender]) and ("receive", sender, number) not in received:
                found.setdefault((sender, receiver), []).append(number)
        assert all(numbers == list(range(numbers[0], numbers[-1] + 1)) for numbers in found.values())
        return {channel: range(numbers[0], numbers[-1] + 1) for channel, numbers in found.items()}


def execute(
    seed: int, make: Callable[[Iterable[str]], FleetHistory] = FleetHistory, *, steps: int = 120, is_exact: bool = True
) -> World:
    """One random fleet; AssertionError at the first answer that is not the oracles'."""
    random = Random(seed)
    world = World(random, make, is_exact=is_exact)
    weights = {
        world.send: 8,
        world.receive: random.choice((4, 8)),
        world.checkpoint: random.choice((1, 3, 5)),
        world.look: random.choice((0, 1, 2)),
        world.deliver: random.choice((2, 5, 9)),
        world.collect_garbage: random.choice((0, 0.5, 1)),
        world.delete: 0.3,
        world.idle: 0.5,
        world.ask: 0.3,
        world.recover: random.choice((0, 0.3, 0.6)),
        world.join: 0.1,
        world.restart: 0.1,
    }
    for action in random.choices(list(weights), list(weights.values()), k=steps):
        action()
    world.ask()
    world.recover()
    world.ask()
    return world
