"""Supervise a fleet that runs on other machines or in containers, from a background process on this machine.

`snapline up` starts the background process and returns. The process reads `plan.json` from the fleet's local folder and writes the
coordinator's address to the same folder. `plan.json` contains no secrets. If the process is killed, the fleet keeps running. The next
`snapline up` starts a new background process that takes over the fleet. The process needs the programs that the launcher uses: `ssh`,
`podman`, or the Slurm programs on a machine of the cluster.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from snapline.deploy.data_directory import ADDRESS_FILE, lock, write_address
from snapline.deploy.launching import Commands, Kind, Launcher, SnaplineCommands
from snapline.deploy.plan import AUTHORITY, NODE, FleetPlan, commands_of, own_files, read_certificates, read_owner_files
from snapline.deploy.podman_launcher import PodmanLauncher
from snapline.deploy.ray_cluster import RayCluster
from snapline.deploy.ray_fleet import RayLauncher
from snapline.deploy.running_fleet import SINGLE_COORDINATOR, LaunchedFleet, follow
from snapline.deploy.slurm_launcher import SlurmLauncher
from snapline.deploy.ssh_launcher import PYTHON, SshLauncher
from snapline.deploy.supervisor import Ending
from snapline.errors import ExternalFailureError, UsageError
from snapline.folders import make_private
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus
from snapline.security.transport import RELOAD_S, Security

PLAN_FILE = "plan.json"

LAUNCHER, OPERATOR = "launcher-launcher", "operator-operator"
"""Names of the certificates that the background process uses. The operator certificate authorizes the request for a last snapshot before
Slurm's time limit."""

DetachedPlace = Literal["ssh", "podman", "slurm", "ray"]
"""Kinds of places where a background process can supervise a fleet. Only `snapline chaos` uses "ray" here: a fleet that `snapline up`
starts on Ray is supervised by an actor (`deploy/ray_fleet.py`)."""


class DetachedPlan(msgspec.Struct, frozen=True):
    """Description of the fleet and the place where it runs.

    Attributes:
        what: the fleet, its hosts and its coordinators.
        address: address of the Ray cluster.
        machines: host names for `ssh`, one for each machine.
        ssh: the ssh program with its options.
        sbatch: options for `sbatch`.
        python: path of the Python interpreter on the machines. If `python` is empty, the launcher uses its default.
        image: container image.
        code: the remote folder that contains the fleet's module; for containers, the local folder.
        tls: a local folder created by `snapline auth init`. On Slurm, all nodes must share this folder. If `tls` is empty, TLS is disabled.
    """

    place: DetachedPlace
    what: FleetPlan
    address: str = "auto"
    machines: tuple[str, ...] = ()
    ssh: tuple[str, ...] = ("ssh",)
    sbatch: tuple[str, ...] = ()
    python: str = ""
    image: str = ""
    code: str = ""
    tls: str = ""


def write_plan(folder: Path, plan: DetachedPlan) -> None:
    make_private(folder)
    (folder / ADDRESS_FILE).unlink(missing_ok=True)
    (folder / PLAN_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(plan)) + b"\n")


def read_plan(folder: Path) -> DetachedPlan | None:
    """Return the plan written by `write_plan`, or None if the folder contains no plan."""
    if not (folder / PLAN_FILE).exists():
        return None
    return msgspec.json.decode((folder / PLAN_FILE).read_bytes(), type=DetachedPlan)


def certificates_of(plan: DetachedPlan) -> Mapping[str, bytes]:
    """Return the certificates of all processes of the fleet, or an empty dict if the fleet does not use TLS.

    Raises:
        UsageError: If a certificate is missing. The message explains how to create the certificate.
    """
    if not plan.tls:
        return {}
    if plan.place == "slurm" and not (Path(plan.tls) / f"{OPERATOR}.key").is_file():
        command = f"`snapline auth issue {plan.tls} operator operator`"
        raise UsageError(
            f"{plan.tls}/{OPERATOR}.key is not there, for the last snapshot before a time limit: {command} makes it"
        )
    return read_certificates(Path(plan.tls), plan.what.hosts, plan.what.coordinators)


def files_of(plan: DetachedPlan, kind: Kind, name: str) -> Mapping[str, bytes]:
    """Read the current certificate files of one process. The files may have been renewed or added since the previous call.

    Raises:
        ExternalFailureError: If a file is missing. A later attempt to start the process may succeed.
    """
    if not plan.tls:
        return {}
    try:
        return own_files(
            read_owner_files(Path(plan.tls), [(kind, "c1" if name == SINGLE_COORDINATOR else name)]), kind, name
        )
    except UsageError as error:
        raise ExternalFailureError(str(error)) from error


class DetachedLauncher(Launcher, Protocol):
    """A launcher whose processes keep running after the launcher exits."""

    async def sweep(self) -> list[str]:
        """End all processes that earlier launchers of this fleet have left behind, and describe what was ended."""
        ...


def launcher_of(plan: DetachedPlan, on_note: Callable[[str], None] = lambda note: None) -> DetachedLauncher:
    """Return the launcher for the plan's place."""
    if plan.place == "slurm":
        return SlurmLauncher(
            plan.what.name,
            data_dir=plan.what.data_dir,
            python=plan.python or sys.executable,
            code=plan.code,
            options=plan.sbatch,
            trust=_trust(plan, OPERATOR),
            on_note=on_note,
        )
    if plan.place == "podman":
        return PodmanLauncher(
            plan.what.name,
            Path(plan.what.data_dir),
            image=plan.image,
            folder=Path(plan.code) if plan.code else None,
            volumes=_folders(plan.what.store),
            files=lambda kind, name: files_of(plan, kind, name),
        )
    if plan.place == "ray":
        return RayLauncher(
            RayCluster(plan.what.name, plan.address, {"working_dir": plan.code or os.getcwd()}),
            data_dir=plan.what.data_dir,
            hosts=plan.what.hosts,
            node=plan.what.node,
            files=lambda kind, name: files_of(plan, kind, name),
        )
    return SshLauncher(
        plan.what.name,
        plan.machines,
        data_dir=plan.what.data_dir,
        ssh=plan.ssh,
        python=plan.python or PYTHON,
        code=plan.code,
        files=lambda kind, name: files_of(plan, kind, name),
        on_note=on_note,
    )


async def check_place(plan: DetachedPlan) -> None:
    """Check, before starting anything, whether the fleet can run at its place. The check takes several seconds.

    Raises:
        UsageError: If the fleet can never run there with the given options. The message explains what to change.
        ExternalFailureError: If the place does not answer.
    """
    launcher = launcher_of(plan)
    if isinstance(launcher, SlurmLauncher):
        await launcher.check(plan.what.hosts + plan.what.coordinators)


def _folders(store: str) -> list[Path]:
    """Return a list that contains the store's local folder. The list is empty if the store is in a bucket."""
    scheme, separator, path = store.rpartition("://")
    return [Path(path)] if path and (not separator or scheme == "file") else []


def commands_for(plan: DetachedPlan) -> Commands:
    """Return the builder of the fleet's command lines. On Slurm, processes read their certificates from a folder that all nodes share."""
    fleet_plan = plan.what
    if plan.place != "slurm":
        return commands_of(fleet_plan, is_tls=bool(plan.tls))
    return SnaplineCommands(
        data_dir=Path(fleet_plan.data_dir),
        fleet=fleet_plan.fleet,
        hosts=fleet_plan.hosts,
        arguments=fleet_plan.arguments,
        on_failure=fleet_plan.on_failure,
        store=fleet_plan.store,
        listen=f"{NODE}:0",
        metrics=f"{NODE}:0" if fleet_plan.has_metrics else "",
        log=fleet_plan.log,
        last_snapshot_s=fleet_plan.last_snapshot_s,
        begin_anew=fleet_plan.begin_anew,
        trust=lambda kind, name: _trust(plan, f"{kind}-{'c1' if name == SINGLE_COORDINATOR else name}"),
    )


def _trust(plan: DetachedPlan, owner: str) -> tuple[str, ...]:
    if not plan.tls:
        return ("--insecure",) if plan.what.is_insecure else ()
    options = (("--tls-cert", f"{owner}.crt"), ("--tls-key", f"{owner}.key"), ("--tls-ca", AUTHORITY))
    files = tuple(part for option, file in options for part in (option, f"{plan.tls}/{file}"))
    return (*files, "--tls-domain", plan.what.domain)


def connect(plan: DetachedPlan, address: str, owner: str = LAUNCHER) -> CoordinatorClient:
    """Return a coordinator client that uses the certificate of `owner`."""
    if not plan.tls:
        return CoordinatorClient(address, Security.insecure() if plan.what.is_insecure else Security.loopback())
    folder = Path(plan.tls)
    certificate, key = folder / f"{owner}.crt", folder / f"{owner}.key"
    security = Security.tls(authority=folder / AUTHORITY, certificate=certificate, key=key, domain=plan.what.domain)
    return CoordinatorClient(address, security)


async def keep(folder: Path, *, on_note: Callable[[str], None], on_status: Callable[[FleetStatus], None]) -> Ending:
    """Supervise the fleet of this folder until it ends, and return how it ended. If cancelled, shut the fleet down.

    Raises:
        SnaplineError: If the fleet cannot be supervised, or some of its processes could not be shut down.
    """
    plan = read_plan(folder)
    if plan is None:
        raise UsageError(f"{folder / PLAN_FILE} is not there: `snapline up` writes it")
    certificates = certificates_of(plan)
    lock_fd = lock(folder)
    fleet = LaunchedFleet(
        launcher_of(plan, on_note),
        commands_for(plan),
        hosts=plan.what.hosts,
        coordinators=plan.what.coordinators,
        connect=lambda address: connect(plan, address),
        on_note=on_note,
        on_status=on_status,
        last_snapshot_s=plan.what.last_snapshot_s,
    )
    try:
        async with fleet:
            write_address(folder, fleet.address)
            background = (follow(fleet, folder), _renew_certificates_periodically(fleet, plan, certificates, on_note))
            tasks = [asyncio.create_task(work) for work in background]
            try:
                return await fleet.wait()
            finally:
                for task in tasks:
                    task.cancel()
    finally:
        os.close(lock_fd)


async def _renew_certificates_periodically(
    fleet: LaunchedFleet, plan: DetachedPlan, known: Mapping[str, bytes], on_note: Callable[[str], None]
) -> None:
    """Send the certificates in the plan's folder to the processes whenever the files change, until the task is cancelled.

    A renewal by the user replaces one file after another. A process rejects files that do not match each other, and receives the complete
    set after the next check. On Slurm, the processes read the certificates from the folder instead.
    """
    while plan.tls and plan.place != "slurm":
        await asyncio.sleep(RELOAD_S)
        with contextlib.suppress(UsageError):  # a file is currently being replaced
            certificates = await asyncio.to_thread(certificates_of, plan)
            if certificates != known:
                known = certificates
                await fleet.renew()
                on_note("the certificates were renewed: every process has its own")
