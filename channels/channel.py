"""The two ends of one channel, and the limits of every link.

A channel is directed and FIFO, from one agent to another. The sender's host holds an `Outlet`, the receiver's host an
`Inlet`; both are plain counters, cheap enough to update once per message. A message gets its number when it leaves the
sender's outbox. A message that waits for credit is *parked*: it has no number and no stamp, and belongs to the sender's
checkpoint. Agents on one host use the same two objects without a link in between.

Credit is absolute: the highest message number that may have been sent, `consumed + CHANNEL_CREDIT`. A credit that arrives
twice, late or never only makes the sender wait.
"""

from collections import deque
from collections.abc import Iterable

from snapline.errors import MessageTooLargeError

CHANNEL_CREDIT = 256
"""Largest number of messages of one channel that may wait at the receiver: 1/32 of WINDOW_ITEMS, so that one slow agent does not fill the
link's window."""

WINDOW_ITEMS = 8192
"""Largest number of items of one link that may wait at the receiver: 16 full frames, enough to keep both sides busy."""

WINDOW_BYTES = 3 * 1024 * 1024
"""Largest number of bytes of one link that may wait at the receiver. gRPC's own window blocked at 4.1 MB; ours must fill first, since
checkpoints cannot see messages inside gRPC."""

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Largest message. Larger data goes through the store."""

PART_BYTES = 1024 * 1024
"""Larger messages are sent in parts of this size, so that frames stay near 1 MiB."""


def check_message_size(size_bytes: int) -> None:
    """Refuse a message that no link would carry.

    Raises:
        MessageTooLargeError: the message is larger than `MESSAGE_BYTES_MAX`.
    """
    if size_bytes > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"a message of {size_bytes} bytes is above the limit of {MESSAGE_BYTES_MAX} bytes (16 MiB): "
            f"put the data into the store and send its name"
        )


def window_bytes(payloads: Iterable[bytes]) -> int:
    """Return the bytes that these consumed messages return to the link's window (`ItemsConsumed.size_bytes`).

    A message in parts holds one part's worth of the window until it is consumed; its other parts returned theirs on
    arrival. So every message counts with its size, but at most with `PART_BYTES`.
    """
    sizes = list(map(len, payloads))
    total = sum(sizes)
    return total if total <= PART_BYTES else sum([min(PART_BYTES, size) for size in sizes])


class Outlet:
    """Sender's end of one channel.

    Attributes:
        channel: number of the channel on its link, > 0; 0 if it has none (not opened, or inside one host).
        number: number of the last message sent; `number <= credit` except for messages that need no credit.
        credit: highest message number that may be sent.
        parked: payloads that wait for credit or room, in order; not numbered, not stamped. The host's outbox limit bounds
            them: it raises an alarm and slows the ingress, since slowing turns would deadlock a cyclic fleet.
        queue: the deque behind `parked`, None until first used: an empty deque takes more memory than the other attributes together.
    """

    __slots__ = ("channel", "credit", "number", "queue", "receiver", "sender")

    def __init__(self, *, channel: int, sender: str, receiver: str, number: int = 0) -> None:
        self.channel = channel
        self.sender = sender
        self.receiver = receiver
        self.number = number
        self.credit = number + CHANNEL_CREDIT
        self.queue: deque[bytes] | None = None

    @property
    def parked(self) -> deque[bytes]:
        if self.queue is None:
            self.queue = deque()
        return self.queue

    def raise_credit(self, number: int) -> bool:
        """Raise the credit to `number`, and return whether parked messages may now be sent. Older credits change nothing."""
        if number <= self.credit:
            return False
        self.credit = number
        return bool(self.queue)

    def validate(self) -> None:
        """Raise AssertionError if the counters contradict each other."""
        assert self.number >= 0, f"{self.sender}->{self.receiver}: number {self.number}"
        assert self.credit >= CHANNEL_CREDIT, f"{self.sender}->{self.receiver}: credit {self.credit}"


class Inlet:
    """Receiver's end of one channel.

    The next message to arrive has number `arrived + 1`. The caller counts it inline with `inlet.arrived += 1`, since this
    happens once per message.

    Attributes:
        arrived: number of the last message that arrived; initially `first_number - 1`.
        consumed: number of the last message that a turn consumed or the host dropped; dropped ones count, or the window would shrink.
        credit_sent: last credit sent to the sender, or the initial credit of a newly opened channel.
    """

    __slots__ = ("arrived", "channel", "consumed", "credit_sent", "receiver", "sender")

    def __init__(
        self, *, channel: int, sender: str, receiver: str, first_number: int = 1, consumed: int | None = None
    ) -> None:
        """`consumed` is lower than `first_number - 1` if recovery redelivers messages that the sender will not resend."""
        self.channel = channel
        self.sender = sender
        self.receiver = receiver
        self.arrived = first_number - 1
        self.consumed = self.arrived if consumed is None else consumed
        self.credit_sent = self.arrived + CHANNEL_CREDIT

    def consume(self, count: int = 1) -> int:
        """Count messages as consumed; return the credit to send to the sender, or 0 while the change is too small."""
        self.consumed += count
        credit = self.consumed + CHANNEL_CREDIT
        if credit - self.credit_sent < CHANNEL_CREDIT // 2:
            return 0
        self.credit_sent = credit
        return credit

    def validate(self) -> None:
        """Raise AssertionError if the counters contradict each other."""
        assert self.consumed <= self.arrived, (
            f"{self.sender}->{self.receiver}: consumed {self.consumed} of {self.arrived} arrived"
        )
