"""Remove the processes and files of a Ray test cluster once the process that started the cluster has ended, in any way.

Usage: `python -I -S sweeper.py FOLDER`, with a pipe as standard input. At the end of the pipe, the sweeper kills all processes whose
command line contains FOLDER or that have a file in FOLDER open, and deletes FOLDER. A killed test cannot do this itself, and Ray's processes
outlive the process that started them.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

LOOK_S = 0.1
"""Interval between two rounds of killing. Children of a killed process may take a moment to appear or end."""

ROUNDS_MAX = 600
"""Limit of rounds, one minute in all: a process that survives them hangs in the kernel."""


def main() -> None:
    """Wait for the end of the pipe, then sweep. The parent process is spared although it has Ray's files open."""
    folder, spared = sys.argv[1], {os.getpid(), os.getppid()}
    sys.stdin.buffer.read()
    for _ in range(ROUNDS_MAX):
        remaining = [pid for pid in _processes() - spared if _uses_folder(folder, Path("/proc") / str(pid))]
        for pid in remaining:
            _kill(pid)
        if not remaining:
            shutil.rmtree(folder, ignore_errors=True)  # a surviving process may be writing into it
            if not os.path.exists(folder):
                return
        time.sleep(LOOK_S)


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def _uses_folder(folder: str, process: Path) -> bool:
    """Return whether a process uses the folder. Ray's workers change their command line, but their output goes to a file in the folder."""
    try:
        if folder.encode() in (process / "cmdline").read_bytes():
            return True
        return any(os.readlink(descriptor).startswith(f"{folder}/") for descriptor in (process / "fd").iterdir())
    except OSError:  # it has ended, or belongs to another user
        return False


def _kill(number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(number, signal.SIGKILL)


if __name__ == "__main__":
    main()
