"""Lock files: one process at a time; the second gets an error that names the first.

The kernel releases a lock when its descriptor is closed or its process ends in any way. The file's text is for people: it names the
holder, but only while the file is locked.
"""

import contextlib
import fcntl
import os
import socket
from datetime import UTC, datetime

HOLDER_BYTES_MAX = 400
"""Largest text: a process id, a machine's name (255 characters at most), and a time."""


class LockHeldError(BlockingIOError):
    """The file is locked. The message names the holder: `process 17 on alpha, since 2026-01-31T09:00:00Z`."""


def lock_file(path: str | os.PathLike[str]) -> int:
    """Lock a file, creating it if it is missing, and write the holder into it; return the descriptor that holds the lock.

    Raises:
        LockHeldError: another process holds the lock.
        OSError: the file cannot be opened.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, HOLDER_BYTES_MAX, 0).decode(errors="replace").strip()
        os.close(handle)
        raise LockHeldError(holder or "another process") from None
    except OSError:
        os.close(handle)
        raise
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with contextlib.suppress(OSError):  # on a full disk the lock still holds
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}, since {now}\n".encode(), 0)
    return handle
