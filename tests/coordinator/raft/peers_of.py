"""One end of Raft's streams with a server, for tests: a tick side that writes down what it is told, and raw callers."""

import asyncio
import time
from collections.abc import Callable

import grpc.aio
from pysyncobj.poller import createPoller  # type: ignore[import-untyped]  # the library has no types

from snapline.channels.servers import server_options
from snapline.coordinator.raft.messages import Hello, Message, encode_hello, encode_message
from snapline.coordinator.raft.pysyncobj_adapter import RaftNode
from snapline.coordinator.raft.raft_streams import METHOD, SERVICE, IncomingStream, OutgoingStream, PeerStreams
from snapline.security.dial_back import METHOD as CONFIRM
from snapline.security.dial_back import OutgoingCalls
from snapline.security.transport import Security

CLUSTER = "tests"

OWN_CALLS = OutgoingCalls()
"""Of all ends and raw callers of a test process: whichever peer is asked, at whichever address, answers for all."""


def numbered(number: int, size: int = 0) -> Message:
    return {"type": "apply_command", "command": number.to_bytes(8, "big") + bytes(size)}


def number_of(message: Message) -> int:
    return int.from_bytes(message["command"][:8], "big")


async def until(is_true: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_true():
            await asyncio.sleep(0.005)


class End:
    """`PeerStreams` behind a server. `pump` is its tick: nothing is handled before."""

    def __init__(
        self, name: str, others: list[str], security: Security | None = None, *, boot: int = 1, is_pumped: bool = True
    ) -> None:
        self.name = name
        self.security = security or Security.loopback()
        self.boot = boot
        self.other_names = others
        self.is_pumped = is_pumped
        self.received_from: list[tuple[str, Message]] = []
        self.events: list[str] = []
        self.open: dict[str, OutgoingStream] = {}
        self.port = 0

    async def start(self, addresses: dict[str, str] | None = None, *, port: int = 0, own: str = "") -> "End":
        """Listen, and dial those whose address is given. `own`: where we are by our own list of members."""
        vouching = await self._vouch()
        nodes = [RaftNode(name, (addresses or {}).get(name, vouching)) for name in self.other_names]
        self.streams = PeerStreams(node=self.name, others=nodes, cluster=CLUSTER, security=self.security, address=own)
        self.streams._outgoing_calls = OWN_CALLS
        self._server = grpc.aio.server(options=server_options())
        self.streams.add_to_server(self._server)
        self.port = self.security.add_port(self._server, f"127.0.0.1:{port}")
        await self._server.start()
        dialled = [node for node in nodes if node.id in (addresses or {})]
        self.streams.attach(self, boot=self.boot, log_id="log", nodes=dialled)
        self._pumping = asyncio.create_task(self._keep_pumping())
        return self

    async def _vouch(self) -> str:
        """Where peers that are not dialled are asked whether they call."""
        self._voucher = grpc.aio.server()
        handlers = {CONFIRM: OWN_CALLS.handler()}
        self._voucher.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = self._voucher.add_insecure_port("127.0.0.1:0")
        await self._voucher.start()
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        await self._voucher.stop(None)
        self._pumping.cancel()
        await self.streams.stop()
        await self._server.stop(None)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def numbers(self) -> list[int]:
        return [number_of(message) for _, message in self.received_from]

    async def _keep_pumping(self) -> None:
        while True:
            if self.is_pumped:
                self.pump()
            await asyncio.sleep(0.002)

    def pump(self) -> None:
        for item in self.streams.inbox.take():
            item()

    # The tick side.

    def opened(self, stream: OutgoingStream) -> None:
        self.open[stream.peer] = stream
        self.events.append(f"opened {stream.peer}")

    def closed(self, stream: OutgoingStream) -> None:
        if self.open.get(stream.peer) is stream:
            del self.open[stream.peer]
        self.events.append(f"closed {stream.peer}")

    def received(self, stream: IncomingStream, messages: list[Message], size_bytes: int) -> None:
        if stream.is_live:
            self.received_from += [(stream.peer, message) for message in messages]
        stream.handled(len(messages), size_bytes)


class Raw:
    """A caller that does as it is told. `is_forged`: the peer that it says it is knows nothing of it."""

    def __init__(self, address: str, channel: grpc.aio.Channel | None = None, *, is_forged: bool = False) -> None:
        self._channel = channel or grpc.aio.insecure_channel(address)
        self._own = (OutgoingCalls() if is_forged else OWN_CALLS).new()
        open_stream: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = self._channel.stream_unary(
            f"/{SERVICE}/{METHOD}"
        )
        self.call = open_stream(metadata=self._own.__enter__())

    async def hello(self, node: str, boot: int, stream: int, cluster: str = CLUSTER, log: str = "") -> bool:
        """Say it; returns whether it was accepted."""
        try:
            await self.call.write(encode_hello(Hello(cluster, node, boot, stream, log)))
            metadata = await self.call.initial_metadata()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return metadata is not None and metadata.get("snapline-raft") is not None

    async def write(self, *messages: Message) -> None:
        await self.call.write(b"".join(map(encode_message, messages)))

    async def code(self) -> grpc.StatusCode:
        """How the call ended."""
        return await asyncio.wait_for(self.call.code(), 5.0)

    async def close(self) -> None:
        self._own.__exit__(None, None, None)
        self.call.cancel()
        await self._channel.close()


class FakeNode:
    """What `GrpcTransport` needs of a node."""

    def __init__(self) -> None:
        self._poller = createPoller("auto")
        self._SyncObj__raftLog = self
        self.boot = 1
        self.log_id = "log"
        self.syncs = 0
        self.on_sync: Callable[[], None] = lambda: None

    def sync_journal(self) -> None:
        self.on_sync()
        self.syncs += 1

    def tick(self, timeout_s: float = 0.0) -> None:
        self._poller.poll(timeout_s)

    async def tick_until(self, is_true: Callable[[], bool], timeout_s: float = 5.0) -> None:
        end = time.monotonic() + timeout_s
        while not is_true():
            assert time.monotonic() < end, "timed out"
            self.tick()
            await asyncio.sleep(0.002)
