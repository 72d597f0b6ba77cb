"""The coordinator's client for tools: its unary calls, with structs instead of protobuf and snapline's own errors.

Hosts hold an `Attend` stream instead (`agent_runtime/`).
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
    LocateReply,
    MoveAgentsReply,
    ReportHostExitReply,
    RestorePreview,
    RestoreReply,
)
from snapline.messages.documents import document_of
from snapline.messages.outputs import MoveConsumerReply, ReadConsumersReply, ReadOutputsReply
from snapline.messages.replica_turns import ReplicaTurns
from snapline.messages.status import FleetStatus, SnapshotOutcome
from snapline.messages.turn_deaths import TurnDeath
from snapline.messages.users import CheckTokenReply, MakeTokenReply, ReadAuditReply, ReadTokensReply
from snapline.messages.wire import decode_reply, encode_request, path_of
from snapline.security.rpc_authorization import ERROR_KEY
from snapline.security.transport import Security
from snapline.security.trust import trust_advice, why_distrusted, why_other_transport

TIMEOUT_S = 10.0
"""Time limit for calls that only read the coordinator's memory."""

READ_TIMEOUT_S = 600.0
"""Time limit for calls that read the store: `verify` reads every byte of it."""

SNAPSHOT_TIMEOUT_S = 120.0
"""Time limit for a snapshot or a restore; the fleet's own time-out is 60 s unless it says otherwise."""

LOCATED_MAX = 2000
"""Agents that one call may ask for: with the longest names they fit into its request."""

LEADER_KEY = "snapline-leader"
"""Trailing metadata of a replica that does not lead: the leader's address, or empty if it knows none."""

TROUBLE_S = 2.5
"""Wait after which a caller learns why: an election takes a second or two."""

RETRY_S = 0.05
"""Time between two replicas: an election takes a second or two."""

AGAIN_S = 0.25
"""Least time left for another attempt: a call cut short would report an unknown outcome, where we know which replica is silent."""

PATIENCE_S, PAUSE_S = 2.0, 0.1
"""An unreachable coordinator is asked again for so long: it may be starting, or its machine too busy to answer in time."""

_Reply = TypeVar("_Reply")

_Ask = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class CoordinatorClient:
    """Calls to the coordinator; make it inside a running event loop. All methods may be called at the same time.

    `address` is one, or those of several replicas with commas between. A call goes to the replica that answered last; one that
    does not lead names the leader; if one does not answer the next is tried, until the call's time is over (`replica_turns.py`).
    So a call may be made twice: what changes something is numbered by what it is about.

    All raise CoordinatorUnavailableError if nobody answers (AuthenticationError, if it is the certificates that keep us apart),
    UnknownOutcomeError if no reply came in time, and otherwise the error that the coordinator raised.
    """

    def __init__(
        self,
        address: str,
        security: Security | None = None,
        *,
        on_trouble: Callable[[str], None] = lambda trouble: None,
    ) -> None:
        """Create a client. `on_trouble` gets a sentence when a call has been trying for a while: no replica answers, or none leads."""
        self.address = address
        self._on_trouble = on_trouble
        self._security = security or Security.loopback()
        self._turns = ReplicaTurns(
            [each.strip() for each in address.split(",") if each.strip()], self._security.may_dial
        )
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._channel(self._turns.current)  # an address that must not be used is refused here

    async def close(self) -> None:
        """Close the connections; calls under way are cancelled."""
        for channel in self._channels.values():
            await channel.close()

    async def status(
        self, timeout_s: float = TIMEOUT_S, *, stale: bool = False, unconfirmed: bool = False
    ) -> FleetStatus:
        """Return the fleet's status. `stale`: any replica may answer, from what it has applied.

        `unconfirmed`: the leader answers so, for callers that ask again soon: a leader that was replaced may do so for a moment, but nothing is
        written to the log for it.
        """
        status: FleetStatus = await self._call("Status", timeout_s, stale=stale, unconfirmed=unconfirmed)
        return status

    async def create_snapshot(self, timeout_s: float = SNAPSHOT_TIMEOUT_S) -> SnapshotOutcome:
        """Take a snapshot now; returns when its epoch has ended."""
        outcome: SnapshotOutcome = await self._call("CreateSnapshot", timeout_s)
        return outcome

    async def read_snapshots(
        self, verb: str, snapshot: str = "", agent: str = "", timeout_s: float = READ_TIMEOUT_S
    ) -> dict[str, object]:
        """The document for `verb`: "list", "show", "verify" or "history".

        Raises:
            NotFoundError: no such snapshot or agent.
        """
        return document_of(await self._call("ReadSnapshots", timeout_s, verb=verb, snapshot=snapshot, agent=agent))

    async def recovery_line(self, failed: Iterable[str] = (), timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Return the recovery line if these agents (or `host:h1`; none: all) fail.

        Raises:
            NotFoundError: no such agent or host.
        """
        return document_of(await self._call("RecoveryLine", timeout_s, failed=list(failed)))

    async def recovery_lines(self, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """The same for every single agent and every single host."""
        return document_of(await self._call("RecoveryLine", timeout_s, each=True))

    async def recovery_history(self, timeout_s: float = TIMEOUT_S, *, stale: bool = False) -> dict[str, object]:
        """The recoveries so far, oldest first."""
        return document_of(await self._call("RecoveryHistory", timeout_s, stale=stale))

    async def preview_restore(
        self, snapshot: str, timeout_s: float = READ_TIMEOUT_S, *, drop_inputs: bool = False
    ) -> RestorePreview:
        """Return what a restore of a snapshot would undo; raise what `restore` raises because of the snapshot."""
        found: RestorePreview = await self._call(
            "PreviewRestore", timeout_s, snapshot=snapshot, drop_inputs=drop_inputs
        )
        return found

    async def restore(
        self, snapshot: str, token: str, reason: str, is_dropping: bool, timeout_s: float = SNAPSHOT_TIMEOUT_S
    ) -> RestoreReply:
        """Take the fleet back to a snapshot; returns when the plan is committed. The same `token` again is the same restore.

        Raises:
            NotFoundError: no such snapshot. UsageError: the fleet cannot go back to it, and why.
            ExternalFailureError: no plan could be made in time, or somebody else's restore is under way.
        """
        done: RestoreReply = await self._call(
            "Restore", timeout_s, snapshot=snapshot, token=token, reason=reason, drop_inputs=is_dropping
        )
        return done

    async def locate(self, agents: Iterable[str], timeout_s: float = TIMEOUT_S) -> LocateReply:
        """Return the locations of these agents, in their order; `LOCATED_MAX` at most."""
        found: LocateReply = await self._call("Locate", timeout_s, agents=list(agents))
        return found

    async def locate_all(self, timeout_s: float = TIMEOUT_S) -> LocateReply:
        """Return the locations of all agents that take turns, sorted."""
        found: LocateReply = await self._call("Locate", timeout_s, all=True)
        return found

    async def read_outputs(
        self, after: str = "", topic: str = "", wait_s: float = 0.0, timeout_s: float = TIMEOUT_S
    ) -> ReadOutputsReply:
        """Return released outputs beyond a cursor, as many as one page holds; wait for one if there is none.

        Raises:
            UsageError: the cursor is not of this fleet's store.
            NotFoundError: the outputs after it were deleted.
            DamagedDataError, StoreError: found by the coordinator.
        """
        wait_ms = round(wait_s * 1000)
        page: ReadOutputsReply = await self._call(
            "ReadOutputs", wait_s + timeout_s, after=after, topic=topic, wait_ms=wait_ms
        )
        return page

    async def read_consumers(self, timeout_s: float = TIMEOUT_S) -> ReadConsumersReply:
        """The named consumers of outputs, and how far each is."""
        found: ReadConsumersReply = await self._call("ReadConsumers", timeout_s)
        return found

    async def move_consumer(self, name: str, cursor: str = "", timeout_s: float = TIMEOUT_S) -> str:
        """Say that a consumer has had all up to `cursor`; returns where it is. The first time makes it; it never goes back.

        Raises:
            UsageError: none can be called so, or it is no cursor of this fleet's store.
        """
        reply: MoveConsumerReply = await self._call("MoveConsumer", timeout_s, name=name, cursor=cursor)
        return reply.cursor

    async def forget_consumer(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        """Keep nothing for a consumer any more; NotFoundError if there is none."""
        await self._call("ForgetConsumer", timeout_s, name=name)

    async def read_replica(self, verb: str, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Read the replica that is called, leader or not: "status", "members" or "metrics"."""
        return document_of(await self._call("ReadReplica", timeout_s, verb=verb))

    async def transfer_leader(
        self, to: str = "", timeout_s: float = TIMEOUT_S, *, only_from: str = ""
    ) -> dict[str, object]:
        """Have replica `to` lead, or whichever is most up to date; nothing happens unless `only_from` leads, if it is given."""
        return document_of(await self._call("TransferLeader", timeout_s, to=to, only_from=only_from))

    async def end_replica(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        """Have a replica end. Who keeps it starts it again.

        Raises:
            NotFoundError: there is none of this name.
        """
        await self._call("EndReplica", timeout_s, name=name)

    async def backup(self, timeout_s: float = TIMEOUT_S) -> tuple[bytes, str]:
        """The whole replicated state and the name of its cluster."""
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
        """A launcher's word that this run of a host is over, in the middle of these turns; returns whether the fleet counted it as alive."""
        turns = [msgspec.structs.asdict(death) for death in died_in]
        fields = {"host": host, "instance": instance, "reason": reason, "died_in": turns}
        reply: ReportHostExitReply = await self._call("ReportHostExit", timeout_s, **fields)
        return reply.is_known

    async def forget_host(self, host: str, timeout_s: float = TIMEOUT_S) -> None:
        """Have the record of a host dropped that does not come back.

        Raises:
            NotFoundError: there is none.
            UsageError: it is alive, or agents are placed there until the next plan.
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
        """Have agents leave hosts, or come back, or be spread evenly. They move by the next plan: `status` shows where they are.

        Raises:
            NotFoundError: there is no such host.
            UsageError: no host would be left.
        """
        fields = {"drained": list(drained), "resumed": list(resumed), "is_even": is_even}
        told: MoveAgentsReply = await self._call("MoveAgents", timeout_s, **fields)
        return told

    async def end_host(self, host: str, timeout_s: float = TIMEOUT_S, *, host_start: int = 0) -> None:
        """Have a host's process end: nothing of it counts from now on, whether it hears this or not.

        `host_start`: this run of it and no later one, so that asking again ends nothing else; 0: whichever runs.

        Raises:
            NotFoundError: there is no such host.
            UsageError: it is not alive, or runs anew.
        """
        await self._call("EndHost", timeout_s, host=host, host_start=host_start)

    # ---- people -----------------------------------------------------------------------------------------------------

    async def make_token(
        self, name: str, role: str, digest: bytes, valid_s: int, timeout_s: float = TIMEOUT_S
    ) -> MakeTokenReply:
        """Register a token by its digest; for this many seconds it proves that its bearer is `name`, of `role`.

        Raises:
            UsageError: there is one of this name, there are too many, or the role is not one of people.
        """
        fields = {"name": name, "role": role, "digest": digest, "valid_s": valid_s}
        made: MakeTokenReply = await self._call("MakeToken", timeout_s, **fields)
        return made

    async def revoke_token(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        """Revoke a token; NotFoundError: no token has this name."""
        await self._call("RevokeToken", timeout_s, name=name)

    async def read_tokens(self, timeout_s: float = TIMEOUT_S) -> ReadTokensReply:
        """All tokens."""
        found: ReadTokensReply = await self._call("ReadTokens", timeout_s)
        return found

    async def check_token(self, digest: bytes, timeout_s: float = TIMEOUT_S) -> CheckTokenReply:
        """Return the bearer of the token with this digest: for hosts."""
        found: CheckTokenReply = await self._call("CheckToken", timeout_s, digest=digest)
        return found

    async def record_call(self, timeout_s: float = TIMEOUT_S, **fields: object) -> None:
        """Have a person's call to a host written down, before it is made; UsageError: their token or certificate is not good (any more)."""
        await self._call("RecordCall", timeout_s, **fields)

    async def read_audit(self, count: int, timeout_s: float = TIMEOUT_S) -> ReadAuditReply:
        """The last calls of people that change something."""
        found: ReadAuditReply = await self._call("ReadAudit", timeout_s, count=count)
        return found

    async def _call(self, call: str, timeout_s: float, /, **fields: object) -> Any:  # the call's own answer
        """Call one replica after the other until one answers for the fleet."""
        loop, request = asyncio.get_running_loop(), encode_request(call, **fields)
        deadline_s, trouble_s = loop.time() + timeout_s, loop.time() + TROUBLE_S
        silent: dict[str, None] = {}
        is_transport_checked = False
        failure: SnaplineError | None = None
        while True:
            address, left_s = self._turns.current, deadline_s - loop.time()
            if failure is not None and left_s < AGAIN_S:
                raise await self._distrust() or failure
            try:
                ask: _Ask = self._channel(address).unary_unary(path_of(call))
                return decode_reply(call, await ask(request, timeout=max(left_s, 0.001)))
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.CANCELLED and left_s > RETRY_S:
                    await asyncio.sleep(
                        RETRY_S
                    )  # not by us: gRPC's server had too many calls waiting, and has not begun this one
                    continue
                failure = self._failure(error, address, silent)
                failure.__cause__ = error
                if not is_transport_checked and all(each in silent for each in self._turns.given):
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
        """Return the failed call's error, and choose the replica to ask next; note in `silent` those that do not answer at all."""
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            return _error_of(error, self.address)
        told = dict(error.trailing_metadata() or ())
        if LEADER_KEY in told:
            silent.pop(address, None)
            self._turns.leads_elsewhere(address, str(told[LEADER_KEY]))
        else:
            silent[address] = None
            self._turns.is_silent(address)
        lost, count = [each for each in self._turns.given if each in silent], len(self._turns.given)
        unreached = [each for each in silent if each not in self._turns.given]
        if unreached and not lost:
            return CoordinatorUnavailableError(
                f"the coordinator's leader is said to be at {', '.join(unreached)}, where nobody answers us, and does not answer "
                f"at {self.address}: give the addresses of all replicas as they are reached from here"
            )
        if count == 1 or not lost:
            return _error_of(error, self.address)
        quorum = count // 2 + 1
        why = f"and it takes {quorum} to decide" if count - len(lost) < quorum else "and none of the others leads yet"
        return CoordinatorUnavailableError(
            f"{len(lost)} of {count} replicas of the coordinator do not answer ({', '.join(lost)}), {why}"
        )

    async def _check_transport(self) -> None:
        """Raise UsageError if a replica speaks TLS where we speak plaintext, or the other way round."""
        for address in self._turns.given:
            why = await why_other_transport(self._security, address)
            if why is not None:
                raise UsageError(why)

    async def _distrust(self) -> AuthenticationError | None:
        """Return the error if certificates keep us from every replica."""
        last = ("", "")
        for address in self._turns.given:
            why = await why_distrusted(self._security, address, role="coordinator", name="coordinator")
            if why is None:
                return None
            last = address, why
        return AuthenticationError(
            f"the coordinator at {last[0]} and we do not trust each other ({last[1]}): {trust_advice(last[1])}"
        )

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._security.open_channel(address, role="coordinator", name="coordinator")
        return self._channels[address]


async def patiently(call: Callable[[], Awaitable[_Reply]]) -> _Reply:
    """Make a call until the coordinator answers, or has had its time.

    The call may be made more than once. Nothing that tools ask for does harm twice: a second snapshot is one more.
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
    """The error that the server raised, if it says which."""
    named = dict(error.trailing_metadata() or ()).get(ERROR_KEY)
    known = getattr(errors, named, None) if isinstance(named, str) else None
    return known(error.details() or "") if isinstance(known, type) and issubclass(known, SnaplineError) else None


def _error_of(error: grpc.aio.AioRpcError, address: str) -> SnaplineError:
    """The error the coordinator raised, or what the failed call means."""
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
