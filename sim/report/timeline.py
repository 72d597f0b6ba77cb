"""The timeline of a run as SVG: hosts, epochs, faults and the healed end over virtual time, which is linear here."""

from collections.abc import Iterator

from snapline.pictures.look import head, legend, px, text, title
from snapline.sim.report.strip import LANE_HEIGHT, STYLE, Bar, Place, draw_strip, strip_legend, strip_of
from snapline.sim.report.words import count, seconds, stretch
from snapline.sim.result import Result
from snapline.sim.world.recording import Recording

WIDTH, LEFT, TOP = 1160, 96, 52
RIGHT = WIDTH - 24


def draw_timeline(result: Result, recording: Recording | None, *, heal_ns: int, within_ns: int) -> str:
    """The timeline as the text of an SVG element.

    Args:
        result: for the faults, the violations and the end of the run.
        recording: for hosts and epochs.
        heal_ns: when everything was made to work again.
        within_ns: how long the fleet then may take.
    """
    end_ns = max(_end_ns(result, recording), 1)

    def place(time_ns: int) -> float:
        return LEFT + (RIGHT - LEFT) * min(max(time_ns, 0), end_ns) / end_ns

    healed = _healed(heal_ns, within_ns, end_ns)
    strip = strip_of(recording, result.faults, place, window=(0, end_ns), healed=healed)
    bottom = TOP + LANE_HEIGHT * max(len(strip.lanes), 1)
    rows, height = legend(strip_legend(strip), left=LEFT, right=RIGHT, top=bottom + 44, notes=strip.notes)
    opening = head(
        heading="Timeline",
        description=_description(result, recording),
        width=WIDTH,
        height=height,
        states=(),
        style=STYLE,
        values={"picture": "timeline", "end_ns": end_ns},
    )
    strip_rows = draw_strip(strip, place, left=LEFT, right=RIGHT, top=TOP, bottom=bottom)
    parts = [*opening, *_axis(end_ns, place, bottom), *strip_rows, *_violations(result, place, bottom), *rows, "</svg>"]
    return "\n".join(parts) + "\n"


def _end_ns(result: Result, recording: Recording | None) -> int:
    times = [result.virtual_ns, *(violation.t_ns for violation in result.violations)]
    times += [time_ns for fault in result.faults for time_ns in (fault.at_ns, fault.until_ns)]
    if recording is not None:
        times += [span.ended_ns for span in recording.epochs.values()] + [span.until_ns for span in recording.hosts]
        times += [timed.t_ns for timed in recording.events[-1:]]
    # A fault that would have ended long after the run must not press the run into a corner.
    return min(max(times), result.virtual_ns) if result.virtual_ns else max(times)


def _healed(heal_ns: int, within_ns: int, end_ns: int) -> Bar | None:
    if heal_ns >= end_ns:
        return None
    tooltip = f"everything healed, {stretch(heal_ns, end_ns)}; the fleet has {seconds(within_ns)} to finish"
    return Bar(heal_ns, end_ns, "healed", "", tooltip)


def _description(result: Result, recording: Recording | None) -> str:
    """For who does not see the picture."""
    parts = [count(len(result.faults), "fault")]
    if recording is not None:
        outcomes = [span.outcome for span in recording.epochs.values()]
        parts.append(f"{count(outcomes.count('complete'), 'epoch')} complete, {outcomes.count('aborted')} aborted")
        ends = sum(1 for span in recording.hosts if span.until_ns)
        parts.append(f"{count(len({span.host for span in recording.hosts}), 'host')} with {count(ends, 'end')}")
    return f"{seconds(result.virtual_ns)} of virtual time: {', '.join(parts)}."


def _axis(end_ns: int, place: Place, bottom: int) -> Iterator[str]:
    step, unit_ns, unit = tick_step(end_ns)
    for time_ns in range(0, end_ns + 1, step):
        x = px(place(time_ns))
        yield f'<path class="tick" d="M{x} {TOP}V{bottom + 4}"/>'
        yield f'<text class="faint" x="{x}" y="{bottom + 18}" text-anchor="middle">{time_ns // unit_ns} {unit}</text>'


def tick_step(span_ns: int) -> tuple[int, int, str]:
    """A round distance (1, 2, 5, 10 …) that gives at most a dozen ticks, and the unit to write them in."""
    unit_step = 1
    while span_ns // (10 * unit_step) > 12:
        unit_step *= 10
    step = next(unit_step * factor for factor in (1, 2, 5, 10) if span_ns // (unit_step * factor) <= 12)
    units = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
    unit_ns, unit = next(pair for pair in units if step % pair[0] == 0)
    return step, unit_ns, unit


def _violations(result: Result, place: Place, bottom: int) -> Iterator[str]:
    for violation in result.violations[:1]:
        x = place(violation.t_ns)
        tooltip = title(f"{violation.guarantee}, {violation.oracle}, at {seconds(violation.t_ns)}")
        yield f'<path class="violation" d="M{px(x)} {TOP - 6}V{bottom}">{tooltip}</path>'
        words = f"{violation.guarantee} violated"
        yield f'<text class="alarm" x="{px(min(x, RIGHT))}" y="{TOP - 10}" text-anchor="end">{text(words)}</text>'
