"""Handler run that makes a call: known from the context of the task, or thread, that makes it."""

from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from snapline.adapters.grpc.ledger import Handling


class Serialize(Protocol):
    """A response as it is sent."""

    def __call__(self, response: Any, /) -> bytes: ...


class HandlerRun(NamedTuple):
    """A handler that runs. `handling` is None where its caller is not of the fleet; `plan`: under which it began."""

    handling: Handling | None
    plan: int
    serialize: Serialize


RUN: ContextVar[HandlerRun | None] = ContextVar("RUN", default=None)
