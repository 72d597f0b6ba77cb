"""gRPC streams that carry Raft messages between replicas. This module runs on the event loop.

Theory of operation
-------------------
`rpc Replicate(stream RaftBatch) returns (RaftDone)`: each pair of replicas has one stream per direction, on the same port as all other
services. The sender dials. The receiver accepts the stream by sending its initial metadata, and only then does the sender consider the
receiver connected. gRPC preserves the order of messages but never resends them. Messages in flight are lost when their stream breaks, and
Raft resends them.

Before any frame is read, the caller is identified by its certificate, which must have the role `coordinator` and an id in the static list
of members. The caller's hello message must contain the same name as its certificate. Without certificates (on loopback, or with
`--insecure`), the receiver dials back (`security/dial_back.py`): it calls the advertised address of the named replica and asks whether that
replica is the caller. The receiver changes no state before the named replica confirms that it is the caller.

A *session* is the pair (boot, stream). `boot` is a durable count of this replica's starts, and `stream` counts how often it has dialled
since its last start. A newer session of a peer ends the older one, an older session is refused, and no session is used twice. No clock is
involved. Sessions of a peer with a new log are not compared with earlier ones, because a replica that has lost its disk counts from one
again.

*Inbox.* The event loop queues calls for the tick thread, and wakes it through a pipe that the library polls. A producer first appends its
item to the queue. Then, if the inbox is not marked as woken, the producer marks it and writes a byte to the pipe. The tick thread (1)
empties the pipe, (2) clears the mark, and (3) takes the items. Therefore, if a producer finds the inbox marked, the tick thread will still
take its item. A wake-up could be lost if the tick thread cleared the mark after taking the items, or emptied the pipe after clearing the
mark.

Bounds. A batch contains at most 1 MiB or 1,024 messages. While 4,096 messages or 32 MiB from one peer are waiting in the inbox, that
peer's stream is not read. When a stream is not read, first gRPC's window fills up, and then the peer's outbox. A stream is ended when its
outbox exceeds 64 MiB. The outbox limit must exceed the size of the largest dump, which a leader sends without waiting for answers.
"""

import asyncio
import contextlib
import logging
import os
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol

import grpc
import grpc.aio

from snapline.coordinator.raft.messages import MESSAGES_MAX, Hello, Message, decode_batch, encode_hello
from snapline.coordinator.raft.pysyncobj_adapter import RaftNode
from snapline.errors import ProtocolError
from snapline.protos.v1 import raft_pb2
from snapline.security.dial_back import METHOD as CONFIRM
from snapline.security.dial_back import DialBackClient, OutgoingCalls, RefusalLog
from snapline.security.rpc_authorization import FIRST_BYTES_MAX, read_first
from snapline.security.transport import LINK_AGE_S_MAX, Security, transport_mismatch

Item = Callable[[], None]
"""A call to execute on the tick thread."""


class Inbox:
    """Queue of calls for the tick thread. Any thread may add calls. The tick thread executes them in order. The producers must limit the
    size of the queue."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._is_woken = False
        self._is_closed = False
        self._closing = threading.Lock()
        self.descriptor, self._write_end = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write_end, False)

    def put(self, item: Item) -> None:
        """Queue `item` for the tick thread. If the inbox is closed, drop the item."""
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Wake the tick thread, unless it has already been woken."""
        if self._is_woken:
            return
        self._is_woken = True
        # The lock ensures that the descriptor is not closed, and its number reused, before the write.
        with self._closing:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # the pipe is full, so the tick thread will wake anyway
                    os.write(self._write_end, b"w")

    def take(self) -> list[Item]:
        """Remove and return all items. This method runs on the tick thread."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)
        self._is_woken = False
        items: list[Item] = []
        # Only the items present now are taken, because an endless producer must not delay the ticks.
        for _ in range(len(self._items)):
            items.append(self._items.popleft())
        return items

    def close(self) -> None:
        """Drop all items, and all items that are added later. A repeated call has no effect."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                os.close(self.descriptor)
                os.close(self._write_end)
        self._items.clear()


ROLE = "coordinator"
"""Role in the certificates of coordinator replicas."""


class DialledChannel:
    """The gRPC channel to one peer. The channel is kept while dials fail, so that gRPC's backoff grows. The channel is replaced when
    certificates change."""

    def __init__(self, security: Security, node: RaftNode) -> None:
        self._security = security
        self._node = node
        self._channel: grpc.aio.Channel | None = None
        self._generation = 0
        self._made_s = 0.0

    @property
    def is_old(self) -> bool:
        """Return whether the channel must be replaced, because its certificate was renewed or it has reached its maximum age."""
        age_s = asyncio.get_running_loop().time() - self._made_s
        return self._generation != self._security.generation or age_s > LINK_AGE_S_MAX

    async def fresh(self) -> grpc.aio.Channel:
        if self._channel is None or self.is_old:
            await self.close()
            self._channel = self._security.open_channel(self._node.address, role=ROLE, name=self._node.id)
            self._generation = self._security.generation
            self._made_s = asyncio.get_running_loop().time()
        return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


log = logging.getLogger("snapline.coordinator.raft")

SERVICE = raft_pb2.DESCRIPTOR.services_by_name["Raft"].full_name
METHOD = "Replicate"

BATCH_BYTES_MAX = 1024 * 1024
"""Size, in bytes, at which a batch ends. One more message still fits into the receiver's limit."""

INBOX_MESSAGES_MAX = 4096
INBOX_BYTES_MAX = 32 * 1024 * 1024
"""Limits, in messages and bytes, on one peer's messages that wait for the tick thread. While either limit is exceeded, the peer's stream is
not read. The limits leave room for several batches of a dump."""

OUTBOX_BYTES_MAX = 64 * 1024 * 1024
"""Largest number of bytes waiting for one peer. If the limit is exceeded, the stream is ended. The limit exceeds the largest state (16 MiB)
with its log."""

CONNECT_S_MAX = 2.0
"""Time limit, in seconds, for connecting and for the first batch on the connection. The limit equals the longest election time-out."""

RETRY_S_MIN, RETRY_S_MAX = 0.05, 0.5
"""Shortest and longest time, in seconds, between dials. The longest is half the shortest election time-out, so that a returning replica is
connected before it starts an election."""

LOGGED_REFUSALS_MAX = 100
"""Number of refusal reasons that are remembered. A remembered reason is logged once and not at every dial."""

ADDRESS_MAX = 300
"""Largest length, in characters, of a peer's address in a message."""

TRANSPORT_CHECK_S = 0.5
"""How often, in seconds, this replica checks whether a replica that has never accepted a stream differs from it in its use of TLS."""

RENEWAL_CHECK_S = 1.0
"""How often, in seconds, a stream checks whether its certificate was replaced."""

_ACCEPTED = ("snapline-raft", "accepted")
_Context = grpc.aio.ServicerContext[bytes, bytes]


class TickSide(Protocol):
    """Interface of the transport as used by `PeerStreams`: it receives stream events through the inbox."""

    def opened(self, stream: "OutgoingStream") -> None: ...
    def closed(self, stream: "OutgoingStream") -> None: ...
    def received(self, stream: "IncomingStream", messages: list[Message], size_bytes: int) -> None: ...


class OutgoingStream:
    """The replica's stream to one peer, with an outbox that the tick thread fills and the event loop empties.

    The tick thread counts the bytes that it adds, and the event loop counts the bytes that it removes. The difference between the two
    counts is the size of the outbox.
    """

    def __init__(self, peer: str, session: tuple[int, int], loop: asyncio.AbstractEventLoop) -> None:
        self.peer = peer
        self.session = session
        self.is_live = True
        self.ended: asyncio.Future[str] = loop.create_future()
        self._loop = loop
        self._pieces: deque[bytes] = deque()
        self._pushed_bytes = 0
        self._taken_bytes = 0
        self._is_signalled = False
        self._waiter = asyncio.Event()

    @property
    def waiting_bytes(self) -> int:
        """Return the size of the outbox, in bytes."""
        return self._pushed_bytes - self._taken_bytes

    def push(self, piece: bytes) -> bool:
        """Queue a piece. Return False if the outbox is full. This method runs on the tick thread."""
        if self.waiting_bytes + len(piece) > OUTBOX_BYTES_MAX:
            return False
        self._pieces.append(piece)
        self._pushed_bytes += len(piece)
        if not self._is_signalled:
            # One signal serves all pieces pushed until the loop runs, which clears the flag before it takes the pieces.
            self._is_signalled = True
            call_soon(self._loop, self._wake)
        return True

    async def take(self) -> bytes:
        """Wait for the next batch and return it. This method runs on the event loop."""
        while not self._pieces:
            self._waiter.clear()
            await self._waiter.wait()
        taken: list[bytes] = []
        size = 0
        while self._pieces and size < BATCH_BYTES_MAX and len(taken) < MESSAGES_MAX:
            taken.append(self._pieces.popleft())
            size += len(taken[-1])
        self._taken_bytes += size
        return b"".join(taken)

    def end(self, why: str) -> None:
        """Mark the stream as ended, with the reason. This method runs on the event loop. A repeated call has no effect."""
        self.is_live = False
        self._pieces.clear()
        if not self.ended.done():
            self.ended.set_result(why)

    def _wake(self) -> None:
        self._is_signalled = False
        self._waiter.set()


class IncomingStream:
    """A peer's stream to this replica, with counts of the messages that are waiting for the tick thread."""

    def __init__(self, peer: str, session: tuple[int, int], loop: asyncio.AbstractEventLoop) -> None:
        self.peer = peer
        self.session = session
        self.is_live = True
        self.ended: asyncio.Future[str] = loop.create_future()
        self._loop = loop
        self._arrived = [0, 0]
        self._handled = [0, 0]
        self._is_full = False
        self._room = asyncio.Event()

    @property
    def waiting(self) -> tuple[int, int]:
        """Return the number and total size, in bytes, of the messages that are waiting for the tick thread."""
        return self._arrived[0] - self._handled[0], self._arrived[1] - self._handled[1]

    def arrived(self, messages: int, size_bytes: int) -> None:
        """Count messages that have been added to the inbox. This method runs on the event loop."""
        self._arrived[0] += messages
        self._arrived[1] += size_bytes

    def handled(self, messages: int, size_bytes: int) -> None:
        """Count messages that the tick thread has handled. This method runs on the tick thread."""
        self._handled[0] += messages
        self._handled[1] += size_bytes
        if self._is_full and self._has_room():
            self._is_full = False
            call_soon(self._loop, self._room.set)

    async def room(self) -> None:
        """Wait until the inbox has room for more messages from this stream. This method runs on the event loop."""
        while not self._has_room():
            self._room.clear()
            self._is_full = True
            if (
                self._has_room()
            ):  # messages were handled between the two lines above, before the tick thread saw the flag
                break
            await self._room.wait()

    def end(self, why: str) -> None:
        """Mark the stream as ended, with the reason. This method runs on the event loop. A repeated call has no effect."""
        self.is_live = False
        if not self.ended.done():
            self.ended.set_result(why)

    def _has_room(self) -> bool:
        messages, size_bytes = self.waiting
        return messages < INBOX_MESSAGES_MAX and size_bytes < INBOX_BYTES_MAX


class Refusals:
    """Reasons why other replicas refuse this replica's streams.

    Attributes:
        accepted: replicas that have accepted a stream before, so a later refusal by them may be temporary.
        denials: for each replica, why it permanently refused this replica's last stream; "" if it did not.
        other_transports: for each replica, a message if it and this replica differ in their use of TLS; "" if they do not.
    """

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.denials: dict[str, str] = {}
        self.other_transports: dict[str, str] = {}

    def final(self) -> dict[str, str]:
        """Return the replicas that have never accepted a stream and refuse them permanently, each with the reason."""
        reasons = {**self.other_transports, **{peer: why for peer, why in self.denials.items() if why}}
        return {peer: why for peer, why in reasons.items() if why and peer not in self.accepted}


class PeerStreams:
    """All Raft streams of one replica. Methods run on the event loop unless their docstrings name the tick thread.

    Attributes:
        inbox: queue of calls for the tick thread.
        opened: number of this replica's streams that peers have accepted so far.
        refused: number of peers' streams that this replica has refused so far.
        refusals: reasons why peers refuse this replica's streams.
    """

    def __init__(
        self, *, node: str, others: Iterable[RaftNode], cluster: str, security: Security, address: str = ""
    ) -> None:
        """Configure the streams. `address` is this replica's address in its own list of members. No peer is dialled before `attach` is
        called."""
        self.inbox = Inbox()
        self.opened = 0
        self.refused = 0
        self.refusals = Refusals()
        self._node = node
        self._others = {other.id: other for other in others}
        self._hello = Hello(cluster, node, 0, 0, "", address)
        self._security = security
        self._loop = asyncio.get_running_loop()
        self._tick_side: TickSide | None = None
        self._incoming: dict[str, IncomingStream] = {}
        self._outgoing: dict[str, OutgoingStream] = {}
        self._sessions: dict[str, Hello] = {}
        """Peer → hello of its newest session with this replica."""
        self._callers = DialBackClient(security, service=SERVICE, role=ROLE)
        self._outgoing_calls = OutgoingCalls()
        self._dialling: list[asyncio.Task[None]] = []
        self._complaints = RefusalLog(log)
        self._complained: set[str] = set()
        self._is_stopped = False

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Accept streams on a server that has not been started yet."""
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(self._serve)
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            METHOD: handler,
            CONFIRM: self._outgoing_calls.handler(),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    # ---- for the tick thread ----------------------------------------------------------------------------------------

    def attach(self, tick_side: TickSide, *, boot: int, log_id: str, nodes: list[RaftNode]) -> None:
        """Start to dial peers and to accept streams. This method runs on the tick thread."""
        self._tick_side = tick_side
        call_soon(self._loop, partial(self._begin, self._hello._replace(boot=boot, log=log_id), nodes))

    def detach(self) -> None:
        """End all streams, because the node is being destroyed. This method runs on the tick thread."""
        call_soon(self._loop, self._shut)

    def end(self, stream: OutgoingStream, why: str) -> None:
        """End a stream. A peer whose stream has ended is then dialled again. This method runs on the tick thread."""
        call_soon(self._loop, partial(stream.end, why))

    # ---- on the loop ------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End all streams, and wait until they have ended."""
        self._shut()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        self.inbox.close()

    def cut(self, peer: str) -> None:
        """End the streams from and to a peer, to simulate a broken connection. This method is for tests and fault injection only."""
        for stream in (self._incoming.get(peer), self._outgoing.get(peer)):
            if stream is not None:
                stream.end("cut")

    def _begin(self, hello: Hello, nodes: list[RaftNode]) -> None:
        if not self._is_stopped:
            self._dialling = [asyncio.create_task(self._keep_dialling(node, hello)) for node in nodes]
            self._dialling += [asyncio.create_task(self._watch_transport(node)) for node in nodes]

    def _shut(self) -> None:
        self._is_stopped = True
        streams: list[IncomingStream | OutgoingStream] = [*self._incoming.values(), *self._outgoing.values()]
        for stream in streams:
            stream.end("this replica stops")
        for task in self._dialling:
            task.cancel()

    def _post(self, name: str, *arguments: object) -> None:
        if self._tick_side is not None:
            self.inbox.put(partial(getattr(self._tick_side, name), *arguments))

    # ---- accepting --------------------------------------------------------------------------------------------------

    async def _serve(self, _requests: object, context: _Context) -> bytes:
        refusal = self._certificate_refusal(context)
        if refusal is not None:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, refusal)
        hello = await self._read_hello(context)
        if isinstance(hello, str):
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, hello)
        assert isinstance(hello, Hello)
        refusal = self._disagreement(context, hello)
        if refusal is not None:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, refusal)
        if self._tick_side is None or self._is_stopped:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"replica {self._node} is not ready yet")
        await self._check_session(hello, context)
        if not await self._callers.is_real(context, hello.node, self._others[hello.node].address):
            reason = f"{hello.node} was asked at its address, and does not say that it calls"
            await self._refuse(context, grpc.StatusCode.UNAVAILABLE, reason)
        await self._check_session(hello, context)  # a newer session may have begun during the dial-back
        await self._run_incoming(hello, context)
        return b""

    async def _check_session(self, hello: Hello, context: _Context) -> None:
        newest = self._sessions.get(hello.node)
        if newest is not None and newest.log == hello.log and hello.session <= newest.session:
            await self._refuse(context, grpc.StatusCode.ABORTED, f"session {hello.session} was superseded")

    def _certificate_refusal(self, context: _Context) -> str | None:
        """Return why the caller's certificate is rejected, or None if it is accepted. The certificate is checked before any frame is
        read."""
        if not self._security.is_tls:
            return None
        identity = self._security.identity(context)
        if identity is None:
            return "the certificate names nobody of this fleet"
        if identity.role != ROLE or identity.name not in self._others:
            return f"{identity.role} {identity.name} is no other replica of coordinator {self._node}"
        return None

    def _disagreement(self, context: _Context, hello: Hello) -> str | None:
        if hello.cluster != self._hello.cluster:
            return f"replica {hello.node} belongs to cluster {hello.cluster}, this one to {self._hello.cluster}"
        if hello.node not in self._others:
            return f"{hello.node} is no other replica of coordinator {self._node}: start all replicas with the same --peers"
        known_address = self._others[hello.node].address
        if hello.address not in ("", known_address) and hello.node not in self._outgoing:
            return (
                f"replica {hello.node} has moved: it is at {hello.address[:ADDRESS_MAX]!r} by its own --peers, and at {known_address!r} by those of {self._node}, which "
                "does not reach it there: start all replicas with the same --peers"
            )
        return self._security.refusal(context, role=ROLE, name=hello.node)

    async def _refuse(self, context: _Context, code: grpc.StatusCode, reason: str) -> None:
        self.refused += 1
        self._log_refusal_once(f"a Raft stream from {context.peer().rpartition(':')[0]} was refused: {reason}")
        await context.abort(code, reason)

    def _log_refusal_once(self, sentence: str) -> None:
        if sentence not in self._complained:
            if len(self._complained) >= LOGGED_REFUSALS_MAX:
                self._complained.clear()
            self._complained.add(sentence)
            self._complaints.say(sentence)

    async def _read_hello(self, context: _Context) -> Hello | str:
        """Read the hello message, and return it or the reason why it is invalid."""
        data = await read_first(context, CONNECT_S_MAX)
        if data is None:
            return "no hello came"
        if len(data) > FIRST_BYTES_MAX:
            return f"a hello of {len(data)} bytes; {FIRST_BYTES_MAX} are allowed"
        try:
            hello, messages = decode_batch(data)
        except ProtocolError as error:
            return str(error)
        return hello if hello is not None and not messages else "a stream begins with a hello, alone"

    async def _run_incoming(self, hello: Hello, context: _Context) -> None:
        older = self._incoming.get(hello.node)
        if older is not None:
            older.end(f"superseded by session {hello.session}")
        stream = self._incoming[hello.node] = IncomingStream(hello.node, hello.session, self._loop)
        self._sessions[hello.node] = hello
        reading = asyncio.create_task(self._read_all(stream, context))
        ends: set[asyncio.Future[Any]] = {reading, stream.ended}
        try:
            await context.send_initial_metadata((_ACCEPTED,))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stream.end("the stream is over")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            if self._incoming.get(hello.node) is stream:
                del self._incoming[hello.node]

    async def _read_all(self, stream: IncomingStream, context: _Context) -> None:
        try:
            while True:
                await stream.room()
                data = await context.read()
                if not isinstance(data, bytes) or not stream.is_live:
                    return
                hello, messages = decode_batch(data)
                if hello is not None:
                    raise ProtocolError("a second hello")
                stream.arrived(len(messages), len(data))
                self._post("received", stream, messages, len(data))
        except ProtocolError as error:
            log.warning("the stream of replica %s is ended: %s", stream.peer, error)
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            log.debug("the stream of replica %s ended: %r", stream.peer, error)

    # ---- dialling ---------------------------------------------------------------------------------------------------

    async def _keep_dialling(self, node: RaftNode, hello: Hello) -> None:
        number, retry_s = 0, RETRY_S_MIN
        channel = DialledChannel(self._security, node)
        try:
            while not self._is_stopped:
                number += 1
                was_open = False
                try:
                    was_open = await self._dial_once(node, hello._replace(stream=number), channel)
                except Exception:
                    log.exception("dialling replica %s", node.id)
                retry_s = RETRY_S_MIN if was_open else min(2 * retry_s, RETRY_S_MAX)
                await asyncio.sleep(random.uniform(RETRY_S_MIN / 2, retry_s))
        finally:
            await channel.close()

    async def _watch_transport(self, node: RaftNode) -> None:
        """Check whether the peer uses TLS until it has accepted a stream, because gRPC itself reports only that the peer is unreachable."""
        while not self._is_stopped and node.id not in self.refusals.accepted:
            why = await transport_mismatch(self._security, node.address)
            self.refusals.other_transports[node.id] = why or ""
            if why is not None:
                self._log_refusal_once(f"replica {node.id} cannot be reached: {why}")
            await asyncio.sleep(TRANSPORT_CHECK_S)

    async def _dial_once(self, node: RaftNode, hello: Hello, channel: "DialledChannel") -> bool:
        """Dial a peer, and run the stream until it ends. Return whether the peer accepted the stream."""
        with self._outgoing_calls.new() as metadata:
            open_stream: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = (await channel.fresh()).stream_unary(
                f"/{SERVICE}/{METHOD}"
            )
            return await self._run_dialled(node, hello, open_stream(metadata=metadata), channel)

    def _note_refusal(self, peer: str, code: grpc.StatusCode, details: str | None) -> None:
        why = f"replica {peer} refused our stream: {details}"
        self.refusals.denials[peer] = why if code is grpc.StatusCode.PERMISSION_DENIED else ""
        if code is not grpc.StatusCode.UNAVAILABLE:
            self._log_refusal_once(why)

    async def _run_dialled(
        self, node: RaftNode, hello: Hello, call: "grpc.aio.StreamUnaryCall[bytes, bytes]", channel: "DialledChannel"
    ) -> bool:
        try:
            if not await _is_accepted(call, hello, node.id):
                if call.done():
                    self._note_refusal(node.id, await call.code(), await call.details())
                return False
            stream = self._outgoing[node.id] = OutgoingStream(node.id, hello.session, self._loop)
            self.opened += 1
            self.refusals.accepted.add(node.id)
            self._post("opened", stream)
            try:
                await _run_outgoing(stream, call, channel)
            finally:
                stream.end("the stream is over")
                del self._outgoing[node.id]
                self._post("closed", stream)
            return True
        finally:
            call.cancel()


async def _is_accepted(call: "grpc.aio.StreamUnaryCall[bytes, bytes]", hello: Hello, peer: str) -> bool:
    async def greet() -> bool:
        await call.write(encode_hello(hello))
        metadata = await call.initial_metadata()
        return metadata is not None and metadata.get(_ACCEPTED[0]) == _ACCEPTED[1]

    greeting = asyncio.create_task(greet())
    try:
        await asyncio.wait({greeting}, timeout=CONNECT_S_MAX)
        if greeting.done() and not greeting.cancelled() and greeting.result():
            return True
    except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
        log.debug("dialling replica %s: %r", peer, error)
    finally:
        greeting.cancel()
    return False


async def _run_outgoing(
    stream: OutgoingStream, call: "grpc.aio.StreamUnaryCall[bytes, bytes]", channel: DialledChannel
) -> None:
    """Write batches to the stream until it ends or needs a new certificate."""
    tasks: set[asyncio.Future[Any]] = {
        asyncio.create_task(_write_all(stream, call.write)),
        asyncio.ensure_future(call.code()),
    }
    try:
        while not channel.is_old:
            done, _ = await asyncio.wait(
                {*tasks, stream.ended}, timeout=RENEWAL_CHECK_S, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _write_all(stream: OutgoingStream, write: Callable[[bytes], Awaitable[Any]]) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
        while stream.is_live:
            await write(await stream.take())


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Schedule `call` on the event loop. This function may be called from any thread. If the loop is closed, drop the call, because the
    process is ending."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
