"""Launcher and supervisor for a fleet on a Ray cluster. The fleet keeps running after the program that started the fleet has exited.

A *supervisor* actor runs the same `LaunchedFleet` as `snapline run`, but with the Ray launcher. If the supervisor actor dies, Ray restarts
it with the same plan on any node. The restarted supervisor finds the workers and running processes by name and takes them over. Until the
restart, dead processes are not restarted, and the coordinator detects lost hosts only by missing heartbeats.

Ray restarts a supervisor with its original certificates. So renewing certificates requires a new supervisor (`renew`). The new supervisor
starts every process again under the same name. The processes are already running, so their workers only store the new files.

**The launcher** runs each process of the fleet with a worker actor (`NodeWorker`). Two hosts never share a node, and two coordinators never
share a node. A worker starts its process as a child on its own node, and watches the process. If the worker ends for any reason, the
process dies with it (`deploy/parent_watch.py`). A worker starts a process only at the launcher's request. So after Ray has restarted a
worker, on the same or another node, the worker has no process. The launcher then starts the process again, and the process registers with
the coordinator, which assigns agents to it. So a restart by Ray never replaces a recovery. A worker replaces two placeholders in command
lines: `@node` by the node's address, and `@private/NAME` by the path of a certificate or key.

When Ray reports that an actor or node has died, the supervisor reports the loss of the actor's process to the coordinator. The coordinator
may detect the loss earlier by missing heartbeats. Ray's report may be wrong. The actor and its process may still be running on a node that
Ray has given up. This process is harmless, because its host has been replaced and its messages are rejected (G9).

To start a process, the launcher waits for its worker without a time limit, because the cluster may get another node later. While the
launcher waits, the fleet continues on the remaining hosts. A coordinator keeps its first address, so it can listen only on a node with this
address. If its worker moves to any other node, the supervisor gives up on this coordinator, and the majority continues without it.
"""

import asyncio
import contextlib
import os
import random
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from snapline.deploy.data_directory import PORT_ATTEMPTS_MAX, PORTS, is_free, is_same_folder
from snapline.deploy.launching import Handle, Kind, ProcessSpec
from snapline.deploy.local import HERE, LocalLauncher
from snapline.deploy.plan import (
    AUTHORITY,
    NODE,
    PRIVATE,
    Files,
    FleetPlan,
    check_exposure,
    commands_of,
    own_files,
    read_certificates,
)
from snapline.deploy.ray_cluster import RayCluster, WorkerLostError, answer, node_here, runtime_here
from snapline.deploy.running_fleet import CoordinatorReader, LaunchedFleet
from snapline.deploy.supervisor import Ending, Exit
from snapline.errors import (
    DamagedDataError,
    ExternalFailureError,
    NotFoundError,
    SnaplineError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.messages.status import FleetStatus
from snapline.security.transport import is_loopback


class PrivateFiles:
    """Certificates and keys for the processes that the current process starts.

    The files are kept in memory and readable only by the user of the current process. The files disappear when the current process exits,
    even if it is killed with its node.
    """

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def write(self, files: Mapping[str, bytes]) -> None:
        """Store these files, and atomically replace existing files with the same names. A reader sees either the old or the new content of
        a file."""
        for name, content in files.items():
            descriptor = os.memfd_create(name)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            if name in self._descriptors:
                os.dup2(descriptor, self._descriptors[name], inheritable=False)
                os.close(descriptor)
            else:
                self._descriptors[name] = descriptor

    def path(self, name: str) -> Path:
        """Return a path at which other processes of the same user can read the file. The path is valid while this process runs."""
        return Path(f"/proc/{os.getpid()}/fd/{self._descriptors[name]}")

    def fill_in(self, word: str) -> str:
        """Return the path of the file NAME if `word` has the form `@private/NAME`. Return any other word unchanged."""
        name = word.removeprefix(f"{PRIVATE}/")
        return str(self.path(name)) if name in self._descriptors and name != word else word

    def remove(self) -> None:
        """Remove all files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


class NodeWorker:
    """Ray actor that runs one process, identified by its name, on one node.

    The launcher calls this actor's methods through Ray and passes structs as bytes.
    """

    def __init__(self, data_dir: str) -> None:
        """Look up the worker's own node, because Ray may restart the worker on another node with the same arguments."""
        self._launcher = LocalLauncher(Path(data_dir))
        self._node_id, self._node_address = node_here()
        self._coordinator_address = ""
        self._private = PrivateFiles()

    async def address(self) -> str:
        """Return a free address on this node for a coordinator. Repeated calls for the same coordinator return the same address."""
        if not self._coordinator_address:
            attempts = random.sample(PORTS, PORT_ATTEMPTS_MAX)
            port = next((port for port in attempts if is_free(self._node_address, port)), None)
            if port is None:
                raise ExternalFailureError(
                    f"no free port on {self._node_address} between {PORTS.start} and {PORTS.stop}"
                )
            self._coordinator_address = f"{self._node_address}:{port}"
        return self._coordinator_address

    async def start(self, spec: bytes, files: Mapping[str, bytes]) -> bytes:
        """Same as `Launcher.start`, but first store `files`. A process that is already running thus receives renewed certificates."""
        wanted = msgspec.msgpack.decode(spec, type=ProcessSpec)
        if files:
            await asyncio.to_thread(self._private.write, files)
        command = [self._private.fill_in(word.replace(NODE, self._node_address)) for word in wanted.command]
        filled = msgspec.structs.replace(wanted, command=(sys.executable, *command[1:]))
        started = await self._launcher.start(filled)
        return msgspec.msgpack.encode(msgspec.structs.replace(started, where=self._node_id))

    async def watch(self, handle: bytes) -> bytes:
        return msgspec.msgpack.encode(await self._launcher.watch(self._handle(handle)))

    async def status(self, handle: bytes) -> bytes:
        return msgspec.msgpack.encode(await self._launcher.status(self._handle(handle)))

    async def stop(self, handle: bytes, grace_s: float) -> bytes:
        return msgspec.msgpack.encode(await self._launcher.stop(self._handle(handle), grace_s))

    async def kill(self, handle: bytes) -> None:
        await self._launcher.kill(self._handle(handle))

    async def freeze(self, handle: bytes) -> None:
        await self._launcher.freeze(self._handle(handle))

    async def thaw(self, handle: bytes) -> None:
        await self._launcher.thaw(self._handle(handle))

    async def close(self) -> None:
        """End the worker's processes and remove its files. Ray can then kill this actor safely."""
        await self._launcher.close()
        await asyncio.to_thread(self._private.remove)

    def _handle(self, handle: bytes) -> Handle:
        """Return the handle that this worker's local launcher uses for the process."""
        return msgspec.structs.replace(msgspec.msgpack.decode(handle, type=Handle), where=HERE)


def exit_from(encoded: bytes) -> Exit | None:
    """Decode the reply of a worker's method `watch`, `status` or `stop`."""
    return msgspec.msgpack.decode(encoded, type=Exit | None)


WORKER_POLL_S = 0.2
"""Interval in seconds between two checks whether Ray has restarted a worker. Ray takes seconds to find a node for the worker."""

CLOSE_S = 10.0
"""Time limit in seconds for a worker to end its processes. Afterwards Ray ends the worker in any case."""

SUPERVISOR_NAME = "keeper"
"""Name of the actor that supervises a fleet started by `snapline up`. The actor outlives the launcher, so that it can report how the fleet
ended."""

NODE_NEEDS = {"CPU": 1.0}
"""Default of the resources that a host reserves on its node."""


class RayLauncher:
    """Launcher that runs the processes of one fleet on a Ray cluster."""

    def __init__(
        self,
        cluster: RayCluster,
        *,
        data_dir: str,
        hosts: int,
        node: Mapping[str, float] | None = None,
        files: Files = lambda kind, name: {},
    ) -> None:
        """Describe the fleet and its cluster. `open` then reserves the place.

        Args:
            cluster: connection to the Ray cluster. Closing the launcher closes the connection.
            data_dir: path, on every node, of the folder for logs and the coordinators' files. The nodes need not share this folder.
            hosts: smallest number of nodes to reserve. More nodes are reserved if there are more coordinators.
            node: Ray resources to reserve for each host on its node.
            files: certificates and keys of each process, readable only by the user of the process.
        """
        self._cluster = cluster
        self._data_dir = data_dir
        self._places = hosts
        self._node = dict(node or NODE_NEEDS)
        self._files = files
        self._workers: dict[str, Any] = {}  # Any: Ray's handles of actors

    @property
    def where(self) -> str:
        return f"Ray's namespace {self._cluster.namespace}"

    @property
    def logs(self) -> str:
        return f"{self._data_dir}/logs on its nodes"

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Reserve nodes, and request an address for each coordinator from its worker.

        Raises:
            ExternalFailureError: If the cluster has too few free nodes.
        """
        self._places = max(self._places, len(coordinators))
        await self._cluster.spread(self._places, self._node)
        addresses = await asyncio.gather(*(self._ask(name, "address") for name in coordinators))
        return {name: str(address) for name, address in zip(coordinators, addresses, strict=True)}

    async def start(self, spec: ProcessSpec) -> Handle:
        encoded, files = msgspec.msgpack.encode(spec), dict(self._files(spec.kind, spec.name))
        handle = await self._ask(spec.name, "start", encoded, files)
        return msgspec.msgpack.decode(handle, type=Handle)

    async def watch(self, handle: Handle) -> Exit:
        return await self._exit(handle, "watch") or Exit(None, "gone", log=self.logs)

    async def status(self, handle: Handle) -> Exit | None:
        return await self._exit(handle, "status")

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        return await self._exit(handle, "stop", grace_s) or Exit(None, "gone", log=self.logs)

    async def kill(self, handle: Handle) -> None:
        await self._tell(handle, "kill")

    async def freeze(self, handle: Handle) -> None:
        await self._tell(handle, "freeze")

    async def thaw(self, handle: Handle) -> None:
        await self._tell(handle, "thaw")

    async def close(self) -> None:
        """End all workers of this fleet, including those of earlier launchers, and disconnect from the cluster."""
        await self.sweep()
        self._cluster.leave(is_over=True)

    async def sweep(self) -> list[str]:
        """End this fleet's workers, including those of earlier launchers. Return the names of the workers' processes."""
        workers = {name: self._cluster.actor(name) for name in self._cluster.names() if name != SUPERVISOR_NAME}
        await asyncio.gather(*(self._end(worker) for worker in workers.values() if worker is not None))
        self._workers.clear()
        return sorted(workers)

    async def _tell(self, handle: Handle, word: str) -> None:
        with contextlib.suppress(WorkerLostError):
            await answer(getattr(self._worker(handle.name), word).remote(msgspec.msgpack.encode(handle)))

    async def _end(self, worker: Any) -> None:
        with contextlib.suppress(WorkerLostError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await answer(worker.close.remote())
        self._cluster.end_actor(worker)

    async def _exit(self, handle: Handle, word: str, *arguments: object) -> Exit | None:
        """Ask the worker for the exit of its process. If the worker has died, so has its process. In this case, return an exit that says
        so."""
        try:
            worker = self._worker(handle.name)
            return exit_from(await answer(getattr(worker, word).remote(msgspec.msgpack.encode(handle), *arguments)))
        except WorkerLostError as error:
            return Exit(None, str(error), log=self.logs)

    async def _ask(self, name: str, word: str, *arguments: object) -> Any:
        """Call a method of the worker and return the reply. Wait without a time limit until the worker exists."""
        while True:
            try:
                return await answer(getattr(self._worker(name), word).remote(*arguments))
            except WorkerLostError:
                self._workers.pop(name, None)  # Ray restarts the worker, or `_worker` creates a new one
                await asyncio.sleep(WORKER_POLL_S)

    def _worker(self, name: str) -> Any:
        if name not in self._workers:
            existing = self._cluster.actor(name)
            self._workers[name] = existing or self._cluster.make_actor(
                NodeWorker, name, self._bundle(name), self._data_dir
            )
        return self._workers[name]

    def _bundle(self, name: str) -> int:
        """Return the index of the node that is reserved for the process. The processes h1 and c1 run on the first node, h2 and c2 on the
        second, and so on."""
        number = re.search(r"\d+", name)
        return (int(number[0]) - 1 if number else 0) % self._places


NOTES_MAX = 20
"""Number of the supervisor's newest notes that are kept for readers."""

LOOK_S = 0.5
"""Interval in seconds between two status requests to the supervisor while a fleet starts."""

DOWN_TIMEOUT_S = 60.0
"""Time limit in seconds for the supervisor to end everything. Afterwards the caller ends everything itself."""


class SupervisorStatus(msgspec.Struct, frozen=True):
    """A fleet's status, as reported by its supervisor.

    Attributes:
        address: address of the coordinator. The addresses of several replicas are separated by commas.
        phase: phase of the fleet in the coordinator's latest reply, or `starting` before the first reply.
        nodes: maps the name of each process to the id of its Ray node.
        notes: the supervisor's latest notes, oldest first.
        outcome: how the fleet ended, or an empty string if the fleet is still running. If `outcome` is `given up`, `exit_code` is the exit
            code of the error.
    """

    address: str = ""
    phase: str = "starting"
    hosts: int = 0
    epochs: int = 0
    nodes: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    outcome: Literal["", "stopped", "failed", "given up"] = ""
    reason: str = ""
    exit_code: int = 0


class RaySupervisor:
    """Actor that supervises a fleet. The actor works in its own thread, so that it continues after a restart without being called."""

    def __init__(self, plan: bytes, certificates: Mapping[str, bytes]) -> None:
        self._plan = msgspec.msgpack.decode(plan, type=FleetPlan)
        self._certificates = dict(certificates)
        self._private = PrivateFiles()
        self._status = SupervisorStatus()
        self._notes: list[str] = []
        self._fleet: LaunchedFleet | None = None
        self._loop = asyncio.new_event_loop()
        self._stop_requested = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._keep(),), daemon=True)
        self._thread.start()

    def standing(self) -> bytes:
        """Return the status of the fleet."""
        fleet = self._fleet
        nodes: dict[str, str] = {}
        if fleet is not None:
            handles = {name: fleet.handle(name) for name in (*fleet.hosts, *fleet.coordinators)}
            nodes = {name: handle.where for name, handle in handles.items() if handle is not None}
        notes = tuple(self._notes[-NOTES_MAX:])
        return msgspec.msgpack.encode(msgspec.structs.replace(self._status, notes=notes, nodes=nodes))

    def making(self) -> tuple[bytes, bool, dict[str, Any]]:
        """Return the encoded plan, whether the fleet uses certificates, and the actor's runtime environment."""
        return msgspec.msgpack.encode(self._plan), bool(self._certificates), runtime_here()

    def stop(self) -> None:
        """End all processes of the fleet, and return after they have ended."""
        self._loop.call_soon_threadsafe(self._stop_requested.set)
        self._thread.join()

    async def _keep(self) -> None:
        try:
            ending = await self._run()
        except SnaplineError as error:
            self._end(SupervisorStatus(outcome="given up", reason=str(error), exit_code=error.exit_code))
        except Exception as error:
            self._end(SupervisorStatus(outcome="given up", reason=f"{type(error).__name__}: {error}", exit_code=1))
        else:
            if ending is not None:
                self._end(SupervisorStatus(phase=ending.outcome, outcome=ending.outcome, reason=ending.reason))
        finally:
            self._fleet = None
            self._private.remove()

    async def _run(self) -> Ending | None:
        plan = self._plan
        launcher = RayLauncher(
            RayCluster(plan.name, "auto"),
            data_dir=plan.data_dir,
            hosts=plan.hosts,
            node=plan.node,
            files=self._files,
        )
        fleet = LaunchedFleet(
            launcher,
            commands_of(plan, is_tls=bool(self._certificates)),
            hosts=plan.hosts,
            coordinators=plan.coordinators,
            connect=self._connect,
            on_note=self._note,
            on_status=self._on_status,
            last_snapshot_s=plan.last_snapshot_s,
        )
        async with fleet:
            self._fleet = fleet
            self._status = msgspec.structs.replace(self._status, address=fleet.address)
            ended, stop_requested = (
                asyncio.ensure_future(fleet.wait()),
                asyncio.ensure_future(self._stop_requested.wait()),
            )
            try:
                await asyncio.wait({ended, stop_requested}, return_when=asyncio.FIRST_COMPLETED)
                return await ended if ended.done() else None
            finally:
                ended.cancel()
                stop_requested.cancel()

    def _files(self, kind: Kind, name: str) -> Mapping[str, bytes]:
        return own_files(self._certificates, kind, name)

    def _connect(self, address: str) -> CoordinatorReader:
        from snapline.messages.coordinator_client import CoordinatorClient
        from snapline.security.transport import Security

        if not self._certificates:
            return CoordinatorClient(address, Security.insecure() if self._plan.is_insecure else Security.loopback())
        files = self._private
        files.write(own_files(self._certificates, "launcher", "launcher"))
        authority, certificate, key = (files.path(name) for name in (AUTHORITY, "own.crt", "own.key"))
        security = Security.tls(authority=authority, certificate=certificate, key=key, domain=self._plan.domain)
        return CoordinatorClient(address, security)

    def _note(self, sentence: str) -> None:
        self._notes = [*self._notes[-NOTES_MAX:], sentence]

    def _on_status(self, status: FleetStatus) -> None:
        hosts = sum(host.state == "alive" for host in status.hosts)
        self._status = msgspec.structs.replace(
            self._status, phase=status.phase, hosts=hosts, epochs=status.epochs_completed, reason=status.reason
        )

    def _end(self, last: SupervisorStatus) -> None:
        before = self._status
        self._status = msgspec.structs.replace(last, address=before.address, epochs=before.epochs)


async def up(
    cluster: RayCluster,
    plan: FleetPlan,
    certificates: Mapping[str, bytes],
    *,
    timeout_s: float,
    on_note: Callable[[str], None],
) -> SupervisorStatus:
    """Start a fleet. Wait until all of the fleet's hosts have joined, and return the fleet's status.

    Raises:
        UsageError: If a fleet of this name is already running, or plaintext between nodes would be needed but is not allowed.
        ExternalFailureError: If the cluster does not have enough nodes.
        SnaplineError: If the supervisor gives up, in which case the fleet has been shut down.
        UnknownOutcomeError: If some hosts have not joined after `timeout_s` seconds. The fleet keeps starting.
    """
    if cluster.names():
        raise UsageError(f"a fleet named {plan.name} is on this cluster: `snapline down` first, or give another --name")
    places = max(plan.hosts, plan.coordinators)
    suitable = cluster.nodes_for(plan.node)
    if not certificates and not plan.is_insecure:
        check_exposure(next((node_address for node_address in suitable if not is_loopback(f"{node_address}:0")), ""))
    if len(suitable) < places:
        await cluster.spread(
            places, plan.node
        )  # fails in seconds unless a node joins; the supervisor uses this reservation
    _make_supervisor(cluster, plan, certificates)
    shown = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                status = await standing(cluster, plan.name)
                for sentence in status.notes[shown:]:
                    on_note(sentence)
                shown = len(status.notes) if len(status.notes) < NOTES_MAX else shown
                if status.outcome == "given up":
                    await down(cluster, plan.name)
                    raise _error_of(status)
                if status.outcome or (status.phase == "running" and status.hosts == plan.hosts):
                    return status
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise UnknownOutcomeError(
            f"fleet {plan.name} is not all there after {timeout_s:g} s; it goes on coming up: `snapline down` ends it"
        ) from None


async def standing(cluster: RayCluster, name: str) -> SupervisorStatus:
    """Return the status of a fleet. If Ray is restarting the fleet's supervisor, wait for the supervisor.

    Raises:
        NotFoundError: If the cluster has no fleet of this name.
    """
    while True:
        supervisor = cluster.actor(SUPERVISOR_NAME)
        if supervisor is None:
            raise NotFoundError(f"no fleet named {name} is on this cluster: `snapline up` takes one up")
        try:
            return msgspec.msgpack.decode(await answer(supervisor.standing.remote()), type=SupervisorStatus)
        except WorkerLostError:
            await asyncio.sleep(LOOK_S)


async def renew(cluster: RayCluster, name: str, folder: Path, *, timeout_s: float) -> SupervisorStatus:
    """Send the current certificates in `folder` to a running fleet. Wait until every process has received its certificate, and return the
    status.

    Processes are not restarted, because they re-read their certificate files every few seconds.

    Raises:
        NotFoundError: If the cluster has no fleet of this name.
        UsageError: If the fleet does not use certificates, or `folder` lacks a certificate that the fleet needs.
        UnknownOutcomeError: If some processes are not running after `timeout_s` seconds.
    """
    supervisor = cluster.actor(SUPERVISOR_NAME)
    if supervisor is None:
        raise NotFoundError(f"no fleet named {name} is on this cluster: `snapline up` takes one up")
    encoded, is_tls, runtime = await answer(supervisor.making.remote())
    plan = msgspec.msgpack.decode(encoded, type=FleetPlan)
    if not is_tls:
        raise UsageError(f"fleet {name} was started without certificates: `snapline down`, then `up` with --tls")
    certificates = read_certificates(folder, plan.hosts, plan.coordinators)
    cluster.end_actor(supervisor)
    processes = plan.hosts + plan.coordinators
    try:
        async with asyncio.timeout(timeout_s):
            while cluster.actor(SUPERVISOR_NAME) is not None:
                await asyncio.sleep(LOOK_S)
            _make_supervisor(cluster, plan, certificates, runtime)
            while len((status := await standing(cluster, name)).nodes) < processes and not status.outcome:
                await asyncio.sleep(LOOK_S)
            return status
    except TimeoutError:
        raise UnknownOutcomeError(
            f"not all {processes} processes of fleet {name} run after {timeout_s:g} s: they get their certificates when they start"
        ) from None


def _make_supervisor(
    cluster: RayCluster, plan: FleetPlan, certificates: Mapping[str, bytes], runtime: Mapping[str, object] | None = None
) -> None:
    cluster.make_actor(
        RaySupervisor,
        SUPERVISOR_NAME,
        None,
        msgspec.msgpack.encode(plan),
        dict(certificates),
        runtime=dict(runtime or {}),
    )


async def check_folder(cluster: RayCluster, name: str, data_dir: str) -> None:
    """Check that the fleet of this name belongs to this folder.

    If the fleet has no reachable supervisor, its plan is unavailable, so the check passes.

    Raises:
        NotFoundError: If the fleet belongs to another folder.
    """
    supervisor = cluster.actor(SUPERVISOR_NAME)
    if supervisor is None:
        return
    with contextlib.suppress(WorkerLostError):
        encoded, _, _ = await answer(supervisor.making.remote())
        fleet_dir = msgspec.msgpack.decode(encoded, type=FleetPlan).data_dir
        if not is_same_folder(fleet_dir, data_dir):
            raise NotFoundError(
                f"fleet {name} on this cluster has the folder {fleet_dir}, not {data_dir}: give its --data-dir, or another --name"
            )


def _error_of(last: SupervisorStatus) -> SnaplineError:
    kinds = {error.exit_code: error for error in (UsageError, DamagedDataError, UnknownOutcomeError)}
    return kinds.get(last.exit_code, ExternalFailureError)(last.reason)


async def down(cluster: RayCluster, name: str) -> None:
    """Shut down a fleet. End its processes and actors and release its reserved nodes, but keep its files.

    Raises:
        NotFoundError: If the cluster has no fleet of this name.
    """
    if not cluster.names():
        raise NotFoundError(f"no fleet named {name} is on this cluster")
    supervisor = cluster.actor(SUPERVISOR_NAME)
    if supervisor is not None:
        with contextlib.suppress(
            WorkerLostError, TimeoutError
        ):  # the supervisor hangs or its node died, so end everything from here
            async with asyncio.timeout(DOWN_TIMEOUT_S):
                await answer(supervisor.stop.remote())
        cluster.end_actor(supervisor)
    await RayLauncher(cluster, data_dir="", hosts=1).close()
