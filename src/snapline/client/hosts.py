"""Requests to hosts: one connection to each, and the meaning of a failed call for its inputs.

A host processes a request when it has received the last message of its stream. So a call that failed before the connection was made, or before
that message was written, has certainly changed nothing; after that, its outcome is unknown.

Most requests are a single message and use a unary call, which is the same on the wire. If writing to a stream fails because the host
has ended the call, gRPC no longer reports why (`tests/access/world.py` calls it unheard).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from snapline.errors import ProtocolError, UsageError
from snapline.messages.client_wire import (
    ASK_PATH,
    OFFER_PATH,
    SHOW_PATH,
    AnswerReader,
    ViewReader,
    decode_outcomes,
    offer_messages,
)
from snapline.messages.coordinator_client import named_error
from snapline.messages.inputs import AskOutcome, GivenInput, InputOutcome
from snapline.security.transport import Security

CONNECTIONS_MAX = 256
"""Largest number of open connections: as many as a fleet may have hosts. Above it, the least recently used ones are closed."""

CONNECT_S_MAX = 2.0
"""Longest wait for a connection, the same as for links."""

FAILURES_MAX = 20
"""Consecutive failures after which a connection is dropped; otherwise a host that is gone would be dialled forever. Until then it is reused,
since its time limit for slow handshakes grows."""

_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
"""Status codes of a host that will never accept a request of ours."""

_NOT_HANDED_ON = (*_FINAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""Status codes with which a host rejects a request before processing its inputs."""

_BROKEN = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class OfferError(Exception):
    """A call without an answer. `is_unsent`: no input was accepted; `is_final`: every attempt would fail."""

    def __init__(self, reason: str, *, is_unsent: bool, is_final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_unsent = is_unsent
        self.is_final = is_final


class _Connection:
    """A connection to one host. `users`: number of calls on it; `failures`: consecutive failures to connect."""

    __slots__ = ("channel", "failures", "users")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.users = self.failures = 0


class HostCalls:
    """Connections to hosts. For one event loop."""

    def __init__(self, security: Security, client: str) -> None:
        """`client`: sender of the inputs."""
        self._security = security
        self._client = client
        self._connections: dict[tuple[str, str], _Connection] = {}
        self._left: list[_Connection] = []
        """Connections to close once their calls have ended."""

    async def offer(
        self, host: str, address: str, inputs: Sequence[GivenInput], limit_s: float, path: str = OFFER_PATH
    ) -> tuple[InputOutcome, ...]:
        """Offer these inputs to a host, and wait for the outcome of each. `path`: gRPC method, a different one for operator commands.

        Raises:
            OfferError: there is no answer.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        async with self._connection(host, address) as connection:
            await self._connect(connection, host, address, min(deadline_s, loop.time() + CONNECT_S_MAX))
            messages = list(offer_messages(self._client, inputs))
            ask = _ask_once if len(messages) == 1 else _ask_in_parts
            return await ask(connection.channel, host, messages, max(deadline_s - loop.time(), 0.001), path)

    async def ask(self, host: str, address: str, question: bytes, limit_s: float) -> AskOutcome:
        """Wait for the outcome of an input from a host; `question` is made by `encode_ask`.

        Raises:
            OfferError: there is no answer.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        async with self._connection(host, address) as connection:
            await self._connect(connection, host, address, min(deadline_s, loop.time() + CONNECT_S_MAX))
            return await _ask_for_answer(connection.channel, host, question, max(deadline_s - loop.time(), 0.001))

    async def show(self, host: str, address: str, question: bytes, limit_s: float) -> bytes:
        """Send a host a question about an agent; `question` is made by `encode_question`. Return the document.

        Raises:
            NotHereError: the host cannot answer now.
            OfferError: there is no answer.
            SnaplineError: the error that the host raised.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        async with self._connection(host, address) as connection:
            await self._connect(connection, host, address, min(deadline_s, loop.time() + CONNECT_S_MAX))
            return await _ask_to_show(connection.channel, host, question, max(deadline_s - loop.time(), 0.001))

    def renew(self) -> None:
        """Use new connections with the new certificates; pending calls continue."""
        self._left += self._connections.values()
        self._connections.clear()

    async def close(self) -> None:
        """Close all connections; pending calls end."""
        self.renew()
        for connection in self._left:
            await connection.channel.close()
        self._left.clear()

    @asynccontextmanager
    async def _connection(self, host: str, address: str) -> AsyncIterator[_Connection]:
        """Yield a connection, which stays open until the block ends."""
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
        """Wait until the connection is established; nothing is sent before."""
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
    """Send a request of one message."""
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
    """Send a large input, in parts."""
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
    """Return the error for a call that ended without an answer."""
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
