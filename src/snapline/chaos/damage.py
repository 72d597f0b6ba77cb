"""Damage to files of a store."""

import contextlib
from pathlib import Path


def flip(path: Path, bit: int) -> None:
    """Damage one bit of a file; nothing if it has been deleted meanwhile."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        size = path.stat().st_size
        if size:
            place, number = divmod(bit % (8 * size), 8)
            file.seek(place)
            old = file.read(1)[0]
            file.seek(place)
            file.write(bytes([old ^ (1 << number)]))
