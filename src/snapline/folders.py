"""Folders for keys, tokens, states and logs: their owner's alone, whatever the umask is."""

from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder and its missing ancestors with mode 0700; one that is there keeps its mode. Raises OSError."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        if folder == folder.parent:
            raise
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
