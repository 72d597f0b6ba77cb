"""Agent of a plain gRPC service in a fleet, and what a service must be able to do for it.

The agent takes no turns of its own, but a subclass may have handlers for messages of other agents. What it holds is made when a cut is: the service's state, and the ledger of its calls. So epochs, plans, the store
and recovery are the fleet's, and nothing of these is written twice.
"""

from typing import Any, ClassVar, Protocol

import msgspec

from snapline.adapters.grpc.ledger import LedgerImage
from snapline.agent_runtime.agent import Agent, OnError


class CutService(Protocol):
    """Methods that a service needs to be in a cut. All four are called in the event loop, and none may wait."""

    def capture(self) -> bytes:
        """The service's state now. Also called once before it serves: what it starts with is what a fleet without a cut goes back to."""

    def restore(self, state: bytes) -> None:
        """Go on from this state, at the start and after every recovery; also in a process that has lived on. Background tasks are started here."""

    def on_cut(self, epoch: int) -> None:
        """The service is in the cut of this epoch, which may be complete later or never."""

    def ready(self) -> bool:
        """Return whether a cut may be taken now. If not, it waits, as does what is stamped with it, until the epoch times out at most."""


class ServiceState(msgspec.Struct):
    """`service`: as `capture` has given it; None: as it starts. `calls`: of the same moment."""

    service: bytes | None = None
    calls: LedgerImage = msgspec.field(default_factory=LedgerImage)


class ServiceAgent(Agent):
    """Agent of a service: `Fleet(agents={"a": ServiceAgent()}, place={"a": "a"})`. `Member` fills it.

    A subclass may take messages of other agents of the fleet, and hand them to the service, in handlers that wait for nothing:

        class BankAgent(ServiceAgent):
            @snapline.handler
            async def on_deposit(self, message: Deposit, ctx: snapline.Context) -> None:
                self.service.balance += message.amount

    Attributes:
        service: the service itself, in the process in which it runs.
    """

    on_error: ClassVar[OnError | None] = "keep"
    state: ServiceState
    service: Any

    def __init__(self, state: ServiceState | None = None) -> None:
        super().__init__(ServiceState() if state is None else state)
