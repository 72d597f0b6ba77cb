"""Create folders and files for keys, tokens, states and logs. Only their owner can access them, regardless of the umask. Also make
directory entries durable."""

import os
from pathlib import Path


def make_private(folder: Path) -> None:
    """Create a folder and its missing parent folders with mode 0700. An existing folder keeps its mode. May raise OSError."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        if folder == folder.parent:
            raise
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def sync_folder(path: str | Path) -> None:
    """Make all entries of a folder durable. May raise OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_private(path: str, flags: int) -> int:
    """Open a file, and create it with mode 0600 if it is missing. Pass this function as the `opener` of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
