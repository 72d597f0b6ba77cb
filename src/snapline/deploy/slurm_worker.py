"""Program of an element of a Slurm array: a post (`deploy/launch_agent.py`) that lives as long as the element.

    python -m snapline.deploy.slurm_worker DATA_DIR

A seat starts nothing by itself. One that Slurm has requeued, on this node or another, is empty until the launcher starts its process; that process
registers with the coordinator, which assigns what to run. So a requeue is never a recovery.

Slurm sends SIGUSR1 some time before the time limit (`--signal=B:USR1@…`). The seat of a host then has the last snapshot taken, ends its process,
and requests a requeue; if that is not allowed, it ends, and the launcher submits another element. A coordinator's stays until the limit.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from snapline.deploy.launch_agent import serve

IDLE_S = 600.0
"""Time after which a seat without a launcher gives its node back: a keeper that was killed may be replaced until then."""

BRIDGE = "snapline.deploy.launch_agent"


def key_of(job: str, restarts: int, node: str) -> str:
    """Return the key of one run of one element: two nodes may be one machine, where somebody tries this out."""
    return f"slurm {job} {restarts} {node}"


async def requeue() -> bool:
    """Ask for another run, later; False if that is not allowed."""
    job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"  # the id alone may mean the whole array
    asked = await asyncio.create_subprocess_exec("scontrol", "requeue", job, stdin=subprocess.DEVNULL)
    return await asked.wait() == 0


def main() -> None:
    """Be the seat of this element."""
    job, node = os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"]
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    serve(key_of(job, restarts, node), Path(sys.argv[1]), idle_s=IDLE_S, when_time_is_up=requeue)


if __name__ == "__main__":
    main()
