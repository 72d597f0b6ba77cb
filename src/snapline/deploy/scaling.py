"""Wanted number of hosts of a fleet: a number in its folder, which the process that keeps the fleet follows.

The number is there for as long as that process: the next start of the fleet sets it again.
"""

import asyncio
import contextlib
from pathlib import Path

from snapline.deploy.running_fleet import LaunchedFleet
from snapline.errors import UsageError

WANTED_FILE = "hosts-wanted"
LOOK_S = 0.2


def check_kept(folder: Path) -> None:
    """Raises UsageError unless a process on this machine keeps the fleet in `folder`, or was killed there."""
    if not (folder / WANTED_FILE).exists():
        raise UsageError(
            f"no process on this machine keeps a fleet in {folder}: scale a fleet where it was taken up; on Ray by `down` and `up`"
        )


def want_hosts(folder: Path, hosts: int) -> None:
    """Say how many hosts the fleet in `folder` is to have."""
    new = folder / f"{WANTED_FILE}.new"
    new.write_text(f"{hosts}\n")
    new.replace(folder / WANTED_FILE)


async def follow(fleet: LaunchedFleet, folder: Path) -> None:
    """Give the fleet as many hosts as is wanted, until cancelled."""
    file = folder / WANTED_FILE
    want_hosts(folder, len(fleet.hosts))
    try:
        while True:
            with contextlib.suppress(OSError, ValueError, UsageError):  # what stands there is no number of hosts
                hosts = int(file.read_text())
                if hosts != len(fleet.hosts):
                    fleet.scale(hosts)
            await asyncio.sleep(LOOK_S)
    finally:
        file.unlink(missing_ok=True)
