"""Lock files: one process at a time; the second gets an error that names the first.

The kernel lets go of a lock when the descriptor is closed or its process ends, however it ends. The file's text is for people: only
while the file is locked does it name the holder.
"""

import contextlib
import fcntl
import os
import socket
from datetime import UTC, datetime

HOLDER_BYTES_MAX = 400
"""A number, the name of a machine (255 characters at most), and an instant."""


class LockHeldError(BlockingIOError):
    """The file is locked. The message names the holder: `process 17 on alpha, since 2026-01-31T09:00:00Z`."""


def lock_file(path: str | os.PathLike[str]) -> int:
    """Lock a file, made if it is missing, and write there who holds it; returns the descriptor that holds the lock.

    Raises:
        LockHeldError: somebody has locked it.
        OSError: it cannot be opened.
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
    with contextlib.suppress(OSError):  # a full disk: the lock is held all the same
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}, since {now}\n".encode(), 0)
    return handle
