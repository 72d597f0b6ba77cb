"""Control state that one side of a link sends the other: ack, grants and channel credits.

All three are absolute values, not numbered items: a broken stream may lose any of them, and a newer value replaces the
older one. Every frame carries the newest values. Without other traffic, a separate frame is due 20 ms after the first
unsent change, or at once when a quarter of the window is unreported.
"""

from snapline.channels.channel import WINDOW_BYTES, WINDOW_ITEMS
from snapline.channels.frame import CREDITS_MAX, Frame
from snapline.channels.incoming import IncomingOrder

REPORT_DELAY_NS = 20_000_000
"""Longest time that acks and grants wait for a frame to carry them; short compared with the time to use up a full window."""

TELL_FRAMES = 2
"""Number of small item frames after which an ack is due: the number that the peer may send unacked, so it never waits for the delay."""

_REPORT_ITEMS = WINDOW_ITEMS // 4
_REPORT_BYTES = WINDOW_BYTES // 4


class UnsentControlState:
    """Control state that the peer has not received yet; see the module.

    Attributes:
        frames: small item frames received since this side's last frame.
        ack, items, bytes: as sent in the last frame of the current stream.
        is_due: whether a separate frame is to be written now.
        due_ns: time at which a separate frame becomes due if no other frame is sent; None while everything is reported.
        credits: last credit of each incoming channel; `unsent_credits` holds the credits that the current stream has not carried.
    """

    def __init__(self, incoming: IncomingOrder) -> None:
        self._incoming = incoming
        self.ack = 0
        self.items = 0
        self.bytes = 0
        self.frames = 0
        self.is_due = False
        self.due_ns: int | None = None
        self.credits: dict[int, int] = {}
        self.unsent_credits: dict[int, int] = {}

    def note(self, now_ns: int) -> None:
        """Record that items arrived or were consumed."""
        if self.due_ns is None:
            self.due_ns = now_ns + REPORT_DELAY_NS
        incoming = self._incoming
        if (
            incoming.consumed_items + WINDOW_ITEMS - self.items >= _REPORT_ITEMS
            or incoming.consumed_bytes + WINDOW_BYTES - self.bytes >= _REPORT_BYTES
            or len(self.unsent_credits) >= CREDITS_MAX
        ):
            self.is_due = True

    def note_frame(self, now_ns: int, *, is_small: bool) -> None:
        """Record that a frame with items arrived."""
        self.frames += is_small
        self.note(now_ns)
        if self.frames >= TELL_FRAMES:
            self.is_due = True

    def note_credits(self, channels: list[int], numbers: list[int]) -> None:
        """Record new credits of incoming channels; the caller calls `note` afterwards. Closed channels are skipped."""
        opened = self._incoming.opened
        new_credits = {channel: number for channel, number in zip(channels, numbers, strict=True) if channel in opened}
        self.credits.update(new_credits)
        self.unsent_credits.update(new_credits)

    def forget(self, channel: int) -> None:
        """Forget the credit of a closed incoming channel."""
        self.credits.pop(channel, None)
        self.unsent_credits.pop(channel, None)

    def note_time(self, now_ns: int) -> None:
        """Make the separate frame due if its time has come."""
        if self.due_ns is not None and now_ns >= self.due_ns:
            self.is_due = True

    def forget_stream(self) -> None:
        """Mark all credits as unsent, since the broken stream may have lost them. The next Hello carries ack and grants."""
        self.is_due = False
        self.due_ns = None
        self.unsent_credits = dict(self.credits)

    def fill(self, frame: Frame, now_ns: int, *, with_credits: bool) -> None:
        """Put all unsent control state into a frame that is about to be written."""
        incoming = self._incoming
        self.frames = 0
        frame.ack = self.ack = incoming.received
        frame.grant_items = self.items = incoming.consumed_items + WINDOW_ITEMS
        frame.grant_bytes = self.bytes = incoming.consumed_bytes + WINDOW_BYTES
        unsent_credits = self.unsent_credits
        if unsent_credits and with_credits:
            channels = (
                list(unsent_credits) if len(unsent_credits) <= CREDITS_MAX else list(unsent_credits)[:CREDITS_MAX]
            )
            frame.credit_channel, frame.credit_number = channels, [unsent_credits.pop(channel) for channel in channels]
        self.is_due = len(unsent_credits) >= CREDITS_MAX
        self.due_ns = now_ns + REPORT_DELAY_NS if unsent_credits else None

    def validate(self) -> None:
        """Raise AssertionError if a sent value is above the true one."""
        assert self.ack <= self._incoming.received, f"told ack {self.ack} of {self._incoming.received}"
        assert self.items <= self._incoming.consumed_items + WINDOW_ITEMS
        assert self.bytes <= self._incoming.consumed_bytes + WINDOW_BYTES
        assert all(self.credits[channel] == number for channel, number in self.unsent_credits.items())
        assert not self.is_due or self.due_ns is not None
