"""One open epoch at one agent: its numbers, and the channel states that grow until every channel is closed.

The part of the epoch-stamped protocol (see `epoch_stamped`, rules 3 to 5) that is the same for every open epoch. A
channel state is the run of numbers directly after the last one received before the record, all stamped below the epoch;
the marker shows where it ends. Every departure from that is a peer's or the link's fault and raises `ProtocolError`.
"""

from typing import Self

import msgspec

from snapline.errors import ProtocolError

Numbers = tuple[tuple[str, int], ...]


class WaitingMessage(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A message that has arrived and has not been consumed by a turn. `channel` is its sender."""

    channel: str
    number: int
    stamp: int
    payload: bytes
    piggyback: bytes = b""


class RecordedPart(msgspec.Struct, frozen=True, gc=False):
    """Record of one agent for one epoch so far: its numbers, and the channel states by sender, in order."""

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
        sent, received: the agent's numbers at the record; empty if it is unborn. Never changed.
        in_transit: by sender, the channel state so far; a sender without messages has no entry.
        markers: by sender whose channel is closed, the number in its marker.
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
        """The last number received or recorded on `channel`."""
        return self.received.get(channel, 0) + len(self.in_transit.get(channel, ()))

    def record(self, message: WaitingMessage) -> None:
        """Rules 3 and 4: `message`, stamped below the epoch, joins its channel state.

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
        """Rule 5: received + recorded = the marker's number. The same marker again is a no-op.

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
        """Copy what is recorded so far."""
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
        """Build what was frozen."""
        sent, received = dict(image.sent), dict(image.received)
        restored = cls(agent, image.epoch, is_unborn=image.is_unborn, sent=sent, received=received)
        restored.in_transit = {channel: list(messages) for channel, messages in image.in_transit}
        restored.markers = dict(image.markers)
        return restored
