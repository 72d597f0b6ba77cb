"""Calls from a client to hosts, over one connection per host. A call either sends inputs or asks a question about one agent.

A host processes a request only after it has received the last message of the request's stream. A call therefore has no effect if it fails
before the connection is made or before the last message of its stream is written. If a call fails after its last message was written, its
outcome is unknown.

Most requests consist of one message and use a unary call, which is identical on the wire. If a write to a stream fails because the host
has ended the call, gRPC does not report the host's reason (`tests/access/world.py` calls such a call unheard).

Only an agent's current host knows the agent's live state and description. Any host can read a saved state, but the agent's current host
is asked first because its cache is warm. Other hosts are asked while the agent has no live host. Questions have no side effects, so a
failed question is repeated until the time limit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
import grpc.aio
import msgspec

from snapline.client.queues import OVER, HostAddress
from snapline.errors import (
    AgentMissingError,
    CoordinatorUnavailableError,
    FleetEndedError,
    ProtocolError,
    SnaplineError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.messages.answers import LocateReply
from snapline.messages.client_requests import (
    STATE,
    WAITING,
    AskOutcome,
    GivenInput,
    InputOutcome,
    NotHereError,
    Question,
    RecentTrace,
    TraceWanted,
    WaitingAgents,
)
from snapline.messages.client_wire import (
    ASK_PATH,
    OFFER_PATH,
    SHOW_PATH,
    AnswerReader,
    ViewReader,
    decode_outcomes,
    encode_question,
    offer_messages,
    trace_question,
)
from snapline.messages.coordinator_client import CoordinatorClient, named_error
from snapline.messages.status import FleetStatus, HostStatus
from snapline.security.transport import Security

CONNECTIONS_MAX = 256
"""Largest number of open connections, which is also the largest number of hosts in a fleet. Beyond this number, the least recently used
connection is closed."""

CONNECT_S_MAX = 2.0
"""Longest wait until a connection is established, in seconds. Links between hosts use the same limit."""

FAILURES_MAX = 20
"""Number of consecutive failures after which a connection is dropped, so that gRPC does not dial a vanished host forever. Until then, the
connection is reused, because it allows slow handshakes more time after each failure."""

_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
"""Status codes which mean that the host will never accept a request from this client."""

_NOT_HANDED_ON = (*_FINAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""Status codes with which a host rejects a request before it processes any input."""

_BROKEN = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class OfferError(Exception):
    """Error: a call ended without an answer. `is_unsent` means that the host has accepted no input of this call. `is_final` means that
    every further attempt would fail."""

    def __init__(self, reason: str, *, is_unsent: bool, is_final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_unsent = is_unsent
        self.is_final = is_final


class _Connection:
    """A connection to one host. `users` is the number of pending calls that use the connection. `failures` is the number of consecutive
    failed connection attempts."""

    __slots__ = ("channel", "failures", "users")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.users = self.failures = 0


class HostCalls:
    """Connections from one event loop to hosts."""

    def __init__(self, security: Security, client: str) -> None:
        """Create the object. `client` is the client's name, which the hosts record as the sender of inputs."""
        self._security = security
        self._client = client
        self._connections: dict[tuple[str, str], _Connection] = {}
        self._left: list[_Connection] = []
        """Connections to close when their calls have ended."""

    async def offer(
        self, host: str, address: str, inputs: Sequence[GivenInput], limit_s: float, path: str = OFFER_PATH
    ) -> tuple[InputOutcome, ...]:
        """Send these inputs to a host, and return the outcome of each input. `path` is the gRPC method, which is different for inputs and
        for operator commands.

        Raises:
            OfferError: the call ended without an answer.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        async with self._connection(host, address) as connection:
            await self._connect(connection, host, address, min(deadline_s, loop.time() + CONNECT_S_MAX))
            messages = list(offer_messages(self._client, inputs))
            ask = _ask_once if len(messages) == 1 else _ask_in_parts
            return await ask(connection.channel, host, messages, max(deadline_s - loop.time(), 0.001), path)

    async def ask(self, host: str, address: str, question: bytes, limit_s: float) -> AskOutcome:
        """Ask a host for the outcome of an input, and wait for the answer. `question` is the result of `encode_ask`.

        Raises:
            OfferError: the call ended without an answer.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        async with self._connection(host, address) as connection:
            await self._connect(connection, host, address, min(deadline_s, loop.time() + CONNECT_S_MAX))
            return await _ask_for_answer(connection.channel, host, question, max(deadline_s - loop.time(), 0.001))

    async def show(self, host: str, address: str, question: bytes, limit_s: float) -> bytes:
        """Ask a host a question about an agent, and return the document that answers it. `question` is the result of `encode_question`.

        Raises:
            NotHereError: the host currently cannot answer.
            OfferError: the call ended without an answer.
            SnaplineError: the host answered with an error, which is raised unchanged.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        async with self._connection(host, address) as connection:
            await self._connect(connection, host, address, min(deadline_s, loop.time() + CONNECT_S_MAX))
            return await _ask_to_show(connection.channel, host, question, max(deadline_s - loop.time(), 0.001))

    def renew(self) -> None:
        """Use the renewed certificates for all new connections. Pending calls continue on the old connections."""
        self._left += self._connections.values()
        self._connections.clear()

    async def close(self) -> None:
        """Close all connections. Pending calls end."""
        self.renew()
        for connection in self._left:
            await connection.channel.close()
        self._left.clear()

    @asynccontextmanager
    async def _connection(self, host: str, address: str) -> AsyncIterator[_Connection]:
        """Yield a connection to the host. The connection is not closed while the context is active."""
        place = (host, address)
        connection = self._connections.pop(place, None) or self._open(host, address)
        self._connections[place] = connection
        if len(self._connections) > CONNECTIONS_MAX:
            self._leave(next(iter(self._connections)))
        connection.users += 1
        try:
            yield connection
        finally:
            connection.users -= 1
            if connection.failures > FAILURES_MAX and self._connections.get(place) is connection:
                self._leave(place)
            await self._close_left()

    def _open(self, host: str, address: str) -> _Connection:
        try:
            return _Connection(self._security.open_channel(address, role="host", name=host))
        except UsageError as error:
            raise OfferError(str(error), is_unsent=True, is_final=True) from error

    def _leave(self, place: tuple[str, str]) -> None:
        self._left.append(self._connections.pop(place))

    async def _close_left(self) -> None:
        unused = [connection for connection in self._left if not connection.users]
        self._left = [connection for connection in self._left if connection.users]
        for connection in unused:
            await connection.channel.close()

    async def _connect(self, connection: _Connection, host: str, address: str, deadline_s: float) -> None:
        """Wait until the connection is established. Raise OfferError if the connection is not established in time. Nothing is sent
        before."""
        channel, loop = connection.channel, asyncio.get_running_loop()
        while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            if state not in _BROKEN:
                changing = asyncio.ensure_future(channel.wait_for_state_change(state))
                await asyncio.wait({changing}, timeout=deadline_s - loop.time())
                if changing.done() and changing.exception() is None:
                    continue
                changing.cancel()
            connection.failures += 1
            trust = " (if it runs: does each side trust the other's certificate?)" if self._security.is_tls else ""
            raise OfferError(f"host {host} does not answer at {address}{trust}", is_unsent=True)
        connection.failures = 0


async def _ask_once(
    channel: grpc.aio.Channel, host: str, messages: list[bytes], limit_s: float, path: str
) -> tuple[InputOutcome, ...]:
    """Send a single-message request."""
    offer: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    try:
        return decode_outcomes(await offer(messages[0], timeout=limit_s))
    except grpc.aio.AioRpcError as error:
        raise _failure(error.code(), error.details() or "", host, is_sent=True) from error
    except ProtocolError as error:
        raise _not_understood(host, error) from error


async def _ask_in_parts(
    channel: grpc.aio.Channel, host: str, messages: list[bytes], limit_s: float, path: str
) -> tuple[InputOutcome, ...]:
    """Send a request as a stream of messages, because it is too large for one message."""
    offer: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(path)
    call: grpc.aio.StreamUnaryCall[bytes, bytes] = offer(timeout=limit_s)
    is_sent = False
    try:
        for message in messages[:-1]:
            await call.write(message)
        is_sent = True
        await call.write(messages[-1])
        await call.done_writing()
        return decode_outcomes(await call)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        if not call.done():
            raise OfferError(f"the call to host {host} failed: {error}", is_unsent=not is_sent) from error
        raise _failure(await call.code(), await call.details() or "", host, is_sent=is_sent) from error
    except ProtocolError as error:
        raise _not_understood(host, error) from error
    finally:
        call.cancel()


async def _ask_for_answer(channel: grpc.aio.Channel, host: str, question: bytes, limit_s: float) -> AskOutcome:
    ask: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(ASK_PATH)
    call: grpc.aio.UnaryStreamCall[bytes, bytes] = ask(question, timeout=limit_s)
    reading = AnswerReader()
    try:
        async for data in call:
            answer = reading.take(data)
            if answer is not None:
                return answer
        raise OfferError(f"host {host} ended its answer before its end", is_unsent=False)
    except grpc.aio.AioRpcError as error:
        raise _failure(error.code(), error.details() or "", host, is_sent=True) from error
    except ProtocolError as error:
        raise _not_understood(host, error) from error
    finally:
        call.cancel()


async def _ask_to_show(channel: grpc.aio.Channel, host: str, question: bytes, limit_s: float) -> bytes:
    ask: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(SHOW_PATH)
    call: grpc.aio.UnaryStreamCall[bytes, bytes] = ask(question, timeout=limit_s)
    reading = ViewReader()
    try:
        async for data in call:
            document = reading.take(data)
            if document is not None:
                return document
        raise OfferError(f"host {host} ended its answer before its end", is_unsent=False)
    except grpc.aio.AioRpcError as error:
        raise named_error(error) or _failure(error.code(), error.details() or "", host, is_sent=True) from error
    except ProtocolError as error:
        raise _not_understood(host, error) from error
    finally:
        call.cancel()


def _not_understood(host: str, error: ProtocolError) -> OfferError:
    return OfferError(f"host {host} answered what this version does not understand: {error}", is_unsent=False)


def _failure(code: grpc.StatusCode, details: str, host: str, *, is_sent: bool) -> OfferError:
    """Convert the gRPC status with which a call ended into an error."""
    is_unsent = not is_sent or code in _NOT_HANDED_ON
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            reason = f"host {host} does not answer any more ({details})"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            reason = f"host {host} did not answer in time"
        case grpc.StatusCode.UNIMPLEMENTED:
            reason = f"host {host} does not know this call: is it of an older version?"
        case _:
            reason = details or f"host {host} ended the call with {code.name}"
    return OfferError(reason, is_unsent=is_unsent, is_final=code in _FINAL)


AnswerT = TypeVar("AnswerT")

FIND_S_MAX = 2.0
"""Longest wait for the coordinator's answer in seconds. The coordinator answers from memory. If an election is in progress, which takes a
second or two, the client asks again."""

WAIT_LEAST_S, WAIT_MOST_S = 0.05, 1.0
"""Shortest and longest wait in seconds before a question is repeated. The wait doubles each time."""

ASK_S_MAX = 2.0
"""Longest wait in seconds for the answer of a host that is asked about all its agents. The host answers from memory. A host that does not
answer in time is omitted."""


async def ask_until_answered(
    coordinator: Callable[[], CoordinatorClient], hosts: HostCalls, question: Question, limit_s: float
) -> bytes:
    """Repeat a question until a host answers, and return the document in that answer.

    Raises:
        UnknownOutcomeError: no host has answered in time.
        AgentMissingError, FleetEndedError: no host will ever answer, because the agent or the fleet no longer exists.
        UsageError: this client has no permission, or the question cannot be answered. Errors reported by the host are raised unchanged.
    """
    loop, wait_s, tries = asyncio.get_running_loop(), WAIT_LEAST_S, 0
    deadline_s, reason = loop.time() + limit_s, "nobody has answered yet"
    while (left_s := deadline_s - loop.time()) > 0:
        try:
            place = await _place(coordinator(), question, min(FIND_S_MAX, left_s), tries)
            return await hosts.show(*place, encode_question(question), max(deadline_s - loop.time(), 0.001))
        except OfferError as failed:
            if failed.is_final:
                raise UsageError(failed.reason) from failed
            reason = failed.reason
        except (CoordinatorUnavailableError, UnknownOutcomeError, NotHereError) as error:
            reason = str(error)
        tries += 1
        await asyncio.sleep(max(0.0, min(wait_s, deadline_s - loop.time())))
        wait_s = min(2 * wait_s, WAIT_MOST_S)
    raise UnknownOutcomeError(
        f"nobody told of agent {question.agent!r} in time ({reason}); asking changes nothing: ask again"
    )


async def ask_every_host(
    coordinator: CoordinatorClient, hosts: HostCalls, question: Callable[[str], Question], kind: type[AnswerT]
) -> dict[str, AnswerT | None]:
    """Ask every live host, and return each host's answer. A host's answer is None if the host did not answer in time or runs an older
    release. The result is empty if the coordinator does not answer."""
    try:
        status = await coordinator.status(ASK_S_MAX)
    except SnaplineError:
        return {}

    async def ask(host: HostStatus) -> AnswerT | None:
        try:
            reply = await hosts.show(host.host, host.address, encode_question(question(host.host)), ASK_S_MAX)
            return msgspec.json.decode(reply, type=kind)
        except (OfferError, NotHereError, SnaplineError, msgspec.MsgspecError):
            return None

    alive = [host for host in status.hosts if host.state == "alive" and status.phase not in OVER]
    replies = await asyncio.gather(*[ask(host) for host in alive])
    return {host.host: one for host, one in zip(alive, replies, strict=True)}


async def waiting_agents(coordinator: CoordinatorClient, hosts: HostCalls) -> WaitingAgents:
    """Return all agents with pending work, as currently reported by their hosts."""
    replies = await ask_every_host(coordinator, hosts, lambda _: Question("", WAITING), WaitingAgents)
    received = [each for each in replies.values() if each is not None]
    silent = tuple([host for host, each in replies.items() if each is None])
    return WaitingAgents(
        tuple([agent for each in received for agent in each.agents]), sum([each.more for each in received]), silent
    )


async def recent_traces(
    coordinator: CoordinatorClient, hosts: HostCalls, after: Mapping[str, str], *, every: int, most: int
) -> dict[str, RecentTrace | None]:
    """Return each host's traced events that follow the host's cursor in `after`. Each host returns at most `most` trace lines."""

    def question(host: str) -> Question:
        return trace_question(TraceWanted(after.get(host, ""), every, most))

    return await ask_every_host(coordinator, hosts, question, RecentTrace)


async def _place(coordinator: CoordinatorClient, question: Question, limit_s: float, tries: int) -> HostAddress:
    reply = await coordinator.locate([question.agent], limit_s)
    owner = owner_of(reply, question)
    return owner if owner is not None else any_live_host(await coordinator.status(limit_s), tries)


def owner_of(reply: LocateReply, question: Question) -> HostAddress | None:
    """Return the agent's host if the agent runs, or None if any host can answer the question.

    Raises:
        NotHereError: no host can currently answer. AgentMissingError, FleetEndedError: no host will ever answer.
    """
    (location,) = reply.agents
    agent = question.agent
    if reply.phase in OVER:
        reason_text = f": {reply.reason}" if reply.reason else ""
        raise FleetEndedError(
            f"{OVER[reply.phase]}{reason_text}; its store is read with `--store`, or snapline.open_store"
        )
    if location.state == "alive":
        return location.host, location.address
    if location.state == "unknown" and reply.phase != "forming":
        raise AgentMissingError(
            f"agent {agent!r} is not in this fleet: `snapline agent list` names those that are there"
        )
    if question.what == STATE:
        return None
    if location.state == "left":
        raise AgentMissingError(f"agent {agent!r} has stopped: `snapline agent list` names those that are there")
    raise NotHereError(f"the fleet is {reply.phase}, and agent {agent} has no host just now")


def any_live_host(status: FleetStatus, tries: int) -> HostAddress:
    """Return a live host. Successive values of `tries` select the live hosts in rotation.

    Raises:
        NotHereError: no host is alive.
    """
    alive = [host for host in status.hosts if host.state == "alive"]
    if not alive:
        raise NotHereError(f"the fleet is {status.phase}, and none of its hosts is alive just now")
    chosen = alive[tries % len(alive)]
    return chosen.host, chosen.address
