"""A host's stream to the coordinator: directives come in as events, and commands for the coordinator go out.

The stream is redialled as long as the host lives, unless no coordinator has ever trusted the host's certificate. Nothing is buffered while the stream
is down: at the next Welcome the host core repeats everything that the coordinator still needs.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from snapline.errors import AuthenticationError, ProtocolError, UsageError
from snapline.messages.coordinator_client import LEADER_KEY, ReplicaChoice
from snapline.messages.host_messages import Directive, HostMessage, Leave, TurnedAway
from snapline.messages.wire import ATTEND, decode_directive, encode_host_message, in_parts
from snapline.security.transport import (
    TRUST_WAIT_S,
    DistrustTracker,
    Security,
    distrust_reason,
    transport_mismatch,
    trust_advice,
)

RETRY_LEAST_S, RETRY_MOST_S = 0.05, 0.5
"""Bounds of the time between two dials. Failing calls return within a millisecond. Jitter keeps hosts from coming back all at once.

A host that never had a stream begins with the lower bound: usually it was started together with its coordinator.
"""

OUTGOING_MAX = 10_000
"""Largest number of messages waiting for the stream's writer; more are dropped. The coordinator has then not read for a long time, and a keepalive
ends the stream soon. The core repeats important messages at the next Welcome."""

_Call = grpc.aio.StreamStreamCall[bytes, bytes]

_STREAM_ENDED = (grpc.RpcError, asyncio.InvalidStateError)
"""Errors of reading and writing when the call has failed, and when it had already ended."""


class Session:
    """Keeps one Attend stream alive. `received` is called on the event loop with each directive."""

    def __init__(
        self,
        address: str,
        security: Security,
        hello: Callable[[], HostMessage],
        received: Callable[[Directive], None],
        warn: Callable[[str], None],
    ) -> None:
        self._turns = ReplicaChoice(
            [replica.strip() for replica in address.split(",") if replica.strip()], security.may_dial
        )
        self._security = security
        self._hello = hello
        self._received = received
        self._warn = warn
        self._outgoing: asyncio.Queue[HostMessage] | None = None
        self._is_closing = False
        self._retry_most_s = RETRY_LEAST_S
        self._distrust = DistrustTracker(self._turns.given)

    @property
    def is_open(self) -> bool:
        """Return whether there is a stream."""
        return self._outgoing is not None

    def send(self, message: HostMessage) -> None:
        """Queue a message; dropped while there is no stream."""
        if self._outgoing is not None and self._outgoing.qsize() < OUTGOING_MAX:
            self._outgoing.put_nowait(message)

    async def run(self) -> None:
        """Run the stream until cancelled.

        Raises:
            AuthenticationError: the host and the coordinators never trusted each other, for as long as a certificate rotation may take.
            UsageError: no coordinator ever answered, and only one side uses TLS.
        """
        warned = False
        while not self._is_closing:
            try:
                async with self._security.open_channel(
                    self._turns.current, role="coordinator", name="coordinator"
                ) as channel:
                    await self._attend(channel)
                    warned = False
            except _STREAM_ENDED as error:
                if _is_denied(error):
                    self._received(TurnedAway(_reason(error), True))
                address, on_not_leader = self._turns.current, self._turn_to_next(error)
                is_silent = not on_not_leader and not self._is_closing
                if is_silent and not (warned and self._distrust.is_proved):
                    sentence = await self._why_silent(address, error)
                    if not warned:
                        self._warn(sentence)
                    warned = True
            finally:
                self._outgoing = None
            await asyncio.sleep(random.uniform(RETRY_LEAST_S, self._retry_most_s))
            self._retry_most_s = min(2 * self._retry_most_s, RETRY_MOST_S)

    def _turn_to_next(self, error: Exception) -> bool:
        """Try the leader that a replica named, or the next one in turn; return whether a replica answered."""
        metadata = dict(getattr(error, "trailing_metadata", lambda: None)() or ())
        if LEADER_KEY in metadata:
            self._turns.on_not_leader(self._turns.current, str(metadata[LEADER_KEY]))
            self._distrust.answered()
        else:
            self._turns.is_silent(self._turns.current)
        return LEADER_KEY in metadata

    async def _why_silent(self, address: str, error: Exception) -> str:
        """Return the reason why no coordinator is reached, in a sentence; AuthenticationError, UsageError: it is permanent."""
        reason = await distrust_reason(self._security, address, role="coordinator", name="coordinator")
        now_s = asyncio.get_running_loop().time()
        is_final = self._distrust.failed(address, now_s, is_distrust=reason is not None)
        if reason is None:
            reason = await transport_mismatch(self._security, address)
            if reason is not None and self._distrust.is_distrust_final:
                raise UsageError(reason)
            if reason is not None:
                return f"{reason}; trying on"
            return f"no coordinator at {address}: {_reason(error)}; trying on"
        sentence = f"the coordinator at {address} and this host do not trust each other ({reason})"
        if is_final:
            raise AuthenticationError(f"{sentence}, and have not for {TRUST_WAIT_S:g} s: {trust_advice(reason)}")
        return f"{sentence}; trying on, as certificates may be being renewed"

    async def _attend(self, channel: grpc.aio.Channel) -> None:
        call: _Call = channel.stream_stream(ATTEND)()
        await call.write(encode_host_message(self._hello()))
        outgoing = self._outgoing = asyncio.Queue()
        writer = asyncio.ensure_future(_write_all(call, outgoing))
        try:
            async for data in _directives(call):
                self._take(data)
        finally:
            self._outgoing = None
            writer.cancel()
            call.cancel()
            # Not `await writer` under `suppress`: that would also swallow a cancellation of this task.
            await asyncio.wait({writer})
            if not writer.cancelled():
                writer.exception()

    def _take(self, data: bytes) -> None:
        self._distrust.answered()
        self._retry_most_s = RETRY_MOST_S
        try:
            directive = decode_directive(data)
        except ProtocolError as error:  # message of a later version
            self._warn(f"the coordinator has said what is not understood here: {error}")
        else:
            self._received(directive)

    def expect_end(self) -> None:
        """Note that the host is ending: the end of the stream is no news, and no other one is opened."""
        self._is_closing = True

    async def leave(self, reason: str, wait_s: float = 0.5) -> None:
        """Send a Leave message and give it a moment to go out."""
        self._is_closing = True
        if self._outgoing is not None:
            self.send(Leave(reason))
            deadline = asyncio.get_running_loop().time() + wait_s
            while self._outgoing is not None and not self._outgoing.empty():
                if asyncio.get_running_loop().time() > deadline:
                    return
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)


async def _write_all(call: _Call, outgoing: asyncio.Queue[HostMessage]) -> None:
    while True:
        for data in in_parts(encode_host_message(await outgoing.get())):
            await call.write(data)


async def _directives(call: _Call) -> AsyncIterator[bytes]:
    while isinstance(data := await call.read(), bytes):
        yield data


def _is_denied(error: Exception) -> bool:
    """Return whether the certificate was understood, and is not one of a host: no other try will change that."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.PERMISSION_DENIED


def _reason(error: Exception) -> str:
    details = getattr(error, "details", lambda: None)()
    return str(details or error)
