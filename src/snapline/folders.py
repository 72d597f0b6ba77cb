"""Folders and files for keys, tokens, states and logs: accessible to their owner only, regardless of the umask; and durable names."""

import os
from pathlib import Path


def make_private(folder: Path) -> None:
    """Create a folder and its missing ancestors with mode 0700; an existing folder keeps its mode. Raises OSError."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        if folder == folder.parent:
            raise
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def sync_folder(path: str | Path) -> None:
    """Make the directory entries of a folder durable. May raise OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_private(path: str, flags: int) -> int:
    """Open a file; a new file gets mode 0600. An `opener` for `open`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
