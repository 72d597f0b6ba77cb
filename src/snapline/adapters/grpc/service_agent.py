"""Defines the agent that represents a plain gRPC service in a fleet, and the interfaces of the service, the member and the member's
channels.

The agent starts no turns of its own, but a subclass may have handlers for messages from other agents. The agent's state is assembled when a
cut is taken. The state of a service's agent consists of the service's state and the ledger of the service's calls. Epochs, plans, the store
and recovery therefore work in the same way as in any other fleet.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Protocol

import msgspec

from snapline.adapters.grpc.ledger import CallAnswer, CallLedger, CallStamp, LedgerImage, ServiceCall
from snapline.agent_runtime.agent import Agent, OnError


class CutService(Protocol):
    """Methods that a service must provide so that it can be included in cuts. All four methods are called in the event loop, so they must
    not block."""

    def capture(self) -> bytes:
        """Return the service's current state.

        The method is also called once before the service starts to serve requests. If no cut exists, the fleet rolls back to the state that
        this first call returned.
        """

    def restore(self, state: bytes) -> None:
        """Restore the service to the given state.

        The method is called at startup and after every recovery, even in a process that has not failed. The method must also start the
        service's background tasks.
        """

    def on_cut(self, epoch: int) -> None:
        """React to the service's inclusion in the cut of this epoch. The cut may become complete later, or it may never become complete."""

    def ready(self) -> bool:
        """Return whether a cut may be taken now.

        If the result is False, the cut waits, and so do the calls stamped with its epoch. The cut and the calls wait no longer than until
        the epoch times out.
        """


class ServiceState(msgspec.Struct):
    """State of the agent that represents a service. `service` is the result of `capture`, or None for the initial state. `calls` is the
    content of the ledger at the time of `capture`."""

    service: bytes | None = None
    calls: LedgerImage = msgspec.field(default_factory=LedgerImage)


class ServiceAgent(Agent):
    """Agent that represents a gRPC service, as in `Fleet(agents={"a": ServiceAgent()}, place={"a": "a"})`. `Member` sets the attribute
    `service`.

    A subclass may handle messages from other agents of the fleet, and pass these messages to the service. Handlers of a subclass must not
    wait for anything:

        class BankAgent(ServiceAgent):
            @snapline.handler
            async def on_deposit(self, message: Deposit, ctx: snapline.Context) -> None:
                self.service.balance += message.amount

    Attributes:
        service: the represented service, which is set only in the process in which the service runs.
    """

    on_error: ClassVar[OnError | None] = "keep"
    state: ServiceState
    service: Any

    def __init__(self, state: ServiceState | None = None) -> None:
        super().__init__(ServiceState() if state is None else state)


class FencedCall(Protocol):
    """A call that waits for its answer."""

    def fence(self) -> None:
        """Cancel the call, because the fleet is rolling back."""


class MemberInterface(Protocol):
    """The interface of `Member`, which documents the methods."""

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
    """The interface of `MemberChannel`, which documents the methods."""

    member_plan: int

    def attempt(self, call: ServiceCall, **options: Any) -> Any: ...


class MethodInterface(Protocol):
    """The interface of `MemberMethod`, which documents the methods."""

    wanted: ServiceCall

    def make(self, request: Any, options: dict[str, Any]) -> Any: ...

    def decoded(self, response: bytes) -> Any: ...
