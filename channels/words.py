"""Control state that one side of a link sends the other: ack, grants and channel credits.

They are absolute values, not numbered items: any of them may be lost with a stream, and a newer one replaces the
older. Every frame carries the newest. Where no frame is sent, a separate one is due 20 ms after the first unsent
change, or at once when a quarter of the window waits to be sent.
"""

from snapline.channels.channel import WINDOW_BYTES, WINDOW_ITEMS
from snapline.channels.frame import CREDITS_MAX, Frame
from snapline.channels.incoming import IncomingOrder

TELL_DELAY_NS = 20_000_000
"""Acks and grants wait this long for a frame to ride on: short against the time a full window lasts."""

TELL_FRAMES = 2
"""Small frames with items after which an ack is due: as many as the peer may have under way unacked, so it never waits for the delay."""

_TELL_ITEMS = WINDOW_ITEMS // 4
_TELL_BYTES = WINDOW_BYTES // 4


class UnreportedPhrases:
    """See the module.

    Attributes:
        frames: small ones with items, since the last frame of ours.
        ack, items, bytes: as sent in the last frame of the current stream.
        is_due: a frame of its own is to be written now.
        due_ns: when it will be, if no frame goes by; None while nothing is untold.
        credits: per incoming channel the last credit; `untold` holds those that the stream has not carried.
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
        self.untold: dict[int, int] = {}

    def note(self, now_ns: int) -> None:
        """Items arrived or were consumed."""
        if self.due_ns is None:
            self.due_ns = now_ns + TELL_DELAY_NS
        incoming = self._incoming
        if (
            incoming.consumed_items + WINDOW_ITEMS - self.items >= _TELL_ITEMS
            or incoming.consumed_bytes + WINDOW_BYTES - self.bytes >= _TELL_BYTES
            or len(self.untold) >= CREDITS_MAX
        ):
            self.is_due = True

    def note_frame(self, now_ns: int, *, is_small: bool) -> None:
        """A frame with items arrived."""
        self.frames += is_small
        self.note(now_ns)
        if self.frames >= TELL_FRAMES:
            self.is_due = True

    def note_credits(self, channels: list[int], numbers: list[int]) -> None:
        """Note that these incoming channels may reach these numbers; `note` follows. A closed one needs no credit."""
        opened = self._incoming.opened
        news = {channel: number for channel, number in zip(channels, numbers, strict=True) if channel in opened}
        self.credits.update(news)
        self.untold.update(news)

    def forget(self, channel: int) -> None:
        """Forget the credit of a closed incoming channel."""
        self.credits.pop(channel, None)
        self.untold.pop(channel, None)

    def note_time(self, now_ns: int) -> None:
        """Time has passed."""
        if self.due_ns is not None and now_ns >= self.due_ns:
            self.is_due = True

    def forget_stream(self) -> None:
        """The stream is gone. Its Hello will tell ack and grants of the next; the broken one may have lost any credit."""
        self.is_due = False
        self.due_ns = None
        self.untold = dict(self.credits)

    def fill(self, frame: Frame, now_ns: int, *, with_credits: bool) -> None:
        """Put all unsent control state into a frame that is about to be written."""
        incoming = self._incoming
        self.frames = 0
        frame.ack = self.ack = incoming.received
        frame.grant_items = self.items = incoming.consumed_items + WINDOW_ITEMS
        frame.grant_bytes = self.bytes = incoming.consumed_bytes + WINDOW_BYTES
        untold = self.untold
        if untold and with_credits:
            channels = list(untold) if len(untold) <= CREDITS_MAX else list(untold)[:CREDITS_MAX]
            frame.credit_channel, frame.credit_number = channels, [untold.pop(channel) for channel in channels]
        self.is_due = len(untold) >= CREDITS_MAX
        self.due_ns = now_ns + TELL_DELAY_NS if untold else None

    def validate(self) -> None:
        """Raise AssertionError if more was sent than is true."""
        assert self.ack <= self._incoming.received, f"told ack {self.ack} of {self._incoming.received}"
        assert self.items <= self._incoming.consumed_items + WINDOW_ITEMS
        assert self.bytes <= self._incoming.consumed_bytes + WINDOW_BYTES
        assert all(self.credits[channel] == number for channel, number in self.untold.items())
        assert not self.is_due or self.due_ns is not None
