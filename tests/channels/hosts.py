"""A host made of one link: real streams for tests, with counted, checked messages both ways."""

import asyncio
import time
from collections.abc import Callable

from snapline.channels.channel import window_bytes
from snapline.channels.frame import Frame, LinkHello, Refused
from snapline.channels.grpc_link import LinkTransport
from snapline.channels.link import LinkCore
from snapline.channels.link_events import (
    AcceptChannel,
    ByeRequested,
    ChannelOpened,
    CloseStream,
    Command,
    DeliverItems,
    Event,
    FrameReceived,
    ItemsConsumed,
    ItemsSent,
    Refuse,
    ReportEnded,
    ReportEstablished,
    StreamClosed,
    StreamOpened,
    TimerFired,
    WriteFrame,
    WriteReady,
)
from snapline.security.dial_back import OutgoingCalls
from snapline.security.transport import Security

OWN_CALLS = OutgoingCalls()
"""Of all hosts and raw diallers of a test process."""


class Host:
    """Feeds one core. Sends numbers on channel 1, checks that the peer's come as 1, 2, 3 …"""

    def __init__(
        self,
        host: str,
        peer: str,
        *,
        is_dialler: bool,
        security: Security | None = None,
        host_start: int = 1,
        peer_start: int = 1,
    ) -> None:
        self.peer = peer
        self.core = LinkCore(
            cluster="c",
            host=host,
            host_start=host_start,
            peer=peer,
            peer_start=peer_start,
            plan=1,
            is_dialler=is_dialler,
        )
        self.transport = LinkTransport(self, host=host, security=security or Security.loopback(), reload_s=0.05)
        self.transport._own_calls = OWN_CALLS
        self.port = 0
        self.asked_port = 0
        """Where its peer is asked whether it calls; 0: here, for all in this process answer alike."""
        self.sent = 0
        self.received_count = 0
        self.size = 100
        self.log: list[Command] = []
        self.knocks: list[str] = []
        self.errors: list[str | None] = []
        self.is_open = False
        self.established_count = 0
        self.remote = False
        self.wrong: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> "Host":
        self.port = await self.transport.start("127.0.0.1:0")
        return self

    def dial(self, other: "Host") -> None:
        self.transport.dial(self.peer, f"127.0.0.1:{other.port}")

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self.transport.stop()
        self.core.validate()

    def feed(self, event: Event) -> Frame | None:
        frame: Frame | None = None
        commands = self.core.handle(time.monotonic_ns(), event)
        self.core.validate()
        for command in commands:
            match command:
                case WriteFrame():
                    frame = command.frame
                case DeliverItems():
                    self.deliver(command)
                case CloseStream():
                    self.log.append(command)
                    self.transport.close_stream(self.peer)
                case Refuse():
                    self.log.append(command)
                    self.transport.refuse_stream(self.peer, command.reason, command.is_final)
                case ReportEstablished():
                    self.established_count += 1
                    self.log.append(command)
                case AcceptChannel():
                    pass
                case _:
                    self.log.append(command)
        if self.core.wants_write and not isinstance(event, WriteReady):
            self.transport.wake(self.peer)
        self.arm()
        return frame

    def arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wakeup_ns = self.core.wakeup_ns
        if wakeup_ns is not None:
            delay_s = max(0.0, (wakeup_ns - time.monotonic_ns()) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.feed, TimerFired())

    def deliver(self, command: DeliverItems) -> None:
        for payload in command.payloads:
            self.received_count += 1
            if int.from_bytes(payload[:8], "little") != self.received_count:
                self.wrong = f"{int.from_bytes(payload[:8], 'little')} came as {self.received_count}"
        self.feed(ItemsConsumed(len(command.payloads), window_bytes(command.payloads)))

    def send(self, count: int) -> int:
        """Send as many as there is room for; returns how many."""
        if not self.is_open:
            self.is_open = True
            self.feed(ChannelOpened(1, "x", "y", 1, 1, 1))
        count = min(count, self.core.items_room, self.core.bytes_room // self.size)
        if count > 0:
            first = self.sent + 1
            self.sent += count
            tail = bytes(self.size - 8)
            payloads = [number.to_bytes(8, "little") + tail for number in range(first, self.sent + 1)]
            self.feed(ItemsSent([1] * count, payloads, [1]))
        return count

    def say_bye(self) -> None:
        self.feed(ByeRequested())

    @property
    def ends(self) -> list[bool]:
        return [entry.is_clean for entry in self.log if isinstance(entry, ReportEnded)]

    # LinkOwner.

    def accepted(self, peer: str, hello: LinkHello) -> Refused | None:
        return self.core.judge(hello)

    def dial_requested(self, hello: LinkHello) -> None:
        self.knocks.append(hello.host)

    def opened(self, peer: str, attempt: int) -> bool:
        self.feed(StreamOpened(attempt))
        return True

    def received(self, peer: str, frame: Frame) -> None:
        self.feed(FrameReceived(frame))

    def next_frame(self, peer: str) -> Frame | None:
        return self.feed(WriteReady())

    def closed(self, peer: str, error: str | None) -> None:
        self.errors.append(error)
        self.feed(StreamClosed())

    def address_of(self, peer: str) -> str:
        return f"127.0.0.1:{self.asked_port or self.port}"

    def is_remote(self, peer: str) -> bool:
        return self.remote


async def until(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> float:
    """Wait for a condition; returns the seconds it took."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < timeout_s, "it did not happen in time"
        await asyncio.sleep(0.005)
    return time.monotonic() - began_s


async def connect(a: Host, b: Host) -> None:
    await a.start()
    await b.start()
    a.dial(b)
    await until(lambda: a.core.is_established and b.core.is_established)


async def exchange(
    a: Host,
    b: Host,
    seconds: float,
    disturb: Callable[[], None],
    pause_s: Callable[[], float],
    is_enough: Callable[[], bool] = lambda: True,
) -> None:
    """Data both ways for some seconds, and until it is enough, while `disturb` is called again and again; then all must have arrived."""
    ends_s = time.monotonic() + seconds
    next_s = time.monotonic() + pause_s()
    while time.monotonic() < ends_s or not is_enough():
        a.send(300)
        b.send(300)
        await asyncio.sleep(0.001)
        if time.monotonic() > next_s:
            disturb()
            next_s = time.monotonic() + pause_s()
    await until(lambda: a.received_count == b.sent and b.received_count == a.sent, timeout_s=20)
    await until(lambda: not a.core.has_unacked and not b.core.has_unacked)
    assert a.wrong is None and b.wrong is None
