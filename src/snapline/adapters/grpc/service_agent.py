"""Define the agent that represents a plain gRPC service in a fleet, and the interfaces of the service, member and channel.

The agent runs no turns of its own, but a subclass may have handlers for messages of other agents. The agent's state is built when a cut is
taken, and consists of the service's state and the ledger of the service's calls. So epochs, plans, the store and recovery work as in any
other fleet.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Protocol

import msgspec

from snapline.adapters.grpc.ledger import CallAnswer, CallLedger, CallStamp, LedgerImage, ServiceCall
from snapline.agent_runtime.agent import Agent, OnError


class CutService(Protocol):
    """Methods that a service needs so that cuts can include it. All four methods are called in the event loop and must not block."""

    def capture(self) -> bytes:
        """Return the service's current state.

        It is also called once before the service serves: without a cut, the fleet rolls back to that initial state.
        """

    def restore(self, state: bytes) -> None:
        """Continue from this state.

        It is called at the start and after every recovery, also in a process that did not fail. Start background tasks here.
        """

    def on_cut(self, epoch: int) -> None:
        """React to the service's inclusion in the cut of this epoch. The cut may become complete later, or never."""

    def ready(self) -> bool:
        """Return whether a cut may be taken now.

        If not, the cut and the calls stamped with its epoch wait, at most until the epoch times out.
        """


class ServiceState(msgspec.Struct):
    """State of a service's agent. `service`: result of `capture`, or None for the initial state. `calls`: the ledger at the same moment."""

    service: bytes | None = None
    calls: LedgerImage = msgspec.field(default_factory=LedgerImage)


class ServiceAgent(Agent):
    """Agent that represents a service: `Fleet(agents={"a": ServiceAgent()}, place={"a": "a"})`. `Member` sets the agent's service.

    A subclass may handle messages of other agents of the fleet and pass them to the service. Such handlers must not wait:

        class BankAgent(ServiceAgent):
            @snapline.handler
            async def on_deposit(self, message: Deposit, ctx: snapline.Context) -> None:
                self.service.balance += message.amount

    Attributes:
        service: the service; set only in the process in which the service runs.
    """

    on_error: ClassVar[OnError | None] = "keep"
    state: ServiceState
    service: Any

    def __init__(self, state: ServiceState | None = None) -> None:
        super().__init__(ServiceState() if state is None else state)


class FencedCall(Protocol):
    """A call that waits for its answer."""

    def fence(self) -> None:
        """End the call, because the fleet is rolling back."""


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
