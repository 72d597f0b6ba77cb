"""Provides a channel for generated gRPC stubs. Calls over this channel are part of cuts.

A call is in the ledger as soon as the stub's method returns, atomically with the caller's preceding state changes. gRPC's own client
interceptors cannot guarantee this atomicity, because they run later, in a separate task.

The server interceptor handles requests to a member. A request is accepted only once, and only after the service has recorded the epochs
that its stamp requires. The answer also carries a stamp.

A request without a stamp comes from outside the fleet and is served as usual.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Self

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
    ServiceCall,
    call_stamp,
    encode_stamp,
)
from snapline.adapters.grpc.member_call import (
    CODES,
    MemberCall,
    MemberStream,
    StreamAttempt,
    collected,
    listed,
    pack,
    raise_fenced,
    unpack,
)
from snapline.adapters.grpc.service_agent import MemberInterface

ALL = "*"


class MemberChannel(grpc.aio.Channel):
    """A gRPC channel whose calls are part of cuts. Create it with `Member.channel`.

    Attributes:
        target: name that identifies the receiver in cuts.
        member_plan: plan under which a member at the target last answered. 0 if no member has answered yet.
    """

    def __init__(self, member: MemberInterface, target: str, inner: grpc.aio.Channel, listed: frozenset[str]) -> None:
        self.target = target
        self.member_plan = 0
        self._member = member
        self._inner = inner
        self._listed = listed
        self._raw: dict[str, Any] = {}

    def unary_unary(self, method: str, *given: Any, **options: Any) -> Any:
        return self._method(method, given, options)

    def unary_stream(self, method: str, *given: Any, **options: Any) -> Any:
        return self._method(method, given, options, answers_stream=True)

    def stream_unary(self, method: str, *given: Any, **options: Any) -> Any:
        return self._method(method, given, options, asks_stream=True)

    def stream_stream(self, method: str, *given: Any, **options: Any) -> Any:
        return self._method(method, given, options, asks_stream=True, answers_stream=True)

    def _method(
        self,
        method: str,
        given: tuple[Any, ...],
        options: dict[str, Any],
        *,
        asks_stream: bool = False,
        answers_stream: bool = False,
    ) -> Any:
        is_listed = ALL in self._listed or method in self._listed
        if is_listed and (asks_stream or answers_stream):
            return getattr(self._inner, _kind(asks_stream, answers_stream))(method, *given, **options)
        template = ServiceCall(
            "", self.target, method, b"", is_listed, asks_stream=asks_stream, answers_stream=answers_stream
        )
        return MemberMethod(self._member, self, template, *_serializers(*given, **options))

    def attempt(self, call: ServiceCall, **options: Any) -> Any:
        """Make one attempt of a call over gRPC's own channel. Request and response are in serialized form."""
        made = self._raw.get(call.method)
        if made is None:
            kind = _kind(call.asks_stream, call.answers_stream)
            made = self._raw[call.method] = getattr(self._inner, kind)(call.method, None, None)
        if call.asks_stream or call.answers_stream:
            return StreamAttempt(made, call, **options)
        return made(call.request, **options)

    def again(self, call: ServiceCall) -> None:
        """Send a call that is already in the ledger and that no caller awaits. The call was made either before a recovery or by
        `send`."""
        self._member.start(self._again(call))

    async def _again(self, call: ServiceCall) -> None:
        made = MemberCall(self._member, self, call, None, None)
        try:
            answer = await made.answer(self._member.reenter)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.ABORTED:
                return
            answer = CallAnswer(error.code().value[0], error.details() or "")
        self._member.answered(call, answer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()


def _kind(asks_stream: bool, answers_stream: bool) -> str:
    """Return gRPC's name for this type of method, such as `unary_stream`."""
    return f"{'stream' if asks_stream else 'unary'}_{'stream' if answers_stream else 'unary'}"


def _serializers(
    request_serializer: Callable[[Any], bytes] | None = None,
    response_deserializer: Callable[[bytes], Any] | None = None,
    _registered_method: bool | None = False,
) -> tuple[Callable[[Any], bytes] | None, Callable[[bytes], Any] | None]:
    """Return the request serializer and the response deserializer, taken from the arguments that a stub passes to its channel."""
    return request_serializer, response_deserializer


class MemberMethod:
    """A method of a stub. `wanted` is a template for the calls of this method."""

    __slots__ = ("_channel", "_deserialize", "_member", "_serialize", "wanted")

    def __init__(
        self,
        member: MemberInterface,
        channel: MemberChannel,
        wanted: ServiceCall,
        serialize: Callable[[Any], bytes] | None,
        deserialize: Callable[[bytes], Any] | None,
    ) -> None:
        self._member, self._channel, self.wanted = member, channel, wanted
        self._serialize: Callable[[Any], bytes] = serialize or bytes
        self._deserialize = deserialize

    def __call__(self, request: Any, **options: Any) -> MemberCall | MemberStream:
        """Make a call and return its call object. The call is in the ledger when this method returns. If the request is a stream, the call
        enters the ledger when the caller has produced the last request message.

        Raises:
            DivergedCallError: the calling handler was rerun, and makes a different call than in its first run.
            grpc.aio.AioRpcError: the fleet has not started yet, or has rolled back since the handler began (ABORTED).
        """
        if self.wanted.asks_stream or self.wanted.answers_stream:
            return MemberStream(self, request, options)
        return self.make(request, options, self._deserialize)

    def make(
        self, request: Any, options: dict[str, Any], deserialize: Callable[[bytes], Any] | None = None
    ) -> MemberCall:
        """Make a call from a complete request. If the request is a stream, `request` contains all its messages."""
        call, handling = self._made(request)
        timeout, metadata = options.pop("timeout", None), options.pop("metadata", None)
        return MemberCall(
            self._member,
            self._channel,
            call,
            handling,
            deserialize,
            timeout=timeout,
            metadata=metadata,
            options=options,
        )

    def send(self, request: Any) -> ServiceCall:
        """Make a call and return without waiting for the answer. The member later passes the answer to the service's method `answered`.

        In a handler, `send` implies `changed()`. This method raises the same errors as a direct call of the stub's method.
        """
        call, _ = self._made(request, is_sent=True)
        self._channel.again(call)
        return call

    def decoded(self, response: bytes) -> Any:
        """Deserialize one response."""
        return self._deserialize(response) if self._deserialize is not None else response

    def _made(self, request: Any, *, is_sent: bool = False) -> tuple[ServiceCall, HandlerExecution | None]:
        member, run, template = self._member, RUN.get(), self.wanted
        handling = None
        if not member.plan or (run is not None and run.plan != member.plan):
            raise_fenced(template.method)
        if run is not None and run.handling is not None and not template.is_listed:
            handling = member.ledger.running_of(run.handling)
        if handling is not None and is_sent:
            member.ledger.changed(handling)
        return member.ledger.call(handling, template, self._payload(request)), handling

    def _payload(self, request: Any) -> bytes:
        if self.wanted.asks_stream:
            return pack([self._serialize(message) for message in request], self.wanted.method)
        return self._serialize(request)


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
    """An RPC method with streams. A streaming call by a member is served as a single large call. A call from outside the fleet streams as
    usual."""

    __slots__ = ("_asks_stream", "_function", "_member", "_serialize", "_whole")

    def __init__(self, member: MemberInterface, handler: Any, method: str) -> None:
        self._member = member
        self._function = handler.stream_unary or handler.unary_stream or handler.stream_stream
        self._asks_stream = handler.unary_stream is None
        self._serialize = handler.response_serializer or bytes
        self._whole = UnaryHandler(member, collected(self._function, self._serialize, method), None)

    async def serve(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        """Serve a request. Yield the responses in serialized form."""
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
        """Serve a request. Return the single response to the request in serialized form."""
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
        """Serve one request. Return the response in serialized form."""
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
        """Run the handler and return its answer. If the handler raises an error, the error counts as its answer, and the handler is not
        rerun."""
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
    """A handler ended its call with `context.abort`."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(code, details)
        self.code, self.details = code, details


class ServedContext:
    """Wrapper of gRPC's context object that is passed to handlers. The wrapper holds back the final status and metadata of a call until the
    ledger has recorded the answer."""

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
        """Abort the call. Like gRPC's own method, `abort` raises an error, so that the handler stops."""
        self.trailing = (*self.trailing, *trailing_metadata)
        raise AbortedHandlerError(code.value[0], details)
