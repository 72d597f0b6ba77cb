"""Channel for generated gRPC stubs. Calls over this channel are part of cuts.

A call is in the ledger when the stub's method returns, in one piece with the caller's preceding state changes. gRPC's own client
interceptors cannot guarantee this, because they run later, in a task.
"""

from collections.abc import Callable
from typing import Any, Self

import grpc
import grpc.aio

from snapline.adapters.grpc.ledger import RUN, CallAnswer, HandlerExecution, ServiceCall
from snapline.adapters.grpc.member_call import MemberCall, MemberStream, StreamAttempt, pack, raise_fenced
from snapline.adapters.grpc.service_agent import MemberInterface

ALL = "*"


class MemberChannel(grpc.aio.Channel):
    """Channel whose calls are part of cuts. `Member.channel` creates it.

    Attributes:
        target: name of the receiver in cuts.
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
        """Make one attempt of a call over gRPC's own channel. Request and response are serialized."""
        made = self._raw.get(call.method)
        if made is None:
            kind = _kind(call.asks_stream, call.answers_stream)
            made = self._raw[call.method] = getattr(self._inner, kind)(call.method, None, None)
        if call.asks_stream or call.answers_stream:
            return StreamAttempt(made, call, **options)
        return made(call.request, **options)

    def again(self, call: ServiceCall) -> None:
        """Make a call that is already in the ledger and that no caller awaits. It was made before a recovery, or by `send`."""
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
    """Return gRPC's name for this kind of method, such as `unary_stream`."""
    return f"{'stream' if asks_stream else 'unary'}_{'stream' if answers_stream else 'unary'}"


def _serializers(
    request_serializer: Callable[[Any], bytes] | None = None,
    response_deserializer: Callable[[bytes], Any] | None = None,
    _registered_method: bool | None = False,
) -> tuple[Callable[[Any], bytes] | None, Callable[[bytes], Any] | None]:
    """Return the request serializer and the response deserializer from the arguments that stubs pass to a channel."""
    return request_serializer, response_deserializer


class MemberMethod:
    """A method of a stub. `wanted` is a template for the method's calls."""

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
        """Make a call. It is in the ledger when this method returns, or if the request is a stream, when the last request message was
        produced.

        Raises:
            DivergedCallError: the calling handler was rerun, and makes a different call than before.
            grpc.aio.AioRpcError: the fleet has rolled back since the handler began, or has not started yet (ABORTED).
        """
        if self.wanted.asks_stream or self.wanted.answers_stream:
            return MemberStream(self, request, options)
        return self.make(request, options, self._deserialize)

    def make(
        self, request: Any, options: dict[str, Any], deserialize: Callable[[bytes], Any] | None = None
    ) -> MemberCall:
        """Make a call. If the request is a stream, `request` contains all its messages."""
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
        """Make a call and return immediately. The member waits for the answer and passes it to the service's method `answered`.

        In a handler, this implies `changed()`. Raises the same errors as calling the method.
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
