"""Events and commands of a `LinkCore`. Import them from `snapline.channels.link`.

One event or command carries a batch in columns, never one message. Lists are handed over: the sender of one does not
touch it again.
"""

from msgspec import Struct

from snapline.channels.frame import Frame

# Events.


class StreamOpened(Struct, frozen=True, gc=False):
    """A stream to the peer exists. `attempt` grows with each one the dialler opens; on the acceptor it is the Hello's."""

    attempt: int


class FrameReceived(Struct, frozen=True, gc=False):
    """A frame of the current stream. The caller has dropped frames of older streams."""

    frame: Frame


class StreamClosed(Struct, frozen=True, gc=False):
    """The current stream is gone: EOF, error or cancelled; harmless if there is none."""


class ItemsSent(Struct, frozen=True, gc=False):
    """Messages that leave now, in this order; the caller has checked `items_room`, `bytes_room` and channel credit.

    `epochs` has one stamp for all or one each; `piggybacks` none or one each. Bytes may be overshot by the last message.
    """

    channels: list[int]
    payloads: list[bytes]
    epochs: list[int]
    piggybacks: list[bytes] = []


class ChannelOpened(Struct, frozen=True, gc=False):
    """Announce a channel, before its first message. `channel` > 0 is chosen by the sender, never reused on a link."""

    channel: int
    sender: str
    receiver: str
    sender_incarnation: int
    receiver_incarnation: int
    first_number: int


class MarkerSent(Struct, frozen=True, gc=False):
    """A marker enters the order: per channel the last number sent before its sender recorded `epoch`."""

    epoch: int
    channels: list[int]
    last_numbers: list[int]


class ChannelClosed(Struct, frozen=True, gc=False):
    """An agent gone permanently, and with it this channel: one of ours, or (`by_receiver`) one that the peer has opened."""

    channel: int
    by_receiver: bool = False


class ItemsConsumed(Struct, frozen=True, gc=False):
    """Turns consumed (or the host dropped) delivered messages; `size_bytes` as `channel.window_bytes` counts.

    Credits are absolute message numbers per incoming channel, as `Inlet.consume` returns them.
    """

    items: int
    size_bytes: int
    credit_channels: list[int] = []
    credit_numbers: list[int] = []


class WriteReady(Struct, frozen=True, gc=False):
    """The stream's writer is free: answered by one `WriteFrame` or nothing."""


class TimerFired(Struct, frozen=True, gc=False):
    """`wakeup_ns` has come; early, late and needless calls do no harm."""


class ByeRequested(Struct, frozen=True, gc=False):
    """End the link cleanly once all is acked; nothing may be sent after this."""


Event = (
    StreamOpened
    | FrameReceived
    | StreamClosed
    | ItemsSent
    | ChannelOpened
    | ChannelClosed
    | MarkerSent
    | ItemsConsumed
    | WriteReady
    | TimerFired
    | ByeRequested
)

# Commands.


class WriteFrame(Struct, frozen=True, gc=False):
    """Write this frame to the stream, as the only write in flight."""

    frame: Frame


class AcceptChannel(Struct, frozen=True, gc=False):
    """The peer opens a channel. Incarnations and placement are for the caller to judge; later items name `channel`."""

    channel: int
    sender: str
    receiver: str
    sender_incarnation: int
    receiver_incarnation: int
    first_number: int


class DeliverItems(Struct, frozen=True, gc=False):
    """Whole messages in the link's order; must be in mailboxes when the caller returns, since they count as acked then.

    `epochs` has length 1 (one stamp for all) or one each; `piggybacks` is empty or one each.
    """

    channels: list[int]
    payloads: list[bytes]
    epochs: list[int]
    piggybacks: list[bytes]


class DeliverMarker(Struct, frozen=True, gc=False):
    """A marker in its place of the order. A large one comes in pieces; `is_last` says that it is whole now."""

    epoch: int
    channels: list[int]
    last_numbers: list[int]
    is_last: bool = True


class DropInlet(Struct, frozen=True, gc=False):
    """The sender of an incoming channel is gone: what was delivered was all of it."""

    channel: int


class DropOutlet(Struct, frozen=True, gc=False):
    """The receiver of an outgoing channel is gone: to be answered by `ChannelClosed`, unless that was said already, or it was never opened."""

    channel: int


class RaiseCredit(Struct, frozen=True, gc=False):
    """The peer's agents consumed: outgoing channels may reach these numbers. Old words are repeated after a resume."""

    channels: list[int]
    numbers: list[int]


class ReportEstablished(Struct, frozen=True, gc=False):
    """Hellos were exchanged; `resumed` if this link has been established before."""

    resumed: bool


class CloseStream(Struct, frozen=True, gc=False):
    """End the current stream; the dialler dials again unless the link is over."""

    reason: str
    is_protocol_error: bool = False


class Refuse(Struct, frozen=True, gc=False):
    """Answer the peer with Refused and end the stream. `is_final`: the peer is older, trying again will not help it."""

    reason: str
    is_final: bool


class ReportRefused(Struct, frozen=True, gc=False):
    """The peer refused this side. If `is_final`, this link will never be established."""

    reason: str
    is_final: bool


class ReportEnded(Struct, frozen=True, gc=False):
    """An established stream is over. `is_clean`: both said Bye, the link is done; otherwise it broke and may resume."""

    is_clean: bool


Command = (
    WriteFrame
    | AcceptChannel
    | DeliverItems
    | DeliverMarker
    | DropInlet
    | DropOutlet
    | RaiseCredit
    | ReportEstablished
    | CloseStream
    | Refuse
    | ReportRefused
    | ReportEnded
)
