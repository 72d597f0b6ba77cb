"""Events of a host in the last seconds, for viewers: the lines of `--trace`, kept in memory.

Lines are kept, and the core traces, only while a viewer has asked within `LOOK_S`. Bounds: the newest `RECENT_LINES_MAX` lines, not older than `KEPT_S` when
sent. A line is kept as a tuple, and encoded when sent.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice

import msgspec

from snapline.agent_runtime.host.trace import TraceLine, checkpoint_line, marker_line, message_line, plan_line
from snapline.messages.client_requests import RecentTrace, TraceWanted

RECENT_LINES_MAX = 20_000
"""Largest number of lines kept, some 5 MB. If a host makes more between two requests, the oldest are dropped and counted."""

KEPT_S = 30.0
"""Largest age of a line that is sent: a viewer asks every second or two."""

LOOK_S = 5.0
"""Time after a request for which lines are kept: a viewer that misses two or three requests counts as gone."""

DIGITS_MAX = 18
"""Largest number of digits of a cursor's number: more than any host traces."""

Write = Callable[..., TraceLine]


class RecentLines:
    """Recent lines, kept while a viewer asks; a `TraceSink`. A cursor, `run.number`, is the number of the next line."""

    def __init__(self, host: str, run: str, wall_ns: Callable[[], int], *, plan: int) -> None:
        """`run`: names these lines among all that the host has kept and keeps; `plan`: the present one."""
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
        """Do nothing: these lines do not outlive the process."""

    def _add(self, write: Write, arguments: tuple[object, ...]) -> None:
        self._next += 1
        self._lines.append((self._wall_ns(), self._plan, write, arguments))

    def since(self, wanted: TraceWanted) -> Callable[[], RecentTrace]:
        """Return a function that makes the answer, in any thread."""
        now_ns, first = self._wall_ns(), self._next - len(self._lines)
        after = min(_number_in(wanted.after, self._run, first), self._next)
        begin = max(after, first, self._next - wanted.most)
        taken = list(islice(self._lines, begin - first, None))
        cursor, missed, every = f"{self._run}.{self._next}", begin - after, wanted.every

        def told() -> RecentTrace:
            return RecentTrace(self._host, cursor, every, missed, now_ns, _written(taken, now_ns - round(KEPT_S * 1e9)))

        return told


def _written(taken: list[tuple[int, int, Write, tuple[object, ...]]], since_ns: int) -> list[msgspec.Raw]:
    """Encode lines as in a file that begins here: a plan line precedes the lines under it."""
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
    """Return the number of the next line for the cursor's holder; a holder without lines of this run has missed nothing."""
    instance, _, number = cursor.partition(".")
    is_ours = instance == run and number.isdecimal() and len(number) <= DIGITS_MAX
    return int(number) if is_ours else first
