"""Defines the identity, the events and the commands of a link (`link.py`).

Events and commands carry messages in batches, stored as columns, and never as single messages. The receiver of an event or command owns its
lists, so the sender must not change them afterwards.

The identity fences the link by cluster, hosts, the hosts' start numbers and the recovery plan (G9). A peer is refused permanently if its
start number or plan is older than this host knows, because the peer has been replaced. A peer with a newer start number or plan is refused
only until this host has learned of it, because the coordinator does not inform all hosts at the same time.
"""

from typing import NamedTuple

from msgspec import Struct

from snapline.channels.frame import Frame, LinkHello, Refused

LINK_VERSION = 2
"""Version of the frame format and of the link's rules. A peer with a different version is refused permanently."""


class LinkIdentity(NamedTuple):
    """The identity on which both hosts must agree for the whole life of a link."""

    cluster: str
    host: str
    host_start: int
    peer: str
    peer_start: int
    plan: int

    def hello(self, attempt: int, received: int, floor: int) -> LinkHello:
        """Return the first message to send on a stream. The message contains this host's identity, the highest link number received, and
        the newest epoch that does not involve the link (`floor`)."""
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
    """Return the refusal to send if the identity in the Hello does not match this link, otherwise None."""
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
    """A stream to the peer has been opened. The dialling host increases `attempt` with each stream. The accepting host takes the number
    from the Hello."""

    attempt: int


class FrameReceived(Struct, frozen=True, gc=False):
    """A frame has arrived on the current stream. The caller must have dropped the frames of older streams."""

    frame: Frame


class StreamClosed(Struct, frozen=True, gc=False):
    """The current stream has ended, has failed or was cancelled. The event has no effect if there is no current stream."""


class ItemsSent(Struct, frozen=True, gc=False):
    """The owner sends these messages, in this order. The owner must have checked `items_room`, `bytes_room` and the channels' credit.

    `epochs` contains either a single stamp for all messages or one stamp per message. `piggybacks` is either empty or contains one entry
    per message. The last message may exceed `bytes_room`.
    """

    channels: list[int]
    payloads: list[bytes]
    epochs: list[int]
    piggybacks: list[bytes] = []


class ChannelOpened(Struct, frozen=True, gc=False):
    """The owner opens a channel before it sends the channel's first message. The sender chooses the channel number `channel`, which is
    greater than 0, and never reuses it on this link."""

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
    """The agent on this host at one end of a channel has left permanently. If `by_receiver` is set, the agent was the receiver of a channel
    that the peer opened, otherwise the channel's sender."""

    channel: int
    by_receiver: bool = False


class ItemsConsumed(Struct, frozen=True, gc=False):
    """Turns have consumed delivered messages, or the host has dropped the messages. `size_bytes` is the result of `channel.window_bytes`.

    Credits are absolute message numbers per incoming channel, as returned by `Inlet.consume`.
    """

    items: int
    size_bytes: int
    credit_channels: list[int] = []
    credit_numbers: list[int] = []


class WriteReady(Struct, frozen=True, gc=False):
    """The stream's writer is ready for the next frame. The core returns a `WriteFrame`, or no command if there is no frame to write."""


class TimerFired(Struct, frozen=True, gc=False):
    """The clock has reached `wakeup_ns`. An early, late or redundant event is harmless."""


class ByeRequested(Struct, frozen=True, gc=False):
    """The owner requests a clean end of the link. The link ends as soon as all items are acked. No item may be sent after this event."""


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
    """Write this frame to the stream. No other write may be in progress."""

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
    """Deliver complete messages in the link's order. The caller must put the messages into mailboxes before it returns, because the next
    frame may ack them.

    `epochs` contains either a single stamp for all messages or one stamp per message. `piggybacks` is either empty or contains one entry
    per message.
    """

    channels: list[int]
    payloads: list[bytes]
    epochs: list[int]
    piggybacks: list[bytes]


class DeliverMarker(Struct, frozen=True, gc=False):
    """Deliver a marker at its position in the sequence of items. A large marker is delivered in pieces, and `is_last` is set on the last
    piece."""

    epoch: int
    channels: list[int]
    last_numbers: list[int]
    is_last: bool = True


class DropInlet(Struct, frozen=True, gc=False):
    """Drop the inlet of a channel whose sender has left permanently. All messages of the channel have already been delivered."""

    channel: int


class DropOutlet(Struct, frozen=True, gc=False):
    """Drop the outlet of a channel whose receiver has left permanently. The caller answers with `ChannelClosed`, unless it has already sent
    that event or never opened the channel."""

    channel: int


class RaiseCredit(Struct, frozen=True, gc=False):
    """Raise the credit of outgoing channels because the peer's agents have consumed messages. After a link has resumed, old credits may be
    repeated."""

    channels: list[int]
    numbers: list[int]


class ReportEstablished(Struct, frozen=True, gc=False):
    """Report that both hosts have sent a Hello. `resumed` is True if the link was already established earlier, on a previous stream."""

    resumed: bool


class CloseStream(Struct, frozen=True, gc=False):
    """End the current stream. The dialling host then dials again, unless the link has ended permanently."""

    reason: str
    is_protocol_error: bool = False


class Refuse(Struct, frozen=True, gc=False):
    """Answer the peer with Refused, then end the stream. `is_final` means that a retry by the peer cannot succeed."""

    reason: str
    is_final: bool


class ReportRefused(Struct, frozen=True, gc=False):
    """Report that the peer has refused this host's stream. If `is_final` is set, this link will never be established."""

    reason: str
    is_final: bool


class ReportEnded(Struct, frozen=True, gc=False):
    """Report that an established stream has ended. If `is_clean` is set, both hosts have sent Bye and the link has ended permanently,
    otherwise the link may resume on a new stream."""

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
