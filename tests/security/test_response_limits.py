"""Who asks and does not read costs a bounded number of calls and bytes, and stands in nobody else's way afterwards."""

import asyncio
import socket
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from tests.integration.flood import calls

from snapline.channels.servers import server_options
from snapline.errors import SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc
from snapline.security import rpc_authorization as under_way
from snapline.security.rpc_authorization import RpcGuard
from snapline.security.transport import Security

STATUS = "/snapline.protos.v1.Coordinator/Status"
ANSWER_BYTES = 1_000_000


class Large(coordinator_pb2_grpc.CoordinatorServicer):
    """Has much to say."""

    def __init__(self) -> None:
        self.asked = 0

    async def Status(self, request: pb.StatusRequest, context: grpc.aio.ServicerContext) -> pb.FleetStatus:  # type: ignore[type-arg]
        self.asked += 1
        return pb.FleetStatus(fleet="x" * ANSWER_BYTES)


@pytest.fixture
async def served() -> AsyncIterator[tuple[Large, int]]:
    large = Large()
    # Our silent peers answer no pings either: with those their connections are closed after 2 s, on a busy machine before we are refused.
    options = [(key, value) for key, value in server_options() if "ping" not in key and "keepalive" not in key]
    server = grpc.aio.server(options=options, interceptors=(RpcGuard(Security.loopback()),))
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(large, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield large, port
    await server.stop(None)


async def asks_and_does_not_read(port: int) -> socket.socket:
    """64 calls on one connection, whose window is empty."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(connection, calls(STATUS))
    return connection


async def until_refused(port: int) -> str:
    client = CoordinatorClient(f"127.0.0.1:{port}")
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    await client.status()
                except SnaplineError as error:
                    return str(error)
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("limit", "value", "says", "most"),
    [
        ("UNREAD_BYTES_MAX", 40 * ANSWER_BYTES, "answers to this caller have not been taken", 64),
        ("CALLS_MAX", 64, "64 calls of this caller are under way", 64),
    ],
)
async def test_what_is_asked_for_and_not_read_is_bounded_and_free_again(
    served: tuple[Large, int], limit: str, value: int, says: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_way, limit, value)
    large, port = served
    silent = [await asks_and_does_not_read(port)]
    assert says in await until_refused(port)
    before = large.asked
    silent += [await asks_and_does_not_read(port) for _ in range(4)]
    assert says in await until_refused(port)
    # One may take the place that our own last call still had when we were refused.
    assert large.asked <= before + 1, "what is refused is not even looked up"
    for connection in silent:
        connection.close()
    client = CoordinatorClient(f"127.0.0.1:{port}")
    async with asyncio.timeout(60):
        while True:
            try:
                assert len((await client.status()).fleet) == ANSWER_BYTES
                break
            except SnaplineError:
                await asyncio.sleep(0.05)
    await client.close()


async def test_whoever_reads_may_ask_for_ever(served: tuple[Large, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_way, "UNREAD_BYTES_MAX", 10 * ANSWER_BYTES)
    monkeypatch.setattr(under_way, "CALLS_MAX", 8)
    large, port = served
    client = CoordinatorClient(f"127.0.0.1:{port}")
    for _ in range(25):
        await asyncio.gather(*[client.status() for _ in range(4)])
    assert large.asked == 100
    await client.close()
