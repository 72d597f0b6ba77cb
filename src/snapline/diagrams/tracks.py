"""The tracks above the lanes of a picture: hosts up and down, epochs with their outcome, faults, the healed end.

Epochs and faults overlap: the bars of a track are packed into as many rows as needed, first fit by their start, with space
for labels. Colour is never the only sign: a complete epoch is filled, an aborted one is crossed out, an open one has a
broken border, and a crash is a cross.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from snapline.diagrams.scene import Bar, Place, Track
from snapline.diagrams.style import clean, cross, data, px, shortened, text, title

ROW_HEIGHT = 18

PACKED_MAX = 12
"""Largest number of rows of one track; further bars are counted in a note."""

BARS_MAX = 500
"""Largest number of bars of one track. The last ones are drawn, which are nearest to the end of the run."""

CHARACTER_PX = 6.6
"""Approximate width of a character at 11 pixels; an overestimate."""

X = Callable[[Place], float]


def packed(tracks: Iterable[Track], x: X) -> tuple[list[Track], list[str]]:
    """Return the tracks with one row each, and texts about omissions. Only the first row of a track has its label."""
    rows: list[Track] = []
    notes: list[str] = []
    for track in tracks:
        bars, dropped = _packed(track.bars, x)
        rows += [Track("" if index else track.label, row) for index, row in enumerate(bars)]
        if dropped:
            notes.append(f"{len(track.bars) - dropped:,} of {len(track.bars):,} {track.label} drawn.")
    return rows, notes


def _packed(bars: Sequence[Bar], x: X) -> tuple[list[list[Bar]], int]:
    """Bars by row, and how many found no room."""
    rows: list[list[Bar]] = [[]]
    ends = [float("-inf")]
    dropped = max(len(bars) - BARS_MAX, 0)
    for bar in sorted(bars[dropped:], key=lambda bar: bar.start):
        left = x(bar.start)
        free = next((index for index, end in enumerate(ends) if end <= left), len(ends))
        if bar.kind == "crash":
            free = 0  # it is at the end of its host's bar
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
    """The shades of faults from `top` to `bottom` behind everything, then the rows from `top` on."""
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
        # Near the right edge a label ends at the edge: it may cover the bar, but is not cut off.
        at = min(start + 4, right - CHARACTER_PX * len(_label(bar)))
        yield f'<text x="{px(at)}" y="{px(y + 4)}">{text(_label(bar))}</text>'
    yield "</g>"
