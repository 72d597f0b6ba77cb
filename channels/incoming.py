"""Handles the incoming direction of one link: items received and consumed, parts of incomplete messages, and the control state to send
back.

`take` turns a frame's items into commands. `take` skips duplicates, reports a gap as a protocol error, joins the parts of messages, and
keeps control items in the sender's order. A frame without control items and message parts becomes a single command that reuses the frame's
columns, so no Python code runs per item.

A frame is taken completely or not at all, because the state changes only after the last check has passed.

Control state is what a receiver reports to the sender: the ack, the grants and the channel credits. The control state consists of absolute
values, which are not numbered as items are. So a broken stream may lose any of these values, because a newer value replaces an older one.
Every frame carries the newest control state. Without other traffic, a separate frame is due 20 ms after the first unsent change. The frame
is due immediately if a quarter of the window has not been reported.
"""

from snapline.channels.channel import MESSAGE_BYTES_MAX, PART_BYTES, WINDOW_BYTES, WINDOW_ITEMS
from snapline.channels.frame import CREDITS_MAX, CloseChannel, Frame, Items, Marker, decode_control
from snapline.channels.link_events import AcceptChannel, Command, DeliverItems, DeliverMarker, DropInlet, DropOutlet
from snapline.errors import ProtocolError


class IncomingOrder:
    """The incoming order of one link, as described in the module docstring.

    Attributes:
        received: link number of the last item taken, which acks report.
        consumed_items, consumed_bytes: total number and size of items that no longer occupy the window. Turns have consumed these items, or
            they counted as consumed on arrival.
        opened: numbers of the open channels. A channel number is never reused.
        taken_bytes: total data size of all items taken so far. Of the bytes taken, `taken_bytes - consumed_bytes` are still waiting in
            mailboxes.
    """

    def __init__(self) -> None:
        self.received = 0
        self.consumed_items = 0
        self.consumed_bytes = 0
        self.taken_bytes = 0
        self.opened: set[int] = set()
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._parts_channel = 0

    def take(self, first_number: int, items: Items) -> list[Command]:
        """Take the items of a frame that have not been received before. Return the commands that deliver them.

        Raises:
            ProtocolError: If a gap precedes the frame, a channel is not open or is opened twice, parts are out of order, or the frame
                exceeds the grants.
        """
        skip = self.received + 1 - first_number
        if skip < 0:
            raise ProtocolError(f"a gap: item {first_number} after {self.received}")
        if skip:
            if skip >= len(items.channel):
                return []
            items = _without_first(items, skip)
        if items.more or self._parts or not self.opened.issuperset(items.channel):  # channel 0 is never open
            return self._take_mixed(items)
        count = len(items.channel)
        size_bytes = sum(map(len, items.payload))
        self._check_window(self.received + count - self.consumed_items, self.taken_bytes + size_bytes)
        self.received += count
        self.taken_bytes += size_bytes
        return [DeliverItems(items.channel, items.payload, items.epoch, items.piggyback)]

    def consume(self, items: int, size_bytes: int) -> None:
        """Record that turns have consumed this number of delivered items and bytes."""
        consumed_items, consumed_bytes = self.consumed_items + items, self.consumed_bytes + size_bytes
        assert consumed_items <= self.received, f"{consumed_items} of {self.received} items consumed"
        assert consumed_bytes <= self.taken_bytes, f"{consumed_bytes} of {self.taken_bytes} bytes consumed"
        self.consumed_items, self.consumed_bytes = consumed_items, consumed_bytes

    def _check_window(self, items_waiting: int, taken_bytes: int) -> None:
        bytes_waiting = taken_bytes - self.consumed_bytes
        if items_waiting > WINDOW_ITEMS or bytes_waiting > WINDOW_BYTES + PART_BYTES:
            raise ProtocolError(f"{items_waiting} items and {bytes_waiting} bytes would wait here: more than granted")

    def _take_mixed(self, items: Items) -> list[Command]:
        taking = _Taking(self.opened, self._parts, self._parts_bytes, self._parts_channel)
        commands = taking.run(items)
        free_items, free_bytes = taking.free_items, taking.free_bytes
        self._check_window(
            self.received + len(items.channel) - self.consumed_items - free_items,
            self.taken_bytes + taking.taken_bytes - free_bytes,
        )
        self.received += len(items.channel)
        self.taken_bytes += taking.taken_bytes
        self.consumed_items += free_items
        self.consumed_bytes += free_bytes
        self.opened |= taking.newly_opened
        self.opened -= taking.closed
        self._parts, self._parts_bytes, self._parts_channel = taking.parts, taking.parts_bytes, taking.parts_channel
        return commands

    def validate(self) -> None:
        """Raise AssertionError if the counters contradict each other."""
        assert 0 <= self.consumed_items <= self.received
        assert 0 <= self.consumed_bytes <= self.taken_bytes <= self.consumed_bytes + WINDOW_BYTES + PART_BYTES
        assert self.received - self.consumed_items <= WINDOW_ITEMS
        assert self._parts_bytes == sum(map(len, self._parts)) < MESSAGE_BYTES_MAX
        assert bool(self._parts) == bool(self._parts_channel)

    def freeze(self) -> tuple[object, ...]:
        """Return the state as a hashable value."""
        return (self.received, self.consumed_items, self.consumed_bytes, self.taken_bytes, tuple(self._parts))


def _without_first(items: Items, count: int) -> Items:
    epochs = items.epoch if len(items.epoch) == 1 else items.epoch[count:]
    return Items(items.channel[count:], items.payload[count:], epochs, items.piggyback[count:], items.more[count:])


class _Taking:
    """Processes a frame that contains control items or message parts, without changing shared state. The shared state is changed only after
    the whole frame has been checked."""

    def __init__(self, opened: set[int], parts: list[bytes], parts_bytes: int, parts_channel: int) -> None:
        self.newly_opened: set[int] = set()
        self.closed: set[int] = set()
        self.parts = parts[:]
        self.parts_bytes = parts_bytes
        self.parts_channel = parts_channel
        self.taken_bytes = 0
        self.free_items = 0
        self.free_bytes = 0
        self._opened = opened
        self._commands: list[Command] = []
        self._run = DeliverItems([], [], [], [])

    def run(self, items: Items) -> list[Command]:
        count = len(items.channel)
        epochs = items.epoch if len(items.epoch) == count else items.epoch * count
        piggybacks = items.piggyback or [b""] * count
        more = items.more or [0] * count
        for channel, payload, epoch, piggyback, has_more in zip(
            items.channel, items.payload, epochs, piggybacks, more, strict=True
        ):
            if channel == 0:
                self._take_control(payload)
                continue
            self.taken_bytes += len(payload)
            if has_more or self.parts:
                self._take_part(channel, payload, has_more)
                if has_more:
                    continue
                payload = b"".join(self.parts)
                self.parts, self.parts_bytes, self.parts_channel = [], 0, 0
            self._append(channel, payload, epoch, piggyback)
        self._flush()
        return self._commands

    def _is_open(self, channel: int) -> bool:
        return (channel in self._opened or channel in self.newly_opened) and channel not in self.closed

    def _append(self, channel: int, payload: bytes, epoch: int, piggyback: bytes) -> None:
        if not self._is_open(channel):
            raise ProtocolError(f"an item of channel {channel}, which was never opened")
        run = self._run
        run.channels.append(channel)
        run.payloads.append(payload)
        run.epochs.append(epoch)
        run.piggybacks.append(piggyback)

    def _take_part(self, channel: int, payload: bytes, has_more: int) -> None:
        if self.parts and channel != self.parts_channel:
            raise ProtocolError(f"channel {channel} within a message in parts of channel {self.parts_channel}")
        if self.parts_bytes + len(payload) > MESSAGE_BYTES_MAX - (1 if has_more else 0):
            raise ProtocolError(f"a message in parts of channel {channel} above {MESSAGE_BYTES_MAX} bytes")
        if has_more and not payload:
            raise ProtocolError(f"an empty part on channel {channel}")
        self.parts.append(payload)
        self.parts_bytes += len(payload)
        self.parts_channel = channel
        if has_more:
            self.free_items += 1
            self.free_bytes += len(payload)

    def _take_control(self, payload: bytes) -> None:
        if self.parts:
            raise ProtocolError(f"a control item within a message in parts of channel {self.parts_channel}")
        self._flush()
        self.free_items += 1
        control = decode_control(payload)
        if isinstance(control, Marker):
            if not all(map(self._is_open, control.channels)):
                raise ProtocolError("a marker for a channel that was never opened")
            self._commands.append(DeliverMarker(control.epoch, control.channels, control.last_numbers, control.is_last))
            return
        if isinstance(control, CloseChannel):
            self._take_close(control)
            return
        if self._is_open(control.channel):
            raise ProtocolError(f"channel {control.channel} is opened twice")
        self.newly_opened.add(control.channel)
        self._commands.append(
            AcceptChannel(
                channel=control.channel,
                sender=control.sender,
                receiver=control.receiver,
                sender_incarnation=control.sender_incarnation,
                receiver_incarnation=control.receiver_incarnation,
                first_number=control.first_number,
            )
        )

    def _take_close(self, control: CloseChannel) -> None:
        if control.by_receiver:
            self._commands.append(DropOutlet(control.channel))
            return
        if not self._is_open(control.channel):
            raise ProtocolError(f"channel {control.channel} is closed, and is not open")
        self.closed.add(control.channel)
        self._commands.append(DropInlet(control.channel))

    def _flush(self) -> None:
        run = self._run
        if not run.channels:
            return
        piggybacks = run.piggybacks if any(run.piggybacks) else []
        epochs = run.epochs[:1] if run.epochs.count(run.epochs[0]) == len(run.epochs) else run.epochs
        self._commands.append(DeliverItems(run.channels, run.payloads, epochs, piggybacks))
        self._run = DeliverItems([], [], [], [])


REPORT_DELAY_NS = 20_000_000
"""Longest time for which acks and grants wait for a frame that can carry them. It is short compared with the time in which a sender uses up
a full window."""

TELL_FRAMES = 2
"""Number of small item frames after which an ack is due immediately. It equals the number of small frames that the peer may send without an
ack, so the peer never has to wait for `REPORT_DELAY_NS`."""

_REPORT_ITEMS = WINDOW_ITEMS // 4
_REPORT_BYTES = WINDOW_BYTES // 4


class UnsentControlState:
    """The control state that has not been sent to the peer yet, as described in the module docstring.

    Attributes:
        frames: number of small item frames received since this host sent its last frame.
        ack, items, bytes: the ack and the grants in the last frame sent.
        is_due: whether a separate frame must be written now.
        due_ns: time at which a separate frame becomes due if no other frame is sent earlier, or None if there is nothing to report.
        credits: newest credit of each incoming channel. `unsent_credits` holds the credits that have not been sent on the current stream.
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
        """Record new credits of incoming channels. Closed channels are skipped. The caller must call `note` afterwards."""
        opened = self._incoming.opened
        new_credits = {channel: number for channel, number in zip(channels, numbers, strict=True) if channel in opened}
        self.credits.update(new_credits)
        self.unsent_credits.update(new_credits)

    def forget(self, channel: int) -> None:
        """Forget the credit of a closed incoming channel."""
        self.credits.pop(channel, None)
        self.unsent_credits.pop(channel, None)

    def note_time(self, now_ns: int) -> None:
        """Make the separate frame due if `due_ns` has been reached."""
        if self.due_ns is not None and now_ns >= self.due_ns:
            self.is_due = True

    def forget_stream(self) -> None:
        """Mark all credits as unsent, because the broken stream may have lost them. The ack and the grants need no mark, because the next
        Hello contains them."""
        self.is_due = False
        self.due_ns = None
        self.unsent_credits = dict(self.credits)

    def fill(self, frame: Frame, now_ns: int, *, with_credits: bool) -> None:
        """Put the ack and the grants into a frame that is about to be written. If `with_credits` is set, add up to `CREDITS_MAX` unsent
        credits."""
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
        """Raise AssertionError if a value that was sent to the peer is higher than the true value."""
        assert self.ack <= self._incoming.received, f"told ack {self.ack} of {self._incoming.received}"
        assert self.items <= self._incoming.consumed_items + WINDOW_ITEMS
        assert self.bytes <= self._incoming.consumed_bytes + WINDOW_BYTES
        assert all(self.credits[channel] == number for channel, number in self.unsent_credits.items())
        assert not self.is_due or self.due_ns is not None
