"""Faults of one process: numbers in memory shared with the process that runs chaos, read at each call.

Writing one number begins or ends a fault. The process does not cooperate, and the faults also apply to it after a restart.
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
"""Signed 64-bit numbers in this order, the same as in `preload.c`; a test compares them. `drift_from_ns`: start on the monotonic clock.
`changes`: number of file changes so far; the process dies just before change number `die_at`."""

SIZE = 8 * len(FIELDS)


class FaultCounters:
    """The numbers of one process, all 0 at first."""

    def __init__(self, path: Path) -> None:
        """Map the file; create it if it is missing."""
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
