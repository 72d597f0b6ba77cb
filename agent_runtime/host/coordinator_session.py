"""A host's communication with the coordinator: the stream of directives and messages, the planned stop, and the authentication of users.

*Stream.* The host receives directives from the coordinator, and sends messages to it, on one stream. The host redials for as long as it
runs, unless no coordinator has ever trusted its certificate. No messages are buffered while the stream is down. After the next Welcome, the
host core repeats all messages that the coordinator still needs.

*Planned stop.* After a stop signal, the host waits until a snapshot contains its agents' work (`coordinator/leader/fleet_end.py`). A time
limit applies.

*Authentication of users.* The host stores no tokens and keeps no audit log, so it asks the coordinator. For read-only calls, the
coordinator's replies about tokens are cached for some seconds, because a user who watches an agent makes many calls. Before a call that
changes something, the coordinator logs the call and checks the token again. A call with a revoked token can therefore change nothing.
"""

import asyncio
import logging
import random
import signal
import time
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from snapline.errors import AuthenticationError, CoordinatorUnavailableError, ProtocolError, UsageError
from snapline.messages.coordinator_client import LEADER_KEY, CoordinatorClient, ReplicaChoice, trailing_metadata
from snapline.messages.host_messages import (
    SAME_SIGNAL_S,
    Directive,
    EndEpoch,
    HostMessage,
    Leave,
    MayLeave,
    TurnedAway,
    WantLeave,
)
from snapline.messages.wire import ATTEND, decode_directive, encode_host_message, in_parts
from snapline.security.rpc_authorization import ERROR_KEY, Caller
from snapline.security.transport import (
    TRUST_WAIT_S,
    DistrustTracker,
    Identity,
    Security,
    distrust_reason,
    transport_mismatch,
    trust_advice,
)

RETRY_LEAST_S, RETRY_MOST_S = 0.05, 0.5
"""Smallest and largest time between two attempts to dial. Attempts need a delay, since a failing call returns within a millisecond. Random
jitter prevents all hosts from reconnecting at the same time.

A host that has never had a stream starts with the smallest time, since it was usually started together with its coordinator.
"""

OUTGOING_MAX = 10_000
"""Largest number of messages that wait for the stream's writer. Above it, further messages are dropped. The coordinator has then not read
for a long time, and the keepalive will end the stream soon. The core repeats important messages at the next Welcome."""

_Call = grpc.aio.StreamStreamCall[bytes, bytes]

_STREAM_ENDED = (grpc.RpcError, asyncio.InvalidStateError)
"""Errors that reading and writing raise when the call has failed or has already ended."""


class Session:
    """Keeps one stream to the coordinator open (the RPC `Attend`).

    Attributes:
        received: function that is called on the event loop for each directive.
    """

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
        self.received = received
        self._warn = warn
        self._outgoing: asyncio.Queue[HostMessage] | None = None
        self._is_closing = False
        self._retry_most_s = RETRY_LEAST_S
        self._distrust = DistrustTracker(self._turns.given)

    @property
    def is_open(self) -> bool:
        """Return whether a stream to the coordinator is currently open."""
        return self._outgoing is not None

    def send(self, message: HostMessage) -> None:
        """Queue a message to be sent on the stream. While no stream is open, messages are dropped."""
        if self._outgoing is not None and self._outgoing.qsize() < OUTGOING_MAX:
            self._outgoing.put_nowait(message)

    async def run(self) -> None:
        """Keep the stream open until this task is cancelled.

        Raises:
            AuthenticationError: If the host and the coordinators have never trusted each other, and the reason cannot be a certificate
                rotation in progress.
            UsageError: If no coordinator has ever answered, and only one of host and coordinator uses TLS.
        """
        has_warned = is_distrust_reported = False
        while not self._is_closing:
            try:
                async with self._security.open_channel(
                    self._turns.current, role="coordinator", name="coordinator"
                ) as channel:
                    await self._attend(channel)
                    has_warned = is_distrust_reported = False
            except _STREAM_ENDED as error:
                if _is_denied(error):
                    self.received(TurnedAway(_reason(error), True))
                address, on_not_leader = self._turns.current, self._turn_to_next(error)
                is_silent = not on_not_leader and not self._is_closing
                if is_silent and not (is_distrust_reported and self._distrust.is_proved):
                    sentence, is_distrust = await self._why_silent(address, error)
                    # A coordinator that was away may come back with another certificate.
                    if not has_warned or (is_distrust and not is_distrust_reported):
                        self._warn(sentence)
                    has_warned, is_distrust_reported = True, is_distrust_reported or is_distrust
            finally:
                self._outgoing = None
            await asyncio.sleep(random.uniform(RETRY_LEAST_S, self._retry_most_s))
            self._retry_most_s = min(2 * self._retry_most_s, RETRY_MOST_S)

    def _turn_to_next(self, error: Exception) -> bool:
        """Choose the replica to dial next: either the leader that a replica has named, or the next replica in the list. Return True if a
        replica answered."""
        metadata = trailing_metadata(error)
        if LEADER_KEY in metadata:
            self._turns.on_not_leader(self._turns.current, str(metadata[LEADER_KEY]))
            self._distrust.answered()
        else:
            self._turns.is_silent(self._turns.current)
        return LEADER_KEY in metadata

    async def _why_silent(self, address: str, error: Exception) -> tuple[str, bool]:
        """Return a sentence that explains why no coordinator can be reached, and whether the reason is a rejected certificate. Raise
        AuthenticationError or UsageError if the reason is permanent."""
        reason = await distrust_reason(self._security, address, role="coordinator", name="coordinator")
        now_s = asyncio.get_running_loop().time()
        is_final = self._distrust.failed(address, now_s, is_distrust=reason is not None)
        if reason is None:
            reason = await transport_mismatch(self._security, address)
            if reason is not None and self._distrust.is_distrust_final:
                raise UsageError(reason)
            if reason is not None:
                return f"{reason}; trying on", False
            return f"no coordinator at {address}: {_reason(error)}; trying on", False
        sentence = f"the coordinator at {address} and this host do not trust each other ({reason})"
        if is_final:
            raise AuthenticationError(f"{sentence}, and have not for {TRUST_WAIT_S:g} s: {trust_advice(reason)}")
        return f"{sentence}; trying on, as certificates may be being renewed", True

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
            # `await writer` in a `suppress` block would also suppress a cancellation of this task.
            await asyncio.wait({writer})
            if not writer.cancelled():
                writer.exception()

    def _take(self, data: bytes) -> None:
        self._distrust.answered()
        self._retry_most_s = RETRY_MOST_S
        try:
            directive = decode_directive(data)
        except ProtocolError as error:  # a message from a later version
            self._warn(f"the coordinator has said what is not understood here: {error}")
        else:
            self.received(directive)

    def expect_end(self) -> None:
        """Record that the host is stopping. The end of the stream is then not reported, and no new stream is opened."""
        self._is_closing = True

    async def leave(self, reason: str, wait_s: float = 0.5) -> None:
        """Send a Leave message, and wait for up to `wait_s` seconds until it has been written to the stream."""
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
    """Return whether the coordinator rejected the call because the certificate does not belong to a host. If the result is True, a retry
    would fail too."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.PERMISSION_DENIED


def _reason(error: Exception) -> str:
    details = getattr(error, "details", lambda: None)()
    return str(details or error)


NO_COORDINATOR_S = 5.0
"""Longest wait for a stream to a coordinator during a planned stop. An election or a restart takes one or two seconds."""

log = logging.getLogger("snapline.host")


class HostStop:
    """Performs the planned stop of a host process. `finish` ends the process with an exit code. `has_agents` returns whether this host has
    agents whose work could be lost."""

    def __init__(
        self, session: Session, limit_s: float, has_agents: Callable[[], bool], finish: Callable[[int], None]
    ) -> None:
        self._session = session
        self._limit_s = limit_s
        self._has_agents = has_agents
        self._finish = finish
        self._asked_s: float | None = None
        self._code = 0
        self._reason = ""
        self._newest_complete = 0
        self._is_over = False

    def asked(self, number: signal.Signals) -> None:
        """Handle a stop signal: stop the host after a last snapshot, or when the time limit has passed. A second signal stops the host
        immediately."""
        loop = asyncio.get_running_loop()
        if self._asked_s is not None and loop.time() < self._asked_s + SAME_SIGNAL_S:
            return
        code = 0 if number == signal.SIGTERM else 130
        if self._asked_s is not None or not self._limit_s or not self._has_agents():
            self._end(code)
            return
        self._asked_s, self._code, self._reason = loop.time(), code, number.name
        wait = f"for {self._limit_s:g} s at most; a second signal ends it at once"
        log.info("a last snapshot is taken before this host stops, %s", wait)
        self.welcomed()
        loop.call_later(self._limit_s, self._leave_unsaved)
        loop.call_later(NO_COORDINATOR_S, self._leave_without_coordinator)

    def welcomed(self) -> None:
        """Repeat the request to leave when a new stream to the coordinator has opened."""
        if self._asked_s is not None:
            self._session.send(WantLeave(self._reason))

    def directive_received(self, directive: Directive) -> None:
        """Stop the host if a directive from the coordinator allows the host to leave."""
        if isinstance(directive, EndEpoch) and directive.is_complete:
            self._newest_complete = max(self._newest_complete, directive.epoch)
        elif isinstance(directive, MayLeave) and self._asked_s is not None:
            log.info("epoch %d holds what the agents here have done", directive.epoch)
            self._end(self._code)

    def _leave_without_coordinator(self) -> None:
        if not self._session.is_open:
            self._leave_unsaved()

    def _leave_unsaved(self) -> None:
        if self._is_over:
            return
        assert self._asked_s is not None
        waited_s = asyncio.get_running_loop().time() - self._asked_s
        reason = "no coordinator answers"
        if self._session.is_open:
            reason = "effects are being called, or the store or another host is slow"
        loss = f"what the agents here have done since epoch {self._newest_complete} is lost, and effects that are being called will be in doubt"
        log.warning("no last snapshot within %.0f s (%s): %s", waited_s, reason, loss)
        self._end(self._code)

    def _end(self, code: int) -> None:
        self._is_over = True
        self._finish(code)


TOKEN_CACHE_S = 5.0
"""Time for which a host accepts a cached reply about a token. A revoked token may still be used for reading during this time."""

CACHED_TOKENS_MAX = 256
"""Largest number of cached tokens, including invalid tokens. A fleet may have this many tokens."""

COORDINATOR_REQUESTS_MAX = 4
"""Largest number of concurrent requests to the coordinator about tokens. So a caller that tries many tokens must wait."""

ASK_S = 5.0
"""Longest wait for the coordinator's reply. An election takes one or two seconds."""


class CoordinatorUsers:
    """Authenticates users on a host by asking the coordinator."""

    def __init__(self, address: str, security: Security) -> None:
        self._address = address
        self._security = security
        self._client: CoordinatorClient | None = None
        self._generation = 0
        self._known: dict[bytes, tuple[float, Identity | None]] = {}
        self._asking = asyncio.Semaphore(COORDINATOR_REQUESTS_MAX)
        self._closing: set[asyncio.Task[None]] = set()

    async def holder(self, digest: bytes) -> Identity | None:
        """Return the identity of the token's holder, or None if the token is invalid. Implements `rpc_authorization.People`."""
        async with self._asking:
            until_s, identity = self._known.get(digest, (0.0, None))
            if time.monotonic() < until_s:
                return identity
            answer = await self._connected().check_token(digest, ASK_S)
        identity = Identity(answer.role, answer.name) if answer.name else None
        self._known.pop(digest, None)
        while len(self._known) >= CACHED_TOKENS_MAX:
            del self._known[next(iter(self._known))]
        self._known[digest] = time.monotonic() + TOKEN_CACHE_S, identity
        return identity

    async def record(self, caller: Caller, call: str, about: str, outcome: str) -> None:
        """Ask the coordinator to record a call in its audit log. Implements `rpc_authorization.People`."""
        proof = {"digest": caller.digest, "certificate": caller.certificate}
        await self._connected().record_call(ASK_S, **proof, call=call, about=about, outcome=outcome)

    def redirect_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((ERROR_KEY, CoordinatorUnavailableError.__name__),)

    async def close(self) -> None:
        """Close all clients when the host stops."""
        for task in self._closing:
            task.cancel()
        if self._client is not None:
            await self._client.close()

    def _connected(self) -> CoordinatorClient:
        """Return a client that uses the newest certificate of the host."""
        if self._client is not None and self._generation != self._security.generation:
            task = asyncio.create_task(_close_later(self._client))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            self._client = None
        if self._client is None:
            self._client = CoordinatorClient(self._address, self._security)
            self._generation = self._security.generation
        return self._client


async def _close_later(client: CoordinatorClient) -> None:
    """Close a client after `ASK_S`, by which time its running calls have ended."""
    try:
        await asyncio.sleep(ASK_S)
    finally:
        await client.close()
