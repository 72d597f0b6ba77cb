"""Small fleets explored the slow way, to compare counts with `sim/explorer`: live cores, deep copies, no memory.

A fleet here is one mutable object. `actions` are bound to it by name; to take one, the whole fleet is copied first. What
may happen, and what is one step, is told a second time, from the explorer's words and without its code.
"""

import copy
from typing import Any

from snapline.protocols.epoch_stamped import (
    AgentReport,
    EpochAnnounced,
    EpochEnded,
    EpochStampedCore,
    MarkerReceived,
    MessageArrived,
    RecordState,
    SendMarkers,
    TurnBoundaryReached,
    WaitingMessage,
    check_coverage,
)
from snapline.protocols.rule import CheckpointRule
from snapline.protocols.rules import RULES

Action = tuple[str, Any]


class Fleet:
    """Two agents, 0 and 1, one send each, one crash."""

    def key(self) -> Any:
        """Equal keys are equal states."""
        raise NotImplementedError

    def actions(self) -> list[Action]:
        raise NotImplementedError

    def take(self, action: Action) -> None:
        getattr(self, action[0])(action[1])


def count(start: Fleet) -> tuple[int, int]:
    """States and transitions."""
    seen = {start.key()}
    waiting, transitions = [start], 0
    while waiting:
        fleet = waiting.pop()
        for action in fleet.actions():
            after = copy.deepcopy(fleet)
            after.take(action)
            transitions += 1
            if (key := after.key()) not in seen:
                seen.add(key)
                waiting.append(after)
    return len(seen), transitions


# -- epochs as stamps -----------------------------------------------------------------------------------------------------


class StampedAgent:
    def __init__(self, name: str, *, begun: int = 0, sent: int = 0, got: int = 0) -> None:
        self.core = EpochStampedCore(name, recorded=begun)
        self.sent, self.got = sent, got
        self.incoming: list[tuple[str, int, int]] = []
        self.words: list[Any] = []
        self.mailbox: list[tuple[int, int]] = []
        self.held: list[tuple[str, int, int]] = []
        self.recorded: tuple[int, int] | None = None
        self.has_news = False

    def key(self) -> Any:
        queues = (tuple(self.incoming), tuple(self.words), tuple(self.mailbox), tuple(self.held))
        return (self.core.freeze(), self.sent, self.got, queues, self.recorded, self.has_news)


class StampedFleet(Fleet):
    """One epoch, under the epoch-stamped protocol. A queue's items: ("message", number, stamp), ("marker", epoch, last)."""

    def __init__(self) -> None:
        self.agents = [StampedAgent("a"), StampedAgent("b")]
        self.begun = self.crashes = 0
        self.reports: list[Any] | None = None
        self.ended = ""
        self.cut: Any = ((0, 0, ()), (0, 0, ()))
        self.cut_epoch = 0

    def key(self) -> Any:
        reports = None if self.reports is None else tuple(map(repr, self.reports))
        agents = tuple(agent.key() for agent in self.agents)
        return (agents, self.begun, self.crashes, reports, self.ended, self.cut, self.cut_epoch)

    def actions(self) -> list[Action]:
        found: list[Action] = [("begin", None)] if not self.begun else []
        found += [("crash", None)] if not self.crashes else []
        for number, agent in enumerate(self.agents):
            if agent.core.owed > agent.core.recorded:
                found.append(("record", number))
            else:
                found += [("send", number)] if not agent.sent else []
                found += [("turn", number)] if agent.mailbox else []
            found += [("receive", number)] if agent.incoming else []
            found += [("hear", number)] if agent.words else []
            found += [("report", number)] if agent.has_news else []
            found += [("let_markers_go", number)] if agent.held else []
        return found

    def begin(self, _: None) -> None:
        self.begun, self.reports = 1, [None, None]
        for agent in self.agents:
            agent.words.append(EpochAnnounced(1))

    def crash(self, _: None) -> None:
        self.crashes = 1
        if self.reports is not None:
            self.reports, self.ended = None, "aborted"
        self.agents = []
        for name, (sent, got, in_transit) in zip("ab", self.cut, strict=True):
            agent = StampedAgent(name, begun=self.begun, sent=sent, got=got)
            agent.incoming = [("message", number, stamp) for number, stamp in in_transit]
            self.agents.append(agent)

    def send(self, number: int) -> None:
        agent = self.agents[number]
        agent.sent += 1
        self.agents[1 - number].incoming.append(("message", agent.sent, agent.core.recorded))

    def receive(self, number: int) -> None:
        agent, other = self.agents[number], "ba"[number]
        kind, first, second = agent.incoming.pop(0)
        if kind == "marker":
            self._feed(agent, MarkerReceived(other, first, second))
            return
        self._feed(agent, MessageArrived(other, first, second, b"%d" % first))
        if agent.mailbox or agent.core.owed > agent.core.recorded:
            agent.mailbox.append((first, second))
        else:
            agent.got += 1

    def turn(self, number: int) -> None:
        self.agents[number].mailbox.pop(0)
        self.agents[number].got += 1

    def hear(self, number: int) -> None:
        self._feed(self.agents[number], self.agents[number].words.pop(0))

    def record(self, number: int) -> None:
        agent, other = self.agents[number], "ba"[number]
        waiting = tuple(WaitingMessage(other, message, stamp, b"%d" % message) for message, stamp in agent.mailbox)
        sent, got = {other: agent.sent} if agent.sent else {}, {other: agent.got} if agent.got else {}
        self._feed(agent, TurnBoundaryReached(sent, got, waiting))

    def let_markers_go(self, number: int) -> None:
        self.agents[1 - number].incoming += self.agents[number].held
        self.agents[number].held = []

    def _feed(self, agent: StampedAgent, event: Any) -> None:
        before = self._state_of_epoch(agent)
        for command in agent.core.handle(0, event):
            match command:
                case RecordState():
                    agent.recorded = (agent.sent, agent.got)
                case SendMarkers():
                    agent.held += [("marker", command.epoch, last) for last in command.last_numbers.values()]
        after = self._state_of_epoch(agent)
        agent.has_news = after is not None and (agent.has_news or after != before)
        agent.recorded = None if after is None else agent.recorded

    def _state_of_epoch(self, agent: StampedAgent) -> Any:
        return agent.core.record_of(1).in_transit if agent.core.open_epochs() else None

    def report(self, number: int) -> None:
        agent = self.agents[number]
        agent.has_news = False
        if self.reports is None:
            return
        record = agent.core.record_of(1)
        counts = {channel: len(messages) for channel, messages in record.in_transit.items()}
        report = AgentReport(agent.core.agent, False, record.sent, record.received, counts)
        in_transit = tuple((m.number, m.stamp) for messages in record.in_transit.values() for m in messages)
        self.reports[number] = (report, agent.recorded, in_transit)
        if None not in self.reports and check_coverage({r[0].agent: r[0] for r in self.reports}, ()).is_whole:
            self.cut = tuple((*recorded, in_transit) for _, recorded, in_transit in self.reports)
            self.cut_epoch, self.reports, self.ended = 1, None, "complete"
            for other in self.agents:
                other.words.append(EpochEnded(1))


# -- autonomous agents ----------------------------------------------------------------------------------------------------


class InducedAgent:
    """`sent`: the log, (piggyback, vector); `vector`: the true one, of own and the other's intervals."""

    def __init__(self, rule: CheckpointRule, number: int) -> None:
        self.rule = rule
        self.number = number
        self.sent: list[tuple[bytes, tuple[int, ...]]] = []
        self.got = self.basics = 0
        self.vector = [0, -1] if number == 0 else [-1, 0]
        self.incoming: list[tuple[bytes, tuple[int, ...]]] = []
        self.checkpoints: list[InducedAgent] = []
        self.store()

    def store(self) -> None:
        saved = copy.deepcopy(self)
        saved.checkpoints, saved.incoming = [], []
        self.checkpoints.append(saved)

    def key(self) -> Any:
        books = (tuple(self.sent), self.got, self.basics, tuple(self.vector), tuple(self.incoming))
        return (self.rule.freeze(), *books, tuple(saved.key() for saved in self.checkpoints))


class InducedFleet(Fleet):
    """One basic checkpoint each, under one rule. Vectors are kept where the explorer keeps them."""

    def __init__(self, protocol: str, *, has_vectors: bool) -> None:
        self.has_vectors = has_vectors
        self.agents = [InducedAgent(RULES[protocol](number, 2), number) for number in (0, 1)]
        self.crashes = 0

    def key(self) -> Any:
        return (tuple(agent.key() for agent in self.agents), self.crashes)

    def actions(self) -> list[Action]:
        found: list[Action] = []
        for number, agent in enumerate(self.agents):
            found += [("take_basic", number)] if not agent.basics else []
            found += [("send", number)] if not agent.sent else []
            found += [("receive", number)] if agent.incoming else []
            found += [("crash", number)] if not self.crashes else []
        return found

    def take_basic(self, number: int) -> None:
        self.agents[number].basics += 1
        self._checkpoint(self.agents[number], None)

    def _checkpoint(self, agent: InducedAgent, cause: bytes | None) -> None:
        agent.rule.checkpoint(cause)
        agent.store()
        agent.vector[agent.number] += self.has_vectors

    def send(self, number: int) -> None:
        agent = self.agents[number]
        message = (agent.rule.send(1 - number), tuple(agent.vector) if self.has_vectors else ())
        agent.sent.append(message)
        self.agents[1 - number].incoming.append(message)
        if agent.rule.checkpoints_after_sends:
            self._checkpoint(agent, None)

    def receive(self, number: int) -> None:
        agent = self.agents[number]
        piggyback, vector = agent.incoming.pop(0)
        if agent.rule.forces(1 - number, piggyback):
            self._checkpoint(agent, piggyback)
        agent.rule.receive(1 - number, piggyback)
        agent.got += 1
        if self.has_vectors:
            agent.vector = list(map(max, agent.vector, vector))

    def crash(self, number: int) -> None:
        """The orphan fix-point, one checkpoint at a time; then all that is in transit, from the logs."""
        self.crashes = 1
        self._go_back(number)
        while orphaned := [i for i in (0, 1) if self.agents[i].got > len(self.agents[1 - i].sent)]:
            self._go_back(orphaned[0])
        for agent, other in zip(self.agents, reversed(self.agents), strict=True):
            agent.incoming = other.sent[agent.got :]

    def _go_back(self, number: int) -> None:
        """To the last checkpoint; from a checkpoint just restored, to the one before."""
        agent = self.agents[number]
        kept = agent.checkpoints
        if getattr(agent, "is_restored", False):
            kept = kept[:-1]
        restored = copy.deepcopy(kept[-1])
        restored.checkpoints = kept
        restored.is_restored = True  # type: ignore[attr-defined]  # only until the recovery is over
        if self.has_vectors:
            restored.vector[number] = len(kept) - 1
        self.agents[number] = restored
