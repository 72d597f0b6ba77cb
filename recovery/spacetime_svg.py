"""Draw a space-time diagram (`spacetime`) as the text of an SVG file.

The same diagram gives the same bytes. What stands for a part of the diagram carries `data-*` attributes, and nearly all
of it a `<title>` that browsers show as a tooltip. Colours are CSS variables (`--snapline-ink`, `--snapline-transit`,
…): they follow the reader's light or dark scheme and can be set by a page around the picture. Nothing is told by colour
alone. There is no script.
"""

import html
from collections.abc import Iterator

import msgspec

from snapline.recovery.spacetime import CheckpointKind, Diagram, Message, MessageState, message_state

MESSAGES_MAX = 10_000
"""More arrows than this are a grey wall and a file of megabytes; those that matter for the cut are drawn first."""


def draw(diagram: Diagram, *, window: tuple[int, int] | None = None, width: int = 1200) -> str:
    """The diagram as the text of an SVG file.

    Args:
        diagram: what to draw.
        window: first and last nanosecond to show; all if None. Arrows across its edges are cut off there.
        width: of the picture, in pixels; the height follows from the lines.
    """
    plot = _Plot.of(diagram, window, width)
    arrows, note = _messages(diagram, plot)
    legend, bottom = _legend(diagram, plot, note)
    rows = [*_head(diagram, plot, bottom), *_bands(diagram, plot), *_axis(plot), *_lines(diagram, plot)]
    rows += [*arrows, *_cut(diagram, plot), *_checkpoints(diagram, plot), *_kills(diagram, plot), *legend, "</svg>"]
    return "\n".join(rows) + "\n"


class _Plot(msgspec.Struct, frozen=True):
    """Where things lie: times and lines to pixels."""

    start_ns: int
    end_ns: int
    origin_ns: int
    left: int
    right: int
    top: int
    spacing: int
    row: dict[str, int]

    @staticmethod
    def of(diagram: Diagram, window: tuple[int, int] | None, width: int) -> "_Plot":
        times = diagram.times()
        start, end = window or (min(times, default=0), max(times, default=0))
        longest = max((len(line) for line in diagram.lines), default=0)
        left = 24 + 7 * min(longest, 30)
        return _Plot(
            start_ns=start,
            end_ns=max(end, start + 1),
            origin_ns=min(times, default=0),
            left=left,
            right=max(width - 24, left + 100),
            top=56,
            # Few lines get air; fifty still fit on a page.
            spacing=max(14, min(48, 640 // max(len(diagram.lines), 1))),
            row={line: index for index, line in enumerate(diagram.lines)},
        )

    def x(self, time_ns: int) -> float:
        return self.left + (self.right - self.left) * (time_ns - self.start_ns) / (self.end_ns - self.start_ns)

    def y(self, line: str) -> float:
        return self.top + self.spacing * (self.row[line] + 0.5)

    @property
    def bottom(self) -> int:
        return self.top + self.spacing * len(self.row)

    def shows(self, start_ns: int, end_ns: int) -> bool:
        return start_ns <= self.end_ns and end_ns >= self.start_ns


_STYLE = """<style>
.snapline-spacetime { --ink: var(--snapline-ink, #1f2328); --paper: var(--snapline-paper, #ffffff);
 --faint: var(--snapline-faint, #8c959f); --message: var(--snapline-message, #6e7781);
 --transit: var(--snapline-transit, #bc4c00); --orphan: var(--snapline-orphan, #cf222e);
 --cut: var(--snapline-cut, #0969da); --record: var(--snapline-record, #1a7f37); --kill: var(--snapline-kill, #cf222e);
 --recovery: var(--snapline-recovery, #ddf4ff); --undone: var(--snapline-undone, #f0e8dc);
 background: var(--paper); font: 12px system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { .snapline-spacetime { --ink: var(--snapline-ink, #e6edf3);
 --paper: var(--snapline-paper, #0d1117); --faint: var(--snapline-faint, #6e7681);
 --message: var(--snapline-message, #9198a1); --transit: var(--snapline-transit, #f0883e);
 --orphan: var(--snapline-orphan, #ff7b72); --cut: var(--snapline-cut, #58a6ff);
 --record: var(--snapline-record, #3fb950); --kill: var(--snapline-kill, #ff7b72);
 --recovery: var(--snapline-recovery, #10304f);
 --undone: var(--snapline-undone, #37301f); } }
.snapline-spacetime text { fill: var(--ink); } .snapline-spacetime .heading { font-size: 15px; font-weight: 600; }
.snapline-spacetime .faint { fill: var(--faint); }
.snapline-spacetime .line { stroke: var(--ink); }
.snapline-spacetime .down { stroke: var(--faint); stroke-dasharray: 2 4; }
.snapline-spacetime .tick { stroke: var(--faint); stroke-opacity: .35; }
.snapline-spacetime .ordinary { stroke: var(--message); stroke-opacity: .7; }
.snapline-spacetime .in-transit { stroke: var(--transit); stroke-width: 2; }
.snapline-spacetime .orphan { stroke: var(--orphan); stroke-width: 2; stroke-dasharray: 5 3; }
.snapline-spacetime .head-ordinary { fill: var(--message); }
.snapline-spacetime .head-in-transit { fill: var(--transit); }
.snapline-spacetime .head-orphan { fill: var(--orphan); }
.snapline-spacetime .cut { stroke: var(--cut); stroke-width: 2.5; fill: none; stroke-linejoin: round; }
.snapline-spacetime .checkpoint { fill: var(--record); stroke: var(--paper); }
.snapline-spacetime .checkpoint.initial { fill: var(--paper); stroke: var(--record); stroke-width: 2; }
.snapline-spacetime .kill { stroke: var(--kill); stroke-width: 3; }
.snapline-spacetime .recovery { fill: var(--recovery); } .snapline-spacetime .undone { fill: var(--undone); }
</style>"""


def _head(diagram: Diagram, plot: _Plot, height: int) -> Iterator[str]:
    width = plot.right + 24
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="snapline-spacetime" role="img" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'data-start-ns="{plot.start_ns}" data-end-ns="{plot.end_ns}">'
    )
    yield f"<title>{_text(diagram.title)}</title>"
    yield _STYLE
    yield "<defs>"
    for state in ("ordinary", "in-transit", "orphan"):
        yield (
            f'<marker id="snapline-head-{state}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path class="head-{state}" d="M0 1 8 4 0 7z"/></marker>'
        )
    yield "</defs>"
    yield f'<rect width="{width}" height="{height}" style="fill:var(--paper)"/>'
    yield f'<text class="heading" x="16" y="28">{_text(diagram.title)}</text>'


def _bands(diagram: Diagram, plot: _Plot) -> Iterator[str]:
    for band in diagram.bands:
        if not plot.shows(band.start_ns, band.end_ns):
            continue
        left, right = plot.x(max(band.start_ns, plot.start_ns)), plot.x(min(band.end_ns, plot.end_ns))
        data = _data(kind=band.kind, start_ns=band.start_ns, end_ns=band.end_ns)
        tooltip = _title(band.label or band.kind, f"{_seconds(band.start_ns, plot)} to {_seconds(band.end_ns, plot)}")
        yield (
            f'<rect class="band {band.kind}" x="{_px(left)}" y="{plot.top}" width="{_px(max(right - left, 1))}" '
            f'height="{plot.bottom - plot.top}"{data}>{tooltip}</rect>'
        )
        if band.label:
            yield f'<text x="{_px(left + 4)}" y="{plot.top - 4}">{_text(band.label)}</text>'


def _axis(plot: _Plot) -> Iterator[str]:
    step, unit_ns, unit = _tick_step(plot.end_ns - plot.start_ns)
    first = -(-(plot.start_ns - plot.origin_ns) // step) * step
    for offset in range(first, plot.end_ns - plot.origin_ns + 1, step):
        x = _px(plot.x(plot.origin_ns + offset))
        yield f'<path class="tick" d="M{x} {plot.top}V{plot.bottom + 4}"/>'
        words = f"{offset // unit_ns} {unit}"
        yield f'<text class="faint" x="{x}" y="{plot.bottom + 18}" text-anchor="middle">{words}</text>'


def _tick_step(span_ns: int) -> tuple[int, int, str]:
    """A round distance that gives five to twelve ticks, and the unit to write them in."""
    step = 1
    while span_ns // step > 12:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    units = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
    unit_ns, unit = next(pair for pair in units if step % pair[0] == 0)
    return step, unit_ns, unit


def _lines(diagram: Diagram, plot: _Plot) -> Iterator[str]:
    for line in diagram.lines:
        name = line if len(line) <= 30 else line[:29] + "…"
        yield f'<text x="16" y="{_px(plot.y(line) + 4)}">{_title(line)}{_text(name)}</text>'
        for state, start_ns, end_ns in _stretches(diagram, plot, line):
            path = f"M{_px(plot.x(start_ns))} {_px(plot.y(line))}H{_px(plot.x(end_ns))}"
            yield f'<path class="{state}" d="{path}"{_data(line=line)}/>'


def _stretches(diagram: Diagram, plot: _Plot, line: str) -> Iterator[tuple[str, int, int]]:
    """When the line was up ("line") and killed ("down"), within the window."""
    reached = plot.start_ns
    for kill in sorted((kill for kill in diagram.kills if kill.line == line), key=lambda kill: kill.time_ns):
        end_ns = plot.end_ns if kill.restarted_ns is None else min(kill.restarted_ns, plot.end_ns)
        start_ns = max(kill.time_ns, reached)
        if start_ns < end_ns:
            if reached < start_ns:
                yield "line", reached, start_ns
            yield "down", start_ns, end_ns
            reached = end_ns
    if reached < plot.end_ns:
        yield "line", reached, plot.end_ns


def _messages(diagram: Diagram, plot: _Plot) -> tuple[list[str], str]:
    """The arrows, ordinary ones first so that the others lie on top, and a note if some were left out."""
    shown = [
        (message_state(message, diagram.cut), message)
        for message in diagram.messages
        if plot.shows(
            *sorted((message.sent_ns, message.sent_ns if message.received_ns is None else message.received_ns))
        )
    ]
    special = [pair for pair in shown if pair[0] != "ordinary"][:MESSAGES_MAX]
    ordinary = [pair for pair in shown if pair[0] == "ordinary"]
    room = MESSAGES_MAX - len(special)
    if len(ordinary) > room:
        ordinary = [ordinary[index * len(ordinary) // room] for index in range(room)]
    drawn = ordinary + special
    note = "" if len(drawn) == len(shown) else f"{len(drawn):,} of {len(shown):,} messages drawn"
    return [_arrow(message, state, plot) for state, message in drawn], note


def _arrow(message: Message, state: MessageState, plot: _Plot) -> str:
    start = (plot.x(message.sent_ns), plot.y(message.sender))
    if message.received_ns is None:
        # It never came: the arrow ends between the lines.
        end = (start[0] + 0.5 * plot.spacing, (start[1] + plot.y(message.receiver)) / 2)
        end_text = "never received"
    else:
        end = (plot.x(message.received_ns), plot.y(message.receiver))
        end_text = f"received {_seconds(message.received_ns, plot)}"
    x1, y1 = _clip(start, end, plot)
    x2, y2 = _clip(end, start, plot)
    if message.sender == message.receiver:
        path = f"M{_px(x1)} {_px(y1)}Q{_px((x1 + x2) / 2)} {_px(y1 - plot.spacing / 2)} {_px(x2)} {_px(y2)}"
    else:
        path = f"M{_px(x1)} {_px(y1)}L{_px(x2)} {_px(y2)}"
    # An arrow that goes on outside the window has no head.
    head = f' marker-end="url(#snapline-head-{state})"' if (x2, y2) == end else ""
    data = _data(
        sender=message.sender,
        receiver=message.receiver,
        sent_ns=message.sent_ns,
        received_ns=message.received_ns,
        state=state,
    )
    tooltip = _title(
        f"{message.sender} → {message.receiver}",
        message.label,
        "" if state == "ordinary" else state,
        f"sent {_seconds(message.sent_ns, plot)}, {end_text}",
    )
    return f'<path class="message {state}" fill="none" d="{path}"{head}{data}>{tooltip}</path>'


def _clip(point: tuple[float, float], other: tuple[float, float], plot: _Plot) -> tuple[float, float]:
    """`point`, or where the way from it to `other` enters the plot."""
    x = min(max(point[0], plot.left), plot.right)
    if x == point[0] or other[0] == point[0]:
        return x, point[1]
    return x, point[1] + (other[1] - point[1]) * (x - point[0]) / (other[0] - point[0])


def _cut(diagram: Diagram, plot: _Plot) -> Iterator[str]:
    points = [(plot.x(diagram.cut[line]), plot.y(line)) for line in diagram.lines if line in diagram.cut]
    if not points or not any(plot.left <= x <= plot.right for x, _ in points):
        return
    points = [(min(max(x, plot.left), plot.right), y) for x, y in points]
    points = [(points[0][0], float(plot.top)), *points, (points[-1][0], float(plot.bottom))]
    path = "L".join(f"{_px(x)} {_px(y)}" for x, y in points)
    data = _data(kind="cut", label=diagram.cut_label)
    yield f'<path class="cut" d="M{path}"{data}>{_title(diagram.cut_label)}</path>'


def _checkpoints(diagram: Diagram, plot: _Plot) -> Iterator[str]:
    size = min(5.0, plot.spacing / 3)
    for checkpoint in diagram.checkpoints:
        if plot.shows(checkpoint.time_ns, checkpoint.time_ns):
            data = _data(kind=checkpoint.kind, line=checkpoint.line, time_ns=checkpoint.time_ns, label=checkpoint.label)
            tooltip = _title(
                f"{checkpoint.line}: {checkpoint.kind} checkpoint", checkpoint.label, _seconds(checkpoint.time_ns, plot)
            )
            path = _shape(checkpoint.kind, plot.x(checkpoint.time_ns), plot.y(checkpoint.line), size)
            yield f'<path class="checkpoint {checkpoint.kind}" d="{path}"{data}>{tooltip}</path>'


def _shape(kind: CheckpointKind, x: float, y: float, size: float) -> str:
    """Initial: an open circle. Basic: a square. Forced: a diamond. Coordinated: an upright bar."""
    if kind == "initial":
        radius, across = _px(size), _px(2 * size)
        arc = f"a{radius} {radius} 0 1 0"
        return f"M{_px(x - size)} {_px(y)}{arc} {across} 0{arc} -{across} 0z"
    if kind == "forced":
        left, right, top, bottom = (
            _px(value) for value in (x - size * 1.3, x + size * 1.3, y - size * 1.3, y + size * 1.3)
        )
        return f"M{left} {_px(y)}L{_px(x)} {top} {right} {_px(y)} {_px(x)} {bottom}z"
    half_width, half_height = (size, size) if kind == "basic" else (size * 0.6, size * 1.4)
    across = _px(2 * half_width)
    return f"M{_px(x - half_width)} {_px(y - half_height)}h{across}v{_px(2 * half_height)}h-{across}z"


def _kills(diagram: Diagram, plot: _Plot) -> Iterator[str]:
    for kill in diagram.kills:
        if plot.shows(kill.time_ns, kill.time_ns):
            tooltip = _title(f"{kill.line}: {kill.label}", _seconds(kill.time_ns, plot))
            data = _data(kind="kill", line=kill.line, time_ns=kill.time_ns)
            path = _cross(plot.x(kill.time_ns), plot.y(kill.line))
            yield f'<path class="kill" d="{path}"{data}>{tooltip}</path>'


def _cross(x: float, y: float) -> str:
    return f"M{_px(x - 5)} {_px(y - 5)}l10 10M{_px(x - 5)} {_px(y + 5)}l10 -10"


def _legend(diagram: Diagram, plot: _Plot, note: str) -> tuple[list[str], int]:
    """Names what occurs in the diagram, shown or not. Also returns where the picture ends."""
    x, y = plot.left, plot.bottom + 48
    rows = ['<g class="legend">']
    for sample, words in _legend_entries(diagram):
        width = 50 + 7 * len(words)
        if x > plot.left and x + width > plot.right:
            x, y = plot.left, y + 22
        rows.append(f'<g transform="translate({x} {y})">{sample}<text x="30" y="4">{_text(words)}</text></g>')
        x += width
    if note:
        y += 22
        rows.append(f'<text class="faint" x="{plot.left}" y="{y + 4}">{_text(note)}</text>')
    return [*rows, "</g>"], y + 24


def _legend_entries(diagram: Diagram) -> Iterator[tuple[str, str]]:
    kinds = {checkpoint.kind for checkpoint in diagram.checkpoints}
    for kind in ("initial", "basic", "forced", "coordinated"):
        if kind in kinds:
            yield f'<path class="checkpoint {kind}" d="{_shape(kind, 12, 0, 5)}"/>', f"{kind} checkpoint"
    states = {message_state(message, diagram.cut) for message in diagram.messages}
    for state, words in (("ordinary", "message"), ("in-transit", "in transit"), ("orphan", "orphan")):
        if state in states:
            yield f'<path class="{state}" d="M0 0H24" marker-end="url(#snapline-head-{state})"/>', words
    if diagram.cut:
        yield '<path class="cut" d="M0 0H24"/>', diagram.cut_label
    if diagram.kills:
        yield f'<path class="kill" d="{_cross(12, 0)}"/>', "killed"
    bands = {band.kind for band in diagram.bands}
    for band, words in (("undone", "undone by the recovery"), ("recovery", "recovery")):
        if band in bands:
            yield f'<rect class="{band}" x="0" y="-6" width="24" height="12"/>', words


def _seconds(time_ns: int, plot: _Plot) -> str:
    return f"{(time_ns - plot.origin_ns) / 1e9:.6f} s"


def _title(*parts: str) -> str:
    return f"<title>{_text(', '.join(part for part in parts if part))}</title>"


def _data(**values: object) -> str:
    """`data-*` attributes; what is None or empty is left out."""
    return "".join(
        f' data-{name.replace("_", "-")}="{html.escape(_clean(str(value)))}"'
        for name, value in values.items()
        if value is not None and value != ""
    )


def _text(text: str) -> str:
    return html.escape(_clean(text), quote=False)


def _clean(text: str) -> str:
    """XML knows no way to write control characters."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _px(value: float) -> str:
    """One digit after the point: deterministic, short, and finer than a screen shows."""
    rounded = f"{value:.1f}".removesuffix(".0")
    return "0" if rounded == "-0" else rounded
