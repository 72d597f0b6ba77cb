"""A host's trace: one JSON object per line, for diagrams and analysis.

`recovery/trace_merge.py` describes the lines. Messages are sampled by their number, so that both ends trace the same ones. Lines are written whole,
even if a SIGKILL ends the host.
"""

import asyncio
import time
from pathlib import Path

import msgspec

from snapline.folders import make_private

FLUSH_S = 0.05
"""Longest period of trace, in seconds, that a killed host loses."""

LINES_MAX = 20_000
"""Largest number of lines kept for one flush; more are dropped."""


TraceLine = dict[str, object]


def message_line(what: str, agent: str, other: str, number: int, *, time_ns: int) -> TraceLine:
    """Return the line of a message that left ("send") or was consumed ("receive")."""
    sender, receiver = (agent, other) if what == "send" else (other, agent)
    line: TraceLine = {"event": what, "agent": agent, "message": f"{sender}>{receiver}:{number}", "time_ns": time_ns}
    return {**line, "to": other} if what == "send" else line


def marker_line(what: str, host: str, other: str, epoch: int, *, time_ns: int) -> TraceLine:
    """Return the line of a marker item that left ("send_marker") or came ("receive_marker")."""
    end = "to" if what == "send_marker" else "from"
    return {"event": what, "host": host, end: other, "epoch": epoch, "time_ns": time_ns}


def checkpoint_line(agent: str, number: int, kind: str, epochs: tuple[int, ...], *, time_ns: int) -> TraceLine:
    """Return the line of a checkpoint that was taken."""
    line: TraceLine = {"event": "checkpoint", "agent": agent, "index": number, "kind": kind}
    return {**line, **({"epochs": list(epochs)} if epochs else {}), "time_ns": time_ns}


def plan_line(number: int, line: dict[str, int], *, time_ns: int) -> TraceLine:
    """Return the line of a plan: this host's agents continue from these checkpoints, and later traced events of them are undone."""
    return {"event": "plan", "plan": number, "line": line, "time_ns": time_ns}


class TraceWriter:
    """Appends to one file; blocking writes of a few kilobytes, on the event loop."""

    def __init__(self, path: Path) -> None:
        make_private(path.parent)
        self._file = path.open("ab", buffering=0)
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        self._add(message_line(what, agent, other, number, time_ns=time.time_ns()))

    def marker(self, what: str, host: str, other: str, epoch: int) -> None:
        self._add(marker_line(what, host, other, epoch, time_ns=time.time_ns()))

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        """Flush at once, so that the trace of a checkpoint's contents is durable before the checkpoint."""
        self._add(checkpoint_line(agent, number, kind, epochs, time_ns=time.time_ns()))
        self.flush()

    def plan(self, number: int, line: dict[str, int]) -> None:
        self._add(plan_line(number, line, time_ns=time.time_ns()))

    def _add(self, line: TraceLine) -> None:
        if len(self._lines) < LINES_MAX:
            self._lines.append(msgspec.json.encode(line))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Hand everything to the kernel, so that a SIGKILL loses none of it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        self._file.write(b"\n".join([*lines, b""]))

    def close(self) -> None:
        self.flush()
        self._file.close()
