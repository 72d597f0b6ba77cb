"""Draw the story of a run (`spacetime`) as the text of an SVG file.

Above, the strip of hosts, epochs and faults; below, a lane for each agent. Every event has a column of its own, and so has
every begin and end of a host, an epoch or a fault: time is written on the axis and is not linear, so that a burst of
messages can be read and a pause of seconds takes no room. Arrows always lead to the right.

Nothing is told by colour alone: messages in transit are thick, orphans thick and broken, undone ones dotted; an undone
stretch of a lane is shaded; cuts are full lines, recovery lines broken ones. What stands for a part of the run bears
`data-*` attributes, and nearly all of it a tooltip. There is no script. The same run gives the same bytes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from snapline.pictures.look import arrow, data, head, legend, px, shape, shortened, text, title
from snapline.recovery.trace import Recovery
from snapline.sim.report.spacetime import ARROW_STATES, EVENTS_MAX, LANES_MAX, Arrow, Cut, Mark, Story, tell
from snapline.sim.report.strip import LANE_HEIGHT, Strip, draw_strip, strip_legend, strip_of
from snapline.sim.report.strip import STYLE as STRIP_STYLE
from snapline.sim.report.words import count, seconds
from snapline.sim.result import Result
from snapline.sim.world.recording import Recording

WIDTH = 1160
"""In pixels; wider where columns have their least width."""

STEP_MIN = 3
"""Pixels between columns; a page that holds the picture scrolls."""

MARGIN = 40
TOP = 52
TICK_MIN = 96
"""Pixels between the times of the axis: room for `1.234567 s`."""

SCREEN = 1120
"""Pixels of a legend. In a wide picture names of lanes are repeated in about this distance: the first are far away."""

STYLE = (
    STRIP_STYLE
    + """.snapline-spacetime .message { fill: none; }
.snapline-spacetime .message.undone { fill: none; stroke: var(--faint); stroke-dasharray: 2 3; }
.snapline-spacetime .head-undone { fill: var(--faint); }
.snapline-spacetime rect.undone { fill: var(--faint); fill-opacity: .25; }
.snapline-spacetime .recoveryline { stroke: var(--line); stroke-width: 2.5; stroke-dasharray: 8 4; fill: none; }
.snapline-spacetime .checkpoint.undone { fill: var(--faint); stroke: var(--paper); }
.snapline-spacetime .again { fill: var(--faint); font-size: 11px; paint-order: stroke; stroke: var(--paper);
 stroke-width: 3; }
.snapline-spacetime .cutname { font-size: 11px; fill: var(--cut); }
"""
)


def draw_run(
    recording: Recording,
    result: Result,
    *,
    events_max: int = EVENTS_MAX,
    agents_max: int = LANES_MAX,
    is_read_from_end: bool = False,
) -> str:
    """The space-time diagram of a run as the text of an SVG file.

    Args:
        recording: what happened.
        result: of the same run; for violations and faults.
        events_max: how many events to show, around the first violation or up to the end.
        agents_max: how many agents to show.
        is_read_from_end: a wide picture is first seen at its right end, so the legend stands there.
    """
    story = tell(recording, result, events_max=events_max, agents_max=agents_max)
    columns = _Columns(recording, result, story)
    plot = _Plot(recording, result, story, columns)
    notes = [*story.notes, *plot.strip.notes]
    entries = [*strip_legend(plot.strip), *_legend_entries(story, result)]
    left = max(plot.left, round(plot.right) - SCREEN) if is_read_from_end else plot.left
    rows, height = legend(
        entries, left=left, right=min(left + SCREEN, round(plot.right)), top=plot.bottom + 46, notes=notes
    )
    opening = head(
        heading=f"{result.name}, seed {result.seed}: what happened",
        description=_description(story, notes),
        width=round(plot.right) + MARGIN,
        height=height,
        states=ARROW_STATES,
        style=STYLE,
        values={"picture": "spacetime", "first": story.first, "last": story.last, "events": len(recording.events)},
    )
    strip = draw_strip(plot.strip, plot.x_of_time, left=plot.left, right=plot.right, top=TOP, bottom=plot.bottom)
    parts: Iterable[Iterable[str]] = (
        opening,
        _undone(story, plot),
        strip,
        _axis(plot),
        _lanes(recording, plot),
        (_arrow(one, recording, plot) for one in story.arrows),
        (line for cut in story.cuts for line in _cut(cut, plot)),
        (_mark(mark, recording, plot) for mark in story.marks),
        _violation(result, plot),
        _names(plot),
        rows,
        ["</svg>"],
    )
    return "\n".join(line for part in parts for line in part) + "\n"


class _Columns:
    """Which column a position or a time has.

    Attributes:
        times: of the window's events, not falling.
        bounds: other times in the window that have a column, ascending, each once.
    """

    def __init__(self, recording: Recording, result: Result, story: Story) -> None:
        self._first = story.first
        self.times: list[int] = []
        for timed in recording.events[story.first : story.last + 1]:
            self.times.append(max(timed.t_ns, self.times[-1] if self.times else 0))
        self.start_ns, self.end_ns = _window_times(recording, result, self.times, story)
        found = [time_ns for time_ns in _bounds(recording, result) if self.start_ns <= time_ns <= self.end_ns]
        self.bounds = sorted(dict.fromkeys([self.start_ns, *found, self.end_ns]))

    @property
    def count(self) -> int:
        return len(self.times) + len(self.bounds)

    def of_time(self, time_ns: int) -> int:
        """A time stands before all that happens at it."""
        return bisect_left(self.times, time_ns) + bisect_left(self.bounds, time_ns)

    def of_position(self, position: int) -> int:
        """Positions outside the window are far outside."""
        index = position - self._first
        if index < 0:
            return -1
        if index >= len(self.times):
            return self.count + 1
        return index + bisect_right(self.bounds, self.times[index])


def _window_times(recording: Recording, result: Result, times: list[int], story: Story) -> tuple[int, int]:
    """What the window spans in time: up to the edges of the run, where it reaches them."""
    start = 0 if story.first == 0 else times[0]
    end = times[-1] if times else 0
    if story.last == len(recording.events) - 1:
        end = max(end, result.virtual_ns, *(violation.t_ns for violation in result.violations[:1]), 0)
    return start, end


def _bounds(recording: Recording, result: Result) -> Iterator[int]:
    for host in recording.hosts:
        yield from (host.from_ns, host.until_ns)
    for epoch in recording.epochs.values():
        yield from (epoch.begun_ns, epoch.ended_ns)
    for fault in result.faults:
        yield from (fault.at_ns, fault.until_ns)
    for violation in result.violations[:1]:
        yield violation.t_ns


class _Plot:
    """Where things lie, in pixels. `spacing`: of the agents' lanes, which begin at `lanes_top`."""

    def __init__(self, recording: Recording, result: Result, story: Story, columns: _Columns) -> None:
        longest = max((len(shortened(agent)) for agent in story.agents), default=0)
        self.left = max(96, 32 + 7 * longest)
        self.columns = columns
        self.step = max(STEP_MIN, (WIDTH - MARGIN - self.left) / (columns.count + 1))
        self.right = self.left + self.step * (columns.count + 1)
        self.window = (columns.start_ns, columns.end_ns)
        self.strip: Strip = strip_of(recording, result.faults, self.x_of_time, window=self.window)
        self.lanes_top = TOP + LANE_HEIGHT * len(self.strip.lanes) + 16
        # Few agents get air; sixty still fit on a page.
        self.spacing = max(14, min(48, 640 // max(len(story.agents), 1)))
        self.row = {agent: index for index, agent in enumerate(story.agents)}
        self.bottom = self.lanes_top + self.spacing * max(len(story.agents), 1)

    def x_of_time(self, time_ns: int) -> float:
        return min(self.left + self.step * (self.columns.of_time(time_ns) + 1), self.right)

    def x(self, position: int) -> float:
        """Outside of the plot for what lies outside of the window."""
        return self.left + self.step * (self.columns.of_position(position) + 1)

    def y(self, agent: str) -> float:
        return self.lanes_top + self.spacing * (self.row[agent] + 0.5)

    def clamp(self, x: float) -> float:
        return min(max(x, self.left), self.right)


def _description(story: Story, notes: list[str]) -> str:
    """For who does not see the picture."""
    states: list[str] = [arrow.state for arrow in story.arrows]
    parts = [count(len(story.agents), "agent"), count(len(story.marks), "checkpoint"), count(len(states), "message")]
    parts += [f"{states.count(state)} {words}" for state, words in (("in-transit", "in transit"), ("orphan", "orphan"))]
    kinds = [cut.kind for cut in story.cuts]
    parts += [count(kinds.count("cut"), "complete cut"), count(kinds.count("line"), "recovery line")]
    return f"{', '.join(parts)}. {' '.join(notes)}".strip()


def _axis(plot: _Plot) -> Iterator[str]:
    """The time at columns a hand's breadth apart; two columns of one time get one tick."""
    written = float(plot.left - TICK_MIN)
    times = sorted(dict.fromkeys([*plot.columns.bounds, *plot.columns.times]))
    for time_ns in times:
        x = plot.x_of_time(time_ns)
        if x - written >= TICK_MIN and x <= plot.right:
            written = x
            yield f'<path class="tick" d="M{px(x)} {plot.lanes_top}V{plot.bottom + 4}"/>'
            yield f'<text class="faint" x="{px(x)}" y="{plot.bottom + 18}" text-anchor="middle">{seconds(time_ns)}</text>'


def _undone(story: Story, plot: _Plot) -> Iterator[str]:
    for part in story.undone:
        left, right = plot.clamp(plot.x(part.start)), plot.clamp(plot.x(part.end))
        if left < right:
            top = plot.y(part.agent) - plot.spacing / 2
            yield (
                f'<rect class="undone" x="{px(left)}" y="{px(top)}" width="{px(right - left)}" '
                f'height="{plot.spacing}"{data(agent=part.agent)}>{title(f"{part.agent}: undone by a recovery")}</rect>'
            )


def _lanes(recording: Recording, plot: _Plot) -> Iterator[str]:
    """A lane is broken from the first end of the agent's host until somebody can have it again.

    Where an agent lives later the recording does not say.
    """
    down = _first_ends(recording)
    for agent in plot.row:
        y, left, right = px(plot.y(agent)), px(plot.left), px(plot.right)
        ended_ns, back_ns = down.get(agent, (plot.window[1], plot.window[1]))
        start, end = plot.clamp(plot.x_of_time(ended_ns)), plot.clamp(plot.x_of_time(back_ns))
        if ended_ns >= plot.window[1] or start >= end:
            yield f'<path class="line" d="M{left} {y}H{right}"{data(agent=agent)}/>'
            continue
        yield f'<path class="line" d="M{left} {y}H{px(start)}M{px(end)} {y}H{right}"{data(agent=agent)}/>'
        words = title(f"{agent}: its host {recording.placed[agent]} is down")
        yield f'<path class="down" d="M{px(start)} {y}H{px(end)}"{data(agent=agent)}>{words}</path>'


def _first_ends(recording: Recording) -> dict[str, tuple[int, int]]:
    """Agent → when the host it started on first ended, and when the agent next did anything, or the host came back."""
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


def _arrow(one: Arrow, recording: Recording, plot: _Plot) -> str:
    path, is_end_kept = _path(one, plot)
    # An arrow that goes on outside the window has no head.
    tip = f' marker-end="url(#snapline-head-{one.state})"' if is_end_kept else ""
    times = [seconds(recording.events[position].t_ns) for position in one.received]
    sent = "never sent" if one.sent is None else f"sent {seconds(recording.events[one.sent].t_ns)}"
    came = f"received {', again '.join(times)}" if times else "never received"
    tooltip = title(f"{one.message}: {one.sender or 'nobody'} → {one.receiver}", one.words, f"{sent}, {came}")
    return f'<path class="message {one.state}" d="{path}"{tip}{data(message=one.message, state=one.state)}>{tooltip}</path>'


def _path(one: Arrow, plot: _Plot) -> tuple[str, bool]:
    """All ends of an arrow as one path; its head is at the last one."""
    if one.sent is None:
        start = (plot.x(one.received[0]) - 18, plot.y(one.receiver) - plot.spacing / 2)
    else:
        start = (plot.x(one.sent), plot.y(one.sender))
    bend = plot.spacing * 0.6 if one.sender == one.receiver else 0.0
    ends = [(plot.x(position), plot.y(one.receiver)) for position in one.received]
    if not ends:
        # It never came: short, so that it does not look like a message to somebody in between.
        down = plot.y(one.receiver) - start[1] or -plot.spacing / 2
        reach = min(abs(down) / 2, plot.spacing * 0.6)
        ends, bend = [(start[0] + 14, start[1] + (reach if down > 0 else -reach))], 0.0
    drawn = [arrow(start, end, left=plot.left, right=plot.right, bend=bend) for end in ends]
    return "".join(path for path, _ in drawn), drawn[-1][1]


def _cut(cut: Cut, plot: _Plot) -> Iterator[str]:
    points = [(plot.clamp(plot.x(cut.positions[agent])), plot.y(agent)) for agent in plot.row if agent in cut.positions]
    if not points:
        return
    top, bottom = float(plot.lanes_top), float(plot.bottom)
    points = [(points[0][0], top), *points, (points[-1][0], bottom)]
    path = "L".join(f"{px(x)} {px(y)}" for x, y in points)
    name, words = ("cut", f"cut of {cut.label}") if cut.kind == "cut" else ("recoveryline", cut.label)
    yield f'<path class="{name}" d="M{path}"{data(kind=cut.kind, label=cut.label)}>{title(words)}</path>'
    if cut.kind == "cut":
        yield f'<text class="cutname" x="{px(points[0][0] + 3)}" y="{px(top - 3)}">{text(cut.label)}</text>'


def _mark(mark: Mark, recording: Recording, plot: _Plot) -> str:
    size = min(5.0, plot.spacing / 3)
    held = f"in the cut of {', '.join(f'epoch {epoch}' for epoch in mark.epochs)}" if mark.epochs else ""
    tooltip = title(
        f"{mark.agent} {mark.number}: {mark.kind} checkpoint",
        held,
        "undone by a recovery" if mark.is_undone else "",
        seconds(recording.events[mark.position].t_ns),
    )
    kind = f"{mark.kind} undone" if mark.is_undone else mark.kind
    path = shape(mark.kind, plot.x(mark.position), plot.y(mark.agent), size)
    values = data(agent=mark.agent, number=mark.number, kind=mark.kind, undone="true" if mark.is_undone else None)
    return f'<path class="checkpoint {kind}" d="{path}"{values}>{tooltip}</path>'


def _violation(result: Result, plot: _Plot) -> Iterator[str]:
    for violation in result.violations[:1]:
        if plot.window[0] <= violation.t_ns <= plot.window[1]:
            x = px(plot.x_of_time(violation.t_ns))
            words = title(f"{violation.guarantee}, {violation.oracle}: {violation.text}", seconds(violation.t_ns))
            yield f'<path class="violation" d="M{x} {TOP - 8}V{plot.bottom}"{data(kind="violation")}>{words}</path>'
            label = text(f"{violation.guarantee} violated")
            yield f'<text class="alarm" x="{x}" y="{TOP - 12}" text-anchor="end">{label}</text>'


def _names(plot: _Plot) -> Iterator[str]:
    """At the left, and again where the picture is wide: one screen before its right end, and so on."""
    for agent in plot.row:
        y = px(plot.y(agent) + 4)
        yield f'<text x="16" y="{y}"{data(agent=agent)}>{title(agent)}{text(shortened(agent))}</text>'
    heights = [(lane.label, TOP + LANE_HEIGHT * (index + 0.5) - 2) for index, lane in enumerate(plot.strip.lanes)]
    heights += [(agent, plot.y(agent) - 3) for agent in plot.row]
    x = plot.right - SCREEN
    while x > plot.left + SCREEN / 4:
        for words, height in heights:
            if words:
                place = f'x="{px(x)}" y="{px(height)}" aria-hidden="true"'
                yield f'<text class="again" {place}>{text(shortened(words, 20))}</text>'
        x -= SCREEN


def _legend_entries(story: Story, result: Result) -> Iterator[tuple[str, str]]:
    """Samples with words for what occurs."""
    kinds = {mark.kind for mark in story.marks}
    for kind in ("basic", "forced"):
        if kind in kinds:
            yield f'<path class="checkpoint {kind}" d="{shape(kind, 12, 0, 5)}"/>', f"{kind} checkpoint"
    states = {arrow.state for arrow in story.arrows}
    meanings = {"undone": "undone message", "ordinary": "message", "in-transit": "in transit", "orphan": "orphan"}
    for state in ARROW_STATES:
        if state in states:
            tip = f'marker-end="url(#snapline-head-{state})"'
            yield f'<path class="message {state}" d="M0 0H24" {tip}/>', meanings[state]
    lines = {cut.kind for cut in story.cuts}
    if "cut" in lines:
        yield '<path class="cut" d="M0 0H24"/>', "cut of a complete epoch"
    if "line" in lines:
        yield '<path class="recoveryline" d="M0 0H24"/>', "recovery line"
    if story.undone:
        yield '<rect class="undone" x="0" y="-6" width="24" height="12"/>', "undone by a recovery"
    if result.violations:
        yield '<path class="violation" d="M12 -8V8"/>', "violation"
