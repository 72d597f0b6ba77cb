"""Finds fleets that `snapline up` has started in the background on this machine or on a Ray cluster."""

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
"""Time limit in seconds for a background launcher to end its fleet, not including the last snapshot. The launcher gives each process two
seconds."""

LAST_SNAPSHOT = "last snapshot"
"""Text that the log lines about the outcome of the last snapshot contain."""

FAILED = "the fleet has failed"
"""Beginning of the launcher's line about a fleet that has failed."""

LOOK_S = 0.05


def folder_of(settings: UserSettings, name: str, data_dir: str | None, on: str = "local") -> Path:
    """Return the folder of a local fleet. If the fleet runs on other machines or in containers, return the folder of its
    supervisor."""
    if on == "ssh":
        return Path("runs") / name
    folder = Path(settings.get("data_dir", data_dir).value or Path("runs") / name)
    return folder / "keeper" if on == "podman" else folder


def logs_of(folder: Path) -> Path:
    """Return the folder that contains the logs of a fleet's processes on this machine. `folder` is the folder of the fleet or of the
    fleet's supervisor."""
    from snapline.deploy.data_directory import LOGS_FOLDER
    from snapline.deploy.detached_fleet import read_plan

    plan = read_plan(folder)
    return (folder if plan is None else Path(plan.what.data_dir)) / LOGS_FOLDER


def join(name: str, address: str) -> "RayCluster":
    """Connect to a Ray cluster. Ray copies the current folder, which contains the code, to the nodes of the cluster."""
    from snapline.deploy.ray_cluster import RayCluster

    return RayCluster(name, address, {"working_dir": os.getcwd()})


def default_address() -> str:
    """Return the coordinator's address for the fleet that snapline.toml, its context and the environment select, or of the fleet in the
    default folder of `snapline up`.

    Raises:
        UsageError: If no fleet is selected.
        NotFoundError: If the selected fleet is not running.
    """
    from snapline.deploy.data_directory import read_address

    settings = UserSettings()
    on = settings.get("on").value
    if on == "ray":
        return _address_on_ray(settings.get("name").value, settings.get("address").value)
    folder = folder_of(settings, settings.get("name").value, None, on)
    address = read_address(folder)
    if address is None and not settings.path.exists() and not settings.get("data_dir").value:
        raise UsageError(
            "which fleet? Give --coordinator HOST:PORT, or --data-dir DIR of a local fleet, or set SNAPLINE_DATA_DIR, "
            f"or data_dir in {settings.path}"
        )
    if address is None:
        chosen = settings.get("data_dir")
        origin = f" (data_dir from {chosen.origin})" if chosen.value and on != "ssh" else ""
        raise NotFoundError(
            f"no fleet is up in {folder}{origin}: start one with `snapline up`, or name another folder by --data-dir"
        )
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
    """Start a `snapline` command as a background process in a new session.

    The fleet's folder records the process id of the launcher and the time limit for the last snapshot.

    Raises:
        DirectoryInUseError: If a launcher is already running for this folder.
    """
    import msgspec

    from snapline.deploy.data_directory import DirectoryInUseError

    if background_pid(folder) is not None:
        raise DirectoryInUseError(
            f"a fleet is up in {folder}: `snapline down` first, or give another --name or --data-dir"
        )
    make_private(folder)
    with (folder / BACKGROUND_LOG).open("ab") as log:
        log_start = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [sys.executable, "-m", "snapline", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    record = {"pid": process.pid, "started": _start_time_of(process.pid), "last_snapshot_s": math.ceil(last_snapshot_s)}
    record |= {"folder": folder.stat().st_ino, "log_start": log_start}
    (folder / BACKGROUND_FILE).write_bytes(msgspec.json.encode(record))
    return process


def _read_record(folder: Path) -> dict[str, int]:
    import msgspec

    try:
        return msgspec.json.decode((folder / BACKGROUND_FILE).read_bytes(), type=dict[str, int])
    except (OSError, ValueError):
        return {}


def background_pid(folder: Path) -> int | None:
    """Return the process id of this folder's launcher, or None if no launcher is running.

    If the folder is a copy of another fleet's folder, ignore the launcher that the copy records.
    """
    record = _read_record(folder)
    started = _start_time_of(record.get("pid", 0))
    if not started or started != record.get("started") or record.get("folder", 0) not in (0, folder.stat().st_ino):
        return None
    return record["pid"]


def is_down(folder: Path) -> bool:
    """Return whether `snapline up` has kept a fleet in this folder, and does not any more. Fleets of other launchers are not down."""
    return (folder / BACKGROUND_LOG).exists() and background_pid(folder) is None


def failure_of(folder: Path) -> str:
    """Return why the fleet that `snapline up` has kept in this folder has failed, or "" if it was ended or is not known to have failed."""
    words = _last_words(folder) if _read_record(folder) else ""
    return words if words.startswith(FAILED) else ""


def no_fleet_up(folder: Path) -> NotFoundError:
    """Return the error of a command that finds no fleet in this folder."""
    hint = "there is no such folder, so run this where `snapline up` ran, or give its --data-dir"
    return NotFoundError(f"no fleet is up in {folder}" + ("" if folder.exists() else f": {hint}"))


def stop_background(folder: Path, limit_s: float = END_S) -> list[str]:
    """Stop the background launcher and its fleet, but keep the fleet's files. Return the launcher's log lines about the last snapshot.

    Raises:
        NotFoundError: If no launcher is running for this folder.
        ExternalFailureError: If the launcher does not exit in time.
    """
    pid = background_pid(folder)
    if pid is None:
        raise no_fleet_up(folder)
    log, log_size_before = folder / BACKGROUND_LOG, 0
    if log.exists():
        log_size_before = log.stat().st_size
    os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + limit_s + _read_record(folder).get("last_snapshot_s", 0)
    while background_pid(folder) == pid:
        if time.monotonic() > deadline_s:
            raise ExternalFailureError(f"process {pid}, which keeps the fleet in {folder}, does not end: kill it")
        time.sleep(LOOK_S)
    (folder / BACKGROUND_FILE).unlink(missing_ok=True)
    lines = log.read_bytes()[log_size_before:].decode(errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if LAST_SNAPSHOT in line]


async def until_up(
    started: "subprocess.Popen[bytes]",
    folder: Path,
    *,
    hosts: int,
    timeout_s: float,
    connect: "Callable[[str], CoordinatorClient]",
) -> str:
    """Wait until all hosts have joined or the fleet has finished normally. Return the coordinator's address.

    Raises:
        ExternalFailureError: If the background launcher has failed. The message contains the launcher's last log line.
        UnknownOutcomeError: If the time limit has passed. After this error, the fleet continues to start.
    """
    from snapline.deploy.data_directory import read_address

    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if started.poll():
            kind = UsageError if started.returncode == UsageError.exit_code else ExternalFailureError
            raise kind(f"the fleet did not start: {_last_words(folder) or f'{folder / BACKGROUND_LOG} is empty'}")
        address = read_address(folder) or ""
        if started.returncode == 0:
            return address
        if address:
            client = connect(address)
            try:
                status = await client.status()
                if status.phase == "running" and sum(host.state == "alive" for host in status.hosts) == hosts:
                    return address
            except SnaplineError:
                pass  # the coordinator does not answer yet
            finally:
                await client.close()
        await asyncio.sleep(LOOK_S)
    raise UnknownOutcomeError(f"the fleet in {folder} is not all there after {timeout_s:g} s; it goes on coming up")


def _last_words(folder: Path) -> str:
    """Return why the launcher that `snapline up` has started last here has ended, or the last line that it wrote."""
    from snapline.deploy.child import last_words

    written = (folder / BACKGROUND_LOG).read_bytes()[_read_record(folder).get("log_start", 0) :]
    return last_words(written.decode(errors="replace")).removeprefix("snapline: ")


def _start_time_of(pid: int) -> int:
    """Return the start time of a process in kernel ticks, or 0 if the process is not running. The start time distinguishes a process from a
    later process with the same process id."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
