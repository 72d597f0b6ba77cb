"""The handler run that makes a call, found through the context of its task or thread."""

from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from snapline.adapters.grpc.ledger import HandlerExecution


class Serialize(Protocol):
    """Serializer of a response."""

    def __call__(self, response: Any, /) -> bytes: ...


class HandlerRun(NamedTuple):
    """A running handler. `handling`: None if its caller is not in the fleet; `plan`: the plan under which it began."""

    handling: HandlerExecution | None
    plan: int
    serialize: Serialize


RUN: ContextVar[HandlerRun | None] = ContextVar("RUN", default=None)
