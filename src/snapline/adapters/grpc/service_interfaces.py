"""Interfaces of a member and a channel, as used by calls and handlers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from snapline.adapters.grpc.ledger import CallAnswer, CallLedger, CallStamp, ServiceCall


class FencedCall(Protocol):
    """A call that waits for its answer."""

    def fence(self) -> None:
        """End the call: the fleet rolls back."""


class MemberInterface(Protocol):
    """Interface of `Member`, documented there."""

    agent: str
    plan: int
    ledger: CallLedger
    reenter: Callable[[], Awaitable[None]] | None

    @property
    def seen(self) -> int: ...

    async def admit(self, stamp: CallStamp | None) -> bool: ...

    async def record(self, epoch: int) -> None: ...

    async def left(self, plan: int) -> None: ...

    async def other_run(self, call_id: str) -> None: ...

    def start(self, work: Any) -> "asyncio.Task[Any]": ...

    def made(self, call: FencedCall) -> None: ...

    def ended(self, call: FencedCall) -> None: ...

    def handler_began(self, task: "asyncio.Task[Any]") -> None: ...

    def handler_ended(self, task: "asyncio.Task[Any]", call_id: str) -> None: ...

    def answered(self, call: ServiceCall, answer: CallAnswer) -> None: ...


class ChannelInterface(Protocol):
    """Interface of `MemberChannel`."""

    member_plan: int

    def attempt(self, call: ServiceCall, **options: Any) -> Any: ...


class MethodInterface(Protocol):
    """Interface of `MemberMethod`."""

    wanted: ServiceCall

    def make(self, request: Any, options: dict[str, Any]) -> Any: ...

    def decoded(self, response: bytes) -> Any: ...
