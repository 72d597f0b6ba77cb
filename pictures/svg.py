"""Draw an analysed trace as the text of an SVG file: what each agent did, the recovery line, and what lies past it.

One row per agent, one column per event. Nothing is told by colour alone: undone rows are shaded and their lines broken,
messages in transit are thick, orphans thick and broken, undone ones dotted; an initial checkpoint is an open circle, a
basic one a square, a forced one a diamond, and a useless one is struck
through. What stands for a part of the trace bears
`data-*` attributes (`data-state` of messages, `data-kind`, `data-undone`, `data-useless` of checkpoints …) and nearly
all of it a tooltip. There is no script. The same input gives the same bytes.
"""

from collections.abc import Iterator

import msgspec

from snapline.pictures.look import arrow, cross, data, head, legend, px, shape, shortened, text, title
from snapline.pictures.scene import ARROW_STATES, Arrow, Mark, Scene, Window
from snapline.recovery.analysis import Analysis
from snapline.recovery.trace import Trace

EVENTS_MAX = 400
"""Columns without a window: more than this are too narrow to tell apart on a screen."""

ARROWS_MAX = 10_000
"""More arrows than this are a grey wall and a file of megabytes; those in transit and the orphans are drawn first."""

NUMBERED_EVENTS_MAX = 150
"""Up to here checkpoints bear their numbers, and up to `LABELLED_EVENTS_MAX` messages their ids."""

LABELLED_EVENTS_MAX = 60

LABEL_MAX = 8
"""Characters of a message id beside its arrow; longer ones only have a tooltip."""

WIDTH = 1200
"""Of the picture in pixels; wider only where columns have a least width."""

BEND = 0.6
"""How far a message to oneself is bent upwards, in rows."""

NAMES_GAP = 12
"""Pixels between the names' paper and the first column."""

TICK_MIN = 64
"""Pixels between the numbers of the axis."""

MARGIN = 32
"""Room on the right, for the marks at the agents' ends."""

STYLE = """.snapline-spacetime .row { stroke: var(--ink); stroke-opacity: .6; }
.snapline-spacetime .row.undone { fill: none; stroke: var(--faint); stroke-dasharray: 3 4; }
.snapline-spacetime .head-undone { fill: var(--faint); }
.snapline-spacetime .arrow { fill: none; }
.snapline-spacetime .arrow.undone { fill: none; stroke: var(--faint); stroke-dasharray: 2 3; }
.snapline-spacetime .checkpoint.undone { fill: var(--faint); stroke: var(--paper); }
.snapline-spacetime .checkpoint.initial.undone { fill: var(--paper); stroke: var(--faint); }
.snapline-spacetime .strike { fill: none; stroke: var(--ink); stroke-width: 2; }
.snapline-spacetime .alive { fill: var(--record); }
.snapline-spacetime .number, .snapline-spacetime .label { font-size: 10px; paint-order: stroke; stroke: var(--paper);
 stroke-width: 3; stroke-linejoin: round; }
.snapline-spacetime .label { fill: var(--message); }
"""


def analysis_svg(trace: Trace, analysis: Analysis, *, window: tuple[int, int] | None = None) -> str:
    """The space-time diagram of an analysed trace as the text of an SVG file.

    Args:
        trace: what happened.
        analysis: of this very trace.
        window: the first position in `trace.events` to show and the one it ends before, cut to the trace; the last
            `EVENTS_MAX` events if None.

    Raises:
        MisuseError: the window holds no event of the trace.
    """
    scene = Scene(trace, analysis)
    return draw(scene, Plot.of(scene, scene.window_of(window, events_max=EVENTS_MAX)))


class Plot(msgspec.Struct, frozen=True):
    """Where things lie: agents and positions to pixels. Every number but `first` and `last` is in pixels."""

    first: int
    last: int
    left: int
    top: int
    step: float
    spacing: int
    row: dict[str, int]

    @staticmethod
    def of(scene: Scene, window: Window, *, step_min: float = 0) -> "Plot":
        """A plot `WIDTH` wide, or wider if its columns would be narrower than `step_min`."""
        longest = max((len(shortened(agent)) for agent in scene.agents), default=0)
        left = 32 + 7 * longest
        columns = window[1] - window[0] + 2
        return Plot(
            first=window[0],
            last=window[1],
            left=left,
            top=68,
            step=max(step_min, (WIDTH - MARGIN - left) / columns),
            # Few agents get air; fifty still fit on a page.
            spacing=max(16, min(64, 640 // max(len(scene.agents), 1))),
            row={agent: index for index, agent in enumerate(scene.agents)},
        )

    def x(self, position: int) -> float:
        """The first column is left free: for initial checkpoints, or for what comes from before the window."""
        return min(max(self.left + self.step * (position - self.first + 1), self.left), self.right)

    def y(self, agent: str) -> float:
        return self.top + self.spacing * (self.row[agent] + 0.5)

    @property
    def right(self) -> float:
        """Where live states stand, if the window reaches the trace's end."""
        return self.left + self.step * (self.last - self.first + 2)

    @property
    def bottom(self) -> int:
        return self.top + self.spacing * len(self.row)

    @property
    def events(self) -> int:
        return self.last - self.first + 1

    @property
    def size(self) -> float:
        """Of a checkpoint's mark, from its middle."""
        return min(6.0, self.spacing / 3.2)


def draw(scene: Scene, plot: Plot, *, is_interactive: bool = False) -> str:
    """The picture of `scene`; an interactive one has the legend of all that may come to be shown."""
    marks = list(scene.marks((plot.first, plot.last)))
    found = arrows_of(scene, plot)
    arrows = found[-ARROWS_MAX:]
    notes = [_window_words(scene, plot), "" if is_interactive else scene.line_outside((plot.first, plot.last))]
    if len(arrows) < len(found):
        notes.append(f"{len(arrows):,} of {len(found):,} messages drawn.")
    notes = [note for note in notes if note]
    entries = _legend_entries(None if is_interactive else _occurring(scene, plot, marks, arrows))
    rows, bottom = legend(entries, left=plot.left, right=WIDTH - MARGIN, top=plot.bottom + 48, notes=notes)
    opening = head(
        heading=f"Recovery line when {scene.failure()}",
        description=f"{scene.words()}. {' '.join(notes)}".strip(),
        width=round(plot.right) + MARGIN,
        height=bottom,
        states=ARROW_STATES,
        style=STYLE,
        values={"first": plot.first, "last": plot.last, "events": scene.events},
    )
    parts = [
        *opening,
        f'<text class="faint words" x="16" y="48">{text(scene.words())}</text>',
        *_group("bands", _bands(scene, plot)),
        *_group("axis", _axis(plot)),
        *_group("rows", _rows(scene, plot)),
        *_group("arrows", (_arrow(one, plot) for one in arrows)),
        *_group("labels", _labels(arrows, plot)),
        *_group("line", _line(scene, plot)),
        *_group("marks", _marks(marks, plot)),
        *_group("ends", _ends(scene, plot)),
        *_group("names", _names(scene, plot)),
        *rows,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _group(name: str, rows: Iterator[str]) -> Iterator[str]:
    yield f'<g class="{name}">'
    yield from rows
    yield "</g>"


def _window_words(scene: Scene, plot: Plot) -> str:
    """Says that there is more than the picture shows."""
    if plot.events == scene.events:
        return ""
    return f"Window: events {plot.first:,} to {plot.last:,}; the trace has {scene.events:,}, counted from 0."


def arrows_of(scene: Scene, plot: Plot) -> list[Arrow]:
    """The arrows from the least to the most telling: these lie on top, and the last `ARROWS_MAX` are drawn."""
    found = scene.arrows((plot.first, plot.last))
    found.sort(key=lambda one: ARROW_STATES.index(one.state))
    return found


def _bands(scene: Scene, plot: Plot) -> Iterator[str]:
    """The shade behind what is undone."""
    for agent in scene.rolled_back:
        left = plot.x(scene.line_position[agent])
        if left < plot.right:
            top = plot.y(agent) - plot.spacing / 2
            yield (
                f'<rect class="undone" x="{px(left)}" y="{px(top)}" width="{px(plot.right - left)}" '
                f'height="{plot.spacing}"{data(agent=agent, number=scene.line[agent])}/>'
            )


def _axis(plot: Plot) -> Iterator[str]:
    step = _tick_step(plot.step)
    for position in range(-(-plot.first // step) * step, plot.last + 1, step):
        x, number = plot.x(position), f"{position:,}"
        yield f'<path class="tick" d="M{px(x)} {plot.top}V{plot.bottom + 4}"/>'
        if x - 4 * len(number) >= plot.left - NAMES_GAP:
            yield f'<text class="faint" x="{px(x)}" y="{plot.bottom + 18}" text-anchor="middle">{number}</text>'


def _tick_step(column: float) -> int:
    """How many columns of this width lie between ticks, so that their numbers have room: 1, 2, 5, 10, 20, 50 …"""
    unit = 1
    while True:
        for step in (unit, 2 * unit, 5 * unit):
            if step * column >= TICK_MIN:
                return step
        unit *= 10


def _rows(scene: Scene, plot: Plot) -> Iterator[str]:
    """Each agent's line, broken where it is undone."""
    for agent in scene.agents:
        y, turn = px(plot.y(agent)), plot.x(scene.line_position[agent])
        if turn > plot.left:
            yield f'<path class="row" d="M{px(plot.left)} {y}H{px(turn)}"{data(agent=agent)}/>'
        if turn < plot.right:
            yield f'<path class="row undone" d="M{px(turn)} {y}H{px(plot.right)}"{data(agent=agent)}/>'


def _arrow(one: Arrow, plot: Plot) -> str:
    start, end = _ends_of(one, plot)
    bend = plot.spacing * BEND if one.sender == one.receiver else 0
    path, is_end_kept = arrow(start, end, left=plot.left, right=plot.right, bend=bend)
    # An arrow that goes on outside the window has no head.
    tip = f' marker-end="url(#snapline-head-{one.state})"' if is_end_kept else ""
    values = data(
        message=one.message,
        sender=one.sender,
        receiver=one.receiver,
        sent=one.sent,
        received=one.received,
        state=one.state,
    )
    tooltip = title(
        f"{one.message}: {one.sender} → {one.receiver}",
        {"ordinary": "", "in-transit": "in transit", "orphan": "orphan: it forced a rollback"}.get(
            one.state, one.state
        ),
        f"sent at event {one.sent}",
        "never received" if one.received is None else f"received at event {one.received}",
    )
    return f'<path class="arrow {one.state}" d="{path}"{tip}{values}>{tooltip}</path>'


def _ends_of(one: Arrow, plot: Plot) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where the arrow starts and ends, inside the window or not; one never received ends between the rows."""

    def x(position: int) -> float:
        return plot.left + plot.step * (position - plot.first + 1)

    start = (x(one.sent), plot.y(one.sender))
    if one.received is not None:
        return start, (x(one.received), plot.y(one.receiver))
    down = plot.y(one.receiver) - start[1] or -plot.spacing / 2
    # Short, so that many of them do not look like messages to somebody in between.
    reach = min(abs(down) / 2, plot.spacing * 0.6)
    return start, (start[0] + max(10.0, min(plot.step * 0.8, 24)), start[1] + (reach if down > 0 else -reach))


def _labels(arrows: list[Arrow], plot: Plot) -> Iterator[str]:
    """Ids beside the arrows, if there is room."""
    if plot.events > LABELLED_EVENTS_MAX:
        return
    for one in arrows:
        (x1, y1), (x2, y2) = _ends_of(one, plot)
        if len(one.message) <= LABEL_MAX and x1 >= plot.left:
            share = 0.5 if one.received is None else min(0.5, 20 / max(abs(y2 - y1), 1))
            x, y = x1 + (x2 - x1) * share + 4, y1 + (y2 - y1) * share + (4 if y2 < y1 else 2)
            if y1 == y2:
                y -= plot.spacing * BEND / 2
            yield f'<text class="label" x="{px(x)}" y="{px(y)}">{text(one.message)}</text>'


def _line(scene: Scene, plot: Plot) -> Iterator[str]:
    """Down through every agent's record or live state, and across between the rows: the border of what is undone."""
    if not scene.agents:
        return
    steps = [f"H{px(plot.x(scene.line_position[agent]))}v{plot.spacing}" for agent in scene.agents]
    path = f"M{steps[0][1:].partition('v')[0]} {plot.top}{''.join(steps)}"
    yield f'<path class="cut" d="{path}"{data(kind="line")}>{title("recovery line")}</path>'


def _marks(marks: list[Mark], plot: Plot) -> Iterator[str]:
    last_numbered: dict[str, float] = {}
    for mark in marks:
        x, y = plot.x(mark.position), plot.y(mark.agent)
        values = data(
            kind=mark.kind,
            agent=mark.agent,
            number=mark.number,
            position=mark.position,
            line="true" if mark.is_on_line else None,
            undone="true" if mark.is_undone else None,
            useless="true" if mark.is_useless else None,
            obsolete="true" if mark.is_obsolete else None,
        )
        tooltip = title(
            f"{mark.agent} {mark.number}: {mark.kind} checkpoint",
            "on the line" if mark.is_on_line else "",
            "undone" if mark.is_undone else "",
            "useless: on a Z-cycle" if mark.is_useless else "",
            "obsolete: no later line contains it" if mark.is_obsolete else "",
        )
        kind = f"{mark.kind} undone" if mark.is_undone else mark.kind
        yield f'<path class="checkpoint {kind}" d="{shape(mark.kind, x, y, plot.size)}"{values}>{tooltip}</path>'
        if mark.is_useless:
            yield f'<path class="strike" d="{_strike(x, y, plot.size)}"/>'
        has_room = x - last_numbered.get(mark.agent, -99) >= 14 and plot.spacing >= 28
        if has_room and plot.events <= NUMBERED_EVENTS_MAX:
            last_numbered[mark.agent] = x
            words = f'x="{px(x)}" y="{px(y - plot.size - 5)}" text-anchor="middle"'
            yield f'<text class="number" {words}>{mark.number}</text>'


def _strike(x: float, y: float, size: float) -> str:
    """A stroke through a mark; a cross would look like a failure."""
    reach = size * 1.7
    return f"M{px(x - reach)} {px(y + reach)}L{px(x + reach)} {px(y - reach)}"


def _ends(scene: Scene, plot: Plot) -> Iterator[str]:
    """Who failed, and who keeps its live state."""
    if plot.last < scene.events - 1:
        return
    for agent in scene.agents:
        if agent in scene.failed:
            path, state, words = cross(plot.right, plot.y(agent)), "kill", "fails"
        elif scene.line[agent] is None:
            path, state, words = _alive(plot.right, plot.y(agent)), "alive", "keeps its live state"
        else:
            continue
        yield f'<path class="{state}" d="{path}"{data(agent=agent, end=state)}>{title(f"{agent} {words}")}</path>'


def _alive(x: float, y: float) -> str:
    return f"M{px(x)} {px(y - 5)}l8 5l-8 5z"


def _names(scene: Scene, plot: Plot) -> Iterator[str]:
    """On paper of their own: in a page they stand still while the picture scrolls under them."""
    size = f'width="{plot.left - NAMES_GAP}" height="{plot.bottom - plot.top + 24}"'
    yield f'<rect x="0" y="{plot.top}" {size} style="fill:var(--paper)"/>'
    for agent in scene.agents:
        words = f"{title(agent)}{text(shortened(agent))}"
        yield f'<text class="agent" x="16" y="{px(plot.y(agent) + 4)}"{data(agent=agent)}>{words}</text>'
    yield f'<text class="faint" x="16" y="{plot.bottom + 18}">event</text>'


def _occurring(scene: Scene, plot: Plot, marks: list[Mark], arrows: list[Arrow]) -> set[str]:
    """What the picture holds, by the legend's names."""
    found: set[str] = {mark.kind for mark in marks} | {one.state for one in arrows} | {"line"}
    if any(mark.is_useless for mark in marks):
        found.add("useless")
    if scene.rolled_back:
        found.add("band")
    if plot.last == scene.events - 1:
        found |= {"kill"} if scene.failed else set()
        found |= {"alive"} if any(number is None for number in scene.line.values()) else set()
    return found


def _legend_entries(occurring: set[str] | None) -> Iterator[tuple[str, str]]:
    """Samples with words for what occurs; for everything if None."""

    def mark(kind: str) -> str:
        return f'<path class="checkpoint {kind}" d="{shape(kind, 12, 0, 6)}"/>'

    def message(state: str) -> str:
        return f'<path class="arrow {state}" d="M0 0H24" marker-end="url(#snapline-head-{state})"/>'

    def band(state: str) -> str:
        return f'<rect class="{state}" x="0" y="-6" width="24" height="12"/>'

    entries = (
        ("initial", mark("initial"), "initial checkpoint"),
        ("basic", mark("basic"), "basic checkpoint"),
        ("forced", mark("forced"), "forced checkpoint"),
        ("useless", f'{mark("basic")}<path class="strike" d="{_strike(12, 0, 6)}"/>', "useless (struck through)"),
        ("ordinary", message("ordinary"), "message"),
        ("in-transit", message("in-transit"), "in transit"),
        ("orphan", message("orphan"), "orphan that forced a rollback"),
        ("undone", message("undone"), "undone message"),
        ("line", '<path class="cut" d="M0 0H24"/>', "recovery line" if occurring else "line after this round"),
        ("band", band("undone"), "undone"),
        ("kill", f'<path class="kill" d="{cross(12, 0)}"/>', "fails"),
        ("alive", f'<path class="alive" d="{_alive(8, 0)}"/>', "keeps its live state"),
    )
    for name, sample, words in entries:
        if occurring is None or name in occurring:
            yield sample, words
    if occurring is None:
        yield band("undone now"), "undone in this round"
        yield '<path class="arrow orphan now" d="M0 0H24"/>', "orphan that forces the next round"
