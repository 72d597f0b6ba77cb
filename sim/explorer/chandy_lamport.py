"""Chandy and Lamport's original snapshot algorithm, with fixed channels and without epoch stamps on messages.

Theory of operation
-------------------
Problem: record one state of each agent, and the messages in transit between these states, while the fleet continues to run. Model:
crash-stop agents, reliable FIFO channels that are fixed before the run, atomic turns, and no clocks.

An agent that starts snapshot k records its state and sends marker k on every outgoing channel before any later send. From then on, the
agent records the messages that arrive on each incoming channel until marker k arrives on that channel. If an agent receives marker k before
it has started snapshot k, the marker starts the snapshot at this agent. The state of the channel on which this marker arrived is empty,
because all earlier messages were received before the agent recorded its state. When marker k has arrived on every incoming channel, the
agent's part of the snapshot is complete.

Correctness: if a message is sent before its sender records its state, the message is ahead of the marker on the FIFO channel. So the
receiver either consumes the message before it records its own state, or records it as part of the channel's state (G2). If a message is
sent after its sender has recorded its state, the message is behind the marker. So the message's receiver has already recorded its state
when the message arrives (G1).

The agent's data is stored separately for each snapshot id. The order of ids has no meaning: an agent may record snapshot 5 before snapshot
4, and a message may belong to several snapshots. If several requests or markers would start the same snapshot, only the first has an
effect.

Source: K. M. Chandy and L. Lamport, "Distributed Snapshots: Determining Global States of Distributed Systems", ACM TOCS 3(1), 1985: the
marker-sending and marker-receiving rules. Unlike in the paper, several snapshots with different ids may be in progress at once, and an
agent may receive several requests to start the same snapshot.

Invariant (see `validate`): a snapshot that is recorded but incomplete has at least one open channel, on which its marker is still missing.
Invariant: in an incomplete snapshot, each incoming channel is either open or closed, never both. For a complete snapshot, the core keeps
only the id.

The caller's duties:

1. Execute the commands in order, before any message of a later turn is sent. *Safety depends on this rule:* a message that overtakes the
   marker becomes an orphan.
2. Pass each message first to the core and then to the agent. A message counts as received when the core has handled it.
3. Deliver each channel's messages and markers in the order in which they were sent, each exactly once.
4. Ensure that every agent learns of each snapshot. If no channel leads to an agent, pass it a `SnapshotStarted` event.

The algorithm does not cover channels that are opened later, or agents that join or leave. The protocol in `protocols/epoch_stamped.py`,
which real fleets run, covers both cases. This core serves as a reference: it is used in explorations and scripts, and its executions are
compared with those in the literature.

`PlainModel` is the explorer's model of a fleet that runs this algorithm. There is a channel from every agent to every other agent. A
message is passed to the core and consumed in one step. An agent sends its markers in the same step in which it records its state. Any agent
may be the first to receive the announcement of an epoch. An agent reports its part of a snapshot as soon as the part is complete.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Self, assert_never

import msgspec

from snapline.errors import ProtocolError
from snapline.sim.explorer.epoch_model import EpochModel, EpochNode, MarkerItem, MessageItem, Record, Report
from snapline.sim.explorer.state_search import Bounds, CoreMemo, Outputs, ProposedMove, key_of, validated_image

SNAPSHOTS_OPEN_MAX = 1_024
"""Maximum number of incomplete snapshots per agent. Usually there are at most ten; a thousand indicates that markers are being lost."""

SNAPSHOTS_REMEMBERED_MAX = 65_536
"""Number of complete snapshots whose ids are kept, so that a late request or marker for such a snapshot is recognised.
A request or marker that arrives 65,536 snapshots late would start the snapshot a second time."""


class SnapshotStarted(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Request to start `snapshot`, or notice that another agent has started it. The event has no effect if this agent has already started
    the snapshot."""

    snapshot: int


class MessageReceived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A message has arrived on the channel from the agent `channel`. The agent consumes the message after this event."""

    channel: str
    payload: bytes


class MarkerReceived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The marker of `snapshot` has arrived on the channel from the agent `channel`."""

    channel: str
    snapshot: int


class RecordState(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Capture the agent's state now. The captured state becomes part of `snapshot`."""

    snapshot: int


class SendMarker(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Send the marker of `snapshot` on the channel to the agent `channel`, before every later send."""

    channel: str
    snapshot: int


class CompleteSnapshot(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Report that the agent's part of `snapshot` is complete. `channel_states` maps each incoming channel to its
    recorded messages, which may be none."""

    snapshot: int
    channel_states: dict[str, tuple[bytes, ...]]


Event = SnapshotStarted | MessageReceived | MarkerReceived
Command = RecordState | SendMarker | CompleteSnapshot

ChannelStates = tuple[tuple[str, tuple[bytes, ...]], ...]


class ChandyLamportImage(msgspec.Struct, frozen=True):
    """Hashable copy of a core's state. Each entry in `snapshots` is (id, states of open channels, states of closed channels)."""

    agent: str
    incoming: tuple[str, ...]
    outgoing: tuple[str, ...]
    snapshots: tuple[tuple[int, ChannelStates, ChannelStates], ...]
    complete: tuple[int, ...]


class _Recording:
    """A snapshot that is recorded but incomplete.

    Attributes:
        open: for each incoming channel on which the marker has not arrived, the messages that arrived since the agent
            recorded its state, in order.
        closed: final state of each incoming channel on which the marker has arrived.
    """

    __slots__ = ("closed", "open")

    def __init__(self, incoming: Iterable[str]) -> None:
        self.open: dict[str, list[bytes]] = {channel: [] for channel in incoming}
        self.closed: dict[str, tuple[bytes, ...]] = {}


class ChandyLamportCore:
    """Core that takes Chandy-Lamport snapshots for one agent. The core is not thread-safe and does no I/O.

    Attributes:
        incoming: ids of the agents from which channels lead to this agent, in ascending order. The channels never change.
        outgoing: ids of the agents to which channels lead from this agent, in ascending order. The agent sends its markers in this order.
        _recordings: incomplete snapshots by id, in the order in which they were started.
        _complete: ids of complete snapshots, oldest first. At most SNAPSHOTS_REMEMBERED_MAX ids are kept.
    """

    __slots__ = ("_complete", "_recordings", "agent", "incoming", "outgoing")

    def __init__(self, agent: str, *, incoming: Iterable[str], outgoing: Iterable[str]) -> None:
        self.agent = agent
        self.incoming = tuple(sorted(incoming))
        self.outgoing = tuple(sorted(outgoing))
        self._recordings: dict[int, _Recording] = {}
        self._complete: dict[int, None] = {}

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Handle an event, and return the commands to execute, in order.

        Raises:
            ProtocolError: If the channel is unknown, if a second marker of the same snapshot arrives on the same
                channel, or if too many snapshots are open.
        """
        match event:
            case MessageReceived():
                return self._on_message_received(event)
            case MarkerReceived():
                return self._on_marker_received(event)
            case SnapshotStarted():
                return self._on_snapshot_started(event)
            case _:
                assert_never(event)

    def _on_message_received(self, event: MessageReceived) -> list[Command]:
        if event.channel not in self.incoming:
            raise ProtocolError(f"{self.agent} has no incoming channel from {event.channel}")
        self._record_message(event.channel, event.payload)
        return []

    def _on_marker_received(self, event: MarkerReceived) -> list[Command]:
        self._check_marker(event)
        commands = [] if event.snapshot in self._recordings else self._start(event.snapshot)
        self._close(event.channel, event.snapshot)
        return commands + self._complete_if_closed(event.snapshot)

    def _on_snapshot_started(self, event: SnapshotStarted) -> list[Command]:
        if self._is_recorded(event.snapshot):
            return []
        return self._start(event.snapshot) + self._complete_if_closed(event.snapshot)

    def _is_recorded(self, snapshot: int) -> bool:
        return snapshot in self._recordings or snapshot in self._complete

    def _check_marker(self, event: MarkerReceived) -> None:
        if event.channel not in self.incoming:
            raise ProtocolError(f"{self.agent} has no incoming channel from {event.channel}, but a marker came on it")
        recording = self._recordings.get(event.snapshot)
        is_closed = event.snapshot in self._complete or (recording is not None and event.channel in recording.closed)
        if is_closed:
            raise ProtocolError(
                f"{self.agent} received marker {event.snapshot} a second time on the channel from {event.channel}"
            )

    def _start(self, snapshot: int) -> list[Command]:
        """Record the agent's state, and send a marker on each outgoing channel before any later message (the paper's marker-sending
        rule)."""
        if len(self._recordings) >= SNAPSHOTS_OPEN_MAX:
            raise ProtocolError(f"{self.agent} has {SNAPSHOTS_OPEN_MAX} snapshots open; end some before {snapshot}")
        self._recordings[snapshot] = _Recording(self.incoming)
        return [RecordState(snapshot), *(SendMarker(channel, snapshot) for channel in self.outgoing)]

    def _record_message(self, channel: str, payload: bytes) -> None:
        """Record a message in every snapshot for which the message's channel is still open."""
        for recording in self._recordings.values():
            messages = recording.open.get(channel)
            if messages is not None:
                messages.append(payload)

    def _close(self, channel: str, snapshot: int) -> None:
        recording = self._recordings[snapshot]
        recording.closed[channel] = tuple(recording.open.pop(channel))

    def _complete_if_closed(self, snapshot: int) -> list[Command]:
        recording = self._recordings[snapshot]
        if recording.open:
            return []
        del self._recordings[snapshot]
        self._complete[snapshot] = None
        if len(self._complete) > SNAPSHOTS_REMEMBERED_MAX:
            del self._complete[next(iter(self._complete))]
        return [CompleteSnapshot(snapshot, {channel: recording.closed[channel] for channel in self.incoming})]

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: If an invariant is violated, which is a bug in this core.
        """
        channels = set(self.incoming)
        assert len(channels) == len(self.incoming), f"{self.agent}: an incoming channel is named twice"
        assert len(self._complete) <= SNAPSHOTS_REMEMBERED_MAX, f"{self.agent} remembers too many snapshots"
        for snapshot, recording in self._recordings.items():
            about = f"{self.agent}, snapshot {snapshot}"
            assert snapshot not in self._complete, f"{about}: both complete and open"
            assert recording.open, f"{about}: every channel is closed, yet it is not complete"
            assert not recording.open.keys() & recording.closed.keys(), f"{about}: a channel is both open and closed"
            assert recording.open.keys() | recording.closed.keys() == channels, f"{about}: a channel is missing"

    def freeze(self) -> ChandyLamportImage:
        """Return a hashable image of the core's whole state."""
        snapshots = tuple(
            (
                snapshot,
                tuple((channel, tuple(messages)) for channel, messages in sorted(recording.open.items())),
                tuple(sorted(recording.closed.items())),
            )
            for snapshot, recording in self._recordings.items()
        )
        return ChandyLamportImage(self.agent, self.incoming, self.outgoing, snapshots, tuple(self._complete))

    @classmethod
    def restore(cls, image: ChandyLamportImage) -> Self:
        """Return a core whose state is exactly the state in the image."""
        core = cls(image.agent, incoming=image.incoming, outgoing=image.outgoing)
        for snapshot, open_states, closed_states in image.snapshots:
            recording = _Recording(())
            recording.open = {channel: list(messages) for channel, messages in open_states}
            recording.closed = dict(closed_states)
            core._recordings[snapshot] = recording
        core._complete = dict.fromkeys(image.complete)
        return core


# -- model ----------------------------------------------------------------------------------------------------------------


class PlainModel(EpochModel):
    """Model of a fleet that runs the original Chandy-Lamport algorithm."""

    def __init__(self, bounds: Bounds, core_type: type[ChandyLamportCore] = ChandyLamportCore) -> None:
        self.core_type = core_type
        super().__init__(bounds)

    def cores_of(self, agent: int) -> CoreMemo[ChandyLamportCore]:
        return CoreMemo(validated_image, self.core_type.restore)

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
        """Pass an event to the agent's core, and execute the commands that the core returns."""
        core, commands = self.cores[agent].run(node.core, key_of(event), lambda core: core.handle(0, event))
        node = node._replace(core=core)
        outputs: Outputs = ()
        for command in commands:
            node, new_outputs = self.execute(agent, node, command)
            outputs += new_outputs
        return node, outputs

    def execute(self, agent: int, node: EpochNode, command: Any) -> tuple[EpochNode, Outputs]:
        """Execute one command of the core."""
        match command:
            case RecordState():
                return node._replace(records=(*node.records, Record(command.snapshot, node.ledger))), ()
            case SendMarker():
                to = self.names.index(command.channel)
                return node, ((to, self.items.of((agent, MarkerItem("marker", command.snapshot)))),)
            case CompleteSnapshot():
                return self._report(agent, node, command)
        raise AssertionError(f"an unknown command {command}")

    def _report(self, agent: int, node: EpochNode, command: CompleteSnapshot) -> tuple[EpochNode, Outputs]:
        """Report the agent's part of the snapshot to the coordinator immediately. Delayed reports need not be modelled, because until the
        last report arrives, the epoch is incomplete and a crash rolls all agents back."""
        ledger = next(record.ledger for record in node.records if record.epoch == command.snapshot)
        states = tuple(
            tuple(MessageItem(int(payload)) for payload in command.channel_states.get(name, ())) for name in self.names
        )
        report = Report(agent, command.snapshot, None, ledger, states)
        records = tuple(record for record in node.records if record.epoch != command.snapshot)
        return node._replace(records=records), ((len(self.agents), self.items.of(report)),)
