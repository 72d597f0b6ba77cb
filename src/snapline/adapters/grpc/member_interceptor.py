"""Serves the requests to a member.

A request is accepted only once, and only after the service has recorded the epochs that its stamp requires. The answer carries a stamp,
too.

A request without a stamp comes from outside of the fleet and is served as usual.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
import grpc.aio

from snapline.adapters.grpc.ledger import (
    ANSWER_KEY,
    FAILED_PRECONDITION,
    RUN,
    AnswerStamp,
    CallAnswer,
    CallStamp,
    DivergedCallError,
    HandlerExecution,
    HandlerRun,
    call_stamp,
    encode_stamp,
)
from snapline.adapters.grpc.member_call import CODES, collected, listed, unpack
from snapline.adapters.grpc.service_agent import MemberInterface

log = logging.getLogger("snapline.grpc")

UNKNOWN = 2
"""Number of gRPC's status code for a handler that has raised an error."""

METADATA: ContextVar[Any] = ContextVar("METADATA", default=())
"""Metadata of the request that this task serves. It is cached, since gRPC rebuilds it at each access."""

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class MemberInterceptor(grpc.aio.ServerInterceptor):
    """Server interceptor of a member, available as `Member.interceptor`."""

    def __init__(self, member: MemberInterface) -> None:
        self._member = member
        self._made: dict[str, tuple[Any, Any]] = {}

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        METADATA.set(handler_call_details.invocation_metadata)
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        known = self._made.get(method)
        if known is None or known[0] is not handler:
            known = self._made[method] = (handler, self._wrapped(handler, method))
        return known[1]

    def _wrapped(self, handler: Any, method: str) -> Any:
        if handler.unary_unary is not None:
            served = UnaryHandler(self._member, handler.unary_unary, handler.response_serializer)
            return grpc.unary_unary_rpc_method_handler(served.serve, handler.request_deserializer, None)
        streamed = StreamHandler(self._member, handler, method)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(streamed.serve_one, handler.request_deserializer, None)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(streamed.serve, handler.request_deserializer, None)
        return grpc.stream_stream_rpc_method_handler(streamed.serve, handler.request_deserializer, None)


class StreamHandler:
    """An RPC method with streams. A call by a member is served as one large call. A call from outside of the fleet streams as usual."""

    __slots__ = ("_asks_stream", "_function", "_member", "_serialize", "_whole")

    def __init__(self, member: MemberInterface, handler: Any, method: str) -> None:
        self._member = member
        self._function = handler.stream_unary or handler.unary_stream or handler.stream_stream
        self._asks_stream = handler.unary_stream is None
        self._serialize = handler.response_serializer or bytes
        self._whole = UnaryHandler(member, collected(self._function, self._serialize, method), None)

    async def serve(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        """Serve a request. Yield the serialized responses."""
        if call_stamp(METADATA.get()) is None:
            await self._member.admit(None)
            async for response in self._function(request, context):
                yield self._serialize(response)
            return
        requests = await listed(request) if self._asks_stream else request
        payload = await self._whole.serve(requests, context)
        for message in unpack(payload):
            yield message

    async def serve_one(self, request: Any, context: Any) -> bytes:
        """Serve a request. Return its single response, serialized."""
        if call_stamp(METADATA.get()) is None:
            await self._member.admit(None)
            return bytes(self._serialize(await self._function(request, context)))
        [message] = unpack(await self._whole.serve(await listed(request), context))
        return message


class UnaryHandler:
    """An RPC method without streams."""

    __slots__ = ("_function", "_member", "_serialize")

    def __init__(self, member: MemberInterface, function: Any, serialize: Any) -> None:
        self._member, self._function = member, function
        self._serialize = serialize or bytes

    async def serve(self, request: Any, context: Any) -> bytes:
        """Serve one request. Return the serialized response."""
        stamp = call_stamp(METADATA.get())
        member, ledger = self._member, self._member.ledger
        while True:
            if not await member.admit(stamp):
                await self._refuse(context)
            if stamp is None:
                return await self._serve_external(request, context)
            if stamp.over:
                ledger.forget(stamp.over)
            try:
                is_running = stamp.id in ledger.running
                begun = ledger.begin(stamp.id, stamp.digest)
            except DivergedCallError as error:
                return await self._send(context, CallAnswer(FAILED_PRECONDITION, str(error)), (), stamp)
            if isinstance(begun, CallAnswer):
                return await self._send(context, begun, (), stamp)
            if not is_running:
                return await self._run(request, context, begun, stamp)
            await member.other_run(stamp.id)

    async def _run(self, request: Any, context: Any, handling: HandlerExecution, stamp: CallStamp) -> bytes:
        member, task = self._member, asyncio.current_task()
        plan, served = member.plan, ServedContext(context)
        assert task is not None
        RUN.set(HandlerRun(handling, plan, self._serialize))
        member.handler_began(task)
        try:
            answer = await self._answered(request, served)
            if member.plan != plan:
                raise asyncio.CancelledError
            try:
                member.ledger.finish(handling, answer)
            except DivergedCallError as error:
                log.error("%s", error)
                answer = CallAnswer(FAILED_PRECONDITION, str(error))
        finally:
            if member.plan == plan:
                member.ledger.abandon(handling)
                member.handler_ended(task, handling.id)
        return await self._send(context, answer, served.trailing, stamp)

    async def _answered(self, request: Any, context: "ServedContext") -> CallAnswer:
        """Run the handler and return its answer. An error that the handler raises is also an answer, and does not cause a rerun."""
        try:
            response = await self._function(request, context)
        except AbortedHandlerError as error:
            return CallAnswer(error.code, error.details)
        except DivergedCallError as error:
            log.error("%s", error)
            return CallAnswer(FAILED_PRECONDITION, str(error))
        except Exception as error:
            log.exception("a handler of %s has raised", self._member.agent)
            return CallAnswer(UNKNOWN, f"Unexpected {type(error)}: {error}")
        code = context.code() or 0
        code = code if isinstance(code, int) else code.value[0]
        if code:
            return CallAnswer(code, context.details() or "")
        return CallAnswer(response=self._serialize(response))

    async def _serve_external(self, request: Any, context: Any) -> bytes:
        member, task = self._member, asyncio.current_task()
        assert task is not None
        RUN.set(HandlerRun(None, member.plan, self._serialize))
        member.handler_began(task)
        try:
            served: bytes = self._serialize(await self._function(request, context))
        finally:
            member.handler_ended(task, "")
        return served

    async def _send(self, context: Any, answer: CallAnswer, trailing: tuple[Any, ...], asked: CallStamp) -> bytes:
        member = self._member
        seen = member.seen
        if answer.code or asked.wants_stamp or seen != asked.epoch:
            trailing = (*trailing, (ANSWER_KEY, encode_stamp(AnswerStamp(member.plan, seen))))
        if answer.code:
            await context.abort(CODES.get(answer.code, grpc.StatusCode.UNKNOWN), answer.details, trailing)
        if trailing:
            context.set_trailing_metadata(trailing)
        return answer.response

    async def _refuse(self, context: Any) -> None:
        stamp = (ANSWER_KEY, encode_stamp(AnswerStamp(self._member.plan, 0, is_refused=True)))
        await context.abort(grpc.StatusCode.ABORTED, "the call is of before a recovery of the fleet", (stamp,))


class AbortedHandlerError(Exception):
    """A handler has ended its call with `context.abort`."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(code, details)
        self.code, self.details = code, details


class ServedContext:
    """Wrapper of gRPC's context that is passed to handlers. It holds back the status and metadata that end a call until the ledger has
    recorded the answer."""

    __slots__ = ("_inner", "trailing")

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.trailing: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Set the trailing metadata."""
        self.trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> tuple[Any, ...]:
        """Return the trailing metadata."""
        return self.trailing

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        """Abort the call. Like gRPC's own method, it raises an error, so that the handler stops."""
        self.trailing = (*self.trailing, *trailing_metadata)
        raise AbortedHandlerError(code.value[0], details)
