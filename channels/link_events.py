"""Identity, events and commands of a link (`link.py`).

An event or command carries a batch of messages in columns, never a single message. The receiver of an event or command owns its lists, so
the sender must not change them afterwards.

The identity fences the link by cluster, hosts, host starts and recovery plan (G9). Peers that are too old and peers that are too new are
both refused. A peer that is older than this side knows has been replaced, so its refusal is final. A peer that is newer is refused only
until this side has learned of it, since the coordinator does not inform all hosts at the same instant.
"""

from typing import NamedTuple

from msgspec import Struct

from snapline.channels.frame import Frame, LinkHello, Refused

LINK_VERSION = 2
"""Version of the frame format and of the link's rules. A peer with a different version is refused permanently."""


class LinkIdentity(NamedTuple):
    """Identity on which both sides must agree for the whole life of a link."""

    cluster: str
    host: str
    host_start: int
    peer: str
    peer_start: int
    plan: int

    def hello(self, attempt: int, received: int, floor: int) -> LinkHello:
        """Return the first message to send on a stream. It contains this side's identity, the highest link number received, and this side's
        floor."""
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
    """Return a refusal if the identity in the Hello does not match this link, otherwise None."""
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
    """A stream to the peer has been opened. The dialler increases `attempt` with each stream, and the acceptor takes it from the Hello."""

    attempt: int


class FrameReceived(Struct, frozen=True, gc=False):
    """A frame has arrived on the current stream. The caller must have dropped frames of older streams."""

    frame: Frame


class StreamClosed(Struct, frozen=True, gc=False):
    """The current stream has ended, failed or been cancelled. The event has no effect if there is no current stream."""


class ItemsSent(Struct, frozen=True, gc=False):
    """The owner sends these messages, in this order. It must have checked `items_room`, `bytes_room` and the channels' credit.

    `epochs` has either a single stamp for all messages or one stamp per message. `piggybacks` is empty or has one entry per message. The
    last message may exceed `bytes_room`.
    """

    channels: list[int]
    payloads: list[bytes]
    epochs: list[int]
    piggybacks: list[bytes] = []


class ChannelOpened(Struct, frozen=True, gc=False):
    """The owner opens a channel before it sends the channel's first message. The sender chooses the number `channel`, which is greater than
    0, and never reuses it on this link."""

    channel: int
    sender: str
    receiver: str
    sender_incarnation: int
    receiver_incarnation: int
    first_number: int


class MarkerSent(Struct, frozen=True, gc=False):
    """The owner sends a marker. For each channel, the marker contains the number of the last message that was sent before the channel's
    sender recorded its state for `epoch`."""

    epoch: int
    channels: list[int]
    last_numbers: list[int]


class ChannelClosed(Struct, frozen=True, gc=False):
    """The agent at this side of a channel is permanently gone. If `by_receiver` is set, it was the receiver of a channel that the peer opened.
    Otherwise it was the sender."""

    channel: int
    by_receiver: bool = False


class ItemsConsumed(Struct, frozen=True, gc=False):
    """Turns have consumed delivered messages, or the host has dropped them. `size_bytes` is the result of `channel.window_bytes`.

    Credits are absolute message numbers per incoming channel, as returned by `Inlet.consume`.
    """

    items: int
    size_bytes: int
    credit_channels: list[int] = []
    credit_numbers: list[int] = []


class WriteReady(Struct, frozen=True, gc=False):
    """The stream's writer is free. The core answers with a `WriteFrame`, or with no command if there is no frame to write."""


class TimerFired(Struct, frozen=True, gc=False):
    """The clock has reached `wakeup_ns`. Early, late and redundant events are harmless."""


class ByeRequested(Struct, frozen=True, gc=False):
    """The owner requests a clean end of the link, which happens as soon as all items are acked. No item may be sent after this event."""


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
    """Write this frame to the stream. No other write may be in flight."""

    frame: Frame


class AcceptChannel(Struct, frozen=True, gc=False):
    """Accept a channel that the peer has opened. The caller must check the incarnations and the agents' placement. Later items refer to the
    channel by the number `channel`."""

    channel: int
    sender: str
    receiver: str
    sender_incarnation: int
    receiver_incarnation: int
    first_number: int


class DeliverItems(Struct, frozen=True, gc=False):
    """Deliver complete messages in the link's order. The caller must put them into mailboxes before it returns, since the next frame may
    ack them.

    `epochs` has either a single stamp for all messages or one stamp per message. `piggybacks` is empty or has one entry per message.
    """

    channels: list[int]
    payloads: list[bytes]
    epochs: list[int]
    piggybacks: list[bytes]


class DeliverMarker(Struct, frozen=True, gc=False):
    """Deliver a marker in its position among the items. A large marker is delivered in pieces, and `is_last` is set on the last piece."""

    epoch: int
    channels: list[int]
    last_numbers: list[int]
    is_last: bool = True


class DropInlet(Struct, frozen=True, gc=False):
    """Drop the inlet of a channel whose sender is permanently gone. All messages of the channel have already been delivered."""

    channel: int


class DropOutlet(Struct, frozen=True, gc=False):
    """Drop the outlet of a channel whose receiver is permanently gone. The caller answers with `ChannelClosed`, unless it has already sent
    that event or never opened the channel."""

    channel: int


class RaiseCredit(Struct, frozen=True, gc=False):
    """Raise the credit of outgoing channels, since the peer's agents have consumed messages. After a link has resumed, old credits may be
    repeated."""

    channels: list[int]
    numbers: list[int]


class ReportEstablished(Struct, frozen=True, gc=False):
    """Report that Hellos have been exchanged. `resumed` is True if this link was established before on a previous stream."""

    resumed: bool


class CloseStream(Struct, frozen=True, gc=False):
    """End the current stream. The dialler then dials again, unless the link has ended permanently."""

    reason: str
    is_protocol_error: bool = False


class Refuse(Struct, frozen=True, gc=False):
    """Answer the peer with Refused, then end the stream. `is_final` means that a retry by the peer cannot succeed."""

    reason: str
    is_final: bool


class ReportRefused(Struct, frozen=True, gc=False):
    """Report that the peer has refused this side. If `is_final` is set, this link will never be established."""

    reason: str
    is_final: bool


class ReportEnded(Struct, frozen=True, gc=False):
    """Report that an established stream has ended. `is_clean` means that both sides have sent Bye and the link has ended permanently.
    Otherwise the link may resume."""

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
