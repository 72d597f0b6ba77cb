"""Model of the published algorithm with markers only, over `chandy_lamport`.

Channels form a full mesh. A message is handed to the core and consumed in one step. An agent sends its markers in the step in
which it records. Any agent may be the first to receive an epoch's announcement. Agents report complete records at once.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from snapline.sim.explorer.chandy_lamport import (
    ChandyLamportCore,
    ChandyLamportImage,
    CompleteSnapshot,
    MarkerReceived,
    MessageReceived,
    RecordState,
    SendMarker,
    SnapshotStarted,
)
from snapline.sim.explorer.epoch_model import EpochModel, EpochNode, MarkerItem, MessageItem, Record, Report
from snapline.sim.explorer.state_search import Bounds, CoreMemo, Outputs, ProposedMove, key_of


class PlainModel(EpochModel):
    """Model of a fleet under plain Chandy-Lamport."""

    def __init__(self, bounds: Bounds, core_type: type[ChandyLamportCore] = ChandyLamportCore) -> None:
        self.core_type = core_type
        super().__init__(bounds)

    def cores_of(self, agent: int) -> CoreMemo[ChandyLamportCore]:
        return CoreMemo(_freeze, self.core_type.restore)

    def new_core(self, agent: int, begun: int) -> ChandyLamportCore:
        others = [name for name in self.names if name != self.names[agent]]
        return self.core_type(self.names[agent], incoming=others, outgoing=others)

    def begin_message(self, epoch: int) -> msgspec.Struct:
        return SnapshotStarted(epoch)

    def end_message(self, epoch: int) -> None:
        return None

    def is_whole(self, reports: tuple[Report, ...]) -> bool:
        return True

    # -- steps ----------------------------------------------------------------------------------------------------------

    def agent_proposals(self, agent: int, node: EpochNode) -> Iterator[ProposedMove]:
        yield from self.sends(agent, node)
        yield from self.arrivals(agent, node)

    def agent_step(self, agent: int, node: EpochNode, proposal: ProposedMove) -> tuple[EpochNode, Outputs]:
        match proposal.kind:
            case "send":
                return self.message_to(agent, node, proposal.detail, 0)
            case "receive":
                return self._receive(agent, node, proposal.detail)
            case _:
                return self.feed(agent, node._replace(words=node.words[1:]), node.words[0])

    def _receive(self, agent: int, node: EpochNode, sender: int) -> tuple[EpochNode, Outputs]:
        item, node = self.take(node, sender)
        channel = self.names[sender]
        if isinstance(item, MarkerItem):
            return self.feed(agent, node, MarkerReceived(channel, item.epoch))
        node, outputs = self.feed(agent, node, MessageReceived(channel, b"%d" % item.number))
        return self.consume(node, sender, item), outputs

    def feed(self, agent: int, node: EpochNode, event: msgspec.Struct) -> tuple[EpochNode, Outputs]:
        """Hand an event to the core and carry out its commands."""
        core, commands = self.cores[agent].run(node.core, key_of(event), lambda core: core.handle(0, event))
        node = node._replace(core=core)
        outputs: Outputs = ()
        for command in commands:
            node, new_outputs = self.execute(agent, node, command)
            outputs += new_outputs
        return node, outputs

    def execute(self, agent: int, node: EpochNode, command: Any) -> tuple[EpochNode, Outputs]:
        """Carry out one command."""
        match command:
            case RecordState():
                return node._replace(records=(*node.records, Record(command.snapshot, node.books))), ()
            case SendMarker():
                to = self.names.index(command.channel)
                return node, ((to, self.items.of((agent, MarkerItem("marker", command.snapshot)))),)
            case CompleteSnapshot():
                return self._report(agent, node, command)
        raise AssertionError(f"an unknown command {command}")

    def _report(self, agent: int, node: EpochNode, command: CompleteSnapshot) -> tuple[EpochNode, Outputs]:
        """Report at once. Delays need no model: until the last report, the epoch is open and a crash rolls all agents back."""
        books = next(record.books for record in node.records if record.epoch == command.snapshot)
        states = tuple(
            tuple(MessageItem(int(payload)) for payload in command.channel_states.get(name, ())) for name in self.names
        )
        report = Report(agent, command.snapshot, None, books, states)
        records = tuple(record for record in node.records if record.epoch != command.snapshot)
        return node._replace(records=records), ((len(self.agents), self.items.of(report)),)


def _freeze(core: ChandyLamportCore) -> ChandyLamportImage:
    core.validate()
    return core.freeze()
