"""Draw a space-time diagram (`Scene`) as SVG text.

The picture has one lane for each agent, with places from left to right, and tracks above the lanes. No distinction depends on colour alone:

- The area to the right of the recovery line is shaded, and lanes in this area are dashed.
- Messages in transit are thick, orphan messages are thick and dashed, and undone messages are dotted.
- An initial checkpoint is an open circle, a basic checkpoint a square, and a forced checkpoint a diamond. A useless checkpoint is crossed
  out with a single line.
- Cuts are solid lines, and recovery lines are dashed lines.

The elements for parts of the scene have `data-*` attributes, and most of them have a `<title>`, which browsers show as a tooltip. The file
contains no script. Drawing the same scene always yields the same bytes.

`Plot` computes the pixel positions of all parts of a scene. The tracks above the lanes show when hosts are up or down, epochs with their
outcomes, faults, and the final phase without faults. Epochs and faults may overlap, so the bars of a track are distributed over as many
rows as necessary. Bars are placed in the order of their start, each in the first row that has enough space for the bar and its label. A
complete epoch is filled, an aborted epoch is crossed out, and an open epoch has a dashed border. A crash is drawn as a cross.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from snapline.diagrams.scene import STATES, Arrow, Band, Bar, EventDot, Front, Mark, Position, Scene, State, Track
from snapline.diagrams.style import (
    EVENT_RULES,
    Point,
    alive,
    arrow,
    clean,
    cross,
    data,
    entries_of,
    head,
    legend,
    link,
    px,
    shape,
    shortened,
    strike,
    text,
    title,
)

# -- tracks ------------------------------------------------------------------------------------------------------------


ROW_HEIGHT = 18

PACKED_MAX = 12
"""Largest number of rows of one track. A note states the number of omitted bars."""

BARS_MAX = 500
"""Largest number of bars of one track. If there are more, the bars nearest to the end of the run are drawn."""

CHARACTER_PX = 6.6
"""Approximate width in pixels of a character in an 11-pixel font. This width is an overestimate."""

X = Callable[[Position], float]


def packed(tracks: Iterable[Track], x: X) -> tuple[list[Track], list[str]]:
    """Split each track into tracks with a single row, of which only the first has the label. Also return texts that describe what is
    omitted."""
    rows: list[Track] = []
    notes: list[str] = []
    for track in tracks:
        bars, dropped = _packed(track.bars, x)
        rows += [Track("" if index else track.label, row) for index, row in enumerate(bars)]
        if dropped:
            notes.append(f"{len(track.bars) - dropped:,} of {len(track.bars):,} {track.label} drawn.")
    return rows, notes


def _packed(bars: Sequence[Bar], x: X) -> tuple[list[list[Bar]], int]:
    """Distribute the bars over rows without overlaps. Return the bars of each row, and the number of bars that did not fit into any row."""
    rows: list[list[Bar]] = [[]]
    ends = [float("-inf")]
    dropped = max(len(bars) - BARS_MAX, 0)
    for bar in sorted(bars[dropped:], key=lambda bar: bar.start):
        left = x(bar.start)
        free = next((index for index, end in enumerate(ends) if end <= left), len(ends))
        if bar.kind == "crash":
            free = 0  # the crash is at the end of its host's bar
        elif free == PACKED_MAX:
            dropped += 1
            continue
        if free == len(ends):
            rows.append([])
            ends.append(left)
        rows[free].append(bar)
        ends[free] = max(x(bar.end), left + CHARACTER_PX * len(_label(bar)) + 11 if bar.label else 0)
    return rows, dropped


def _label(bar: Bar) -> str:
    return shortened(clean(bar.label), 40)


def draw_tracks(rows: Sequence[Track], x: X, *, left: float, right: float, top: int, bottom: int) -> Iterator[str]:
    """Draw the shaded areas of faults from `top` to `bottom` in the background, and then the rows of the tracks."""
    for bar in (bar for row in rows for bar in row.bars):
        if bar.kind == "fault":
            start, width = x(bar.start), max(x(bar.end) - x(bar.start), 1)
            box = f'x="{px(start)}" y="{top}" width="{px(width)}" height="{bottom - top}"'
            yield f'<rect class="shade" {box}>{title(bar.words)}</rect>'
        elif bar.kind in ("point", "crash"):
            yield f'<path class="instant" d="M{px(x(bar.start))} {top}V{bottom}"/>'
    for index, row in enumerate(rows):
        y = top + ROW_HEIGHT * (index + 0.5)
        yield f'<text class="small" x="16" y="{px(y + 4)}">{title(row.label)}{text(shortened(row.label, 20))}</text>'
        yield f'<path class="track" d="M{px(left)} {px(y)}H{px(right)}"/>'
        for bar in row.bars:
            yield from _bar(bar, x, y, right)


def _bar(bar: Bar, x: X, y: float, right: float) -> Iterator[str]:
    start, width = x(bar.start), max(x(bar.end) - x(bar.start), 3)
    if bar.kind == "crash":
        yield f'<path class="kill" d="{cross(start, y)}">{title(bar.words)}</path>'
        return
    yield f'<g class="bar"{data(kind=bar.kind)}>{title(bar.words)}'
    yield f'<rect class="{bar.kind}" x="{px(start)}" y="{px(y - 6)}" width="{px(width)}" height="12" rx="2"/>'
    if bar.kind == "aborted":
        yield f'<path class="crossed" d="M{px(start)} {px(y + 6)}L{px(start + width)} {px(y - 6)}"/>'
    if bar.label:
        # Near the right edge, a label ends at the edge. It may cover the bar, but is not cut off.
        at = min(start + 4, right - CHARACTER_PX * len(_label(bar)))
        yield f'<text x="{px(at)}" y="{px(y + 4)}">{text(_label(bar))}</text>'
    yield "</g>"


# -- positions ---------------------------------------------------------------------------------------------------------


WIDTH = 1200
"""Width of a picture in pixels. A picture is wider only if a minimum width of a unit of places requires it."""

TOP = 76
MARGIN = 40
"""Space in pixels on the right for the signs at the ends of the lanes."""


class Plot(msgspec.Struct, frozen=True):
    """The layout of a scene in pixels.

    `tracks` are packed, so each of them has a single row. `notes` describe what is omitted. `step` is the width of one unit of places.
    `top`, `bottom` and `spacing` are the vertical coordinates of the lanes and their distance.
    """

    first: Position
    left: int
    right: float
    top: int
    step: float
    spacing: int
    row: dict[str, int]
    tracks: list[Track]
    notes: list[str]

    @staticmethod
    def of(scene: Scene, *, step_min: float = 0) -> "Plot":
        """Compute the layout of a scene.

        The width is `WIDTH`, or more if one unit of places would otherwise be narrower than `step_min`.
        """
        longest = max((len(shortened(agent)) for agent in scene.agents), default=0)
        left = max(32 + 7 * longest, 96 if scene.tracks else 0)
        span = max(scene.last - scene.first, 1e-9)
        step = max(step_min, (WIDTH - MARGIN - left) / span)
        right = left + step * span

        def x(place: Position) -> float:
            return min(max(left + step * (place - scene.first), left), right)

        tracks, notes = packed(scene.tracks, x)
        return Plot(
            first=scene.first,
            left=left,
            right=right,
            top=TOP + (ROW_HEIGHT * len(tracks) + 16 * bool(scene.agents) if tracks else 0),
            step=step,
            # Few agents get more space, and sixty agents still fit on a page.
            spacing=max(16, min(56, 640 // max(len(scene.agents), 1))),
            row={agent: index for index, agent in enumerate(scene.agents)},
            tracks=tracks,
            notes=notes,
        )

    def x(self, place: Position) -> float:
        """Return the x coordinate of a place, clamped to the edges of the plot."""
        return min(max(self.beyond(place), self.left), self.right)

    def beyond(self, place: Position) -> float:
        """Return the x coordinate of a place, without clamping."""
        return self.left + self.step * (place - self.first)

    def y(self, agent: str) -> float:
        return self.top + self.spacing * (self.row[agent] + 0.5)

    @property
    def bottom(self) -> int:
        return self.top + self.spacing * len(self.row)

    @property
    def size(self) -> float:
        """Return half the width of a checkpoint's mark in pixels."""
        return min(6.0, self.spacing / 3.2)


# -- picture -----------------------------------------------------------------------------------------------------------


SCREEN = 1120
"""Width of a legend in pixels, and the distance at which a wide picture repeats the names."""

ARROWS_MAX = 10_000
"""Largest number of arrows that are drawn, the most important ones. More would be unreadable, and the file would have several megabytes."""

NUMBERED_MAX = 150
"""Largest number of events at which checkpoints show their numbers. Messages show their ids if there are at most `LABELLED_MAX` events."""

LABELLED_MAX = 60

LABEL_MAX = 8
"""Longest message id, in characters, that is shown next to its arrow. A longer id is shown only in a tooltip."""

TICK_MIN = 96
"""Smallest distance between ticks in pixels, which leaves space for `1.234567 s`."""

BEND = 0.6
"""Height by which the arrow of an agent's message to itself bends upwards, in units of the lane spacing."""

NAMES_GAP = 12
"""Distance in pixels between the names' background and the first place."""

SPOT, SPOT_HIT = 2.5, 9
"""Radius of an event's dot and radius of the dot's clickable area, in pixels."""


def draw(
    scene: Scene,
    plot: Plot | None = None,
    *,
    step_min: float = 0,
    is_read_from_end: bool = False,
    is_live: bool = False,
    is_part: bool = False,
) -> str:
    """Draw `scene` and return the SVG text.

    Args:
        plot: layout of the scene. If `plot` is None, the layout is computed.
        step_min: smallest width, in pixels, of one unit of places.
        is_read_from_end: whether a page initially shows the right end of a wide picture. The legend is then placed there.
        is_live: whether a script keeps the names and the legend visible while scrolling.
        is_part: whether the picture is part of a page that contains the style rules (`style`). The picture then has neither its own style
            nor its own namespace, and its parts may be links.
    """
    plot = plot or Plot.of(scene, step_min=step_min)
    candidates = telling(scene)
    arrows = candidates[-ARROWS_MAX:]
    notes = [*scene.notes, *plot.notes]
    if len(arrows) < len(candidates):
        notes.append(f"{len(arrows):,} of {len(candidates):,} messages drawn.")
    left = max(plot.left, round(plot.right) - SCREEN) if is_read_from_end else plot.left
    right = min(left + SCREEN, round(plot.right))
    samples, height = legend(entries_of(scene, arrows), left=left, right=right, top=plot.bottom + 48, notes=notes)
    opening = head(
        heading=scene.heading,
        description=" ".join([f"{scene.words}." if scene.words else "", *notes]).strip(),
        width=round(plot.right) + MARGIN,
        height=height,
        states=_heads(scene),
        values=scene.values,
        rules=EVENT_RULES if scene.spots or scene.hosts else "",
        is_part=is_part,
    )
    x_edges = {"left": plot.left, "right": plot.right}
    parts = [
        *opening,
        f'<text class="faint words" x="16" y="48">{text(scene.words)}</text>',
        *_group("bands", _bands(scene, plot)),
        *draw_tracks(plot.tracks, plot.x, **x_edges, top=TOP, bottom=plot.bottom),
        *_group("axis", _axis(scene, plot)),
        *_group("lanes", _lanes(scene, plot)),
        *_group("arrows", (_arrow(shown_arrow, plot) for shown_arrow in arrows)),
        *_group("labels", _labels(scene, arrows, plot)),
        *_group("fronts", (line for front in scene.fronts for line in _front(front, plot))),
        *(_group("spots", _spots(scene, plot)) if scene.spots else ()),
        *_group("marks", _marks(scene, plot)),
        *_group("signs", _signs(scene, plot)),
        *_group("names", _names(scene, plot, is_live=is_live)),
        *([] if is_live else _names_again(plot)),
        *samples,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _heads(scene: Scene) -> Sequence[State]:
    """Return the message states for which the scene may need arrow heads."""
    has_markers = any(message.state == "marker" for message in scene.arrows)
    return [state for state in STATES if state != "marker" or has_markers] if scene.agents else ()


def telling(scene: Scene) -> list[Arrow]:
    """Return the arrows that lie at least partly between the edges, from the least to the most important. Only the last `ARROWS_MAX` arrows
    are drawn."""
    shown = [message for message in scene.arrows if scene.shows(*_reach(message))]
    return sorted(shown, key=lambda message: STATES.index(message.state))


def _reach(one: Arrow) -> tuple[Position, Position]:
    """Return the places of the first and the last event of a message."""
    ends = one.received if one.sent is None else (one.sent, *one.received)
    return ends[0], ends[-1]


def _events(scene: Scene) -> int:
    """Return the number of events in the picture, which determines whether there is enough space for labels."""
    ends = [end for message in scene.arrows for end in (*_reach(message)[:1], *message.received)]
    return sum(scene.shows(end, end) for end in ends) + len(scene.marks)


def _group(name: str, rows: Iterator[str]) -> Iterator[str]:
    yield f'<g class="{name}">'
    yield from filter(None, rows)
    yield "</g>"


# -- behind the lanes ---------------------------------------------------------------------------------------------------


def _bands(scene: Scene, plot: Plot) -> Iterator[str]:
    for band in scene.bands:
        if band.kind == "down":
            continue
        left, right = plot.x(band.start), plot.x(band.end)
        if left == right:
            continue
        top, height = plot.top, plot.bottom - plot.top
        if band.agent is not None:
            top, height = round(plot.y(band.agent) - plot.spacing / 2), plot.spacing
        box = f'x="{px(left)}" y="{top}" width="{px(max(right - left, 1))}" height="{height}"'
        tooltip = title(band.agent or "", band.label or band.kind)
        yield f'<rect class="band {band.kind}" {box}{data(kind=band.kind, agent=band.agent)}>{tooltip}</rect>'
        if band.label and band.agent is None:
            yield f'<text x="{px(left + 4)}" y="{plot.top - 4}">{text(band.label)}</text>'


def _axis(scene: Scene, plot: Plot) -> Iterator[str]:
    for place, words in scene.ticks(TICK_MIN / plot.step):
        if scene.first <= place <= scene.last:
            x = plot.x(place)
            yield f'<path class="tick" d="M{px(x)} {plot.top}V{plot.bottom + 4}"/>'
            # A tick's text must not cover the names at the left edge.
            middle = max(x, plot.left - 2 * NAMES_GAP + 4 * len(words))
            yield f'<text class="faint" x="{px(middle)}" y="{plot.bottom + 18}" text-anchor="middle">{words}</text>'


def _lanes(scene: Scene, plot: Plot) -> Iterator[str]:
    broken: dict[str | None, list[Band]] = {}
    for band in scene.bands:
        if band.kind != "recovery":
            broken.setdefault(band.agent, []).append(band)
    for agent in scene.agents:
        reached = float(plot.left)
        for band in sorted(broken.get(agent, ()), key=lambda band: band.start):
            start, end = max(plot.x(band.start), reached), max(plot.x(band.end), reached)
            yield _stretch("line", agent, reached, start, plot)
            yield _stretch("down" if band.kind == "down" else "past", agent, start, end, plot, band.label)
            reached = end
        yield _stretch("line", agent, reached, plot.right, plot)


def _stretch(kind: str, agent: str, start: float, end: float, plot: Plot, words: str = "") -> str:
    if start == end:
        return ""
    tooltip = title(agent, words) if words else ""
    return f'<path class="{kind}" d="M{px(start)} {px(plot.y(agent))}H{px(end)}"{data(agent=agent)}>{tooltip}</path>'


# -- messages -----------------------------------------------------------------------------------------------------------


def _route(one: Arrow, plot: Plot) -> tuple[Point, list[Point]]:
    """Return the starting point of an arrow and the points at which it ends, which may lie outside the edges."""
    y = plot.y(one.receiver)
    ends = [(plot.beyond(place), y) for place in one.received]
    if one.sent is None:
        return (ends[0][0] - 18, y - plot.spacing / 2), ends
    start = (plot.beyond(one.sent), plot.y(one.sender))
    if ends:
        return start, ends
    # A message that was never received gets a short arrow, which does not look like a message to an agent in between.
    down = y - start[1] or -plot.spacing / 2
    reach = min(abs(down) / 2, plot.spacing * 0.6)
    return start, [(start[0] + 14, start[1] + (reach if down > 0 else -reach))]


def _arrow(one: Arrow, plot: Plot) -> str:
    """Draw a message and all its receives as a single path. The arrow head is at the last receive if that receive lies between the
    edges."""
    start, ends = _route(one, plot)
    bend = plot.spacing * BEND if one.sender == one.receiver and one.received else 0.0
    paths = [arrow(start, end, left=plot.left, right=plot.right, bend=bend) for end in ends]
    tip = f' marker-end="url(#snapline-head-{one.state})"' if paths[-1][1] else ""
    received = one.received[-1] if one.received else None
    values = data(
        message=one.message, sender=one.sender, receiver=one.receiver, sent=one.sent, received=received, state=one.state
    )
    tooltip = title(f"{one.message}: {one.sender or 'nobody'} → {one.receiver}", *one.words)
    return f'<path class="message {one.state}" d="{"".join(path for path, _ in paths)}"{tip}{values}>{tooltip}</path>'


def _labels(scene: Scene, arrows: Sequence[Arrow], plot: Plot) -> Iterator[str]:
    """Yield message ids next to their arrows, if there is enough space."""
    if _events(scene) > LABELLED_MAX:
        return
    for message in arrows:
        (x1, y1), ((x2, y2), *_) = _route(message, plot)
        if len(message.message) <= LABEL_MAX and x1 >= plot.left:
            share = min(0.5, 20 / max(abs(y2 - y1), 1)) if message.received else 0.5
            x, y = x1 + (x2 - x1) * share + 4, y1 + (y2 - y1) * share + (4 if y2 < y1 else 2)
            if y1 == y2:
                y -= plot.spacing * BEND / 2
            yield f'<text class="label" x="{px(x)}" y="{px(y)}">{text(message.message)}</text>'


# -- checkpoints, cuts and ends -----------------------------------------------------------------------------------------


def _front(front: Front, plot: Plot) -> Iterator[str]:
    """Yield the elements of a cut or recovery line, which passes through each agent's checkpoint from top to bottom."""
    points = [(plot.x(front.places[agent]), plot.y(agent)) for agent in plot.row if agent in front.places]
    if not points:
        return
    points = [(points[0][0], float(plot.top)), *points, (points[-1][0], float(plot.bottom))]
    path = "L".join(f"{px(x)} {px(y)}" for x, y in points)
    name = {"cut": "cut", "line": "recoveryline"}[front.kind]
    values = data(kind=front.kind, label=front.label)
    yield f'<path class="{name}" d="M{path}"{values}>{title(front.label)}</path>'
    if front.name:
        yield f'<text class="cutname" x="{px(points[0][0] + 3)}" y="{plot.top - 3}">{text(front.name)}</text>'


def _marks(scene: Scene, plot: Plot) -> Iterator[str]:
    has_room = plot.spacing >= 28 and _events(scene) <= NUMBERED_MAX
    last_numbered: dict[str, float] = {}
    for mark in scene.marks:
        if not scene.shows(mark.place, mark.place):
            continue
        x, y = plot.x(mark.place), plot.y(mark.agent)
        yield _mark(mark, x, y, plot.size)
        if mark.is_useless:
            yield f'<path class="strike" d="{strike(x, y, plot.size)}"/>'
        if has_room and mark.number is not None and x - last_numbered.get(mark.agent, -99) >= 14:
            last_numbered[mark.agent] = x
            position = f'x="{px(x)}" y="{px(y - plot.size - 5)}" text-anchor="middle"'
            yield f'<text class="number" {position}>{mark.number}</text>'


def _spots(scene: Scene, plot: Plot) -> Iterator[str]:
    """Yield the dots of the events. Each dot has a clickable area large enough for touch input."""
    for spot in scene.spots:
        if scene.shows(spot.place, spot.place):
            yield _spot(spot, px(plot.x(spot.place)), px(plot.y(spot.agent)))


def _spot(spot: EventDot, x: str, y: str) -> str:
    kind = "spot chosen" if spot.is_chosen else "spot past" if spot.is_past else "spot"
    ground = f'<circle class="hit" cx="{x}" cy="{y}" r="{SPOT_HIT}"/>' if spot.href else ""
    ring = f'<circle class="ring" cx="{x}" cy="{y}" r="8"/>' if spot.is_chosen else ""
    values = data(event=spot.event, agent=spot.agent)
    dot = f'<circle class="{kind}" cx="{x}" cy="{y}" r="{SPOT}"{values}>{title(spot.words)}</circle>'
    return link(f"{ground}{ring}{dot}", spot.href, spot.words)


def _mark(mark: Mark, x: float, y: float, size: float) -> str:
    flags = {
        "line": mark.is_on_line,
        "undone": mark.is_undone,
        "useless": mark.is_useless,
        "obsolete": mark.is_obsolete,
    }
    meanings = ("on the line", "undone", "useless: on a Z-cycle", "obsolete: no later line contains it")
    values = data(kind=mark.kind, agent=mark.agent, number=mark.number, position=mark.place)
    values += data(**{name: "true" for name, holds in flags.items() if holds})
    number = "" if mark.number is None else f" {mark.number}"
    states = [words for words, holds in zip(meanings, flags.values(), strict=True) if holds]
    tooltip = title(f"{mark.agent}{number}: {mark.kind} checkpoint", *states, *mark.words)
    kind = f"{mark.kind} undone" if mark.is_undone else mark.kind
    element = f'<path class="checkpoint {kind}" d="{shape(mark.kind, x, y, size)}"{values}>{tooltip}</path>'
    return link(element, mark.href, f"{mark.agent}{number}: {mark.kind} checkpoint")


def _signs(scene: Scene, plot: Plot) -> Iterator[str]:
    for sign in scene.signs:
        if scene.shows(sign.place, sign.place):
            path = {"kill": cross, "alive": alive}[sign.kind](plot.x(sign.place), plot.y(sign.agent))
            values = data(agent=sign.agent, end=sign.kind)
            yield f'<path class="{sign.kind}" d="{path}"{values}>{title(f"{sign.agent} {sign.words}")}</path>'
    for alarm in scene.alarms:
        if scene.shows(alarm.place, alarm.place):
            x = px(plot.x(alarm.place))
            values = data(kind="violation")
            yield f'<path class="violation" d="M{x} {TOP - 8}V{plot.bottom}"{values}>{title(alarm.words)}</path>'
            yield f'<text class="alarm" x="{x}" y="{TOP - 12}" text-anchor="end">{text(alarm.label)}</text>'


def _names(scene: Scene, plot: Plot, *, is_live: bool) -> Iterator[str]:
    """Yield the names of the lanes. If the names stay in place while the picture scrolls, they get a background."""
    if is_live:
        size = f'width="{plot.left - NAMES_GAP}" height="{plot.bottom - plot.top + 24}"'
        yield f'<rect x="0" y="{plot.top}" {size} class="paper"/>'
    for agent in scene.agents:
        position = f'x="16" y="{px(plot.y(agent) + 4)}"'
        kind = "agent host" if agent in scene.hosts else "agent"
        yield f'<text class="{kind}" {position}{data(agent=agent)}>{title(agent)}{text(shortened(agent))}</text>'
    yield f'<text class="faint" x="16" y="{plot.bottom + 18}">{text(scene.axis)}</text>'


def _names_again(plot: Plot) -> Iterator[str]:
    """Repeat the names of a wide picture once per screen width, counted from the right edge."""
    heights = [(row.label, TOP + ROW_HEIGHT * (index + 0.5) - 2) for index, row in enumerate(plot.tracks)]
    heights += [(agent, plot.y(agent) - 3) for agent in plot.row]
    x = plot.right - SCREEN
    while x > plot.left + SCREEN / 4:
        for name, height in heights:
            if name:
                position = f'x="{px(x)}" y="{px(height)}" aria-hidden="true"'
                yield f'<text class="again" {position}>{text(shortened(name, 20))}</text>'
        x -= SCREEN
