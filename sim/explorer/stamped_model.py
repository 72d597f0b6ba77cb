"""Model of the Chandy-Lamport protocol that fleets run, with epochs as stamps, over `protocols.epoch_stamped`.

A message is consumed on arrival, unless the agent owes a record; then it waits in the mailbox, as duty 1 requires. (A waiting
message that a turn could have consumed is equivalent to one still in its channel.) Recording, sending markers, every report
and every turn of a waiting message are separate steps, so other steps may come in between: later messages overtake a marker,
messages of the coordinator are late, reports are outdated.
"""

from collections.abc import Iterator

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
from snapline.sim.explorer.epoch_model import (
    EpochModel,
    EpochNode,
    MailboxItem,
    MarkerItem,
    MessageItem,
    Record,
    Report,
)
from snapline.sim.explorer.state_search import Bounds, CoreMemo, Fault, Outputs, ProposedMove, key_of


class StampedModel(EpochModel):
    """Model of a fleet under the epoch-stamped protocol."""

    def __init__(self, bounds: Bounds, core_type: type[EpochStampedCore] = EpochStampedCore) -> None:
        self.core_type = core_type
        super().__init__(bounds)

    def cores_of(self, agent: int) -> CoreMemo[EpochStampedCore]:
        return CoreMemo(_freeze, self.core_type.restore)

    def new_core(self, agent: int, begun: int) -> EpochStampedCore:
        return self.core_type(self.names[agent], recorded=begun)

    def begin_message(self, epoch: int) -> msgspec.Struct:
        return EpochAnnounced(epoch)

    def end_message(self, epoch: int) -> msgspec.Struct:
        return EpochEnded(epoch)

    def image_of(self, agent: int, node: EpochNode) -> EpochStampedImage:
        """Return the image of the node's core."""
        image: EpochStampedImage = self.cores[agent].images.values[node.core]
        return image

    def owes(self, agent: int, node: EpochNode) -> bool:
        """Return whether the agent owes a record; then it starts no turn (duty 1)."""
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
        """Return whether a message that has just arrived must wait for its turn."""
        return bool(node.mailbox) or self.owes(agent, node)

    def _boundary(self, node: EpochNode) -> TurnBoundaryReached:
        sent = {self.names[to]: count for to, count in enumerate(node.books.sent) if count}
        received = {self.names[sender]: numbers[-1] for sender, numbers in enumerate(node.books.consumed) if numbers}
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
                records = tuple(Record(epoch, node.books) for epoch in command.epochs)
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
        books = next(record.books for record in node.records if record.epoch == epoch)
        in_transit = tuple(
            tuple(MessageItem(int(message.payload), message.stamp) for message in part.in_transit.get(name, ()))
            for name in self.names
        )
        report = Report(agent, epoch, HashableReport(claim), books, in_transit)
        unreported = tuple(other for other in node.unreported if other != epoch)
        return node._replace(unreported=unreported), ((len(self.agents), self.items.of(report)),)

    # -- the coordinator ------------------------------------------------------------------------------------------------

    def is_whole(self, reports: tuple[Report, ...]) -> bool:
        coverage = check_coverage({self.names[report.agent]: report.claim.report for report in reports}, ())
        if coverage.orphans:
            raise Fault("coverage", "G1", f"the coordinator sees orphans: {coverage.orphans}")
        return coverage.is_whole


class HashableReport:
    """Hashable `AgentReport`; equal reports are equal claims."""

    __slots__ = ("_key", "report")

    def __init__(self, report: AgentReport) -> None:
        self.report = report
        self._key = key_of(report)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableReport) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)


def _freeze(core: EpochStampedCore) -> EpochStampedImage:
    core.validate()
    return core.freeze()
