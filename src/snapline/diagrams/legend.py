"""Legends: samples with their meanings, row by row."""

from collections.abc import Iterable, Iterator

from snapline.diagrams.scene import Arrow, Scene
from snapline.diagrams.style import alive, cross, shape, strike, text


def legend(
    entries: Iterable[tuple[str, str]], *, left: int, right: int, top: int, notes: Iterable[str] = ()
) -> tuple[list[str], int]:
    """Return samples with their meanings, row by row, with notes under them; and the height of the picture.

    Args:
        entries: a sample, 24 pixels wide around y = 0, and its meaning.
        left: position of the first entry in a row. right: limit of a row with more than one entry.
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


def entries_of(scene: Scene, arrows: Iterable[Arrow]) -> Iterator[tuple[str, str]]:
    """Yield the entries that occur in a scene, or that its own legend names, in the order of `LEGEND`."""
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
"""Possible legend entries, by their classes: a sample and its meaning."""
