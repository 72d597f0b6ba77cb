"""A host's stream to its coordinator survives whatever the coordinator's end does."""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from snapline.agent_runtime.host.session import Session
from snapline.channels.security import Security
from snapline.conversation.messages import Leave
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc


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
