"""Makes unary and streaming calls between members of a fleet. A call has one id, any number of attempts, and one answer.

If an error comes from a source other than a member, such as a broken connection, the caller cannot know whether the call was handled. If
the caller acted on an error of unknown outcome, a cut could contain both the call's effect and the caller's reaction to the apparent
failure. The member therefore retries the call under the same id until an answer arrives, the caller's deadline has passed, or the fleet has
rolled back.

A streaming call is treated as a single large call, and all its messages are recorded together. Only the first request and the final
response of a streaming call carry stamps. A stream must therefore never be processed in part. Requests are sent only when the caller has
produced the last request. The handler runs only when all requests have arrived, and the caller receives the responses only when the handler
has ended. A call in which requests and responses depend on each other, such as a chat, cannot be part of a cut. Pass the names of chat-like
methods to `Member.channel(listed=…)`, so that their calls stream as usual.
"""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
import msgspec

from snapline.adapters.grpc.ledger import (
    CALL_KEY,
    AnswerStamp,
    CallAnswer,
    CallStamp,
    HandlerExecution,
    ServiceCall,
    answer_stamp,
    encode_stamp,
)
from snapline.adapters.grpc.service_agent import ChannelInterface, MemberInterface, MethodInterface
from snapline.errors import UsageError

AGAIN_LEAST_S, AGAIN_MOST_S = 0.02, 0.5
"""Shortest and longest pause between two attempts, in seconds. The pause doubles each time. For comparison, gRPC itself waits a second or
more before it reconnects."""

UNKNOWN_OUTCOME = frozenset(
    {
        *(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN),
        *(grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED),
    }
)
"""Status codes after which it is unknown whether the call was handled, unless a member has sent them."""

CODES = {code.value[0]: code for code in grpc.StatusCode}


class MemberCall:
    """The call object that a stub's unary method returns.

    The task that acts on the answer must await the call object exactly once. All other methods of the call object refer to the current
    attempt.
    """

    __slots__ = (
        *("_attempt", "_call", "_channel", "_deadline_s", "_deserialize", "_given", "_handling", "_member"),
        *("_options", "_over", "_plan", "_stamped"),
    )

    def __init__(
        self,
        member: MemberInterface,
        channel: ChannelInterface,
        call: ServiceCall,
        handling: HandlerExecution | None,
        deserialize: Callable[[bytes], Any] | None,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        options: Mapping[str, Any] = {},
    ) -> None:
        self._member, self._channel, self._call, self._handling = member, channel, call, handling
        self._deserialize = deserialize
        self._given = tuple(metadata) if metadata else ()
        self._options = options
        self._plan = member.plan
        self._deadline_s = None if timeout is None else time.monotonic() + timeout
        self._over: Sequence[str] = ()
        self._attempt = self._try()
        member.made(self)

    def _try(self) -> Any:
        member, call = self._member, self._call
        if self._over:
            member.ledger.requeue_finished(call.target, self._over)
        self._over = member.ledger.finished_calls_for(call.target)
        self._stamped = stamp = CallStamp(
            self._plan, member.seen, call.id, call.digest, self._over, self._channel.member_plan != self._plan
        )
        timeout = None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
        metadata = (*self._given, (CALL_KEY, encode_stamp(stamp)))
        return self._channel.attempt(call, timeout=timeout, metadata=metadata, **self._options)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._attempt, name)

    async def _response(self) -> Any:
        answer = await self.answer()
        if answer.code:
            raise rpc_error(CODES.get(answer.code, grpc.StatusCode.UNKNOWN), answer.details)
        return self._deserialize(answer.response) if self._deserialize is not None else answer.response

    async def answer(self, reenter: Callable[[], Awaitable[None]] | None = None) -> CallAnswer:
        """Wait for the answer and return it. The call is removed from the ledger when this method returns, in one atomic piece with the
        caller's next work.

        Before returning, the method awaits `reenter`, which completes when the caller may continue. The call is removed from the ledger in
        the same atomic piece of work in which `reenter` completes.

        Raises:
            grpc.aio.AioRpcError: the deadline has passed (DEADLINE_EXCEEDED), or the fleet has rolled back (ABORTED).
        """
        member, wait_s = self._member, AGAIN_LEAST_S
        try:
            while True:
                error, response, stamp = await self._attempted()
                self._check_plan()
                if stamp is not None and stamp.epoch > member.seen:
                    await member.record(stamp.epoch)
                    self._check_plan()
                if stamp is not None and stamp.is_refused:
                    await self._within(member.left(self._plan), reenter)
                elif stamp is None and not self._call.is_listed and self._is_open(error):
                    await self._within(asyncio.sleep(wait_s), reenter)
                    wait_s = min(2 * wait_s, AGAIN_MOST_S)
                else:
                    await self._enter(reenter)
                    return self._take(error, response, is_reported=stamp is not None)
                self._check_plan()
                self._attempt = self._try()
        finally:
            member.ended(self)

    async def _attempted(self) -> "tuple[grpc.aio.AioRpcError | None, bytes, AnswerStamp | None]":
        attempt = self._attempt
        try:
            response = await attempt
        except grpc.aio.AioRpcError as error:
            return error, b"", answer_stamp(error.trailing_metadata())
        except asyncio.CancelledError:
            self._give_up()
            task = asyncio.current_task()
            if self._member.plan != self._plan and task is not None and not task.cancelling():
                self._check_plan()
            raise
        stamp = answer_stamp(await attempt.trailing_metadata())
        if stamp is None and not self._stamped.wants_stamp:
            stamp = AnswerStamp(self._plan, self._stamped.epoch)
        return None, response, stamp

    def _take(self, error: "grpc.aio.AioRpcError | None", response: bytes, *, is_reported: bool) -> CallAnswer:
        """Close the call. Return the call's answer. If the last attempt failed with an error that did not come from a member, raise that
        error."""
        ledger, call = self._member.ledger, self._call
        if is_reported:
            self._channel.member_plan = self._plan
        self._report_finished(is_reported=is_reported)
        ledger.answered(call, self._handling)
        if error is None:
            if not is_reported and not call.is_listed:
                raise rpc_error(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"{call.target} has answered {call.method} and is no member of the fleet: give its server the member's interceptor, "
                    "or name the method in channel(listed=…)",
                )
            return CallAnswer(response=response)
        if not is_reported:
            raise error
        return CallAnswer(error.code().value[0], error.details() or "")

    def _is_open(self, error: "grpc.aio.AioRpcError | None") -> bool:
        return error is not None and error.code() in UNKNOWN_OUTCOME

    def _report_finished(self, *, is_reported: bool) -> None:
        over, self._over = self._over, ()
        if over and is_reported:
            self._member.ledger.confirm_finished(self._call.target, over)
        elif over:
            self._member.ledger.requeue_finished(self._call.target, over)

    def _give_up(self) -> None:
        if self._member.plan == self._plan:
            self._report_finished(is_reported=False)
            self._member.ledger.answered(self._call, self._handling)

    async def _enter(self, reenter: Callable[[], Awaitable[None]] | None) -> None:
        if reenter is not None:
            await reenter()
            self._check_plan()

    def give_up(self) -> None:
        """Give up the call without waiting for its answer, because the caller no longer needs the answer."""
        self._give_up()
        self._member.ended(self)
        self._attempt.cancel()

    async def _within(self, waiting: Any, reenter: Callable[[], Awaitable[None]] | None) -> None:
        """Wait for `waiting`, but no longer than until the call's deadline. If the deadline passes, give up the call and raise
        DEADLINE_EXCEEDED."""
        left_s = None if self._deadline_s is None else self._deadline_s - time.monotonic()
        try:
            await asyncio.wait_for(waiting, left_s)
        except TimeoutError:
            await self._enter(reenter)
            self._give_up()
            raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer to call {self._call.id} in time") from None
        except asyncio.CancelledError:
            self._give_up()
            raise

    def _check_plan(self) -> None:
        if self._member.plan != self._plan:
            raise_fenced(self._call.id)

    def fence(self) -> None:
        """Cancel the call, because the fleet is rolling back and the call belongs to a discarded history."""
        self._attempt.cancel()


def raise_fenced(call: str) -> NoReturn:
    """Raise the error that reports that a call belongs to an older history."""
    raise rpc_error(
        grpc.StatusCode.ABORTED, f"the fleet has gone back to a cut, and call {call} is of what came after it"
    )


def rpc_error(code: grpc.StatusCode, details: str) -> "grpc.aio.AioRpcError":
    """Return an error of the same class that gRPC raises."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


STREAM_BYTES_MAX = 16 * 1024 * 1024
"""Largest total size in bytes of a call's messages in one direction. The size is limited because every cut taken during the call contains
the messages, and because the answer is stored until the caller has received it."""

_decode = msgspec.msgpack.Decoder(list[bytes]).decode


class StreamTooLargeError(UsageError):
    """A stream is too large to be recorded."""


def pack(messages: list[bytes], method: str) -> bytes:
    """Pack all messages of a stream into a single payload.

    Raises:
        StreamTooLargeError: the messages are larger than 16 MiB in total.
    """
    if sum(map(len, messages)) > STREAM_BYTES_MAX:
        raise StreamTooLargeError(
            f"a stream of {method} has more than {STREAM_BYTES_MAX:,} bytes, and would stand in cuts: divide it, or name the method in "
            "channel(listed=…)"
        )
    return msgspec.msgpack.encode(messages)


def unpack(payload: bytes) -> list[bytes]:
    """Return the messages in a payload created by `pack`."""
    return _decode(payload)


async def listed(messages: Any) -> list[Any]:
    """Return a list of all items of a synchronous or asynchronous iterable."""
    if isinstance(messages, AsyncIterable):
        return [message async for message in messages]
    return list(messages)


class StreamAttempt:
    """One attempt of a streaming call. Like a unary call, the attempt can be awaited. The result is a single payload that contains all
    responses."""

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
    """The call object that a stub's streaming method returns.

    If the method has a single response message, await the call object. If the method returns a response stream, iterate over the call
    object or call its `read`.
    """

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
        """Return the next response, or gRPC's EOF marker after the last response."""
        if self._iterator is None:
            self._iterator = aiter(self)
        return await anext(self._iterator, grpc.aio.EOF)


Served = Callable[[Any, Any], Any]


def collected(function: Served, serialize: Callable[[Any], bytes], method: str) -> Served:
    """Convert a streaming handler into a handler that receives all requests at once and returns all responses as one payload."""

    async def serve(request: Any, context: Any) -> bytes:
        requests = _each(request) if isinstance(request, list) else request
        return pack([serialize(response) async for response in _given(function(requests, context))], method)

    return serve


async def _each(messages: Iterable[Any]) -> AsyncIterator[Any]:
    for message in messages:
        yield message


async def _given(work: Any) -> AsyncIterator[Any]:
    """Yield the responses of a handler that returns either an asynchronous stream or a single awaitable response."""
    if isinstance(work, AsyncIterable):
        async for response in work:
            yield response
    else:
        yield await work
