"""Coordinated checkpoint protocol of fleets: messages carry epoch stamps, and markers close channels early.

`protocol="chandy-lamport"` selects this protocol. It combines Lai and Yang's stamps with Chandy and Lamport's markers.

Theory of operation
-------------------
The problem: take one consistent cut per epoch of a running fleet whose channels open at any time, whose agents join and
leave, and whose turns may last minutes. Model: crash-stop agents, reliable FIFO channels numbered 1, 2, 3 …, atomic
turns, no clocks; epochs are numbered 1, 2, 3 … in the order in which the coordinator begins them, several may be open.

*Received* means consumed by a turn. Messages in the mailbox are still in their channel. Below, r is `recorded`, the last
epoch this agent recorded.

1. A message is stamped with the value of r when it leaves the outbox, never with an epoch that is owed but not recorded.
2. If the host's announcement, a marker or a message names an epoch e > r, the agent owes e and records its state before its next turn. The
   message that named e waits in the mailbox.
3. Recording up to e: one image serves the epochs r + 1 … e. The channel state of each such epoch x begins with the
   mailbox messages stamped < x. Then r = e.
4. A message stamped s that arrives later joins the channel state of every open epoch x with s < x <= r.
5. The agent sends a marker (e, last number sent before the record) on each channel ever used. The marker follows every message stamped < e
   and may follow later ones. When the marker arrives, or at the receiver's record if that is later, received + recorded must equal the
   marker's number.
6. An agent created during open epochs is unborn in them: nothing sent, nothing received. Messages that reach it with a
   lower stamp, including the message that creates it, are channel state.
7. An agent whose leave is committed does not owe epochs that begin afterwards.

Correctness. G1: a message stamped s >= x was sent after its sender recorded x, or by an agent unborn in x, and is
consumed only after the receiver has recorded x (rule 2). G2: a message stamped s < x was sent before the sender recorded
x. Its receiver consumed it before its own record of x, or it waited in the mailbox then (rule 3), or it came later
(rule 4). The proof needs no markers: a marker only closes a channel early and serves as a check. The balance of the reported numbers
decides whether an epoch is complete (`check_coverage`).

Sources: T. H. Lai and T. H. Yang, "On Distributed Snapshots", Information Processing Letters 25, 1987: the sender's colour on each
message; our colour is the epoch. F. Mattern, "Efficient Algorithms for Distributed Snapshots and Global Virtual Time Approximation", JPDC
18, 1993: completeness by balancing counts. K. M. Chandy and L. Lamport, 1985: the marker. Departures: several epochs may be open at once,
one image serves all owed epochs, and agents may join and leave. Since channels are FIFO, numbers replace the counts, and every gap is
detected (`EpochRecording`).

An epoch that ends before this agent records it is remembered as ended, so that the agent does not record it later. A message stamped with
it requires only the smaller epochs that are still open: records of an ended epoch are never used.

Invariants (see `validate`): `recorded <= owed`; every open epoch is <= `recorded`; each channel state holds consecutive
numbers, directly after the last number received before the record, with stamps below the epoch.

The caller's duties:

1. *The rule that safety depends on:* while `owed > recorded`, start no turn. When no turn is running, pass `TurnBoundaryReached` to the
   core, and execute `RecordState` before the next event.
2. Stamp messages that leave the outbox with `recorded`, and number them per channel. Messages held in the outbox are not sent: they belong
   to the agent's image.
3. Deliver `MessageArrived` for every arrival whose stamp differs from `recorded`, before the message enters the mailbox,
   in the channel's order, each message once. For equal stamps the event may be omitted because it changes nothing.
4. Send the markers of `SendMarkers` after everything that left earlier; later messages may overtake the markers.
5. Deliver `EpochEnded` for every epoch, complete or aborted, that began while the agent lived or in which it is unborn.

One open epoch at one agent
---------------------------
`EpochRecording` holds the agent's numbers in one open epoch, and channel states that grow until every channel is closed (rules 3 to 5). A
channel state is the run of numbers directly after the last one received before the record, all stamped below the epoch; the marker shows
where it ends. Anything else is a fault of a peer or of the link and raises `ProtocolError`.

Completeness of an epoch
------------------------
An epoch is complete when every channel that a sender reported is covered by its receiver's report (`check_coverage`, at the coordinator).
Every agent in an epoch reports from its record: per outgoing channel the last number sent, per incoming channel the
last number received, and the current number of messages in its channel state. The channel i -> j is covered when
received_j + recorded_j = sent_i (F. Mattern, JPDC 18, 1993: balanced counts; here numbers, since channels are FIFO).
received_j > sent_i is an orphan (G1), and received_j + recorded_j > sent_i a channel state with a message from outside
the cut (G2): both mean that a peer broke the protocol, so the epoch is aborted and an alarm is raised.

*Senders* decide which channels exist: the receiver may not know a channel yet. So an epoch waits for every agent
that a reported sender names, in addition to the members it began with (those the caller checks, by name). Sent numbers are fixed
at the record and recorded counts only grow, so an outdated report delays completion but is never wrong.

The caller's duties:

1. Pass the latest report of each agent in this epoch, unborn agents included.
2. An agent whose leave was committed before the epoch began is `gone`, and its committed numbers are its report here,
   until all its messages are received. Messages to it become dead letters: channels towards it are not checked.
3. The epoch is complete when every member has reported and `Coverage.is_whole`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Self, assert_never

import msgspec

from snapline.errors import ProtocolError

Numbers = tuple[tuple[str, int], ...]


class WaitingMessage(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Message in the mailbox: it has arrived, but no turn has consumed it. `channel` is its sender."""

    channel: str
    number: int
    stamp: int
    payload: bytes
    piggyback: bytes = b""


class RecordedPart(msgspec.Struct, frozen=True, gc=False):
    """Copy of what one agent has recorded for one epoch so far: its numbers, and the channel states by sender, in order."""

    epoch: int
    is_unborn: bool
    sent: dict[str, int]
    received: dict[str, int]
    in_transit: dict[str, list[WaitingMessage]]


class EpochRecordingImage(msgspec.Struct, frozen=True):
    """A hashable image of one open epoch."""

    epoch: int
    is_unborn: bool
    sent: Numbers
    received: Numbers
    in_transit: tuple[tuple[str, tuple[WaitingMessage, ...]], ...]
    markers: Numbers


class EpochRecording:
    """An open epoch that `agent` has recorded, or in which the agent is unborn.

    Attributes:
        sent, received: the agent's numbers at the record; empty if the agent is unborn. Never changed.
        in_transit: by sender, the messages in the channel state so far; a sender without messages has no entry.
        markers: by sender whose channel is closed, the number in the marker.
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
        """Return the number of the last message received or recorded on `channel`."""
        return self.received.get(channel, 0) + len(self.in_transit.get(channel, ()))

    def record(self, message: WaitingMessage) -> None:
        """Apply rules 3 and 4: add `message`, which is stamped below the epoch, to its channel state.

        Raises:
            ProtocolError: the channel is closed, or its numbers have a gap.
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
        """Apply rule 5: close `channel` after checking that received + recorded equals the marker's number. Repeating a marker is a no-op.

        Raises:
            ProtocolError: the numbers do not balance.
        """
        if self.last_number(channel) != last_number:
            raise ProtocolError(
                f"{self.agent}, epoch {self.epoch}: the marker from {channel} names {last_number} as the last "
                f"message, but {self._numbers_text(channel)}"
            )
        self.markers[channel] = last_number

    def report(self) -> RecordedPart:
        """Return a copy of everything recorded so far."""
        in_transit = {channel: list(messages) for channel, messages in self.in_transit.items()}
        return RecordedPart(self.epoch, self.is_unborn, dict(self.sent), dict(self.received), in_transit)

    def _numbers_text(self, channel: str) -> str:
        received = self.received.get(channel, 0)
        return f"{received} were received before the record and {len(self.in_transit.get(channel, ()))} recorded"

    def validate(self) -> None:
        """Check every invariant; AssertionError if one does not hold."""
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
        """Return a hashable image; equal states have equal images."""
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
        """Build a recording from an image that `freeze` returned."""
        sent, received = dict(image.sent), dict(image.received)
        restored = cls(agent, image.epoch, is_unborn=image.is_unborn, sent=sent, received=received)
        restored.in_transit = {channel: list(messages) for channel, messages in image.in_transit}
        restored.markers = dict(image.markers)
        return restored


EPOCHS_AHEAD_MAX = 1_024
"""Largest distance of a named epoch above the oldest one that is neither recorded nor ended here. Few epochs are open at once, and a host
learns of their ends within a heartbeat or is declared failed. An epoch number more than a thousand ahead is treated as damaged."""


class EpochAnnounced(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The host announces that `epoch` has begun. The event is a no-op for known, recorded and ended epochs."""

    epoch: int


class MessageArrived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A message arrived from the agent `channel` and is about to enter the mailbox."""

    channel: str
    number: int
    stamp: int
    payload: bytes
    piggyback: bytes = b""


class TurnBoundaryReached(msgspec.Struct, frozen=True, gc=False, tag=True):
    """No turn is running, so the agent can be recorded. The event is a no-op if no epoch is owed.

    Attributes:
        sent: by receiver, the number of the last message that left the outbox.
        received: by sender, the number of the last message that a turn consumed.
        waiting: the messages in the mailbox, in the order of arrival.
    """

    sent: dict[str, int]
    received: dict[str, int]
    waiting: tuple[WaitingMessage, ...] = ()


class MarkerReceived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A marker arrived from the agent `channel`, whose last message before its record of `epoch` was `last_number`."""

    channel: str
    epoch: int
    last_number: int


class MarkersReceived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Markers of one epoch arrived from several agents at once, as a link delivers them: sender → last number. Read only."""

    epoch: int
    last_numbers: dict[str, int]


class EpochEnded(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`epoch` is complete or aborted: discard its state. The event may arrive before this agent has recorded the epoch, or twice."""

    epoch: int


class LeaveCommitted(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The agent's leave is committed; `last_epoch` is the latest epoch begun before that, and the last epoch that includes this agent."""

    last_epoch: int


class RecordState(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Capture the agent's image now. The image serves all of `epochs`, which are in ascending order and never empty."""

    epochs: tuple[int, ...]


class SendMarkers(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Send every receiver a marker with the last number sent to it before the record of `epoch`. May be empty. Read only."""

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
    """A hashable image of a core; the fields are those of `EpochStampedCore`."""

    agent: str
    recorded: int
    owed: int
    settled: int
    ended: tuple[int, ...]
    last_epoch: int | None
    open_epochs: tuple[EpochRecordingImage, ...]
    early_markers: tuple[tuple[int, Numbers], ...]


class EpochStampedCore:
    """Core of the protocol for one agent. Not thread-safe; does no I/O.

    Attributes:
        agent: this agent's id, for error messages.
        recorded: r, the last epoch recorded and the stamp of messages that leave now. Never falls.
        owed: the largest known epoch that must be recorded; equal to `recorded` if no epoch is owed.
        _settled: epoch up to which every epoch is recorded or has ended; at least `recorded`.
        _ended: the epochs above `_settled` that have ended. Stays short: `_settled` advances over epochs that directly follow it.
        _last_epoch: after a committed leave, the last epoch that may be owed.
        _open: the open epochs by number, ascending, all <= `recorded`.
        _early_markers: by epoch above `recorded`, then by sender: markers that came before the record.
    """

    __slots__ = ("_early_markers", "_ended", "_last_epoch", "_open", "_settled", "agent", "owed", "recorded")

    def __init__(self, agent: str, *, recorded: int = 0, unborn_in: Iterable[int] = ()) -> None:
        """Create the core of an agent that starts with r = `recorded`, unborn in the open epochs `unborn_in`."""
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
        """Handle one event; return the commands, in order.

        Raises:
            ProtocolError: a gap in a channel's numbers, a marker whose number does not match, a message stamped below
                an epoch behind that epoch's marker, an epoch impossibly far ahead. The error message has the evidence;
                the core must not be used afterwards.
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
        """Return the open epochs that this agent has recorded or is unborn in, ascending."""
        return tuple(self._open)

    def record_of(self, epoch: int) -> RecordedPart:
        """Return a copy of the record of `epoch` so far; channel states may still grow.

        Raises:
            KeyError: `epoch` is not recorded here, or has ended.
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
        """After an announcement, marker or stamp that names `epoch`, owe the largest epoch up to it that is still to be recorded."""
        if self._last_epoch is not None:
            epoch = min(epoch, self._last_epoch)
        if epoch > self.owed:
            self._check_distance(epoch)
            self.owed = max(self.owed, self._largest_unsettled(epoch))
        return []

    def _largest_unsettled(self, epoch: int) -> int:
        """Return the largest epoch up to `epoch` that is neither recorded nor ended; `recorded` if there is none."""
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
        """Advance `_settled` over epochs that have ended. This keeps `_ended` short, since epochs end roughly in order."""
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
        """Check every invariant.

        Raises:
            AssertionError: one does not hold, which is a fault of this core.
        """
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
        """Return a hashable image of the whole state; equal states have equal images."""
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
        """Build a core in exactly the state that was frozen."""
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
    """One agent's numbers in one epoch.

    Attributes:
        is_unborn: the agent was created while the epoch was open, so `sent` and `received` are empty.
        sent: by receiver, the last number sent before the record.
        received: by sender, the last number consumed before the record.
        recorded: by sender, the number of messages in the channel state so far.
    """

    agent: str
    is_unborn: bool
    sent: dict[str, int]
    received: dict[str, int]
    recorded: dict[str, int]


class Coverage(msgspec.Struct, frozen=True, gc=False):
    """Channels of an epoch that are not covered yet, and those that make the epoch invalid.

    Attributes:
        missing: (sender, receiver, reason), one for each channel that is not covered yet.
        orphans: (sender, receiver, sent, received): the receiver has more messages than were sent inside the cut;
            `received` includes the channel state if that is too long.
    """

    missing: list[tuple[str, str, str]]
    orphans: list[tuple[str, str, int, int]]

    @property
    def is_whole(self) -> bool:
        """Return whether every channel is covered and none is invalid."""
        return not self.missing and not self.orphans


def check_coverage(reports: Mapping[str, AgentReport], gone: Collection[str]) -> Coverage:
    """Compare senders' and receivers' numbers on all reported channels, in linear time.

    Args:
        reports: the latest report of each agent in the epoch.
        gone: the agents that left before the epoch began, preferably a set or a dictionary.
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
    """Check channels that only the receiver reported: their sender has sent nothing on them inside the cut."""
    claims = {**report.received, **report.recorded} if report.recorded else report.received
    for sender in claims:
        sender_report = reports.get(sender)
        if sender in gone or (sender_report is not None and receiver in sender_report.sent):
            continue  # already checked by the first pass, or exempt
        arrived = report.received.get(sender, 0) + report.recorded.get(sender, 0)
        if arrived and sender_report is None:
            coverage.missing.append((sender, receiver, f"{sender} has not reported"))
        elif arrived:
            coverage.orphans.append((sender, receiver, 0, arrived))
