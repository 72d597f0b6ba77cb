"""Draw a space-time diagram (`spacetime`) as the text of an SVG file.

The same diagram gives the same bytes. What stands for a part of the diagram carries `data-*` attributes, and nearly all
of it a `<title>` that browsers show as a tooltip. Colours are CSS variables (`--snapline-ink`, `--snapline-transit`,
…): they follow the reader's light or dark scheme and can be set by a page around the picture. Nothing is told by colour
alone. There is no script.
"""

from collections.abc import Iterator

import msgspec

from snapline.pictures.look import arrow, cross, data, head, legend, px, shape, shortened, text, title
from snapline.pictures.spacetime import Diagram, Message, MessageState, message_state

STATES: tuple[MessageState, ...] = ("ordinary", "in-transit", "orphan")

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


def _head(diagram: Diagram, plot: _Plot, height: int) -> Iterator[str]:
    window = {"start_ns": plot.start_ns, "end_ns": plot.end_ns}
    return head(heading=diagram.title, width=plot.right + 24, height=height, states=STATES, values=window)


def _bands(diagram: Diagram, plot: _Plot) -> Iterator[str]:
    for band in diagram.bands:
        if not plot.shows(band.start_ns, band.end_ns):
            continue
        left, right = plot.x(max(band.start_ns, plot.start_ns)), plot.x(min(band.end_ns, plot.end_ns))
        values = data(kind=band.kind, start_ns=band.start_ns, end_ns=band.end_ns)
        tooltip = title(band.label or band.kind, f"{_seconds(band.start_ns, plot)} to {_seconds(band.end_ns, plot)}")
        yield (
            f'<rect class="band {band.kind}" x="{px(left)}" y="{plot.top}" width="{px(max(right - left, 1))}" '
            f'height="{plot.bottom - plot.top}"{values}>{tooltip}</rect>'
        )
        if band.label:
            yield f'<text x="{px(left + 4)}" y="{plot.top - 4}">{text(band.label)}</text>'


def _axis(plot: _Plot) -> Iterator[str]:
    step, unit_ns, unit = _tick_step(plot.end_ns - plot.start_ns)
    first = -(-(plot.start_ns - plot.origin_ns) // step) * step
    for offset in range(first, plot.end_ns - plot.origin_ns + 1, step):
        x = px(plot.x(plot.origin_ns + offset))
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
        yield f'<text x="16" y="{px(plot.y(line) + 4)}">{title(line)}{text(shortened(line))}</text>'
        for state, start_ns, end_ns in _stretches(diagram, plot, line):
            path = f"M{px(plot.x(start_ns))} {px(plot.y(line))}H{px(plot.x(end_ns))}"
            yield f'<path class="{state}" d="{path}"{data(line=line)}/>'


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
    bend = plot.spacing / 2 if message.sender == message.receiver else 0
    path, is_end_kept = arrow(start, end, left=plot.left, right=plot.right, bend=bend)
    # An arrow that goes on outside the window has no head.
    tip = f' marker-end="url(#snapline-head-{state})"' if is_end_kept else ""
    values = data(
        sender=message.sender,
        receiver=message.receiver,
        sent_ns=message.sent_ns,
        received_ns=message.received_ns,
        state=state,
    )
    tooltip = title(
        f"{message.sender} → {message.receiver}",
        message.label,
        "" if state == "ordinary" else state,
        f"sent {_seconds(message.sent_ns, plot)}, {end_text}",
    )
    return f'<path class="message {state}" fill="none" d="{path}"{tip}{values}>{tooltip}</path>'


def _cut(diagram: Diagram, plot: _Plot) -> Iterator[str]:
    points = [(plot.x(diagram.cut[line]), plot.y(line)) for line in diagram.lines if line in diagram.cut]
    if not points or not any(plot.left <= x <= plot.right for x, _ in points):
        return
    points = [(min(max(x, plot.left), plot.right), y) for x, y in points]
    points = [(points[0][0], float(plot.top)), *points, (points[-1][0], float(plot.bottom))]
    path = "L".join(f"{px(x)} {px(y)}" for x, y in points)
    values = data(kind="cut", label=diagram.cut_label)
    yield f'<path class="cut" d="M{path}"{values}>{title(diagram.cut_label)}</path>'


def _checkpoints(diagram: Diagram, plot: _Plot) -> Iterator[str]:
    size = min(5.0, plot.spacing / 3)
    for checkpoint in diagram.checkpoints:
        if plot.shows(checkpoint.time_ns, checkpoint.time_ns):
            values = data(
                kind=checkpoint.kind, line=checkpoint.line, time_ns=checkpoint.time_ns, label=checkpoint.label
            )
            tooltip = title(
                f"{checkpoint.line}: {checkpoint.kind} checkpoint", checkpoint.label, _seconds(checkpoint.time_ns, plot)
            )
            path = shape(checkpoint.kind, plot.x(checkpoint.time_ns), plot.y(checkpoint.line), size)
            yield f'<path class="checkpoint {checkpoint.kind}" d="{path}"{values}>{tooltip}</path>'


def _kills(diagram: Diagram, plot: _Plot) -> Iterator[str]:
    for kill in diagram.kills:
        if plot.shows(kill.time_ns, kill.time_ns):
            tooltip = title(f"{kill.line}: {kill.label}", _seconds(kill.time_ns, plot))
            values = data(kind="kill", line=kill.line, time_ns=kill.time_ns)
            path = cross(plot.x(kill.time_ns), plot.y(kill.line))
            yield f'<path class="kill" d="{path}"{values}>{tooltip}</path>'


def _legend(diagram: Diagram, plot: _Plot, note: str) -> tuple[list[str], int]:
    """Names what occurs in the diagram, shown or not. Also returns where the picture ends."""
    notes = [note] if note else []
    return legend(_legend_entries(diagram), left=plot.left, right=plot.right, top=plot.bottom + 48, notes=notes)


def _legend_entries(diagram: Diagram) -> Iterator[tuple[str, str]]:
    kinds = {checkpoint.kind for checkpoint in diagram.checkpoints}
    for kind in ("initial", "basic", "forced", "coordinated"):
        if kind in kinds:
            yield f'<path class="checkpoint {kind}" d="{shape(kind, 12, 0, 5)}"/>', f"{kind} checkpoint"
    states = {message_state(message, diagram.cut) for message in diagram.messages}
    for state, words in (("ordinary", "message"), ("in-transit", "in transit"), ("orphan", "orphan")):
        if state in states:
            yield f'<path class="{state}" d="M0 0H24" marker-end="url(#snapline-head-{state})"/>', words
    if diagram.cut:
        yield '<path class="cut" d="M0 0H24"/>', diagram.cut_label
    if diagram.kills:
        yield f'<path class="kill" d="{cross(12, 0)}"/>', "killed"
    bands = {band.kind for band in diagram.bands}
    for band, words in (("undone", "undone by the recovery"), ("recovery", "recovery")):
        if band in bands:
            yield f'<rect class="{band}" x="0" y="-6" width="24" height="12"/>', words


def _seconds(time_ns: int, plot: _Plot) -> str:
    return f"{(time_ns - plot.origin_ns) / 1e9:.6f} s"
