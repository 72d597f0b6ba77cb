"""Streams between hosts. This module is a thin adapter from `LinkCore` to grpc.aio. It makes no protocol decisions.

Each stream has one writer task and one reader task. Two concurrent writes would break an RPC, so acks and grants go through the same
writer. Items sent during a write are put into the next frame. The reader never pauses, because otherwise acks and markers would wait behind
data. Reads and writes have no timeout, because a timeout would cancel the RPC. Peers that send nothing are handled by the link core.

The dialler keeps one stream to each peer open, and increases the attempt number with each new stream. The acceptor identifies the peer by
its client certificate and its Hello, and ends the peer's previous stream before it answers. Frames are read from and written to a peer's
current stream only. Frames that remain in a previous stream are dropped (G9).

gRPC transports raw bytes, because `snapline.channels.frame` encodes the frames.

This module configures how glibc's allocator treats freed memory. Frames of 256 KiB and more are allocated and freed many times a second. By
default, glibc returns such blocks to the kernel whenever they are freed, and the kernel zeroes them page by page at the next allocation.
Keeping the blocks made a link with 1 KiB messages 25 % faster (18 % less CPU, 2 cores, glibc 2.36). In return, the process retains up to
`KEPT_BYTES_MAX` of freed memory.
"""

import asyncio
import contextlib
import ctypes
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from snapline.channels.frame import Frame, LinkHello, Refused, decode_frame, encode_frame
from snapline.channels.servers import server_options, wait_until_free_async
from snapline.errors import ProtocolError
from snapline.failpoints import failpoint
from snapline.security.dial_back import METHOD as CONFIRM
from snapline.security.dial_back import DialBackClient, OutgoingCalls, RefusalLog
from snapline.security.rpc_authorization import FIRST_BYTES_MAX, HOST, People, RpcGuard
from snapline.security.transport import LINK_AGE_S_MAX, RELOAD_S, Security
from snapline.telemetry.health import begin, tell


class LinkOwner(Protocol):
    """Interface that `LinkTransport` requires from the owner of the link cores, which passes stream events to the cores. All calls are made
    on the event loop, never overlap, and must not block.

    An implementation may call methods of `LinkTransport`.
    """

    def accepted(self, peer: str, hello: LinkHello) -> Refused | None:
        """Decide, on the accepting host, whether to accept a peer's stream. Return a refusal, or None to accept the stream. The call has no
        side effects.

        The result is usually `core.judge(hello)`. If there is no core for the peer, the result is `Refused("… not known here yet",
        is_final=False)`. If the result is None, the transport calls `closed` if the peer had a stream, then `opened`, and then `received`
        with the Hello.
        """

    def dial_requested(self, hello: LinkHello) -> None:
        """Dial a host because that host has requested it and must not dial this host itself. The request is not authenticated. The host's
        address is already known."""

    def opened(self, peer: str, attempt: int) -> bool:
        """Pass `StreamOpened` to the core, because this stream has become the peer's current stream. Return False to close the stream
        without a call of `closed`."""

    def received(self, peer: str, frame: Frame) -> None:
        """Pass `FrameReceived` to the core for a frame that arrived on the current stream."""

    def next_frame(self, peer: str) -> Frame | None:
        """Pass `WriteReady` to the core because the writer is free. Return the frame to write, or None if there is no frame. If the result
        is None, the transport calls this method again when `LinkTransport.wake` is called."""

    def closed(self, peer: str, error: str | None) -> None:
        """Pass `StreamClosed` to the core because the current stream has ended. This method is called once for each call of `opened`.
        `error` is None if this host closed the stream."""

    def address_of(self, peer: str) -> str:
        """Return the address at which the peer listens ("host:port"), or "" if it is unknown."""

    def is_remote(self, peer: str) -> bool:
        """Return whether the peer is known to run on a different machine. Large frames are compressed only between different machines."""


class PeerStream:
    """One stream, which either this host or its peer has opened. When the stream is ended, `is_live` becomes False. Once `is_live` is
    False, no more of the stream's frames are written or passed to the core."""

    __slots__ = (
        "_waiter",
        "attempt",
        "ended",
        "error",
        "is_closing",
        "is_live",
        "is_writing",
        "peer",
        "refusal",
        "start",
    )

    def __init__(self, peer: str, *, start: int, attempt: int) -> None:
        self.peer = peer
        self.start = start
        self.attempt = attempt
        self.is_live = True
        self.is_closing = False
        self.is_writing = False
        self.refusal: Refused | None = None
        self.error: str | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
        self._waiter = None


class DialledPeer:
    """A peer that this host dials, with the peer's address, its gRPC channel and the task that dials it."""

    __slots__ = ("address", "attempt", "channel", "generation", "is_renewing", "peer", "task")

    def __init__(self, peer: str, address: str) -> None:
        self.peer = peer
        self.address = address
        self.attempt = 0
        self.channel: grpc.aio.Channel | None = None
        self.generation = 0
        self.is_renewing = False
        self.task: asyncio.Task[None] | None = None


KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Amount of freed memory in bytes that the process may keep. It is enough for several windows and parts, but little compared with the size
of a Python process."""

_LARGE_BLOCK_BYTES = 32 * 1024 * 1024
"""Blocks smaller than this size in bytes are allocated from the heap, which keeps them when they are freed. This is the largest value that
glibc allows."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory blocks. Return whether glibc accepted the setting. The call is idempotent. If the process uses another C
    library, the call has no effect."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX) and mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES))
    return False


log = logging.getLogger("snapline.channels")

SERVICE = "snapline.protos.v1.Link"
_METHOD = "Open"

CONNECT_S_MAX = 2.0
"""Longest time in seconds to establish a connection, and then to receive the first frame on it. The core waits equally long for a Hello."""

CLOSE_S_MAX = 0.5
"""Longest time in seconds that a closing stream waits for its write in flight to finish. A frozen peer would never read the data."""

RETRY_S_MIN = 0.05
RETRY_S_MAX = 0.5
"""Shortest and longest pause between two dials, in seconds. Failing calls return within 1 ms, so without a pause a lost peer would keep a
whole CPU core busy."""

Handlers = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
"""The RPC handlers of one service, by method name."""

NO_SERVICES: Mapping[str, Handlers] = {}

_AnyContext = grpc.aio.ServicerContext[bytes, bytes]


class LinkTransport:
    """All streams of one host process. Use the transport from one event loop only, because gRPC misbehaves if several event loops of one
    process use it.

    Attributes:
        guard: interceptor that authorizes all RPCs to this host.
        healthy: the gRPC health service.
    """

    def __init__(
        self,
        owner: LinkOwner,
        *,
        host: str,
        security: Security,
        people: People | None = None,
        reload_s: float = RELOAD_S,
    ) -> None:
        self._owner = owner
        self._host = host
        self._security = security
        self.guard = RpcGuard(security, people)
        self.healthy = health.aio.HealthServicer()
        self._callers = DialBackClient(security, service=SERVICE, role=HOST)
        self._own_calls = OutgoingCalls()
        self._complaints = RefusalLog(log)
        self._reload_s = reload_s
        self._server: grpc.aio.Server | None = None
        self._streams: dict[str, PeerStream] = {}
        self._dialled: dict[str, DialledPeer] = {}
        self._attempts: dict[str, int] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._reloading: asyncio.Task[None] | None = None

    async def start(self, listen: str, services: Mapping[str, Handlers] = NO_SERVICES) -> int:
        """Serve links, `services`, health and reflection at `listen` ("host:port", where port 0 selects any free port). Return the port.

        Raises:
            UsageError: If plaintext would be reachable from other machines.
            AddressError: If the address is malformed or belongs to a different machine.
            AddressBusyError: If the port remains in use, or the host name remains unknown.
            ExternalFailureError: If the certificates are unreadable.
        """
        keep_freed_memory()
        server = grpc.aio.server(options=server_options(), interceptors=(self.guard,))
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._serve)
        served: dict[str, Handlers] = {SERVICE: {_METHOD: handler, CONFIRM: self._own_calls.handler()}, **services}
        for name, handlers in served.items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, dict(handlers)),))
        await begin(self.healthy)
        health_pb2_grpc.add_HealthServicer_to_server(self.healthy, server)
        await tell(self.healthy, ("", *served), is_serving=True)
        reflection.enable_server_reflection((*served, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        await wait_until_free_async(listen)
        port = self._security.add_port(server, listen)
        await server.start()
        self._server = server
        if self._security.is_tls:
            self._reloading = asyncio.create_task(self._keep_reloading())
        return port

    def dial(self, peer: str, address: str) -> None:
        """Dial `peer`, and dial it again whenever the stream ends, until `undial` is called. If the peer's address has changed, end the
        stream to the old address.

        Raises:
            UsageError: If unencrypted data would leave this machine.
        """
        self._security.check_dial_address(address)
        known = self._dialled.get(peer)
        if known is not None:
            if known.address == address:
                return
            self.undial(peer)
        dialling = self._dialled[peer] = DialledPeer(peer, address)
        dialling.attempt = self._attempts.get(peer, 0)
        dialling.task = asyncio.create_task(self._keep_dialling(dialling))

    def knock(self, peer: str, address: str, hello: LinkHello) -> None:
        """Send `hello` once to a peer that this host must not dial, to request that the peer dial this host.

        Raises:
            UsageError: If unencrypted data would leave this machine.
        """
        self._security.check_dial_address(address)
        task = asyncio.create_task(self._request_dial(peer, address, hello))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def undial(self, peer: str) -> None:
        """Stop dialling `peer`. If there is a stream to the peer, end the stream. `closed` is then called."""
        dialling = self._dialled.pop(peer, None)
        if dialling is None or dialling.task is None:
            return
        self.close_stream(peer)
        task = asyncio.create_task(self._finish_dialling(dialling))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def wake(self, peer: str) -> None:
        """Wake the peer's writer because there is a frame to write. An unnecessary call is harmless."""
        stream = self._streams.get(peer)
        if stream is not None:
            stream.wake()

    def close_stream(self, peer: str) -> None:
        """End the peer's current stream as soon as the current write has finished. The end of the stream leads to a call of `closed`, and
        the dialling host dials again."""
        stream = self._streams.get(peer)
        if stream is None or stream.is_closing:
            return
        stream.is_closing = True
        loop = asyncio.get_running_loop()
        if stream.is_writing:
            loop.call_later(CLOSE_S_MAX, self._end, stream, None)
        else:
            loop.call_soon(self._end, stream, None)

    def refuse_stream(self, peer: str, reason: str, is_final: bool) -> None:
        """Send the peer a refusal, then end its stream."""
        stream = self._streams.get(peer)
        if stream is None or stream.is_closing:
            return
        stream.refusal = Refused(reason, is_final)
        stream.is_closing = True
        stream.wake()
        asyncio.get_running_loop().call_later(CLOSE_S_MAX, self._end, stream, None)

    async def stop(self) -> None:
        """End all streams and stop the server. `closed` is called for every open stream."""
        if self._reloading is not None:
            self._reloading.cancel()
        for peer in list(self._dialled):
            self.undial(peer)
        for stream in list(self._streams.values()):
            self._end(stream, None)
        if self._endings:
            await asyncio.wait(self._endings, timeout=2 * CLOSE_S_MAX)
        if self._server is not None:
            await self._server.stop(CLOSE_S_MAX)

    # One stream.

    def _begin(self, stream: PeerStream) -> bool:
        """End the peer's previous stream, and make this stream the peer's current stream. Return False if the owner rejects the stream."""
        older = self._streams.get(stream.peer)
        if older is not None:
            self._end(older, f"replaced by attempt {stream.attempt}")
        self._streams[stream.peer] = stream
        if self._owner.opened(stream.peer, stream.attempt):
            return True
        stream.is_live = False
        del self._streams[stream.peer]
        return False

    def _end(self, stream: PeerStream, error: str | None) -> None:
        """End the stream. The stream's frames are ignored from now on, and its tasks end soon afterwards."""
        if not stream.is_live:
            return
        stream.is_live = False
        stream.error = error
        if self._streams.get(stream.peer) is stream:
            del self._streams[stream.peer]
        if not stream.ended.done():
            stream.ended.set_result(None)
        self._owner.closed(stream.peer, error)

    async def _run(
        self, stream: PeerStream, read: Callable[[], Awaitable[Any]], write: Callable[[bytes], Awaitable[Any]]
    ) -> None:
        """Read and write frames until the stream ends for any reason."""
        tasks = {
            asyncio.create_task(self._read_all(stream, read)),
            asyncio.create_task(self._write_all(stream, write)),
        }
        try:
            await asyncio.wait({*tasks, stream.ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._end(stream, "cancelled")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_all(self, stream: PeerStream, read: Callable[[], Awaitable[Any]]) -> None:
        received, peer = self._owner.received, stream.peer
        try:
            while True:
                data = await read()
                if not stream.is_live:
                    return
                if data is grpc.aio.EOF:
                    self._end(stream, "end of stream")
                    return
                if not stream.is_closing:
                    received(peer, decode_frame(data))
        except ProtocolError as error:
            self._end(stream, f"protocol error: {error}")
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            self._end(stream, _reason(error))
        except Exception as error:
            log.exception("reading from %s", peer)
            self._end(stream, f"internal error: {error!r}")

    async def _write_all(self, stream: PeerStream, write: Callable[[bytes], Awaitable[Any]]) -> None:
        next_frame, peer = self._owner.next_frame, stream.peer
        compress = self._owner.is_remote(peer)
        try:
            while stream.is_live:
                stream.is_writing = True
                frame = None if stream.is_closing else next_frame(peer)
                if frame is None:
                    stream.is_writing = False
                    if stream.is_closing:
                        await self._write_refusal(stream, write)
                        return
                    await stream.wait()
                    continue
                failpoint("link.write")
                await write(encode_frame(frame, compress=compress))
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            self._end(stream, _reason(error))
        except Exception as error:
            log.exception("writing to %s", peer)
            self._end(stream, f"internal error: {error!r}")

    async def _write_refusal(self, stream: PeerStream, write: Callable[[bytes], Awaitable[Any]]) -> None:
        if stream.refusal is not None:
            await write(encode_frame(Frame(body=stream.refusal)))
        self._end(stream, None)

    # The accepting side.

    async def _serve(self, _requests: object, context: _AnyContext) -> None:
        hello_frame = await self._read_hello(context)
        if hello_frame is None:
            return
        hello = hello_frame.body
        assert isinstance(hello, LinkHello)
        peer = hello.host
        if hello.attempt == 0:
            if self._security.refusal(context, role=HOST, name=peer) is None:
                self._owner.dial_requested(hello)
            return
        refused = self._judge(hello, context)
        if refused is None and not await self._callers.is_real(context, peer, self._owner.address_of(peer)):
            refused = Refused(
                f"{peer} was asked at its address, and does not say that it makes this call", is_final=False
            )
        refused = refused or self._judge(hello, context)  # the dial-back took some time, so check again
        if refused is not None:
            self._complaints.say(f"a stream of {peer} was refused: {refused.reason}")
            await context.write(encode_frame(Frame(body=refused)))
            return
        stream = PeerStream(peer, start=hello.host_start, attempt=hello.attempt)
        if self._begin(stream):
            self._owner.received(peer, hello_frame)
            await self._run(stream, context.read, context.write)

    async def _read_hello(self, context: _AnyContext) -> Frame | None:
        try:
            data = await self.guard.first_message(context, FIRST_BYTES_MAX, CONNECT_S_MAX)
            if data is None:
                return None
            frame = decode_frame(data)
        except (ProtocolError, grpc.aio.BaseError) as error:
            self._complaints.say(f"a stream of {context.peer()} began wrongly: {error}")
            return None
        return frame if isinstance(frame.body, LinkHello) else None

    def _judge(self, hello: LinkHello, context: _AnyContext) -> Refused | None:
        refusal = self._security.refusal(context, role=HOST, name=hello.host)
        if refusal is not None:
            return Refused(refusal, is_final=True)
        current = self._streams.get(hello.host)
        if current is not None and (hello.host_start, hello.attempt) <= (current.start, current.attempt):
            return Refused(f"attempt {hello.attempt} of {hello.host}: {current.attempt} is newer", is_final=False)
        return self._owner.accepted(hello.host, hello)

    # The dialling side.

    async def _keep_dialling(self, dialling: DialledPeer) -> None:
        retry_s = RETRY_S_MIN
        while True:
            began_s = asyncio.get_running_loop().time()
            try:
                await self._dial_once(dialling)
            except Exception:
                log.exception("dialling %s", dialling.peer)
            if dialling.is_renewing:
                dialling.is_renewing = False
                continue
            has_lasted = asyncio.get_running_loop().time() - began_s > RETRY_S_MAX
            retry_s = RETRY_S_MIN if has_lasted else min(2 * retry_s, RETRY_S_MAX)
            await asyncio.sleep(random.uniform(RETRY_S_MIN, retry_s))

    async def _dial_once(self, dialling: DialledPeer) -> None:
        with self._own_calls.new() as metadata:
            await self._dial(dialling, metadata)

    async def _dial(self, dialling: DialledPeer, metadata: tuple[tuple[str, str], ...]) -> None:
        channel = await self._channel(dialling)
        open_stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{_METHOD}")
        call = open_stream(metadata=metadata)
        try:
            connecting = asyncio.ensure_future(call.wait_for_connection())
            await asyncio.wait({connecting}, timeout=CONNECT_S_MAX)
            if not connecting.done() or connecting.exception() is not None:
                if connecting.done():
                    log.debug("dialling %s at %s: %s", dialling.peer, dialling.address, connecting.exception())
                return
            dialling.attempt += 1
            self._attempts[dialling.peer] = dialling.attempt
            stream = PeerStream(dialling.peer, start=0, attempt=dialling.attempt)
            if not self._begin(stream):
                return
            renewing = asyncio.get_running_loop().call_later(LINK_AGE_S_MAX, self._renew, dialling)
            try:
                await self._run(stream, call.read, call.write)
            finally:
                renewing.cancel()
        finally:
            call.cancel()

    async def _request_dial(self, peer: str, address: str, hello: LinkHello) -> None:
        channel = self._security.open_channel(address, role="host", name=peer)
        open_stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{_METHOD}")
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                call = open_stream()
                await call.write(encode_frame(Frame(body=hello)))
                await call.read()
        except (TimeoutError, grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            log.debug("knocking at %s at %s: %s", peer, address, error)
        finally:
            await channel.close()

    async def _channel(self, dialling: DialledPeer) -> grpc.aio.Channel:
        """Return the gRPC channel for dialling a peer. The same channel is used while dials fail, so that gRPC's backoff grows. The channel
        is replaced when the certificates have changed."""
        if dialling.channel is None or dialling.generation != self._security.generation:
            if dialling.channel is not None:
                await dialling.channel.close()
            dialling.channel = self._security.open_channel(dialling.address, role="host", name=dialling.peer)
            dialling.generation = self._security.generation
        return dialling.channel

    async def _finish_dialling(self, dialling: DialledPeer) -> None:
        assert dialling.task is not None
        stream = self._streams.get(dialling.peer)
        if stream is not None:
            await asyncio.wait({stream.ended}, timeout=2 * CLOSE_S_MAX)
        dialling.task.cancel()
        await asyncio.gather(dialling.task, return_exceptions=True)
        if dialling.channel is not None:
            await dialling.channel.close()

    # Rotation of certificates.

    async def _keep_reloading(self) -> None:
        while True:
            await asyncio.sleep(self._reload_s)
            await asyncio.to_thread(self._security.reload)
            for dialling in self._dialled.values():
                if dialling.generation != self._security.generation:
                    self._renew(dialling)

    def _renew(self, dialling: DialledPeer) -> None:
        """End the stream and dial again immediately, so that the link resumes with the newest certificate."""
        stream = self._streams.get(dialling.peer)
        if stream is not None and not stream.is_closing:
            dialling.is_renewing = True
            dialling.generation = -1
            self.close_stream(dialling.peer)


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
