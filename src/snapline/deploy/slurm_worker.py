"""Run a launch agent (`deploy/launch_agent.py`) in an element of a Slurm job array, for as long as the element runs.

    python -m snapline.deploy.slurm_worker DATA_DIR

A worker starts a process only when the launcher asks it to. So a worker that Slurm has requeued, on the same or another node, has no
process at first. When the launcher starts the process again, the process registers with the coordinator, which assigns its agents. So a
requeue never replaces a recovery.

Slurm sends SIGUSR1 some time before the time limit (`--signal=B:USR1@…`). A host's worker then requests a last snapshot, ends its process,
and asks Slurm to requeue the element. If Slurm refuses, the worker exits, and the launcher submits another element. A coordinator's worker
runs until the limit.
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
    """Return the launch agent's key for one run of one element.

    The key contains the node, because in a test two nodes may be one machine.
    """
    return f"slurm {job} {restarts} {node}"


async def requeue() -> bool:
    """Ask Slurm to requeue this element. Return whether Slurm accepted the request."""
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
