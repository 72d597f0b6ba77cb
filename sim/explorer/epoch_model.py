"""Models of fleets that take checkpoints in epochs. The models run the real cores. The module contains the common part of the two
Chandy-Lamport protocols, and the model of the epoch-stamped protocol.

The coordinator begins a bounded number of epochs. The coordinator announces each epoch to every agent, with a delay, and collects the
agents' reports. An epoch is complete when the reports cover all agents and all channels. The coordinator keeps the cut of the last complete
epoch. The cut contains each agent's ledger (the explorer's ground truth) at the time when the agent recorded its state, and the state of
each channel from the reports.

A crash may happen at any moment. A crash rolls the whole fleet back to the cut of the last complete epoch, or to the initial state if no
epoch is complete. The effect is the same whichever agent crashes. A recovery is one step, which aborts open epochs, drops messages of the
older incarnation, creates new cores, and fills each channel with its state in the cut.

The model uses the ledgers to check the following properties.

- When an epoch completes, its cut contains no orphan (G1), and the recorded channel states are exact and in order (G2).
- In every state, also after a recovery, each channel contains exactly the messages that were sent and not consumed, in order (G3).
- At the end of every run, each epoch has exactly one outcome, and no messages are waiting (G4, G10).

`StampedModel` models `protocols.epoch_stamped`, which real fleets run. In the epoch-stamped protocol, messages carry epoch numbers as
stamps. A message is consumed on arrival, unless the agent must record its state first. In that case, the message waits in the mailbox, as
the protocol's duty 1 requires. A waiting message that a turn could have consumed is equivalent to a message that is still in its channel.
The following actions are separate steps, between which other steps may happen: recording the state, sending the markers, sending a report,
and running a turn that consumes a waiting message. So later messages may overtake a marker, messages from the coordinator may arrive late,
and reports may be outdated. `chandy_lamport.PlainModel` models the original Chandy-Lamport algorithm.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from snapline.protocols.epoch_stamped import (
    AgentReport,
    Command,
    EpochAnnounced,
    EpochEnded,
    EpochStampedCore,
    EpochStampedImage,
    MarkerReceived,
    MessageArrived,
    RecordState,
    SendMarkers,
    TurnBoundaryReached,
    WaitingMessage,
    check_coverage,
)
from snapline.sim.explorer.cuts import (
    AgentLedger,
    Numbers,
    describe_flow,
    empty_ledger,
    flow_of,
    replaced,
    with_consumed,
    with_sent,
)
from snapline.sim.explorer.state_search import (
    Bounds,
    CoreMemo,
    Fault,
    Interner,
    Memo,
    Model,
    Outputs,
    ProposedMove,
    State,
    key_of,
    validated_image,
)


class MessageItem(NamedTuple):
    """A message in transit or in a mailbox. `stamp` is the message's epoch stamp, or 0 if the protocol does not use stamps."""

    number: int
    stamp: int = 0


class MarkerItem(NamedTuple):
    """Marker in transit. The first field is `kind`, because named tuples are compared field by field, and a marker must never equal a
    message."""

    kind: str
    epoch: int
    last_number: int = 0


Item = MessageItem | MarkerItem


class MailboxItem(NamedTuple):
    """A message that waits in a mailbox."""

    sender: int
    message: MessageItem


class Record(NamedTuple):
    """Copy of an agent's ledger, taken when the agent recorded its state for `epoch`."""

    epoch: int
    ledger: AgentLedger


class EpochNode(NamedTuple):
    """State of an agent.

    Attributes:
        core: number that identifies the image of the agent's core.
        channels: for each sender, the messages and markers in transit to the agent.
        words: messages from the coordinator that the agent has not yet handled.
        records: the agent's records for epochs that this agent does not yet know to have ended.
        unreported: epochs for which the agent must send a new report.
        held: markers that have not been sent yet, with their receivers.
    """

    core: int
    ledger: AgentLedger
    channels: tuple[tuple[Item, ...], ...]
    words: tuple[msgspec.Struct, ...] = ()
    mailbox: tuple[MailboxItem, ...] = ()
    records: tuple[Record, ...] = ()
    unreported: Numbers = ()
    held: tuple[tuple[int, MarkerItem], ...] = ()


class Report(NamedTuple):
    """An agent's report for an epoch.

    Attributes:
        claim: the report as the protocol defines it, which `is_whole` checks.
        ledger: the agent's ledger at the time when the agent recorded its state. Only the explorer reads the ledger, not the coordinator.
        in_transit: for each sender, the recorded messages in transit on its channel.
    """

    agent: int
    epoch: int
    claim: Any
    ledger: AgentLedger
    in_transit: tuple[tuple[MessageItem, ...], ...]


class ExploredEpoch(NamedTuple):
    """An epoch that has not ended, with each agent's latest report."""

    epoch: int
    reports: tuple[Report | None, ...]


class ExploredCut(NamedTuple):
    """The cut that a complete epoch describes. `ledger` contains each agent's ledger, and `in_transit` the messages in transit for each
    receiver and sender."""

    epoch: int
    ledger: tuple[AgentLedger, ...]
    in_transit: tuple[tuple[tuple[MessageItem, ...], ...], ...]


class EpochCoordinator(NamedTuple):
    """State of the coordinator. `ended` lists the ended epochs in the order in which they ended. Each entry contains the epoch and whether
    it is complete."""

    begun: int
    crashes: int
    open_epochs: tuple[ExploredEpoch, ...]
    ended: tuple[tuple[int, bool], ...]
    cut: ExploredCut


class EpochModel(Model):
    """Model of a fleet that takes checkpoints in epochs. The last actor is the coordinator."""

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

    # -- differences between protocols ----------------------------------------------------------------------------------

    @abstractmethod
    def cores_of(self, agent: int) -> CoreMemo[Any]:
        """Return a memo that caches the behaviour of the agent's core."""

    @abstractmethod
    def new_core(self, agent: int, begun: int) -> Any:
        """Return a new core for an agent that starts after `begun` epochs have begun."""

    @abstractmethod
    def agent_proposals(self, agent: int, node: EpochNode) -> Iterator[ProposedMove]:
        """Yield the moves that an agent may make next."""

    @abstractmethod
    def agent_step(self, agent: int, node: EpochNode, proposal: ProposedMove) -> tuple[EpochNode, Outputs]:
        """Execute a move that `agent_proposals` has yielded. Return the agent's next state and the items that it sends."""

    @abstractmethod
    def is_whole(self, reports: tuple[Report, ...]) -> bool:
        """Return whether an epoch is complete with these reports, which include one from each agent."""

    @abstractmethod
    def begin_message(self, epoch: int) -> msgspec.Struct:
        """Return the message that the coordinator sends to all agents when an epoch begins."""

    @abstractmethod
    def end_message(self, epoch: int) -> msgspec.Struct | None:
        """Return the message that the coordinator sends to all agents when an epoch has ended, or None if there is no such message."""

    # -- agents ---------------------------------------------------------------------------------------------------------

    def start(self) -> State:
        count = len(self.agents)
        ledger = tuple(empty_ledger(count, agent) for agent in self.agents)
        cut = ExploredCut(0, ledger, (((),) * count,) * count)
        return self._state_of(cut, EpochCoordinator(0, 0, (), (), cut))

    def _state_of(self, cut: ExploredCut, coordinator: EpochCoordinator) -> State:
        nodes = []
        for agent in self.agents:
            core = self.cores[agent].enter(self.new_core(agent, coordinator.begun))
            nodes.append(self.nodes[agent].of(EpochNode(core, cut.ledger[agent], cut.in_transit[agent])))
        return (*nodes, self.coordinators.of(coordinator))

    def proposals(self, actor: int, node: int) -> Iterator[ProposedMove]:
        if actor < len(self.agents):
            yield from self.agent_proposals(actor, self.nodes[actor].values[node])
        elif self.coordinators.values[node].begun < self.bounds.epochs:
            yield ProposedMove(f"epoch {self.coordinators.values[node].begun + 1} begins", "begin")

    def carry_out(self, actor: int, node: int, proposal: ProposedMove) -> tuple[int, Outputs]:
        if actor == len(self.agents):
            return self._begin(self.coordinators.values[node])
        after, outputs = self.agent_step(actor, self.nodes[actor].values[node], proposal)
        return self.nodes[actor].of(after), outputs

    def arrive(self, actor: int, node: int, item: int) -> tuple[int, Outputs]:
        value = self.items.values[item]
        if isinstance(value, Report):
            return self._on_report(self.coordinators.values[node], value)
        agent_node = self.nodes[actor].values[node]
        if isinstance(value, msgspec.Struct):
            return self.nodes[actor].of(agent_node._replace(words=(*agent_node.words, value))), ()
        sender, message = value
        channels = replaced(agent_node.channels, sender, (*agent_node.channels[sender], message))
        return self.nodes[actor].of(agent_node._replace(channels=channels)), ()

    def sends(self, agent: int, node: EpochNode) -> Iterator[ProposedMove]:
        """Yield a move that sends a message to each other agent, unless the agent has already sent as many messages as the bounds allow."""
        if sum(node.ledger.sent) < self.bounds.sends:
            for to in self.agents:
                if to != agent:
                    yield ProposedMove(f"{self.names[agent]} sends to {self.names[to]}", "send", to)

    def arrivals(self, agent: int, node: EpochNode) -> Iterator[ProposedMove]:
        """Yield the moves in which the agent receives the first item in one of its channels or the first message from the coordinator."""
        name = self.names[agent]
        for sender, items in enumerate(node.channels):
            if items:
                item_text = (
                    f"message {items[0].number}" if isinstance(items[0], MessageItem) else f"marker {items[0].epoch}"
                )
                yield ProposedMove(f"{name} receives {item_text} from {self.names[sender]}", "receive", sender)
        if node.words:
            yield ProposedMove(f"{name} hears {node.words[0]!r}", "hear")

    def take(self, node: EpochNode, sender: int) -> tuple[Item, EpochNode]:
        """Return the first item in a channel, and the agent's node without this item."""
        items = node.channels[sender]
        return items[0], node._replace(channels=replaced(node.channels, sender, items[1:]))

    def message_to(self, agent: int, node: EpochNode, to: int, stamp: int) -> tuple[EpochNode, Outputs]:
        """Send a message. Return the sender's next state and the message as an output."""
        message = MessageItem(node.ledger.sent[to] + 1, stamp)
        return node._replace(ledger=with_sent(node.ledger, to)), ((to, self.items.of((agent, message))),)

    def consume(self, node: EpochNode, sender: int, message: MessageItem) -> EpochNode:
        """Return the agent's node after a turn that consumes a message."""
        return node._replace(ledger=with_consumed(node.ledger, sender, message.number))

    # -- the coordinator ------------------------------------------------------------------------------------------------

    def _tell(self, word: msgspec.Struct | None) -> Outputs:
        return () if word is None else tuple((agent, self.items.of(word)) for agent in self.agents)

    def _begin(self, found: EpochCoordinator) -> tuple[int, Outputs]:
        epoch = found.begun + 1
        opened = (*found.open_epochs, ExploredEpoch(epoch, (None,) * len(self.agents)))
        after = found._replace(begun=epoch, open_epochs=opened)
        return self.coordinators.of(after), self._tell(self.begin_message(epoch))

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
        cut = ExploredCut(report.epoch, tuple(each.ledger for each in known), tuple(each.in_transit for each in known))
        newest = cut if cut.epoch > found.cut.epoch else found.cut
        ended = (*found.ended, (report.epoch, True))
        after = found._replace(open_epochs=others, ended=ended, cut=newest)
        return self.coordinators.of(after), self._tell(self.end_message(report.epoch))

    def check_cut(self, reports: tuple[Report, ...]) -> None:
        """Check G1 and G2 for the cut of an epoch, using the ledgers in the reports."""
        for sender, ours in enumerate(reports):
            for receiver, theirs in enumerate(reports):
                sent = range(1, ours.ledger.sent[receiver] + 1)
                consumed = theirs.ledger.consumed[sender]
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
        coordinator = self.coordinators.values[state[-1]]
        if coordinator.crashes == self.bounds.crashes:
            return []
        label = self.labels.of(f"a crash; all go back to epoch {self.line_of(coordinator).epoch}")
        return [(label, self._after_crash[state[-1]])]

    def _crash(self, number: int) -> State:
        coordinator = self.coordinators.values[number]
        ended = (*coordinator.ended, *((opened.epoch, False) for opened in coordinator.open_epochs))
        cut = self.line_of(coordinator)
        return self._state_of(cut, EpochCoordinator(coordinator.begun, coordinator.crashes + 1, (), ended, cut))

    def line_of(self, found: EpochCoordinator) -> ExploredCut:
        """Return the cut to which a crash rolls the fleet back."""
        return found.cut

    # -- oracles --------------------------------------------------------------------------------------------------------

    def _flow_memo(self, agent: int) -> Memo[int, int]:
        return Memo(lambda number: self._flow(agent, self.nodes[agent].values[number]))

    def _flow(self, agent: int, node: EpochNode) -> int:
        return flow_of(agent, node.ledger, [self.in_transit_numbers(node, other) for other in self.agents])

    def in_transit_numbers(self, node: EpochNode, sender: int) -> list[int]:
        """Return the numbers of the sender's messages that wait in the receiver's mailbox or are in transit on the channel, in order."""
        waiting = [waiting.message.number for waiting in node.mailbox if waiting.sender == sender]
        return waiting + [item.number for item in node.channels[sender] if isinstance(item, MessageItem)]

    def check(self, state: State) -> None:
        if sum([flow[node] for flow, node in zip(self._flows, state, strict=False)]):
            raise self._flow_fault(state)

    def _flow_fault(self, state: State) -> Fault:
        nodes = [interner.values[number] for interner, number in zip(self.nodes, state, strict=False)]
        ledger = [node.ledger for node in nodes]
        waiting = [[self.in_transit_numbers(node, other) for other in self.agents] for node in nodes]
        return Fault("exactly once", "G3", describe_flow(self.names, ledger, waiting))

    def unfinished(self, actor: int, node: int) -> str:
        if actor == len(self.agents):
            coordinator = self.coordinators.values[node]
            outcomes = sorted(epoch for epoch, _ in coordinator.ended)
            return (
                ""
                if outcomes == list(range(1, coordinator.begun + 1))
                else f"epochs {outcomes} of {coordinator.begun} have ended"
            )
        agent_node = self.nodes[actor].values[node]
        is_done = not (
            any(agent_node.channels)
            or agent_node.words
            or agent_node.mailbox
            or agent_node.held
            or agent_node.unreported
        )
        return "" if is_done else f"{self.names[actor]} is stuck"


# -- epoch stamps ---------------------------------------------------------------------------------------------------------


class StampedModel(EpochModel):
    """Model of a fleet that runs the epoch-stamped protocol."""

    def __init__(self, bounds: Bounds, core_type: type[EpochStampedCore] = EpochStampedCore) -> None:
        self.core_type = core_type
        super().__init__(bounds)

    def cores_of(self, agent: int) -> CoreMemo[EpochStampedCore]:
        return CoreMemo(validated_image, self.core_type.restore)

    def new_core(self, agent: int, begun: int) -> EpochStampedCore:
        return self.core_type(self.names[agent], recorded=begun)

    def begin_message(self, epoch: int) -> msgspec.Struct:
        return EpochAnnounced(epoch)

    def end_message(self, epoch: int) -> msgspec.Struct:
        return EpochEnded(epoch)

    def image_of(self, agent: int, node: EpochNode) -> EpochStampedImage:
        """Return the image of the core of this agent's node."""
        image: EpochStampedImage = self.cores[agent].images.values[node.core]
        return image

    def owes(self, agent: int, node: EpochNode) -> bool:
        """Return whether the agent must record its state before it starts another turn (the protocol's duty 1)."""
        image = self.image_of(agent, node)
        return image.owed > image.recorded

    # -- steps ----------------------------------------------------------------------------------------------------------

    def agent_proposals(self, agent: int, node: EpochNode) -> Iterator[ProposedMove]:
        name = self.names[agent]
        if self.owes(agent, node):
            yield ProposedMove(f"{name} records", "record")
        else:
            yield from self.sends(agent, node)
            if node.mailbox:
                yield ProposedMove(f"{name} consumes a message of {self.names[node.mailbox[0].sender]}", "turn")
        yield from self.arrivals(agent, node)
        for epoch in node.unreported:
            yield ProposedMove(f"{name} reports epoch {epoch}", "report", epoch)
        if node.held:
            yield ProposedMove(f"the markers of {name} leave", "markers")

    def agent_step(self, agent: int, node: EpochNode, proposal: ProposedMove) -> tuple[EpochNode, Outputs]:
        match proposal.kind:
            case "send":
                return self.message_to(agent, node, proposal.detail, self.image_of(agent, node).recorded)
            case "receive":
                return self._receive(agent, node, proposal.detail), ()
            case "hear":
                return self._feed(agent, node._replace(words=node.words[1:]), node.words[0]), ()
            case "record":
                return self._feed(agent, node, self._boundary(node)), ()
            case "turn":
                sender, message = node.mailbox[0]
                return self.consume(node._replace(mailbox=node.mailbox[1:]), sender, message), ()
            case "report":
                return self._report(agent, node, proposal.detail)
            case _:
                outputs = tuple((to, self.items.of((agent, marker))) for to, marker in node.held)
                return node._replace(held=()), outputs

    def _receive(self, agent: int, node: EpochNode, sender: int) -> EpochNode:
        item, node = self.take(node, sender)
        channel = self.names[sender]
        if isinstance(item, MarkerItem):
            return self._feed(agent, node, MarkerReceived(channel, item.epoch, item.last_number))
        node = self._feed(agent, node, MessageArrived(channel, item.number, item.stamp, b"%d" % item.number))
        if self.must_wait(agent, node):
            return node._replace(mailbox=(*node.mailbox, MailboxItem(sender, item)))
        return self.consume(node, sender, item)

    def must_wait(self, agent: int, node: EpochNode) -> bool:
        """Return whether a message that has just arrived must wait in the mailbox."""
        return bool(node.mailbox) or self.owes(agent, node)

    def _boundary(self, node: EpochNode) -> TurnBoundaryReached:
        sent = {self.names[to]: count for to, count in enumerate(node.ledger.sent) if count}
        received = {self.names[sender]: numbers[-1] for sender, numbers in enumerate(node.ledger.consumed) if numbers}
        waiting = tuple(
            WaitingMessage(self.names[sender], message.number, message.stamp, b"%d" % message.number)
            for sender, message in node.mailbox
        )
        return TurnBoundaryReached(sent, received, waiting)

    def _feed(self, agent: int, node: EpochNode, event: msgspec.Struct) -> EpochNode:
        before = self.image_of(agent, node)
        core, commands = self.cores[agent].run(node.core, key_of(event), lambda core: core.handle(0, event))
        node = node._replace(core=core)
        for command in commands:
            node = self._execute(node, command)
        known = {opened.epoch: opened.in_transit for opened in before.open_epochs}
        now = {opened.epoch: opened.in_transit for opened in self.image_of(agent, node).open_epochs}
        unreported = [epoch for epoch in now if epoch in node.unreported or known.get(epoch) != now[epoch]]
        records = tuple(record for record in node.records if record.epoch in now)
        return node._replace(unreported=tuple(unreported), records=records)

    def _execute(self, node: EpochNode, command: Command) -> EpochNode:
        match command:
            case RecordState():
                records = tuple(Record(epoch, node.ledger) for epoch in command.epochs)
                return node._replace(records=(*node.records, *records))
            case SendMarkers():
                held = tuple(
                    (self.names.index(to), MarkerItem("marker", command.epoch, number))
                    for to, number in command.last_numbers.items()
                )
                return node._replace(held=(*node.held, *held))

    def _report(self, agent: int, node: EpochNode, epoch: int) -> tuple[EpochNode, Outputs]:
        _, part = self.cores[agent].run(node.core, ("record_of", epoch), lambda core: core.record_of(epoch))
        counts = {channel: len(messages) for channel, messages in part.in_transit.items()}
        claim = AgentReport(self.names[agent], part.is_unborn, part.sent, part.received, counts)
        ledger = next(record.ledger for record in node.records if record.epoch == epoch)
        in_transit = tuple(
            tuple(MessageItem(int(message.payload), message.stamp) for message in part.in_transit.get(name, ()))
            for name in self.names
        )
        report = Report(agent, epoch, HashableReport(claim), ledger, in_transit)
        unreported = tuple(other for other in node.unreported if other != epoch)
        return node._replace(unreported=unreported), ((len(self.agents), self.items.of(report)),)

    # -- the coordinator ------------------------------------------------------------------------------------------------

    def is_whole(self, reports: tuple[Report, ...]) -> bool:
        coverage = check_coverage({self.names[report.agent]: report.claim.report for report in reports}, ())
        if coverage.orphans:
            raise Fault("coverage", "G1", f"the coordinator sees orphans: {coverage.orphans}")
        return coverage.is_whole


class HashableReport:
    """Hashable wrapper for an `AgentReport`. Wrappers of equal reports are equal."""

    __slots__ = ("_key", "report")

    def __init__(self, report: AgentReport) -> None:
        self.report = report
        self._key = key_of(report)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableReport) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)
