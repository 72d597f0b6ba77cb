"""A host's stream to its coordinator survives whatever the coordinator's end does."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from tests.security.certificates import Authority

from snapline.agent_runtime.host.coordinator_session import Session
from snapline.errors import AuthenticationError
from snapline.messages.coordinator_client import LEADER_KEY
from snapline.messages.host_messages import Directive, Finish, Leave
from snapline.messages.wire import encode_directive
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc
from snapline.security.transport import Security


class Hangup(coordinator_pb2_grpc.CoordinatorServicer):
    """Ends every stream right after its first message, with an error or without."""

    def __init__(self, *, with_error: bool) -> None:
        self.with_error = with_error
        self.streams = 0

    async def Attend(
        self,
        requests: AsyncIterator[pb.HostMessage],
        context: "grpc.aio.ServicerContext[pb.HostMessage, pb.Directive]",
    ) -> None:
        await anext(requests)
        self.streams += 1
        if self.with_error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the coordinator dies")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("with_error", [False, True])
async def test_a_stream_that_ends_while_much_is_said_is_opened_again(with_error: bool) -> None:
    """What is written to a finished call raises InvalidStateError, no RpcError: that once ended the whole host."""
    server = grpc.aio.server()
    hangup = Hangup(with_error=with_error)
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(hangup, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    session = Session(f"127.0.0.1:{port}", Security.loopback(), Leave, lambda directive: None, lambda text: None)
    running = asyncio.create_task(session.run())
    try:
        async with asyncio.timeout(40):
            while hangup.streams < 6 and not running.done():
                session.send(Leave())
                await asyncio.sleep(0)
        assert not running.done(), running.exception()
    finally:
        await session.leave("the test ends", wait_s=0)  # gRPC may swallow a cancellation; this it cannot
        running.cancel()
        await asyncio.wait([running], timeout=20)
        await server.stop(None)


class Finishing(coordinator_pb2_grpc.CoordinatorServicer):
    """Says one word on each stream, and ends it."""

    async def Attend(
        self,
        requests: AsyncIterator[pb.HostMessage],
        context: "grpc.aio.ServicerContext[pb.HostMessage, pb.Directive]",
    ) -> AsyncIterator[pb.Directive]:
        await anext(requests)
        yield pb.Directive.FromString(encode_directive(Finish(0, "stopped", "")))


async def served(security: Security, port: int = 0) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(Finishing(), server)  # type: ignore[no-untyped-call]  # generated
    port = security.add_port(server, f"127.0.0.1:{port}")
    await server.start()
    return server, port


def authorities(folder: Path) -> tuple[Security, Security, Security]:
    """A coordinator's and a host's certificate of one authority, and a coordinator's of another."""
    own, foreign = Authority(folder, "own"), Authority(folder, "foreign")
    coordinator = own.issue("c", role="coordinator", name="coordinator.coordinator.snapline").security()
    stranger = foreign.issue("x", role="coordinator", name="coordinator.coordinator.snapline").security()
    return coordinator, own.issue("h1").security(), stranger


@pytest.mark.timeout(60)
async def test_a_host_that_nobody_ever_trusted_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapline.security.transport.TRUST_WAIT_S", 0.5)
    _, host, stranger = authorities(tmp_path)
    server, port = await served(stranger)
    warned: list[str] = []
    session = Session(f"127.0.0.1:{port}", host, Leave, lambda directive: None, warned.append)
    with pytest.raises(
        AuthenticationError, match=r"do not trust each other \(its certificate is not trusted here: .* --tls-ca"
    ):
        await session.run()
    (said,) = warned
    assert said.endswith("trying on, as certificates may be being renewed")
    await server.stop(None)


@pytest.mark.timeout(60)
async def test_a_host_that_was_trusted_waits_for_the_end_of_a_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes: its agents are there, and others wait for them."""
    monkeypatch.setattr("snapline.security.transport.TRUST_WAIT_S", 0.2)
    coordinator, host, stranger = authorities(tmp_path)
    server, port = await served(coordinator)
    received: asyncio.Queue[Directive] = asyncio.Queue()
    warned: asyncio.Queue[str] = asyncio.Queue()
    session = Session(f"127.0.0.1:{port}", host, Leave, received.put_nowait, warned.put_nowait)
    running = asyncio.create_task(session.run())
    assert isinstance(await received.get(), Finish)
    await server.stop(None)
    assert "no coordinator at" in await warned.get(), "first nobody is there, then a stranger"
    server, _ = await served(stranger, port)
    while "do not trust each other" not in await warned.get():
        pass
    await asyncio.sleep(1)  # five times what ends a stranger
    assert not running.done(), running.exception()
    await server.stop(None)
    while not received.empty():
        received.get_nowait()
    server, _ = await served(coordinator, port)
    assert isinstance(await received.get(), Finish)
    session.expect_end()
    running.cancel()
    await asyncio.wait([running], timeout=20)
    await server.stop(None)


class Naming(Hangup):
    """Leads nothing, and names somebody who cannot be reached from here."""

    async def Attend(
        self,
        requests: AsyncIterator[pb.HostMessage],
        context: "grpc.aio.ServicerContext[pb.HostMessage, pb.Directive]",
    ) -> None:
        context.set_trailing_metadata(((LEADER_KEY, "127.0.0.1:9"),))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "another replica leads")


@pytest.mark.timeout(60)
async def test_a_host_finds_the_leader_at_the_address_that_it_was_given() -> None:
    """Replicas may know one another by addresses that lead nowhere from its machine."""
    follower = grpc.aio.server()
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(Naming(with_error=True), follower)  # type: ignore[no-untyped-call]  # generated
    ports = [follower.add_insecure_port("127.0.0.1:0") for _ in range(2)]
    await follower.start()
    leader, port = await served(Security.loopback())
    addresses = ",".join([f"127.0.0.1:{each}" for each in (*ports, port)])
    received: asyncio.Queue[Directive] = asyncio.Queue()
    session = Session(addresses, Security.loopback(), Leave, received.put_nowait, lambda text: None)
    running = asyncio.create_task(session.run())
    try:
        assert isinstance(await asyncio.wait_for(received.get(), 20), Finish)
    finally:
        await session.leave("the test ends", wait_s=0)
        running.cancel()
        await asyncio.wait([running], timeout=20)
        for server in (leader, follower):
            await server.stop(None)
