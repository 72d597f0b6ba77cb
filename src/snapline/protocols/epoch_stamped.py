"""Coordinated checkpointing protocol in which messages carry epoch stamps, and markers allow channels to be closed early.

The setting `protocol="chandy-lamport"` selects this protocol. The protocol combines the stamps of Lai and Yang with the markers of Chandy
and Lamport.

Theory of operation
-------------------
The problem is to take one consistent cut of a running fleet for each epoch. Channels may open at any time, agents may join and leave, and
turns may last minutes. Model: agents are crash-stop, turns are atomic, and there are no clocks. Channels are reliable and FIFO, and number
their messages 1, 2, 3 and so on. Epochs are numbered 1, 2, 3 and so on, in the order in which the coordinator begins them. Several epochs
may be open at the same time. A message counts as *received* when a turn has consumed it, so a message in the mailbox is still in its
channel. Below, r denotes `recorded`, the last epoch for which the agent has recorded its state.

1. A message is stamped with the value of r when it leaves the outbox, and never with an epoch that the agent has not recorded yet.
2. If an announcement by the host, a marker or a message refers to an epoch e > r, the agent *owes* e. It must then record its state before
   its next turn. A message that refers to e waits in the mailbox until then.
3. When the agent records its state for e, the same image serves all epochs from r + 1 to e. The channel state of each of these epochs x
   starts with the messages in the mailbox whose stamp is < x. After the recording, r is set to e.
4. A message with stamp s that arrives later is added to the channel state of every open epoch x with s < x <= r.
5. On each channel that it has ever used, the agent sends a marker. The marker contains e and the number of the last message sent before the
   agent recorded its state. The marker follows all messages stamped < e, and may also follow later messages. When the receiver has the
   marker and has recorded its state, the number of received and recorded messages must equal the number in the marker.
6. An agent that is created while an epoch is open is unborn in this epoch, so it counts as having sent and received nothing. Messages with
   a lower stamp that reach the agent belong to the channel state, including the message that creates it.
7. After an agent's leave is committed, the agent does not owe epochs that begin later.

Correctness. G1: consider a message with stamp s >= x. Either the message was sent after its sender recorded x, or its sender is unborn in
x. The receiver consumes the message only after it has recorded x (rule 2). G2: a message with stamp s < x was sent before its sender
recorded x. The message was either consumed before the receiver recorded x, or in the mailbox at that time (rule 3), or it arrived later
(rule 4). The proof does not need markers, which only close channels early and serve as a check. An epoch is complete when the reported
numbers match (`check_coverage`).

Sources: Lai and Yang, "On Distributed Snapshots", Information Processing Letters 25, 1987. Their messages carry the sender's colour, which
corresponds to the epoch here. In Mattern, "Efficient Algorithms for Distributed Snapshots and Global Virtual Time Approximation", JPDC 18,
1993, a snapshot is complete when the message counts balance. The markers are those of Chandy and Lamport,
1985. Departures: several epochs may be open at the same time, one image serves all owed epochs, and agents may join and leave. Since
channels are FIFO, message numbers replace the message counts, and every gap is detected (`EpochRecording`).

If an epoch ends before this agent has recorded it, the core remembers this and does not record the epoch later. Recordings of ended epochs
are never used. So if a message is stamped with an ended epoch, the agent needs to record only lower epochs that are still open.

Invariants (see `validate`): `recorded <= owed`. Every open epoch is <= `recorded`. The messages in a channel state have stamps lower than
the epoch, and consecutive numbers that directly follow the last number received before the recording.

The caller's duties:

1. *Safety depends on this rule:* while `owed > recorded`, start no turn. When no turn is running, pass `TurnBoundaryReached` to the core,
   and execute `RecordState` before the next event.
2. Stamp messages with `recorded` when they leave the outbox, and number the messages of each channel. Messages held in the outbox count as
   not sent, and belong to the agent's image.
3. Pass `MessageArrived` exactly once for each arriving message whose stamp differs from `recorded`. Keep the order of the channel, and do
   this before the message enters the mailbox. If the stamp equals `recorded`, the event may be omitted because it has no effect.
4. Send the markers of `SendMarkers` after all messages that left the outbox earlier. Later messages may overtake the markers.
5. Pass `EpochEnded` for every epoch, complete or aborted, that began during the agent's lifetime or in which the agent is unborn.

One open epoch at one agent
---------------------------
`EpochRecording` contains an agent's message numbers in one open epoch, and the channel states, which grow until each channel is closed
(rules 3 to 5). The marker shows where the channel state ends. Any message or marker that violates these rules is an error of a peer or the
link, and raises `ProtocolError`.

Completeness of an epoch
------------------------
An epoch is complete when the receivers' reports cover all channels that the senders have reported. The coordinator checks this with
`check_coverage`. Each agent in an epoch reports, for the time when it recorded its state, the last number sent on each outgoing channel and
received on each incoming channel. An agent also reports the current number of messages in each channel state. The channel i -> j is covered
when received_j + recorded_j = sent_i. Mattern (JPDC 18, 1993) compares message counts. Here, message numbers serve as counts, because
channels are FIFO. If received_j > sent_i, there is an orphan message (G1). If received_j + recorded_j > sent_i, the channel state contains
a message from outside the cut (G2). Both errors mean that a peer has violated the protocol, so the epoch is aborted and an alarm is raised.

The *senders* determine which channels exist, because a receiver may not know a channel yet. So an epoch waits for a report from every agent
to which messages were sent, and from every agent that was a member when the epoch began. The caller checks the reports of the members. Sent
numbers no longer change after the recording, and recorded counts only increase. So an outdated report may delay completion, but never leads
to a wrong result.

The caller's duties:

1. Pass the latest report of each agent in this epoch, including unborn agents.
2. If an agent's leave was committed before the epoch began, include the agent in `gone`. Use its committed numbers as its report until all
   its messages have been received. Messages to this agent become dead letters, so the channels to it are not checked.
3. Treat the epoch as complete when every member has sent a report and `Coverage.is_whole` is true.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Self, assert_never

import msgspec

from snapline.errors import ProtocolError

Numbers = tuple[tuple[str, int], ...]


class WaitingMessage(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A message in the mailbox, which no turn has consumed yet. `channel` is the sender of the message."""

    channel: str
    number: int
    stamp: int
    payload: bytes
    piggyback: bytes = b""


class RecordedPart(msgspec.Struct, frozen=True, gc=False):
    """A copy of the message numbers and channel states that one agent has recorded for one epoch so far."""

    epoch: int
    is_unborn: bool
    sent: dict[str, int]
    received: dict[str, int]
    in_transit: dict[str, list[WaitingMessage]]


class EpochRecordingImage(msgspec.Struct, frozen=True):
    """A hashable image of an `EpochRecording`."""

    epoch: int
    is_unborn: bool
    sent: Numbers
    received: Numbers
    in_transit: tuple[tuple[str, tuple[WaitingMessage, ...]], ...]
    markers: Numbers


class EpochRecording:
    """An open epoch that `agent` has recorded or in which it is unborn.

    Attributes:
        sent, received: the agent's message numbers at the time when it recorded its state; empty if the agent is unborn. They never change.
        in_transit: maps each sender to the messages in the channel state so far. Senders without messages have no entry.
        markers: maps the sender of each closed channel to the number in its marker.
    """

    __slots__ = ("agent", "epoch", "in_transit", "is_unborn", "markers", "received", "sent")

    def __init__(
        self, agent: str, epoch: int, *, is_unborn: bool, sent: dict[str, int], received: dict[str, int]
    ) -> None:
        self.agent = agent
        self.epoch = epoch
        self.is_unborn = is_unborn
        self.sent = sent
        self.received = received
        self.in_transit: dict[str, list[WaitingMessage]] = {}
        self.markers: dict[str, int] = {}

    def last_number(self, channel: str) -> int:
        """Return the number of the last message on `channel` that was received or recorded."""
        return self.received.get(channel, 0) + len(self.in_transit.get(channel, ()))

    def record(self, message: WaitingMessage) -> None:
        """Add `message`, whose stamp must be lower than the epoch, to the channel state (rules 3 and 4).

        Raises:
            ProtocolError: the channel is closed, or there is a gap in the message numbers.
        """
        channel, number = message.channel, message.number
        if channel in self.markers:
            raise ProtocolError(
                f"{self.agent}, epoch {self.epoch}: message {number} from {channel}, stamped {message.stamp}, "
                f"came behind the marker that named {self.markers[channel]} as the last"
            )
        if number != self.last_number(channel) + 1:
            raise ProtocolError(
                f"{self.agent}, epoch {self.epoch}: message {number} from {channel}, stamped {message.stamp}, "
                f"does not follow {self.last_number(channel)}: {self._numbers_text(channel)}"
            )
        self.in_transit.setdefault(channel, []).append(message)

    def close(self, channel: str, last_number: int) -> None:
        """Check that the number of received and recorded messages equals the marker's number, then close `channel` (rule 5). A repeated
        marker has no effect.

        Raises:
            ProtocolError: the numbers differ.
        """
        if self.last_number(channel) != last_number:
            raise ProtocolError(
                f"{self.agent}, epoch {self.epoch}: the marker from {channel} names {last_number} as the last "
                f"message, but {self._numbers_text(channel)}"
            )
        self.markers[channel] = last_number

    def report(self) -> RecordedPart:
        """Return a copy of all data that has been recorded so far."""
        in_transit = {channel: list(messages) for channel, messages in self.in_transit.items()}
        return RecordedPart(self.epoch, self.is_unborn, dict(self.sent), dict(self.received), in_transit)

    def _numbers_text(self, channel: str) -> str:
        received = self.received.get(channel, 0)
        return f"{received} were received before the record and {len(self.in_transit.get(channel, ()))} recorded"

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if one is violated."""
        about = f"{self.agent}, epoch {self.epoch}"
        assert not (self.is_unborn and (self.sent or self.received)), f"{about}: unborn with numbers"
        for channel, messages in self.in_transit.items():
            first = self.received.get(channel, 0) + 1
            numbers = [message.number for message in messages]
            assert numbers == list(range(first, first + len(numbers))), f"{about}: a gap on the channel from {channel}"
            stamps = [message.stamp for message in messages]
            assert stamps == sorted(stamps), f"{about}: stamps fall on the channel from {channel}"
            assert stamps[-1] < self.epoch, f"{about}: recorded a message of the epoch from {channel}"
        for channel, last_number in self.markers.items():
            assert self.last_number(channel) == last_number, f"{about}: closed too early from {channel}"

    def freeze(self) -> EpochRecordingImage:
        """Return a hashable image of the state. Equal states have equal images."""
        return EpochRecordingImage(
            epoch=self.epoch,
            is_unborn=self.is_unborn,
            sent=tuple(sorted(self.sent.items())),
            received=tuple(sorted(self.received.items())),
            in_transit=tuple((channel, tuple(messages)) for channel, messages in sorted(self.in_transit.items())),
            markers=tuple(sorted(self.markers.items())),
        )

    @classmethod
    def restore(cls, agent: str, image: EpochRecordingImage) -> Self:
        """Restore a recording from an image that `freeze` has returned."""
        sent, received = dict(image.sent), dict(image.received)
        restored = cls(agent, image.epoch, is_unborn=image.is_unborn, sent=sent, received=received)
        restored.in_transit = {channel: list(messages) for channel, messages in image.in_transit}
        restored.markers = dict(image.markers)
        return restored


EPOCHS_AHEAD_MAX = 1_024
"""Largest allowed difference between an epoch number that arrives and the number up to which all epochs are recorded or ended here. Few
epochs are open at once, and a host learns within a heartbeat that an epoch has ended, or is declared failed. So an epoch number that is
more than a thousand ahead is treated as damaged."""


class EpochAnnounced(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Event: the host announces that `epoch` has begun. The event has no effect if the epoch is already known, recorded or ended."""

    epoch: int


class MessageArrived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Event: a message from the agent `channel` has arrived, and is about to enter the mailbox."""

    channel: str
    number: int
    stamp: int
    payload: bytes
    piggyback: bytes = b""


class TurnBoundaryReached(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Event: no turn is running, so the agent's state can be recorded. The event has no effect if the agent owes no epoch.

    Attributes:
        sent: maps each receiver to the number of the last message to it that has left the outbox.
        received: maps each sender to the number of the last message from it that a turn has consumed.
        waiting: messages in the mailbox, in the order of arrival.
    """

    sent: dict[str, int]
    received: dict[str, int]
    waiting: tuple[WaitingMessage, ...] = ()


class MarkerReceived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Event: a marker has arrived from the agent `channel`. `last_number` is the number of the last message that the sender of the marker
    sent on this channel before it recorded `epoch`."""

    channel: str
    epoch: int
    last_number: int


class MarkersReceived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Event: markers of one epoch have arrived from several agents at once. `last_numbers` maps each sender to the number in its marker.
    The core must not modify this mapping."""

    epoch: int
    last_numbers: dict[str, int]


class EpochEnded(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Event: `epoch` is complete or aborted, so its data can be discarded. The event may arrive twice, or before this agent has recorded
    the epoch."""

    epoch: int


class LeaveCommitted(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Event: the agent's leave is committed. `last_epoch` is the last epoch that includes this agent, because it is the last epoch that
    began before the commit."""

    last_epoch: int


class RecordState(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Command: capture the agent's image now. The image serves all epochs in `epochs`, which are in ascending order."""

    epochs: tuple[int, ...]


class SendMarkers(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Command: send a marker to each receiver. The marker contains the number of the last message sent to this receiver before `epoch` was
    recorded. `last_numbers` may be empty, and must not be modified."""

    epoch: int
    last_numbers: dict[str, int]


Event = (
    EpochAnnounced
    | MessageArrived
    | TurnBoundaryReached
    | MarkerReceived
    | MarkersReceived
    | EpochEnded
    | LeaveCommitted
)
Command = RecordState | SendMarkers


class EpochStampedImage(msgspec.Struct, frozen=True):
    """A hashable image of an `EpochStampedCore`. The fields are described in the docstring of that class."""

    agent: str
    recorded: int
    owed: int
    settled: int
    ended: tuple[int, ...]
    last_epoch: int | None
    open_epochs: tuple[EpochRecordingImage, ...]
    early_markers: tuple[tuple[int, Numbers], ...]


class EpochStampedCore:
    """The protocol core of one agent. The core is not thread-safe and does no I/O.

    Attributes:
        agent: the agent's id, for error messages.
        recorded: the last recorded epoch (r above). Messages that leave the outbox are stamped with this epoch. It never decreases.
        owed: the highest known epoch that must be recorded; equal to `recorded` if the agent owes no epoch.
        _settled: an epoch number up to which all epochs have been recorded or have ended. `_settled` is at least `recorded`.
        _ended: epochs above `_settled` that have ended. The collection stays small, because `_settled` advances over ended epochs that
            directly follow it.
        _last_epoch: the last epoch that the agent may owe, if its leave is committed; otherwise None.
        _open: maps the number of each open epoch to its recording. The numbers are in ascending order, and all of them are <= `recorded`.
        _early_markers: for each epoch that this agent has not recorded yet, maps each sender to the number in its early marker.
    """

    __slots__ = ("_early_markers", "_ended", "_last_epoch", "_open", "_settled", "agent", "owed", "recorded")

    def __init__(self, agent: str, *, recorded: int = 0, unborn_in: Iterable[int] = ()) -> None:
        """Create a core for an agent that starts with the given `recorded` epoch and is unborn in the open epochs `unborn_in`."""
        self.agent = agent
        self.recorded = recorded
        self.owed = recorded
        self._settled = recorded
        self._ended: dict[int, None] = {}
        self._last_epoch: int | None = None
        self._early_markers: dict[int, dict[str, int]] = {}
        self._open = {
            epoch: EpochRecording(agent, epoch, is_unborn=True, sent={}, received={})
            for epoch in sorted(set(unborn_in))
        }
        if any(epoch > recorded for epoch in self._open):
            raise ProtocolError(f"{agent} cannot be unborn in {tuple(self._open)}: it starts at epoch {recorded}")

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Handle one event. Return the commands to execute, in order.

        Raises:
            ProtocolError: there is a gap in a channel's numbers, a marker contains an unexpected number, a message stamped below an epoch
                arrives after its marker, or an epoch number is too high. The error message contains the evidence. The core must not be used
                afterwards.
        """
        match event:
            case MessageArrived():
                return self._on_message_arrived(event)
            case MarkerReceived():
                return self._on_marker_received(event)
            case MarkersReceived():
                return self._on_markers_received(event)
            case TurnBoundaryReached():
                return self._on_turn_boundary_reached(event)
            case EpochAnnounced():
                return self._owe(event.epoch)
            case EpochEnded():
                return self._on_epoch_ended(event)
            case LeaveCommitted():
                return self._on_leave_committed(event)
            case _:
                assert_never(event)

    def open_epochs(self) -> tuple[int, ...]:
        """Return the open epochs that this agent has recorded or in which it is unborn, in ascending order."""
        return tuple(self._open)

    def record_of(self, epoch: int) -> RecordedPart:
        """Return a copy of the data recorded for `epoch` so far. The channel states may still grow.

        Raises:
            KeyError: this agent has not recorded `epoch`, or `epoch` has ended.
        """
        return self._open[epoch].report()

    def _on_message_arrived(self, event: MessageArrived) -> list[Command]:
        stamp = event.stamp
        if stamp == self.recorded:
            return []
        if stamp > self.recorded:
            return self._owe(stamp)
        message = WaitingMessage(event.channel, event.number, stamp, event.payload, event.piggyback)
        for open_epoch in self._open.values():
            if stamp < open_epoch.epoch:
                open_epoch.record(message)
        return []

    def _on_marker_received(self, event: MarkerReceived) -> list[Command]:
        open_epoch = self._open.get(event.epoch)
        if open_epoch is not None:
            open_epoch.close(event.channel, event.last_number)
            return []
        if self._is_settled(event.epoch) or self._is_after_leave(event.epoch):
            return []
        self._check_distance(event.epoch)
        markers = self._early_markers.setdefault(event.epoch, {})
        if markers.setdefault(event.channel, event.last_number) != event.last_number:
            raise self._two_markers_error(event, markers[event.channel])
        return self._owe(event.epoch)

    def _on_markers_received(self, event: MarkersReceived) -> list[Command]:
        open_epoch = self._open.get(event.epoch)
        if open_epoch is not None:
            for channel, last_number in event.last_numbers.items():
                open_epoch.close(channel, last_number)
            return []
        for channel, last_number in event.last_numbers.items():
            self._on_marker_received(MarkerReceived(channel, event.epoch, last_number))
        return []

    def _on_turn_boundary_reached(self, event: TurnBoundaryReached) -> list[Command]:
        if self.owed == self.recorded:
            return []
        epochs = tuple(epoch for epoch in range(self._settled + 1, self.owed + 1) if epoch not in self._ended)
        sent, received = dict(event.sent), dict(event.received)
        self._move_owed_to_recorded()
        commands: list[Command] = [RecordState(epochs)]
        for epoch in epochs:
            open_epoch = EpochRecording(self.agent, epoch, is_unborn=False, sent=sent, received=received)
            self._open[epoch] = open_epoch
            for message in event.waiting:
                if message.stamp < epoch:
                    open_epoch.record(message)
            for channel, last_number in self._early_markers.pop(epoch, {}).items():
                open_epoch.close(channel, last_number)
            commands.append(SendMarkers(epoch, sent))
        return commands

    def _on_epoch_ended(self, event: EpochEnded) -> list[Command]:
        epoch = event.epoch
        if epoch <= self._settled:
            self._open.pop(epoch, None)
            return []
        if self._is_after_leave(epoch):
            return []
        self._check_distance(epoch)
        self._early_markers.pop(epoch, None)
        self._ended[epoch] = None
        self._move_ended_to_settled()
        if self.owed == epoch:
            self.owed = self._largest_unsettled(epoch)
        return []

    def _on_leave_committed(self, event: LeaveCommitted) -> list[Command]:
        self._last_epoch = event.last_epoch
        for epoch in [epoch for epoch in self._early_markers if epoch > event.last_epoch]:
            del self._early_markers[epoch]
        if self.owed > self.recorded:
            self.owed = self._largest_unsettled(min(self.owed, event.last_epoch))
        return []

    def _owe(self, epoch: int) -> list[Command]:
        """Handle an announcement, marker or stamp that refers to `epoch`. From now on, the agent owes the highest epoch up to `epoch` that
        is neither recorded nor ended."""
        if self._last_epoch is not None:
            epoch = min(epoch, self._last_epoch)
        if epoch > self.owed:
            self._check_distance(epoch)
            self.owed = max(self.owed, self._largest_unsettled(epoch))
        return []

    def _largest_unsettled(self, epoch: int) -> int:
        """Return the highest epoch up to `epoch` that is neither recorded nor ended, or `recorded` if there is none."""
        while epoch > self._settled:
            if epoch not in self._ended:
                return epoch
            epoch -= 1
        return self.recorded

    def _is_settled(self, epoch: int) -> bool:
        return epoch <= self._settled or epoch in self._ended

    def _is_after_leave(self, epoch: int) -> bool:
        return self._last_epoch is not None and epoch > self._last_epoch

    def _move_owed_to_recorded(self) -> None:
        self.recorded = self.owed
        self._settled = max(self._settled, self.owed)
        self._ended = {epoch: None for epoch in self._ended if epoch > self._settled}
        self._move_ended_to_settled()

    def _move_ended_to_settled(self) -> None:
        """Advance `_settled` over ended epochs that directly follow it. This keeps `_ended` small, because epochs end roughly in order."""
        while self._settled + 1 in self._ended:
            self._settled += 1
            del self._ended[self._settled]

    def _two_markers_error(self, event: MarkerReceived, earlier_number: int) -> ProtocolError:
        return ProtocolError(
            f"{self.agent}, epoch {event.epoch}: two markers from {event.channel} "
            f"name {earlier_number} and {event.last_number} as the last message"
        )

    def _check_distance(self, epoch: int) -> None:
        if epoch - self._settled > EPOCHS_AHEAD_MAX:
            raise ProtocolError(
                f"{self.agent} is told of epoch {epoch}, more than {EPOCHS_AHEAD_MAX} above {self._settled}, "
                f"up to which all are recorded or ended"
            )

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if one is violated, which means that this core has a bug."""
        about = f"{self.agent} at epoch {self.recorded}"
        assert self.recorded <= self._settled, f"{about}: recorded, but only settled up to {self._settled}"
        assert self.owed == self.recorded or not self._is_settled(self.owed), f"{about}: owes settled {self.owed}"
        assert all(epoch > self._settled + 1 for epoch in self._ended), f"{about}: ended {tuple(self._ended)}"
        assert list(self._open) == sorted(self._open), f"{about}: the open epochs do not ascend"
        assert all(epoch <= self.recorded for epoch in self._open), f"{about}: open but not recorded"
        for epoch in self._early_markers:
            assert not self._is_settled(epoch) and epoch <= self.owed, f"{about}: kept a marker of epoch {epoch}"
        for open_epoch in self._open.values():
            open_epoch.validate()

    def freeze(self) -> EpochStampedImage:
        """Return a hashable image of the complete state. Equal states have equal images."""
        return EpochStampedImage(
            agent=self.agent,
            recorded=self.recorded,
            owed=self.owed,
            settled=self._settled,
            ended=tuple(sorted(self._ended)),
            last_epoch=self._last_epoch,
            open_epochs=tuple(open_epoch.freeze() for open_epoch in self._open.values()),
            early_markers=tuple(
                (epoch, tuple(sorted(markers.items()))) for epoch, markers in sorted(self._early_markers.items())
            ),
        )

    @classmethod
    def restore(cls, image: EpochStampedImage) -> Self:
        """Restore a core from an image that `freeze` has returned."""
        core = cls(image.agent, recorded=image.recorded)
        core.owed = image.owed
        core._settled = image.settled
        core._ended = dict.fromkeys(image.ended)
        core._last_epoch = image.last_epoch
        core._open = {
            open_image.epoch: EpochRecording.restore(image.agent, open_image) for open_image in image.open_epochs
        }
        core._early_markers = {epoch: dict(markers) for epoch, markers in image.early_markers}
        return core


class AgentReport(msgspec.Struct, frozen=True, gc=False):
    """The message numbers of one agent in one epoch.

    Attributes:
        is_unborn: whether the agent was created while the epoch was open, in which case `sent` and `received` are empty.
        sent: maps each receiver to the number of the last message sent to it before the recording.
        received: maps each sender to the number of the last message from it that was consumed before the recording.
        recorded: maps each sender to the number of messages in the channel state so far.
    """

    agent: str
    is_unborn: bool
    sent: dict[str, int]
    received: dict[str, int]
    recorded: dict[str, int]


class Coverage(msgspec.Struct, frozen=True, gc=False):
    """The channels of an epoch that are not covered yet, and the channels that make the epoch invalid.

    Attributes:
        missing: a tuple (sender, receiver, reason) for each channel that is not covered yet.
        orphans: a tuple (sender, receiver, sent, received) for each channel whose receiver has more messages than the sender sent inside
            the cut. If only the channel state is too long, `received` includes the number of messages in the channel state.
    """

    missing: list[tuple[str, str, str]]
    orphans: list[tuple[str, str, int, int]]

    @property
    def is_whole(self) -> bool:
        """Return whether all channels are covered and none is invalid."""
        return not self.missing and not self.orphans


def check_coverage(reports: Mapping[str, AgentReport], gone: Collection[str]) -> Coverage:
    """Compare the message numbers that senders and receivers have reported for all channels. This takes linear time.

    Args:
        reports: the latest report of each agent in the epoch.
        gone: agents that left before the epoch began. Pass a set or dictionary for fast lookup.
    """
    coverage = Coverage([], [])
    for sender, report in reports.items():
        for receiver, sent in report.sent.items():
            if receiver not in gone:
                _check_channel(coverage, sender, receiver, sent, reports.get(receiver))
    for receiver, report in reports.items():
        if receiver not in gone:
            _check_receiver_only_channels(coverage, receiver, report, reports, gone)
    return coverage


def _check_channel(coverage: Coverage, sender: str, receiver: str, sent: int, report: AgentReport | None) -> None:
    if report is None:
        if sent:
            coverage.missing.append((sender, receiver, f"{receiver} has not reported"))
        return
    received = report.received.get(sender, 0)
    arrived = received + report.recorded.get(sender, 0)
    if arrived < sent:
        why = f"{sent} sent, {received} received, {arrived - received} recorded"
        coverage.missing.append((sender, receiver, why))
    elif arrived > sent:
        coverage.orphans.append((sender, receiver, sent, received if received > sent else arrived))


def _check_receiver_only_channels(
    coverage: Coverage, receiver: str, report: AgentReport, reports: Mapping[str, AgentReport], gone: Collection[str]
) -> None:
    """Check the channels that only the receiver has reported. The senders have sent no messages on these channels inside the cut."""
    claims = {**report.received, **report.recorded} if report.recorded else report.received
    for sender in claims:
        sender_report = reports.get(sender)
        if sender in gone or (sender_report is not None and receiver in sender_report.sent):
            continue  # already checked as a channel of its sender, or exempt
        arrived = report.received.get(sender, 0) + report.recorded.get(sender, 0)
        if arrived and sender_report is None:
            coverage.missing.append((sender, receiver, f"{sender} has not reported"))
        elif arrived:
            coverage.orphans.append((sender, receiver, 0, arrived))
