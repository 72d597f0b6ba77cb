"""Gates between processes of this machine: bytes come late, or not yet, and none is lost but by a reset."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import pytest

from snapline.chaos.executor import SetPath
from snapline.chaos.local_faults import Gates, inode_of

LIMIT_S = 30.0
LATE_S = 0.2

Ends = tuple[Gates, asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """This process is a, and dials b, which sends back what it hears."""
    network = Gates(["a", "b"], lambda: {os.getpid(): "a"}, seed=1)
    await network.start()
    gate = network.gate("b")
    server = await asyncio.start_server(_echo, "127.0.0.1", gate.target)
    host, _, port = gate.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield network, reader, writer
    writer.close()
    await network.stop()
    server.close()


def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def echo() -> None:
        try:
            while data := await reader.read(100):
                writer.write(data)
        except OSError:
            pass
        writer.close()

    writer.__dict__["task"] = asyncio.create_task(echo())


async def answer(ends: Ends, sent: bytes) -> bytes:
    _, reader, writer = ends
    writer.write(sent)
    async with asyncio.timeout(LIMIT_S):
        return await reader.readexactly(len(sent))


async def took_s(ends: Ends) -> float:
    began_s = asyncio.get_running_loop().time()
    assert await answer(ends, b"hello") == b"hello"
    return asyncio.get_running_loop().time() - began_s


@pytest.mark.parametrize(("sender", "receiver"), [("a", "b"), ("b", "a")])
async def test_a_delay_is_of_one_direction(ends: Ends, sender: str, receiver: str) -> None:
    assert await answer(ends, b"hello") == b"hello"
    ends[0].set(SetPath(sender, receiver, least_ns=int(LATE_S * 1e9)))
    assert await took_s(ends) >= LATE_S


async def test_loss_is_a_delay(ends: Ends) -> None:
    ends[0].set(SetPath("a", "b", loss_per_mille=600))
    times_s = [await took_s(ends) for _ in range(6)]
    assert max(times_s) >= LATE_S


@pytest.mark.parametrize(("sender", "receiver"), [("a", "b"), ("b", "a")])
async def test_what_is_sent_into_a_cut_arrives_when_it_heals(ends: Ends, sender: str, receiver: str) -> None:
    network, reader, writer = ends
    network.set(SetPath(sender, receiver, is_blocked=True))
    writer.write(b"hello")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LATE_S):
            await reader.readexactly(5)
    network.set(SetPath(sender, receiver))
    async with asyncio.timeout(LIMIT_S):
        assert await reader.readexactly(5) == b"hello"


async def test_a_cut_is_of_those_two_alone(ends: Ends) -> None:
    ends[0].set(SetPath("c", "b", is_blocked=True))
    ends[0].set(SetPath("b", "c", is_blocked=True))
    assert await answer(ends, b"hello") == b"hello"


@pytest.mark.parametrize("pair", [("a", "b"), ("b", "a"), ("b", "")])
async def test_a_stream_that_breaks_is_reset(ends: Ends, pair: tuple[str, str]) -> None:
    assert await answer(ends, b"hello") == b"hello"
    ends[0].break_streams(*pair)
    with pytest.raises(ConnectionResetError):
        async with asyncio.timeout(LIMIT_S):
            await ends[1].readexactly(1)


async def test_others_streams_stay(ends: Ends) -> None:
    assert await answer(ends, b"hello") == b"hello"
    ends[0].break_streams("a", "c")
    assert await answer(ends, b"again") == b"again"


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0100007F:8001 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 22 1 0 100 0 0 10 0
   2: 0100007F:0050 0100007F:8001 01 00000000:00000000 00:00000000 00000000     0        0 33 1 0 100 0 0 10 0
   3: 0100007F:8002 0100007F:0050 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0 100 0 0 10 0
"""


def test_the_kernels_table_says_which_socket_has_dialled() -> None:
    find: Callable[[int], str] = lambda port: inode_of(TABLE, local=("127.0.0.1", port), remote=("127.0.0.1", 80))
    assert [find(0x8001), find(0x8002), find(0x8003)] == ["22", "", ""]
