"""Identity, events and commands of a link (`link.py`).

An event or command carries a batch in columns, never a single message. Lists change owner: the sender must not change them
afterwards.

The identity fences the link by cluster, hosts, host starts and recovery plan (G9). The fence is two-sided. A peer older than
this side's information has been replaced, so its refusal is final. A newer peer is refused only until this side learns about
it: the coordinator informs all hosts, but not at the same instant.
"""

from typing import NamedTuple

from msgspec import Struct

from snapline.channels.frame import Frame, LinkHello, Refused

LINK_VERSION = 2
"""Version of frames and rules; another one is refused permanently."""


class LinkIdentity(NamedTuple):
    """Identity on which both sides must agree for the whole life of a link."""

    cluster: str
    host: str
    host_start: int
    peer: str
    peer_start: int
    plan: int

    def hello(self, attempt: int, received: int, floor: int) -> LinkHello:
        """Return the first message on a stream: this side's identity, the highest link number received, and its floor."""
        return LinkHello(
            cluster=self.cluster,
            host=self.host,
            host_start=self.host_start,
            peer_start=self.peer_start,
            attempt=attempt,
            plan=self.plan,
            received=received,
            version=LINK_VERSION,
            floor=floor,
        )


def judge_identity(hello: LinkHello, link: LinkIdentity) -> Refused | None:
    """Return the refusal of a Hello whose identity does not match this link; None accepts it."""
    if hello.version != LINK_VERSION:
        return Refused(f"link version {hello.version}, {link.host} speaks {LINK_VERSION}: update the older", True)
    if hello.cluster != link.cluster:
        return Refused(f"cluster {hello.cluster!r}, but {link.host} belongs to {link.cluster!r}", True)
    if hello.host != link.peer:
        return Refused(f"host {hello.host!r}, but this link is for {link.peer!r}", True)
    for field, theirs, ours in (
        ("start", hello.host_start, link.peer_start),
        ("recovery plan", hello.plan, link.plan),
    ):
        if theirs < ours:
            return Refused(f"{field} {theirs} of {hello.host} has been replaced by {ours}", True)
        if theirs > ours:
            return Refused(f"{field} {theirs} of {hello.host} is not known here yet, only {ours}: try again", False)
    if hello.peer_start != link.host_start:
        return Refused(
            f"this is start {link.host_start} of {link.host}, {hello.host} looks for {hello.peer_start}", False
        )
    return None


# Events.


class StreamOpened(Struct, frozen=True, gc=False):
    """A stream to the peer exists. The dialler's `attempt` grows with each stream; the acceptor takes it from the Hello."""

    attempt: int


class FrameReceived(Struct, frozen=True, gc=False):
    """A frame of the current stream. The caller has dropped frames of older streams."""

    frame: Frame


class StreamClosed(Struct, frozen=True, gc=False):
    """The current stream is gone (end, error or cancellation). The event has no effect if there is no current stream."""


class ItemsSent(Struct, frozen=True, gc=False):
    """Messages to send now, in this order; the caller has checked `items_room`, `bytes_room` and channel credit.

    `epochs` has one stamp for all messages or one each; `piggybacks` is empty or has one each. The last message may exceed `bytes_room`.
    """

    channels: list[int]
    payloads: list[bytes]
    epochs: list[int]
    piggybacks: list[bytes] = []


class ChannelOpened(Struct, frozen=True, gc=False):
    """A channel is opened, before its first message. The sender chooses `channel` > 0, and never reuses it on the link."""

    channel: int
    sender: str
    receiver: str
    sender_incarnation: int
    receiver_incarnation: int
    first_number: int


class MarkerSent(Struct, frozen=True, gc=False):
    """A marker enters the order: for each channel, the last number sent before its sender recorded `epoch`."""

    epoch: int
    channels: list[int]
    last_numbers: list[int]


class ChannelClosed(Struct, frozen=True, gc=False):
    """The agent of a channel is permanently gone. The channel belongs to this side, or (`by_receiver`) was opened by the peer."""

    channel: int
    by_receiver: bool = False


class ItemsConsumed(Struct, frozen=True, gc=False):
    """Turns consumed delivered messages, or the host dropped them. `size_bytes` comes from `channel.window_bytes`.

    Credits are absolute message numbers per incoming channel, as `Inlet.consume` returns them.
    """

    items: int
    size_bytes: int
    credit_channels: list[int] = []
    credit_numbers: list[int] = []


class WriteReady(Struct, frozen=True, gc=False):
    """The stream's writer is free; the core answers with one `WriteFrame` or no command."""


class TimerFired(Struct, frozen=True, gc=False):
    """The time `wakeup_ns` has come. Early, late and redundant events are harmless."""


class ByeRequested(Struct, frozen=True, gc=False):
    """The owner ends the link cleanly once all items are acked; no item may be sent after this event."""


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
    """Accept a channel that the peer opened. The caller checks incarnations and placement; later items name `channel`."""

    channel: int
    sender: str
    receiver: str
    sender_incarnation: int
    receiver_incarnation: int
    first_number: int


class DeliverItems(Struct, frozen=True, gc=False):
    """Deliver whole messages in the link's order. They must be in mailboxes when the caller returns, since the next frame may ack them.

    `epochs` has one stamp for all messages or one each; `piggybacks` is empty or has one each.
    """

    channels: list[int]
    payloads: list[bytes]
    epochs: list[int]
    piggybacks: list[bytes]


class DeliverMarker(Struct, frozen=True, gc=False):
    """Deliver a marker at its place in the order. A large marker comes in pieces; `is_last` marks the last piece."""

    epoch: int
    channels: list[int]
    last_numbers: list[int]
    is_last: bool = True


class DropInlet(Struct, frozen=True, gc=False):
    """Drop the inlet of a channel whose sender is gone; all its messages have been delivered."""

    channel: int


class DropOutlet(Struct, frozen=True, gc=False):
    """Drop the outlet of a channel whose receiver is gone. The caller answers with `ChannelClosed`, unless it has sent that or never opened it."""

    channel: int


class RaiseCredit(Struct, frozen=True, gc=False):
    """Raise the credit of outgoing channels, since the peer's agents consumed messages. Old credits are repeated after a resume."""

    channels: list[int]
    numbers: list[int]


class ReportEstablished(Struct, frozen=True, gc=False):
    """Report that Hellos were exchanged; `resumed` is true if this link has been established before."""

    resumed: bool


class CloseStream(Struct, frozen=True, gc=False):
    """End the current stream; the dialler dials again unless the link is over."""

    reason: str
    is_protocol_error: bool = False


class Refuse(Struct, frozen=True, gc=False):
    """Answer the peer with Refused and end the stream. `is_final`: the peer is older, so a retry cannot succeed."""

    reason: str
    is_final: bool


class ReportRefused(Struct, frozen=True, gc=False):
    """Report that the peer refused this side. If `is_final`, this link will never be established."""

    reason: str
    is_final: bool


class ReportEnded(Struct, frozen=True, gc=False):
    """Report the end of an established stream. `is_clean`: both sides sent Bye and the link is done; otherwise it may resume."""

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
