"""Draws two diagrams of a run: a space-time diagram of some of its events, and a timeline of the whole run.

*Space-time diagram* (`draw_run`). The diagram shows a window of events around the first violation. Every event has its own column. So do
the start and the end of every host's run, epoch and fault. The time axis is not linear, so a burst of messages is readable and a pause of
several seconds takes no space.

*Timeline* (`draw_timeline`). The timeline shows hosts, epochs, faults, and the period after all faults are healed. Its time axis is
linear in virtual time.

In both diagrams, *tracks* above the lanes show when hosts were up or down, epochs with their outcomes, and faults. A function named `place`
converts times to positions in the diagram.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from snapline.diagrams.event_history import INITIAL, PastEvents
from snapline.diagrams.scene import Alarm, Arrow, Band, Bar, BarKind, Front, Position, Scene, Track, clock
from snapline.diagrams.svg import draw
from snapline.recovery.trace import CheckpointTaken, Recovery
from snapline.sim.result import ExecutedFault, Result, count, seconds, time_span
from snapline.sim.world.recording import EpochSpan, HostSpan, Recording


class Columns:
    """Maps positions of events, and times, to columns of the diagram.

    Attributes:
        times: times of the events in the window, in ascending order. Several events may have the same time.
        window: the window's start time and end time. A window that contains the run's first or last event extends to the start or end of
            the run.
        bounds: other times in the window that have a column, in ascending order and without duplicates.
    """

    def __init__(self, recording: Recording, result: Result, first: int, last: int) -> None:
        self._first = first
        self.times: list[int] = []
        for timed in recording.events[first : last + 1]:
            self.times.append(max(timed.t_ns, self.times[-1] if self.times else 0))
        start_ns, end_ns = (self.times[0] if first else 0), (self.times[-1] if self.times else 0)
        if last == len(recording.events) - 1:
            end_ns = max(end_ns, result.virtual_ns, *(violation.t_ns for violation in result.violations[:1]))
        self.window = (start_ns, end_ns)
        times = [time_ns for time_ns in _bounds(recording, result) if start_ns <= time_ns <= end_ns]
        self.bounds = sorted(dict.fromkeys([start_ns, *times, end_ns]))

    @property
    def count(self) -> int:
        return len(self.times) + len(self.bounds)

    def of_time(self, time_ns: int) -> int:
        """Return the column for a time. This column precedes the columns of all events at the same time."""
        return bisect_left(self.times, time_ns) + bisect_left(self.bounds, time_ns)

    def of_position(self, position: Position) -> Position:
        """Return the column of the event at this position. If the position is outside the window, return a column outside the diagram."""
        index = int(position) - self._first
        if index < 0:
            return -1
        if index >= len(self.times):
            return self.count + 1
        return index + bisect_right(self.bounds, self.times[index])

    def ticks(self, least: float) -> Iterator[tuple[Position, str]]:
        """Yield each column that has a tick, with the text of its time. Ticks are at least `least` columns apart. Columns with the same
        time share one tick."""
        reached = -1 - least
        for time_ns in sorted(dict.fromkeys([*self.bounds, *self.times])):
            place = self.of_time(time_ns)
            if place - reached >= least:
                reached = place
                yield place, seconds(time_ns)


def _bounds(recording: Recording, result: Result) -> Iterator[int]:
    for host in recording.hosts:
        yield from (host.from_ns, host.until_ns)
    for epoch in recording.epochs.values():
        yield from (epoch.begun_ns, epoch.ended_ns)
    for fault in result.faults:
        yield from (fault.at_ns, fault.until_ns)
    for violation in result.violations[:1]:
        yield violation.t_ns


TRACKS_MAX = 40
"""Maximum number of host tracks. With more tracks, a report would be unreadable."""


def tracks_of(
    recording: Recording | None,
    faults: Iterable[ExecutedFault],
    place: Callable[[int], Position],
    window: tuple[int, int],
) -> tuple[list[Track], list[str]]:
    """Return the tracks for the period from `window[0]` to `window[1]`, and notes about omitted tracks."""
    end_ns = window[1]

    def bar(start_ns: int, until_ns: int, kind: BarKind, label: str, words: str) -> Iterator[Bar]:
        if start_ns <= window[1] and until_ns >= window[0]:
            yield Bar(place(start_ns), place(until_ns), kind, label, words)

    def host(span: HostSpan) -> Iterator[Bar]:
        words = f"{span.host} is up {time_span(span.from_ns, span.until_ns)}"
        yield from bar(span.from_ns, span.until_ns or max(end_ns, span.from_ns), "up", "", words)
        if span.until_ns:
            yield from bar(span.until_ns, span.until_ns, "crash", "", f"{span.host} ends at {seconds(span.until_ns)}")

    def epoch(span: EpochSpan) -> Iterator[Bar]:
        is_open = span.outcome == "open" or not span.ended_ns
        words = f"epoch {span.epoch}: {span.outcome}, {time_span(span.begun_ns, span.ended_ns)}, plan {span.plan}"
        until_ns = max(end_ns if is_open else span.ended_ns, span.begun_ns)
        yield from bar(span.begun_ns, until_ns, span.outcome, str(span.epoch), words)

    def fault(one: ExecutedFault) -> Iterator[Bar]:
        when = time_span(one.at_ns, one.until_ns) if one.until_ns else f"at {seconds(one.at_ns)}"
        kind: BarKind = "fault" if one.until_ns else "point"
        yield from bar(one.at_ns, one.until_ns or one.at_ns, kind, one.text, f"{one.text}, {when}")

    hosts: dict[str, list[Bar]] = {}
    for span in recording.hosts if recording else ():
        hosts.setdefault(span.host, []).extend(host(span))
    tracks = [Track(name, bars) for name, bars in list(hosts.items())[:TRACKS_MAX]]
    epochs = [one for span in (recording.epochs.values() if recording else ()) for one in epoch(span)]
    packed = (Track("epochs", epochs), Track("faults", [fault_bar for one in faults for fault_bar in fault(one)]))
    notes = [f"{TRACKS_MAX} of {len(hosts):,} hosts drawn."] if len(hosts) > TRACKS_MAX else []
    return [*tracks, *(track for track in packed if track.bars)], notes


def alarms_of(result: Result, place: Callable[[int], Position], window: tuple[int, int]) -> Iterator[Alarm]:
    """Yield an alarm for the first violation if it happened inside the window."""
    for one in result.violations[:1]:
        if window[0] <= one.t_ns <= window[1]:
            words = f"{one.guarantee}, {one.oracle}, at {seconds(one.t_ns)}: {one.text}"
            yield Alarm(place(one.t_ns), f"{one.guarantee} violated", words)


EVENTS_MAX = 10_000
"""Maximum number of events in a diagram. With more events, the diagram would be unreadable and its file would have many megabytes."""

LANES_MAX = 60
"""Maximum number of agents in a diagram. More agents do not fit on a page."""

CUTS_MAX = 40
"""Maximum number of complete epochs, and of recoveries, in a diagram. If there are more, only the last are drawn."""

AFTER_SHARE = 5
"""At most one fifth of the window's events come after the violation, because the causes before it matter more."""

STEP_MIN = 3
"""Minimum number of pixels between columns. The page can scroll wide diagrams."""


def draw_run(
    recording: Recording,
    result: Result,
    *,
    events_max: int = EVENTS_MAX,
    agents_max: int = LANES_MAX,
    is_read_from_end: bool = False,
) -> str:
    """Return the space-time diagram of a run as the text of an SVG file.

    Args:
        result: result of the same run, which contains the violations and faults.
        events_max: maximum number of events to show. The diagram shows the events around the first violation or, if there is none, the last
            events.
        is_read_from_end: whether readers see the right end of a wide diagram first, so that the legend is placed there.
    """
    scene = scene_of(recording, result, events_max=events_max, agents_max=agents_max)
    return draw(scene, step_min=STEP_MIN, is_read_from_end=is_read_from_end)


def scene_of(
    recording: Recording, result: Result, *, events_max: int = EVENTS_MAX, agents_max: int = LANES_MAX
) -> Scene:
    """Return a scene with at most `events_max` events. The scene shows the events around the first violation or, if there is none, the last
    events."""
    first, last = window_of(recording, result, events_max)
    past = past_events_of(recording)
    columns = Columns(recording, result, first, last)
    orphans = {orphan.message: orphan.text for orphan in recording.orphans}
    agents = _agents(recording, past, (first, last), orphans, agents_max)
    lanes = frozenset(agents)
    fronts = [front for front in past.fronts if _touches(front, lanes, first, last)]
    complete = [front for front in fronts if front.kind == "cut"]
    cuts = complete[-CUTS_MAX:]
    lines = [front for front in fronts if front.kind == "line"][-CUTS_MAX:]
    tracks, notes = tracks_of(recording, result.faults, columns.of_time, columns.window)
    marks = [mark for mark in past.marks(first, last, cuts) if mark.agent in lanes]
    arrows = [
        arrow
        for arrow in past.arrows(first, last, cuts, orphans)
        if lanes.issuperset(_ends(arrow)) and any(first <= place <= last for place in _positions(arrow))
    ]
    total, known = len(recording.events), len({*recording.agents, *past.known})
    notes_if = {
        f"Events {first:,} to {last:,} of {total:,}.": total > last - first + 1,
        f"{len(agents)} of {known:,} agents drawn.": len(agents) < known,
        "The recording was full before the run ended.": recording.is_cut,
        f"{CUTS_MAX} of {len(complete):,} cuts drawn.": len(complete) > CUTS_MAX,
    }
    at = columns.of_position
    return Scene(
        heading=f"{result.name}, seed {result.seed}: what happened",
        words=_words(agents, len(marks), arrows, len(cuts), len(lines)),
        agents=agents,
        first=-1,
        last=columns.count,
        ticks=columns.ticks,
        marks=[replace(mark, place=at(mark.place)) for mark in marks],
        arrows=[_placed(arrow, columns) for arrow in arrows],
        fronts=[_front(front, columns) for front in (*cuts, *lines)],
        bands=[
            *(replace(band, start=at(band.start), end=at(band.end)) for band in past.undone if band.agent in lanes),
            *_down(recording, columns, lanes),
        ],
        alarms=list(alarms_of(result, columns.of_time, columns.window)),
        tracks=tracks,
        notes=[*(note for note, holds in notes_if.items() if holds), *notes],
        meanings={"cut": "cut of a complete epoch", "band undone": "undone by a recovery"},
        values={"picture": "spacetime", "first": first, "last": last, "events": total},
    )


def past_events_of(recording: Recording) -> PastEvents:
    """Return an object that contains all events of the run and the cut of every complete epoch."""
    past = PastEvents(lambda position: seconds(recording.events[position].t_ns))
    complete = [span for span in recording.epochs.values() if span.outcome == "complete"]
    waiting = deque(sorted(complete, key=lambda span: span.ended_ns))
    for timed in (*recording.events, None):
        while waiting and (timed is None or waiting[0].ended_ns < timed.t_ns):
            span = waiting.popleft()
            past.add_cut(f"epoch {span.epoch}", span.cut)
        if timed is not None:
            past.add(timed.event)
    return past


def _ends(arrow: Arrow) -> set[str]:
    return {arrow.receiver} if arrow.sent is None else {arrow.sender, arrow.receiver}


def _positions(arrow: Arrow) -> tuple[Position, ...]:
    return arrow.received if arrow.sent is None else (arrow.sent, *arrow.received)


def _placed(arrow: Arrow, columns: Columns) -> Arrow:
    sent = None if arrow.sent is None else columns.of_position(arrow.sent)
    return replace(arrow, sent=sent, received=tuple(map(columns.of_position, arrow.received)))


def _front(front: Front, columns: Columns) -> Front:
    return replace(front, places={agent: columns.of_position(place) for agent, place in front.places.items()})


def window_of(recording: Recording, result: Result, events_max: int) -> tuple[int, int]:
    """Return the first and last position of the window of events to show, which is around the first violation or at the end of the run.
    Return (0, -1) if there are no events."""
    total = len(recording.events)
    around = total
    if result.violations:
        around = bisect_left(recording.events, result.violations[0].t_ns + 1, key=lambda timed: timed.t_ns)
    end = min(total, around + events_max // AFTER_SHARE)
    first = max(0, end - events_max)
    return first, min(total, first + events_max) - 1


def _touches(front: Front, lanes: frozenset[str], first: int, last: int) -> bool:
    """Return whether any part of a front (a cut or recovery line) is inside the window. A window that begins with the first event also
    includes the initial states."""
    floor = first if first else INITIAL
    return any(floor <= place <= last for agent, place in front.places.items() if agent in lanes)


def _agents(
    recording: Recording, past: PastEvents, window: tuple[int, int], orphans: Mapping[str, str], agents_max: int
) -> list[str]:
    """Return the agents to show, in the order of the recording. If there are too many agents, prefer those with orphans, and then those
    with the most events."""
    counts = dict.fromkeys([*recording.agents, *past.known], 0)
    for timed in recording.events[window[0] : window[1] + 1] if len(counts) > agents_max else ():
        event = timed.event
        if isinstance(event, Recovery):
            continue
        counts[event.agent] += 1
        if not isinstance(event, CheckpointTaken) and event.message in orphans:
            counts[event.agent] += len(recording.events)
    chosen = frozenset(sorted(counts, key=lambda agent: -counts[agent])[:agents_max])  # sorting is stable
    return [agent for agent in counts if agent in chosen]


def _words(agents: list[str], marks: int, arrows: list[Arrow], cuts: int, lines: int) -> str:
    """Return the diagram's text alternative, for screen readers."""
    states = [arrow.state for arrow in arrows]
    parts = [count(len(agents), "agent"), count(marks, "checkpoint"), count(len(states), "message")]
    parts += [f"{states.count('in-transit')} in transit", f"{states.count('orphan')} orphan"]
    return ", ".join([*parts, count(cuts, "complete cut"), count(lines, "recovery line")])


def _down(recording: Recording, columns: Columns, lanes: frozenset[str]) -> Iterator[Band]:
    """Yield, for each agent whose initial host went down, a gap in the agent's lane that lasts until the agent can run again.

    Later gaps are not shown, because the recording does not contain an agent's later hosts.
    """
    for agent, (ended_ns, back_ns) in _first_ends(recording).items():
        if agent in lanes and ended_ns < columns.window[1]:
            words = f"its host {recording.placed[agent]} is down"
            yield Band(columns.of_time(ended_ns), columns.of_time(back_ns), "down", agent, words)


def _first_ends(recording: Recording) -> dict[str, tuple[int, int]]:
    """Return, for each agent whose initial host went down, when it first went down, and when the agent next acted or the host came back,
    whichever was earlier."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for span in recording.hosts:
        spans.setdefault(span.host, []).append((span.from_ns, span.until_ns))
    ends: dict[str, tuple[int, int]] = {}
    for agent, host in recording.placed.items():
        runs = sorted(spans.get(host, []))
        if runs and runs[0][1]:
            ends[agent] = (runs[0][1], runs[1][0] if len(runs) > 1 else 1 << 62)
    for timed in reversed(recording.events) if ends else ():
        event = timed.event
        for agent in event.line if isinstance(event, Recovery) else (event.agent,):
            if agent in ends and ends[agent][0] < timed.t_ns < ends[agent][1]:
                ends[agent] = (ends[agent][0], timed.t_ns)
    return ends


def draw_timeline(result: Result, recording: Recording | None, *, heal_ns: int, within_ns: int) -> str:
    """Return the timeline of a run as the text of an SVG element.

    Args:
        result: result of the run, which contains the faults, the violations and the end of the run.
        recording: recording of the run, which contains hosts and epochs, or None if the run was not recorded.
        heal_ns: time at which all faults were healed.
        within_ns: time that the fleet may take after `heal_ns` to finish its work.
    """
    end_ns = max(_end_ns(result, recording), 1)
    tracks, notes = tracks_of(recording, result.faults, float, (0, end_ns))
    if heal_ns < end_ns:
        words = f"everything healed, {time_span(heal_ns, end_ns)}; the fleet has {seconds(within_ns)} to finish"
        tracks.append(Track("liveness", [Bar(heal_ns, end_ns, "healed", "", words)]))
    return draw(
        Scene(
            heading="Timeline",
            words=_timeline_words(result, recording),
            agents=[],
            first=0,
            last=end_ns,
            ticks=clock(0, end_ns),
            tracks=tracks,
            alarms=list(alarms_of(result, float, (0, end_ns))),
            notes=notes,
            values={"picture": "timeline", "end_ns": end_ns},
        )
    )


def _end_ns(result: Result, recording: Recording | None) -> int:
    times = [result.virtual_ns, *(violation.t_ns for violation in result.violations)]
    times += [time_ns for fault in result.faults for time_ns in (fault.at_ns, fault.until_ns)]
    if recording is not None:
        times += [span.ended_ns for span in recording.epochs.values()] + [span.until_ns for span in recording.hosts]
        times += [timed.t_ns for timed in recording.events[-1:]]
    # A fault that would end long after the run must not compress the part of the axis that shows the run.
    return min(max(times), result.virtual_ns) if result.virtual_ns else max(times)


def _timeline_words(result: Result, recording: Recording | None) -> str:
    """Return the timeline's text alternative, for screen readers."""
    parts = [count(len(result.faults), "fault")]
    if recording is not None:
        outcomes = [span.outcome for span in recording.epochs.values()]
        parts.append(f"{count(outcomes.count('complete'), 'epoch')} complete, {outcomes.count('aborted')} aborted")
        ends = sum(1 for span in recording.hosts if span.until_ns)
        parts.append(f"{count(len({span.host for span in recording.hosts}), 'host')} with {count(ends, 'end')}")
    return f"{seconds(result.virtual_ns)} of virtual time: {', '.join(parts)}"
