"""Files that outlive a power cut: a folder made durable, a file replaced as a whole.

`replace_durably` is the rename of the Unix tradition, with both syncs: the bytes before any name leads to them, and the
folder, without which the old name may come back after a power cut. A reader of the name sees the old file or the new one,
never a part. A temporary file left by a dead process is overwritten by the next call.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from snapline.failpoints import failpoint


def make_folder(path: Path) -> None:
    """Make a folder and its missing ancestors, for us alone, each synced in its parent. Raises OSError."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_durably(path: Path, pieces: Iterable[bytes], *, point: str) -> None:
    """Make `path` hold `pieces`, durable on return; the failpoints are named `<point>.opened` and so on.

    Raises:
        OSError: the disk refused. `path` is the old file or the new one, and nobody knows which of them a power cut
            would leave: the caller must not go on.
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
