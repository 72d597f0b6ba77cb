"""What all pictures share: one look, the marks of checkpoints, arrows, legends, and text that cannot break out of SVG.

Colours are CSS variables with a light and a dark value; a page around a picture may set the `--snapline-*` ones. Every
function is pure and gives the same text for the same arguments.
"""

import html
from collections.abc import Iterable, Iterator, Mapping

STYLE = """.snapline-spacetime { --ink: var(--snapline-ink, #1f2328); --paper: var(--snapline-paper, #ffffff);
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
"""
"""Of the class `snapline-spacetime`, which every picture's root element bears."""

Point = tuple[float, float]


def head(
    *,
    heading: str,
    width: int,
    height: int,
    states: Iterable[str],
    values: Mapping[str, object],
    description: str = "",
    style: str = "",
) -> Iterator[str]:
    """How a picture opens: root, title, style, the heads of arrows, paper and heading.

    Args:
        heading: the title, for readers and for machines.
        width: in pixels, as `height`.
        states: of messages; each has an arrow's head `snapline-head-…` of its own.
        values: for `data-*` attributes of the root.
        description: of the picture in words, for who does not see it.
        style: rules after the common ones.
    """
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="snapline-spacetime" role="img" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"{data(**values)}>'
    )
    yield title(heading)
    if description:
        yield f"<desc>{text(description)}</desc>"
    yield f"<style>\n{STYLE}{style}</style>"
    yield "<defs>"
    for state in states:
        yield (
            f'<marker id="snapline-head-{state}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path class="head-{state}" d="M0 1 8 4 0 7z"/></marker>'
        )
    yield "</defs>"
    yield f'<rect width="{width}" height="{height}" style="fill:var(--paper)"/>'
    yield f'<text class="heading" x="16" y="28">{text(heading)}</text>'


def legend(
    entries: Iterable[tuple[str, str]], *, left: int, right: int, top: int, notes: Iterable[str] = ()
) -> tuple[list[str], int]:
    """Samples with words, row by row, and notes under them. Also returns where the picture ends.

    Args:
        entries: a sample, 24 pixels wide around y = 0, and what it stands for.
        left: of the first entry in a row; none goes beyond `right`, if it is not alone there.
        top: the middle of the first row.
    """
    x, y = left, top
    rows = ['<g class="legend">']
    for sample, words in entries:
        width = 50 + 7 * len(words)
        if x > left and x + width > right:
            x, y = left, y + 22
        rows.append(f'<g transform="translate({x} {y})">{sample}<text x="30" y="4">{text(words)}</text></g>')
        x += width
    for note in notes:
        y += 22
        rows.append(f'<text class="faint" x="{left}" y="{y + 4}">{text(note)}</text>')
    return [*rows, "</g>"], y + 24


def shape(kind: str, x: float, y: float, size: float) -> str:
    """A checkpoint's mark. Initial: an open circle. Basic: a square. Forced: a diamond. Others: an upright bar."""
    if kind == "initial":
        radius, across = px(size), px(2 * size)
        arc = f"a{radius} {radius} 0 1 0"
        return f"M{px(x - size)} {px(y)}{arc} {across} 0{arc} -{across} 0z"
    if kind == "forced":
        left, right, top, bottom = (
            px(value) for value in (x - size * 1.3, x + size * 1.3, y - size * 1.3, y + size * 1.3)
        )
        return f"M{left} {px(y)}L{px(x)} {top} {right} {px(y)} {px(x)} {bottom}z"
    half_width, half_height = (size, size) if kind == "basic" else (size * 0.6, size * 1.4)
    across = px(2 * half_width)
    return f"M{px(x - half_width)} {px(y - half_height)}h{across}v{px(2 * half_height)}h-{across}z"


def cross(x: float, y: float) -> str:
    """The mark of a failure."""
    return f"M{px(x - 5)} {px(y - 5)}l10 10M{px(x - 5)} {px(y + 5)}l10 -10"


def arrow(start: Point, end: Point, *, left: float, right: float, bend: float = 0) -> tuple[str, bool]:
    """The path from `start` to `end`, cut off at `left` and `right`, and whether its end was kept.

    An arrow on one line is bent upwards by `bend` pixels; without, it would be hidden by the line.
    """
    x1, y1 = _clip(start, end, left, right)
    x2, y2 = _clip(end, start, left, right)
    is_end_kept = (x2, y2) == end
    if bend:
        return f"M{px(x1)} {px(y1)}Q{px((x1 + x2) / 2)} {px(y1 - bend)} {px(x2)} {px(y2)}", is_end_kept
    return f"M{px(x1)} {px(y1)}L{px(x2)} {px(y2)}", is_end_kept


def _clip(point: Point, other: Point, left: float, right: float) -> Point:
    """`point`, or where the way from it to `other` enters the plot."""
    x = min(max(point[0], left), right)
    if x == point[0] or other[0] == point[0]:
        return x, point[1]
    return x, point[1] + (other[1] - point[1]) * (x - point[0]) / (other[0] - point[0])


def title(*parts: str) -> str:
    """A `<title>`: browsers show it as a tooltip. Empty parts are left out."""
    return f"<title>{text(', '.join(part for part in parts if part))}</title>"


def data(**values: object) -> str:
    """`data-*` attributes; what is None or empty is left out."""
    return "".join(
        f' data-{name.replace("_", "-")}="{html.escape(clean(str(value)))}"'
        for name, value in values.items()
        if value is not None and value != ""
    )


def text(words: str) -> str:
    """`words` as content of an element."""
    return html.escape(clean(words), quote=False)


def clean(words: str) -> str:
    """`words` without control characters: XML knows no way to write them, and a terminal would obey them."""
    return "".join(character if character.isprintable() else "\ufffd" for character in words)


def shortened(words: str, length: int = 30) -> str:
    """At most `length` characters of `words`."""
    return words if len(words) <= length else words[: length - 1] + "…"


def px(value: float) -> str:
    """One digit after the point: deterministic, short, and finer than a screen shows."""
    rounded = f"{value:.1f}".removesuffix(".0")
    return "0" if rounded == "-0" else rounded
