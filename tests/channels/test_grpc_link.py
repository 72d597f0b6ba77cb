"""Real streams on the loopback: cut under traffic, killed and frozen peers, ends, refusals, health."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.channels.hosts import OWN_CALLS, Host, connect, exchange, until

from snapline.channels.channel import PART_BYTES, WINDOW_BYTES, WINDOW_ITEMS
from snapline.channels.frame import Frame, Items, LinkHello, Refused, decode_frame, encode_frame
from snapline.channels.grpc_link import SERVICE, LinkTransport
from snapline.channels.link_events import LINK_VERSION, ChannelOpened, CloseStream, ItemsSent, ReportEnded
from snapline.channels.servers import AddressBusyError, client_options
from snapline.errors import UsageError
from snapline.security.dial_back import OutgoingCalls
from snapline.security.transport import Security

pytestmark = pytest.mark.processes


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Host, Host]]:
    a, b = Host("h1", "h2", is_dialler=True), Host("h2", "h1", is_dialler=False)
    await connect(a, b)
    yield a, b
    await a.stop()
    await b.stop()


async def storm(a: Host, b: Host, cuts: int) -> None:
    draw = random.Random(1)

    def cut() -> None:
        if draw.random() < 0.5:
            a.transport.close_stream("h2")
        else:
            b.transport.close_stream("h1")

    await exchange(a, b, 0.0, cut, lambda: draw.uniform(0.02, 0.15), lambda: a.established_count > cuts)


async def test_streams_cut_under_traffic_both_ways_lose_nothing(pair: tuple[Host, Host]) -> None:
    await storm(*pair, 12)
    assert pair[0].sent > 1000


@pytest.mark.slow
async def test_streams_cut_hundreds_of_times_lose_nothing(pair: tuple[Host, Host]) -> None:
    await storm(*pair, 300)


async def test_compressed_frames_arrive(pair: tuple[Host, Host]) -> None:
    a, b = pair
    a.remote = True
    a.transport.close_stream("h2")
    await exchange(a, b, 0.3, lambda: None, lambda: 1.0)


async def test_bye_ends_both_sides_cleanly(pair: tuple[Host, Host]) -> None:
    a, b = pair
    a.send(1000)
    b.send(1000)
    a.say_bye()
    await until(lambda: a.ends == [True] and b.ends == [True])
    assert b.received_count == a.sent and a.received_count == b.sent
    a.transport.undial("h2")


async def test_end_of_stream_without_bye_is_a_break(pair: tuple[Host, Host]) -> None:
    a, b = pair
    a.transport.undial("h2")
    await until(lambda: a.ends == [False] and b.ends == [False])


async def test_a_large_message_passes(pair: tuple[Host, Host]) -> None:
    a, b = pair
    payload = (1).to_bytes(8, "little") + os.urandom(16 * PART_BYTES - 8)
    a.feed(ChannelOpened(1, "x", "y", 1, 1, 1))
    a.feed(ItemsSent([1], [payload], [1]))
    await until(lambda: b.received_count == 1)
    assert b.wrong is None


async def test_a_lost_server_is_found_again_at_another_address() -> None:
    a, b = Host("h1", "h2", is_dialler=True), Host("h2", "h1", is_dialler=False)
    await connect(a, b)
    other = await Host("h2", "h1", is_dialler=False).start()
    other.core = b.core
    await b.transport.stop()
    a.dial(other)
    await until(lambda: a.core.is_established)
    await a.stop()
    await other.stop()


PEER = """
import asyncio, sys
from tests.channels.hosts import Host
async def main():
    host = await Host("h2", "h1", is_dialler=False).start()
    host.asked_port = int(sys.argv[1])
    print(host.port, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


class Child:
    """The peer as a process of its own, to be killed and frozen."""

    def __init__(self, peer: Host) -> None:
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, str(peer.port)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        assert self.process.stdout is not None
        self.address = f"127.0.0.1:{self.process.stdout.readline().strip()}"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
async def with_child() -> AsyncIterator[tuple[Host, Child]]:
    host = await Host("h1", "h2", is_dialler=True).start()
    child = Child(host)
    host.transport.dial("h2", child.address)
    await until(lambda: host.core.is_established)
    yield host, child
    await host.stop()
    child.end()


async def test_a_killed_peer_is_noticed_at_once(with_child: tuple[Host, Child]) -> None:
    host, child = with_child
    child.signal(signal.SIGKILL)
    took_s = await until(lambda: host.ends == [False])
    assert took_s < 0.5, "0.2 s on a quiet machine"


async def test_a_frozen_peer_is_suspect_within_4_s(with_child: tuple[Host, Child]) -> None:
    host, child = with_child
    child.signal(signal.SIGSTOP)
    took_s = await until(lambda: host.ends == [False])
    assert took_s < 4, (
        "a ping after 1 s of silence, and 1 s for its answer; 1 s in all where a ping was on its way already"
    )
    child.signal(signal.SIGCONT)
    await until(lambda: host.core.is_established)


@pytest.mark.slow
async def test_an_idle_link_lives_on(pair: tuple[Host, Host]) -> None:
    await asyncio.sleep(15)
    assert pair[0].established_count == 1 and pair[0].ends == []


# A peer that breaks the rules, frame by frame.


def hello(**changes: object) -> Frame:
    fields: dict[str, object] = {
        "cluster": "c",
        "host": "h1",
        "host_start": 1,
        "peer_start": 1,
        "attempt": 1,
        "plan": 1,
        "received": 0,
        "version": LINK_VERSION,
    }
    body = LinkHello(**{**fields, **changes})  # type: ignore[arg-type]  # a test names the field it changes
    return Frame(0, 0, WINDOW_ITEMS, WINDOW_BYTES, body=body)


class Raw:
    """A dialler that writes what it likes. `is_forged`: the host that it says it is knows nothing of it."""

    def __init__(self, host: Host, *, is_forged: bool = False) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{host.port}", options=client_options())
        self._open(is_forged=is_forged)

    def _open(self, *, is_forged: bool = False) -> None:
        self._own = (OutgoingCalls() if is_forged else OWN_CALLS).new()
        opening: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"/{SERVICE}/Open")
        self._call = opening(metadata=self._own.__enter__())

    async def write(self, frame: Frame | bytes) -> None:
        await self._call.write(frame if isinstance(frame, bytes) else encode_frame(frame))

    async def read(self) -> Frame | None:
        data = await self._call.read()
        return decode_frame(data) if isinstance(data, bytes) else None

    async def close(self) -> None:
        self._own.__exit__(None, None, None)
        self._call.cancel()
        await self._channel.close()


@pytest.fixture
async def acceptor() -> AsyncIterator[Host]:
    host = await Host("h2", "h1", is_dialler=False, peer_start=1).start()
    yield host
    await host.stop()


@pytest.mark.parametrize(
    ("changes", "is_final"),
    [({"host_start": 0}, True), ({"plan": 2}, False), ({"cluster": "other"}, True), ({"plan": 0}, True)],
    ids=str,
)
async def test_the_wrong_peer_gets_a_refusal(acceptor: Host, changes: dict[str, object], is_final: bool) -> None:
    raw = Raw(acceptor)
    await raw.write(hello(**changes))
    frame = await raw.read()
    assert frame is not None and isinstance(frame.body, Refused) and frame.body.is_final is is_final
    assert await raw.read() is None
    assert not acceptor.core.is_established
    await raw.close()


async def test_a_knock_reaches_the_owner_and_opens_no_stream(acceptor: Host) -> None:
    other = await Host("h1", "h2", is_dialler=False).start()
    other.transport.knock("h2", f"127.0.0.1:{acceptor.port}", other.core.knock())
    await until(lambda: acceptor.knocks == ["h1"])
    assert not acceptor.is_open and not other.is_open and not acceptor.log
    other.transport.knock("h2", "127.0.0.1:9", other.core.knock())  # nobody is there: it is lost
    await other.stop()


async def forge(acceptor: Host) -> None:
    """Somebody says it is `h1`, with an attempt far ahead: its stream stays, and so does its next one."""
    real = Raw(acceptor)
    await real.write(hello(attempt=1))
    assert await real.read() is not None
    await until(lambda: acceptor.core.is_established)
    for attempt in (2, 2**63, 2**64 - 1):
        forged = Raw(acceptor, is_forged=True)
        await forged.write(hello(attempt=attempt))
        answer = await forged.read()
        assert answer is not None and isinstance(answer.body, Refused) and "does not say" in answer.body.reason
        await forged.close()
    assert acceptor.core.is_established and acceptor.core.attempt == 1 and not acceptor.errors
    await real.close()
    again = Raw(acceptor)
    await again.write(hello(attempt=2))
    answer = await again.read()
    assert answer is not None and isinstance(answer.body, LinkHello)
    await again.close()


async def test_a_forged_hello_changes_nothing(acceptor: Host) -> None:
    await forge(acceptor)


async def test_a_host_that_believes_every_hello_is_found(acceptor: Host) -> None:
    async def is_real(*_: object) -> bool:
        return True

    acceptor.transport._callers.is_real = is_real  # type: ignore[assignment,method-assign]
    with pytest.raises(AssertionError):
        await forge(acceptor)


async def test_a_newer_attempt_replaces_the_older_and_not_the_other_way_round(acceptor: Host) -> None:
    first, second, late = Raw(acceptor), Raw(acceptor), Raw(acceptor)
    await first.write(hello(attempt=5))
    assert await first.read() is not None
    await second.write(hello(attempt=6))
    answer = await second.read()
    assert answer is not None and isinstance(answer.body, LinkHello) and answer.body.attempt == 6
    while await first.read() is not None:
        pass
    await late.write(hello(attempt=5))
    refused = await late.read()
    assert refused is not None and isinstance(refused.body, Refused)
    assert acceptor.core.is_established
    for raw in (first, second, late):
        await raw.close()


async def test_a_hello_with_an_attempt_far_ahead_does_not_lock_the_peer_out(acceptor: Host) -> None:
    jumped, real = Raw(acceptor), Raw(acceptor)
    await jumped.write(hello(attempt=2**64 - 1))
    assert await jumped.read() is not None
    await jumped.close()
    for _ in range(200):
        if not acceptor.core.is_established:
            break
        await asyncio.sleep(0.01)
    await real.write(hello(attempt=2))
    answer = await real.read()
    assert answer is not None and isinstance(answer.body, LinkHello) and acceptor.core.is_established
    await real.close()


@pytest.mark.parametrize(
    "data",
    [encode_frame(Frame(9, body=Items([1], [b"gap"], [1]))), b"\xff\xff\xff", encode_frame(hello())],
    ids=["gap", "no frame", "second hello"],
)
async def test_a_broken_rule_ends_the_stream_but_not_the_host(acceptor: Host, data: bytes) -> None:
    raw = Raw(acceptor)
    await raw.write(hello())
    await raw.read()
    await raw.write(data)
    while await raw.read() is not None:
        pass
    assert acceptor.ends == [False]
    protocol_errors = [entry for entry in acceptor.log if isinstance(entry, CloseStream) and entry.is_protocol_error]
    assert protocol_errors or any("protocol error" in (error or "") for error in acceptor.errors)
    await raw.close()
    again = Raw(acceptor)
    await again.write(hello(attempt=2))
    assert await again.read() is not None and acceptor.core.is_established
    await again.close()


async def test_health_and_reflection_answer(acceptor: Host) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{acceptor.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for response in reflection.ServerReflectionInfo(iter([request])):
            names = {service.name for service in response.list_services_response.service}
            assert SERVICE in names
            break


async def test_a_taken_port_fails_loudly(acceptor: Host) -> None:
    with pytest.raises(
        AddressBusyError, match=f"cannot listen on 127.0.0.1:{acceptor.port}: Address already in use; choose"
    ):
        await LinkTransport(acceptor, host="h3", security=Security.loopback()).start(f"127.0.0.1:{acceptor.port}")


async def test_other_machines_are_neither_served_nor_dialled_in_plaintext(acceptor: Host) -> None:
    transport = LinkTransport(acceptor, host="h3", security=Security.loopback())
    with pytest.raises(UsageError, match="--insecure"):
        await transport.start("0.0.0.0:0")
    with pytest.raises(UsageError, match="--insecure"):
        transport.dial("h4", "192.0.2.1:7000")


async def test_a_peer_that_is_not_there_yet_is_dialled_until_it_is() -> None:
    a, b = Host("h1", "h2", is_dialler=True), Host("h2", "h1", is_dialler=False)
    await b.start()
    port = b.port
    await b.transport.stop()
    a.transport.dial("h2", f"127.0.0.1:{port}")
    began_s = time.process_time()
    await asyncio.sleep(0.3)
    assert time.process_time() - began_s < 0.2, "retries sleep"
    c = Host("h2", "h1", is_dialler=False)
    c.port = await c.transport.start(f"127.0.0.1:{port}")
    await until(lambda: a.core.is_established)
    assert not any(isinstance(entry, ReportEnded) for entry in a.log)
    await a.stop()
    await c.stop()
