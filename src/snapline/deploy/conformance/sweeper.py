"""Remove the processes and files of a Ray test cluster when the process that started the cluster exits for any reason.

Usage: `python -I -S sweeper.py FOLDER`, with a pipe as standard input. When the pipe closes, kill all processes that have a file in FOLDER
open, or whose command line contains FOLDER. Then delete FOLDER. The sweeper is a separate program because a killed test cannot clean up
after itself, and Ray's processes outlive the test.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

LOOK_S = 0.1
"""Interval in seconds between two rounds of killing. Children of a killed process may take a moment to appear or exit."""

ROUNDS_MAX = 600
"""Largest number of rounds, which take one minute in total. A process that survives them hangs in the kernel."""


def main() -> None:
    """Wait until the pipe closes, then remove the processes and the folder.

    Do not kill the parent process, although it has Ray's files open.
    """
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
    """Return whether a process uses the folder.

    Checking the command line alone is not sufficient, because Ray's workers change their command lines. Their output, however, goes to
    a file in the folder, so also check whether the process has a file in the folder open.
    """
    try:
        if folder.encode() in (process / "cmdline").read_bytes():
            return True
        return any(os.readlink(descriptor).startswith(f"{folder}/") for descriptor in (process / "fd").iterdir())
    except OSError:  # the process has ended, or belongs to another user
        return False


def _kill(number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(number, signal.SIGKILL)


if __name__ == "__main__":
    main()
