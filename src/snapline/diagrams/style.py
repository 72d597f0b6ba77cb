"""Parts that all pictures share: style, marks, paths of arrows, escaped text, legends, and the page around a picture.

Colours are CSS variables, each with a value for the light and for the dark colour scheme. A page that contains a picture may set the
`--snapline-*` variables. Before each variable, the style sheet sets the light value as a plain colour, for viewers that do not support
variables. Every function is pure and deterministic.

A legend shows samples and their meanings, row by row. A page is a single file that needs no network access, and uses the reader's light or
dark colour scheme. The page's content security policy forbids network access. The policy also forbids scripts unless the page contains one.
The caller must escape all text.
"""

import html
import re
from collections.abc import Iterable, Iterator, Mapping

from snapline.diagrams.scene import Arrow, Scene

COLORS = {
    "ink": ("#1f2328", "#e6edf3"),
    "paper": ("#ffffff", "#0d1117"),
    "faint": ("#8c959f", "#6e7681"),
    "message": ("#6e7781", "#9198a1"),
    "transit": ("#bc4c00", "#f0883e"),
    "orphan": ("#cf222e", "#ff7b72"),
    "cut": ("#0969da", "#58a6ff"),
    "line": ("#8250df", "#a371f7"),
    "record": ("#1a7f37", "#3fb950"),
    "kill": ("#cf222e", "#ff7b72"),
    "fault": ("#bf8700", "#d29922"),
    "recovery": ("#ddf4ff", "#10304f"),
    "undone": ("#f0e8dc", "#37301f"),
}
"""For each colour name, the colours for the light and the dark scheme."""

RULES = """text { fill: var(--ink); } .paper { fill: var(--paper); } .heading { font-size: 15px; font-weight: 600; } .faint { fill: var(--faint); }
.line { stroke: var(--ink); stroke-opacity: .7; } .past { stroke: var(--faint); stroke-dasharray: 3 4; }
.down { stroke: var(--faint); stroke-dasharray: 2 4; } .tick { stroke: var(--faint); stroke-opacity: .35; }
.message { fill: none; } .message.ordinary { stroke: var(--message); stroke-opacity: .7; }
.message.in-transit { stroke: var(--transit); stroke-width: 2; }
.message.orphan { stroke: var(--orphan); stroke-width: 2; stroke-dasharray: 5 3; }
.message.undone { stroke: var(--faint); stroke-dasharray: 2 3; }
.head-undone { fill: var(--faint); } .head-ordinary { fill: var(--message); }
.head-in-transit { fill: var(--transit); } .head-orphan { fill: var(--orphan); }
.cut, .recoveryline { stroke: var(--cut); stroke-width: 2.5; fill: none; stroke-linejoin: round; }
.recoveryline { stroke: var(--line); stroke-dasharray: 8 4; }
.checkpoint { fill: var(--record); stroke: var(--paper); } .checkpoint.undone { fill: var(--faint); }
.checkpoint.initial { fill: var(--paper); stroke: var(--record); stroke-width: 2; }
.checkpoint.initial.undone { stroke: var(--faint); } .strike { fill: none; stroke: var(--ink); stroke-width: 2; }
.kill { stroke: var(--kill); stroke-width: 3; fill: none; } .alive { fill: var(--record); }
.band.recovery { fill: var(--recovery); } .band.undone { fill: var(--undone); }
.number, .label, .again, .cutname { font-size: 10px; paint-order: stroke; stroke: var(--paper); stroke-width: 3;
 stroke-linejoin: round; }
.label { fill: var(--message); } .again { fill: var(--faint); } .cutname { fill: var(--cut); }
.bar text, text.small { font-size: 11px; } .track { stroke: var(--faint); stroke-opacity: .25; }
.up { fill: var(--faint); } .complete { fill: var(--cut); fill-opacity: .55; }
.aborted { fill: none; stroke: var(--orphan); } .crossed { stroke: var(--orphan); }
.open { fill: none; stroke: var(--faint); stroke-dasharray: 3 2; }
.fault, .point { fill: var(--fault); fill-opacity: .6; } .healed { fill: var(--record); fill-opacity: .45; }
.shade { fill: var(--fault); fill-opacity: .13; }
.instant { stroke: var(--fault); stroke-opacity: .7; stroke-dasharray: 1 3; }
.violation { stroke: var(--orphan); stroke-width: 2; } text.alarm { fill: var(--orphan); font-weight: 600; }
"""
"""CSS rules for the parts of every picture."""

EVENT_RULES = """.message.marker { stroke: var(--cut); stroke-opacity: .8; stroke-dasharray: 1 3; stroke-linecap: round; }
.head-marker { fill: var(--cut); } .spot { fill: var(--message); } .spot.past { fill: var(--line); }
.spot.chosen { fill: var(--line); } .ring { fill: none; stroke: var(--line); stroke-width: 2; }
.hit { fill: none; pointer-events: all; } .agent.host { font-weight: 600; }
"""
"""Additional CSS rules for pictures that show single events."""

Point = tuple[float, float]


def style(rules: str) -> str:
    """Return the style sheet of a picture. `rules` are additional style rules for the picture's content."""

    def variables(scheme: int) -> str:
        return " ".join(f"--{name}: var(--snapline-{name}, {both[scheme]});" for name, both in COLORS.items())

    root = ".snapline-spacetime"
    lines = [
        f"{root} {{ {variables(0)}\n {_with_plain('background: var(--paper);')} font: 12px system-ui, sans-serif; }}"
    ]
    lines.append(f"@media (prefers-color-scheme: dark) {{ {root} {{ {variables(1)} }} }}")
    for rule in rules.split("}")[:-1]:
        selectors, body = rule.split("{")
        lines.append(
            f"{', '.join(f'{root} {selector.strip()}' for selector in selectors.split(','))} {{{_with_plain(body)}}}"
        )
    return "\n".join(lines)


_COLORED = re.compile(r"([\w-]+): var\(--([\w-]+)\);")


def _with_plain(declarations: str) -> str:
    """Add each variable's plain colour before the variable, as a fallback for old viewers."""
    return _COLORED.sub(lambda found: f"{found[1]}: {COLORS[found[2]][0]}; {found[0]}", declarations)


def head(
    *,
    heading: str,
    width: int,
    height: int,
    values: Mapping[str, object],
    states: Iterable[str] = (),
    description: str = "",
    rules: str = "",
    is_part: bool = False,
) -> Iterator[str]:
    """Yield the beginning of a picture: root element, title, style, arrow heads, background and heading.

    Args:
        width: width in pixels.
        values: values for `data-*` attributes of the root element.
        states: message states for which arrow heads are needed. The arrow head of a state has the id `snapline-head-…`.
        description: text alternative for readers who cannot see the picture.
        is_part: whether the picture is part of a page, which contains the style. Parts of the picture may then be links.
    """
    kind = f'role="group" aria-label="{html.escape(clean(heading))}"' if is_part else 'role="img"'
    namespace = "" if is_part else 'xmlns="http://www.w3.org/2000/svg" '
    yield (
        f'<svg {namespace}class="snapline-spacetime" {kind} '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"{data(**values)}>'
    )
    yield title(heading)
    if description:
        yield f"<desc>{text(description)}</desc>"
    if not is_part:
        yield f"<style>\n{style(RULES + rules)}\n</style>"
    yield "<defs>"
    for state in states:
        yield (
            f'<marker id="snapline-head-{state}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path class="head-{state}" d="M0 1 8 4 0 7z"/></marker>'
        )
    yield "</defs>"
    yield f'<rect width="{width}" height="{height}" class="paper"/>'
    yield f'<text class="heading" x="16" y="28">{text(heading)}</text>'


def shape(kind: str, x: float, y: float, size: float) -> str:
    """Return the path that draws a checkpoint's mark.

    An initial checkpoint is a circle, a basic checkpoint a square, a forced checkpoint a diamond, and any other checkpoint a vertical bar.
    """
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
    """Return the path of the mark that shows a failure."""
    return f"M{px(x - 5)} {px(y - 5)}l10 10M{px(x - 5)} {px(y + 5)}l10 -10"


def alive(x: float, y: float) -> str:
    """Return the path of the mark that shows a live state."""
    return f"M{px(x)} {px(y - 5)}l8 5l-8 5z"


def strike(x: float, y: float, size: float) -> str:
    """Return the path of a single diagonal line through a mark. A cross is not used because it marks failures."""
    reach = size * 1.7
    return f"M{px(x - reach)} {px(y + reach)}L{px(x + reach)} {px(y - reach)}"


def arrow(start: Point, end: Point, *, left: float, right: float, bend: float = 0) -> tuple[str, bool]:
    """Return the path of an arrow from `start` to `end`, clipped at `left` and `right`, and whether the arrow's tip lies between these
    limits.

    An arrow within a single lane is curved upwards by `bend` pixels, because the lane would otherwise hide the arrow.
    """
    x1, y1 = _clip(start, end, left, right)
    x2, y2 = _clip(end, start, left, right)
    is_end_kept = (x2, y2) == end
    if bend:
        return f"M{px(x1)} {px(y1)}Q{px((x1 + x2) / 2)} {px(y1 - bend)} {px(x2)} {px(y2)}", is_end_kept
    return f"M{px(x1)} {px(y1)}L{px(x2)} {px(y2)}", is_end_kept


def _clip(point: Point, other: Point, left: float, right: float) -> Point:
    """Return `point` if it lies inside the plot, otherwise the point at which the line from `point` to `other` enters the plot."""
    x = min(max(point[0], left), right)
    if x == point[0] or other[0] == point[0]:
        return x, point[1]
    return x, point[1] + (other[1] - point[1]) * (x - point[0]) / (other[0] - point[0])


def link(content: str, href: str, words: str) -> str:
    """Return `content` as a link to `href`. If `href` is empty, return `content` unchanged.

    The link is not reachable with the Tab key, because the page has a list of the events next to the picture.
    """
    if not href:
        return content
    label = html.escape(clean(words))
    return f'<a href="{html.escape(clean(href))}" tabindex="-1" aria-label="{label}">{content}</a>'


def title(*parts: str) -> str:
    """Return a `<title>` element, which browsers show as a tooltip. Empty parts are omitted."""
    return f"<title>{text(', '.join(part for part in parts if part))}</title>"


def data(**values: object) -> str:
    """Format these values as `data-*` attributes. None and empty values are omitted."""
    return "".join(
        f' data-{name.replace("_", "-")}="{html.escape(clean(str(value)))}"'
        for name, value in values.items()
        if value is not None and value != ""
    )


def text(words: str) -> str:
    """Escape `words` as the text content of an element."""
    return html.escape(clean(words), quote=False)


def clean(words: str) -> str:
    """Remove control characters from `words`. XML cannot represent them, and a terminal would interpret them."""
    return "".join(character if character.isprintable() else "\ufffd" for character in words)


def shortened(words: str, length: int = 30) -> str:
    """Shorten `words` to at most `length` characters."""
    return words if len(words) <= length else words[: length - 1] + "…"


def px(value: float) -> str:
    """Format a pixel coordinate with one decimal, which is short, deterministic, and more precise than a pixel."""
    rounded = f"{value:.1f}".removesuffix(".0")
    return "0" if rounded == "-0" else rounded


# -- legend ------------------------------------------------------------------------------------------------------------


def legend(
    entries: Iterable[tuple[str, str]], *, left: int, right: int, top: int, notes: Iterable[str] = ()
) -> tuple[list[str], int]:
    """Draw the legend, and return it with the resulting height of the picture. The legend shows samples and their meanings, row by row,
    with notes below them.

    Args:
        entries: samples with their meanings. Each sample is 24 pixels wide and vertically centred at y = 0.
        left: x coordinate of the first entry of each row.
        right: largest x coordinate of a row with more than one entry.
        top: y coordinate of the centre of the first row.
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


def entries_of(scene: Scene, arrows: Iterable[Arrow]) -> Iterator[tuple[str, str]]:
    """Yield the entries of the scene's legend in the order of `LEGEND`. If the scene defines no legend, yield the entries that occur in the
    scene."""
    occurring = set(_occurring(scene, arrows) if scene.legend is None else scene.legend)
    for name, (sample, words) in LEGEND.items():
        if name in occurring:
            yield sample, scene.meanings.get(name, words)


def _occurring(scene: Scene, arrows: Iterable[Arrow]) -> Iterator[str]:
    yield from (bar.kind for track in scene.tracks for bar in track.bars)
    yield from (mark.kind for mark in scene.marks)
    yield from ("useless" for mark in scene.marks if mark.is_useless)
    yield from (f"message {arrow.state}" for arrow in arrows)
    yield from (front.kind for front in scene.fronts)
    yield from (f"band {band.kind}" for band in scene.bands)
    yield from (sign.kind for sign in scene.signs)
    yield from ("violation" for _ in scene.alarms)


def _box(name: str, width: int = 24) -> str:
    return f'<rect class="{name}" x="0" y="-6" width="{width}" height="12"/>'


def _path(name: str, path: str = "M0 0H24") -> str:
    return f'<path class="{name}" d="{path}"/>'


def _mark(kind: str) -> str:
    return _path(f"checkpoint {kind}", shape(kind, 12, 0, 6))


def _message(state: str) -> str:
    head = state.partition(" ")[0]
    return f'<path class="message {state}" d="M0 0H24" marker-end="url(#snapline-head-{head})"/>'


LEGEND = {
    "up": (_box("up"), "host up"),
    "crash": (_path("kill", cross(12, 0)), "host ends"),
    "complete": (_box("complete"), "epoch complete"),
    "aborted": (_box("aborted") + _path("crossed", "M0 6L24 -6"), "epoch aborted"),
    "open": (_box("open"), "epoch open"),
    "fault": (_box("fault"), "fault"),
    "point": (_box("point", 4), "fault without an end"),
    "healed": (_box("healed"), "everything healed"),
    "initial": (_mark("initial"), "initial checkpoint"),
    "basic": (_mark("basic"), "basic checkpoint"),
    "forced": (_mark("forced"), "forced checkpoint"),
    "coordinated": (_mark("coordinated"), "coordinated checkpoint"),
    "useless": (_mark("basic") + _path("strike", strike(12, 0, 6)), "useless (struck through)"),
    "message marker": (_message("marker"), "marker, from host to host"),
    "message ordinary": (_message("ordinary"), "message"),
    "message in-transit": (_message("in-transit"), "in transit"),
    "message orphan": (_message("orphan"), "orphan"),
    "message undone": (_message("undone"), "undone message"),
    "cut": (_path("cut"), "cut"),
    "line": (_path("recoveryline"), "recovery line"),
    "band undone": (_box("band undone"), "undone"),
    "band recovery": (_box("band recovery"), "recovery"),
    "kill": (_path("kill", cross(12, 0)), "fails"),
    "alive": (_path("alive", alive(8, 0)), "keeps its live state"),
    "violation": (_path("violation", "M12 -8V8"), "violation"),
    "band undone now": (_box("band undone now"), "undone in this round"),
    "message orphan now": (_message("orphan now"), "orphan that forces the next round"),
}
"""All possible legend entries by name. Each has a sample and a meaning."""


# -- page --------------------------------------------------------------------------------------------------------------


PAGE_STYLE = """:root { color-scheme: light dark; --ink: #1f2328; --paper: #ffffff; --quiet: #59636e; --edge: #d1d9e0;
 --panel: #f6f8fa; --mark: #54aeff33; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --quiet: #9198a1; --edge: #3d444d;
 --panel: #151b23; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1280px; padding: 24px; font: 15px/1.55 system-ui, sans-serif; color: var(--ink);
 background: var(--paper); }
h1 { font-size: 24px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 36px 0 8px; padding-top: 12px; border-top: 1px solid var(--edge); }
h3 { font-size: 15px; margin: 0 0 4px; } h3 span, .quiet { color: var(--quiet); font-weight: 400; }
p { margin: 6px 0; overflow-wrap: anywhere; } ul { margin: 6px 0; padding-left: 22px; }
code, pre, kbd { font: 13px/1.5 ui-monospace, monospace; } code { overflow-wrap: anywhere; }
kbd { border: 1px solid var(--edge); border-radius: 4px; padding: 0 4px; }
pre { background: var(--panel); border: 1px solid var(--edge); border-radius: 6px; padding: 10px 12px; margin: 8px 0;
 overflow: auto; max-height: 480px; }
.picture { overflow-x: auto; border: 1px solid var(--edge); border-radius: 6px; } .picture svg { display: block; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; } caption { text-align: left; }
th, td { text-align: left; padding: 3px 16px 3px 0; border-bottom: 1px solid var(--edge); vertical-align: top; }
th { color: var(--quiet); font-weight: 500; }
.number { text-align: right; padding-right: 4px; font-variant-numeric: tabular-nums; white-space: nowrap; }
summary { cursor: pointer; margin: 8px 0; }
:focus-visible { outline: 2px solid #0969da; outline-offset: 2px; }
@media print { body { padding: 0; } .picture, pre { overflow: visible; max-height: none; } }
"""


def page(*, title: str, body: str, style: str = "", script: str = "") -> str:
    """Return an HTML page as the text of one file.

    Args:
        title: title of the page, as HTML.
        body: content of the page, as HTML.
        script: script to run after the body was loaded. If `script` is empty, the page's content security policy forbids scripts.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'" + ("; script-src 'unsafe-inline'" if script else "")
    code = f"<script>\n{script}</script>\n" if script else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{PAGE_STYLE}{style}</style>
</head>
<body>
{body}
{code}</body>
</html>
"""


def picture(svg: str, *, name: str = "space-time diagram", kind: str = "") -> str:
    """Return an element that contains a picture, and scrolls horizontally if the picture is wide. `kind` is an additional CSS class for the
    element."""
    return f'<div class="picture {kind}" tabindex="0" role="region" aria-label="{name}">\n{svg}</div>'
