"""Defines the sending and the receiving end of a channel, and the limits of every link.

A channel carries messages from one agent to another in FIFO order. The sender's host holds an `Outlet` and the receiver's host an `Inlet`.
Outlets and inlets are plain counters, which are cheap enough to update once per message. A message gets its sequence number when it leaves
the sender's outbox. A message that waits for credit is *parked*. A parked message has neither a sequence number nor an epoch stamp, and
belongs to the sender's checkpoint. If both agents are on one host, the same two objects are used without a link.

Credit is an absolute value: the highest message number that the sender may use, which is `consumed + CHANNEL_CREDIT`. A duplicated credit
is harmless. A late or lost credit only makes the sender wait.
"""

from collections import deque
from collections.abc import Iterable

from snapline.errors import MessageTooLargeError

CHANNEL_CREDIT = 256
"""Largest number of messages of one channel that may wait at the receiver. It is 1/32 of WINDOW_ITEMS, so that one slow agent does not fill
the link's window."""

WINDOW_ITEMS = 8192
"""Largest number of items of one link that may wait at the receiver. It equals 16 full frames, which is enough to keep both sides busy."""

WINDOW_BYTES = 3 * 1024 * 1024
"""Largest number of bytes of one link that may wait at the receiver. This window must be exhausted before gRPC's own window, which blocked
at 4.1 MB, because checkpoints cannot see messages inside gRPC."""

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Largest size of a message in bytes. Larger data must be passed through the store."""

PART_BYTES = 1024 * 1024
"""Size in bytes of the parts into which larger messages are split, so that frames stay near 1 MiB."""


def check_message_size(size_bytes: int) -> None:
    """Raise an error if a message is too large to be sent over a link.

    Raises:
        MessageTooLargeError: If the message is larger than `MESSAGE_BYTES_MAX`.
    """
    if size_bytes > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"a message of {size_bytes} bytes is above the limit of {MESSAGE_BYTES_MAX} bytes (16 MiB): "
            f"put the data into the store and send its name"
        )


def window_bytes(payloads: Iterable[bytes]) -> int:
    """Return by how many bytes the link's free window grows when these messages are consumed (`ItemsConsumed.size_bytes`).

    Until it is consumed, a message that arrives in parts occupies only `PART_BYTES` of the window, because its other parts count as
    consumed on arrival. So each message counts with its own size or with `PART_BYTES`, whichever is smaller.
    """
    sizes = list(map(len, payloads))
    total = sum(sizes)
    return total if total <= PART_BYTES else sum([min(PART_BYTES, size) for size in sizes])


class Outlet:
    """The sending end of one channel.

    Attributes:
        channel: number of the channel on its link, greater than 0. The number is 0 if the channel is not open yet, or if both agents are on
            one host.
        number: sequence number of the last message sent. The number is at most `credit`, except that some messages need no credit.
        credit: highest message number that may be sent.
        parked: payloads of messages that wait for credit or for room in the link's window, in order. Parked messages have no sequence
            numbers and no epoch stamps. The number of parked messages is limited by the host's outbox limit, which raises an alarm and
            slows the intake of inputs. Slowing turns instead would cause a deadlock in fleets with cyclic channels.
        queue: the deque that `parked` returns. The queue is None until it is first used, because an empty deque takes more memory than all
            other attributes together.
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
        """Raise the credit to `number`. Return whether there are parked messages that may now be sent. A credit that is not higher than the
        current one has no effect."""
        if number <= self.credit:
            return False
        self.credit = number
        return bool(self.queue)

    def validate(self) -> None:
        """Raise AssertionError if the counters contradict each other."""
        assert self.number >= 0, f"{self.sender}->{self.receiver}: number {self.number}"
        assert self.credit >= CHANNEL_CREDIT, f"{self.sender}->{self.receiver}: credit {self.credit}"


class Inlet:
    """The receiving end of one channel.

    The next message to arrive has number `arrived + 1`. For speed, the caller increments `arrived` itself for each message instead of
    calling a method.

    Attributes:
        arrived: number of the last message that arrived. Its initial value is `first_number - 1`.
        consumed: number of the last message that a turn consumed or the host dropped. Dropped messages count too, because otherwise the
            window would shrink.
        credit_sent: last credit sent to the sender. The initial value is the credit with which the channel was opened.
    """

    __slots__ = ("arrived", "channel", "consumed", "credit_sent", "receiver", "sender")

    def __init__(
        self, *, channel: int, sender: str, receiver: str, first_number: int = 1, consumed: int | None = None
    ) -> None:
        """Create the end. `consumed` is less than `first_number - 1` if a recovery redelivers messages that the sender will not resend."""
        self.channel = channel
        self.sender = sender
        self.receiver = receiver
        self.arrived = first_number - 1
        self.consumed = self.arrived if consumed is None else consumed
        self.credit_sent = self.arrived + CHANNEL_CREDIT

    def consume(self, count: int = 1) -> int:
        """Count messages as consumed. Return the new credit for the sender, or 0 if the credit has increased too little to be sent."""
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
