"""Run a command that the kernel kills as soon as its launcher dies.

Usage: `python -I -S parent_watch.py LAUNCHER_PID PROGRAM ARGUMENT…`. The process asks Linux for a SIGKILL on its parent's death
(PR_SET_PDEATHSIG) and then becomes PROGRAM; the request survives `execv`. It is a separate program, not a function that runs between fork and
exec: the launcher has gRPC's threads, and after a fork of such a process only async-signal-safe code may run.

The kernel watches the *thread* that started the child: start children from a thread that lives as long as the launcher.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Request number from <linux/prctl.h>."""

ORPHANED = 70
"""Exit code if the launcher died before the request reached the kernel (EX_SOFTWARE of sysexits.h; no process is left to read it)."""


def main() -> None:
    """Tie this process to the launcher and become the command."""
    command = sys.argv[2:]
    tie_to(int(sys.argv[1]))
    os.execv(command[0], command)


def tie_to(parent: int) -> None:
    """Make this process die with `parent`, which is its parent process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the request: no signal will come
        os._exit(ORPHANED)


if __name__ == "__main__":
    main()
