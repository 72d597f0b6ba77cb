"""The coordinator's client for tools: its unary calls, with structs instead of protobuf and snapline's own errors.

Hosts hold an `Attend` stream instead (`agent_runtime/`).
"""

from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec

from snapline import errors
from snapline.channels.security import Security
from snapline.errors import CoordinatorUnavailableError, SnaplineError, UnknownOutcomeError
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc

TIMEOUT_S = 10.0
"""For calls that only read the coordinator's memory."""

READ_TIMEOUT_S = 600.0
"""For calls that read the store: `verify` reads every byte of it."""

SNAPSHOT_TIMEOUT_S = 120.0
"""For a snapshot; the fleet's own time-out is 60 s unless it says otherwise."""

ERROR_KEY = "snapline-error"

ReplyT = TypeVar("ReplyT")


class OpenTurn(msgspec.Struct, frozen=True):
    """A turn that has run for more than a second."""

    agent: str
    elapsed_ns: int


class HostStatus(msgspec.Struct, frozen=True):
    """One host; `state` is "alive", "lost" or "left"."""

    host: str
    address: str
    host_start: int
    state: str
    agents: int
    turns: int
    dead_letters: int
    parked: int
    busy: list[OpenTurn]
    log_messages: int
    log_bytes: int
    checkpoints: int
    forced: int
    piggyback_bytes: int
    piggybacked: int


class FleetStatus(msgspec.Struct, frozen=True):
    """The fleet; `phase` is "forming", "running", "recovering", "finished" or "failed"."""

    fleet: str
    phase: str
    protocol: str
    plan: int
    line_epoch: int
    hosts: list[HostStatus]
    hosts_expected: int
    agents: int
    epochs_begun: int
    epochs_completed: int
    epochs_aborted: int
    epochs_open: int
    triggers_skipped: int
    last_complete_epoch: int
    reason: str
    store: str
    mode: str
    log_messages: int
    log_bytes: int
    checkpoints: int
    forced: int
    piggyback_bytes: int
    piggybacked: int
    stored_log_bytes: int


class SnapshotOutcome(msgspec.Struct, frozen=True):
    """How an epoch ended that was asked for by hand; epoch 0: it did not even begin."""

    epoch: int
    is_complete: bool
    reason: str
    root: str
    elapsed_ns: int


class CoordinatorClient:
    """Calls to one coordinator; make it inside a running event loop. All methods may be called at the same time.

    All raise CoordinatorUnavailableError if nobody answers at the address, UnknownOutcomeError if no reply came in time,
    and otherwise the error that the coordinator raised.
    """

    def __init__(self, address: str, security: Security | None = None) -> None:
        self.address = address
        trusted = security or Security.loopback()
        self._channel = trusted.open_channel(address, role="coordinator", name="coordinator")
        self._stub: Any = coordinator_pb2_grpc.CoordinatorStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        await self._channel.close()

    async def status(self, timeout_s: float = TIMEOUT_S) -> FleetStatus:
        """How the fleet stands."""
        reply: pb.StatusReply = await self._call(self._stub.Status(pb.StatusRequest(), timeout=timeout_s))
        values = {name: getattr(reply, name) for name in FleetStatus.__struct_fields__}
        values["hosts"] = [_host_status(host) for host in reply.hosts]
        return FleetStatus(**values)

    async def create_snapshot(self, timeout_s: float = SNAPSHOT_TIMEOUT_S) -> SnapshotOutcome:
        """Take a snapshot now; returns when its epoch has ended."""
        request = pb.CreateSnapshotRequest()
        reply: pb.CreateSnapshotReply = await self._call(self._stub.CreateSnapshot(request, timeout=timeout_s))
        return SnapshotOutcome(reply.epoch, reply.is_complete, reply.reason, reply.root, reply.elapsed_ns)

    async def read_snapshots(
        self, verb: str, snapshot: str = "", agent: str = "", timeout_s: float = READ_TIMEOUT_S
    ) -> dict[str, object]:
        """The document for `verb`: "list", "show" or "verify".

        Raises:
            NotFoundError: no such snapshot or agent.
        """
        request = pb.ReadSnapshotsRequest(verb=verb, snapshot=snapshot, agent=agent)
        return await self._document(self._stub.ReadSnapshots(request, timeout=timeout_s))

    async def recovery_line(self, failed: Iterable[str] = (), timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Where the fleet goes back to if these agents (or `host:h1`; none: all) fail.

        Raises:
            NotFoundError: no such agent or host.
        """
        request = pb.RecoveryLineRequest(failed=list(failed))
        return await self._document(self._stub.RecoveryLine(request, timeout=timeout_s))

    async def recovery_lines(self, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """The same for every single agent and every single host."""
        return await self._document(self._stub.RecoveryLine(pb.RecoveryLineRequest(each=True), timeout=timeout_s))

    async def recovery_history(self, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """The recoveries so far, oldest first."""
        return await self._document(self._stub.RecoveryHistory(pb.RecoveryHistoryRequest(), timeout=timeout_s))

    async def report_host_exit(self, host: str, instance: str, reason: str, timeout_s: float = TIMEOUT_S) -> bool:
        """A launcher's word that this run of a host is over; returns whether the fleet counted it as alive."""
        request = pb.ReportHostExitRequest(host=host, instance=instance, reason=reason)
        reply: pb.ReportHostExitReply = await self._call(self._stub.ReportHostExit(request, timeout=timeout_s))
        return reply.is_known

    async def _document(self, call: Awaitable[pb.Document]) -> dict[str, object]:
        reply = await self._call(call)
        return msgspec.json.decode(reply.json, type=dict[str, object])

    async def _call(self, call: Awaitable[ReplyT]) -> ReplyT:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise _error_of(error, self.address) from error


def _host_status(host: pb.HostStatus) -> HostStatus:
    values = {name: getattr(host, name) for name in HostStatus.__struct_fields__}
    values["busy"] = [OpenTurn(turn.agent, turn.elapsed_ns) for turn in host.busy]
    return HostStatus(**values)


def _error_of(error: grpc.aio.AioRpcError, address: str) -> SnaplineError:
    """The error the coordinator raised, or what the failed call means."""
    details = error.details() or ""
    named = dict(error.trailing_metadata() or ()).get(ERROR_KEY)
    known = getattr(errors, named, None) if isinstance(named, str) else None
    if isinstance(known, type) and issubclass(known, SnaplineError):
        return known(details)
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return CoordinatorUnavailableError(f"no coordinator answers at {address}: is it running? ({details})")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnknownOutcomeError(
                f"the coordinator at {address} did not answer in time; what was asked may have happened"
            )
        case _:
            return SnaplineError(f"the coordinator at {address} failed: {error.code().name}: {details}")
