"""The link between two hosts as a core: numbers, acks, windows, markers, resume and fences.

Problem. One bidirectional stream per pair of hosts carries every channel between their agents. Streams break, hosts are
replaced, a slow agent must not fill memory, and checkpoints must be able to see every message that is under way: nothing
may be lost, doubled or reordered, and nothing may hide in buffers that no checkpoint sees.

Model. Crash-stop hosts; a stream is FIFO while it lives and may break anywhere; frames that reach `handle` are of the
current stream. A `LinkCore` lives as long as (both host starts, recovery plan): if one of them changes, its owner makes a
new one, and the recovery plan says what is delivered again. Streams come and go under one core.

Numbers. Each direction numbers its items 1, 2, 3 …; frames carry the first one only. The receiver takes item
`received + 1` next: what is lower is a duplicate, what is higher a gap, and a gap closes the stream with a protocol error.
Acks say `received`; they free the sender's resend queue. After a break both sides say `received` in their Hellos and
resend the rest under the same numbers. Messages, parts of messages, markers, openings and closings of channels share
one order, so every channel is FIFO, a marker stands exactly between what was sent before and after it, and nothing
follows the closing of a channel.

Windows. `grant_items` and `grant_bytes` are absolute: what turns consumed plus the window. Absolute words may be lost,
repeated or late. Control items and all parts but a message's last count as consumed on arrival. Nothing is numbered
without room, so both the resend queue and what waits in mailboxes are bounded by the window. Acks, grants and channel
credits ride on every frame; they get a frame of their own a quarter window or 20 ms after the first one that was not
told.

Fences (G9). Hello carries cluster, host start, attempt and plan. An older start or plan of the peer is refused; if the peer
is ahead, it is told to try again, for this side learns of the plan sooner or later. An older attempt does not replace the
current stream; without one any is welcome, or one Hello with a number far ahead would shut out the peer for ever (a late
Hello does no harm: the dialler's next one is higher, and items are numbered). Incarnations are bound to
channel numbers by OpenChannel and judged by the caller once per channel; items of channels never opened are a protocol
error. An epoch is a stamp, never a fence.

Floor. With the first Hellos both sides agree on the newest epoch that has begun on either: who dials says its own, who accepts answers with
the newer of both. The caller sends nothing that is stamped lower: epochs up to the floor have nothing to do with the link.

Liveness. A frame at least every 500 ms. A peer that sends none is busy, not dead: its stream stands as long as gRPC's own
threads answer pings, and they break the stream of a dead, frozen or unreachable peer within 2 s (`channels/options.py`).
Only a Hello must come within 2 s of opening: then the dialler tries again. EOF without Bye is reported as a break. Bye is
sent when all is acked, and answered.

The caller's duties:

1. Feed frames of the current stream only, in order, and carry commands out in order before the next event.
2. **A `DeliverItems` must be in mailboxes when its carrying out returns.** The next frame may ack it.
3. Check `items_room`, `bytes_room` and channel credit before `ItemsSent`; send `ChannelOpened` before a channel's items.
4. Report everything delivered as consumed exactly once, dropped messages too; otherwise the window narrows.
5. After every event: write while `wants_write`, and call again at `wakeup_ns`. A frame may have brought room: look
   after each whether parked messages can go.

Carries G9 and the link's part of G1 to G3. Not from a paper; batching, credit and resume follow common practice.
"""

from typing import assert_never

from snapline.channels.channel import MESSAGE_BYTES_MAX, WINDOW_BYTES, WINDOW_ITEMS, check_message_size
from snapline.channels.fencing import LinkIdentity, judge_identity
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
from snapline.channels.incoming import IncomingOrder
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
)
from snapline.channels.order import OutgoingOrder
from snapline.channels.words import UnreportedPhrases
from snapline.errors import ProtocolError

HEARTBEAT_NS = 500_000_000
"""A frame at least this often while a stream is established."""

HELLO_NS = 2_000_000_000
"""A stream on which no Hello has come for this long is closed, and another one opened: the peer was busy, or did not take it."""

# What a stream is to this link. IDLE → OPENING → ESTABLISHED → CLOSING → IDLE; StreamClosed leads to IDLE from anywhere.
_IDLE = "idle"  # no stream
_OPENING = "opening"  # a stream, the peer's Hello has not come
_ESTABLISHED = "established"  # Hellos exchanged (the acceptor's own may still wait for the writer)
_CLOSING = "closing"  # CloseStream was asked for: nothing is written or taken any more


class LinkCore:
    """One side of a link; see the module for the rules and the caller's duties.

    State, next to the outgoing order and the incoming order:
        phase: what the stream is, see above.
        attempt: of the current or last stream; the dialler's grows.
        begun: the newest epoch that has begun on this host; its owner's word.
        floor: agreed upon with the peer; None before the first Hellos.
        grant_items, grant_bytes: the peer's absolute grants; they only grow.
        opened_ns, written_ns: when this stream was opened, and when its last frame was made: Hello and heartbeat are due by them.
        opened: number of the last channel opened; they rise.
        is_bye_*: wanted by either side; sent and received on this stream. is_over: both were, permanently.
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
        self._words = UnreportedPhrases(self._in)
        self._is_hello_due = False
        self._is_heartbeat_due = False
        self._written_ns = 0
        self._opened_ns = 0
        self._is_bye_wanted = False
        self._is_bye_sent = False
        self._is_bye_received = False
        self._is_over = False

    # What the caller reads.

    @property
    def items_room(self) -> int:
        """Messages that may be sent now; 0 once the link is to end."""
        room = self._grant_items - self._out.last
        return room if room > 0 and not self._is_bye_wanted else 0

    @property
    def bytes_room(self) -> int:
        """Payload bytes that may be sent now; the last message may overshoot."""
        room = self._grant_bytes - self._out.size_bytes
        return room if room > 0 and not self._is_bye_wanted else 0

    @property
    def is_established(self) -> bool:
        """Hellos were exchanged on a live stream."""
        return self._phase is _ESTABLISHED

    @property
    def wants_write(self) -> bool:
        """`WriteReady` would produce a frame now."""
        if self._is_hello_due:
            return True
        if self._phase is not _ESTABLISHED:
            return False
        return (
            self._words.is_due
            or self._is_heartbeat_due
            or self._out.may_write(self._grant_bytes)
            or (self._is_bye_wanted and self._is_bye_ready)
        )

    @property
    def wakeup_ns(self) -> int | None:
        """Time of the next `TimerFired`; None if nothing is due by time."""
        if self._phase is not _ESTABLISHED:
            return self._opened_ns + HELLO_NS if self._phase is _OPENING else None
        wakeup_ns = None if self._is_heartbeat_due else self._written_ns + HEARTBEAT_NS
        due_ns = None if self._words.is_due else self._words.due_ns
        return due_ns if wakeup_ns is None or (due_ns is not None and due_ns < wakeup_ns) else wakeup_ns

    @property
    def has_unacked(self) -> bool:
        """Return whether the peer has not acked everything in the order."""
        return self._out.acked < self._out.last

    @property
    def _is_bye_ready(self) -> bool:
        return self._is_bye_wanted and not self._is_bye_sent and not self.has_unacked

    def judge(self, hello: LinkHello) -> Refused | None:
        """Return this side's answer to the peer's Hello: None = welcome. Changes nothing."""
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

    # The only door.

    def handle(self, now_ns: int, event: Event) -> list[Command]:
        """Take one event; the commands are to be carried out in order, before the next event."""
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
        if self._phase is not _ESTABLISHED:
            return []
        batch = self._out.take(self._grant_bytes)
        if batch is not None:
            return [WriteFrame(self._make_frame(now_ns, batch.items, batch.first_number))]
        if self._is_bye_ready:
            self._is_bye_sent = True
            return [WriteFrame(self._make_frame(now_ns, Bye())), *self._end_if_done()]
        if self._words.is_due or self._is_heartbeat_due:
            return [WriteFrame(self._make_frame(now_ns))]
        return []

    def knock(self) -> LinkHello:
        """Return the Hello that asks the peer to dial."""
        return self.identity.hello(0, 0, 0)

    def _make_frame(self, now_ns: int, body: Items | LinkHello | Bye | None = None, first_number: int = 0) -> Frame:
        """Every frame carries the newest ack and grants, and channel credits once Hellos were exchanged."""
        frame = Frame(first_number)
        frame.body = body
        self._words.fill(frame, now_ns, with_credits=type(body) is not LinkHello)
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
            self._words.note_frame(now_ns, is_small=is_small(body))
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
        """Refuse impossible words before anything of the frame is taken."""
        if frame.ack > self._out.written:
            raise ProtocolError(f"ack {frame.ack}, but only {self._out.written} items were written")
        self._check_grants(frame)
        if frame.credit_channel and max(frame.credit_channel) > self._opened:
            raise ProtocolError("credit for a channel that was never opened")

    def _check_grants(self, frame: Frame) -> None:
        """A grant is what was consumed, and a window: one above that would let the resend queue grow without end."""
        if frame.grant_items > self._out.written + WINDOW_ITEMS:
            raise ProtocolError(f"grant of {frame.grant_items} items after {self._out.written} were written")
        if frame.grant_bytes > self._out.size_bytes + WINDOW_BYTES:
            raise ProtocolError(f"grant of {frame.grant_bytes} bytes after {self._out.size_bytes} were sent")

    def _note_closed(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, DropInlet):
                self._words.forget(command.channel)

    def _take_grants(self, frame: Frame) -> None:
        self._grant_items = max(self._grant_items, frame.grant_items)
        self._grant_bytes = max(self._grant_bytes, frame.grant_bytes)

    def _on_items_consumed(self, now_ns: int, event: ItemsConsumed) -> list[Command]:
        self._in.consume(event.items, event.size_bytes)
        if event.credit_channels:
            self._words.note_credits(event.credit_channels, event.credit_numbers)
        self._words.note(now_ns)
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
        if self._words.untold:
            self._words.note(now_ns)
        return [ReportEstablished(resumed)]

    def _on_refused(self, refused: Refused) -> list[Command]:
        was_done = self._is_bye_sent and not self.has_unacked
        commands = self._close(f"{self.identity.peer} refused: {refused.reason}")
        if was_done and refused.is_final:
            # The peer had said Bye and gone when the last stream broke: nothing is owed on either side.
            self._is_over = True
            return [*commands, ReportEnded(is_clean=True)]
        return [*commands, ReportRefused(refused.reason, refused.is_final)]

    def _on_stream_closed(self) -> list[Command]:
        commands = self._report_end()
        self._phase = _IDLE
        self._is_hello_due = self._is_heartbeat_due = False
        self._words.forget_stream()
        return commands

    def _end_if_done(self) -> list[Command]:
        """End the stream if both said Bye: the acceptor ends it, the dialler waits for that, so that its own Bye arrives."""
        if self.is_dialler or not (self._is_bye_sent and self._is_bye_received):
            return []
        return self._close("both said Bye")

    def _close(self, reason: str, *, is_protocol_error: bool = False) -> list[Command]:
        commands = self._report_end()
        self._phase = _CLOSING
        self._is_hello_due = False
        return [CloseStream(reason, is_protocol_error), *commands]

    def _report_end(self) -> list[Command]:
        """Report the end once per established stream; clean and permanent if both said Bye."""
        if self._phase is not _ESTABLISHED:
            return []
        self._is_over = self._is_bye_sent and self._is_bye_received
        return [ReportEnded(is_clean=self._is_over)]

    def _on_timer_fired(self, now_ns: int) -> list[Command]:
        if self._phase is _OPENING and now_ns >= self._opened_ns + HELLO_NS:
            return self._close(f"no Hello of {self.identity.peer} for 2 s")
        if self._phase is not _ESTABLISHED:
            return []
        if now_ns >= self._written_ns + HEARTBEAT_NS:
            self._is_heartbeat_due = True
        self._words.note_time(now_ns)
        return []

    # For tests and tools.

    def validate(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        self._out.validate()
        self._in.validate()
        assert self._out.acked <= self._out.written
        self._words.validate()
        assert not (self._is_hello_due and self._phase is _IDLE), "a Hello is due without a stream"
        assert not (self._is_bye_sent and self.has_unacked), "Bye was sent before all was acked"
        assert self._phase is _IDLE or self.attempt > 0
        assert self.wakeup_ns is None or self._phase in (_OPENING, _ESTABLISHED)
        assert self.wakeup_ns is not None or self._phase is not _OPENING, "nobody would give up the stream"

    def freeze(self) -> tuple[object, ...]:
        """Hashable image of what the link is, without its clocks."""
        words = (self._phase, self.attempt, self._grant_items, self._grant_bytes, self._words.ack, self._words.items)
        return (*words, tuple(self._words.untold.items()), self._out.freeze(), self._in.freeze())
