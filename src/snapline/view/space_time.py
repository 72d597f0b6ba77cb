"""Requests for the screen *Space-time*, `/space-time`: of the running fleet, and of a trace. `diagrams/` draws the picture.

GET  /space-time          the screen; with `?part=found` its lower part
GET  /events/space-time   changes of the screen
GET  /space-time.svg      picture of exactly the shown window
GET  /space-time.shiviz   events of the window with their vector clocks
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from snapline.client.trace_files import SUFFIX, read_trace_events
from snapline.diagrams.event_window import ChosenEvent, EventLog, Window, draw_window
from snapline.errors import SnaplineError, UsageError
from snapline.recovery.trace import MessageReceived, MessageSent, Recovery
from snapline.view.auth import HEADERS
from snapline.view.cut_page import CutFacts
from snapline.view.live_events import LiveEvents, LiveSnapshot
from snapline.view.markup import Markup
from snapline.view.page_frame import Targets
from snapline.view.partials import Partial
from snapline.view.space_time_page import (
    Source,
    SpaceFacts,
    SpaceQuery,
    query_of,
    space_body,
    space_pieces,
    space_results,
)
from snapline.view.streams import Streams

TRACE_EVENTS_MAX = 200_000
"""Largest number of events of a trace, the last ones: more take minutes to process, and gigabytes."""

EPOCHS_SEARCHED_MAX = 3
"""Largest number of cuts searched for the content of a message, which is in transit in several cuts only if epochs overlap."""


_EPOCH = re.compile(r"epoch (\d+)")


class ShownTrace:
    """The trace that the view was started with; read again when its files have changed."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._reading = asyncio.Lock()
        self._stamp: object = None
        self._event_log = EventLog([], is_whole=True)
        self.omitted = 0

    @property
    def name(self) -> str:
        """Name for people."""
        return str(self._place)

    async def event_log(self) -> EventLog:
        """Return all events. SnaplineError: the trace cannot be read."""
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
"""Function that puts the frame around a screen: title, body, address of its stream."""

CutAt = Callable[[str], Awaitable[CutFacts]]
Epochs = Callable[[], Awaitable[frozenset[int]]]


class SpaceTimePages:
    """Answers requests for the screen. `live` None: no fleet. `trace` None: no trace. `epochs`: returns the epochs that have a page."""

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
            self._live.held(facts.held)  # viewers without scripts may click later
        body = await asyncio.to_thread(space_body, facts)
        return self._show("Space-time", body, "/events/space-time" if facts.query.is_live else "")

    async def events(self, request: Request) -> Response:
        """Stream its changes."""
        query = self._query(request)

        async def look() -> list[Partial]:
            return await asyncio.to_thread(
                space_pieces, await self._facts(replace(query, first=None, end=None, event=None))
            )

        return self._streams.response(look)

    async def svg(self, request: Request) -> Response:
        """Return the picture."""
        facts = await self._facts(self._query(request))
        drawn = await asyncio.to_thread(draw_window, facts.event_log, facts.window, facts.chosen)
        return _file(drawn, "image/svg+xml", "space-time.svg")

    async def shiviz(self, request: Request) -> Response:
        """Return the log."""
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
        """Add the message's content, if a snapshot holds it in transit."""
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
                continue  # pruned, or not complete
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
    """Return the epochs in whose cut the message of this event was in transit."""
    cuts = [front for front in event_log.past.fronts if front.kind == "cut"]
    for arrow in event_log.past.arrows(position, position, cuts, {}):
        if position in (arrow.sent, *arrow.received) and arrow.state == "in-transit":
            return tuple(map(int, _EPOCH.findall(arrow.words[0])))
    return ()


def _file(content: str, media_type: str, name: str) -> Response:
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)
