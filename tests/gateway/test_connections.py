"""Connections of strangers: half a request, or an answer that nobody takes, costs a bounded time and a bounded space, and keeps nobody out."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from snapline.gateway import http_server
from snapline.gateway.http_server import CONNECTIONS_MAX, HEAD_BYTES_MAX, listening, server_of

LIMIT_S = 20.0
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
HALF_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Reads a request and answers it."""
    while (await receive()).get("more_body"):
        pass
    await answer(send)


async def answer(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def serving(app: Any = hello) -> AsyncIterator[tuple[str, int]]:
    server = server_of(app)
    with listening("127.0.0.1", 0) as server_socket:
        task = asyncio.create_task(server.serve([server_socket]))
        while not server.started:
            await asyncio.sleep(0.01)
        yield server_socket.getsockname()[:2]
        server.should_exit = server.force_exit = True
        async with asyncio.timeout(LIMIT_S):
            await task


@asynccontextmanager
async def connection(place: tuple[str, int], said: bytes = b"") -> AsyncIterator[tuple[Any, Any]]:
    reader, writer = await asyncio.open_connection(*place)
    writer.write(said)
    try:
        yield reader, writer
    finally:
        writer.close()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Up to the end of the connection, or that it is reset."""
    async with asyncio.timeout(LIMIT_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(http_server, "REQUEST_S_MAX", 0.3)
    monkeypatch.setattr(http_server, "READER_S_MAX", 0.3)
    yield


@pytest.mark.parametrize("said", [b"", b"G", HALF, HALF_BODY])
@pytest.mark.usefixtures("hurry")
async def test_a_request_that_does_not_end_is_cut(said: bytes) -> None:
    async with serving() as place, connection(place, said) as (reader, _):
        assert await rest_of(reader) == b""


@pytest.mark.usefixtures("hurry")
async def test_a_request_that_drips_is_cut() -> None:
    async with serving() as place, connection(place, HALF) as (reader, writer):
        rest = asyncio.create_task(rest_of(reader))
        while not rest.done():
            writer.write(b"X")
            await asyncio.sleep(0.05)
        assert rest.result() == b""


@pytest.mark.parametrize("next_said", [HALF, HALF_BODY])
@pytest.mark.parametrize("is_pipelined", [False, True])
@pytest.mark.usefixtures("hurry")
async def test_the_second_request_of_a_connection_is_cut_too(next_said: bytes, is_pipelined: bool) -> None:
    whole = WHOLE.replace(b"Connection: close\r\n", b"")
    async with serving() as place, connection(place, whole + (next_said if is_pipelined else b"")) as (reader, writer):
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        if not is_pipelined:
            writer.write(next_said)
        assert await rest_of(reader) == b""


@pytest.mark.usefixtures("hurry")
async def test_a_body_that_nobody_reads_ends_with_its_time() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)

    head = HALF_BODY.replace(b"10", b"100000000")
    async with serving(refuse) as place, connection(place, head) as (reader, writer):
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        rest = asyncio.create_task(rest_of(reader))
        while not rest.done():
            writer.write(b"x" * 1000)
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("hurry")
async def test_an_answer_that_takes_long_is_waited_for() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1.0)
        await answer(send)

    async with serving(slow) as place, connection(place, WHOLE) as (reader, _):
        assert (await rest_of(reader)).endswith(b"hello")


@pytest.mark.usefixtures("hurry")
async def test_a_reader_that_takes_nothing_is_cut_and_costs_one_part() -> None:
    sent: list[int] = []
    is_over = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        asking = asyncio.create_task(receive_end(receive, is_over))
        while not is_over.is_set():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            sent.append(65536)
            await asyncio.sleep(0)
        await asking

    async with serving(endless) as place, connection(place, WHOLE) as (_, writer):
        writer.transport.pause_reading()
        async with asyncio.timeout(LIMIT_S):
            await is_over.wait()
        assert sum(sent) < 16 * 1024 * 1024, "what both kernels hold, and one part"


async def receive_end(receive: Any, is_over: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    is_over.set()


@pytest.mark.parametrize("limit", ["CONNECTIONS_MAX", "files_max"])
async def test_many_that_say_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(http_server, limit, 5 if limit == "CONNECTIONS_MAX" else lambda: 10)
    async with serving() as place:
        strangers = [await asyncio.open_connection(*place) for _ in range(5)]
        for _, writer in strangers:
            writer.write(HALF)
        await asyncio.sleep(0.1)
        for first, _ in strangers[:2]:
            async with connection(place, WHOLE) as (reader, _):
                assert (await rest_of(reader)).endswith(b"hello")
            assert await rest_of(first) == b"", "it has waited longest"
            strangers.append(await asyncio.open_connection(*place))
        for _, writer in strangers:
            writer.close()


async def test_half_sent_requests_of_all_connections_take_less_than_32_mib() -> None:
    count = 50
    async with serving() as place:
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            strangers = [await asyncio.open_connection(*place) for _ in range(count)]
            for _, writer in strangers:
                writer.write(HALF + b"X: " + b"x" * (HEAD_BYTES_MAX - 100))
            await asyncio.sleep(0.3)
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert taken / count * CONNECTIONS_MAX < 32 * 1024 * 1024, "with our own side of the connections"
        for _, writer in strangers:
            writer.close()


async def test_a_head_that_never_ends_is_refused() -> None:
    async with serving() as place, connection(place, HALF + b"X: " + b"x" * (2 * HEAD_BYTES_MAX)) as (reader, _):
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 4")
