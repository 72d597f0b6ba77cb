"""A fleet on a Ray cluster that goes on when the program that started it has gone.

An actor, the *keeper*, runs what `snapline run` runs on one machine: the same `LaunchedFleet`, with the Ray launcher. Ray starts it again, on
any node, with the same plan; it then finds the seats and the processes that run, by name, and adopts them. While it is away
nothing comes back that dies, and the coordinator learns of ends by heartbeats only.

A keeper holds the certificates that it was made with, since with these Ray starts it again. So renewed ones come with a new keeper, in the
place of the old one (`renew`): it asks every seat for its process, which runs, and the seat takes the files.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from snapline.deploy.data_directory import is_same_folder
from snapline.deploy.launching import Kind
from snapline.deploy.plan import AUTHORITY, FleetPlan, check_exposure, commands_of, own_files, read_certificates
from snapline.deploy.ray_cluster import RayCluster, WorkerLostError, answer, runtime_here
from snapline.deploy.ray_launcher import KEEPER, RayLauncher
from snapline.deploy.ray_worker import PrivateFiles
from snapline.deploy.running_fleet import LaunchedFleet
from snapline.deploy.status import CoordinatorReader, FleetReading
from snapline.deploy.supervision import Ending
from snapline.errors import (
    DamagedDataError,
    ExternalFailureError,
    NotFoundError,
    SnaplineError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.security.transport import is_loopback

NOTES_MAX = 20
"""Number of the keeper's last notes that are kept for readers."""

LOOK_S = 0.5
"""Between two questions to the keeper while a fleet comes up."""

DOWN_TIMEOUT_S = 60.0
"""Time for the keeper to end everything; then it is done from here."""


class RayStatus(msgspec.Struct, frozen=True):
    """Status of a fleet, as its keeper knows it.

    Attributes:
        address: the coordinator's, several replicas with commas between.
        phase: from the coordinator's last answer; `starting` before.
        nodes: process → Ray's node id.
        notes: of the keeper, newest last.
        outcome: empty while it goes on; `given up` with the exit code that it would be elsewhere.
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
    """The actor. It works in a thread of its own, so that it begins by itself when Ray has started it again."""

    def __init__(self, plan: bytes, certificates: Mapping[str, bytes]) -> None:
        self._plan = msgspec.msgpack.decode(plan, type=FleetPlan)
        self._certificates = dict(certificates)
        self._private = PrivateFiles()
        self._standing = RayStatus()
        self._notes: list[str] = []
        self._fleet: LaunchedFleet | None = None
        self._loop = asyncio.new_event_loop()
        self._told_to_stop = asyncio.Event()
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
        return msgspec.msgpack.encode(msgspec.structs.replace(self._standing, notes=notes, nodes=nodes))

    def making(self) -> tuple[bytes, bool, dict[str, Any]]:
        """Return what it was made of: the plan, whether with certificates, and Ray's runtime environment."""
        return msgspec.msgpack.encode(self._plan), bool(self._certificates), runtime_here()

    def stop(self) -> None:
        """End everything but this actor; returns when that is done."""
        self._loop.call_soon_threadsafe(self._told_to_stop.set)
        self._thread.join()

    async def _keep(self) -> None:
        try:
            ending = await self._run()
        except SnaplineError as error:
            self._end(RayStatus(outcome="given up", reason=str(error), exit_code=error.exit_code))
        except Exception as error:
            self._end(RayStatus(outcome="given up", reason=f"{type(error).__name__}: {error}", exit_code=1))
        else:
            if ending is not None:
                self._end(RayStatus(phase=ending.outcome, outcome=ending.outcome, reason=ending.reason))
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
            on_status=self._see,
            last_snapshot_s=plan.last_snapshot_s,
        )
        async with fleet:
            self._fleet = fleet
            self._standing = msgspec.structs.replace(self._standing, address=fleet.address)
            over, told = asyncio.ensure_future(fleet.wait()), asyncio.ensure_future(self._told_to_stop.wait())
            try:
                await asyncio.wait({over, told}, return_when=asyncio.FIRST_COMPLETED)
                return await over if over.done() else None
            finally:
                over.cancel()
                told.cancel()

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

    def _see(self, status: FleetReading) -> None:
        hosts = sum(host.state == "alive" for host in status.hosts)
        self._standing = msgspec.structs.replace(
            self._standing, phase=status.phase, hosts=hosts, epochs=status.epochs_completed, reason=status.reason
        )

    def _end(self, last: RayStatus) -> None:
        was = self._standing
        self._standing = msgspec.structs.replace(last, address=was.address, epochs=was.epochs)


async def up(
    cluster: RayCluster,
    plan: FleetPlan,
    certificates: Mapping[str, bytes],
    *,
    timeout_s: float,
    on_note: Callable[[str], None],
) -> RayStatus:
    """Start a fleet; return when all of its hosts take part.

    Raises:
        UsageError: a fleet of this name is up, or would speak in plaintext between nodes.
        ExternalFailureError: the cluster has not so many nodes.
        SnaplineError: the keeper has given up; nothing is left but its status, which `down` removes.
        UnknownOutcomeError: it is not all there in time; it goes on coming up.
    """
    if cluster.names():
        raise UsageError(f"a fleet named {plan.name} is on this cluster: `snapline down` first, or give another --name")
    places = max(plan.hosts, plan.coordinators)
    suited = cluster.nodes_for(plan.node)
    if not certificates and not plan.is_insecure:
        check_exposure(next((each for each in suited if not is_loopback(f"{each}:0")), ""))
    if len(suited) < places:
        await cluster.spread(places, plan.node)  # fails in seconds, unless a node joins; the keeper finds these places
    _make_keeper(cluster, plan, certificates)
    told = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                now = await standing(cluster, plan.name)
                for sentence in now.notes[told:]:
                    on_note(sentence)
                told = len(now.notes) if len(now.notes) < NOTES_MAX else told
                if now.outcome == "given up":
                    await down(cluster, plan.name)
                    raise _error_of(now)
                if now.outcome or (now.phase == "running" and now.hosts == plan.hosts):
                    return now
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise UnknownOutcomeError(
            f"fleet {plan.name} is not all there after {timeout_s:g} s; it goes on coming up: `snapline down` ends it"
        ) from None


async def standing(cluster: RayCluster, name: str) -> RayStatus:
    """Return the status of a fleet; wait for a keeper that Ray starts again.

    Raises:
        NotFoundError: no fleet of this name is on the cluster.
    """
    while True:
        keeper = cluster.actor(KEEPER)
        if keeper is None:
            raise NotFoundError(f"no fleet named {name} is on this cluster: `snapline up` takes one up")
        try:
            return msgspec.msgpack.decode(await answer(keeper.standing.remote()), type=RayStatus)
        except WorkerLostError:
            await asyncio.sleep(LOOK_S)


async def renew(cluster: RayCluster, name: str, folder: Path, *, timeout_s: float) -> RayStatus:
    """Bring a fleet that is up the certificates that are in `folder` by now; returns when every process has its own.

    Processes read their files again every few seconds and go on as they are.

    Raises:
        NotFoundError: no fleet of this name is on the cluster.
        UsageError: it was taken up without certificates, or `folder` lacks one that it needs.
        UnknownOutcomeError: some processes do not run just now; they get theirs when they start.
    """
    keeper = cluster.actor(KEEPER)
    if keeper is None:
        raise NotFoundError(f"no fleet named {name} is on this cluster: `snapline up` takes one up")
    encoded, is_tls, runtime = await answer(keeper.making.remote())
    plan = msgspec.msgpack.decode(encoded, type=FleetPlan)
    if not is_tls:
        raise UsageError(f"fleet {name} was taken up without certificates: `snapline down`, then `up` with --tls")
    certificates = read_certificates(folder, plan.hosts, plan.coordinators)
    cluster.end_actor(keeper)
    processes = plan.hosts + plan.coordinators
    try:
        async with asyncio.timeout(timeout_s):
            while cluster.actor(KEEPER) is not None:
                await asyncio.sleep(LOOK_S)
            _make_keeper(cluster, plan, certificates, runtime)
            while len((now := await standing(cluster, name)).nodes) < processes and not now.outcome:
                await asyncio.sleep(LOOK_S)
            return now
    except TimeoutError:
        raise UnknownOutcomeError(
            f"not all {processes} processes of fleet {name} run after {timeout_s:g} s: they get their certificates when they start"
        ) from None


def _make_keeper(
    cluster: RayCluster, plan: FleetPlan, certificates: Mapping[str, bytes], runtime: Mapping[str, object] | None = None
) -> None:
    cluster.make_actor(
        RaySupervisor, KEEPER, None, msgspec.msgpack.encode(plan), dict(certificates), runtime=dict(runtime or {})
    )


async def check_folder(cluster: RayCluster, name: str, data_dir: str) -> None:
    """See that the fleet of this name is that of this folder; a fleet without a keeper has lost its plan, and is known by its name alone.

    Raises:
        NotFoundError: it is another one's.
    """
    keeper = cluster.actor(KEEPER)
    if keeper is None:
        return
    with contextlib.suppress(WorkerLostError):
        encoded, _, _ = await answer(keeper.making.remote())
        has = msgspec.msgpack.decode(encoded, type=FleetPlan).data_dir
        if not is_same_folder(has, data_dir):
            raise NotFoundError(
                f"fleet {name} on this cluster has the folder {has}, not {data_dir}: give its --data-dir, or another --name"
            )


def _error_of(last: RayStatus) -> SnaplineError:
    kinds = {error.exit_code: error for error in (UsageError, DamagedDataError, UnknownOutcomeError)}
    return kinds.get(last.exit_code, ExternalFailureError)(last.reason)


async def down(cluster: RayCluster, name: str) -> None:
    """Take a fleet down: its processes, its actors, its places on the cluster. What it has written stays.

    Raises:
        NotFoundError: no fleet of this name is on the cluster.
    """
    if not cluster.names():
        raise NotFoundError(f"no fleet named {name} is on this cluster")
    keeper = cluster.actor(KEEPER)
    if keeper is not None:
        with contextlib.suppress(WorkerLostError, TimeoutError):  # its node died, or it hangs: we end all from here
            async with asyncio.timeout(DOWN_TIMEOUT_S):
                await answer(keeper.stop.remote())
        cluster.end_actor(keeper)
    await RayLauncher(cluster, data_dir="", hosts=1).close()
