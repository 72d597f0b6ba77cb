"""The strip of lanes above a picture: hosts up and down, epochs with their outcome, faults, the healed end.

A *bar* is a stretch of time in a lane; a bar without an end of its own is a *point*. Epochs and faults overlap in time:
they are packed into as many lanes as they need, first fit by their begin. Nothing is told by colour alone: a complete
epoch is filled, an aborted one is crossed out, an open one has a broken border; a crash is a cross.

Used by the run's timeline, where time is linear, and by the space-time diagram, where it is not: `x` maps time to pixels.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from snapline.pictures.look import clean, cross, data, px, shortened, text, title
from snapline.sim.report.words import seconds, stretch
from snapline.sim.result import ExecutedFault
from snapline.sim.world.recording import EpochSpan, HostSpan, Recording

BarKind = Literal["up", "crash", "complete", "aborted", "open", "fault", "point", "healed"]

LANE_HEIGHT = 18

HOSTS_MAX = 40
"""Lanes of hosts; a report with more is a wall of lines, and the events tell the rest."""

PACKED_MAX = 12
"""Lanes of epochs, and of faults; what does not fit is counted in a note."""

BARS_MAX = 500
"""Epochs, and faults; the last ones are drawn, which are nearest to what ended the run."""

CHARACTER_PX = 6.6
"""About the width of one at 11 pixels; too much rather than too little."""

STYLE = """.snapline-spacetime { --fault: var(--snapline-fault, #bf8700); --line: var(--snapline-line, #8250df); }
@media (prefers-color-scheme: dark) { .snapline-spacetime { --fault: var(--snapline-fault, #d29922);
 --line: var(--snapline-line, #a371f7); } }
.snapline-spacetime .bar text, .snapline-spacetime text.small { font-size: 11px; }
.snapline-spacetime .up { fill: var(--faint); }
.snapline-spacetime .complete { fill: var(--cut); fill-opacity: .55; }
.snapline-spacetime .aborted { fill: none; stroke: var(--orphan); }
.snapline-spacetime .open { fill: none; stroke: var(--faint); stroke-dasharray: 3 2; }
.snapline-spacetime .strike { stroke: var(--orphan); fill: none; }
.snapline-spacetime .fault, .snapline-spacetime .point { fill: var(--fault); fill-opacity: .6; }
.snapline-spacetime .healed { fill: var(--record); fill-opacity: .45; }
.snapline-spacetime .shade { fill: var(--fault); fill-opacity: .13; }
.snapline-spacetime .instant { stroke: var(--fault); stroke-opacity: .7; stroke-dasharray: 1 3; }
.snapline-spacetime .violation { stroke: var(--orphan); stroke-width: 2; }
.snapline-spacetime .lane { stroke: var(--faint); stroke-opacity: .25; }
.snapline-spacetime text.alarm { fill: var(--orphan); font-weight: 600; }
"""

Place = Callable[[int], float]
"""From virtual time to pixels; it never falls."""


class Bar(msgspec.Struct, frozen=True):
    """`end_ns` equals `start_ns` for a point."""

    start_ns: int
    end_ns: int
    kind: BarKind
    label: str
    tooltip: str


class Lane(msgspec.Struct, frozen=True):
    """One row."""

    label: str
    bars: list[Bar]


class Strip(msgspec.Struct, frozen=True):
    """All rows, and what was left out, in words."""

    lanes: list[Lane]
    notes: list[str]


def strip_of(
    recording: Recording | None,
    faults: Iterable[ExecutedFault],
    place: Place,
    *,
    window: tuple[int, int],
    healed: Bar | None = None,
) -> Strip:
    """What there is to show between the two times of `window`.

    Args:
        recording: for hosts and epochs; without one there are only faults.
        faults: as executed.
        place: where a time stands; bars are packed by it.
        window: first and last nanosecond.
        healed: the phase of a run in which everything works again.
    """
    lanes: list[Lane] = []
    notes: list[str] = []
    if recording is not None:
        lanes += _hosts(recording.hosts, window, notes)
        epochs = [_epoch(span, window[1]) for span in recording.epochs.values()]
        lanes += _packed("epochs", epochs, place, window, notes)
    lanes += _packed("faults", [_fault(fault) for fault in faults], place, window, notes)
    if healed is not None:
        lanes.append(Lane("liveness", [healed]))
    return Strip(lanes, notes)


def _hosts(spans: list[HostSpan], window: tuple[int, int], notes: list[str]) -> Iterator[Lane]:
    by_host: dict[str, list[Bar]] = {}
    for span in spans:
        bars = by_host.setdefault(span.host, [])
        if span.from_ns <= window[1] and (span.until_ns == 0 or span.until_ns >= window[0]):
            bars += _host(span, window[1])
    for host in list(by_host)[:HOSTS_MAX]:
        yield Lane(host, by_host[host])
    if len(by_host) > HOSTS_MAX:
        notes.append(f"{HOSTS_MAX} of {len(by_host):,} hosts drawn.")


def _host(span: HostSpan, end_ns: int) -> list[Bar]:
    tooltip = f"{span.host} is up {stretch(span.from_ns, span.until_ns)}"
    bars = [Bar(span.from_ns, span.until_ns or max(end_ns, span.from_ns), "up", "", tooltip)]
    if span.until_ns and span.until_ns <= end_ns:
        bars.append(Bar(span.until_ns, span.until_ns, "crash", "", f"{span.host} ends at {seconds(span.until_ns)}"))
    return bars


def _epoch(span: EpochSpan, end_ns: int) -> Bar:
    is_open = span.outcome == "open" or not span.ended_ns
    tooltip = f"epoch {span.epoch}: {span.outcome}, {stretch(span.begun_ns, span.ended_ns)}, plan {span.plan}"
    end_ns = max(end_ns if is_open else span.ended_ns, span.begun_ns)
    return Bar(span.begun_ns, end_ns, span.outcome, str(span.epoch), tooltip)


def _fault(fault: ExecutedFault) -> Bar:
    if not fault.until_ns:
        return Bar(fault.at_ns, fault.at_ns, "point", fault.text, f"{fault.text}, at {seconds(fault.at_ns)}")
    tooltip = f"{fault.text}, {stretch(fault.at_ns, fault.until_ns)}"
    return Bar(fault.at_ns, fault.until_ns, "fault", fault.text, tooltip)


def _packed(label: str, bars: list[Bar], place: Place, window: tuple[int, int], notes: list[str]) -> list[Lane]:
    shown = [bar for bar in bars if bar.start_ns <= window[1] and bar.end_ns >= window[0]]
    lanes: list[list[Bar]] = []
    ends: list[float] = []
    dropped = max(len(shown) - BARS_MAX, 0)
    for bar in sorted(shown[dropped:], key=lambda bar: bar.start_ns):
        left, right = extent(bar, place)
        free = next((index for index, end in enumerate(ends) if end <= left), len(ends))
        if free == PACKED_MAX:
            dropped += 1
            continue
        if free == len(ends):
            lanes.append([])
            ends.append(right)
        lanes[free].append(bar)
        ends[free] = right
    if dropped:
        notes.append(f"{len(shown) - dropped:,} of {len(shown):,} {label} drawn.")
    return [Lane(label if index == 0 else "", lane) for index, lane in enumerate(lanes)]


def extent(bar: Bar, place: Place) -> tuple[float, float]:
    """From where to where a bar needs room, its label and a gap included."""
    left, right = place(bar.start_ns), place(bar.end_ns)
    words = CHARACTER_PX * len(_label(bar)) + 8
    return left, max(right, left + 4, left + words) + 3


def _label(bar: Bar) -> str:
    return shortened(clean(bar.label), 40)


def draw_strip(strip: Strip, place: Place, *, left: float, right: float, top: int, bottom: int) -> Iterator[str]:
    """The shades from `top` to `bottom` behind everything, then the lanes from `top` on."""
    for lane in strip.lanes:
        for bar in lane.bars:
            yield from _shade(bar, place, left=left, right=right, top=top, bottom=bottom)
    for index, lane in enumerate(strip.lanes):
        y = top + LANE_HEIGHT * (index + 0.5)
        yield f'<text class="small" x="16" y="{px(y + 4)}">{title(lane.label)}{text(shortened(lane.label, 20))}</text>'
        yield f'<path class="lane" d="M{px(left)} {px(y)}H{px(right)}"/>'
        for bar in lane.bars:
            yield from _bar(bar, place, y, left=left, right=right)


def _shade(bar: Bar, place: Place, *, left: float, right: float, top: int, bottom: int) -> Iterator[str]:
    if bar.kind == "fault":
        start, end = max(place(bar.start_ns), left), min(place(bar.end_ns), right)
        yield (
            f'<rect class="shade" x="{px(start)}" y="{top}" width="{px(max(end - start, 1))}" '
            f'height="{bottom - top}">{title(bar.tooltip)}</rect>'
        )
    elif bar.kind in ("point", "crash") and left <= place(bar.start_ns) <= right:
        yield f'<path class="instant" d="M{px(place(bar.start_ns))} {top}V{bottom}"/>'


def _bar(bar: Bar, place: Place, y: float, *, left: float, right: float) -> Iterator[str]:
    start, end = max(place(bar.start_ns), left), min(place(bar.end_ns), right)
    if bar.kind == "crash":
        if left <= start <= right:
            yield f'<path class="kill" d="{cross(start, y)}">{title(bar.tooltip)}</path>'
        return
    width = max(end - start, 3)
    values = data(kind=bar.kind, start_ns=bar.start_ns, end_ns=bar.end_ns)
    yield f'<g class="bar"{values}>{title(bar.tooltip)}'
    box = f'x="{px(start)}" y="{px(y - 6)}" width="{px(width)}" height="12"'
    yield f'<rect class="{bar.kind}" {box} rx="2"/>'
    if bar.kind == "aborted":
        yield f'<path class="strike" d="M{px(start)} {px(y + 6)}L{px(start + width)} {px(y - 6)}"/>'
    if bar.label:
        # Near the right edge words end there: they may hide the bar, but are not cut off.
        x = min(start + 4, right - CHARACTER_PX * len(_label(bar)))
        yield f'<text x="{px(x)}" y="{px(y + 4)}">{text(_label(bar))}</text>'
    yield "</g>"


def strip_legend(strip: Strip) -> Iterator[tuple[str, str]]:
    """Samples with words for the kinds of bars that occur."""
    found = {bar.kind for lane in strip.lanes for bar in lane.bars}
    words: tuple[tuple[BarKind, str], ...] = (
        ("up", "host up"),
        ("crash", "host ends"),
        ("complete", "epoch complete"),
        ("aborted", "epoch aborted"),
        ("open", "epoch open"),
        ("fault", "fault"),
        ("point", "fault without an end"),
        ("healed", "everything healed"),
    )
    for kind, meaning in words:
        if kind not in found:
            continue
        if kind == "crash":
            yield f'<path class="kill" d="{cross(12, 0)}"/>', meaning
            continue
        strike = '<path class="strike" d="M0 6L24 -6"/>' if kind == "aborted" else ""
        width = 4 if kind == "point" else 24
        yield f'<rect class="{kind}" x="0" y="-6" width="{width}" height="12" rx="2"/>{strike}', meaning
