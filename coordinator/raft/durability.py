"""Durable file writes, and *fail-stop*: ending the process at once when memory and disk may differ (section H3 of the Raft design; G8,
G11).

*Files.* `replace_durably` writes a temporary file, syncs it, renames it, and syncs the folder. Without the sync of the folder, the old
file may reappear after a power failure. Readers always see either the old or the new file, never a mixture. If a crash leaves a temporary
file behind, the next call overwrites that file.

*Fail-stop.* If a replica kept running after a failed write, it might acknowledge entries or votes that are not on its disk. A running
replica cannot repair a difference between memory and disk. A failed commit must not be retried, because the kernel may have dropped the
dirty pages and may report success for the next sync. If the disk is full, SQLite drops the whole transaction, so memory is ahead of the
file. Only a restart reads what is really on the disk. The process ends by `os._exit`, so that no handler, `finally` block or other thread
can send anything that is not durable.
"""

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from snapline.failpoints import failpoint
from snapline.folders import sync_folder

FAIL_STOP_EXIT_CODE = 12
"""Exit code of a fail-stop, so that supervisors and tests can recognise it."""

_log = logging.getLogger(__name__)
_hook: Callable[[str], NoReturn] | None = None


def fail_stop(reason: str) -> NoReturn:
    """Log `reason` and end the process at once. `reason` is a sentence that names the problem and the next step for the operator."""
    if _hook is not None:
        _hook(reason)
    try:
        _log.critical("the coordinator ends itself: %s", reason)
    finally:
        os._exit(FAIL_STOP_EXIT_CODE)


def set_fail_stop_hook(hook: Callable[[str], NoReturn] | None) -> None:
    """Install a hook that `fail_stop` calls before it ends the process. The hook must raise an exception, which keeps the process alive.

    `None` removes the hook. This function is only for tests and simulations.
    """
    global _hook
    _hook = hook


def make_folder(path: Path) -> None:
    """Create a folder and its missing ancestors with mode 0700, and sync the parent of each. May raise OSError."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def replace_durably(path: Path, pieces: Iterable[bytes], *, point: str) -> None:
    """Replace the content of `path` with `pieces`. The new content is durable when the function returns. The failpoints are named
    `<point>.opened` and so on.

    Raises:
        OSError: the disk could not be written. `path` then contains either the old or the new content, and a power failure may change
            which one. The caller must end the process after this error.
    """
    temporary = path.with_name(path.name + ".tmp")
    handle = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        failpoint(f"{point}.opened")
        for piece in pieces:
            _write_all(handle, piece)
        failpoint(f"{point}.written")
        os.fsync(handle)
        failpoint(f"{point}.synced")
    finally:
        os.close(handle)
    os.replace(temporary, path)
    failpoint(f"{point}.renamed")
    sync_folder(path.parent)
    failpoint(f"{point}.durable")


def _write_all(handle: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(handle, rest) :]
