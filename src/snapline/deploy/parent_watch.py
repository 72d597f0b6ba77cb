"""Runs a command that the kernel kills as soon as its launcher has died.

Used as `python -I -S parent_watch.py LAUNCHER_PID PROGRAM ARGUMENT…`. The process requests SIGKILL from Linux on its parent's death
(PR_SET_PDEATHSIG) and then becomes PROGRAM; the request survives `execv`. It is a program of its own, not a function
run between fork and exec, because the launcher has threads (gRPC's), and after a fork only async-signal-safe code may
run there.

The kernel watches the *thread* that started the child: start children from a thread that lives as long as the launcher.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Request number from <linux/prctl.h>."""

ORPHANED = 70
"""Exit code when the launcher died before the request reached the kernel (EX_SOFTWARE of sysexits.h; nothing is left to read it)."""


def main() -> None:
    """Tie this process to the launcher and become the command."""
    command = sys.argv[2:]
    tie_to(int(sys.argv[1]))
    os.execv(command[0], command)


def tie_to(parent: int) -> None:
    """End with this process, which is the parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died in between: no signal will come any more
        os._exit(ORPHANED)


if __name__ == "__main__":
    main()
