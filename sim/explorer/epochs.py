"""Fleets with epochs, explored over the real cores: what the two Chandy-Lamport protocols have in common.

The coordinator begins a bounded number of epochs, tells every agent (each hears it some time later), takes reports, and
completes an epoch when it is whole. It keeps the last complete cut: by agent its books at the record, by channel what the
reports say was in transit.

A crash, at any moment, takes the whole fleet back to that cut, or to the beginning. Which agent crashes makes no
difference. Recovery is one step: open epochs are aborted, what was under way is gone as of an older incarnation, cores
start anew, channels hold the cut's channel states.

Checked, from the books: when an epoch is completed, no orphan (G1) and the exact channel states, in order (G2); in every
state, each channel holds what was sent and not consumed, in order, and so after a recovery, too (G3); at the end of every
run each epoch begun has one outcome and nothing waits (G4, G10).
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from snapline.sim.explorer.books import (
    AgentBooks,
    Numbers,
    describe_flow,
    empty_books,
    flow_of,
    replaced,
    with_consumed,
    with_sent,
)
from snapline.sim.explorer.bounds import Bounds
from snapline.sim.explorer.interning import CoreMemo, Interner, Memo
from snapline.sim.explorer.search import Fault, Model, Outputs, PossibleMove, State


class MessageItem(NamedTuple):
    """Message under way, or waiting; `stamp` is 0 where the protocol has none."""

    number: int
    stamp: int = 0


class MarkerItem(NamedTuple):
    """Marker under way. `epoch` first would make it equal to a message: tuples are compared by their items."""

    kind: str
    epoch: int
    last_number: int = 0


Item = MessageItem | MarkerItem


class WaitingItem(NamedTuple):
    """A message in a mailbox."""

    sender: int
    message: MessageItem


class Record(NamedTuple):
    """The agent's books as of its record of `epoch`."""

    epoch: int
    books: AgentBooks


class EpochNode(NamedTuple):
    """One agent.

    Attributes:
        core: the number of its image.
        channels: by sender, what is under way to it. words: of the coordinator, unheard.
        mailbox: what waits for its turn.
        records: of the epochs that have not ended here.
        unreported: epochs of which there is something to report.
        held: markers that have not left, by receiver.
    """

    core: int
    books: AgentBooks
    channels: tuple[tuple[Item, ...], ...]
    words: tuple[msgspec.Struct, ...] = ()
    mailbox: tuple[WaitingItem, ...] = ()
    records: tuple[Record, ...] = ()
    unreported: Numbers = ()
    held: tuple[tuple[int, MarkerItem], ...] = ()


class Report(NamedTuple):
    """Report of an agent on an epoch.

    Attributes:
        claim: the protocol's report, for `is_whole`.
        books: as of the record: the explorer's, which the coordinator does not read.
        in_transit: by sender, the channel state as recorded.
    """

    agent: int
    epoch: int
    claim: Any
    books: AgentBooks
    in_transit: tuple[tuple[MessageItem, ...], ...]


class ExploredEpoch(NamedTuple):
    """Open epoch with the latest report of each agent."""

    epoch: int
    reports: tuple[Report | None, ...]


class ExploredCut(NamedTuple):
    """A complete epoch: by agent its books, and by receiver and sender what is in transit."""

    epoch: int
    books: tuple[AgentBooks, ...]
    in_transit: tuple[tuple[tuple[MessageItem, ...], ...], ...]


class EpochCoordinator(NamedTuple):
    """`ended`: by epoch, in order of their ends, whether it is complete."""

    begun: int
    crashes: int
    open_epochs: tuple[ExploredEpoch, ...]
    ended: tuple[tuple[int, bool], ...]
    cut: ExploredCut


class EpochModel(Model):
    """A fleet with epochs. The last actor is the coordinator."""

    def __init__(self, bounds: Bounds) -> None:
        self.actors = bounds.agents + 1
        self.labels = Interner()
        self.bounds = bounds
        self.agents = range(bounds.agents)
        self.names = [chr(ord("a") + agent) for agent in self.agents]
        self.nodes: list[Interner[EpochNode]] = [Interner() for _ in self.agents]
        self.coordinators: Interner[EpochCoordinator] = Interner()
        self.items: Interner[tuple[int, Item] | msgspec.Struct | Report] = Interner()
        self.cores: list[CoreMemo[Any]] = [self.cores_of(agent) for agent in self.agents]
        self._flows = [self._flow_memo(agent) for agent in self.agents]
        self._after_crash: Memo[int, State] = Memo(self._crash)

    # -- what protocols differ in ---------------------------------------------------------------------------------------

    @abstractmethod
    def cores_of(self, agent: int) -> CoreMemo[Any]:
        """The memo of the agent's cores."""

    @abstractmethod
    def new_core(self, agent: int, begun: int) -> Any:
        """The core of an agent that starts when `begun` epochs have begun."""

    @abstractmethod
    def agent_proposals(self, agent: int, node: EpochNode) -> Iterator[PossibleMove]:
        """Yield the moves that an agent may make."""

    @abstractmethod
    def agent_step(self, agent: int, node: EpochNode, proposal: PossibleMove) -> tuple[EpochNode, Outputs]:
        """Do it."""

    @abstractmethod
    def is_whole(self, reports: tuple[Report, ...]) -> bool:
        """Return whether the epoch is complete, when all agents have reported."""

    @abstractmethod
    def word_of_begin(self, epoch: int) -> msgspec.Struct:
        """Return the message that the coordinator sends to the agents when an epoch begins."""

    @abstractmethod
    def word_of_end(self, epoch: int) -> msgspec.Struct | None:
        """Return the one sent when an epoch has ended; None: none."""

    # -- agents ---------------------------------------------------------------------------------------------------------

    def start(self) -> State:
        count = len(self.agents)
        books = tuple(empty_books(count, agent) for agent in self.agents)
        cut = ExploredCut(0, books, (((),) * count,) * count)
        return self._state_of(cut, EpochCoordinator(0, 0, (), (), cut))

    def _state_of(self, cut: ExploredCut, coordinator: EpochCoordinator) -> State:
        nodes = []
        for agent in self.agents:
            core = self.cores[agent].enter(self.new_core(agent, coordinator.begun))
            nodes.append(self.nodes[agent].of(EpochNode(core, cut.books[agent], cut.in_transit[agent])))
        return (*nodes, self.coordinators.of(coordinator))

    def proposals(self, actor: int, node: int) -> Iterator[PossibleMove]:
        if actor < len(self.agents):
            yield from self.agent_proposals(actor, self.nodes[actor].values[node])
        elif self.coordinators.values[node].begun < self.bounds.epochs:
            yield PossibleMove(f"epoch {self.coordinators.values[node].begun + 1} begins", "begin")

    def carry_out(self, actor: int, node: int, proposal: PossibleMove) -> tuple[int, Outputs]:
        if actor == len(self.agents):
            return self._begin(self.coordinators.values[node])
        after, outputs = self.agent_step(actor, self.nodes[actor].values[node], proposal)
        return self.nodes[actor].of(after), outputs

    def arrive(self, actor: int, node: int, item: int) -> tuple[int, Outputs]:
        value = self.items.values[item]
        if isinstance(value, Report):
            return self._on_report(self.coordinators.values[node], value)
        found = self.nodes[actor].values[node]
        if isinstance(value, msgspec.Struct):
            return self.nodes[actor].of(found._replace(words=(*found.words, value))), ()
        sender, message = value
        channels = replaced(found.channels, sender, (*found.channels[sender], message))
        return self.nodes[actor].of(found._replace(channels=channels)), ()

    def sends(self, agent: int, node: EpochNode) -> Iterator[PossibleMove]:
        """Yield sends to every other agent, while sends are left."""
        if sum(node.books.sent) < self.bounds.sends:
            for to in self.agents:
                if to != agent:
                    yield PossibleMove(f"{self.names[agent]} sends to {self.names[to]}", "send", to)

    def arrivals(self, agent: int, node: EpochNode) -> Iterator[PossibleMove]:
        """The first item of every channel, and the coordinator's first word."""
        name = self.names[agent]
        for sender, items in enumerate(node.channels):
            if items:
                what = f"message {items[0].number}" if isinstance(items[0], MessageItem) else f"marker {items[0].epoch}"
                yield PossibleMove(f"{name} receives {what} from {self.names[sender]}", "receive", sender)
        if node.words:
            yield PossibleMove(f"{name} hears {node.words[0]!r}", "hear")

    def take(self, node: EpochNode, sender: int) -> tuple[Item, EpochNode]:
        """The first item of a channel, and the node without it."""
        items = node.channels[sender]
        return items[0], node._replace(channels=replaced(node.channels, sender, items[1:]))

    def message_to(self, agent: int, node: EpochNode, to: int, stamp: int) -> tuple[EpochNode, Outputs]:
        """A message leaves."""
        message = MessageItem(node.books.sent[to] + 1, stamp)
        return node._replace(books=with_sent(node.books, to)), ((to, self.items.of((agent, message))),)

    def consume(self, node: EpochNode, sender: int, message: MessageItem) -> EpochNode:
        """A turn consumes a message."""
        return node._replace(books=with_consumed(node.books, sender, message.number))

    # -- the coordinator ------------------------------------------------------------------------------------------------

    def _tell(self, word: msgspec.Struct | None) -> Outputs:
        return () if word is None else tuple((agent, self.items.of(word)) for agent in self.agents)

    def _begin(self, found: EpochCoordinator) -> tuple[int, Outputs]:
        epoch = found.begun + 1
        opened = (*found.open_epochs, ExploredEpoch(epoch, (None,) * len(self.agents)))
        after = found._replace(begun=epoch, open_epochs=opened)
        return self.coordinators.of(after), self._tell(self.word_of_begin(epoch))

    def _on_report(self, found: EpochCoordinator, report: Report) -> tuple[int, Outputs]:
        opened = next((opened for opened in found.open_epochs if opened.epoch == report.epoch), None)
        if opened is None:
            return self.coordinators.of(found), ()
        others = tuple(other for other in found.open_epochs if other is not opened)
        reports = replaced(opened.reports, report.agent, report)
        known = tuple(other for other in reports if other is not None)
        if len(known) < len(reports) or not self.is_whole(known):
            place = found.open_epochs.index(opened)
            epochs = replaced(found.open_epochs, place, opened._replace(reports=reports))
            return self.coordinators.of(found._replace(open_epochs=epochs)), ()
        self.check_cut(known)
        cut = ExploredCut(report.epoch, tuple(each.books for each in known), tuple(each.in_transit for each in known))
        newest = cut if cut.epoch > found.cut.epoch else found.cut
        ended = (*found.ended, (report.epoch, True))
        after = found._replace(open_epochs=others, ended=ended, cut=newest)
        return self.coordinators.of(after), self._tell(self.word_of_end(report.epoch))

    def check_cut(self, reports: tuple[Report, ...]) -> None:
        """G1 and G2, from the books as of the records."""
        for sender, ours in enumerate(reports):
            for receiver, theirs in enumerate(reports):
                sent = range(1, ours.books.sent[receiver] + 1)
                consumed = theirs.books.consumed[sender]
                channel = f"epoch {ours.epoch}, from {self.names[sender]} to {self.names[receiver]}"
                orphans = [number for number in consumed if number not in sent]
                if orphans:
                    raise Fault("orphans", "G1", f"{channel}: {orphans} consumed inside the cut and sent outside")
                expected = [number for number in sent if number not in consumed]
                recorded = [message.number for message in theirs.in_transit[sender]]
                if recorded != expected:
                    raise Fault("channel states", "G2", f"{channel}: {recorded} recorded, {expected} in transit")

    # -- recoveries -----------------------------------------------------------------------------------------------------

    def crashes(self, state: State) -> list[tuple[int, State]]:
        found = self.coordinators.values[state[-1]]
        if found.crashes == self.bounds.crashes:
            return []
        label = self.labels.of(f"a crash; all go back to epoch {self.line_of(found).epoch}")
        return [(label, self._after_crash[state[-1]])]

    def _crash(self, number: int) -> State:
        found = self.coordinators.values[number]
        ended = (*found.ended, *((opened.epoch, False) for opened in found.open_epochs))
        cut = self.line_of(found)
        return self._state_of(cut, EpochCoordinator(found.begun, found.crashes + 1, (), ended, cut))

    def line_of(self, found: EpochCoordinator) -> ExploredCut:
        """The cut to go back to."""
        return found.cut

    # -- oracles --------------------------------------------------------------------------------------------------------

    def _flow_memo(self, agent: int) -> Memo[int, int]:
        return Memo(lambda number: self._flow(agent, self.nodes[agent].values[number]))

    def _flow(self, agent: int, node: EpochNode) -> int:
        return flow_of(agent, node.books, [self.under_way(node, other) for other in self.agents])

    def under_way(self, node: EpochNode, sender: int) -> list[int]:
        """The numbers of one sender that wait in the mailbox or the channel."""
        waiting = [waiting.message.number for waiting in node.mailbox if waiting.sender == sender]
        return waiting + [item.number for item in node.channels[sender] if isinstance(item, MessageItem)]

    def check(self, state: State) -> None:
        if sum([flow[node] for flow, node in zip(self._flows, state, strict=False)]):
            raise self._flow_fault(state)

    def _flow_fault(self, state: State) -> Fault:
        nodes = [interner.values[number] for interner, number in zip(self.nodes, state, strict=False)]
        books = [node.books for node in nodes]
        waiting = [[self.under_way(node, other) for other in self.agents] for node in nodes]
        return Fault("exactly once", "G3", describe_flow(self.names, books, waiting))

    def unfinished(self, actor: int, node: int) -> str:
        if actor == len(self.agents):
            found = self.coordinators.values[node]
            outcomes = sorted(epoch for epoch, _ in found.ended)
            return (
                "" if outcomes == list(range(1, found.begun + 1)) else f"epochs {outcomes} of {found.begun} have ended"
            )
        left = self.nodes[actor].values[node]
        is_done = not (any(left.channels) or left.words or left.mailbox or left.held or left.unreported)
        return "" if is_done else f"{self.names[actor]} is stuck"
