"""Space-time diagram of events: a window of them in columns.

Every event has a column of its own, regardless of the time between events: bursts are readable, and pauses take no space. The axis shows the
times. An event is a dot or a checkpoint's mark on its row; messages and markers are arrows between rows. A message whose other end has no row
is only a dot. If a trace begins in the middle, the arrow of a message that was sent earlier has no start.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from snapline.diagrams.event_window import ChosenEvent, EventLog, Window, time_of_day
from snapline.diagrams.scene import Arrow, Band, EventDot, Front, Mark, Place, Scene, Ticks, round_step
from snapline.diagrams.svg import draw
from snapline.ids import HOST_PREFIX
from snapline.recovery.trace import CheckpointTaken, Recovery
from snapline.recovery.trace_merge import MarkerCame, TracedMarkerSend

STEP_MIN = 9
"""Smallest distance between two events, in pixels: their dots can be distinguished and clicked."""

MILLISECONDS_FROM_NS = 50_000_000
"""Shortest window whose axis is in milliseconds: in a shorter one several ticks would be equal."""

Href = Callable[[int], str]
"""Returns the target of a click on the event at a position."""


def draw_window(
    event_log: EventLog, window: Window, chosen: ChosenEvent | None = None, *, href: Href | None = None
) -> str:
    """Return the picture as the text of an SVG file; with `href`, as a part of a page in which events are links and a script keeps names visible."""
    scene = scene_of(event_log, window, chosen, href=href)
    is_part = href is not None
    return draw(scene, step_min=STEP_MIN, is_part=is_part, is_live=is_part)


def scene_of(
    event_log: EventLog, window: Window, chosen: ChosenEvent | None = None, *, href: Href | None = None
) -> Scene:
    """Return the scene of this window; `chosen`: its past is marked."""
    return _Maker(event_log, window, chosen, href or _nowhere).scene()


def _nowhere(_position: int) -> str:
    return ""


class _Maker:
    """Maker of one picture. Places are columns; `shown` has the position of each column."""

    def __init__(self, event_log: EventLog, window: Window, chosen: ChosenEvent | None, href: Href) -> None:
        self._event_log = event_log
        self._window = window
        self._chosen = chosen
        self._href = href
        self._lanes = frozenset(window.lanes)
        self._shown = event_log.shown(window)

    def scene(self) -> Scene:
        window, count = self._window, len(self._shown)
        cuts = [front for front in self._event_log.past.fronts if front.kind == "cut"]
        arrows, marks = [*self._markers(), *self._messages(cuts)], list(self._marks(cuts))
        return Scene(
            heading=self._heading(),
            agents=window.lanes,
            hosts=frozenset(lane for lane in window.lanes if lane.startswith(HOST_PREFIX)),
            first=-1,
            last=count,
            ticks=self._ticks(),
            words=self._words(arrows, marks),
            axis="UTC" if self._is_timed else "event",
            marks=marks,
            arrows=arrows,
            spots=list(self._spots()),
            fronts=[
                converted for front in self._event_log.past.fronts if (converted := self._front(front)) is not None
            ],
            bands=list(self._bands()),
            meanings={"cut": "cut of an epoch", "band undone": "undone by a recovery", "line": "recovery"},
            values={"first": window.first, "end": window.end, "events": len(self._event_log)},
        )

    # ---- places -----------------------------------------------------------------------------------------------------

    def _column(self, position: float) -> Place:
        """Return the column of a position. Hidden events lie between the shown ones; events outside the window lie beyond the edges."""
        if position < self._window.first:
            return -2.0
        if position >= self._window.end:
            return len(self._shown) + 1.0
        index = bisect_left(self._shown, position)
        is_shown = index < len(self._shown) and self._shown[index] == position
        return float(index) if is_shown else index - 0.5

    def _row(self, position: int) -> str:
        return self._event_log.row_at(position, self._window.rows)

    def _lane_of(self, agent: str) -> str:
        """The row of an agent, if it has one."""
        if self._window.rows == "hosts":
            agent = HOST_PREFIX + self._event_log.homes.get(agent, "")
        return agent if agent in self._lanes else ""

    # ---- parts ------------------------------------------------------------------------------------------------------

    def _spots(self) -> Iterator[EventDot]:
        for column, position in enumerate(self._shown):
            event = self._event_log.events[position].event
            is_chosen = self._chosen is not None and self._chosen.position == position
            if isinstance(event, Recovery) or (isinstance(event, CheckpointTaken) and not is_chosen):
                continue
            description = f"{self._event_log.told(position)}, {self._event_log.when(position)}"
            is_past = self._chosen is not None and position in self._chosen.past
            yield EventDot(
                self._row(position), column, str(position), description, is_chosen, is_past, self._href(position)
            )

    def _marks(self, cuts: Sequence[Front]) -> Iterator[Mark]:
        window = self._window
        shown = frozenset(self._shown)
        for mark in self._event_log.past.marks(window.first, window.end - 1, cuts):
            position = int(mark.place)
            if position in shown:
                traced = self._event_log.events[position]
                kind = "coordinated" if traced.epochs else mark.kind
                descriptions = self._mark_words(mark, position)
                lane, href = self._row(position), self._href(position)
                number = mark.number if window.rows == "agents" else None
                yield replace(
                    mark,
                    agent=lane,
                    place=self._column(position),
                    kind=kind,
                    number=number,
                    words=descriptions,
                    href=href,
                )

    def _mark_words(self, mark: Mark, position: int) -> tuple[str, ...]:
        if self._window.rows == "agents":
            return mark.words
        return (self._event_log.told(position), "the last of this host's agents", *mark.words[1:])

    def _messages(self, cuts: Sequence[Front]) -> Iterator[Arrow]:
        window = self._window
        for arrow in self._event_log.past.arrows(window.first, window.end - 1, cuts, {}):
            at = arrow.received[0] if arrow.sent is None else arrow.sent
            sender = self._row(int(at)) if arrow.sent is not None else ""
            receiver = self._row(int(arrow.received[-1])) if arrow.received else self._lane_of(arrow.receiver)
            if receiver not in self._lanes or (sender and sender not in self._lanes):
                continue
            if window.rows == "hosts" and not self._event_log.leaves_host(int(at)):
                continue
            ends = [end for end in (arrow.sent, *arrow.received) if end is not None]
            if not any(window.first <= end < window.end for end in ends):
                continue
            # Keep only the receives inside the window: others would be a stroke along the edge.
            is_from_before = arrow.sent is None or arrow.sent < window.first
            received = [end for end in arrow.received if end >= window.first or not is_from_before]
            bare = replace(
                arrow,
                sender=sender,
                receiver=receiver,
                sent=None if arrow.sent is None else self._column(arrow.sent),
                received=tuple(map(self._column, received)),
            )
            yield bare if arrow.sent is not None or self._event_log.is_whole else self._from_before(bare)

    @staticmethod
    def _from_before(arrow: Arrow) -> Arrow:
        descriptions = ("sent before all that is known", *arrow.words[2:])
        return replace(arrow, state="ordinary", words=descriptions)

    def _markers(self) -> Iterator[Arrow]:
        """Yield each marker once, from its end inside the window."""
        for position in self._shown:
            event = self._event_log.events[position].event
            partner = self._event_log.partner(position)
            if isinstance(event, TracedMarkerSend):
                came = () if partner is None else (self._column(partner),)
                yield from self._marker(event.message, event.host, event.to, self._column(position), came, event.epoch)
            elif isinstance(event, MarkerCame) and (partner is None or partner < self._window.first):
                sent = None if partner is None else self._column(partner)
                ends = (self._column(position),)
                yield from self._marker(event.message, event.sender, event.host, sent, ends, event.epoch)

    def _marker(
        self, message: str, sender: str, receiver: str, sent: Place | None, came: tuple[Place, ...], epoch: int
    ) -> Iterator[Arrow]:
        start, end = HOST_PREFIX + sender if sent is not None else "", HOST_PREFIX + receiver
        if end in self._lanes and (not start or start in self._lanes):
            yield Arrow(message, start, end, sent, came, "marker", (f"the marker of epoch {epoch}",))

    def _front(self, front: Front) -> Front | None:
        """Return the front in columns; for rows of hosts, through their last records."""
        places: dict[str, float] = {}
        for agent, position in front.places.items():
            lane = self._lane_of(agent)
            if lane:
                places[lane] = max(position, places.get(lane, position))
        window = self._window
        if not any(window.first <= place < window.end for place in places.values()):
            return None
        columns = {lane: self._column(place) for lane, place in places.items()}
        return replace(front, places=columns, label=front.label, name=front.name or "recovery")

    def _bands(self) -> Iterator[Band]:
        for band in self._event_log.past.undone if self._window.rows == "agents" else ():
            if band.agent in self._lanes and self._window.first <= band.end and band.start < self._window.end:
                yield replace(band, start=self._column(band.start), end=self._column(band.end))
        for position in self._shown:
            if isinstance(self._event_log.events[position].event, Recovery):
                column, description = self._column(position), self._event_log.told(position)
                yield Band(column - 0.4, column + 0.4, "recovery", label=description)

    # ---- texts ------------------------------------------------------------------------------------------------------

    @property
    def _is_timed(self) -> bool:
        return bool(self._shown) and self._event_log.events[self._shown[0]].time_ns > 0

    def _heading(self) -> str:
        if not self._shown:
            return "Nothing happened here"
        events = self._event_log.events
        times = [events[position].time_ns for position in self._shown if events[position].time_ns]
        if not times:
            return f"Events {self._window.first:,} to {self._window.end - 1:,} of {len(events):,}"
        day = datetime.fromtimestamp(times[0] / 1e9, UTC).strftime("%Y-%m-%d")
        return f"{day} {time_of_day(min(times), 3)} to {time_of_day(max(times), 3)} UTC"

    def _words(self, arrows: Iterable[Arrow], marks: Sequence[Mark]) -> str:
        states = [arrow.state for arrow in arrows]
        agents = sum(not lane.startswith(HOST_PREFIX) for lane in self._window.lanes)
        rows = (agents, "agent") if self._window.rows == "agents" else (len(self._window.lanes), "host")
        markers = states.count("marker")
        parts = [rows, (len(self._shown), "event"), (len(states) - markers, "message"), (markers, "marker")]
        counts = [f"{number:,} {noun}{'s' * (number != 1)}" for number, noun in (*parts, (len(marks), "checkpoint"))]
        return ", ".join(counts)

    def _ticks(self) -> Ticks:
        events, shown = self._event_log.events, self._shown
        lasts_ns = events[shown[-1]].time_ns - events[shown[0]].time_ns if shown else 0
        digits = 3 if lasts_ns > MILLISECONDS_FROM_NS else 6

        def ticks(least: float) -> Iterator[tuple[Place, str]]:
            step = round_step(least)
            for column in range(0, len(shown), step):
                time_ns = events[shown[column]].time_ns
                yield column, time_of_day(time_ns, digits) if time_ns else f"{shown[column]:,}"

        return ticks
