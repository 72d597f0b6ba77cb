"""Damage to files of a store."""

import contextlib
from pathlib import Path


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file; nothing happens if the file has been deleted meanwhile."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        size = path.stat().st_size
        if size:
            offset, shift = divmod(bit % (8 * size), 8)
            file.seek(offset)
            old = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([old ^ (1 << shift)]))
