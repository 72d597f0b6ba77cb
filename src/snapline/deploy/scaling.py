"""Target number of hosts of a fleet: a number in a file of its folder, which the supervising process applies.

The file exists only while that process runs; the next start of the fleet writes it again.
"""

import asyncio
import contextlib
from pathlib import Path

from snapline.deploy.running_fleet import LaunchedFleet
from snapline.errors import UsageError

HOSTS_REQUEST_FILE = "hosts-wanted"
LOOK_S = 0.2


def check_supervised(folder: Path) -> None:
    """Raise UsageError unless a process on this machine supervises the fleet in `folder`, or did so until it was killed."""
    if not (folder / HOSTS_REQUEST_FILE).exists():
        raise UsageError(
            f"no process on this machine keeps a fleet in {folder}: scale a fleet where it was taken up; on Ray by `down` and `up`"
        )


def request_hosts(folder: Path, hosts: int) -> None:
    """Write the target number of hosts of the fleet in `folder`."""
    new = folder / f"{HOSTS_REQUEST_FILE}.new"
    new.write_text(f"{hosts}\n")
    new.replace(folder / HOSTS_REQUEST_FILE)


async def follow(fleet: LaunchedFleet, folder: Path) -> None:
    """Scale the fleet to the target number of hosts whenever it changes, until cancelled."""
    file = folder / HOSTS_REQUEST_FILE
    request_hosts(folder, len(fleet.hosts))
    try:
        while True:
            with contextlib.suppress(OSError, ValueError, UsageError):  # the file holds no valid number of hosts
                hosts = int(file.read_text())
                if hosts != len(fleet.hosts):
                    fleet.scale(hosts)
            await asyncio.sleep(LOOK_S)
    finally:
        file.unlink(missing_ok=True)
