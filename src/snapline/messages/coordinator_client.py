"""The client through which tools call the coordinator: unary calls, with structs instead of protobuf and with snapline's own errors.

Hosts use an `Attend` stream instead (`agent_runtime/`). `ReplicaChoice` is pure; hosts and tools use it to choose the next replica to
ask. A replica that does not lead names the leader by its internal address. That address may be unreachable from elsewhere (a forwarded
port, another network, an internal name), while the configured address of the leader is reachable. So the named address is asked first. If
it does not answer, the configured addresses are asked in turn, and the named address is skipped until each of them was asked.
"""

import asyncio
import math
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec

from snapline import errors
from snapline.errors import (
    AuthenticationError,
    CoordinatorUnavailableError,
    ProtocolError,
    SnaplineError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.messages.answers import (
    BackupReply,
    CheckTokenReply,
    LocateReply,
    MakeTokenReply,
    MoveAgentsReply,
    MoveConsumerReply,
    ReadAuditReply,
    ReadConsumersReply,
    ReadOutputsReply,
    ReadTokensReply,
    ReportHostExitReply,
    RestorePreview,
    RestoreReply,
    document_of,
)
from snapline.messages.host_messages import TurnDeath
from snapline.messages.status import FleetStatus, SnapshotOutcome
from snapline.messages.wire import decode_reply, encode_request, path_of
from snapline.security.rpc_authorization import ERROR_KEY
from snapline.security.transport import Security, distrust_reason, transport_mismatch, trust_advice


class ReplicaChoice:
    """Choice of the replica to ask next.

    Attributes:
        given: all configured addresses, in the given order; never empty.
        current: address to ask now.
    """

    def __init__(self, given: Sequence[str], may_use_address: Callable[[str], bool]) -> None:
        """Create the choice. `may_use_address` says whether an address that a replica names may be used. It is not asked if only one
        address is configured: then any named address may be used."""
        self.given = tuple(given)
        self.current = self.given[0]
        self._may_use_address = may_use_address if len(self.given) > 1 else lambda address: True
        self._place = 0
        """Index in `given` of the configured address that was asked last."""
        self._unreached: dict[str, None] = {}
        """Addresses that replicas have named and that have not answered since the last round began."""

    def on_not_leader(self, address: str, leader: str) -> None:
        """Note that the replica at `address` does not lead. `leader` is the address that the replica names, or empty."""
        self._unreached.pop(address, None)
        self._asked(address)
        if leader and leader not in self._unreached and self._may_use_address(leader):
            self.current = leader
        else:
            self._go_on()

    def is_silent(self, address: str) -> None:
        """Note that the replica at `address` did not answer."""
        if address not in self.given:
            self._unreached[address] = None
        self._asked(address)
        self._go_on()

    def _asked(self, address: str) -> None:
        if address in self.given:
            self._place = self.given.index(address)

    def _go_on(self) -> None:
        self._place = (self._place + 1) % len(self.given)
        if self._place == 0:
            self._unreached.clear()
        self.current = self.given[self._place]


TIMEOUT_S = 10.0
"""Time limit in seconds for calls that only read the coordinator's memory."""

READ_TIMEOUT_S = 600.0
"""Time limit in seconds for calls that read the store: `verify` reads every byte of the store."""

SNAPSHOT_TIMEOUT_S = 120.0
"""Time limit in seconds for a snapshot or a restore. The fleet's own default time-out is 60 s."""

LOCATED_MAX = 2000
"""Largest number of agents in one call: with names of maximal length they fit into the call's request."""

LEADER_KEY = "snapline-leader"
"""Trailing metadata from a replica that does not lead: the leader's address, or empty if unknown."""

TROUBLE_S = 2.5
"""Time in seconds after which a call that is still retrying reports the reason. An election takes a second or two."""

RETRY_S = 0.05
"""Pause in seconds before the next replica is tried. An election takes a second or two."""

RETRY_TIME_LEFT_MIN_S = 0.25
"""Least remaining time in seconds for another attempt. A call cut short would report an unknown outcome instead of the silent replica."""

PATIENCE_S, PAUSE_S = 2.0, 0.1
"""Time in seconds for retrying an unreachable coordinator, and the pause between attempts. It may be starting, or its machine
overloaded."""

_Reply = TypeVar("_Reply")

_Ask = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class CoordinatorClient:
    """Calls to the coordinator. Create the object inside a running event loop. All methods may run concurrently.

    `address` is one address, or those of several replicas separated by commas. A call goes first to the replica that answered last. A
    replica that does not lead names the leader. If a replica does not answer, the client tries the next one until the call's time limit
    (`ReplicaChoice`). So a call may be made twice. That does no harm: calls that change state are idempotent, except that a repeated
    `create_snapshot` may take one more snapshot.

    All methods raise CoordinatorUnavailableError if no replica answers (AuthenticationError if certificates are the cause),
    UnknownOutcomeError if no reply came in time, and otherwise the error that the coordinator raised.
    """

    def __init__(
        self,
        address: str,
        security: Security | None = None,
        *,
        on_trouble: Callable[[str], None] = lambda trouble: None,
    ) -> None:
        """Create a client. `on_trouble` gets a sentence when a call has retried for a while because no replica answers or none leads."""
        self.address = address
        self._on_trouble = on_trouble
        self._security = security or Security.loopback()
        self._turns = ReplicaChoice(
            [part.strip() for part in address.split(",") if part.strip()], self._security.may_dial
        )
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._channel(self._turns.current)  # Raises early if the address must not be used.

    async def close(self) -> None:
        """Close the connections. Pending calls are cancelled."""
        for channel in self._channels.values():
            await channel.close()

    async def status(
        self, timeout_s: float = TIMEOUT_S, *, stale: bool = False, unconfirmed: bool = False
    ) -> FleetStatus:
        """Return the fleet's status. With `stale`, any replica may answer, from the state that it has applied.

        With `unconfirmed`, the leader answers without confirming its leadership, which saves a write to the log. A replaced leader may then
        answer for a short time, so only callers that poll should use this.
        """
        status: FleetStatus = await self._call("Status", timeout_s, stale=stale, unconfirmed=unconfirmed)
        return status

    async def create_snapshot(self, timeout_s: float = SNAPSHOT_TIMEOUT_S) -> SnapshotOutcome:
        """Take a snapshot now; return when its epoch has ended."""
        outcome: SnapshotOutcome = await self._call("CreateSnapshot", timeout_s)
        return outcome

    async def read_snapshots(
        self, verb: str, snapshot: str = "", agent: str = "", timeout_s: float = READ_TIMEOUT_S
    ) -> dict[str, object]:
        """Return the document for `verb`: "list", "show", "verify" or "history".

        Raises:
            NotFoundError: the snapshot or agent does not exist.
        """
        return document_of(await self._call("ReadSnapshots", timeout_s, verb=verb, snapshot=snapshot, agent=agent))

    async def recovery_line(self, failed: Iterable[str] = (), timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Return the recovery line if these agents (or all agents of a host, `host:h1`) fail. Without any, all agents fail.

        Raises:
            NotFoundError: an agent or host does not exist.
        """
        return document_of(await self._call("RecoveryLine", timeout_s, failed=list(failed)))

    async def recovery_lines(self, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Return the recovery line for every single agent and every single host."""
        return document_of(await self._call("RecoveryLine", timeout_s, each=True))

    async def recovery_history(self, timeout_s: float = TIMEOUT_S, *, stale: bool = False) -> dict[str, object]:
        """Return the recoveries so far, oldest first."""
        return document_of(await self._call("RecoveryHistory", timeout_s, stale=stale))

    async def preview_restore(
        self, snapshot: str, timeout_s: float = READ_TIMEOUT_S, *, drop_inputs: bool = False
    ) -> RestorePreview:
        """Return what a restore of a snapshot would undo. Raises the errors that `restore` raises for that snapshot."""
        reply: RestorePreview = await self._call(
            "PreviewRestore", timeout_s, snapshot=snapshot, drop_inputs=drop_inputs
        )
        return reply

    async def restore(
        self, snapshot: str, token: str, reason: str, is_dropping: bool, timeout_s: float = SNAPSHOT_TIMEOUT_S
    ) -> RestoreReply:
        """Restore the fleet to a snapshot; return when the plan is committed. Calls with the same `token` are the same restore.

        Raises:
            NotFoundError: the snapshot does not exist.
            UsageError: the fleet cannot be restored to the snapshot, for the given reason.
            ExternalFailureError: no plan could be made in time, or another restore is in progress.
        """
        reply: RestoreReply = await self._call(
            "Restore", timeout_s, snapshot=snapshot, token=token, reason=reason, drop_inputs=is_dropping
        )
        return reply

    async def locate(self, agents: Iterable[str], timeout_s: float = TIMEOUT_S) -> LocateReply:
        """Return the locations of these agents, in the given order; at most `LOCATED_MAX` agents."""
        reply: LocateReply = await self._call("Locate", timeout_s, agents=list(agents))
        return reply

    async def locate_all(self, timeout_s: float = TIMEOUT_S) -> LocateReply:
        """Return the locations of all agents that take turns, sorted."""
        reply: LocateReply = await self._call("Locate", timeout_s, all=True)
        return reply

    async def read_outputs(
        self, after: str = "", topic: str = "", wait_s: float = 0.0, timeout_s: float = TIMEOUT_S
    ) -> ReadOutputsReply:
        """Return one page of released outputs after a cursor. If there is none, wait for an output.

        Raises:
            UsageError: the cursor does not belong to this fleet's store.
            NotFoundError: the outputs after the cursor were deleted.
            DamagedDataError, StoreError: the coordinator found damage, or could not read the store.
        """
        wait_ms = round(wait_s * 1000)
        page: ReadOutputsReply = await self._call(
            "ReadOutputs", wait_s + timeout_s, after=after, topic=topic, wait_ms=wait_ms
        )
        return page

    async def read_consumers(self, timeout_s: float = TIMEOUT_S) -> ReadConsumersReply:
        """Return the named consumers of outputs, and their positions."""
        reply: ReadConsumersReply = await self._call("ReadConsumers", timeout_s)
        return reply

    async def move_consumer(self, name: str, cursor: str = "", timeout_s: float = TIMEOUT_S) -> str:
        """Acknowledge all outputs up to `cursor` for a consumer; return the consumer's position. The first call creates the consumer;
        positions never go back.

        Raises:
            UsageError: the name is not valid, or the cursor does not belong to this fleet's store.
        """
        reply: MoveConsumerReply = await self._call("MoveConsumer", timeout_s, name=name, cursor=cursor)
        return reply.cursor

    async def forget_consumer(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        """Delete a consumer and its position. Raises NotFoundError if the consumer does not exist."""
        await self._call("ForgetConsumer", timeout_s, name=name)

    async def read_replica(self, verb: str, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Return "status", "members" or "metrics" of the replica that is called, whether or not it leads."""
        return document_of(await self._call("ReadReplica", timeout_s, verb=verb))

    async def transfer_leader(
        self, to: str = "", timeout_s: float = TIMEOUT_S, *, only_from: str = ""
    ) -> dict[str, object]:
        """Make replica `to` the leader, or without `to` the most up-to-date replica. With `only_from`, act only while that replica
        leads."""
        return document_of(await self._call("TransferLeader", timeout_s, to=to, only_from=only_from))

    async def end_replica(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        """Make a replica exit. Its supervisor starts it again.

        Raises:
            NotFoundError: no replica has this name.
        """
        await self._call("EndReplica", timeout_s, name=name)

    async def backup(self, timeout_s: float = TIMEOUT_S) -> tuple[bytes, str]:
        """Return the complete replicated state and the cluster name."""
        reply: BackupReply = await self._call("Backup", timeout_s)
        try:
            return zlib.decompress(reply.image), reply.cluster
        except zlib.error as error:
            raise ProtocolError(
                f"the coordinator's state cannot be unpacked: is it of another version? ({error})"
            ) from error

    async def report_host_exit(
        self,
        host: str,
        instance: str,
        reason: str,
        timeout_s: float = TIMEOUT_S,
        *,
        died_in: Sequence[TurnDeath] = (),
    ) -> bool:
        """Report for a launcher that this run of a host ended during these turns. Return whether the fleet counted the run as alive."""
        turns = [msgspec.structs.asdict(death) for death in died_in]
        fields = {"host": host, "instance": instance, "reason": reason, "died_in": turns}
        reply: ReportHostExitReply = await self._call("ReportHostExit", timeout_s, **fields)
        return reply.is_known

    async def forget_host(self, host: str, timeout_s: float = TIMEOUT_S) -> None:
        """Delete the record of a host that will not return.

        Raises:
            NotFoundError: the host does not exist.
            UsageError: the host is alive, or agents are placed on it until the next plan.
        """
        await self._call("ForgetHost", timeout_s, host=host)

    async def move_agents(
        self,
        drained: Sequence[str] = (),
        resumed: Sequence[str] = (),
        *,
        is_even: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> MoveAgentsReply:
        """Drain hosts, resume them, or spread agents evenly. The next plan moves the agents; `status` shows their placement.

        Raises:
            NotFoundError: a host does not exist.
            UsageError: no host would be left.
        """
        fields = {"drained": list(drained), "resumed": list(resumed), "is_even": is_even}
        reply: MoveAgentsReply = await self._call("MoveAgents", timeout_s, **fields)
        return reply

    async def end_host(self, host: str, timeout_s: float = TIMEOUT_S, *, host_start: int = 0) -> None:
        """End a host's process and fence the host: its later messages are rejected even if the host does not receive this request.

        `host_start` restricts the call to this run, so that repeated calls end no later run; 0 means the current run.

        Raises:
            NotFoundError: the host does not exist.
            UsageError: the host is not alive, or has started again.
        """
        await self._call("EndHost", timeout_s, host=host, host_start=host_start)

    # ---- users ------------------------------------------------------------------------------------------------------

    async def make_token(
        self, name: str, role: str, digest: bytes, valid_s: int, timeout_s: float = TIMEOUT_S
    ) -> MakeTokenReply:
        """Register a token by its digest. For `valid_s` seconds the token authenticates its bearer as `name` with `role`.

        Raises:
            UsageError: a token of this name exists, there are too many tokens, or the role is not a user role.
        """
        fields = {"name": name, "role": role, "digest": digest, "valid_s": valid_s}
        made: MakeTokenReply = await self._call("MakeToken", timeout_s, **fields)
        return made

    async def revoke_token(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        """Revoke a token. Raises NotFoundError if no token has this name."""
        await self._call("RevokeToken", timeout_s, name=name)

    async def read_tokens(self, timeout_s: float = TIMEOUT_S) -> ReadTokensReply:
        """Return all tokens, without their digests."""
        reply: ReadTokensReply = await self._call("ReadTokens", timeout_s)
        return reply

    async def check_token(self, digest: bytes, timeout_s: float = TIMEOUT_S) -> CheckTokenReply:
        """Return the bearer of the token with this digest. Hosts call this method."""
        reply: CheckTokenReply = await self._call("CheckToken", timeout_s, digest=digest)
        return reply

    async def record_call(self, timeout_s: float = TIMEOUT_S, **fields: object) -> None:
        """Record a user's call to a host before the call is made. Raises UsageError if the user's token or certificate is not or no
        longer valid."""
        await self._call("RecordCall", timeout_s, **fields)

    async def read_audit(self, count: int, timeout_s: float = TIMEOUT_S) -> ReadAuditReply:
        """Return the last calls of users that changed state, `count` at most."""
        reply: ReadAuditReply = await self._call("ReadAudit", timeout_s, count=count)
        return reply

    async def _call(self, call: str, timeout_s: float, /, **fields: object) -> Any:  # the call's own answer
        """Call one replica after another until one answers on behalf of the fleet."""
        loop, request = asyncio.get_running_loop(), encode_request(call, **fields)
        deadline_s, trouble_s = loop.time() + timeout_s, loop.time() + TROUBLE_S
        silent: dict[str, None] = {}
        is_transport_checked = False
        failure: SnaplineError | None = None
        while True:
            address, left_s = self._turns.current, deadline_s - loop.time()
            if failure is not None and left_s < RETRY_TIME_LEFT_MIN_S:
                raise await self._distrust() or failure
            try:
                ask: _Ask = self._channel(address).unary_unary(path_of(call))
                return decode_reply(call, await ask(request, timeout=max(left_s, 0.001)))
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.CANCELLED and left_s > RETRY_S:
                    # gRPC's server has raised this, not we: too many calls were queued, and this one has not begun.
                    await asyncio.sleep(RETRY_S)
                    continue
                failure = self._failure(error, address, silent)
                failure.__cause__ = error
                if not is_transport_checked and all(given_address in silent for given_address in self._turns.given):
                    is_transport_checked = True
                    await self._check_transport()
                is_alone = len(self._turns.given) == 1 and self._turns.given[0] in silent
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise failure from error
                if is_alone:
                    raise await self._distrust() or failure from error
                if loop.time() >= trouble_s:
                    trouble_s = math.inf
                    self._on_trouble(f"{failure}; trying on")
            await asyncio.sleep(RETRY_S)

    def _failure(self, error: grpc.aio.AioRpcError, address: str, silent: dict[str, None]) -> SnaplineError:
        """Return the failed call's error, and choose the replica to ask next; record unreachable replicas in `silent`."""
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            return _error_of(error, self.address)
        metadata = dict(error.trailing_metadata() or ())
        if LEADER_KEY in metadata:
            silent.pop(address, None)
            self._turns.on_not_leader(address, str(metadata[LEADER_KEY]))
        else:
            silent[address] = None
            self._turns.is_silent(address)
        silent_given, count = [replica for replica in self._turns.given if replica in silent], len(self._turns.given)
        unreached = [replica for replica in silent if replica not in self._turns.given]
        if unreached and not silent_given:
            return CoordinatorUnavailableError(
                f"the coordinator's leader is said to be at {', '.join(unreached)}, where nobody answers us, and does not answer "
                f"at {self.address}: give the addresses of all replicas as they are reached from here"
            )
        if count == 1 or not silent_given:
            return _error_of(error, self.address)
        quorum = count // 2 + 1
        reason = (
            f"and it takes {quorum} to decide"
            if count - len(silent_given) < quorum
            else "and none of the others leads yet"
        )
        return CoordinatorUnavailableError(
            f"{len(silent_given)} of {count} replicas of the coordinator do not answer ({', '.join(silent_given)}), {reason}"
        )

    async def _check_transport(self) -> None:
        """Raise UsageError if a replica uses TLS while we use plaintext, or the reverse."""
        for address in self._turns.given:
            mismatch = await transport_mismatch(self._security, address)
            if mismatch is not None:
                raise UsageError(mismatch)

    async def _distrust(self) -> AuthenticationError | None:
        """Return the error if certificates prevent us from using every replica; None otherwise."""
        last_failure = ("", "")
        for address in self._turns.given:
            reason = await distrust_reason(self._security, address, role="coordinator", name="coordinator")
            if reason is None:
                return None
            last_failure = address, reason
        return AuthenticationError(
            f"the coordinator at {last_failure[0]} and this client do not trust each other ({last_failure[1]}): {trust_advice(last_failure[1])}"
        )

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._security.open_channel(address, role="coordinator", name="coordinator")
        return self._channels[address]


async def retry_until_available(call: Callable[[], Awaitable[_Reply]]) -> _Reply:
    """Retry a call until the coordinator answers or the time limit is reached.

    The call may be made more than once. Repeating a tool's request does no harm: a second snapshot is just one more snapshot.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await call()
        except CoordinatorUnavailableError:
            if time.monotonic() >= deadline_s:
                raise
        await asyncio.sleep(PAUSE_S)


def named_error(error: grpc.aio.AioRpcError) -> SnaplineError | None:
    """Return the error that the server raised; None if the reply does not name one."""
    name = dict(error.trailing_metadata() or ()).get(ERROR_KEY)
    error_class = getattr(errors, name, None) if isinstance(name, str) else None
    return (
        error_class(error.details() or "")
        if isinstance(error_class, type) and issubclass(error_class, SnaplineError)
        else None
    )


def _error_of(error: grpc.aio.AioRpcError, address: str) -> SnaplineError:
    """Return the error that the coordinator raised, or an error that describes why the call failed."""
    details, named = error.details() or "", named_error(error)
    if named is not None:
        return named
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return CoordinatorUnavailableError(f"no coordinator answers at {address}: is it running? ({details})")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnknownOutcomeError(
                f"the coordinator at {address} did not answer in time; what was asked may have happened"
            )
        case _:
            return SnaplineError(f"the coordinator at {address} failed: {error.code().name}: {details}")
