"""Injects disk faults and clock faults into real processes. This module compiles `preload.c`, which intercepts calls to the C library. The
module also simulates power cuts.

The faults of one process are stored as numbers in memory that this process and the chaos process share (`FaultCounters`). The process reads
the numbers on each call of an intercepted function. The chaos process writes a number to begin or end a fault. The faulty process needs no
support for faults, and the faults still apply to it after a restart.
"""

import contextlib
import mmap
import os
import random
import shutil
import struct
import subprocess
from pathlib import Path

from snapline.errors import ExternalFailureError

SOURCE = Path(__file__).with_name("preload.c")

BUILD_TIMEOUT_S = 60.0


def reason_against() -> str:
    """Return the reason why disk and clock faults are not supported on this machine, or "" if they are supported."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        return "there is no C compiler: install gcc"
    return ""


def build(folder: Path) -> Path:
    """Compile the library into `folder`, and return the library's path.

    Raises:
        ExternalFailureError: If the library cannot be compiled on this machine.
    """
    library = folder / "preload.so"
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    command = [compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExternalFailureError(f"{compiler} cannot be run: {error}; see `snapline chaos doctor`") from error
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        raise ExternalFailureError(f"{compiler} does not compile {SOURCE}: {lines[0]}; see `snapline chaos doctor`")
    return library


def environment(library: Path, *, control: Path, journal: Path, root: Path) -> dict[str, str]:
    """Return the environment variables for a process that uses the library. Disk faults apply to the process's files below `root`."""
    return {
        "LD_PRELOAD": str(library),
        "SNAPLINE_CHAOS_CONTROL": str(control),
        "SNAPLINE_CHAOS_JOURNAL": str(journal),
        "SNAPLINE_CHAOS_ROOT": str(root),
    }


def unsynced(journal: str) -> tuple[list[str], dict[str, int]]:
    """Return the file names and data that a power cut may lose. The first value lists the new file names. The second value contains, for
    each written file, the length that has been synced."""
    names: dict[str, None] = {}
    written: dict[str, int] = {}
    for line in journal.splitlines():
        word, _, rest = line.partition(" ")
        if word == "+":
            names[rest] = None
        elif word == "w":
            size, _, path = rest.partition(" ")
            written.setdefault(path, int(size))
        elif word == "=":
            written.pop(rest, None)
            names = {name: None for name in names if os.path.dirname(name) != rest}
    return list(names), written


def lose_unsynced(journal: Path, seed: int) -> list[str]:
    """Simulate a power cut. Return descriptions of the losses. For each file, the seed decides whether unsynced data is kept, lost or torn,
    and whether a new file name is lost. Clear the journal."""
    if not journal.exists():
        return []
    names, written = unsynced(journal.read_text(errors="replace"))
    journal.write_text("")
    rng = random.Random(seed)
    lost = []
    for path, safe in written.items():
        with contextlib.suppress(OSError):
            size = os.stat(path).st_size
            kept = rng.choice([size, safe, rng.randint(safe, max(safe, size))])
            if kept < size:
                os.truncate(path, kept)
                lost.append(f"{path}: {size - kept} bytes")
    for name in names:
        with contextlib.suppress(OSError):
            if rng.random() < 0.5:
                os.unlink(name)
                lost.append(name)
    return lost


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
"""Names of the signed 64-bit numbers, in the same order as in `preload.c`. A test compares the two lists.
`drift_from_ns` is the time at which the drift started on the monotonic clock. `changes` is the number of file changes
so far. The process dies just before the change with the number `die_at`."""

SIZE = 8 * len(FIELDS)


class FaultCounters:
    """The numbers that represent the faults of one process. All numbers are initially 0."""

    def __init__(self, path: Path) -> None:
        """Map the file into memory. If the file is missing, create it."""
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
