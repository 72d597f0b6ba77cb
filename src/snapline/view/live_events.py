"""Events of the last seconds, from the hosts' traces: read once for all viewers, at most once a period, and only while there are viewers.

Hosts trace while they receive requests, and for five seconds longer. If there are too many events, hosts trace every fourth message of a
channel, or every sixteenth …; both ends trace the same messages. A host's events are shown only up to the time that all hosts have
reported: otherwise receives would appear before their sends.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from snapline.diagrams.event_window import EventLog
from snapline.errors import NotFoundError
from snapline.messages.views import RecentTrace
from snapline.recovery.trace_merge import HostLine, HostPart, PlanLine, gather
from snapline.view.facts import ViewCalls
from snapline.view.streams import PERIOD_S

KEPT_S = 20.0
"""Time for which events are kept."""

EVENTS_MAX = 20_000
"""Largest number of kept events of all hosts: earlier ones are dropped."""

LINES_MAX = 20_000
"""Largest number of trace lines of all hosts in one read; each host gets an equal share of it."""

LINES_MIN = 200
"""Smallest limit of lines for one host."""

LINES_HIGH, LINES_LOW = 10_000, 500
"""Limits on the lines of one read: above the first, hosts trace fewer messages from then on; below the second, more."""

EVERY_MAX = 1 << 20
WAIT_S = 2.0
"""Clock lag behind other hosts above which a host is not waited for."""

GAP_S = 4.0
"""Time without a request after which the view starts afresh; a second later hosts stop tracing."""

FIRST_S = 0.5
"""Time from the first request to the second one: without it, viewers without scripts would get an empty page."""

SNAPSHOTS_KEPT = 30
"""Number of kept snapshots, for a minute: a clicked event on a live page still exists."""

HELD_MAX = 16
"""Largest number of held snapshots, which stay while viewers study them."""


class LiveSnapshot(msgspec.Struct, frozen=True):
    """Events known at one moment.

    Attributes:
        every: every N-th message of each channel is traced.
        silent: hosts that do not report. is_missing: hosts had more events than they could report.
    """

    number: int
    event_log: EventLog
    every: int = 1
    silent: tuple[str, ...] = ()
    is_missing: bool = False


class LiveEvents:
    """Live events of one fleet. Use it from one event loop."""

    def __init__(self, calls: ViewCalls, period_s: float = PERIOD_S, first_s: float = FIRST_S) -> None:
        self._calls = calls
        self._period_s = period_s
        self._first_s = first_s
        self._asking = asyncio.Lock()
        self._asked_s = float("-inf")
        self._reported: dict[str, _HostEvents] = {}
        self._every = 1
        self._count = 0
        self._snapshots: dict[int, LiveSnapshot] = {}
        self._held: dict[int, LiveSnapshot] = {}

    async def look(self) -> LiveSnapshot:
        """Return the events of the last seconds, not older than a period. SnaplineError."""
        async with self._asking:
            waited_s = time.monotonic() - self._asked_s
            if waited_s >= GAP_S:
                self._reported.clear()  # hosts have stopped tracing, so events are missing
                await self._ask()
                await asyncio.sleep(self._first_s)
            if waited_s >= self._period_s:
                await self._ask()
                self._asked_s = time.monotonic()
        return self._snapshots[self._count]

    def hold(self, look: LiveSnapshot) -> None:
        """Keep a snapshot for a viewer who studies it."""
        self._held.pop(look.number, None)
        self._held[look.number] = look
        while len(self._held) > HELD_MAX:
            del self._held[next(iter(self._held))]

    def held(self, number: int) -> LiveSnapshot:
        """Return an earlier snapshot, and hold it.

        Raises:
            NotFoundError: the snapshot is no longer kept.
        """
        snapshot = self._held.get(number) or self._snapshots.get(number)
        if snapshot is None:
            raise NotFoundError("what you saw there is not kept any more: look at the last seconds again")
        self.hold(snapshot)
        return snapshot

    async def _ask(self) -> None:
        after = {host: reported.cursor for host, reported in self._reported.items()}
        most = max(LINES_MIN, LINES_MAX // max(1, len(self._reported)))
        answers = await self._calls.recent_traces(after, every=self._every, most=most)
        answered = {host: answer for host, answer in answers.items() if answer is not None}
        count = sum(
            self._reported.setdefault(host, _HostEvents(host)).take(answer) for host, answer in answered.items()
        )
        is_missing = any(answer.missed for answer in answered.values())
        self._adapt(count, is_missing=is_missing)
        parts = self._parts(answered)
        event_log = await asyncio.to_thread(_event_log, parts)
        self._count += 1
        silent = tuple([host for host, answer in answers.items() if answer is None])
        self._snapshots[self._count] = LiveSnapshot(self._count, event_log, self._every, silent, is_missing)
        while len(self._snapshots) > SNAPSHOTS_KEPT:
            del self._snapshots[next(iter(self._snapshots))]

    def _adapt(self, count: int, *, is_missing: bool) -> None:
        if is_missing or count > LINES_HIGH:
            self._every = min(4 * self._every, EVERY_MAX)
        elif count < LINES_LOW:
            self._every = max(1, self._every // 4)

    def _parts(self, given: Mapping[str, RecentTrace]) -> list[HostPart]:
        """Return the events up to the time that all hosts have reported, without those that are too old."""
        now_ns = min((answer.time_ns for answer in given.values()), default=time.time_ns())
        times = sorted(
            [
                line.time_ns
                for reported in self._reported.values()
                for lines in reported.lines.values()
                for line in lines
            ]
        )
        before_ns = max([now_ns - round(KEPT_S * 1e9), *times[-EVENTS_MAX : -EVENTS_MAX + 1]])
        parts: list[HostPart] = []
        for host, reported in list(self._reported.items()):
            reported.forget(before_ns=before_ns)
            until_ns = max(now_ns, reported.time_ns - round(WAIT_S * 1e9))
            parts += reported.parts(until_ns)
            if host not in given and not reported.lines:
                del self._reported[host]
        return parts


class _HostEvents:
    """Events reported by one host. `lines`: lines by run, one run for each process."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.cursor = ""
        self.time_ns = 0
        self.lines: dict[str, deque[PlanLine | HostLine]] = {}

    def take(self, answer: RecentTrace) -> int:
        """Add an answer; return its number of lines."""
        lines = [msgspec.json.decode(line, type=PlanLine | HostLine) for line in answer.lines]
        self.cursor, self.time_ns = answer.cursor, answer.time_ns
        run = answer.cursor.partition(".")[0]
        if lines:
            self.lines.setdefault(run, deque()).extend(lines)
        return len(lines)

    def forget(self, *, before_ns: int) -> None:
        for run, lines in list(self.lines.items()):
            plan = None
            while lines and lines[0].time_ns < before_ns:
                dropped = lines.popleft()
                plan = dropped.plan if isinstance(dropped, PlanLine) else plan
            if lines and plan is not None:
                lines.appendleft(PlanLine(plan, {}, before_ns))
            if not lines:
                del self.lines[run]

    def parts(self, until_ns: int) -> Iterable[HostPart]:
        for lines in self.lines.values():
            yield HostPart(self._host, [line for line in lines if line.time_ns <= until_ns])


def _event_log(parts: Sequence[HostPart]) -> EventLog:
    return EventLog(gather(parts)[-EVENTS_MAX:], is_whole=False)
