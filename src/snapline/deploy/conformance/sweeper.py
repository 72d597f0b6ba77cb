"""Ends what a cluster of raylets has left on this machine, when its maker has ended, in any way.

Used as `python -I -S sweeper.py FOLDER`, with a pipe as standard input: where the pipe ends, all processes that name FOLDER or hold a file
in it are killed, and FOLDER goes. A test that is killed cannot do so itself, and Ray's processes outlive their starter.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

LOOK_S = 0.1
"""Between two looks: the dying leave children that die a moment later."""

ROUNDS_MAX = 600
"""A process that a minute of killing has not ended hangs in the kernel."""


def main() -> None:
    """Wait for the end of the pipe, then sweep. Who holds its other end lives on: it holds Ray's files as well."""
    folder, spared = sys.argv[1], {os.getpid(), os.getppid()}
    sys.stdin.buffer.read()
    for _ in range(ROUNDS_MAX):
        found = [number for number in _processes() - spared if _is_of(folder, Path("/proc") / str(number))]
        for number in found:
            _kill(number)
        if not found:
            shutil.rmtree(folder, ignore_errors=True)  # whoever lives on may write just then
            if not os.path.exists(folder):
                return
        time.sleep(LOOK_S)


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def _is_of(folder: str, process: Path) -> bool:
    """Workers of Ray call themselves something else, but their output goes to a file in the folder."""
    try:
        if folder.encode() in (process / "cmdline").read_bytes():
            return True
        return any(os.readlink(each).startswith(f"{folder}/") for each in (process / "fd").iterdir())
    except OSError:  # it has ended, or is not ours
        return False


def _kill(number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(number, signal.SIGKILL)


if __name__ == "__main__":
    main()
