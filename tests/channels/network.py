"""A seeded network in memory: two link cores, virtual time, streams that are cut, frames that are lost or doubled.

Each side sends numbered messages on several channels, parks what has no credit, consumes after random delays, and sends
markers. Every frame goes through the codec. The oracles know what was sent, not how the link works:

- each channel delivers the messages 1, 2, 3 … with the bytes and stamps they were sent with (exactly once, FIFO: G3);
- a marker arrives after exactly the messages sent before it (G2's part of a link);
- in the end everything has arrived, been consumed and been acked (G10's part of a link).
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.kit.virtual_time import VirtualTime

from snapline.channels.channel import PART_BYTES, WINDOW_BYTES, WINDOW_ITEMS, Inlet, Outlet, window_bytes
from snapline.channels.frame import decode_frame, encode_frame
from snapline.channels.link import LinkCore
from snapline.channels.link_events import (
    AcceptChannel,
    ByeRequested,
    ChannelOpened,
    CloseStream,
    Command,
    DeliverItems,
    DeliverMarker,
    Event,
    FrameReceived,
    ItemsConsumed,
    ItemsSent,
    MarkerSent,
    RaiseCredit,
    Refuse,
    ReportEnded,
    ReportRefused,
    StreamClosed,
    StreamOpened,
    TimerFired,
    WriteFrame,
    WriteReady,
)

MS = 1_000_000
SECOND = 1_000 * MS


@dataclass
class Faults:
    """Chances per frame, and fixed points."""

    cut: float = 0.0
    lose: float = 0.0
    double: float = 0.0
    cut_after: int | None = None
    """Cut the stream once, when this many frames have been written."""


@dataclass
class Workload:
    """What each side does."""

    channels: int = 4
    messages: int = 300
    markers: int = 5
    size_max: int = 300
    large_share: float = 0.0
    large_max: int = 3 * PART_BYTES
    stalled: tuple[int, ...] = ()
    """Channels whose receiver consumes nothing."""


@dataclass
class Sent:
    payload: bytes
    stamp: int


class Side:
    """One host: a core, the ends of its channels, mailboxes."""

    def __init__(self, world: "World", name: str, peer: str, *, is_dialler: bool) -> None:
        self.world = world
        self.name = name
        self.core = LinkCore(
            cluster="c", host=name, host_start=1, peer=peer, peer_start=1, plan=1, is_dialler=is_dialler
        )
        work = world.work
        self.outlets = [
            Outlet(channel=index + 1, sender=f"{name}{index}", receiver=f"{peer}{index}")
            for index in range(work.channels)
        ]
        self.ledger: list[list[Sent]] = [[] for _ in self.outlets]
        self.inlets: dict[int, Inlet] = {}
        self.mailbox: deque[tuple[int, bytes]] = deque()
        self.is_consuming = False
        self.stalled_items = 0
        self.epoch = 0
        self.markers: list[tuple[int, list[int], list[int]]] = []
        self.markers_seen = 0
        self.log: list[Command] = []
        self.is_writing = False
        self.timer_ns: int | None = None

    @property
    def peer(self) -> "Side":
        return self.world.other(self)

    def feed(self, event: Event) -> None:
        world = self.world
        commands = self.core.handle(world.now_ns, event)
        self.core.validate()
        if world.is_traced:
            world.trace.append((world.now_ns, self.name, type(event).__name__, hash(self.core.freeze())))
        for command in commands:
            self.carry_out(command)
        if isinstance(event, FrameReceived):
            self.unpark()
        self.settle()

    def settle(self) -> None:
        if self.core.wants_write and not self.is_writing and self.world.stream is not None:
            self.is_writing = True
            self.world.after(0, self.write)
        wakeup_ns = self.core.wakeup_ns
        if wakeup_ns is not None and (self.timer_ns is None or wakeup_ns < self.timer_ns):
            self.timer_ns = wakeup_ns
            self.world.at(max(wakeup_ns, self.world.now_ns), self.fire)

    def fire(self) -> None:
        self.timer_ns = None
        self.feed(TimerFired())

    def write(self) -> None:
        self.is_writing = False
        if self.world.stream is not None and self.core.wants_write:
            self.feed(WriteReady())

    def carry_out(self, command: Command) -> None:
        match command:
            case WriteFrame():
                self.world.transmit(self, encode_frame(command.frame))
            case DeliverItems():
                self.deliver(command)
            case DeliverMarker():
                self.check_marker(command)
            case AcceptChannel():
                assert command.sender == f"{self.peer.name}{command.channel - 1}"
                self.inlets[command.channel] = Inlet(
                    channel=command.channel,
                    sender=command.sender,
                    receiver=command.receiver,
                    first_number=command.first_number,
                )
            case RaiseCredit():
                for channel, number in zip(command.channels, command.numbers, strict=True):
                    self.outlets[channel - 1].raise_credit(number)
            case CloseStream():
                self.world.trouble.append(command.reason)
                self.world.close(self)
            case Refuse() | ReportRefused():
                raise AssertionError(f"{self.name}: {command}")
            case _:
                self.log.append(command)

    # Sending.

    def open_channels(self) -> None:
        for outlet in self.outlets:
            self.feed(ChannelOpened(outlet.channel, outlet.sender, outlet.receiver, 1, 1, 1))

    def send(self, index: int, payload: bytes) -> None:
        self.outlets[index].parked.append(payload)
        self.unpark()

    def unpark(self) -> None:
        for index, outlet in enumerate(self.outlets):
            while outlet.parked and outlet.number < outlet.credit and self.core.items_room and self.core.bytes_room:
                outlet.number += 1
                payload = outlet.parked.popleft()
                self.ledger[index].append(Sent(payload, self.epoch))
                assert len(self.ledger[index]) == outlet.number
                self.feed(ItemsSent([outlet.channel], [payload], [self.epoch], [b"%d" % self.epoch]))

    def send_marker(self) -> None:
        self.epoch += 1
        channels = [outlet.channel for outlet in self.outlets]
        numbers = [outlet.number for outlet in self.outlets]
        self.markers.append((self.epoch, channels, numbers))
        self.feed(MarkerSent(self.epoch, list(channels), list(numbers)))

    # Receiving.

    def deliver(self, command: DeliverItems) -> None:
        count = len(command.channels)
        epochs = command.epochs if len(command.epochs) == count else command.epochs * count
        piggybacks = command.piggybacks or [b""] * count
        for channel, payload, epoch, piggyback in zip(
            command.channels, command.payloads, epochs, piggybacks, strict=True
        ):
            inlet = self.inlets[channel]
            inlet.arrived += 1
            ledger = self.peer.ledger[channel - 1]
            assert inlet.arrived <= len(ledger), f"{self.name}: message {inlet.arrived} on {channel} was never sent"
            sent = ledger[inlet.arrived - 1]
            assert payload == sent.payload, f"{self.name}: message {inlet.arrived} on {channel} is another one"
            assert epoch == sent.stamp and piggyback == b"%d" % sent.stamp, "a stamp changed on the way"
            self.world.delivered += 1
            if channel in self.world.work.stalled:
                self.stalled_items += 1
            else:
                self.mailbox.append((channel, payload))
        self.check_memory()
        if self.mailbox and not self.is_consuming:
            self.is_consuming = True
            self.world.after(self.world.random.randrange(0, 5 * MS), self.consume)

    def check_memory(self) -> None:
        assert len(self.mailbox) + self.stalled_items <= WINDOW_ITEMS
        assert window_bytes(payload for _, payload in self.mailbox) <= WINDOW_BYTES + PART_BYTES

    def consume(self) -> None:
        """Some turns."""
        batch = [self.mailbox.popleft() for _ in range(min(len(self.mailbox), self.world.random.randrange(1, 200)))]
        channels, numbers = [], []
        for channel, _ in batch:
            credit = self.inlets[channel].consume()
            if credit:
                channels.append(channel)
                numbers.append(credit)
        self.is_consuming = bool(self.mailbox)
        if self.mailbox:
            self.world.after(self.world.random.randrange(0, 5 * MS), self.consume)
        self.feed(ItemsConsumed(len(batch), window_bytes(payload for _, payload in batch), channels, numbers))
        self.unpark()

    def check_marker(self, command: DeliverMarker) -> None:
        epoch, channels, numbers = self.peer.markers[self.markers_seen]
        self.markers_seen += 1
        assert (command.epoch, command.channels, command.last_numbers) == (epoch, channels, numbers)
        arrived = [self.inlets[channel].arrived for channel in channels]
        assert arrived == numbers, f"{self.name}: marker {epoch} after {arrived}, sent after {numbers}"

    def check_done(self) -> None:
        for index, outlet in enumerate(self.outlets):
            if outlet.channel in self.world.work.stalled:
                continue
            inlet = self.peer.inlets[outlet.channel]
            assert not outlet.parked, f"{self.name}: {len(outlet.parked)} messages still parked on {outlet.channel}"
            assert inlet.arrived == outlet.number == len(self.ledger[index]), f"{self.name}: lost on {outlet.channel}"
            assert inlet.consumed == inlet.arrived
        assert self.peer.markers_seen == len(self.markers), f"{self.name}: a marker was lost"
        assert not self.core.has_unacked, f"{self.name}: unacked items remain"


@dataclass
class Stream:
    attempt: int
    arrives_ns: dict[str, int] = field(default_factory=dict)


class World(VirtualTime):
    """Two sides, one stream at a time. `trace`: the events and states of both, if `is_traced`, which takes most of the time."""

    def __init__(
        self, seed: int, *, work: Workload | None = None, faults: Faults | None = None, is_traced: bool = False
    ) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.work = work or Workload()
        self.faults = faults or Faults()
        self.is_traced = is_traced
        self.trace: list[tuple[int, str, str, int]] = []
        self.trouble: list[str] = []
        self.delivered = 0
        self.frames = 0
        self.attempt = 0
        self.stream: Stream | None = None
        self.a = Side(self, "a", "b", is_dialler=True)
        self.b = Side(self, "b", "a", is_dialler=False)

    def other(self, side: Side) -> Side:
        return self.b if side is self.a else self.a

    # The stream.

    def open(self) -> None:
        self.attempt += 1
        self.stream = Stream(self.attempt)
        self.b.feed(StreamOpened(self.attempt))
        self.a.feed(StreamOpened(self.attempt))

    def cut(self) -> None:
        """Both ends lose the stream, at different times; what was under way is gone."""
        if self.stream is None:
            return
        self.stream = None
        first, second = (self.a, self.b) if self.random.random() < 0.5 else (self.b, self.a)
        first.feed(StreamClosed())
        second.feed(StreamClosed())
        if not any(isinstance(entry, ReportEnded) and entry.is_clean for entry in self.a.log):
            self.after(self.random.randrange(50 * MS, 200 * MS), self.open)

    def close(self, side: Side) -> None:
        """One end closes; what it wrote before still arrives."""
        stream = self.stream
        if stream is not None:
            self.at(max(self.now_ns, stream.arrives_ns.get(side.name, 0)) + 1, lambda: self._cut_stream(stream))

    def transmit(self, sender: Side, data: bytes) -> None:
        stream, faults, draw = self.stream, self.faults, self.random
        if stream is None:
            return
        self.frames += 1
        sender.is_writing = True
        self.after(draw.randrange(1, MS), lambda: self._written(sender, stream))
        arrives_ns = max(stream.arrives_ns.get(sender.name, 0), self.now_ns + draw.randrange(1, 3 * MS))
        stream.arrives_ns[sender.name] = arrives_ns
        if self.frames == faults.cut_after or draw.random() < faults.cut:
            self.after(draw.randrange(0, 2 * MS), lambda: self._cut_stream(stream))
        if draw.random() < faults.lose:
            # A stream that lost something does not live on for long; until then the other end sees the gap.
            self.after(draw.randrange(1, 100 * MS), lambda: self._cut_stream(stream))
            return
        for _ in range(2 if draw.random() < faults.double else 1):
            self.at(arrives_ns, lambda: self._arrive(self.other(sender), stream, data))

    def _written(self, sender: Side, stream: Stream) -> None:
        sender.is_writing = False
        if self.stream is stream:
            sender.settle()

    def _cut_stream(self, stream: Stream) -> None:
        if self.stream is stream:
            self.cut()

    def _arrive(self, receiver: Side, stream: Stream, data: bytes) -> None:
        if self.stream is stream:
            receiver.feed(FrameReceived(decode_frame(data)))

    # The work.

    def plan_work(self, duration_ns: int) -> None:
        draw = self.random
        self.at(0, self.open)
        for side in (self.a, self.b):
            side.open_channels()
            for _ in range(self.work.messages):
                index = draw.randrange(self.work.channels)
                self.at(draw.randrange(1, duration_ns), self._send(side, index, self._size()))
            for _ in range(self.work.markers):
                self.at(draw.randrange(1, duration_ns), side.send_marker)

    def _send(self, side: Side, index: int, size: int) -> Callable[[], None]:
        return lambda: side.send(index, self.random.randbytes(size))

    def _size(self) -> int:
        if self.random.random() < self.work.large_share:
            return self.random.randrange(self.work.large_max)
        return self.random.randrange(self.work.size_max)

    def run_all(self, duration_ns: int = SECOND, *, settle_ns: int = 30 * SECOND) -> None:
        """The work under faults, then a quiet time, then the oracles, then a clean end."""
        self.plan_work(duration_ns)
        self.run_until(duration_ns)
        self.faults = Faults()
        self.run_until(duration_ns + settle_ns)
        self.a.check_done()
        self.b.check_done()
        if not self.work.stalled:
            self.a.feed(ByeRequested())
            self.run_until(self.now_ns + 5 * SECOND)
            for side in (self.a, self.b):
                assert side.log[-1] == ReportEnded(is_clean=True), f"{side.name} did not end cleanly: {side.log[-3:]}"
