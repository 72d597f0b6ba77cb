"""Core of the link between two hosts, which handles numbering, acks, windows, markers, resuming and fencing.

Problem. One bidirectional stream per pair of hosts carries all channels between agents on the two hosts. Streams break, hosts are replaced,
and a slow agent must not make memory grow without bound. Messages must not be lost, duplicated or reordered. Checkpoints must see every
message in transit, so no message may be in a buffer that checkpoints cannot see.

Model. Hosts are crash-stop. A stream is FIFO and may break at any point. All frames passed to `handle` belong to the current stream. A
`LinkCore` is bound to the start numbers of both hosts and to the recovery plan. When a host restarts or the plan changes, the owner creates
a new core. The recovery plan determines which messages are redelivered. One core may use several streams, one after another.

Numbers. In each direction, items are numbered 1, 2, 3 …, and a frame carries only the number of its first item. The receiver expects item
`received + 1` next. An item with a lower number is a duplicate. An item with a higher number reveals a gap, and the receiver closes the
stream with a protocol error. An ack carries `received`, so that the sender can remove items from its resend queue. After a stream breaks,
each host sends `received` in its Hello, and each host resends the items that its peer lacks, with the same numbers. Messages, parts of
messages, markers, and control items that open or close channels are numbered in one sequence. So every channel is FIFO, a marker separates
the items sent before it from those sent after it, and no item of a channel follows the closing of that channel.

Windows. `grant_items` and `grant_bytes` are absolute values: the number consumed plus the size of the window. So it is harmless if a grant
is lost, duplicated or late. Control items, and all parts of a message except the last, count as consumed on arrival. An item gets its
number only if there is room in the window, so the window bounds the resend queue and the mailboxes. Every frame carries the ack, the grants
and channel credits. If changes to these values have not been sent in a frame after 20 ms, or if they amount to a quarter of the window, a
separate frame is sent.

Fencing (G9). Hello contains the cluster id, the host's start number, the attempt number and the plan's number. A peer with an older start
number or plan is refused permanently. A peer with a newer start number or plan must try again later, when this host knows the newer value.
A stream with an older attempt number does not replace the current stream. If there is no current stream, any attempt number is accepted,
because a single Hello with a far too high attempt number would otherwise lock out the peer. A late Hello is harmless, because the dialling
host's next Hello has a higher attempt number, and items are numbered. OpenChannel binds the incarnations of two agents to a channel number.
The caller checks the incarnations once per channel. An item of a channel that has not been opened is a protocol error. Epochs are used to
stamp messages, and never for fencing.

Floor. In the first Hellos, the hosts agree on the newest epoch that has begun on either host. This epoch is called the floor. The dialling
host sends its own newest epoch, and the accepting host answers with the newer of the two epochs. The caller sends no item with a stamp
lower than the floor, so epochs up to the floor do not involve the link.

Liveness. Each host sends a frame at least every 500 ms. A peer that sends no frames is considered busy, not dead, and its stream stays open
as long as its gRPC threads answer pings. If a peer is dead, frozen or unreachable, gRPC breaks the stream within 2 s
(`channels/servers.py`). Only the Hello has a time limit: it must arrive within 2 s after the stream was opened. If the Hello does not
arrive in time, the dialling host opens a new stream. A stream that ends without Bye is reported as broken. A host sends Bye when all its
items are acked, and the peer answers with its own Bye.

The caller's duties:

1. Pass only frames of the current stream, in order. Execute all commands in order before passing the next event.
2. **Put the messages of a `DeliverItems` command into mailboxes before its execution returns.** The next frame may ack them.
3. Check `items_room`, `bytes_room` and the channel's credit before each `ItemsSent`. Send `ChannelOpened` before the items of a channel.
4. Report every delivered message as consumed exactly once, even if it is dropped. Otherwise the window shrinks.
5. After every event, write frames while `wants_write` is True, and send `TimerFired` at `wakeup_ns`. A received frame may have enlarged the
   window, so check after each frame whether parked messages can now be sent.

This module carries G9 and the link's contribution to G1, G2 and G3. The algorithm is not taken from a paper. Batching, credits and resuming
follow common practice.
"""

from typing import assert_never

from snapline.channels.channel import MESSAGE_BYTES_MAX, WINDOW_BYTES, WINDOW_ITEMS, check_message_size
from snapline.channels.frame import (
    MARKER_CHANNELS_MAX,
    Bye,
    CloseChannel,
    Frame,
    Items,
    LinkHello,
    Marker,
    OpenChannel,
    Refused,
    encode_close,
    encode_marker,
    encode_open,
    is_small,
)
from snapline.channels.incoming import IncomingOrder, UnsentControlState
from snapline.channels.link_events import (
    ByeRequested,
    ChannelClosed,
    ChannelOpened,
    CloseStream,
    Command,
    DropInlet,
    Event,
    FrameReceived,
    ItemsConsumed,
    ItemsSent,
    LinkIdentity,
    MarkerSent,
    RaiseCredit,
    Refuse,
    ReportEnded,
    ReportEstablished,
    ReportRefused,
    StreamClosed,
    StreamOpened,
    TimerFired,
    WriteFrame,
    WriteReady,
    judge_identity,
)
from snapline.channels.order import OutgoingOrder
from snapline.errors import ProtocolError

HEARTBEAT_NS = 500_000_000
"""Longest time between two frames that one side sends on an established stream."""

HELLO_NS = 2_000_000_000
"""Time to wait for the peer's Hello. If the Hello has not arrived by then, because the peer is busy or did not accept the stream, the
stream is closed and a new one is opened."""

# Phases of the stream: IDLE → OPENING → ESTABLISHED → CLOSING → IDLE. StreamClosed leads to IDLE from every phase.
_IDLE = "idle"  # no stream
_OPENING = "opening"  # the stream is open, and the peer's Hello has not arrived
_ESTABLISHED = "established"  # Hellos exchanged (the acceptor's own may still wait for the writer)
_CLOSING = "closing"  # CloseStream was issued: frames are no longer written or taken


class LinkCore:
    """The core of a link on one of the two hosts. The module docstring describes the rules and the caller's duties.

    The state consists of the outgoing order, the incoming order, and the following values.

        phase: phase of the stream, one of the constants above.
        attempt: attempt number of the current or last stream. The dialling host increases it with each stream.
        begun: newest epoch that has begun on this host. The owner sets it.
        floor: newest epoch that does not involve the link, on which both hosts have agreed. The floor is None before the first Hellos.
        grant_items, grant_bytes: the grants that the peer has sent, which are absolute values and never decrease.
        opened_ns, written_ns: times at which this stream was opened and at which its last frame was created. These times determine the
            deadline for the peer's Hello and the time of the next heartbeat.
        opened: number of the channel that this host opened last. Channel numbers increase.
        is_bye_*: whether this host or its peer wants to send Bye, and whether Bye was sent and received on this stream.
        is_over: whether both hosts have sent Bye. Once True, it stays True.
    """

    def __init__(
        self, *, cluster: str, host: str, host_start: int, peer: str, peer_start: int, plan: int, is_dialler: bool
    ) -> None:
        self.identity = LinkIdentity(cluster, host, host_start, peer, peer_start, plan)
        self.is_dialler = is_dialler
        self.attempt = 0
        self.begun = 0
        self.floor: int | None = None
        self._phase = _IDLE
        self._out = OutgoingOrder()
        self._in = IncomingOrder()
        self._opened = 0
        self._grant_items = 0
        self._grant_bytes = 0
        self._control_state = UnsentControlState(self._in)
        self._is_hello_due = False
        self._is_heartbeat_due = False
        self._written_ns = 0
        self._opened_ns = 0
        self._is_bye_wanted = False
        self._is_bye_sent = False
        self._is_bye_received = False
        self._is_over = False

    # State for the caller.

    @property
    def items_room(self) -> int:
        """Return the number of messages that may be sent now. The number is 0 as soon as either host wants to send Bye."""
        room = self._grant_items - self._out.last
        return room if room > 0 and not self._is_bye_wanted else 0

    @property
    def bytes_room(self) -> int:
        """Return the number of payload bytes that may be sent now. The last message may exceed this number."""
        room = self._grant_bytes - self._out.size_bytes
        return room if room > 0 and not self._is_bye_wanted else 0

    @property
    def is_established(self) -> bool:
        """Return whether there is a live stream on which both hosts have sent a Hello."""
        return self._phase is _ESTABLISHED

    @property
    def wants_write(self) -> bool:
        """Return whether `WriteReady` would produce a frame now."""
        if self._is_hello_due:
            return True
        if self._phase is not _ESTABLISHED:
            return False
        return (
            self._control_state.is_due
            or self._is_heartbeat_due
            or self._out.may_write(self._grant_bytes)
            or (self._is_bye_wanted and self._is_bye_ready)
        )

    @property
    def wakeup_ns(self) -> int | None:
        """Return the time at which the next `TimerFired` is due, or None if no timer is pending."""
        if self._phase is not _ESTABLISHED:
            return self._opened_ns + HELLO_NS if self._phase is _OPENING else None
        wakeup_ns = None if self._is_heartbeat_due else self._written_ns + HEARTBEAT_NS
        due_ns = None if self._control_state.is_due else self._control_state.due_ns
        return due_ns if wakeup_ns is None or (due_ns is not None and due_ns < wakeup_ns) else wakeup_ns

    @property
    def has_unacked(self) -> bool:
        """Return whether there are items that the peer has not acked."""
        return self._out.acked < self._out.last

    @property
    def _is_bye_ready(self) -> bool:
        return self._is_bye_wanted and not self._is_bye_sent and not self.has_unacked

    def judge(self, hello: LinkHello) -> Refused | None:
        """Return None if the peer's Hello is acceptable, otherwise the refusal to send. The method has no side effects."""
        if self._is_over:
            return Refused("this link has ended", True)
        refused = judge_identity(hello, self.identity)
        if refused is not None:
            return refused
        is_current = hello.attempt == self.attempt and self._phase is _OPENING
        is_late = self._phase is not _IDLE and hello.attempt <= self.attempt
        if not is_current and (self.is_dialler or is_late):
            return Refused(f"attempt {hello.attempt} of {hello.host}: attempt {self.attempt} is newer", False)
        if not self._out.acked <= hello.received <= self._out.written:
            return Refused(
                f"{hello.host} received {hello.received}, but {self._out.acked} were acked and "
                f"{self._out.written} written: not the same link",
                True,
            )
        return None

    # Entry point.

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Handle one event and return commands. The caller must execute the commands in order before the next event."""
        match event:
            case FrameReceived():
                return self._on_frame_received(now_ns, event.frame)
            case WriteReady():
                return self._on_write_ready(now_ns)
            case ItemsSent():
                return self._on_items_sent(event)
            case ItemsConsumed():
                return self._on_items_consumed(now_ns, event)
            case MarkerSent():
                return self._on_marker_sent(event)
            case ChannelOpened():
                return self._on_channel_opened(event)
            case ChannelClosed():
                return self._on_channel_closed(event)
            case TimerFired():
                return self._on_timer_fired(now_ns)
            case StreamOpened():
                return self._on_stream_opened(now_ns, event.attempt)
            case StreamClosed():
                return self._on_stream_closed()
            case ByeRequested():
                self._is_bye_wanted = True
                return []
        assert_never(event)

    # Sending.

    def _on_items_sent(self, event: ItemsSent) -> list[Command]:
        payloads = event.payloads
        size_bytes = sum(map(len, payloads))
        assert len(event.channels) == len(payloads) <= self.items_room, (
            f"{len(payloads)} items for {len(event.channels)} channels, room for {self.items_room}"
        )
        if not payloads:
            return []
        if size_bytes > MESSAGE_BYTES_MAX:
            check_message_size(max(map(len, payloads)))
        assert size_bytes - len(payloads[-1]) < self.bytes_room or not size_bytes, (
            f"{size_bytes} bytes, room for {self.bytes_room}"
        )
        self._out.append(Items(event.channels, payloads, event.epochs, event.piggybacks), size_bytes)
        return []

    def _on_channel_opened(self, event: ChannelOpened) -> list[Command]:
        assert event.channel > self._opened, f"channel {event.channel} is opened after {self._opened}"
        assert not self._is_bye_sent, "a channel is opened after Bye"
        self._opened = event.channel
        self._out.append_control(
            encode_open(
                OpenChannel(
                    channel=event.channel,
                    sender=event.sender,
                    receiver=event.receiver,
                    sender_incarnation=event.sender_incarnation,
                    receiver_incarnation=event.receiver_incarnation,
                    first_number=event.first_number,
                )
            )
        )
        return []

    def _on_channel_closed(self, event: ChannelClosed) -> list[Command]:
        self._out.append_control(encode_close(CloseChannel(event.channel, event.by_receiver)))
        return []

    def _on_marker_sent(self, event: MarkerSent) -> list[Command]:
        assert not self._is_bye_sent, "a marker is sent after Bye"
        for start in range(0, max(1, len(event.channels)), MARKER_CHANNELS_MAX):
            end = start + MARKER_CHANNELS_MAX
            is_last = end >= len(event.channels)
            marker = Marker(event.epoch, event.channels[start:end], event.last_numbers[start:end], is_last)
            self._out.append_control(encode_marker(marker))
        return []

    def _on_write_ready(self, now_ns: int) -> list[Command]:
        if self._is_hello_due:
            self._is_hello_due = False
            floor = self.begun if self.floor is None else self.floor
            hello = self.identity.hello(self.attempt, self._in.received, floor)
            return [WriteFrame(self._make_frame(now_ns, hello))]
        if not self.is_established:
            return []
        batch = self._out.take(self._grant_bytes)
        if batch is not None:
            return [WriteFrame(self._make_frame(now_ns, batch.items, batch.first_number))]
        if self._is_bye_ready:
            self._is_bye_sent = True
            return [WriteFrame(self._make_frame(now_ns, Bye())), *self._end_if_done()]
        if self._control_state.is_due or self._is_heartbeat_due:
            return [WriteFrame(self._make_frame(now_ns))]
        return []

    def knock(self) -> LinkHello:
        """Return the Hello that asks the peer to dial this host."""
        return self.identity.hello(0, 0, 0)

    def _make_frame(self, now_ns: int, body: Items | LinkHello | Bye | None = None, first_number: int = 0) -> Frame:
        """Return a frame with the newest ack and grants. Channel credits are included unless the frame is a Hello."""
        frame = Frame(first_number)
        frame.body = body
        self._control_state.fill(frame, now_ns, with_credits=type(body) is not LinkHello)
        self._is_heartbeat_due = False
        self._written_ns = now_ns
        return frame

    # Receiving.

    def _on_frame_received(self, now_ns: int, frame: Frame) -> list[Command]:
        body = frame.body
        try:
            if self._phase is _ESTABLISHED:
                return self._take_frame(now_ns, frame)
            if self._phase is not _OPENING:
                return []
            if type(body) is LinkHello:
                self._check_grants(frame)
                return self._on_hello(now_ns, frame, body)
        except ProtocolError as error:
            return self._close(f"{self.identity.peer}: {error}", is_protocol_error=True)
        if type(body) is Refused:
            return self._on_refused(body)
        return self._close(f"{self.identity.peer}: a frame before Hello", is_protocol_error=True)

    def _take_frame(self, now_ns: int, frame: Frame) -> list[Command]:
        body = frame.body
        self._check_words(frame)
        commands: list[Command] = []
        if type(body) is Items:
            commands = self._in.take(frame.first_number, body)
            self._note_closed(commands)
            self._control_state.note_frame(now_ns, is_small=is_small(body))
        elif type(body) is Refused:
            return self._on_refused(body)
        elif type(body) is LinkHello:
            raise ProtocolError("a second Hello on one stream")
        if frame.ack > self._out.acked:
            self._out.acknowledge(frame.ack)
        self._take_grants(frame)
        if frame.credit_channel:
            commands.append(RaiseCredit(frame.credit_channel, frame.credit_number))
        if type(body) is Bye:
            self._is_bye_received = True
            self._is_bye_wanted = True
            commands += self._end_if_done()
        return commands

    def _check_words(self, frame: Frame) -> None:
        """Raise ProtocolError if the frame contains an impossible ack, grant or credit. This check runs before the frame is processed."""
        if frame.ack > self._out.written:
            raise ProtocolError(f"ack {frame.ack}, but only {self._out.written} items were written")
        self._check_grants(frame)
        if frame.credit_channel and max(frame.credit_channel) > self._opened:
            raise ProtocolError("credit for a channel that was never opened")

    def _check_grants(self, frame: Frame) -> None:
        """Raise ProtocolError if a grant exceeds the amount written so far plus the window. With such a grant, the resend queue could grow
        without bound."""
        if frame.grant_items > self._out.written + WINDOW_ITEMS:
            raise ProtocolError(f"grant of {frame.grant_items} items after {self._out.written} were written")
        if frame.grant_bytes > self._out.size_bytes + WINDOW_BYTES:
            raise ProtocolError(f"grant of {frame.grant_bytes} bytes after {self._out.size_bytes} were sent")

    def _note_closed(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, DropInlet):
                self._control_state.forget(command.channel)

    def _take_grants(self, frame: Frame) -> None:
        self._grant_items = max(self._grant_items, frame.grant_items)
        self._grant_bytes = max(self._grant_bytes, frame.grant_bytes)

    def _on_items_consumed(self, now_ns: int, event: ItemsConsumed) -> list[Command]:
        self._in.consume(event.items, event.size_bytes)
        if event.credit_channels:
            self._control_state.note_credits(event.credit_channels, event.credit_numbers)
        self._control_state.note(now_ns)
        return []

    # Streams.

    def _on_stream_opened(self, now_ns: int, attempt: int) -> list[Command]:
        is_newer = attempt > self.attempt or (self._phase is _IDLE and not self.is_dialler)
        assert is_newer, f"attempt {attempt} after {self.attempt}"
        commands = self._on_stream_closed()
        self.attempt = attempt
        self._phase = _OPENING
        self._is_hello_due = self.is_dialler
        self._opened_ns = self._written_ns = now_ns
        return commands

    def _on_hello(self, now_ns: int, frame: Frame, hello: LinkHello) -> list[Command]:
        refused = self.judge(hello)
        if refused is not None:
            self._phase = _CLOSING
            self._is_hello_due = False
            return [Refuse(refused.reason, refused.is_final)]
        resumed = self.floor is not None
        if self.floor is None:
            self.floor = hello.floor if self.is_dialler else max(hello.floor, self.begun)
        self._phase = _ESTABLISHED
        self._is_hello_due = not self.is_dialler
        self._is_bye_sent = self._is_bye_received = False
        self._out.rewind(hello.received)
        self._take_grants(frame)
        self._written_ns = now_ns
        if self._control_state.unsent_credits:
            self._control_state.note(now_ns)
        return [ReportEstablished(resumed)]

    def _on_refused(self, refused: Refused) -> list[Command]:
        was_done = self._is_bye_sent and not self.has_unacked
        commands = self._close(f"{self.identity.peer} refused: {refused.reason}")
        if was_done and refused.is_final:
            # The peer had sent Bye and ended when the last stream broke: neither side has unacked items.
            self._is_over = True
            return [*commands, ReportEnded(is_clean=True)]
        return [*commands, ReportRefused(refused.reason, refused.is_final)]

    def _on_stream_closed(self) -> list[Command]:
        commands = self._report_end()
        self._phase = _IDLE
        self._is_hello_due = self._is_heartbeat_due = False
        self._control_state.forget_stream()
        return commands

    def _end_if_done(self) -> list[Command]:
        """End the stream if both hosts have sent Bye. Only the accepting host does this. The dialling host waits, so that its own Bye can
        still arrive."""
        if self.is_dialler or not (self._is_bye_sent and self._is_bye_received):
            return []
        return self._close("both said Bye")

    def _close(self, reason: str, *, is_protocol_error: bool = False) -> list[Command]:
        commands = self._report_end()
        self._phase = _CLOSING
        self._is_hello_due = False
        return [CloseStream(reason, is_protocol_error), *commands]

    def _report_end(self) -> list[Command]:
        """Report the end of an established stream, once per stream. If both hosts have sent Bye, the end is clean and permanent."""
        if not self.is_established:
            return []
        self._is_over = self._is_bye_sent and self._is_bye_received
        return [ReportEnded(is_clean=self._is_over)]

    def _on_timer_fired(self, now_ns: int) -> list[Command]:
        if self._phase is _OPENING and now_ns >= self._opened_ns + HELLO_NS:
            return self._close(f"no Hello of {self.identity.peer} for 2 s")
        if not self.is_established:
            return []
        if now_ns >= self._written_ns + HEARTBEAT_NS:
            self._is_heartbeat_due = True
        self._control_state.note_time(now_ns)
        return []

    # For tests and tools.

    def validate(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        self._out.validate()
        self._in.validate()
        assert self._out.acked <= self._out.written
        self._control_state.validate()
        assert not (self._is_hello_due and self._phase is _IDLE), "a Hello is due without a stream"
        assert not (self._is_bye_sent and self.has_unacked), "Bye was sent before all was acked"
        assert self._phase is _IDLE or self.attempt > 0
        assert self.wakeup_ns is None or self._phase in (_OPENING, _ESTABLISHED)
        assert self.wakeup_ns is not None or self._phase is not _OPENING, "nobody would give up the stream"

    def freeze(self) -> tuple[object, ...]:
        """Return the link's state as a hashable value, without times."""
        control_state = (
            self._phase,
            self.attempt,
            self._grant_items,
            self._grant_bytes,
            self._control_state.ack,
            self._control_state.items,
        )
        return (
            *control_state,
            tuple(self._control_state.unsent_credits.items()),
            self._out.freeze(),
            self._in.freeze(),
        )
