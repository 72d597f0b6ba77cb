"""Common parts of all calls to the coordinator. Errors are converted to gRPC statuses, and a replica that does not lead tells its callers
which replica leads."""

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

import grpc

from snapline.coordinator.raft.raft_driver import Replica
from snapline.coordinator.service.leadership import Leadership
from snapline.errors import (
    CoordinatorUnavailableError,
    NotFoundError,
    PeerError,
    SnaplineError,
    StoreError,
    UsageError,
)
from snapline.messages.coordinator_client import LEADER_KEY
from snapline.security.rpc_authorization import ERROR_KEY, Context


class LeaderHint:
    """The current leader, as far as this replica knows."""

    def __init__(self, leadership: Leadership, replica: Replica, members: Mapping[str, str]) -> None:
        self._leadership = leadership
        self._replica = replica
        self._members = members

    def sentence(self) -> str:
        """Return a sentence that says why this replica does not answer the call."""
        leader = self._leadership.leader
        if leader and not self._replica.driver.standing.is_leader:
            return f"another replica, {leader}, leads the coordinator"
        return "no replica leads the coordinator just now"

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the trailing metadata for a call that this replica does not answer. The metadata contains the leader's address, or "" if
        the address is unknown."""
        leader = self._leadership.leader
        is_other = leader in self._members and not self._replica.driver.standing.is_leader
        address = self._members[leader] if is_other else ""
        return ((ERROR_KEY, CoordinatorUnavailableError.__name__), (LEADER_KEY, address))


class Servicer(Protocol):
    """Interface that `with_grpc_errors` requires from a servicer."""

    @property
    def leader_hint(self) -> LeaderHint: ...


ServicerT = TypeVar("ServicerT", bound=Servicer)
RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


def status_of(error: SnaplineError) -> grpc.StatusCode:
    """Return the gRPC status code for `error`."""
    match error:
        case NotFoundError():
            return grpc.StatusCode.NOT_FOUND
        case UsageError():
            return grpc.StatusCode.INVALID_ARGUMENT
        case PeerError():
            return grpc.StatusCode.FAILED_PRECONDITION
        case CoordinatorUnavailableError():
            return grpc.StatusCode.UNAVAILABLE
        case StoreError():
            return grpc.StatusCode.DATA_LOSS
        case _:
            return grpc.StatusCode.INTERNAL


def with_grpc_errors(
    call: Callable[[ServicerT, RequestT, Context], Awaitable[ReplyT]],
) -> Callable[[ServicerT, RequestT, Context], Awaitable[ReplyT]]:
    """Decorate a gRPC handler so that its errors are sent to the caller with their own text."""

    @functools.wraps(call)
    async def wrapper(self: ServicerT, request: RequestT, context: Context) -> ReplyT:
        try:
            return await call(self, request, context)
        except SnaplineError as error:
            is_elsewhere = isinstance(error, CoordinatorUnavailableError)
            metadata = self.leader_hint.metadata() if is_elsewhere else ((ERROR_KEY, type(error).__name__),)
            context.set_trailing_metadata(metadata)
            await context.abort(status_of(error), str(error))
            raise AssertionError("abort raises") from error

    return wrapper
