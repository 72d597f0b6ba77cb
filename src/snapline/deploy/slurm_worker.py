"""Run a launch agent (`deploy/launch_agent.py`) in an element of a Slurm job array while the element runs.

    python -m snapline.deploy.slurm_worker DATA_DIR

A worker starts a process only at the launcher's request. So after Slurm has requeued a worker, on the same or another node, the worker has
no process. The launcher then starts the process again, and the process registers with the coordinator, which assigns agents to it. So a
requeue by Slurm never replaces a recovery.

Slurm sends SIGUSR1 some time before the time limit (`--signal=B:USR1@…`). A host's worker then requests a last snapshot, ends its process,
and asks Slurm to requeue the element. If Slurm refuses, the worker exits and the launcher submits another element. A coordinator's worker
runs until the time limit.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from snapline.deploy.launch_agent import serve

IDLE_S = 600.0
"""Time in seconds after which a worker without processes and connections exits and so releases its node. Within this time a killed
supervisor can be replaced."""

BRIDGE = "snapline.deploy.launch_agent"


def key_of(job: str, restarts: int, node: str) -> str:
    """Return the key of the launch agent for one run of one element.

    The key contains the node's name, because two nodes of a test cluster may be the same machine.
    """
    return f"slurm {job} {restarts} {node}"


async def requeue() -> bool:
    """Ask Slurm to requeue this element, and return whether Slurm accepted the request."""
    job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"  # the job id alone may refer to the whole array
    process = await asyncio.create_subprocess_exec("scontrol", "requeue", job, stdin=subprocess.DEVNULL)
    return await process.wait() == 0


def main() -> None:
    """Run the worker of this array element."""
    job, node = os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"]
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    serve(key_of(job, restarts, node), Path(sys.argv[1]), idle_s=IDLE_S, on_time_limit=requeue)


if __name__ == "__main__":
    main()
