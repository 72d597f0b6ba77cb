"""Process of a coordinator replica, which opens the log and the store, serves calls, and leads if elected.

If the fleet is running, a stop signal first triggers a last snapshot. The hosts may be stopping at the same time, and need a coordinator
for their last epoch. The last epoch is begun by the leader (`leader/fleet_end.py`). The other replicas keep running until the last epoch
is complete, because it cannot be committed without them. After a stop signal, a coordinator ends at once if its fleet has no hosts or is
not running.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import msgspec
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from snapline.channels.servers import server_options, supervised, wait_until_free_async
from snapline.coordinator.leader.core import LeaderCore
from snapline.coordinator.leader.events import CoordinatorStopRequested, ReplicaStatusChecked
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderOptions
from snapline.coordinator.raft.journal import ForeignLogError, known_cluster
from snapline.coordinator.raft.learner import is_majority_lost
from snapline.coordinator.raft.node import DUMP_FILE, JOURNAL_FILE
from snapline.coordinator.raft.pysyncobj_adapter import raft_configuration
from snapline.coordinator.raft.raft_driver import Replica, ReplicaOptions
from snapline.coordinator.service.backup import create_fork_log
from snapline.coordinator.service.coordinator_metrics import FAMILIES, CoordinatorMetrics, LeaderFigures
from snapline.coordinator.service.leadership import LeaderRunner, Leadership, MirroredMachine, RaftLog
from snapline.coordinator.service.servicer import CoordinatorServicer, LeaderHint
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.service.users import FleetUsers, UsersServicer
from snapline.coordinator.state.fleet_records import ALIVE, RUNNING
from snapline.coordinator.state.fleet_view import FleetView
from snapline.errors import DamagedDataError, LogError, SnaplineError, StoreError, StoreKeyError, UsageError
from snapline.failpoints import failpoint
from snapline.folders import make_private
from snapline.ids import check_id
from snapline.messages.answers import document
from snapline.messages.host_messages import SAME_SIGNAL_S
from snapline.protos.v1 import coordinator_pb2, coordinator_pb2_grpc
from snapline.security.rpc_authorization import COORDINATOR, RpcGuard
from snapline.security.transport import RELOAD_S, Security
from snapline.storage.disk.local_disk import LockHeldError, lock_file
from snapline.storage.retention.epoch_retention import Policy
from snapline.storage.store.store import Store
from snapline.telemetry.health import READY, begin, open_health_server, tell
from snapline.telemetry.log_lines import BoundIds
from snapline.telemetry.metrics import Readings
from snapline.telemetry.metrics_server import MetricsPlace, MetricsServer, open_metrics_server
from snapline.telemetry.spans import SPANS, SpanOptions, open_spans, read_spans

if TYPE_CHECKING:
    from snapline.coordinator.service.fleet_spans import FleetSpans
    from snapline.telemetry.span_export import SpanExport


_log = logging.getLogger("snapline.coordinator")

LOOK_S = 0.05
"""How often, in seconds, the process checks whether the last epoch is complete. An epoch takes tens of milliseconds."""


class CoordinatorStop:
    """Handling of stop signals in one coordinator process."""

    def __init__(self, leadership: Leadership, state: FleetView, limit_s: float) -> None:
        self._leadership = leadership
        self._state = state
        self._limit_s = limit_s
        self._signal_s = 0.0
        self._waiting: asyncio.Task[None] | None = None

    def asked(self) -> None:
        """Handle a stop signal. End the process after a last snapshot, or when the time limit has passed. After a second signal, end the
        process at once."""
        now_s = asyncio.get_running_loop().time()
        if self._waiting is not None and now_s < self._signal_s + SAME_SIGNAL_S:
            return
        if self._waiting is not None or not self._limit_s or not self._is_fleet_running():
            self._leadership.end(0)
            return
        self._signal_s = now_s
        self._waiting = asyncio.create_task(self._end_saved())

    def _is_fleet_running(self) -> bool:
        runner, hosts = self._leadership.runner, self._state.image.hosts.values()
        has_hosts = runner is None or runner.has_hosts
        return self._state.phase == RUNNING and any(host.state == ALIVE for host in hosts) and has_hosts

    async def _end_saved(self) -> None:
        state, begun = self._state, self._state.image.begun
        wait = f"for {self._limit_s:g} s at most; a second signal ends it at once"
        _log.info("a last snapshot is taken before this coordinator stops, %s", wait)
        asked_runner: LeaderRunner | None = None
        while self._is_fleet_running():
            runner = self._leadership.runner
            if runner is not None and runner is not asked_runner:
                asked_runner = runner
                runner.feed(CoordinatorStopRequested())
            if state.newest_complete() > begun if runner is None else runner.is_saved:
                _log.info("epoch %d is the last snapshot", state.newest_complete())
                break
            if asyncio.get_running_loop().time() > self._signal_s + self._limit_s:
                epoch = state.newest_complete()
                lost = f"what the fleet has done since epoch {epoch} is lost if its hosts stop too"
                _log.warning("no last snapshot within %g s: %s", self._limit_s, lost)
                break
            await asyncio.sleep(LOOK_S)
        self._leadership.end(0)


AWAY_LOOK_S = 1.0
"""Time, in seconds, between checks of an unreachable store. Mounting a file system takes seconds."""

STORE_WAIT_LOG_CHECKS = 30
"""Number of checks of an unreachable store between two log messages about the wait."""

OTHER_STORE_CHECKS_MAX = 60
"""Number of checks after which a different store is an error. Until then, a mount may be changing; after that, --store is assumed to be
wrong."""

SERVICE = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name
USERS_SERVICE = coordinator_pb2.DESCRIPTOR.services_by_name["People"].full_name
ADDRESS_FILE, LOCK_FILE = "coordinator.json", "coordinator.lock"

SERVER_STOP_S = 1.0
"""Time, in seconds, for running calls to finish when the process ends."""

HEALTH_S = 0.5
"""Time, in seconds, between health updates, which is half an election time-out."""

SINGLE_REPLICA_ELECTION_S = (0.06, 0.12)
"""Election time-outs, in seconds, of a replica that has no peers."""

LOST_LOG_CHECK_S = 5.0
"""How often, in seconds, a replica checks whether too many logs are lost. Only a replica without a leader or without its log checks
this. The interval is longer than an election, so that a learner that can become a voter has had the time to do so."""

REFUSED_S = 2.0
"""Time, in seconds, after which this replica ends if all other replicas refuse it or use another transport. Earlier, the other replicas may
not have dialled its address yet."""

END_CHECK_S, FOLLOWER_EXIT_DELAY_S = 1.0, 10.0
"""How often, in seconds, a replica that does not lead checks whether the fleet has ended; and how long it then stays, because its leader
needs it."""


class FolderInUseError(UsageError):
    """Error: another coordinator is using the data directory."""

    exit_code = 11


class CoordinatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a coordinator.

    Attributes:
        data_dir: folder of the coordinator's log. A coordinator that is restarted with the same folder continues the same fleet.
        store: path or file:///… URL of the checkpoint store, which the coordinator shares with all hosts.
        hosts_expected: number of hosts that must join before the fleet starts.
        listen: "host:port". Port 0 means the port of the previous run, or any free port if that one is unknown or taken.
        advertise: address that other processes should use; "" means the listening address.
        security: transport security. By default, only plaintext connections on loopback are allowed.
        health: address of a health server that needs no certificates (`telemetry/health.py`); "" means no health server.
        metrics: metrics endpoint (`telemetry/metrics_server.py`).
        spans: settings for exporting spans to OpenTelemetry (`telemetry/spans.py`).
        log_ids: ids that appear in the coordinator's log lines (`telemetry/log_lines.py`).
        rejoin_grace_s: how long, in seconds, a lost host may take to rejoin before its agents move to other hosts.
        keep_epochs: number of complete epochs to which a recovery may return, at least 2.
        retention: policy that decides which older epochs stay in the store. None means a policy that keeps `keep_epochs` epochs and the
            default numbers of hourly and daily epochs.
        exit_when_finished: whether the process ends when the fleet has ended. If false, the process keeps answering `Status` calls.
        node: id of this coordinator replica.
        members: the "host:port" address of each replica, by id. All replicas have the same mapping, which never changes. This mapping is
            empty if there is only one replica.
        begin_anew: whether the fleet may restart from its initial states if all snapshots are damaged.
        last_snapshot_s: how long, in seconds, the process waits for a last snapshot after a stop signal; 0 means that it takes no last
            snapshot.
    """

    data_dir: Path
    store: str
    hosts_expected: int
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    security: Security = msgspec.field(default_factory=Security.loopback)
    health: str = ""
    metrics: MetricsPlace = MetricsPlace()
    spans: SpanOptions = SpanOptions()
    log_ids: BoundIds = msgspec.field(default_factory=BoundIds)
    rejoin_grace_s: float = 3.0
    keep_epochs: int = 10
    retention: Policy | None = None
    exit_when_finished: bool = True
    node: str = "c1"
    members: dict[str, str] = {}
    last_snapshot_s: float = 0.0
    begin_anew: bool = False


async def run_coordinator(options: CoordinatorOptions) -> int:
    """Run the coordinator until the fleet has ended, or until SIGTERM or SIGINT. Return the exit code, which is 1 if the fleet failed,
    and otherwise 0.

    Raises:
        ForeignLogError: the log belongs to another replica, store or coordinator.
        FolderInUseError: another coordinator is using the data directory.
        LogError: the log is damaged.
        StoreError: the store cannot be opened.
        UsageError: an option is invalid.
    """
    check_id(options.node, "coordinator")
    if options.hosts_expected < 1:
        raise UsageError("a fleet needs at least one host: give --hosts")
    options.security.check_listen_address(options.listen)
    store = await _open_store(options.store, Path(options.data_dir))
    with _own_folder(Path(options.data_dir)):
        await asyncio.to_thread(create_fork_log, Path(options.data_dir), store, node=options.node)
        healthy = health.aio.HealthServicer()
        await begin(healthy)
        async with contextlib.AsyncExitStack() as stack:
            process = _Process(options, store)
            stack.enter_context(
                _stopped_by_signals(process.on_stop_signal)
            )  # install signal handlers first, so that everything opened later is closed on a signal
            await open_health_server(stack, healthy, options.health)
            await open_metrics_server(stack, process.metrics_endpoint, options.metrics, options.node)
            stack.enter_context(options.log_ids.reading(process.standing))
            return await process.run(healthy)


async def _open_store(location: str, folder: Path) -> Store:
    """Open the store. A replica without a log may create a new store. A replica with a log waits for the store whose id is in its log.

    Raises:
        UsageError: the location cannot contain a store, for example because it is below a file, or it still contains another store after
            several checks.
        StoreKeyError: the store has a different key.
        StoreError: the store is damaged, or it currently cannot be created.
    """
    if not any((folder / name).exists() for name in (JOURNAL_FILE, DUMP_FILE)):
        return await asyncio.to_thread(_open_or_create, location)
    known = known_cluster(folder / JOURNAL_FILE)
    looks = itertools.count()
    while True:
        look = next(looks)
        try:
            store = await asyncio.to_thread(Store.open, location)
        except (DamagedDataError, StoreKeyError):
            raise
        except StoreError as error:
            problem = str(error)
        else:
            if store.store_id == known or not known:  # opening an unreadable log reports the error
                return store
            problem = f"another store (id {store.store_id}) is at {location}, and the log is of the store {known}: mount that one, or give its place with --store"
            if look >= OTHER_STORE_CHECKS_MAX:
                raise UsageError(problem)
        if look % STORE_WAIT_LOG_CHECKS == 0:
            _log.error("waiting for the store at %s, which the log knows by its id %s: %s", location, known, problem)
        await asyncio.sleep(AWAY_LOOK_S)


def _open_or_create(location: str) -> Store:
    try:
        store = Store.open_or_create(location)
        store.digest(b"")  # creates the first key, if the store uses keys, so that hosts can check theirs
        return store
    except StoreError as error:
        if isinstance(error.__cause__, FileExistsError | NotADirectoryError | FileNotFoundError | PermissionError):
            raise UsageError(
                f"no store can be made at {location}: {error.__cause__.strerror}; give another --store"
            ) from error
        raise


class _Process:
    """One replica's process: Raft, the gRPC server and, while the replica leads, the leader core."""

    def __init__(self, options: CoordinatorOptions, store: Store) -> None:
        self._options = options
        self._store = store
        self._machine = MirroredMachine()
        self._members = options.members or {options.node: options.advertise or options.listen}
        self._is_alone = len(self._members) == 1
        self._leadership = Leadership(self._make_runner)
        self._figures = LeaderFigures(self._machine.state)
        self._planned_stop = CoordinatorStop(self._leadership, self._machine.state, options.last_snapshot_s)
        self._export = open_spans(options.spans, role="coordinator", name=options.node)
        self._spans = None if self._export is None else _fleet_spans(self._export, self._machine.state)
        self._replica = Replica(
            ReplicaOptions(
                node=options.node,
                members=self._members,
                folder=Path(options.data_dir),
                cluster=store.store_id,
                marks=store,
                security=options.security,
                configuration=raft_configuration(
                    0, election_s=SINGLE_REPLICA_ELECTION_S, heartbeat_s=SINGLE_REPLICA_ELECTION_S[0] / 4
                )
                if self._is_alone
                else None,
            ),
            self._machine,
            on_alarm=lambda text: _log.error("%s", text),
            on_standing=self._leadership.on_standing,
        )
        self._machine.post_with(self._replica.driver.call_on_loop)
        self._log = RaftLog(self._replica.driver)

    async def run(self, healthy: health.aio.HealthServicer) -> int:
        leader_hint = LeaderHint(self._leadership, self._replica, self._members)
        people = FleetUsers(
            self._machine.state,
            self._replica.driver,
            self._log,
            self._leadership,
            leader_hint,
            node=self._options.node,
            security=self._options.security,
        )
        guard = RpcGuard(self._options.security, people)
        servicer = CoordinatorServicer(
            self._leadership,
            self._replica,
            self._machine.state,
            self._store,
            members=self._members,
            security=self._options.security,
            guard=guard,
            leader_hint=leader_hint,
            hosts_expected=self._options.hosts_expected,
            figures=self._figures,
        )
        speaking = UsersServicer(people, guard, leader_hint)
        server, address = await _listen(self._options, (servicer, speaking), self._replica, guard, healthy)
        tasks = [asyncio.create_task(_keep_reloading(self._options.security))]
        try:
            await self._start_replica()
            tasks.append(asyncio.create_task(self._leadership.run(self._replica.driver)))
            tasks.append(asyncio.create_task(self._watch_end()))
            tasks.append(asyncio.create_task(self._watch_logs()))
            tasks.append(asyncio.create_task(self._watch_refusals()))
            if self._is_alone:
                await self._until_leading()
            await self._tell_health(healthy)
            tasks.append(asyncio.create_task(self._keep_telling_health(healthy)))
            await server.start()
            _write_address(Path(self._options.data_dir), self._options.advertise or address, address)
            _log.info("coordinator %s at %s, store %s", self._options.node, address, self._store.location)
            failpoint("coordinator.serving")
            async with supervised():
                await self._leadership.ended.wait()
        finally:
            if self._leadership.runner is not None:
                self._leadership.runner.close_streams()
            await server.stop(SERVER_STOP_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._replica.stop()
            if self._export is not None:
                await asyncio.to_thread(self._export.close)
        if self._leadership.failure is not None:
            raise self._leadership.failure
        return self._leadership.exit_code

    def on_stop_signal(self) -> None:
        """Handle a stop signal. After a stop signal, `run` returns as soon as a last snapshot is complete, even if `run` has not been
        called yet."""
        self._planned_stop.asked()

    def standing(self) -> dict[str, object]:
        """Return the ids that appear in this process's log lines."""
        state = self._machine.state
        return {"fleet": state.image.name, "plan": state.plan_number, "epoch": state.image.begun}

    def metrics_endpoint(self) -> MetricsServer:
        """Return the metrics endpoint of this process. While the process leads, the endpoint also serves the fleet's metrics."""
        metrics = CoordinatorMetrics(
            self._replica,
            self._leadership,
            self._machine.state,
            self._figures,
            hosts_expected=self._options.hosts_expected,
        )

        async def read() -> Readings:
            return {**await metrics.read(), **read_spans(self._export)}

        return MetricsServer(COORDINATOR, self._options.node, (*FAMILIES, *SPANS), read, self._options.security)

    async def _start_replica(self) -> None:
        try:
            await self._replica.start()
        except LogError as error:
            if self._store.store_id not in str(error):
                raise
            raise ForeignLogError(
                f"this data directory belongs to another store than {self._store.location}: give the --store it had ({error})"
            ) from error

    async def _watch_logs(self) -> None:
        """End the process when so many replicas have lost their logs that no leader can be elected."""
        driver = self._replica.driver
        while True:
            if not self._is_alone:
                await asyncio.sleep(LOST_LOG_CHECK_S)
            if driver.is_learner or not driver.standing.leader:
                try:
                    marks = await asyncio.to_thread(self._store.log_marks)
                except StoreError as error:
                    _log.warning("cannot see which replicas have lost their logs: %s", error)
                    marks = {}
                lost = is_majority_lost(self._members, marks)
                if lost and (driver.is_learner or not driver.standing.leader):
                    self._leadership.fail(_log_lost(lost, self._store))
            await asyncio.sleep(LOST_LOG_CHECK_S)

    async def _watch_refusals(self) -> None:
        """End the process if every other replica refuses its streams, or differs from it in the use of TLS."""
        others, held_s = len(self._members) - 1, 0.0
        while others:
            refusals = self._replica.streams.refusals.final()
            held_s = held_s + HEALTH_S if len(refusals) == others else 0.0
            if held_s > REFUSED_S:
                self._leadership.fail(UsageError("; ".join(dict.fromkeys(refusals.values()))))
                return
            await asyncio.sleep(HEALTH_S)

    async def _until_leading(self) -> None:
        """Wait until this replica leads if it is the only one, so that it does not refuse calls during start-up."""
        waits = [asyncio.create_task(event.wait()) for event in (self._leadership.led, self._leadership.ended)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _keep_telling_health(self, healthy: health.aio.HealthServicer) -> None:
        while True:
            await asyncio.sleep(HEALTH_S)
            await self._tell_health(healthy)

    async def _tell_health(self, healthy: health.aio.HealthServicer) -> None:
        """Update this process's health status, and pass the status of the replicas to the leader core. Without a known leader or a
        connected majority, a replica reports that it is not serving."""
        raft, options = self._replica.driver, self._options
        try:
            status = await raft.status()
            is_serving = bool(raft.standing.leader) and status.has_quorum
        except SnaplineError:
            is_serving = False
        else:
            if self._leadership.runner is not None:
                missing = tuple(sorted(set(self._members) - {options.node, *status.connected}))
                left_ns = options.security.certificate_left_ns()
                self._leadership.runner.feed(ReplicaStatusChecked(options.node, missing, len(self._members), left_ns))
        await tell(healthy, ("", SERVICE, READY), is_serving=is_serving)

    async def _watch_end(self) -> None:
        """End this replica, if it does not lead, some time after the fleet has ended and the hosts have been notified."""
        while self._options.exit_when_finished:
            await asyncio.sleep(END_CHECK_S)
            if self._machine.state.image.outcome and self._leadership.runner is None:
                await asyncio.sleep(FOLLOWER_EXIT_DELAY_S)
                if self._leadership.runner is None:
                    self._leadership.end(0 if self._machine.state.image.outcome == "stopped" else 1)
                    return

    def _make_runner(self) -> LeaderRunner:
        """Create the runner for a new leadership. Raises LogError or UsageError if the log and the store do not belong together."""
        state, options = self._machine.state, self._options
        _check_store(state, self._store)
        core = LeaderCore(
            state,
            LeaderOptions(
                client=f"{options.node}.{secrets.token_hex(8)}",
                cluster=self._store.store_id,
                hosts_expected=options.hosts_expected,
                rejoin_grace_ns=round(options.rejoin_grace_s * SECOND_NS),
                keep_epochs=options.keep_epochs,
                exit_when_finished=options.exit_when_finished,
                may_begin_anew=options.begin_anew,
                certify=self._store.certify_log,
            ),
        )
        retention = options.retention or Policy(keep_last=options.keep_epochs)
        keeper = StoreKeeper(self._store, state, retention=retention, on_deleted=self._figures.deleted)
        return LeaderRunner(core, self._log, keeper, [self._figures, *self._begin_spans()])

    def _begin_spans(self) -> "list[FleetSpans]":
        """Start exporting spans for a new leadership, and return the observer. If spans are not exported, return an empty list."""
        if self._spans is None:
            return []
        self._spans.begin()
        return [self._spans]


def _fleet_spans(export: "SpanExport", state: FleetView) -> "FleetSpans":
    """Return the observer that exports spans. Called at the start, because the package may be replaced while this process runs."""
    from snapline.coordinator.service.fleet_spans import FleetSpans

    return FleetSpans(export, state)


def _log_lost(lost: list[str], store: Store) -> ForeignLogError:
    return ForeignLogError(
        f"the logs of {', '.join(lost)} are lost, and with them what a majority of the replicas knew of the fleet in "
        f"{store.location}: give --data-dir as it was; if the disks are gone, bring the fleet back with `snapline "
        "coordinator restore-backup`; to begin anew, give an empty --store"
    )


def _check_store(state: FleetView, store: Store) -> None:
    """Check that the log and the store belong together.

    Raises:
        LogError: the store contains epochs that are missing from the log.
        UsageError: the log is new, but the store already contains another fleet's snapshots.
    """
    try:
        epochs = store.epochs()
    except DamagedDataError:
        raise
    except StoreError as error:
        _log.error("this replica leads, and cannot see whether log and store tell the same story: %s", error)
        return
    if epochs and epochs[-1] > state.image.begun:
        if not state.image.begun:
            raise UsageError(
                f"the store {store.location} holds the snapshots of another fleet: "
                "give an empty --store, or the data directory it belongs to"
            )
        raise LogError(
            f"the store {store.location} holds epoch {epochs[-1]}, the log knows epochs up to {state.image.begun}: "
            "the log has lost its end; restore it from a backup"
        )


async def _listen(
    options: CoordinatorOptions,
    servicers: tuple[CoordinatorServicer, UsersServicer],
    replica: Replica,
    guard: RpcGuard,
    healthy: health.aio.HealthServicer,
) -> tuple[grpc.aio.Server, str]:
    """Create a server that listens on the configured port, and return it with its address. If the configured port is 0, prefer the port
    of the previous run."""
    host, _, port = options.listen.rpartition(":")
    earlier = read_address(Path(options.data_dir), "listen") if port == "0" else ""
    wanted = f"{host}:{earlier.rpartition(':')[2]}" if earlier else options.listen
    if not await wait_until_free_async(wanted) and earlier:
        _log.warning("the port of the run before (%s) is taken: hosts that know it must be started again", wanted)
        wanted = options.listen
    server = grpc.aio.server(options=server_options(), interceptors=(guard,))
    await _add_services(server, servicers, healthy)
    replica.add_to_server(server)
    return server, f"{host}:{options.security.add_port(server, wanted)}"


async def _add_services(
    server: grpc.aio.Server,
    servicers: tuple[CoordinatorServicer, UsersServicer],
    healthy: health.aio.HealthServicer,
) -> None:
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(servicers[0], server)  # type: ignore[no-untyped-call]  # generated
    coordinator_pb2_grpc.add_PeopleServicer_to_server(servicers[1], server)  # type: ignore[no-untyped-call]  # generated
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    reflection.enable_server_reflection((SERVICE, USERS_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


@contextlib.contextmanager
def _own_folder(folder: Path) -> Iterator[None]:
    """Lock the folder for this process, because two processes that share these files could vote twice.

    Raises:
        FolderInUseError: another process is using the folder.
    """
    make_private(folder)
    try:
        descriptor = lock_file(folder / LOCK_FILE)
    except LockHeldError as error:
        raise FolderInUseError(f"{folder} is in use by {error}: end it, or give another --data-dir") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _write_address(data_dir: Path, address: str, listen: str) -> None:
    """Write the address file for tools, atomically replacing any old file."""
    content = document("CoordinatorAddress", address=address, listen=listen)
    scratch = data_dir / f"{ADDRESS_FILE}.new"
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    os.replace(scratch, data_dir / ADDRESS_FILE)


def read_address(data_dir: Path, field: str = "address") -> str:
    """Return the recorded address of the coordinator that uses `data_dir`. With `field="listen"`, return its listening address instead.
    Return "" if no address has been recorded."""
    try:
        content = msgspec.json.decode((data_dir / ADDRESS_FILE).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return ""
    address = content.get(field, "")
    return address if address.rpartition(":")[2].isdecimal() else ""


async def _keep_reloading(security: Security) -> None:
    while True:
        await asyncio.sleep(RELOAD_S)
        security.reload()


@contextlib.contextmanager
def _stopped_by_signals(end: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    installed = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, end)
            installed.append(number)
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
