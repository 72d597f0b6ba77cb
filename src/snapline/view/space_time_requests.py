"""Serve the screen *Space-time*, for a running fleet or a trace. `diagrams/` draws the picture.

GET  /space-time          the screen, or only its lower part with `?part=found`
GET  /events/space-time   stream of changes of the screen
GET  /space-time.svg      picture of exactly the window shown
GET  /space-time.shiviz   the events in the window, with their vector clocks

The live events of the last seconds come from the hosts' traces. The view reads the hosts' traces once for all viewers, at most once per
period, and only while somebody is viewing the screen. Hosts record traces only while the view requests them, and for five more seconds. If
there are too many events, hosts trace only every fourth message of each channel, or every sixteenth, and so on. The sender and the receiver
of a channel trace the same messages. Events are shown only up to the time for which all hosts have reported. If a host had not reported
yet, a message's receive event could appear before its send event.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from snapline.client.trace_analysis import SUFFIX, read_trace_events
from snapline.diagrams.event_window import ChosenEvent, EventLog, Window, draw_window
from snapline.errors import NotFoundError, SnaplineError, UsageError
from snapline.messages.client_requests import RecentTrace
from snapline.recovery.trace import MessageReceived, MessageSent, Recovery
from snapline.recovery.trace_merge import HostLine, HostPart, PlanLine, gather
from snapline.view.epoch_pages import CutFacts
from snapline.view.markup import Markup
from snapline.view.page_elements import RENDER_PERIOD_S, Partial, Streams, Targets
from snapline.view.sign_in import HEADERS
from snapline.view.space_time_page import (
    Source,
    SpaceFacts,
    SpaceQuery,
    query_of,
    space_body,
    space_pieces,
    space_results,
)
from snapline.view.watch import ViewCalls

# -- live events -------------------------------------------------------------------------------------------------------


KEPT_S = 20.0
"""Time in seconds for which live events are kept."""

EVENTS_MAX = 20_000
"""Largest number of events that are kept for all hosts together. Earlier events are dropped."""

LINES_MAX = 20_000
"""Largest number of trace lines in one read, for all hosts together. Each host may report an equal share."""

LINES_MIN = 200
"""Smallest number of trace lines that each host may report in one read, however many hosts there are."""

LINES_HIGH, LINES_LOW = 10_000, 500
"""If a read returns more trace lines than the first limit, hosts afterwards trace fewer messages. If it returns fewer than the second
limit, they trace more."""

EVERY_MAX = 1 << 20
WAIT_S = 2.0
"""Lag in seconds behind the other hosts above which the view no longer waits for a host's events."""

GAP_S = 4.0
"""Time in seconds without a request after which the view discards its events. Hosts stop tracing a second later."""

FIRST_S = 0.5
"""Wait in seconds between the first read and the second read. Without this wait, viewers without scripts would get an empty page."""

SNAPSHOTS_KEPT = 30
"""Number of snapshots that are kept, which covers about a minute. So an event that a viewer clicks on a live page still exists."""

HELD_MAX = 16
"""Largest number of held snapshots. Held snapshots are kept longer than other snapshots, while viewers study them."""


class LiveSnapshot(msgspec.Struct, frozen=True):
    """Events known at one moment.

    Attributes:
        every: N if hosts trace only every N-th message of each channel.
        silent: hosts that do not respond.
        is_missing: whether some hosts had more events than they could report.
    """

    number: int
    event_log: EventLog
    every: int = 1
    silent: tuple[str, ...] = ()
    is_missing: bool = False


class LiveEvents:
    """Reads and keeps the current events of a fleet. Each instance may be used from only one event loop."""

    def __init__(self, calls: ViewCalls, period_s: float = RENDER_PERIOD_S, first_s: float = FIRST_S) -> None:
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
        """Return the events of the last seconds. The result is at most one period old. Raise SnaplineError if the fleet does not
        respond."""
        async with self._asking:
            waited_s = time.monotonic() - self._asked_s
            if waited_s >= GAP_S:
                self._reported.clear()  # hosts stopped tracing in the meantime, so some events are missing
                await self._ask()
                await asyncio.sleep(self._first_s)
            if waited_s >= self._period_s:
                await self._ask()
                self._asked_s = time.monotonic()
        return self._snapshots[self._count]

    def hold(self, look: LiveSnapshot) -> None:
        """Keep a snapshot of events for longer, because a viewer is studying it."""
        self._held.pop(look.number, None)
        self._held[look.number] = look
        while len(self._held) > HELD_MAX:
            del self._held[next(iter(self._held))]

    def held(self, number: int) -> LiveSnapshot:
        """Return an earlier snapshot of events, and keep it for longer.

        Raises:
            NotFoundError: If the snapshot of events is no longer kept.
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
        """Return recent events, up to the time for which all hosts have reported."""
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
    """Events reported by one host. `lines` contains the trace lines of each run, and each process of the host counts as one run."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.cursor = ""
        self.time_ns = 0
        self.lines: dict[str, deque[PlanLine | HostLine]] = {}

    def take(self, answer: RecentTrace) -> int:
        """Add the trace lines of a reply, and return how many there were."""
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


# -- requests ----------------------------------------------------------------------------------------------------------


TRACE_EVENTS_MAX = 200_000
"""Largest number of events read from a trace, counted from the trace's end. More events would take minutes and gigabytes to process."""

EPOCHS_SEARCHED_MAX = 3
"""Largest number of cuts searched for a message's content. A message is in transit in several cuts only if epochs overlap."""


_EPOCH = re.compile(r"epoch (\d+)")


class ShownTrace:
    """The trace that was given when the view started. The trace is read again if its files have changed."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._reading = asyncio.Lock()
        self._stamp: object = None
        self._event_log = EventLog([], is_whole=True)
        self.omitted = 0

    @property
    def name(self) -> str:
        """Return the name that the page shows for the trace."""
        return str(self._place)

    async def event_log(self) -> EventLog:
        """Return the events of the trace. Raise SnaplineError if the trace is unreadable."""
        async with self._reading:
            stamp = await asyncio.to_thread(self._stamp_now)
            if stamp != self._stamp:
                events = await asyncio.to_thread(read_trace_events, self._place)
                self.omitted = max(0, len(events) - TRACE_EVENTS_MAX)
                kept = events[self.omitted :]
                self._event_log = EventLog(kept, is_whole=not self.omitted)
                self._stamp = stamp
        return self._event_log

    def _stamp_now(self) -> object:
        files = sorted(self._place.glob(f"*{SUFFIX}")) if self._place.is_dir() else [self._place]
        try:
            return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        except OSError as error:
            raise UsageError(f"{self._place} cannot be read: {error.strerror or error}") from error


Show = Callable[[str, Markup, str], Response]
"""Function that wraps a screen in the page frame. The function's arguments are the title, the body, and the address of the stream of
changes."""

CutAt = Callable[[str], Awaitable[CutFacts]]
Epochs = Callable[[], Awaitable[frozenset[int]]]


class SpaceTimePages:
    """Request handlers for the screen *Space-time*.

    `live` is None without a fleet, and `trace` is None without a trace. `epochs` must return the epochs that have their own page.
    """

    def __init__(self, show: Show, live: LiveEvents | None, trace: Path | None, cut_at: CutAt, epochs: Epochs) -> None:
        self._show = show
        self._live = live
        self._trace = None if trace is None else ShownTrace(trace)
        self._cut_at = cut_at
        self._epochs = epochs
        self._streams = Streams()
        named: Mapping[Source, bool] = {"live": live is not None, "trace": trace is not None}
        self._sources = tuple([source for source, is_there in named.items() if is_there])

    async def page(self, request: Request) -> Response:
        """Show the screen."""
        facts = await self._facts(self._query(request))
        if request.query_params.get("part") == "found":
            return HTMLResponse(str(await asyncio.to_thread(space_results, facts)), headers=HEADERS)
        if facts.query.is_live and self._live is not None:
            self._live.held(facts.held)  # viewers without scripts may click an event later
        body = await asyncio.to_thread(space_body, facts)
        return self._show("Space-time", body, "/events/space-time" if facts.query.is_live else "")

    async def events(self, request: Request) -> Response:
        """Stream the changes of the screen."""
        query = self._query(request)

        async def look() -> list[Partial]:
            return await asyncio.to_thread(
                space_pieces, await self._facts(replace(query, first=None, end=None, event=None))
            )

        return self._streams.response(look)

    async def svg(self, request: Request) -> Response:
        """Return the picture of the window as SVG."""
        facts = await self._facts(self._query(request))
        drawn = await asyncio.to_thread(draw_window, facts.event_log, facts.window, facts.chosen)
        return _file(drawn, "image/svg+xml", "space-time.svg")

    async def shiviz(self, request: Request) -> Response:
        """Return the events in the window as a ShiViz log."""
        facts = await self._facts(self._query(request))
        log = await asyncio.to_thread(facts.event_log.shiviz, facts.window)
        return _file(log, "text/plain; charset=utf-8", "space-time.log")

    def _query(self, request: Request) -> SpaceQuery:
        return query_of(request.query_params, self._sources)

    # ---- facts ------------------------------------------------------------------------------------------------------

    async def _facts(self, query: SpaceQuery) -> SpaceFacts:
        if query.source == "trace":
            assert self._trace is not None
            event_log, name = await self._trace.event_log(), self._trace.name
            facts = await asyncio.to_thread(_facts_of, query, self._sources, event_log)
            facts = replace(facts, trace=name, omitted=self._trace.omitted)
        else:
            look = await self._look(query)
            facts = await asyncio.to_thread(_facts_of, query, self._sources, look.event_log)
            facts = replace(facts, held=look.number, sampled=look.every, silent=look.silent, is_missing=look.is_missing)
        if facts.chosen is None:
            return facts
        return await self._with_content(replace(facts, targets=Targets(epochs=await self._epochs())))

    async def _look(self, query: SpaceQuery) -> LiveSnapshot:
        assert self._live is not None
        if query.held:
            return self._live.held(query.held)
        return await self._live.look()

    async def _with_content(self, facts: SpaceFacts) -> SpaceFacts:
        """Add the content of the selected event's message, if a snapshot contains this message in transit."""
        if facts.chosen is None or not facts.epochs:
            return facts
        event = facts.event_log.events[facts.chosen.position].event
        if facts.query.source != "live" or not isinstance(event, MessageSent | MessageReceived):
            return facts
        contents: list[object] = []
        for epoch in facts.epochs[:EPOCHS_SEARCHED_MAX]:
            try:
                cut = await self._cut_at(str(epoch))
            except SnaplineError:
                continue  # the epoch was deleted, or is not complete
            contents += [
                message.message
                for channel, message in cut.messages()
                if event.message == f"{channel.sender}>{channel.receiver}:{message.number}"
            ]
        return replace(facts, content=tuple(contents[:1]))


def _facts_of(query: SpaceQuery, sources: tuple[Source, ...], event_log: EventLog) -> SpaceFacts:
    window = query.window(event_log)
    chosen = _chosen(query, event_log, window)
    epochs = () if chosen is None else in_transit(event_log, chosen.position)
    return SpaceFacts(query, sources, event_log, window, chosen, epochs)


def _chosen(query: SpaceQuery, event_log: EventLog, window: Window) -> ChosenEvent | None:
    if query.event is None:
        return None
    if query.event >= len(event_log) or isinstance(event_log.events[query.event].event, Recovery):
        raise UsageError(f"there is no event {query.event}: there are {len(event_log)}, from 0 on")
    return event_log.chosen(window, query.event)


def in_transit(event_log: EventLog, position: int) -> tuple[int, ...]:
    """Return the epochs in whose cuts the event's message was in transit."""
    cuts = [front for front in event_log.past.fronts if front.kind == "cut"]
    for arrow in event_log.past.arrows(position, position, cuts, {}):
        if position in (arrow.sent, *arrow.received) and arrow.state == "in-transit":
            return tuple(map(int, _EPOCH.findall(arrow.words[0])))
    return ()


def _file(content: str, media_type: str, name: str) -> Response:
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)
