"""Records a host's trace for diagrams and analysis, with one JSON object per line. The trace is written to a file, and is kept in memory
while a viewer requests it.

`recovery/trace_merge.py` describes the lines. Messages are sampled by sequence number, so that sender and receiver trace the same messages.
A trace file contains only whole lines, even if the host is killed with SIGKILL.

Recent lines are kept in memory only if a viewer has requested them within the last `LOOK_S`. Without such a request, the core traces no
messages for viewers. At most `RECENT_LINES_MAX` lines are kept, and lines older than `KEPT_S` are not sent. A line is kept as a tuple, and
encoded only when it is sent.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.driver_interfaces import HostEnvironment, TraceSink
from snapline.folders import make_private
from snapline.messages.client_requests import RecentTrace, TraceWanted

FLUSH_S = 0.05
"""Time between two flushes. If the host is killed, at most the lines of this time are lost."""

LINES_MAX = 20_000
"""Largest number of lines that wait for a flush. Further lines are dropped."""


TraceLine = dict[str, object]


def message_line(what: str, agent: str, other: str, number: int, *, time_ns: int) -> TraceLine:
    """Return the trace line for a message that was sent ("send") or consumed ("receive")."""
    sender, receiver = (agent, other) if what == "send" else (other, agent)
    line: TraceLine = {"event": what, "agent": agent, "message": f"{sender}>{receiver}:{number}", "time_ns": time_ns}
    return {**line, "to": other} if what == "send" else line


def marker_line(what: str, host: str, other: str, epoch: int, *, time_ns: int) -> TraceLine:
    """Return the trace line for a marker item that was sent ("send_marker") or received ("receive_marker")."""
    end = "to" if what == "send_marker" else "from"
    return {"event": what, "host": host, end: other, "epoch": epoch, "time_ns": time_ns}


def checkpoint_line(agent: str, number: int, kind: str, epochs: tuple[int, ...], *, time_ns: int) -> TraceLine:
    """Return the trace line for a checkpoint."""
    line: TraceLine = {"event": "checkpoint", "agent": agent, "index": number, "kind": kind}
    return {**line, **({"epochs": list(epochs)} if epochs else {}), "time_ns": time_ns}


def plan_line(number: int, line: dict[str, int], *, time_ns: int) -> TraceLine:
    """Return the trace line for a recovery plan. The trace line says that this host's agents continue from the checkpoints in `line` and
    that their later traced events are undone."""
    return {"event": "plan", "plan": number, "line": line, "time_ns": time_ns}


class TraceWriter:
    """Appends a host's trace to one file. The sink writes a few kilobytes at a time, which briefly blocks the event loop."""

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
        """Trace a checkpoint, and flush immediately, so that the trace line is written before the checkpoint becomes durable."""
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
        """Write all lines to the kernel, so that a SIGKILL cannot lose them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        self._file.write(b"\n".join([*lines, b""]))

    def close(self) -> None:
        self.flush()
        self._file.close()


RECENT_LINES_MAX = 20_000
"""Largest number of lines kept for viewers, which take some 5 MB. If the host traces more lines between two requests, the oldest lines are
dropped and counted."""

KEPT_S = 30.0
"""Largest age of a line that is sent to a viewer. Viewers ask every second or two."""

LOOK_S = 5.0
"""Time after a viewer's request for which lines are kept. A viewer that misses two or three requests counts as gone."""

DIGITS_MAX = 18
"""Largest number of digits of the number in a cursor. No host traces more lines than this allows."""

Write = Callable[..., TraceLine]


class RecentLines:
    """A `TraceSink` that keeps recent trace lines in memory while a viewer requests them. A viewer's cursor has the form `run.number`,
    where the number is the number of the next trace line."""

    def __init__(self, host: str, run: str, wall_ns: Callable[[], int], *, plan: int) -> None:
        """`run` is an id that distinguishes these trace lines from the lines of this host's earlier `RecentLines` objects."""
        self._host = host
        self._run = run
        self._wall_ns = wall_ns
        self._plan = plan
        self._next = 0
        self._lines: deque[tuple[int, int, Write, tuple[object, ...]]] = deque(maxlen=RECENT_LINES_MAX)

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        self._add(message_line, (what, agent, other, number))

    def marker(self, what: str, host: str, other: str, epoch: int) -> None:
        self._add(marker_line, (what, host, other, epoch))

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        self._add(checkpoint_line, (agent, number, kind, epochs))

    def plan(self, number: int, line: dict[str, int]) -> None:
        self._plan = number
        self._add(plan_line, (number, line))

    def flush(self) -> None:
        """Do nothing, since these lines are kept only in memory."""

    def _add(self, write: Write, arguments: tuple[object, ...]) -> None:
        self._next += 1
        self._lines.append((self._wall_ns(), self._plan, write, arguments))

    def since(self, wanted: TraceWanted) -> Callable[[], RecentTrace]:
        """Return a function that builds the reply to a viewer's request. The returned function may be called on any thread."""
        now_ns, first = self._wall_ns(), self._next - len(self._lines)
        after = min(_number_in(wanted.after, self._run, first), self._next)
        begin = max(after, first, self._next - wanted.most)
        taken = list(islice(self._lines, begin - first, None))
        cursor, missed, every = f"{self._run}.{self._next}", begin - after, wanted.every

        def encoded() -> RecentTrace:
            return RecentTrace(self._host, cursor, every, missed, now_ns, _written(taken, now_ns - round(KEPT_S * 1e9)))

        return encoded


def _written(taken: list[tuple[int, int, Write, tuple[object, ...]]], since_ns: int) -> list[msgspec.Raw]:
    """Encode trace lines so that each plan's lines are preceded by a line for the plan, as in a trace file."""
    lines: list[msgspec.Raw] = []
    written_plan = None
    for time_ns, plan, write, arguments in taken:
        if time_ns < since_ns:
            continue
        if plan != written_plan and write is not plan_line:
            lines.append(_raw(plan_line(plan, {}, time_ns=time_ns)))
        written_plan = plan
        lines.append(_raw(write(*arguments, time_ns=time_ns)))
    return lines


def _raw(line: TraceLine) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(line))


def _number_in(cursor: str, run: str, first: int) -> int:
    """Return the number in a viewer's cursor, or `first` if the cursor is invalid or belongs to another run."""
    instance, _, number = cursor.partition(".")
    is_ours = instance == run and number.isdecimal() and len(number) <= DIGITS_MAX
    return int(number) if is_ours else first


MARKERS = ("send_marker", "receive_marker")


class Tracing:
    """Traces one host's events to a file and to viewers. If there is neither a file nor a viewer, the core traces no messages, and `is_on`
    is False."""

    def __init__(
        self,
        environment: HostEnvironment,
        core: HostCore,
        feed: Callable[[ev.Event], None],
        file: TraceSink | None,
        file_every: int,
    ) -> None:
        """The file contains every `file_every`-th message of each channel."""
        self._environment = environment
        self._core = core
        self._feed = feed
        self._file = file
        self._file_every = file_every if file is not None else 0
        self._recent: RecentLines | None = None
        self._recent_every = 0
        self._until_ns = self._looks = 0
        self.is_on = file is not None

    def carry(self, command: ev.Trace) -> None:
        """Execute the core's `Trace` command."""
        if command.what == "checkpoint":
            self.checkpoint(command.agent, command.number, command.other)
        elif command.what in MARKERS:
            for sink in self._sinks():
                sink.marker(command.what, command.agent, command.other, command.number)
        else:
            self._message(command)

    def _message(self, command: ev.Trace) -> None:
        recent, file, number = self._recent, self._file, command.number
        if recent is not None and number % self._recent_every == 0:
            recent.message(command.what, command.agent, command.other, number)
        if file is not None and number % self._file_every == 0:
            file.message(command.what, command.agent, command.other, number)

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        """Trace a checkpoint."""
        for sink in self._sinks():
            sink.checkpoint(agent, number, kind, epochs)

    def plan(self, number: int, line: dict[str, int]) -> None:
        """Trace a plan, with the numbers of the checkpoints from which this host's agents continue."""
        for sink in self._sinks():
            sink.plan(number, line)

    def flush(self) -> None:
        """Flush the file, if there is one, so that all trace lines so far survive the end of this process."""
        if self._file is not None:
            self._file.flush()

    def _sinks(self) -> Iterable[TraceSink]:
        return [sink for sink in (self._file, self._recent) if sink is not None]

    # ---- viewers ----------------------------------------------------------------------------------------------------

    def recent(self, wanted: TraceWanted) -> Callable[[], RecentTrace]:
        """Return a function that builds the reply to a viewer, with the trace lines since the viewer's cursor. The returned function may be
        called on any thread."""
        self._until_ns = self._environment.now_ns() + round(LOOK_S * 1e9)
        if self._recent is None:
            self._looks += 1
            run = f"{self._core.start}-{self._looks}"
            self._recent = RecentLines(self._core.shared.host, run, self._environment.wall_ns, plan=self._core.plan)
            self._environment.call_later(LOOK_S, self._stop_viewing)
        if wanted.every != self._recent_every:
            self._recent_every = wanted.every
            self._tell()
        return self._recent.since(wanted)

    def _stop_viewing(self) -> None:
        left_ns = self._until_ns - self._environment.now_ns()
        if left_ns > 0:
            self._environment.call_later(left_ns / 1e9, self._stop_viewing)
            return
        self._recent, self._recent_every = None, 0
        self._tell()

    def _tell(self) -> None:
        """Set the core's sampling rate, so that the core traces all messages that the file or a viewer needs."""
        self.is_on = self._file is not None or self._recent is not None
        self._feed(ev.TracingRequested(math.gcd(self._file_every, self._recent_every)))
