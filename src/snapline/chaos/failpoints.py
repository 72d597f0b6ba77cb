"""Arms failpoints in real processes through files in a folder that the whole fleet shares.

The files contain the armed failpoints, how often each was passed, and the nodes on which failpoints have acted. When a process passes a
failpoint, this costs one `stat` of the file `armed`. Passes of an armed failpoint are counted under a lock, over all processes.
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from snapline.sim.faults.fault_executor import FailpointAction


class ArmedPoint(msgspec.Struct, frozen=True):
    """An action armed at a failpoint."""

    number: int
    name: str
    hit: int
    action: FailpointAction


class FailpointArmer:
    """Arms failpoints, and reads which failpoints have acted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._armed: list[ArmedPoint] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._write()

    def arm(self, point: ArmedPoint) -> None:
        self._armed.append(point)
        self._write()

    def disarm(self) -> None:
        self._armed.clear()
        self._write()

    def hits(self) -> Mapping[int, str]:
        """Return each failpoint that has acted since the last call, by number, with the node on which it acted."""
        hits: dict[int, str] = {}
        for path in sorted(self._folder.glob("hit-*")):
            hits[int(path.name.removeprefix("hit-"))] = path.read_text()
            path.unlink()
        if hits:
            self._armed = [point for point in self._armed if point.number not in hits]
            self._write()
        return hits

    def _write(self) -> None:
        scratch = self._folder / "armed.new"
        scratch.write_bytes(msgspec.json.encode(self._armed))
        scratch.replace(self._folder / "armed")


class FailpointReader:
    """Checks in a process whether a failpoint that it passes is armed."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder = folder
        self._node = node
        self._file = str(folder / "armed")
        self._changed = (0, 0)
        self._armed: list[ArmedPoint] = []

    def due(self, name: str) -> FailpointAction | None:
        """Return the action that is due when the process passes the failpoint `name` now, or None if there is none. The action has already
        been recorded as executed when the method returns."""
        status = os.stat(self._file)
        changed = (status.st_mtime_ns, status.st_ino)
        if changed != self._changed:
            self._armed = msgspec.json.decode(Path(self._file).read_bytes(), type=list[ArmedPoint])
            self._changed = changed
        here = [point for point in self._armed if point.name == name]
        due = [point for point in here if self._count(point) == point.hit]
        if not due:
            return None
        self._record_hit(due[0])
        return due[0].action

    def _count(self, point: ArmedPoint) -> int:
        descriptor = os.open(self._folder / f"count-{point.number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            count = int(os.pread(descriptor, 32, 0) or b"0") + 1
            os.pwrite(descriptor, b"%d" % count, 0)
            return count
        finally:
            os.close(descriptor)

    def _record_hit(self, point: ArmedPoint) -> None:
        scratch = self._folder / f"new-{point.number}"
        scratch.write_text(self._node)
        scratch.replace(self._folder / f"hit-{point.number}")
