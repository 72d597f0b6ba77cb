"""Streaming calls between members: each is one large call, whose messages are recorded together.

A call is stamped at its beginning and end, but the messages between have no stamps. So a stream is never processed in part: requests are sent
after the caller has produced the last one, the handler runs when all have arrived, and the caller gets responses when the handler has
ended. A dialogue within one call, such as a chat, cannot be in a cut: name its method in `Member.channel(listed=…)`, and it streams as usual.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from typing import Any

import grpc
import grpc.aio
import msgspec

from snapline.adapters.grpc.ledger import ServiceCall
from snapline.adapters.grpc.service_agent import MethodInterface
from snapline.errors import UsageError

STREAM_BYTES_MAX = 16 * 1024 * 1024
"""Largest size of all messages of a call in one direction: they are in every cut during the call, and in the answer until its caller has it."""

_decode = msgspec.msgpack.Decoder(list[bytes]).decode


class StreamTooLargeError(UsageError):
    """A stream exceeds the size that can be recorded."""


def pack(messages: list[bytes], method: str) -> bytes:
    """Return the messages as one payload.

    Raises:
        StreamTooLargeError: the payload would exceed 16 MiB.
    """
    if sum(map(len, messages)) > STREAM_BYTES_MAX:
        raise StreamTooLargeError(
            f"a stream of {method} has more than {STREAM_BYTES_MAX:,} bytes, and would stand in cuts: divide it, or name the method in "
            "channel(listed=…)"
        )
    return msgspec.msgpack.encode(messages)


def unpack(payload: bytes) -> list[bytes]:
    """Return the messages of a payload."""
    return _decode(payload)


async def listed(messages: Any) -> list[Any]:
    """Return all items of a synchronous or asynchronous iterator."""
    if isinstance(messages, AsyncIterable):
        return [message async for message in messages]
    return list(messages)


class StreamAttempt:
    """One attempt of a streaming call; awaited like a unary one, it returns all responses as one payload."""

    __slots__ = ("_call", "_inner")

    def __init__(self, inner: Any, call: ServiceCall, **options: Any) -> None:
        self._call = call
        request = iter(unpack(call.request)) if call.asks_stream else call.request
        self._inner = inner(request, **options)

    def __await__(self) -> Generator[Any, None, bytes]:
        return self._response().__await__()

    async def _response(self) -> bytes:
        if not self._call.answers_stream:
            response: bytes = await self._inner
            return response
        return pack([message async for message in self._inner], self._call.method)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class MemberStream:
    """Result of a stub's streaming method: await it if there is one response message; otherwise iterate or read it."""

    def __init__(self, method: MethodInterface, requests: Any, options: dict[str, Any]) -> None:
        self._method, self._requests, self._options = method, requests, options
        self._iterator: AsyncIterator[Any] | None = None
        self._call: Any = None if method.wanted.asks_stream else method.make(requests, options)

    async def _responses(self) -> list[bytes]:
        if self._call is None:
            if not isinstance(self._requests, AsyncIterable | Iterable):
                raise UsageError(
                    "a member's stream takes its requests from an iterator: write() would be a part of a call"
                )
            self._call = self._method.make(await listed(self._requests), self._options)
        payload: bytes = await self._call
        return unpack(payload) if self._method.wanted.answers_stream else [payload]

    def __await__(self) -> Generator[Any, None, Any]:
        return self._one().__await__()

    async def _one(self) -> Any:
        [response] = await self._responses()
        return self._method.decoded(response)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for response in await self._responses():
            yield self._method.decoded(response)

    async def read(self) -> Any:
        """Return the next response, or gRPC's EOF."""
        if self._iterator is None:
            self._iterator = aiter(self)
        return await anext(self._iterator, grpc.aio.EOF)


Served = Callable[[Any, Any], Any]


def collected(function: Served, serialize: Callable[[Any], bytes], method: str) -> Served:
    """Convert a streaming handler into one that takes all requests and returns all responses as one payload."""

    async def serve(request: Any, context: Any) -> bytes:
        requests = _each(request) if isinstance(request, list) else request
        return pack([serialize(response) async for response in _given(function(requests, context))], method)

    return serve


async def _each(messages: Iterable[Any]) -> AsyncIterator[Any]:
    for message in messages:
        yield message


async def _given(work: Any) -> AsyncIterator[Any]:
    """Yield the items of a streaming handler, or the single result of another one."""
    if isinstance(work, AsyncIterable):
        async for response in work:
            yield response
    else:
        yield await work
