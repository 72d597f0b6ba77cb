"""Faults of one process, in memory that it shares with the process that runs chaos: numbers, which it reads with each call.

A fault begins and ends by one store; no process has to cooperate, and one that is started again suffers what the one before did.
"""

import mmap
import struct
from pathlib import Path

FIELDS = (
    "eio",
    "full",
    "failed_sync",
    "slow_us",
    "hang_store",
    "hang_stop",
    "skew_ns",
    "drift_ppm",
    "drift_from_ns",
    "unknown_per_mille",
    "changes",
    "die_at",
    "hang_loop",
)
"""Signed numbers of 64 bits, in this order; the same as in `preload.c`, and a test compares. `drift_from_ns`: of the monotonic clock.
`changes`: to files, so far; the process dies just before the one with the number `die_at`."""

SIZE = 8 * len(FIELDS)


class FaultCounters:
    """The numbers of one process, all 0 at first."""

    def __init__(self, path: Path) -> None:
        """Made if it is not there."""
        with path.open("a+b") as file:
            if path.stat().st_size < SIZE:
                file.truncate(SIZE)
            self._memory = mmap.mmap(file.fileno(), SIZE)

    def set(self, field: str, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * FIELDS.index(field), value)

    def get(self, field: str) -> int:
        return int(struct.unpack_from("q", self._memory, 8 * FIELDS.index(field))[0])

    def close(self) -> None:
        self._memory.close()
