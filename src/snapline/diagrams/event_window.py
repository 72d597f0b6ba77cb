"""Draw a fleet's events as a space-time diagram. This module computes the rows, windows, event descriptions and happened-before relation of
the diagram.

An event's *position* is its index in the causal order of all events (`recovery/trace_merge.py`). A *row* shows one agent, or one host if
there are too many agents. Each host also has its own row above its agents, because markers are sent between hosts. If a picture has only
host rows, it omits messages between agents of the same host. For each host and epoch, it shows all checkpoints as a single mark at the
position of the last one.

In the vector clocks, each row is a process. A recovery starts a new process for each row that is rolled back. For example, process `a#3`
continues from the checkpoint of agent `a` on the recovery line of plan 3, so undone events are not in its past.

Every event in the window has its own column, regardless of the time between events. So bursts of events are readable, and pauses take no
space. The axis shows the times of the events. Events are dots or checkpoint marks on their rows, and messages and markers are arrows
between rows. If the sender or receiver of a message has no row, the message is only a dot on the other agent's row. If a message was sent
before the trace begins, its arrow has no starting point.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal, assert_never

import msgspec
from msgspec.structs import replace

from snapline.diagrams.event_history import Clock, ClockStep, PastEvents, past_of_last, shiviz_log
from snapline.diagrams.scene import Arrow, Band, EventDot, Front, Mark, Position, Scene, Ticks, round_step
from snapline.diagrams.svg import draw
from snapline.ids import HOST_PREFIX, natural_key
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent, Recovery
from snapline.recovery.trace_merge import MarkerCame, TracedEvent, TracedMarkerSend

Rows = Literal["agents", "hosts"]

ROWS_MAX = 24
"""Default limit on the number of rows. The busiest agents or hosts are shown. This number of rows fits on a screen, and the arrows are
readable."""

CHOSEN_MAX = 60
"""Largest number of rows that a viewer can choose."""

KEPT_MAX = 8
"""Number of selections of rows that are cached, which is enough for a few viewers."""

_NUMBERED = re.compile(r"[^>]*>[^>]*:(\d+)")


class Window(msgspec.Struct, frozen=True):
    """The part of the events that is shown in the picture.

    `lanes` contains the rows from top to bottom. Events are shown from position `first` up to but excluding `end`.
    """

    rows: Rows
    lanes: tuple[str, ...]
    first: int
    end: int


class ChosenEvent(msgspec.Struct, frozen=True):
    """One event with its vector clock and the positions of the events in its past. The clock has an entry for each row."""

    position: int
    clock: Clock
    past: frozenset[int]


class EventLog:
    """All known events of a fleet. Instances are read-only and thread-safe.

    Attributes:
        events: all events, by position.
        is_whole: whether the first event is also the first event of the fleet.
        homes: the last known host of each agent.
        hosts: all hosts, in natural order of their names.
        busy: number of events of each agent.
        past: undone events and cuts.
    """

    def __init__(self, events: Sequence[TracedEvent], *, is_whole: bool) -> None:
        self.events = events
        self.is_whole = is_whole
        self.homes: dict[str, str] = {}
        self.busy: Counter[str] = Counter()
        self._partner = partners(events)
        self._kept: dict[tuple[Rows, tuple[str, ...]], list[int]] = {}
        hosts = dict.fromkeys(traced.host for traced in events if traced.host)
        self.hosts = sorted(hosts, key=natural_key)
        for traced in events:
            if isinstance(traced.event, CheckpointTaken | MessageSent | MessageReceived):
                self.busy[traced.event.agent] += 1
                if traced.host:
                    self.homes[traced.event.agent] = traced.host

    @cached_property
    def past(self) -> PastEvents:
        """Return the undone events and the cuts, which are computed when the first picture is drawn."""
        return _past_of(self)

    def __len__(self) -> int:
        return len(self.events)

    # ---- rows and windows -------------------------------------------------------------------------------------------

    def rows_of(self, rows: Rows, wanted: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the rows to show. `wanted` contains agents' names or parts of names. If `wanted` is empty, the agents with the most events
        are shown.

        The rows of a host's agents are below the host's row.
        """
        if rows == "hosts":
            counts = Counter(self.homes.values())
            chosen = sorted(sorted(self.hosts, key=lambda host: -counts[host])[:CHOSEN_MAX], key=natural_key)
            return tuple([HOST_PREFIX + host for host in chosen])
        agents = self.found(wanted)[:CHOSEN_MAX] if wanted else [agent for agent, _ in self.busy.most_common(ROWS_MAX)]
        agents.sort(key=lambda agent: (natural_key(self.homes.get(agent, "")), natural_key(agent)))
        lanes: dict[str, None] = {}
        for agent in agents:
            if agent in self.homes:
                lanes[HOST_PREFIX + self.homes[agent]] = None
            lanes[agent] = None
        return tuple(lanes)

    def found(self, wanted: Sequence[str]) -> list[str]:
        """Return the agents whose names match an item of `wanted` exactly, or contain an item that is not an agent's name. The agents with
        the most events come first."""
        exact = {name for name in wanted if name in self.busy}
        parts = [name.casefold() for name in wanted if name not in exact]
        return [
            agent
            for agent, _ in self.busy.most_common()
            if agent in exact or any(part in agent.casefold() for part in parts)
        ]

    def window(self, rows: Rows, lanes: tuple[str, ...], *, count: int) -> Window:
        """Return the window that contains the last `count` events of these rows."""
        shown: dict[Hashable, None] = {}
        for position in reversed(self._positions(rows, lanes)):
            if len(shown) == count:
                return Window(rows, lanes, position + 1, len(self.events))
            shown[(self._record(position) if rows == "hosts" else None) or position] = None
        return Window(rows, lanes, 0, len(self.events))

    def moved(self, window: Window, *, first: int, end: int) -> Window:
        """Return the window with each edge moved by the given number of events on the window's rows.

        The new window contains at least one event and stays within the known events.
        """
        positions = self._positions(window.rows, window.lanes)

        def walked(edge: int, count: int) -> int:
            index = bisect_left(positions, edge) + count
            if count < 0:
                return positions[index] if index >= 0 else 0
            if count > 0:
                return positions[index - 1] + 1 if index <= len(positions) else len(self.events)
            return edge

        start, stop = walked(window.first, first), walked(window.end, end)
        return replace(window, first=start, end=stop) if start < stop else window

    def shown(self, window: Window) -> list[int]:
        """Return the positions of the events that are drawn for this window."""
        all_positions = self._positions(window.rows, window.lanes)
        positions = all_positions[bisect_left(all_positions, window.first) : bisect_left(all_positions, window.end)]
        if window.rows == "agents":
            return positions
        records: dict[Hashable, int] = {}
        for position in positions:
            if (record := self._record(position)) is not None:
                records[record] = position
        last = frozenset(records.values())
        return [each for each in positions if self._record(each) is None or each in last]

    def _positions(self, rows: Rows, lanes: tuple[str, ...]) -> list[int]:
        """Return the positions of all events on these rows.

        Results are cached, because a page needs them often and a fleet may have 10,000 other agents.
        """
        positions = self._kept.get((rows, lanes))
        if positions is None:
            shows = self._shows(rows, frozenset(lanes))
            positions = [position for position in range(len(self.events)) if shows(position)]
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[rows, lanes] = positions
        return positions

    def _record(self, position: int) -> Hashable:
        """Return a key that is common to all events that a host's row combines into one mark. Return None if the event is not combined with
        other events."""
        traced = self.events[position]
        return (traced.host, traced.epochs) if traced.epochs and isinstance(traced.event, CheckpointTaken) else None

    def _shows(self, rows: Rows, lanes: frozenset[str]) -> Callable[[int], bool]:
        def shows(position: int) -> bool:
            event = self.events[position].event
            if isinstance(event, Recovery):
                return True
            if isinstance(event, TracedMarkerSend | MarkerCame) or rows == "agents":
                return self.row_at(position, rows) in lanes
            if isinstance(event, MessageSent | MessageReceived) and not self.leaves_host(position):
                return False
            return self.row_at(position, rows) in lanes

        return shows

    def row_at(self, position: int, rows: Rows) -> str:
        """Return the row of an event that is not a recovery."""
        traced = self.events[position]
        event = traced.event
        if isinstance(event, TracedMarkerSend | MarkerCame):
            return HOST_PREFIX + event.host
        return HOST_PREFIX + traced.host if rows == "hosts" or isinstance(event, Recovery) else event.agent

    def leaves_host(self, position: int) -> bool:
        """Return whether a message is sent to or received from another host. Return False if the other host is unknown."""
        own_host, other_host = self.events[position].host, self.host_of_other(position)
        return bool(own_host) and bool(other_host) and own_host != other_host

    def host_of_other(self, position: int) -> str:
        """Return the host of the other agent that sent or received the message. Return "" if it is unknown."""
        partner = self._partner[position]
        if partner >= 0:
            return self.events[partner].host
        event = self.events[position].event
        return (
            self.homes.get(event.to, "")
            if isinstance(event, MessageSent)
            else self.homes.get(self.sender_of(event), "")
        )

    def partner(self, position: int) -> int | None:
        """Return the position of the matching send or receive event of a message or marker, or None if it is unknown."""
        other_end = self._partner[position]
        return other_end if other_end >= 0 else None

    @staticmethod
    def sender_of(event: object) -> str:
        """Extract the sender from a message name that a host has assigned. Return "" if the name does not contain the sender."""
        message = getattr(event, "message", "")
        return message.partition(">")[0].partition("/")[0] if _NUMBERED.fullmatch(message) else ""

    # ---- clocks -----------------------------------------------------------------------------------------------------

    def chosen(self, window: Window, position: int) -> ChosenEvent:
        """Return an event with its vector clock. The clock counts all known events on the rows of `window`."""
        lanes = frozenset(window.lanes)
        steps: list[ClockStep] = []
        for step in self._steps(window.rows, lambda candidate: self.row_at(candidate, window.rows) in lanes):
            steps.append(step)
            if step.words == str(position):
                break
        known = [steps[index] for index in past_of_last(steps) if steps[index].is_counted]
        past = frozenset([int(step.words) for step in known]) - {position}
        return ChosenEvent(position, dict(Counter([step.lane for step in known])), past)

    def shiviz(self, window: Window) -> str:
        """Format the events of the picture as a ShiViz log."""
        shown = frozenset(each for each in self.shown(window))
        steps = self._steps(window.rows, lambda position: position in shown)
        return shiviz_log(
            replace(step, words=self.description_of(int(step.words))) if step.is_counted else step for step in steps
        )

    def _steps(self, rows: Rows, counts: Callable[[int], bool]) -> Iterator[ClockStep]:
        """Yield a vector-clock step for each event. The step's `words` field is the event's position."""
        lives: dict[str, str] = {}
        recoveries = 1
        for position, traced in enumerate(self.events):
            event = traced.event
            if isinstance(event, Recovery):
                recoveries = traced.plan or recoveries + 1
                yield from self._begun_again(event.line, rows, lives, recoveries)
                continue
            row = self.row_at(position, rows)
            lane = lives.get(row, row)
            leaves: Hashable = None
            takes: tuple[Hashable, ...] = ()
            match event:
                case MessageSent() | TracedMarkerSend():
                    leaves = event.message
                case MessageReceived() | MarkerCame():
                    takes = (event.message,)
                case CheckpointTaken():
                    leaves = (event.agent, event.number)
            yield ClockStep(lane, str(position), leaves, takes, counts(position))

    def _begun_again(
        self, line: Mapping[str, int | None], rows: Rows, lives: dict[str, str], life: int
    ) -> Iterator[ClockStep]:
        """Yield the first step of each row that is rolled back.

        The row becomes a new process whose past is the past of its checkpoint. The new process of a host includes the past of all
        checkpoints on the recovery line.
        """
        checkpoints = {agent: (agent, number) for agent, number in line.items() if number is not None}
        first_takes: dict[str, tuple[Hashable, ...]] = {
            agent: (checkpoint,) for agent, checkpoint in checkpoints.items()
        }
        if rows == "hosts":
            first_takes = dict.fromkeys(self._rolled_back_hosts(checkpoints), tuple(checkpoints.values()))
        for row, takes in first_takes.items():
            lives[row] = f"{row}#{life}"
            yield ClockStep(lives[row], "", None, takes, is_counted=False)

    def _rolled_back_hosts(self, back: Container[str]) -> list[str]:
        """Return the hosts whose agents are all rolled back. The remaining hosts keep their past."""
        goes_on = {home for agent, home in self.homes.items() if agent not in back}
        return [HOST_PREFIX + host for host in self.hosts if host not in goes_on]

    # ---- texts ------------------------------------------------------------------------------------------------------

    def description_of(self, position: int) -> str:
        """Describe the event at this position."""
        traced = self.events[position]
        event = traced.event
        match event:
            case CheckpointTaken():
                epochs = ", ".join([f"epoch {epoch}" for epoch in traced.epochs])
                return f"{event.agent} takes checkpoint {event.number} ({epochs or event.kind})"
            case MessageSent():
                return f"{event.agent} sends {message_name(event.message)} to {event.to}"
            case MessageReceived():
                sender = self.sender_of(event) or self._sent_by(position)
                return f"{event.agent} receives {message_name(event.message)}{f' of {sender}' if sender else ''}"
            case TracedMarkerSend():
                return f"host {event.host} sends the marker of epoch {event.epoch} to host {event.to}"
            case MarkerCame():
                return f"host {event.host} receives the marker of epoch {event.epoch} from host {event.sender}"
            case Recovery():
                rolled_back = sum(number is not None for number in event.line.values())
                return f"recovery{f', plan {traced.plan}' if traced.plan else ''}: {rolled_back:,} agents go back"
        assert_never(event)

    def _sent_by(self, position: int) -> str:
        partner = self._partner[position]
        event = self.events[partner].event if partner >= 0 else None
        return event.agent if isinstance(event, MessageSent) else ""

    def when(self, position: int) -> str:
        """Return the event's time of day in UTC, or its position if the time is unknown."""
        time_ns = self.events[position].time_ns
        return time_of_day(time_ns) if time_ns else f"event {position:,}"


def time_of_day(time_ns: int, digits: int = 6) -> str:
    """Format a time as a UTC time of day such as `12:00:01.234567`."""
    return (
        datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%H:%M:%S")
        + f".{time_ns % 1_000_000_000:09d}"[: digits + 1]
    )


def message_name(message: str) -> str:
    """Replace a host-assigned name with a readable one such as `message 17`. Return other names unchanged."""
    match = _NUMBERED.fullmatch(message)
    return f"message {match[1]}" if match is not None else message


def partners(events: Sequence[TracedEvent]) -> list[int]:
    """Return, for each position, the position of the matching send or receive event, or -1 if there is none.

    If a message name was reused, it refers to the latest send.
    """
    partner_of = [-1] * len(events)
    sent: dict[str, int] = {}
    for position, traced in enumerate(events):
        event = traced.event
        if isinstance(event, MessageSent | TracedMarkerSend):
            sent[event.message] = position
        elif isinstance(event, MessageReceived | MarkerCame) and event.message in sent:
            partner_of[position] = sent[event.message]
            partner_of[sent[event.message]] = position
    return partner_of


# -- cuts ---------------------------------------------------------------------------------------------------------------

Records = dict[int, dict[str, tuple[int, int]]]
"""For each epoch and agent, the number and position of the agent's record."""


def _past_of(event_log: EventLog) -> PastEvents:
    past = PastEvents(event_log.when)
    records: Records = {}
    extents: dict[str, tuple[int, int]] = {}
    checkpointed: set[str] = set()
    for position, traced in enumerate(event_log.events):
        event = traced.event
        if isinstance(event, Recovery):
            _add_cuts(past, records, extents)
            past.add(event if event_log.is_whole else _back(event, checkpointed))
        elif isinstance(event, TracedMarkerSend | MarkerCame):
            past.skip_position()
        else:
            past.add(event)
            extents[event.agent] = (extents.get(event.agent, (position, 0))[0], position)
            if isinstance(event, CheckpointTaken):
                checkpointed.add(event.agent)
                for epoch in traced.epochs:
                    records.setdefault(epoch, {})[event.agent] = (event.number, position)
    _add_cuts(past, records, extents)
    return past


def _back(recovery: Recovery, taken: Container[str]) -> Recovery:
    """Adapt a recovery to a trace that does not begin with the fleet's first event.

    If an agent's checkpoint is not in the trace, the agent is rolled back to the beginning of the trace.
    """
    return Recovery({a: 0 if number is not None and a not in taken else number for a, number in recovery.line.items()})


def _add_cuts(past: PastEvents, records: Records, seen: Mapping[str, tuple[int, int]]) -> None:
    """Add a cut for each epoch in which all agents have taken a checkpoint. `seen` contains the positions of the first and last event of
    each agent.

    An agent without events after the last checkpoint of an epoch may have left before the epoch. The newest epoch may still be incomplete.
    """
    for epoch, epoch_records in sorted(records.items()):
        end = max(position for _, position in epoch_records.values())
        is_newest = epoch == max(records)
        if all(
            agent in epoch_records for agent, (first, last) in seen.items() if first < end and (last > end or is_newest)
        ):
            past.add_cut(f"epoch {epoch}", {agent: number for agent, (number, _) in epoch_records.items()})
    records.clear()


# -- diagram -----------------------------------------------------------------------------------------------------------


STEP_MIN = 9
"""Smallest distance in pixels between two events at which viewers can distinguish and click their dots."""

MILLISECONDS_FROM_NS = 50_000_000
"""Shortest duration of a window, in nanoseconds, whose axis is in milliseconds. In a shorter window, several ticks would show the same
number."""

Href = Callable[[int], str]
"""Function that returns the address that a click on the event at a position opens."""


def draw_window(
    event_log: EventLog, window: Window, chosen: ChosenEvent | None = None, *, href: Href | None = None
) -> str:
    """Return the picture as the text of an SVG file.

    If `href` is given, the picture is drawn for a page: events are links, and a script keeps the row names visible.
    """
    scene = scene_of(event_log, window, chosen, href=href)
    is_part = href is not None
    return draw(scene, step_min=STEP_MIN, is_part=is_part, is_live=is_part)


def scene_of(
    event_log: EventLog, window: Window, chosen: ChosenEvent | None = None, *, href: Href | None = None
) -> Scene:
    """Return the scene for this window. If `chosen` is given, mark the events in its past."""
    return _Maker(event_log, window, chosen, href or _nowhere).scene()


def _nowhere(_position: int) -> str:
    return ""


class _Maker:
    """Builder of the scene of one picture. The x coordinates in the scene are columns, and `shown` contains the position of the event in
    each column."""

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

    def _column(self, position: float) -> Position:
        """Return the column for a position.

        A hidden event is placed between the columns of the neighbouring shown events. An event outside the window is placed beyond the
        edges.
        """
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
        """Return the row of an agent, or "" if the agent has no row."""
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
            description = f"{self._event_log.description_of(position)}, {self._event_log.when(position)}"
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
        return (self._event_log.description_of(position), "the last of this host's agents", *mark.words[1:])

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
            # Keep only the receives inside the window, because others would be drawn as a stroke along the edge.
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
        """Yield an arrow for each marker that was sent or received inside the window."""
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
        self, message: str, sender: str, receiver: str, sent: Position | None, came: tuple[Position, ...], epoch: int
    ) -> Iterator[Arrow]:
        start, end = HOST_PREFIX + sender if sent is not None else "", HOST_PREFIX + receiver
        if end in self._lanes and (not start or start in self._lanes):
            yield Arrow(message, start, end, sent, came, "marker", (f"the marker of epoch {epoch}",))

    def _front(self, front: Front) -> Front | None:
        """Convert the positions of a cut or recovery line to columns. On a host's row, the line passes through the last checkpoint of the
        host's agents."""
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
                column, description = self._column(position), self._event_log.description_of(position)
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

        def ticks(least: float) -> Iterator[tuple[Position, str]]:
            step = round_step(least)
            for column in range(0, len(shown), step):
                time_ns = events[shown[column]].time_ns
                yield column, time_of_day(time_ns, digits) if time_ns else f"{shown[column]:,}"

        return ticks
