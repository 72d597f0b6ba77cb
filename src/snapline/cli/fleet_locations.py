"""Locations of fleets started by `snapline up`: on this machine in the background, or on a Ray cluster."""

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.cli.settings import UserSettings
from snapline.errors import ExternalFailureError, NotFoundError, SnaplineError, UnknownOutcomeError, UsageError
from snapline.folders import make_private

if TYPE_CHECKING:
    from snapline.deploy.ray_cluster import RayCluster
    from snapline.messages.coordinator_client import CoordinatorClient

BACKGROUND_FILE, BACKGROUND_LOG = "launcher.json", "launcher.log"

END_S = 20.0
"""Time for a background launcher to end its fleet, without the last snapshot: it gives each process two seconds."""

LAST_SNAPSHOT = "last snapshot"
"""Text of log lines that report its outcome."""

LOOK_S = 0.05


def folder_of(settings: UserSettings, name: str, data_dir: str | None, on: str = "local") -> Path:
    """Folder of a fleet on this machine, or of the keeper of one elsewhere or in containers."""
    if on == "ssh":
        return Path("runs") / name
    folder = Path(settings.get("data_dir", data_dir).value or Path("runs") / name)
    return folder / "keeper" if on == "podman" else folder


def logs_of(folder: Path) -> Path:
    """Return the log folder of a fleet's processes on this machine; `folder` is the fleet's, or its keeper's."""
    from snapline.deploy.data_directory import LOGS_FOLDER
    from snapline.deploy.kept_fleet import read_plan

    kept = read_plan(folder)
    return (folder if kept is None else Path(kept.what.data_dir)) / LOGS_FOLDER


def join(name: str, address: str) -> "RayCluster":
    """Join a Ray cluster; code of the current folder travels to its nodes."""
    from snapline.deploy.ray_cluster import RayCluster

    return RayCluster(name, address, {"working_dir": os.getcwd()})


def address_in_use() -> str:
    """Return the default coordinator: of the fleet named by snapline.toml, its context and the environment.

    Raises:
        UsageError: they name none.
        NotFoundError: it is not up.
    """
    from snapline.deploy.data_directory import ADDRESS_FILE, read_address

    settings = UserSettings()
    on = settings.get("on").value
    if on == "ray":
        return _address_on_ray(settings.get("name").value, settings.get("address").value)
    if not settings.path.exists() and not settings.get("data_dir").value:
        raise UsageError("whom to ask? Give --coordinator HOST:PORT, or --data-dir DIR of a local fleet")
    folder = folder_of(settings, settings.get("name").value, None, on)
    address = read_address(folder)
    if address is None:
        raise NotFoundError(f"{folder / ADDRESS_FILE} names no coordinator: `snapline up` takes a fleet up")
    return address


def _address_on_ray(name: str, address: str) -> str:
    from snapline.deploy.ray_cluster import RayCluster
    from snapline.deploy.ray_fleet import standing

    cluster = RayCluster(name, address)
    try:
        return asyncio.run(standing(cluster, name)).address
    finally:
        cluster.leave(is_over=False)


def start_in_background(arguments: Sequence[str], folder: Path, last_snapshot_s: float) -> "subprocess.Popen[bytes]":
    """Run `snapline …` in a session of its own; its process id is noted in the fleet's folder, and how long its last snapshot may take.

    Raises:
        UsageError: one runs there.
    """
    import msgspec

    if running_in_background(folder) is not None:
        raise UsageError(f"a fleet is up in {folder}: `snapline down` first, or give another --name or --data-dir")
    make_private(folder)
    with (folder / BACKGROUND_LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "snapline", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    note = {"pid": process.pid, "started": _start_of(process.pid), "last_snapshot_s": math.ceil(last_snapshot_s)}
    note["folder"] = folder.stat().st_ino
    (folder / BACKGROUND_FILE).write_bytes(msgspec.json.encode(note))
    return process


def _noted(folder: Path) -> dict[str, int]:
    import msgspec

    try:
        return msgspec.json.decode((folder / BACKGROUND_FILE).read_bytes(), type=dict[str, int])
    except (OSError, ValueError):
        return {}


def running_in_background(folder: Path) -> int | None:
    """Process id of the launcher that was started for this folder, if it still runs. The note in a copy of the folder is of the original's."""
    note = _noted(folder)
    started = _start_of(note.get("pid", 0))
    if not started or started != note.get("started") or note.get("folder", 0) not in (0, folder.stat().st_ino):
        return None
    return note["pid"]


def end_in_background(folder: Path, limit_s: float = END_S) -> list[str]:
    """End the launcher, and with it its fleet; what the fleet has written stays. Returns what it said of a last snapshot.

    Raises:
        NotFoundError: none runs.
        ExternalFailureError: it does not end.
    """
    pid = running_in_background(folder)
    if pid is None:
        raise NotFoundError(f"no fleet is up in {folder}")
    log, said_before = folder / BACKGROUND_LOG, 0
    if log.exists():
        said_before = log.stat().st_size
    os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + limit_s + _noted(folder).get("last_snapshot_s", 0)
    while running_in_background(folder) == pid:
        if time.monotonic() > deadline_s:
            raise ExternalFailureError(f"process {pid}, which keeps the fleet in {folder}, does not end: kill it")
        time.sleep(LOOK_S)
    (folder / BACKGROUND_FILE).unlink(missing_ok=True)
    said = log.read_bytes()[said_before:].decode(errors="replace").splitlines() if log.exists() else []
    return [line for line in said if LAST_SNAPSHOT in line]


async def until_up(
    started: "subprocess.Popen[bytes]",
    folder: Path,
    *,
    hosts: int,
    timeout_s: float,
    connect: "Callable[[str], CoordinatorClient]",
) -> str:
    """Wait until all hosts take part, or the fleet has ended as it should; returns the coordinator's address.

    Raises:
        ExternalFailureError: the launcher in the background has ended; with its last log line.
        UnknownOutcomeError: it takes too long; it goes on.
    """
    from snapline.deploy.data_directory import read_address

    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if started.poll():
            kind = UsageError if started.returncode == UsageError.exit_code else ExternalFailureError
            raise kind(f"the fleet has ended: {_last_words(folder)}")
        address = read_address(folder) or ""
        if started.returncode == 0:
            return address
        if address:
            client = connect(address)
            try:
                now = await client.status()
                if now.phase != "forming" and sum(host.state == "alive" for host in now.hosts) == hosts:
                    return address
            except SnaplineError:
                pass  # it is not there yet
            finally:
                await client.close()
        await asyncio.sleep(LOOK_S)
    raise UnknownOutcomeError(f"the fleet in {folder} is not all there after {timeout_s:g} s; it goes on coming up")


def _last_words(folder: Path) -> str:
    lines = (folder / BACKGROUND_LOG).read_text(errors="replace").split("\n")
    return next((line.removeprefix("snapline: ") for line in reversed(lines) if line.strip()), "it said nothing")


def _start_of(pid: int) -> int:
    """Start time of a process in kernel ticks; 0 if it does not run. Ids are reused, but not with the same time."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])
