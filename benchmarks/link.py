"""Messages handled per second between two processes: snapline's link against gRPC and asyncio TCP, in one run.

    python benchmarks/link.py [--rounds 7] [--quick] [--sizes 64 1024 65536] [--no-markers]

What is counted: messages *handled* by the receiver: dispatched to the mailbox of their channel, taken out by a drain loop,
and found to carry the next number of their channel. A run ends when the receiver's own word that it handled the last
message has come back. Everything of the link is on: acks, item, byte and channel credit, duplicate removal, resume queue,
fences, and a marker on 16 channels every 100 ms, whose numbers are checked. The baselines check the same numbers, but have
no mailboxes, credit, acks or resume.

Each round runs every contender once, in random order; what is reported is the median over the rounds of the ratio *within*
a round, with the lowest and highest. CPU is that of both processes, start-up excluded. Payloads are random bytes.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import platform
import random
import statistics
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from itertools import cycle, islice
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import google.protobuf
import grpc
import grpc.aio

from snapline.channels.channel import Inlet, Outlet, window_bytes
from snapline.channels.frame import FRAME_BYTES_MAX, FRAME_ITEMS_MAX, Frame, LinkHello, Refused
from snapline.channels.grpc_link import LinkTransport, keep_freed_memory
from snapline.channels.link import LinkCore
from snapline.channels.link_events import (
    AcceptChannel,
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
    ReportEstablished,
    StreamClosed,
    StreamOpened,
    TimerFired,
    WriteFrame,
    WriteReady,
)
from snapline.channels.servers import client_options, server_options
from snapline.security.transport import Security

CHANNELS = 16
MARKER_S = 0.1
UNARY_CONCURRENCIES = (1, 16, 64, 256)
LINK, UNARY, STREAM, TCP_PLAIN, TCP_BATCHED = "link", "grpc unary", "grpc stream", "tcp plain", "tcp batched"
CONTENDERS = (LINK, UNARY, STREAM, TCP_PLAIN, TCP_BATCHED)
SECONDS = {LINK: 1.0, UNARY: 0.4, STREAM: 0.6, TCP_PLAIN: 0.6, TCP_BATCHED: 1.0}
FIRST_GUESS = {LINK: 300_000, UNARY: 2_000, STREAM: 8_000, TCP_PLAIN: 100_000, TCP_BATCHED: 1_000_000}

_NUMBER = struct.Struct("<Q")
_pack = _NUMBER.pack
_unpack_from = _NUMBER.unpack_from


class Wrong(Exception):
    """A message came out of order: a BaseException, so that the process ends at once."""

    def __init__(self, what: str) -> None:
        print(f"wrong: {what}", file=sys.stderr, flush=True)
        os._exit(1)


def batch_size(size: int) -> int:
    """Messages per frame and per batched write: what the link's own rules make of it."""
    return max(1, min(FRAME_ITEMS_MAX, FRAME_BYTES_MAX // size))


# The link's two ends.


class End:
    """Feeds one `LinkCore` and carries its commands out, as a host does."""

    def __init__(self, *, host: str, peer: str, is_dialler: bool, security: Security) -> None:
        self.peer = peer
        self.core = LinkCore(
            cluster="bench", host=host, host_start=1, peer=peer, peer_start=1, plan=1, is_dialler=is_dialler
        )
        self.transport = LinkTransport(self, host=host, security=security)
        self.transport._callers.is_real = _believe  # type: ignore[assignment]  # the sending end does not listen
        self.established = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def feed(self, event: Event) -> Frame | None:
        frame: Frame | None = None
        for command in self.core.handle(time.monotonic_ns(), event):
            if type(command) is WriteFrame:
                frame = command.frame
            elif type(command) is DeliverItems:
                self.deliver(command)
            else:
                self.carry_out(command)
        return frame

    def settle(self) -> None:
        """After events: wake the writer, set the timer."""
        core = self.core
        if core.wants_write:
            self.transport.wake(self.peer)
        wakeup_ns = core.wakeup_ns
        if wakeup_ns is None or (self._timer is not None and self._timer_ns <= wakeup_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = wakeup_ns
        delay_s = max(0.0, (wakeup_ns - time.monotonic_ns()) / 1e9)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.feed(TimerFired())
        self.settle()

    def deliver(self, command: DeliverItems) -> None:
        raise NotImplementedError

    def carry_out(self, command: Command) -> None:
        if isinstance(command, ReportEstablished):
            self.established.set()
        elif isinstance(command, CloseStream):
            self.transport.close_stream(self.peer)
            raise Wrong(command.reason)

    # LinkOwner.

    def accepted(self, peer: str, hello: LinkHello) -> Refused | None:
        return self.core.judge(hello)

    def dial_requested(self, hello: LinkHello) -> None:
        """Nobody is dialled from here."""

    def opened(self, peer: str, attempt: int) -> bool:
        self.feed(StreamOpened(attempt))
        self.settle()
        return True

    def received(self, peer: str, frame: Frame) -> None:
        self.feed(FrameReceived(frame))
        self.settle()

    def next_frame(self, peer: str) -> Frame | None:
        return self.feed(WriteReady())

    def closed(self, peer: str, error: str | None) -> None:
        self.feed(StreamClosed())

    def address_of(self, peer: str) -> str:
        return ""

    def is_remote(self, peer: str) -> bool:
        return False


async def _believe(*_: object) -> bool:
    return True


class SendingEnd(End):
    """Sends on 16 channels in turn, as much as channel credit and the link's window let it."""

    def __init__(self, security: Security) -> None:
        super().__init__(host="a", peer="b", is_dialler=True, security=security)
        self.outlets = [
            Outlet(channel=index + 1, sender=f"s{index}", receiver=f"r{index}") for index in range(CHANNELS)
        ]
        self.by_channel = {outlet.channel: outlet for outlet in self.outlets}
        self.rotation = cycle(self.outlets)
        self.remaining = 0
        self.tail = b""
        self.batch = 1
        self.epoch = 1
        self.handled: asyncio.Future[int] | None = None

    def open_channels(self) -> None:
        for outlet in self.outlets:
            self.feed(ChannelOpened(outlet.channel, outlet.sender, outlet.receiver, 1, 1, 1))
        self.settle()

    def produce(self) -> None:
        """One batch: per message what a sending turn does with it."""
        core = self.core
        room = min(self.remaining, self.batch, core.items_room, core.bytes_room // (len(self.tail) + 8))
        if room <= 0:
            return
        channels: list[int] = []
        payloads: list[bytes] = []
        tail = self.tail
        add_channel, add_payload = channels.append, payloads.append
        for outlet in islice(self.rotation, room):
            number = outlet.number
            if number < outlet.credit:
                outlet.number = number = number + 1
                add_channel(outlet.channel)
                add_payload(_pack(number) + tail)
        if channels:
            self.remaining -= len(channels)
            self.feed(ItemsSent(channels, payloads, [self.epoch]))

    def next_frame(self, peer: str) -> Frame | None:
        if self.remaining:
            self.produce()
        return self.feed(WriteReady())

    def received(self, peer: str, frame: Frame) -> None:
        self.feed(FrameReceived(frame))
        self.settle()
        if self.remaining:
            self.transport.wake(peer)

    def send_marker(self) -> None:
        self.epoch += 1
        self.feed(
            MarkerSent(
                self.epoch, [outlet.channel for outlet in self.outlets], [outlet.number for outlet in self.outlets]
            )
        )
        self.settle()

    def deliver(self, command: DeliverItems) -> None:
        for payload in command.payloads:
            assert self.handled is not None
            self.handled.set_result(_unpack_from(payload)[0])
        self.feed(ItemsConsumed(len(command.payloads), window_bytes(command.payloads)))

    def carry_out(self, command: Command) -> None:
        if isinstance(command, RaiseCredit):
            for channel, number in zip(command.channels, command.numbers, strict=True):
                self.by_channel[channel].raise_credit(number)
        else:
            super().carry_out(command)

    async def run(self, count: int, size: int, with_markers: bool) -> None:
        self.handled = asyncio.get_running_loop().create_future()
        self.tail = os.urandom(size - 8)
        self.batch = batch_size(size)
        self.remaining = count
        self.transport.wake(self.peer)
        while not self.handled.done():
            await asyncio.wait({self.handled}, timeout=MARKER_S)
            if with_markers:
                self.send_marker()
        if self.handled.result() != count:
            raise Wrong(f"{self.handled.result()} of {count} messages handled")


class Mailbox(Inlet):
    """The receiving end of one channel and the queue in front of its agent."""

    __slots__ = ("is_ready", "queue")

    def __init__(self, command: AcceptChannel) -> None:
        super().__init__(
            channel=command.channel,
            sender=command.sender,
            receiver=command.receiver,
            first_number=command.first_number,
        )
        self.queue: deque[bytes] = deque()
        self.is_ready = False


class ReceivingEnd(End):
    """Dispatches to mailboxes; one drain loop takes the messages out and checks their numbers."""

    def __init__(self, security: Security) -> None:
        super().__init__(host="b", peer="a", is_dialler=False, security=security)
        self.mailboxes: dict[int, Mailbox] = {}
        self.ready: list[Mailbox] = []
        self.handled = 0
        self.expected = 0
        self.markers = 0

    def deliver(self, command: DeliverItems) -> None:
        mailboxes, ready = self.mailboxes, self.ready
        if not ready:
            asyncio.get_running_loop().call_soon(self.drain)
        for channel, payload in zip(command.channels, command.payloads, strict=True):
            mailbox = mailboxes[channel]
            mailbox.arrived += 1
            mailbox.queue.append(payload)
            if not mailbox.is_ready:
                mailbox.is_ready = True
                ready.append(mailbox)

    def drain(self) -> None:
        ready, self.ready = self.ready, []
        items = size_bytes = 0
        channels: list[int] = []
        numbers: list[int] = []
        for mailbox in ready:
            mailbox.is_ready = False
            queue = mailbox.queue
            count = len(queue)
            number = mailbox.consumed
            while queue:
                payload = queue.popleft()
                number += 1
                if _unpack_from(payload)[0] != number:
                    raise Wrong(f"{_unpack_from(payload)[0]} on channel {mailbox.channel}, expected {number}")
                size_bytes += len(payload)
            credit = mailbox.consume(count)
            if credit:
                channels.append(mailbox.channel)
                numbers.append(credit)
            items += count
        self.handled += items
        self.feed(ItemsConsumed(items, size_bytes, channels, numbers))
        if self.handled == self.expected:
            self.feed(ItemsSent([1], [_pack(self.handled)], [0]))
        self.settle()

    def carry_out(self, command: Command) -> None:
        if isinstance(command, AcceptChannel):
            self.mailboxes[command.channel] = Mailbox(command)
        elif isinstance(command, DeliverMarker):
            self.markers += 1
            for channel, number in zip(command.channels, command.last_numbers, strict=True):
                if self.mailboxes[channel].arrived != number:
                    raise Wrong(f"marker {number} on channel {channel} after {self.mailboxes[channel].arrived}")
        elif isinstance(command, ReportEstablished):
            self.feed(ChannelOpened(1, "r0", "s0", 1, 1, 1))
        else:
            super().carry_out(command)

    def expect(self, count: int) -> None:
        self.handled, self.expected = 0, count


# The baselines' receivers.


class Checker:
    """Order check and count of one run of a baseline."""

    def __init__(self) -> None:
        self.number = 0
        self.expected = 0
        self.unary: dict[int, int] = {}

    def expect(self, count: int) -> None:
        self.number, self.expected = 0, count
        self.unary = {}

    def check(self, payload: bytes) -> None:
        self.number += 1
        if _unpack_from(payload)[0] != self.number:
            raise Wrong(f"{_unpack_from(payload)[0]}, expected {self.number}")

    def check_unary(self, payload: bytes) -> None:
        worker, number = divmod(_unpack_from(payload)[0], 1 << 32)
        if self.unary.get(worker, 0) + 1 != number:
            raise Wrong(f"{number} of worker {worker}, expected {self.unary.get(worker, 0) + 1}")
        self.unary[worker] = number


async def serve_grpc(checker: Checker) -> int:
    async def unary(payload: bytes, _context: object) -> bytes:
        checker.check_unary(payload)
        return b""

    async def stream(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        check = checker.check
        while isinstance(payload := await context.read(), bytes):
            check(payload)
            if checker.number == checker.expected:
                await context.write(_pack(checker.number))

    # Peers need few streams each, and our servers allow few; here hundreds of calls are measured at once.
    options = [option for option in server_options() if option[0] != "grpc.max_concurrent_streams"]
    server = grpc.aio.server(options=options)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _kept.append(server)
    return port


async def serve_tcp(checker: Checker) -> int:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            (size,) = _SIZE.unpack(await reader.readexactly(4))
            checker.check(await reader.readexactly(size))
            if checker.number == checker.expected:
                writer.write(_pack(checker.number))

    async def batched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            count, size = _BATCH.unpack(await reader.readexactly(8))
            data = await reader.readexactly(size)
            number = checker.number
            start = 4 * count
            for length in struct.unpack_from(f"<{count}I", data):
                payload = data[start : start + length]
                start += length
                number += 1
                if _unpack_from(payload)[0] != number:
                    raise Wrong(f"{_unpack_from(payload)[0]}, expected {number}")
            checker.number = number
            if number == checker.expected:
                writer.write(_pack(number))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await (plain if await reader.readexactly(1) == b"p" else batched)(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    _kept.append(server)
    return int(server.sockets[0].getsockname()[1])


_kept: list[object] = []
_SIZE = struct.Struct("<I")
_BATCH = struct.Struct("<II")


async def receive(security: Security) -> None:
    """The receiving process: serves all contenders, and answers its parent's lines on stdin."""
    checker = Checker()
    end = ReceivingEnd(security)
    ports = {
        "link": await end.transport.start("127.0.0.1:0"),
        "grpc": await serve_grpc(checker),
        "tcp": await serve_tcp(checker),
    }
    gc.freeze()
    print(json.dumps(ports), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        if "expect" in order:
            end.expect(order["expect"])
            checker.expect(order["expect"])
        print(json.dumps({"cpu_s": time.process_time(), "markers": end.markers}), flush=True)
    os._exit(0)


# The baselines' senders: each sends `count` messages of `size` bytes and returns when the last was handled.


async def send_unary(port: int, count: int, size: int, concurrency: int) -> None:
    tail = os.urandom(size - 8)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=client_options()) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/bench/Unary")

        async def work(worker: int) -> None:
            for number in range(1, count // concurrency + 1):
                await call(_pack((worker << 32) + number) + tail)

        await asyncio.gather(*(work(worker) for worker in range(concurrency)))


async def send_stream(port: int, count: int, size: int) -> None:
    tail = os.urandom(size - 8)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=client_options()) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/bench/Stream")()
        for number in range(1, count + 1):
            await call.write(_pack(number) + tail)
        _check_answer(await call.read(), count)
        call.cancel()


@contextlib.asynccontextmanager
async def tcp(port: int, kind: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(kind)
    yield reader, writer
    writer.close()


async def send_tcp_plain(port: int, count: int, size: int) -> None:
    tail = os.urandom(size - 8)
    async with tcp(port, b"p") as (reader, writer):
        head = _SIZE.pack(size)
        for number in range(1, count + 1):
            writer.write(head + _pack(number) + tail)
            await writer.drain()
        _check_answer(await reader.readexactly(8), count)


async def send_tcp_batched(port: int, count: int, size: int) -> None:
    tail = os.urandom(size - 8)
    batch = batch_size(size)
    async with tcp(port, b"b") as (reader, writer):
        number = 0
        while number < count:
            last = min(number + batch, count)
            payloads = [_pack(n) + tail for n in range(number + 1, last + 1)]
            lengths = struct.pack(f"<{len(payloads)}I", *map(len, payloads))
            data = lengths + b"".join(payloads)
            writer.write(_BATCH.pack(len(payloads), len(data)) + data)
            await writer.drain()
            number = last
        _check_answer(await reader.readexactly(8), count)


def _check_answer(answer: Any, count: int) -> None:
    if answer is grpc.aio.EOF or _unpack_from(answer)[0] != count:
        raise Wrong(f"{answer!r} instead of {count}")


# The measurement.


class Bench:
    """The sending process."""

    def __init__(self, options: argparse.Namespace, security: Security, child: subprocess.Popen[str]) -> None:
        self.options = options
        self.child = child
        self.ports: dict[str, int] = json.loads(self._line())
        self.end = SendingEnd(security)
        self.counts: dict[tuple[str, int], int] = {}

    def _line(self) -> str:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit("the receiving process died")
        return line

    def ask(self, **order: int) -> dict[str, float]:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(order) + "\n")
        self.child.stdin.flush()
        answer: dict[str, float] = json.loads(self._line())
        return answer

    async def connect(self) -> None:
        self.end.transport.dial("b", f"127.0.0.1:{self.ports['link']}")
        await asyncio.wait_for(self.end.established.wait(), 5)
        self.end.open_channels()

    async def send(self, contender: str, count: int, size: int, concurrency: int) -> None:
        if contender == LINK:
            await self.end.run(count, size, not self.options.no_markers)
        elif contender == UNARY:
            await send_unary(self.ports["grpc"], count, size, concurrency)
        elif contender == STREAM:
            await send_stream(self.ports["grpc"], count, size)
        elif contender == TCP_PLAIN:
            await send_tcp_plain(self.ports["tcp"], count, size)
        else:
            await send_tcp_batched(self.ports["tcp"], count, size)

    async def measure(self, contender: str, size: int, concurrency: int = 64) -> tuple[float, float]:
        """One run: messages per second, and CPU microseconds per message of both processes."""
        key = (contender, size) if contender != UNARY else (f"{UNARY} {concurrency}", size)
        count = self.counts.get(key, max(64, FIRST_GUESS[contender] // (1 + size // 4096)))
        if contender == UNARY:
            count = max(concurrency, count // concurrency * concurrency)
        remote_s = self.ask(expect=count)["cpu_s"]
        local_s, began_s = time.process_time(), time.perf_counter()
        await asyncio.wait_for(self.send(contender, count, size, concurrency), 60)
        took_s, used_s = time.perf_counter() - began_s, time.process_time() - local_s
        used_s += self.ask()["cpu_s"] - remote_s
        seconds = SECONDS[contender] * (0.4 if self.options.quick else 1.0)
        self.counts[key] = max(64, int(count / took_s * seconds))
        return count / took_s, used_s / count * 1e6

    async def measure_best(self, contender: str, size: int) -> tuple[float, float]:
        if contender != UNARY:
            return await self.measure(contender, size)
        return max([await self.measure(UNARY, size, concurrency) for concurrency in UNARY_CONCURRENCIES])

    async def run(self, size: int) -> dict[str, list[tuple[float, float]]]:
        results: dict[str, list[tuple[float, float]]] = {contender: [] for contender in CONTENDERS}
        for contender in CONTENDERS:
            await self.measure_best(contender, size)  # warm-up; also finds how many messages fill the time
        for _ in range(self.options.rounds):
            for contender in random.sample(CONTENDERS, len(CONTENDERS)):
                results[contender].append(await self.measure_best(contender, size))
        return results


def report(size: int, results: dict[str, list[tuple[float, float]]]) -> None:
    print(f"\n{size} B")
    print(f"  {'':12} {'messages/s':>12} {'lowest–highest':>22} {'CPU µs':>8}   link ÷ this (lowest–highest)")
    ours = [rate for rate, _ in results[LINK]]
    for contender, runs in results.items():
        rates = [rate for rate, _ in runs]
        cpu_us = statistics.median(cpu for _, cpu in runs)
        spread = f"{min(rates):,.0f}–{max(rates):,.0f}"
        line = f"  {contender:12} {statistics.median(rates):12,.0f} {spread:>22} {cpu_us:8.2f}"
        if contender != LINK:
            ratios = [our / rate for our, rate in zip(ours, rates, strict=True)]
            line += f"   {statistics.median(ratios):8.2f}  ({min(ratios):.2f}–{max(ratios):.2f})"
        print(line, flush=True)


async def send_all(options: argparse.Namespace, security: Security, child: subprocess.Popen[str]) -> None:
    bench = Bench(options, security, child)
    await bench.connect()
    gc.freeze()
    for size in options.sizes:
        report(size, await bench.run(size))
    print(f"\nmarkers checked: {bench.ask()['markers']:.0f}")
    await bench.end.transport.stop()


def describe() -> None:
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(
        f"{os.cpu_count()} cores, load {load}; Python {platform.python_version()}, grpcio {grpc.__version__}, "
        f"protobuf {google.protobuf.__version__}; {CHANNELS} channels"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all contenders (5 or more)")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1024, 65536], help="payload bytes, 8 or more")
    parser.add_argument("--no-markers", action="store_true", help="without the marker every 100 ms")
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    security = Security.loopback()
    if options.receive:
        asyncio.run(receive(security))
        return
    describe()
    keep_freed_memory()  # in both processes, hence for every contender
    command = [sys.executable, __file__, "--receive"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            asyncio.run(send_all(options, security, child))
        finally:
            child.kill()


if __name__ == "__main__":
    main()
