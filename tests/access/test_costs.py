"""What strangers can cost: they hold connections, send without end and take nothing. Memory and files stay bounded, and others are served."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grpc
import grpc.aio
import httpx
import pytest
from tests.access.served import FILES_MAX
from tests.access.table import KIB, MIB, OTHER_HOST, RPCS
from tests.access.world import OWN_CONNECTION, PATHS, SERVERS, YES, World, call, read_metrics
from tests.integration.processes import LIMIT_S

from snapline.channels.servers import METADATA_BYTES_MAX, RECEIVE_BYTES_MAX, STREAMS_MAX
from snapline.telemetry.health import ALIVE, is_serving

MEMORY_MAX = 32 * MIB
"""That one attack may cost, at any moment of it."""

LARGE_MEMORY_MAX = 64 * MIB
"""Of 96 MiB at once from who may call: they are read one after the other, and what is freed stays with the process for a while."""

FILES_OF_PORT = FILES_MAX // 2
"""A port takes no more connections: half of the files that its process may have open."""

OTHER_FILES = 20
"""What else the process opens for a moment."""

ATTACKERS, ATTACK_S = 260, 1.0
"""Connections, above `FILES_OF_PORT`; and how long they stay."""

SERVED_S_MAX = 8.0
"""For an honest caller; some milliseconds where the machine has nothing else to do."""

LOOK_S = 0.1


def memory(pid: int, field: str) -> int:
    """In bytes: "VmRSS" now, "VmHWM" at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def files_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def under_attack(
    world: World, attack: Awaitable[None], honest: Callable[[], Awaitable[None]], memory_max: int = MEMORY_MAX
) -> None:
    """Attack, while an honest caller asks again and again: the process must not grow, and the caller not wait."""
    await honest()
    Path(f"/proc/{world.pid}/clear_refs").write_text("5")  # the maximum begins anew
    memory_before, files_before, files_most = memory(world.pid, "VmRSS"), files_of(world.pid), 0
    attacking = asyncio.ensure_future(attack)
    is_over = False
    while not is_over:
        is_over, begun_s = attacking.done(), time.monotonic()
        await honest()
        waited_s = time.monotonic() - begun_s
        assert waited_s < SERVED_S_MAX, f"an honest caller has waited {waited_s:.1f} s"
        files_most = max(files_most, files_of(world.pid))
        await asyncio.sleep(LOOK_S)
    await attacking
    paid, files = memory(world.pid, "VmHWM") - memory_before, files_most - files_before
    print(f"{paid / MIB:.1f} MiB, {files} files")
    assert paid <= memory_max
    assert files <= FILES_OF_PORT + OTHER_FILES


# ---- connections ------------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What a stranger says at once, and then again and again; it reads nothing."""

    first: bytes = b""
    then: bytes = b""


async def hold(address: str, each: tuple[Said, ...]) -> None:
    """`ATTACKERS` connections, which say one of these each."""

    async def one(said: Said) -> None:
        with contextlib.suppress(OSError):
            host, _, port = address.removeprefix("http://").rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port), limit=1)
            writer.write(said.first)
            until_s = time.monotonic() + ATTACK_S
            while time.monotonic() < until_s and not writer.is_closing():
                await asyncio.sleep(ATTACK_S / 10)
                writer.write(said.then)
            writer.transport.abort()

    await asyncio.gather(*(one(each[number % len(each)]) for number in range(ATTACKERS)))


CLIENT_HELLO = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03"
"""The head of one that says that 16 KiB follow."""

TO_TLS = (Said(), Said(CLIENT_HELLO, b"x"), Said(b"x" * MIB))

HEAD = b" HTTP/1.1\r\nHost: localhost\r\n"
GET, SIGN_IN, GIVE = b"GET /health" + HEAD, b"POST /sign-in" + HEAD, b"POST /agents/a/Paid" + HEAD
TO_HTTP = (
    Said(),
    Said(GET + b"X: ", b"x" * 1000),
    Said(GET + b"X: " + b"x" * MIB),
    Said((GET + b"\r\n") * 5000),
    Said(SIGN_IN + b"Content-Length: 99999999\r\n\r\n", b"x" * MIB),
    Said(GIVE + b"Transfer-Encoding: chunked\r\n\r\n", b"8000\r\n" + b"x" * 0x8000 + b"\r\n"),
)
"""Nothing; a head that drips, or is too long; answers that nobody takes; bodies that never end."""


async def ask_health(channel: grpc.aio.Channel) -> None:
    """As somebody who was there before."""
    assert await call(channel, "Health/Check") == YES


async def get_health(address: str) -> None:
    """As somebody who comes now."""
    async with httpx.AsyncClient(base_url=address, timeout=LIMIT_S) as http:
        assert (await http.get("/health")).status_code == 200


async def until_metrics_are_read(world: World, caller: str) -> None:
    """As somebody who comes now; many others may come before it is served."""
    while await read_metrics(world, world.callers[caller], "h2") != 200:
        pass


@pytest.mark.parametrize("server", SERVERS)
async def test_strangers_at_a_port_of_a_fleet(secured: World, server: str) -> None:
    async with secured.channel(secured.callers["viewer"], server) as channel:
        await under_attack(secured, hold(secured.places[server], TO_TLS), partial(ask_health, channel))


@pytest.mark.parametrize("name", ["gateway", "view of operator"])
async def test_strangers_at_a_gateway_or_view(secured: World, name: str) -> None:
    place = secured.places[name]
    await under_attack(secured, hold(place, TO_HTTP), partial(get_health, place))


async def test_strangers_at_the_metrics_of_a_process(secured: World, plain: World) -> None:
    for world, caller, said in ((secured, "viewer", TO_TLS), (plain, "plaintext", TO_HTTP)):
        attack = hold(world.places["metrics h2"], said)
        await under_attack(world, attack, partial(until_metrics_are_read, world, caller))


async def test_strangers_cannot_take_all_places_where_health_is_asked(secured: World) -> None:
    """A supervisor would end the process."""
    place = secured.places["health c1"]
    async with grpc.aio.insecure_channel(place, options=OWN_CONNECTION) as channel:
        for _ in range(STREAMS_MAX):
            watching: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(PATHS["Health/Watch"])()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await watching.write(b"\x0a\x05alive")
                await watching.read()
        assert await is_serving(place, ALIVE, LIMIT_S)


# ---- messages ---------------------------------------------------------------------------------------------------------


async def throw(channel: grpc.aio.Channel, rpc: str, count: int, size: int) -> None:
    """So many calls at once with messages of this size, as streams: they may be refused before all of it is there."""

    async def one() -> None:
        stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(PATHS[rpc])(timeout=LIMIT_S)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await stream.write(b"\x0a\x00" * (size // 2))
            await stream.read()
        stream.cancel()

    await asyncio.gather(*(one() for _ in range(count)))


MANY, LARGE = (8, RECEIVE_BYTES_MAX - KIB), (6, 16 * MIB - KIB)
"""Messages at once, and bytes of each: as large as a server takes, and larger. Of empty names, which take most when they are parsed."""

ATTACKS = [
    pytest.param("no role", ("RecoveryLine", "Open"), id="no role"),
    pytest.param("no role", ("Attend", "Backup", "Offer", "Show"), id="no role, more", marks=pytest.mark.slow),
    pytest.param(OTHER_HOST, ("Attend", "Open"), id="host", marks=pytest.mark.slow),
    pytest.param("viewer", ("RecoveryLine",), id="viewer", marks=pytest.mark.slow),
    pytest.param("client", ("Offer",), id="client", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "rpcs"), ATTACKS)
async def test_large_messages_are_read_one_by_one_or_not_at_all(
    secured: World, name: str, rpcs: tuple[str, ...]
) -> None:
    """Who has no role is not read; who has one is read one message at a time until it has said who it is."""
    for rpc in (rpc for rpc in RPCS if rpc.endswith(rpcs)):
        async with (
            secured.channel(secured.callers[name], RPCS[rpc].at) as attacking,
            secured.channel(secured.callers["operator"], RPCS[rpc].at) as channel,
        ):
            for bombs in (MANY, LARGE):
                most = LARGE_MEMORY_MAX if bombs is LARGE and name != "no role" else MEMORY_MAX
                await under_attack(secured, throw(attacking, rpc, *bombs), partial(ask_health, channel), most)


async def test_large_metadata_is_refused(plain: World) -> None:
    async with plain.channel(plain.callers["plaintext"], "coordinator") as channel:
        status: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PATHS["Coordinator/Status"])
        with pytest.raises(grpc.aio.AioRpcError, match="exceeds hard limit") as refused:
            await status(b"", metadata=(("x", "x" * METADATA_BYTES_MAX),))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
