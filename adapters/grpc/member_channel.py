"""A channel whose calls are in the cut: for the stubs that gRPC generates.

A call is in the ledger from the moment in which the stub's method returns, in one piece with what its caller has changed before it. gRPC's own
client interceptors run later, in a task, and could not do that.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from snapline.adapters.grpc.handler_runs import RUN
from snapline.adapters.grpc.ledger import CallAnswer, Handling, ServiceCall
from snapline.adapters.grpc.member_call import Attempts, MemberCall, fenced
from snapline.errors import MisuseError

if TYPE_CHECKING:
    from snapline.adapters.grpc.member import Member

ALL = "*"


class MemberChannel(grpc.aio.Channel):
    """See the module; made by `Member.channel`.

    Attributes:
        target: its name.
        member_plan: under which a member has answered last.
    """

    def __init__(self, member: "Member", target: str, inner: grpc.aio.Channel, listed: frozenset[str]) -> None:
        self.target = target
        self.member_plan = 0
        self._member = member
        self._inner = inner
        self._listed = listed
        self._raw: dict[str, Attempts] = {}

    def unary_unary(  # type: ignore[override]  # what stubs need of a multicallable, and send()
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> "MemberMethod":
        is_listed = ALL in self._listed or method in self._listed
        return MemberMethod(self._member, self, method, request_serializer, response_deserializer, is_listed)

    def raw(self, method: str) -> Attempts:
        """gRPC's own, of bytes."""
        made = self._raw.get(method)
        if made is None:
            made = self._raw[method] = self._inner.unary_unary(method, None, None)
        return made

    def again(self, call: ServiceCall) -> None:
        """Make a call of the ledger that nobody awaits: one of before a recovery, or of `send`."""
        self._member.start(self._again(call))

    async def _again(self, call: ServiceCall) -> None:
        made = MemberCall(self._member, self, call, None, None)
        try:
            answer = await made.answer()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.ABORTED:
                return
            answer = CallAnswer(error.code().value[0], error.details() or "")
        self._member.answered(call, answer)

    def unary_stream(self, method: str, *_: Any, **__: Any) -> Any:
        return self._inner.unary_stream(method, *_, **__)

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Any:
        return self._inner.stream_unary(method, *_, **__)

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Any:
        return self._inner.stream_stream(method, *_, **__)

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


class MemberMethod:
    """A stub's method."""

    __slots__ = ("_channel", "_deserialize", "_is_listed", "_member", "_method", "_serialize")

    def __init__(
        self,
        member: "Member",
        channel: MemberChannel,
        method: str,
        serialize: Callable[[Any], bytes] | None,
        deserialize: Callable[[bytes], Any] | None,
        is_listed: bool,
    ) -> None:
        self._member, self._channel, self._method = member, channel, method
        self._serialize, self._deserialize, self._is_listed = serialize, deserialize, is_listed

    def __call__(
        self, request: Any, *, timeout: float | None = None, metadata: Any = None, **options: Any
    ) -> MemberCall:
        """Make the call: it is in the ledger when this returns.

        Raises:
            DivergedCallError: the handler that makes it was run again, and called something else before.
            grpc.aio.AioRpcError: ABORTED, the fleet has gone back since the handler began, or has not begun.
        """
        call, handling = self._made(request)
        return MemberCall(
            self._member,
            self._channel,
            call,
            handling,
            self._deserialize,
            timeout=timeout,
            metadata=metadata,
            options=options,
        )

    def send(self, request: Any) -> ServiceCall:
        """Make the call, and leave it to the member: nobody awaits it, and `answered` of the service gets its answer."""
        call, handling = self._made(request)
        if handling is not None and not handling.is_changed:
            raise MisuseError(
                f"{self._method} is sent in a handler that may be run again: send behind changed(), or await the call"
            )
        self._member.post(call)
        return call

    def _made(self, request: Any) -> tuple[ServiceCall, Handling | None]:
        member, run = self._member, RUN.get()
        handling = None
        if run is not None:
            if run.plan != member.plan:
                fenced(self._method)
            if run.handling is not None and member.ledger.running.get(run.handling.id) is run.handling:
                handling = run.handling
        if not member.plan:
            fenced(self._method)
        payload = self._serialize(request) if self._serialize is not None else request
        made = member.ledger.call(handling, self._channel.target, self._method, payload, is_listed=self._is_listed)
        return made, None if self._is_listed else handling
