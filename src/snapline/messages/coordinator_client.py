"""Client with which tools call the coordinator. The client makes unary calls, returns structs instead of protobuf messages, and raises
snapline's own errors.

Hosts use an `Attend` stream instead (`agent_runtime/`). Hosts and tools use `ReplicaChoice` to choose which replica to call next.
`ReplicaChoice` does no I/O. A replica that is not the leader returns the leader's internal address. This address may be unreachable
from another network (because of a forwarded port or an internal name), although the leader's configured address is reachable. So the client
calls the returned address first. If this address does not reply, the client calls each configured address before it calls the returned
address again.
"""

import asyncio
import math
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
    """Chooses which of the coordinator's replicas to call next.

    Attributes:
        given: all configured addresses, in the given order; never empty.
        current: the address to call next.
    """

    def __init__(self, given: Sequence[str], may_use_address: Callable[[str], bool]) -> None:
        """Create the choice. `may_use_address` returns whether the client may call a leader's address that a replica has returned. If only
        one address is configured, the client may call any returned address, and `may_use_address` is not called."""
        self.given = tuple(given)
        self.current = self.given[0]
        self._may_use_address = may_use_address if len(self.given) > 1 else lambda address: True
        self._place = 0
        """Index in `given` of the configured address that was called last."""
        self._unreached: dict[str, None] = {}
        """Leaders' addresses that replicas have returned, and that have not answered since the current round over `given` began."""

    def on_not_leader(self, address: str, leader: str) -> None:
        """Record that the replica at `address` is not the leader. `leader` is the leader's address that the replica has returned, or
        empty."""
        self._unreached.pop(address, None)
        self._asked(address)
        if leader and leader not in self._unreached and self._may_use_address(leader):
            self.current = leader
        else:
            self._go_on()

    def is_silent(self, address: str) -> None:
        """Record that the replica at `address` did not reply."""
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
"""Time limit in seconds for calls that read the store. It is long because `verify` reads every byte of the store."""

SNAPSHOT_TIMEOUT_S = 120.0
"""Time limit in seconds for a snapshot or a restore. For comparison, a fleet's default epoch timeout is 60 s."""

LOCATED_MAX = 2000
"""Largest number of agents in one call. Even if all ids have the maximum length, they fit into one request."""

LEADER_KEY = "snapline-leader"
"""Key of the trailing metadata in which a replica that does not lead returns the leader's address, or empty if the leader is unknown."""

TROUBLE_S = 2.5
"""Time in seconds after which a call that is still being retried reports the reason. It is longer than an election, which takes a second or
two."""

RETRY_S = 0.05
"""Pause in seconds before the next replica is tried."""

RETRY_TIME_LEFT_MIN_S = 0.25
"""Minimum remaining time in seconds for another attempt. An attempt that is cut short would report an unknown outcome instead of the
replica that does not answer."""

PATIENCE_S, PAUSE_S = 2.0, 0.1
"""Time in seconds for which calls to an unreachable coordinator are retried, and the pause between attempts. The coordinator may be
starting, or its machine may be overloaded."""

_Reply = TypeVar("_Reply")

_Ask = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class CoordinatorClient:
    """Client for calls to the coordinator. Create this object in a running event loop. All methods may be called concurrently.

    `address` is the address of the coordinator, or the comma-separated addresses of several replicas. Each call goes first to the replica
    that replied most recently. A replica that is not the leader redirects the client to the leader. If a replica does not reply, the client
    tries the next replica until the call's time limit expires (`ReplicaChoice`). So a call may be executed twice. Calls that change state
    are idempotent, except that repeating `create_snapshot` may take an additional snapshot.

    All methods raise CoordinatorUnavailableError if no replica replies, or AuthenticationError if the cause is a certificate. All methods
    raise UnknownOutcomeError if no reply arrives in time. All other errors are those that the coordinator has raised.
    """

    def __init__(
        self,
        address: str,
        security: Security | None = None,
        *,
        on_trouble: Callable[[str], None] = lambda trouble: None,
    ) -> None:
        """Create a client. If a call was retried for `TROUBLE_S` because no replica replied or none was the leader, `on_trouble` is called
        with a sentence for users."""
        self.address = address
        self._on_trouble = on_trouble
        self._security = security or Security.loopback()
        self._turns = ReplicaChoice(
            [part.strip() for part in address.split(",") if part.strip()], self._security.may_dial
        )
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._channel(self._turns.current)  # raises early if the address must not be used

    async def close(self) -> None:
        """Close the connections, and cancel pending calls."""
        for channel in self._channels.values():
            await channel.close()

    async def status(
        self, timeout_s: float = TIMEOUT_S, *, stale: bool = False, unconfirmed: bool = False
    ) -> FleetStatus:
        """Return the fleet's status. With `stale`, any replica may reply with the state that it has applied so far.

        With `unconfirmed`, the leader replies without confirming its leadership, which saves a write to the log. For a short time, the
        reply may then come from a leader that was already replaced. So use `unconfirmed` only for polling.
        """
        status: FleetStatus = await self._call("Status", timeout_s, stale=stale, unconfirmed=unconfirmed)
        return status

    async def create_snapshot(self, timeout_s: float = SNAPSHOT_TIMEOUT_S) -> SnapshotOutcome:
        """Take a snapshot, and return after its epoch is complete or aborted."""
        outcome: SnapshotOutcome = await self._call("CreateSnapshot", timeout_s)
        return outcome

    async def read_snapshots(
        self, verb: str, snapshot: str = "", agent: str = "", timeout_s: float = READ_TIMEOUT_S
    ) -> dict[str, object]:
        """Return the document that the command `snapline snapshot VERB` shows. `verb` is "list", "show", "verify" or "history".

        Raises:
            NotFoundError: the snapshot or agent does not exist.
        """
        return document_of(await self._call("ReadSnapshots", timeout_s, verb=verb, snapshot=snapshot, agent=agent))

    async def recovery_line(self, failed: Iterable[str] = (), timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Return the recovery line for a failure of these agents. An entry such as `host:h1` means all agents on host `h1`. If `failed` is
        empty, all agents are assumed to fail.

        Raises:
            NotFoundError: an agent or host does not exist.
        """
        return document_of(await self._call("RecoveryLine", timeout_s, failed=list(failed)))

    async def recovery_lines(self, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Return the recovery lines for the failure of each single agent and of each single host."""
        return document_of(await self._call("RecoveryLine", timeout_s, each=True))

    async def recovery_history(self, timeout_s: float = TIMEOUT_S, *, stale: bool = False) -> dict[str, object]:
        """Return all known recoveries, oldest first."""
        return document_of(await self._call("RecoveryHistory", timeout_s, stale=stale))

    async def preview_restore(
        self, snapshot: str, timeout_s: float = READ_TIMEOUT_S, *, drop_inputs: bool = False
    ) -> RestorePreview:
        """Return a preview of what a restore to a snapshot would undo. Raises the same errors as `restore` for this snapshot."""
        reply: RestorePreview = await self._call(
            "PreviewRestore", timeout_s, snapshot=snapshot, drop_inputs=drop_inputs
        )
        return reply

    async def restore(
        self,
        snapshot: str,
        token: str,
        reason: str,
        is_dropping: bool,
        timeout_s: float = SNAPSHOT_TIMEOUT_S,
        *,
        accept_changes: bool = False,
    ) -> RestoreReply:
        """Restore the fleet to a snapshot, and return after the recovery plan is committed. Repeating the call with the same `token` does
        not restore the fleet again.

        Raises:
            NotFoundError: the snapshot does not exist.
            UsageError: the fleet cannot be restored to this snapshot. The error message contains the reason.
            ExternalFailureError: no recovery plan was made in time, or another restore is in progress.
        """
        reply: RestoreReply = await self._call(
            "Restore",
            timeout_s,
            snapshot=snapshot,
            token=token,
            reason=reason,
            drop_inputs=is_dropping,
            accept_changes=accept_changes,
        )
        return reply

    async def locate(self, agents: Iterable[str], timeout_s: float = TIMEOUT_S) -> LocateReply:
        """Return the locations of these agents, in the given order. A call may contain at most `LOCATED_MAX` agents."""
        reply: LocateReply = await self._call("Locate", timeout_s, agents=list(agents))
        return reply

    async def locate_all(self, timeout_s: float = TIMEOUT_S) -> LocateReply:
        """Return the locations of all agents that have not been removed, sorted by agent."""
        reply: LocateReply = await self._call("Locate", timeout_s, all=True)
        return reply

    async def read_outputs(
        self, after: str = "", topic: str = "", wait_s: float = 0.0, timeout_s: float = TIMEOUT_S
    ) -> ReadOutputsReply:
        """Return one page of the released outputs after a cursor. If no output is available yet, wait at most `wait_s` seconds.

        Raises:
            UsageError: the cursor does not belong to this fleet's store.
            NotFoundError: some of the outputs after the cursor have been deleted.
            DamagedDataError, StoreError: the coordinator has found the store to be damaged or unreadable.
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
        """Acknowledge all outputs up to `cursor` on behalf of a consumer, and return the consumer's position. The first acknowledgement
        creates the consumer. A consumer's position never moves backwards.

        Raises:
            UsageError: the name is invalid, or the cursor does not belong to this fleet's store.
        """
        reply: MoveConsumerReply = await self._call("MoveConsumer", timeout_s, name=name, cursor=cursor)
        return reply.cursor

    async def forget_consumer(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        """Delete a consumer and its position. Raises NotFoundError if the consumer does not exist."""
        await self._call("ForgetConsumer", timeout_s, name=name)

    async def read_replica(self, verb: str, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Return the document for `verb`, which is "status", "members" or "metrics". The called replica replies with its own information,
        whether or not it is the leader."""
        return document_of(await self._call("ReadReplica", timeout_s, verb=verb))

    async def transfer_leader(
        self, to: str = "", timeout_s: float = TIMEOUT_S, *, only_from: str = ""
    ) -> dict[str, object]:
        """Make replica `to` the leader. If `to` is empty, choose the most up-to-date replica. If `only_from` is set, do this only if
        replica `only_from` is the leader."""
        return document_of(await self._call("TransferLeader", timeout_s, to=to, only_from=only_from))

    async def end_replica(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        """Make a replica exit. Its supervisor restarts it.

        Raises:
            NotFoundError: no replica has this name.
        """
        await self._call("EndReplica", timeout_s, name=name)

    async def backup(self, timeout_s: float = TIMEOUT_S) -> tuple[bytes, str]:
        """Return the complete replicated state and the cluster's name."""
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
        """Report, on behalf of a launcher, that this run of a host has exited during the turns in `died_in`. Return whether the fleet
        considered this run alive before the report."""
        turns = [msgspec.structs.asdict(death) for death in died_in]
        fields = {"host": host, "instance": instance, "reason": reason, "died_in": turns}
        reply: ReportHostExitReply = await self._call("ReportHostExit", timeout_s, **fields)
        return reply.is_known

    async def forget_host(self, host: str, timeout_s: float = TIMEOUT_S) -> None:
        """Delete the record of a host that will not return.

        Raises:
            NotFoundError: the host does not exist.
            UsageError: the host is alive, or agents are still placed on it by the current plan.
        """
        await self._call("ForgetHost", timeout_s, host=host)

    async def move_agents(
        self,
        drained: Sequence[str] = (),
        resumed: Sequence[str] = (),
        *,
        is_even: bool = False,
        placed: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> MoveAgentsReply:
        """Drain hosts, resume drained hosts, spread the agents evenly over the hosts, or move single agents to the hosts to which `placed`
        maps them. The next plan moves the agents. `status` then shows where they are placed.

        Raises:
            NotFoundError: an agent or host does not exist.
            UsageError: no host would remain for the agents, or an agent may not run on its host.
        """
        fields = {"drained": list(drained), "resumed": list(resumed), "is_even": is_even, "placed": dict(placed or {})}
        reply: MoveAgentsReply = await self._call("MoveAgents", timeout_s, **fields)
        return reply

    async def end_host(self, host: str, timeout_s: float = TIMEOUT_S, *, host_start: int = 0) -> None:
        """End a host's process and fence the host. Even if the request does not reach the host, the host's later messages are rejected.

        `host_start` restricts the call to one run of the host, so that a repeated call does not end a later run. If `host_start` is 0, the
        call applies to the current run.

        Raises:
            NotFoundError: the host does not exist.
            UsageError: the host is not alive, or it has been restarted.
        """
        await self._call("EndHost", timeout_s, host=host, host_start=host_start)

    # ---- users ------------------------------------------------------------------------------------------------------

    async def make_token(
        self, name: str, role: str, digest: bytes, valid_s: int, timeout_s: float = TIMEOUT_S
    ) -> MakeTokenReply:
        """Register a token by its digest. For `valid_s` seconds, the token authenticates its bearer as user `name` with the role `role`.

        Raises:
            UsageError: a token with this name already exists, there are too many tokens, or `role` is not a role for users.
        """
        fields = {"name": name, "role": role, "digest": digest, "valid_s": valid_s}
        made: MakeTokenReply = await self._call("MakeToken", timeout_s, **fields)
        return made

    async def revoke_token(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        """Revoke a token. Raises NotFoundError if no token has this name."""
        await self._call("RevokeToken", timeout_s, name=name)

    async def read_tokens(self, timeout_s: float = TIMEOUT_S) -> ReadTokensReply:
        """Return information about all tokens, without their digests."""
        reply: ReadTokensReply = await self._call("ReadTokens", timeout_s)
        return reply

    async def check_token(self, digest: bytes, timeout_s: float = TIMEOUT_S) -> CheckTokenReply:
        """Return the name and role of the bearer of the token with this digest. Hosts call this method."""
        reply: CheckTokenReply = await self._call("CheckToken", timeout_s, digest=digest)
        return reply

    async def record_call(self, timeout_s: float = TIMEOUT_S, **fields: object) -> None:
        """Record a user's call to a host, before the host executes the call. Raises UsageError if the user's token or certificate is
        invalid or has expired."""
        await self._call("RecordCall", timeout_s, **fields)

    async def read_audit(self, count: int, timeout_s: float = TIMEOUT_S) -> ReadAuditReply:
        """Return up to `count` of the most recent user calls that changed state."""
        reply: ReadAuditReply = await self._call("ReadAudit", timeout_s, count=count)
        return reply

    async def _call(self, call: str, timeout_s: float, /, **fields: object) -> Any:  # the call's own answer
        """Call one replica after another until the leader has replied, and return its reply."""
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
                    # This status comes from gRPC's server, not from us. Too many calls were queued, and this call has not started.
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
        """Return the error for a failed call, and choose the replica to call next. Add an unreachable replica to `silent`."""
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            return _error_of(error, self.address)
        metadata = trailing_metadata(error)
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
        """Raise UsageError if a replica uses TLS and this client uses plaintext, or vice versa."""
        for address in self._turns.given:
            mismatch = await transport_mismatch(self._security, address)
            if mismatch is not None:
                raise UsageError(mismatch)

    async def _distrust(self) -> AuthenticationError | None:
        """Return an error if certificate problems prevent this client from using any of the replicas. Return None if at least one replica
        can be used."""
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
    """Retry a call until the coordinator replies or `PATIENCE_S` seconds have passed.

    The call may be executed more than once, which is harmless except that it may take an additional snapshot.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await call()
        except CoordinatorUnavailableError:
            if time.monotonic() >= deadline_s:
                raise
        await asyncio.sleep(PAUSE_S)


def trailing_metadata(error: Exception) -> dict[str, str | bytes]:
    """Return the trailing metadata of a failed call, which other errors do not have.

    `dict(metadata)` fails with gRPC 1.75, whose `Metadata.keys` yields pairs.
    """
    return dict(iter(getattr(error, "trailing_metadata", lambda: None)() or ()))


def named_error(error: grpc.aio.AioRpcError) -> SnaplineError | None:
    """Return the snapline error that the server has raised, or None if the reply does not contain one."""
    name = trailing_metadata(error).get(ERROR_KEY)
    error_class = getattr(errors, name, None) if isinstance(name, str) else None
    return (
        error_class(error.details() or "")
        if isinstance(error_class, type) and issubclass(error_class, SnaplineError)
        else None
    )


def _reason_of(details: str) -> str:
    """Describe why no connection was made, without the words of gRPC if nothing listens at the address."""
    return "nothing listens there; is it running?" if "Connection refused" in details else f"is it running? ({details})"


def _error_of(error: grpc.aio.AioRpcError, address: str) -> SnaplineError:
    """Return the error that the coordinator has raised, or an error that explains why the call failed."""
    details, named = error.details() or "", named_error(error)
    if named is not None:
        return named
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return CoordinatorUnavailableError(f"no coordinator answers at {address}: {_reason_of(details)}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnknownOutcomeError(
                f"the coordinator at {address} did not answer in time; what was asked may have happened"
            )
        case _:
            return SnaplineError(f"the coordinator at {address} failed: {error.code().name}: {details}")
