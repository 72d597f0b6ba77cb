"""Run a command so that the kernel kills it as soon as its launcher dies.

Usage: `python -I -S parent_watch.py LAUNCHER_PID PROGRAM ARGUMENT…`. This program asks Linux to send it a SIGKILL when its parent dies
(PR_SET_PDEATHSIG), and then executes PROGRAM. The setting survives `execv`. This is a separate program, because a launcher has gRPC's
threads. After a fork of a process with threads, only async-signal-safe code may run.

The kernel watches the *thread* that started the child. So start children from a thread that lives as long as the launcher.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Number of the `prctl` request, from <linux/prctl.h>."""

ORPHANED = 70
"""Exit code if the launcher dies before the kernel receives the request (EX_SOFTWARE of sysexits.h). No process is left to read this
code."""


def main() -> None:
    """Make this process die with the launcher, then execute the command."""
    command = sys.argv[2:]
    tie_to(int(sys.argv[1]))
    os.execv(command[0], command)


def tie_to(parent: int) -> None:
    """Arrange for this process to be killed when its parent process `parent` dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the request, so the kernel will send no signal
        os._exit(ORPHANED)


if __name__ == "__main__":
    main()
