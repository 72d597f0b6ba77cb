"""Run in an element of a Slurm job array: a launch agent (`deploy/launch_agent.py`) that lives as long as the element.

    python -m snapline.deploy.slurm_worker DATA_DIR

A worker starts no process by itself. A worker that Slurm has requeued, on this or another node, has no process until the launcher starts
one. That process registers with the coordinator, which assigns its agents. So a requeue never replaces a recovery.

Slurm sends SIGUSR1 some time before the time limit (`--signal=B:USR1@…`). A host's worker then requests a last snapshot, ends its process, and
requests a requeue. If Slurm refuses, the worker ends, and the launcher submits another element. A coordinator's worker stays until the limit.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from snapline.deploy.launch_agent import serve

IDLE_S = 600.0
"""Time after which a worker without a launcher releases its node; until then a killed supervisor can be replaced."""

BRIDGE = "snapline.deploy.launch_agent"


def key_of(job: str, restarts: int, node: str) -> str:
    """Return the key of one run of one element. It includes the node, because in a test two nodes may be one machine."""
    return f"slurm {job} {restarts} {node}"


async def requeue() -> bool:
    """Request a later run from Slurm; False if Slurm refuses."""
    job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"  # the id alone may mean the whole array
    process = await asyncio.create_subprocess_exec("scontrol", "requeue", job, stdin=subprocess.DEVNULL)
    return await process.wait() == 0


def main() -> None:
    """Run the worker of this element."""
    job, node = os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"]
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    serve(key_of(job, restarts, node), Path(sys.argv[1]), idle_s=IDLE_S, on_time_limit=requeue)


if __name__ == "__main__":
    main()
