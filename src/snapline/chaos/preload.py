"""Inject faults of disks and clocks into real processes: compile `preload.c`, which intercepts the C library, and simulate power cuts.

The faults of one process are numbers in memory that the process shares with the chaos process and reads at each call (`FaultCounters`).
Writing one number begins or ends a fault. The process itself needs no support for faults, and the faults also apply to it after a restart.
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
    """Return why faults of disks and clocks are not supported here; "" if they are."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        return "there is no C compiler: install gcc"
    return ""


def build(folder: Path) -> Path:
    """Compile the library into `folder`; return its path.

    Raises:
        ExternalFailureError: the library cannot be compiled here.
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
    """Return the environment of a process that uses the library; faults apply to its files below `root`."""
    return {
        "LD_PRELOAD": str(library),
        "SNAPLINE_CHAOS_CONTROL": str(control),
        "SNAPLINE_CHAOS_JOURNAL": str(journal),
        "SNAPLINE_CHAOS_ROOT": str(root),
    }


def unsynced(journal: str) -> tuple[list[str], dict[str, int]]:
    """Return what a power cut may lose: new names, and written files with the length that is synced."""
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
    """Keep, lose or tear unsynced data, chosen by the seed; return descriptions of the losses. Clear the journal."""
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
"""Signed 64-bit numbers in this order, the same as in `preload.c`; a test compares them. `drift_from_ns`: start on the monotonic clock.
`changes`: number of file changes so far; the process dies just before change number `die_at`."""

SIZE = 8 * len(FIELDS)


class FaultCounters:
    """The fault numbers of one process, all 0 at first."""

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
