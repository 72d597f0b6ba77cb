"""How many hosts a fleet is to have: a number in its folder, which the process that keeps the fleet follows.

The number is there for as long as that process: whoever takes the fleet up again says how many it is to have.
"""

import asyncio
import contextlib
from pathlib import Path

from snapline.deploy.launched import LaunchedFleet

WANTED_FILE = "hosts-wanted"
LOOK_S = 0.2


def want_hosts(folder: Path, hosts: int) -> None:
    """Say how many hosts the fleet in `folder` is to have."""
    new = folder / f"{WANTED_FILE}.new"
    new.write_text(f"{hosts}\n")
    new.replace(folder / WANTED_FILE)


async def follow(fleet: LaunchedFleet, folder: Path) -> None:
    """Give the fleet as many hosts as is wanted, until cancelled."""
    file, wanted = folder / WANTED_FILE, len(fleet.hosts)
    file.unlink(missing_ok=True)
    while True:
        with contextlib.suppress(OSError, ValueError):  # none is wanted, or what stands there is no number
            hosts = int(file.read_text())
            if hosts != wanted:
                fleet.scale(hosts)
                wanted = hosts
        await asyncio.sleep(LOOK_S)
