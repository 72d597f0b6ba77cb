"""The coordinator's process: opens log and store, serves, leads, ends."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import msgspec
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from snapline.channels.options import server_options
from snapline.channels.security import Security
from snapline.coordinator.desk import SECOND_NS, LeaderOptions
from snapline.coordinator.fleet_view import FleetView
from snapline.coordinator.leader import LeaderCore
from snapline.coordinator.log import SqliteLog
from snapline.coordinator.service import Driver, FleetMachine
from snapline.coordinator.servicer import CoordinatorServicer
from snapline.coordinator.store_keeper import StoreKeeper
from snapline.errors import LogError, MisuseError, WorldError
from snapline.failpoints import failpoint
from snapline.ids import check_id
from snapline.protos.v1 import coordinator_pb2, coordinator_pb2_grpc
from snapline.storage.store import Store

_log = logging.getLogger("snapline.coordinator")

SERVICE = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name
LOG_FILE, ADDRESS_FILE = "coordinator.sqlite", "coordinator.json"

GOODBYE_S = 1.0
"""For calls that are being answered when the run ends."""

RELOAD_S = 60.0
"""Certificates that were replaced are presented to new connections within a minute."""

BIND_TRIES, BIND_PAUSE_S = 20, 0.1
"""For the port of the run before: its process may be dying still."""


class CoordinatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a coordinator is told.

    Attributes:
        data_dir: folder of its log; the same one continues the same fleet.
        store: the checkpoint store, a path or file:///… URL that all hosts share.
        hosts_expected: the fleet starts when so many hosts have joined.
        listen: "host:port"; port 0 takes the one of the run before, or any free one.
        advertise: where others reach it; default: as it listens.
        security: certificates, or loopback only.
        rejoin_grace_s: how long agents wait for their lost host before they move to others.
        keep_epochs: complete epochs to keep, at least 2.
        exit_when_finished: end the process when the fleet has ended; otherwise `Status` goes on answering.
        name: of this coordinator, in its request ids and log lines.
    """

    data_dir: Path
    store: str
    hosts_expected: int
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    security: Security = msgspec.field(default_factory=Security.loopback)
    rejoin_grace_s: float = 3.0
    keep_epochs: int = 10
    exit_when_finished: bool = True
    name: str = "coordinator"


async def run_coordinator(options: CoordinatorOptions) -> int:
    """Run until the fleet has ended, or SIGTERM or SIGINT; return the exit code (0, 1 if the fleet failed).

    Raises:
        LogError: the log is damaged, in use, or does not belong to this store.
        StoreError: the store cannot be used.
        MisuseError: an option is wrong.
    """
    check_id(options.name, "coordinator")
    if options.hosts_expected < 1:
        raise MisuseError("a fleet needs at least one host: give --hosts")
    options.security.check_listen_address(options.listen)
    store = await asyncio.to_thread(Store.open_or_create, options.store)
    machine = FleetMachine()
    log = SqliteLog.open(
        Path(options.data_dir) / LOG_FILE,
        machine,
        meta=lambda: {"cluster": secrets.token_hex(8), "store": store.store_id},
    )
    try:
        _check_store(machine.state, log, store)
        return await _serve(options, store, machine, log)
    finally:
        await log.close()


def _check_store(state: FleetView, log: SqliteLog, store: Store) -> None:
    """Log and store must tell the same story.

    Raises:
        LogError: they do not: another store, or a log that has lost its end.
        MisuseError: a new log on a store that is in use.
    """
    epochs = store.epochs()
    if log.meta["store"] != store.store_id:
        raise LogError(
            f"this data directory belongs to store {log.meta['store']}, not to {store.location}: give the --store it had"
        )
    if epochs and epochs[-1] > state.image.begun:
        if not state.image.begun:
            raise MisuseError(
                f"the store {store.location} holds the snapshots of another fleet: "
                "give an empty --store, or the data directory it belongs to"
            )
        raise LogError(
            f"the store {store.location} holds epoch {epochs[-1]}, the log knows epochs up to {state.image.begun}: "
            "the log has lost its end; restore it from a backup"
        )


async def _serve(options: CoordinatorOptions, store: Store, machine: FleetMachine, log: SqliteLog) -> int:
    state = machine.state
    core = LeaderCore(
        state,
        LeaderOptions(
            client=f"{options.name}.{secrets.token_hex(8)}",
            cluster=log.meta["cluster"],
            hosts_expected=options.hosts_expected,
            rejoin_grace_ns=round(options.rejoin_grace_s * SECOND_NS),
            keep_epochs=options.keep_epochs,
            exit_when_finished=options.exit_when_finished,
        ),
    )
    driver = Driver(core, log, StoreKeeper(store, state))
    servicer = CoordinatorServicer(
        driver, state, store, security=options.security, hosts_expected=options.hosts_expected
    )
    server, address = await _listen(options, servicer)
    reloading = asyncio.create_task(_keep_reloading(options.security))
    try:
        driver.start()
        await server.start()
        _write_address(Path(options.data_dir), options.advertise or address, address)
        _log.info("coordinator at %s, store %s, log at entry %d", address, store.location, log.number)
        failpoint("coordinator.serving")
        with _stopped_by_signals(driver):
            await driver.ended.wait()
    finally:
        reloading.cancel()
        driver.close_streams()
        await server.stop(GOODBYE_S)
        await driver.stop()
    if driver.failure is not None:
        raise driver.failure
    return driver.exit_code


async def _listen(options: CoordinatorOptions, servicer: CoordinatorServicer) -> tuple[grpc.aio.Server, str]:
    """A server that is bound: to the address given, or to the port of the run before."""
    host, _, port = options.listen.rpartition(":")
    earlier = read_address(Path(options.data_dir), "listen") if port == "0" else ""
    wanted = f"{host}:{earlier.rpartition(':')[2]}" if earlier else options.listen
    for attempt in range(BIND_TRIES + 1):
        if attempt == BIND_TRIES and earlier:
            _log.warning("the port of the run before (%s) is taken: hosts that know it must be started again", wanted)
            wanted = options.listen
        server = grpc.aio.server(options=server_options())
        await _add_services(server, servicer)
        try:
            return server, f"{host}:{options.security.add_port(server, wanted)}"
        except WorldError:
            await server.stop(None)
            if attempt == BIND_TRIES:
                raise
            await asyncio.sleep(BIND_PAUSE_S)
    raise AssertionError("the loop returns or raises")


async def _add_services(server: grpc.aio.Server, servicer: CoordinatorServicer) -> None:
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]  # generated
    healthy = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    for name in ("", SERVICE):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


def _write_address(data_dir: Path, address: str, listen: str) -> None:
    """Tell tools where we are. Replaced as a whole: nobody reads half a file."""
    content = {"apiVersion": "snapline/v1", "kind": "CoordinatorAddress", "address": address, "listen": listen}
    scratch = data_dir / f"{ADDRESS_FILE}.new"
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    os.replace(scratch, data_dir / ADDRESS_FILE)


def read_address(data_dir: Path, field: str = "address") -> str:
    """Where the coordinator of `data_dir` is reached, or (`field="listen"`) listens; empty if it never ran."""
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
def _stopped_by_signals(driver: Driver) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        driver.exit_code = 0
        driver.ended.set()

    installed = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop)
            installed.append(number)
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
