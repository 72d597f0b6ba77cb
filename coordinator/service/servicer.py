"""The coordinator's gRPC service, which converts between protobuf messages and structs.

The number of entries in a host's message is checked before the message is parsed. If a host's message arrives in parts, the parts are
joined first. Tools' requests about hosts are checked before they reach the leader core (`state/operation_rules.py`). The outcomes of past
epochs (`snapline snapshot history`) are read from the replicated state, so they survive a change of leader.

All calls convert errors to gRPC statuses. A replica that does not lead tells callers which replica leads.
"""

import asyncio
import contextlib
import functools
import logging
import secrets
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import Message

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.channels.frame import check_counts
from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader import events as words
from snapline.coordinator.leader.core import LeaderStatus
from snapline.coordinator.leader.leader_concerns import objectives_missed
from snapline.coordinator.raft.raft_driver import Replica
from snapline.coordinator.service.coordinator_metrics import LeaderFigures, interval_of, loss_of
from snapline.coordinator.service.documents import list_snapshots, show_document, verify
from snapline.coordinator.service.fleet_answers import (
    autonomous_line,
    autonomous_lines,
    coordinated_line,
    coordinated_lines,
    ending_of,
    epoch_history,
    failed_agents,
    forked_from,
    history,
    located,
    located_all,
    single_failures,
)
from snapline.coordinator.service.leadership import LeaderRunner, Leadership, Outbox
from snapline.coordinator.service.output_feed import OutputFeed
from snapline.coordinator.service.restore_requests import Restoring
from snapline.coordinator.state.fleet_records import AGENTS_MAX, ALIVE, OPEN
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operation_rules import check_end, check_forgetting, check_moves, check_placed
from snapline.errors import (
    CoordinatorUnavailableError,
    NotFoundError,
    PeerError,
    ProtocolError,
    SnaplineError,
    StoreError,
    UsageError,
)
from snapline.messages.answers import (
    Document,
    LocateReply,
    ReadConsumersReply,
    ReadOutputsReply,
    RecoveryHistoryReply,
    RecoveryLineReply,
    RestorePreview,
    RestoreReply,
    SnapshotsReply,
    document,
)
from snapline.messages.coordinator_client import LEADER_KEY, LOCATED_MAX, CoordinatorClient
from snapline.messages.host_messages import HostMessage, Join, Leave, MessagePart, TurnDeath, TurnedAway
from snapline.messages.status import FleetStatus, HostStatus, StoreStatus
from snapline.messages.wire import (
    decode_host_message,
    encode_directive,
    host_messages,
    reader_of,
    recovery_line_replies,
    snapshots_replies,
    writer_of,
)
from snapline.protocols.names import PROTOCOLS, mode_of
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc
from snapline.security.rpc_authorization import COORDINATOR, ERROR_KEY, FIRST_BYTES_MAX, HOST, Context, RpcGuard, refuse
from snapline.security.transport import Security
from snapline.storage.store.store import Store


class LeaderHint:
    """The current leader as known to this replica."""

    def __init__(self, leadership: Leadership, replica: Replica, members: Mapping[str, str]) -> None:
        self._leadership = leadership
        self._replica = replica
        self._members = members

    def sentence(self) -> str:
        """Return a sentence for the caller that says why this replica does not answer the call."""
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
    """Return the gRPC status code that corresponds to `error`."""
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
    """Decorator for a gRPC handler that sends the handler's errors to the caller with their original text."""

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


_log = logging.getLogger("snapline.coordinator")

UNCOUNTED_BYTES_MAX = 64 * 1024
"""Largest size, in bytes, of a message that is parsed without counting its entries. Even with the shortest entries, such a message takes
only a few MiB of memory."""

HOST_MESSAGE_BYTES_MAX, PARTS_MAX = 16 * 1024 * 1024, 64
"""Limits on the size, in bytes, and the number of parts of a message that is sent in parts. Hosts send parts of 1 MiB."""

ENTRIES_MAX, NUMBERS_MAX = 4 * AGENTS_MAX, 4 * 1024 * 1024
"""Limits on the entries and numbers in a larger message. A fleet definition has an entry and two fields for each possible agent. A report
has the names of all agents and of up to twice as many departed agents, and numbers for 40 channels of each agent."""


def read_host_message(data: bytes) -> HostMessage:
    """Decode a host's message.

    Raises:
        ProtocolError: the data is not a valid host message, or exceeds a limit.
    """
    if len(data) > UNCOUNTED_BYTES_MAX:
        check_counts(data, host_messages.descriptor, entries_max=ENTRIES_MAX, numbers_max=NUMBERS_MAX)
    return decode_host_message(data)


class HostStream:
    """Joins the parts of messages from one host."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def take(self, data: bytes) -> HostMessage | None:
        """Add received data. Return the complete message, or None if more parts are to follow.

        Raises:
            ProtocolError: the message is too large, or `read_host_message` rejects it.
        """
        message = read_host_message(data)
        if not isinstance(message, MessagePart):
            if self._parts:
                raise ProtocolError("a message between the parts of another")
            return message
        self._parts.append(message.data)
        self._size_bytes += len(message.data)
        if self._size_bytes > HOST_MESSAGE_BYTES_MAX or len(self._parts) > PARTS_MAX:
            raise ProtocolError(f"a message of more than {HOST_MESSAGE_BYTES_MAX} bytes or {PARTS_MAX} parts")
        if not message.is_last:
            return None
        whole, self._parts, self._size_bytes = b"".join(self._parts), [], 0
        return read_host_message(whole)


FIGURES = (
    *("turns", "dead_letters", "parked", "busy"),
    *("inputs_waiting", "outputs_waiting", "output_bytes_waiting", "agents_full", "agents_standing"),
)

CONTENTS_BYTES_MAX = MESSAGE_BYTES_MAX // 2
"""Largest size, in bytes, of a snapshot's states and messages in one answer. The other half of the answer is for names and counters: 4 MiB
for ten thousand agents."""

LISTING_S = 2.0
"""Time limit, in seconds, for the store to list its epochs. If the store does not list its epochs in time, the history is shown without the
list."""

ANSWER_S = 0.1
"""Time, in seconds, between the answer and the end of the process. The answer is sent during that time."""

LOG_FIELDS = ("log_messages", "log_bytes", "checkpoints", "forced", "piggyback_bytes", "piggybacked")
"""Fields of a host's heartbeat and status whose sums over all hosts are part of the fleet's status."""


class CoordinatorServicer(coordinator_pb2_grpc.CoordinatorServicer):
    """The coordinator's gRPC handlers for calls from hosts and tools."""

    def __init__(
        self,
        leadership: Leadership,
        replica: Replica,
        state: FleetState,
        store: Store,
        *,
        members: Mapping[str, str],
        security: Security,
        guard: RpcGuard,
        leader_hint: LeaderHint,
        hosts_expected: int,
        figures: LeaderFigures,
    ) -> None:
        self.leader_hint = leader_hint
        self._leadership = leadership
        self._replica = replica
        self._members = members
        self._state = state
        self._store = store
        self._security = security
        self._guard = guard
        self._hosts_expected = hosts_expected
        self._figures = figures
        self._run = secrets.token_hex(4)
        self._restoring = Restoring(state, store)
        self._outputs = OutputFeed(
            store, leadership, has_ended=lambda: bool(state.image.outcome), leader_hint=leader_hint.sentence
        )

    # ---- hosts ------------------------------------------------------------------------------------------------------

    async def Attend(self, _requests: object, context: Context) -> None:
        """Serve one host's stream until this replica's leadership ends. Pass the host's messages to the leader core, and send the core's
        directives to the host."""
        runner = await self._leading_or_abort(context)
        join = await self._read_join(context)
        if isinstance(join, TurnedAway):
            _log.warning("a stream is turned away: %s", join.reason)
            await context.write(encode_directive(join))
            return
        if runner is not self._leadership.runner:
            runner = await self._leading_or_abort(context)
        session, outbox = runner.open_stream()
        runner.on_host_message(session, join)
        reader = asyncio.create_task(self._read(runner, session, outbox, context))
        try:
            while (directive := await outbox.get()) is not None:
                await context.write(directive)
        finally:
            reader.cancel()
            runner.stream_closed(session)
            with contextlib.suppress(asyncio.CancelledError, grpc.RpcError):
                await reader

    async def _leading_or_abort(self, context: Context) -> LeaderRunner:
        if self._leadership.runner is None:
            context.set_trailing_metadata(self.leader_hint.metadata())
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.leader_hint.sentence())
        assert self._leadership.runner is not None, "abort raises"
        return self._leadership.runner

    async def _read_join(self, context: Context) -> Join | TurnedAway:
        """Read and check the first message on the stream, which identifies the host. No other message is processed before this check has
        succeeded."""
        try:
            data = await self._guard.first_message(context, FIRST_BYTES_MAX)
            if data is None:
                return TurnedAway("the first message of a stream is Join, and none came", False)
            join = read_host_message(data)
        except ProtocolError as error:
            return TurnedAway(str(error), True)
        if not isinstance(join, Join):
            return TurnedAway("the first message of a stream is Join", True)
        refusal = self._security.refusal(context, role=HOST, name=join.host)
        return TurnedAway(refusal, True) if refusal else join

    async def _read(self, runner: LeaderRunner, session: int, outbox: Outbox, context: Context) -> None:
        try:
            stream = HostStream()
            while isinstance(data := await context.read(), bytes):
                message = stream.take(data)
                if message is not None:
                    runner.on_host_message(session, message)
                if isinstance(message, Leave):
                    return
        except ProtocolError as error:
            _log.warning("a host's stream is closed: %s", error)
            outbox.put(encode_directive(TurnedAway(str(error), True)))
        finally:
            outbox.close()

    # ---- leader ---------------------------------------------------------------------------------------------------

    def _leading(self) -> LeaderRunner:
        runner = self._leadership.runner
        if runner is None:
            raise CoordinatorUnavailableError(self.leader_hint.sentence())
        return runner

    async def _be_current(self, *, is_stale_allowed: bool = False) -> None:
        """Ensure that later reads see every change acknowledged before this call (linearizable reads)."""
        if not is_stale_allowed:
            self._leading()
            await self._replica.driver.read(lambda: None)

    # ---- tools ------------------------------------------------------------------------------------------------------

    @with_grpc_errors
    async def Status(self, request: pb.StatusRequest, context: Context) -> Message:
        """Return the fleet's status."""
        if request.unconfirmed:
            self._leading()
        else:
            await self._be_current(is_stale_allowed=request.stale)
        caller = self._guard.identity(context)
        return writer_of(FleetStatus, pb.FleetStatus)(self._status("" if caller is None else caller.role))

    def _status(self, caller_role: str) -> FleetStatus:
        state, image = self._state, self._state.image
        runner = self._leadership.runner
        leading = None if runner is None else runner.standing()
        standing = self._replica.driver.standing
        plan = state.plan
        agents: dict[str, int] = {}
        for _, record in state.living_agents():
            agents[record.host] = agents.get(record.host, 0) + 1
        hosts = tuple([self._host_status(host, agents.get(host, 0), leading) for host in sorted(image.hosts)])
        condition = {} if leading is None else msgspec.structs.asdict(leading.store)
        return FleetStatus(
            fleet=image.name,
            phase=state.phase,
            protocol=image.protocol,
            recovery=image.recovery,
            plan=state.plan_number,
            line_epoch=0 if plan is None else plan.line_epoch,
            hosts=hosts,
            agents=sum(agents.values()),
            epochs_begun=image.begun,
            epochs_completed=image.completed,
            epochs_aborted=image.aborted,
            epochs_open=sum(record.status == OPEN for record in image.epochs.values()),
            triggers_skipped=0 if leading is None else leading.triggers_skipped,
            last_complete_epoch=state.newest_complete(),
            reason=ending_of(state),
            store=StoreStatus(self._store.location, **condition),
            hosts_expected=self._hosts_expected,
            mode=mode_of(image.protocol) if image.protocol in PROTOCOLS else "",
            stored_log_bytes=0 if leading is None else leading.stored_log_bytes,
            leader=standing.leader,
            term=standing.term,
            replicas=tuple(sorted(self._members)),
            concerns=() if leading is None else leading.concerns,
            fork=forked_from(state),
            loss=loss_of(state, time.time_ns(), () if leading is None else objectives_missed(leading.concerns)),
            interval=interval_of(state, None if runner is None else self._figures),
            caller_role=caller_role,
            **{name: sum(getattr(host, name) for host in hosts) for name in LOG_FIELDS},
        )

    def _host_status(self, host: str, agents: int, leading: LeaderStatus | None) -> HostStatus:
        record = self._state.image.hosts[host]
        status = HostStatus(host, record.address, record.start, record.state, agents, is_drained=record.is_drained)
        heartbeat = None if leading is None else leading.heartbeats.get(host)
        if heartbeat is None or record.state != ALIVE:
            return status
        figures = {name: getattr(heartbeat, name) for name in (*FIGURES, *LOG_FIELDS)}
        return msgspec.structs.replace(status, **figures)

    @with_grpc_errors
    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Context) -> pb.SnapshotOutcome:
        """Begin an epoch on request, and answer when the epoch has ended."""
        begun_ns = time.monotonic_ns()
        answer = await self._leading().ask(ev.SnapshotRequested, ev.AnswerSnapshot)
        return pb.SnapshotOutcome(
            epoch=answer.epoch,
            is_complete=answer.is_complete,
            reason=answer.reason,
            root=answer.root,
            elapsed_ns=time.monotonic_ns() - begun_ns,
        )

    @with_grpc_errors
    async def ReadSnapshots(self, request: pb.ReadSnapshotsRequest, context: Context) -> Message:
        """List, show or verify snapshots, or report the outcomes of past epochs."""
        if request.verb == "history":
            await self._be_current()
            history_rows = epoch_history(self._state, await self._stored_epochs())
            return snapshots_replies.wrap(Document(msgspec.json.encode(history_rows)))
        return snapshots_replies.wrap(await asyncio.to_thread(self._read_snapshots, request))

    async def _stored_epochs(self) -> list[int] | None:
        """Return the epochs in the store, or None if the store does not answer in time."""
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._store.epochs), LISTING_S)
        except (SnaplineError, OSError, TimeoutError):
            return None

    def _read_snapshots(self, request: pb.ReadSnapshotsRequest) -> SnapshotsReply:
        match request.verb:
            case "list":
                return list_snapshots(self._store)
            case "show":
                snapshot, agent = request.snapshot or "latest", request.agent or None
                shown = show_document(self._store, snapshot, agent, contents_bytes_max=CONTENTS_BYTES_MAX)
                return Document(msgspec.json.encode(shown))
            case "verify":
                return verify(self._store, request.snapshot or None)
            case _:
                raise UsageError(f"{request.verb!r} is no way to read snapshots: use list, show, verify or history")

    @with_grpc_errors
    async def RecoveryLine(self, request: pb.RecoveryLineRequest, context: Context) -> Message:
        """Return the current recovery line."""
        await self._be_current()
        return recovery_line_replies.wrap(await self._line(list(request.failed), each=request.each))

    async def _line(self, failed: list[str], *, each: bool) -> RecoveryLineReply:
        state = self._state
        if each and failed:
            raise UsageError("each failure by itself, or some together: leave out one of the two")
        if not state.is_autonomous or state.plan is None:
            return coordinated_lines(state) if each else coordinated_line(state, failed)
        if not each:
            return autonomous_line(state, await self._find_lines((tuple(failed_agents(state, failed)),)))
        failures = single_failures(state)
        answer = await self._find_lines(tuple([agents for _, agents in failures]))
        return autonomous_lines([name for name, _ in failures], answer)

    async def _find_lines(self, failures: tuple[tuple[str, ...], ...]) -> ev.AnswerLine:
        answer = await self._leading().ask(lambda number: ev.LineRequested(number, failures), ev.AnswerLine)
        if answer.refused:
            raise CoordinatorUnavailableError(answer.refused)
        return answer

    @with_grpc_errors
    async def RecoveryHistory(self, request: pb.RecoveryHistoryRequest, context: Context) -> Message:
        """Return the past recoveries."""
        await self._be_current(is_stale_allowed=request.stale)
        return writer_of(RecoveryHistoryReply, pb.RecoveryHistoryReply)(history(self._state))

    @with_grpc_errors
    async def PreviewRestore(self, request: pb.PreviewRestoreRequest, context: Context) -> Message:
        """Return the work and the outputs that a restore would undo."""
        await self._be_current()
        preview = await self._restoring.preview(request.snapshot, is_dropping=request.drop_inputs)
        return writer_of(RestorePreview, pb.RestorePreview)(preview)

    @with_grpc_errors
    async def Restore(self, request: pb.RestoreRequest, context: Context) -> Message:
        """Restore the fleet to an epoch."""
        await self._be_current()
        restored = await self._restoring.restore(
            request.snapshot,
            request.token,
            request.reason,
            is_dropping=request.drop_inputs,
            accepts_changes=request.accept_changes,
            ask=self._leading().ask,
        )
        return writer_of(RestoreReply, pb.RestoreReply)(restored)

    @with_grpc_errors
    async def Locate(self, request: pb.LocateRequest, context: Context) -> Message:
        """Tell tools or clients on which hosts agents are placed; clients then call these hosts."""
        if len(request.agents) > LOCATED_MAX:
            raise UsageError(f"{len(request.agents)} agents asked for at once; {LOCATED_MAX} are allowed")
        await self._be_current()
        locations = located_all(self._state) if request.all else located(self._state, request.agents)
        return writer_of(LocateReply, pb.LocateReply)(locations)

    @with_grpc_errors
    async def ReportHostExit(self, request: pb.ReportHostExitRequest, context: Context) -> pb.ReportHostExitReply:
        """Handle a launcher's report that the process of a host has ended. In the answer, `is_known` tells whether the fleet counted this
        run of the host as alive."""
        await self._check_own(context, HOST, request.host)
        runner = self._leading()
        record = self._state.image.hosts.get(request.host)
        is_known = record is not None and record.instance == request.instance and record.state == ALIVE
        died_in = tuple([reader_of(TurnDeath)(death) for death in request.died_in])
        runner.feed(ev.HostExitReported(request.host, request.instance, request.reason, died_in))
        return pb.ReportHostExitReply(is_known=is_known)

    @with_grpc_errors
    async def ReportHostBusy(self, request: pb.ReportHostBusyRequest, context: Context) -> pb.ReportHostBusyReply:
        """Handle a host's report that its process is alive but its event loop is blocked."""
        await self._check_own(context, HOST, request.host)
        self._leading().feed(ev.HostBusyReported(request.host, request.instance, request.busy_ns, request.what))
        return pb.ReportHostBusyReply()

    @with_grpc_errors
    async def ForgetHost(self, request: pb.ForgetHostRequest, context: Context) -> pb.ForgetHostReply:
        """Remove the record of a host that will never return."""
        await self._be_current()
        runner = self._leading()
        check_forgetting(self._state, request.host)
        answer = await runner.ask(
            lambda number: words.ForgetHostRequested(number, request.host), words.AnswerForgetHost
        )
        if answer.refused:
            raise CoordinatorUnavailableError(answer.refused)
        return pb.ForgetHostReply()

    @with_grpc_errors
    async def MoveAgents(self, request: pb.MoveAgentsRequest, context: Context) -> pb.MoveAgentsReply:
        """Drain or resume hosts, spread the agents evenly, or move single agents."""
        await self._be_current()
        drained, resumed = tuple(request.drained), tuple(request.resumed)
        check_moves(self._state.image.hosts, drained, resumed)
        placed = dict(request.placed)
        check_placed(self._state, placed)
        moves = (drained, resumed, request.is_even, placed)
        answer = await self._leading().ask(lambda number: words.MovesRequested(number, *moves), words.AnswerMoves)
        if answer.refused:
            raise UsageError(answer.refused)
        return pb.MoveAgentsReply(plan=answer.plan, is_moving=answer.is_moving)

    @with_grpc_errors
    async def EndHost(self, request: pb.EndHostRequest, context: Context) -> pb.EndHostReply:
        """End a host's process."""
        await self._be_current()
        check_end(self._state.image.hosts, request.host, request.host_start)
        self._leading().feed(words.EndHostRequested(request.host))
        return pb.EndHostReply()

    async def _check_own(self, context: Context, role: str, name: str) -> None:
        """Check that the call is only about the caller itself, if the caller has this role. Callers with other permitted roles may act on
        behalf of others."""
        identity = self._security.identity(context)
        if identity is not None and identity.role == role and identity.name != name:
            await refuse(
                context, f"it says {role} {identity.name}, and the call is about {name or 'whoever it may be'}"
            )

    # ---- outputs ----------------------------------------------------------------------------------------------------

    @with_grpc_errors
    async def ReadOutputs(self, request: pb.ReadOutputsRequest, context: Context) -> Message:
        """Return released outputs. If no outputs follow the cursor, wait for a release."""
        page = await self._outputs.read(request.after, request.topic, request.wait_ms / 1000)
        return writer_of(ReadOutputsReply, pb.ReadOutputsReply)(page)

    @with_grpc_errors
    async def ReadConsumers(self, request: pb.ReadConsumersRequest, context: Context) -> Message:
        """Return all named consumers of outputs, with their positions."""
        return writer_of(ReadConsumersReply, pb.ReadConsumersReply)(await self._outputs.consumers())

    @with_grpc_errors
    async def MoveConsumer(self, request: pb.MoveConsumerRequest, context: Context) -> pb.MoveConsumerReply:
        """Move a consumer's cursor, which acknowledges all outputs before it."""
        return pb.MoveConsumerReply(cursor=await self._outputs.move(request.name, request.cursor))

    @with_grpc_errors
    async def ForgetConsumer(self, request: pb.ForgetConsumerRequest, context: Context) -> pb.ForgetConsumerReply:
        """Delete a consumer of outputs."""
        await self._outputs.forget(request.name)
        return pb.ForgetConsumerReply()

    # ---- replicas ---------------------------------------------------------------------------------------------------

    @with_grpc_errors
    async def ReadReplica(self, request: pb.ReadReplicaRequest, context: Context) -> pb.Document:
        """Return this replica's status, whether it leads or not."""
        raft = self._replica.driver
        match request.verb:
            case "status":
                made = document("ReplicaStatus", run=self._run, **msgspec.to_builtins(await raft.status()))
            case "members":
                standing = raft.standing
                members = [{"id": x, "address": self._members[x], "leads": x == standing.leader} for x in self._members]
                made = document("Replicas", term=standing.term, members=members)
            case "metrics":
                made = document("ReplicaMetrics", metrics=self._replica.metrics())
            case _:
                raise UsageError(f"{request.verb!r} is no way to read a replica: use status, members or metrics")
        return pb.Document(json=msgspec.json.encode(made))

    @with_grpc_errors
    async def TransferLeader(self, request: pb.TransferLeaderRequest, context: Context) -> pb.LeaderTransferred:
        """Transfer the leadership to another replica. A caller that is itself a replica may only transfer its own leadership."""
        await self._check_own(context, COORDINATOR, request.only_from)
        self._leading()
        leading = self._replica.driver.standing.leader
        is_elsewhere = bool(request.only_from) and request.only_from != leading
        if is_elsewhere or request.to == leading:
            return pb.LeaderTransferred(leader=leading)
        leader = await self._replica.driver.transfer_leadership(request.to or None)
        return pb.LeaderTransferred(leader=leader)

    @with_grpc_errors
    async def EndReplica(self, request: pb.EndReplicaRequest, context: Context) -> pb.EndReplicaReply:
        """End a replica's process. A replica that must end itself sends the answer first.

        If the request is for another replica, the leader forwards the call after recording it.
        """
        name = request.name
        if name not in self._members:
            raise NotFoundError(f"no replica {name!r}: there are {', '.join(self._members)}")
        if name == (await self._replica.driver.status()).node:
            asyncio.get_running_loop().call_later(ANSWER_S, self._leadership.end, 0)
            return pb.EndReplicaReply()
        self._leading()
        other = CoordinatorClient(self._members[name], self._security)
        try:
            await other.end_replica(name)
        finally:
            await other.close()
        return pb.EndReplicaReply()

    @with_grpc_errors
    async def Backup(self, request: pb.BackupRequest, context: Context) -> pb.BackupReply:
        """Return the whole replicated state, including every change that was acknowledged before the call."""
        await self._be_current()
        image = await asyncio.to_thread(
            zlib.compress, self._state.freeze(), 1
        )  # compression shrinks a large state to a tenth, which fits into an answer
        return pb.BackupReply(image=image, cluster=self._store.store_id)
