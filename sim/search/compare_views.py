"""Views of a comparison: a table for a terminal, and a figure.

The figure has one panel per pattern and failure rate, with one group of bars per interval and one bar per protocol. A
whisker shows the mean's 95 % confidence interval. A number under each bar identifies the protocol, in addition to the
colour. The same comparison gives the same bytes; there is no script.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec

from snapline.diagrams.legend import legend
from snapline.diagrams.style import data, head, px, text, title
from snapline.errors import UsageError
from snapline.sim.search.advice import Advice
from snapline.sim.search.compare import METRICS, Cell, Comparison, Setting, Summary

PANEL_WIDTH, PANEL_HEIGHT = 560, 180
GAP, LEFT, TOP = 64, 72, 72
BAR_MAX = 28.0
"""Maximum width in pixels; bars get thinner when there are many."""

TICKS = 4
"""Approximate number of steps on the axis."""

NOTHING = 1e-12
"""A smaller range counts as empty, since no metric is that precise."""

COLORS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#9a6700", "#0550ae", "#6e7781")
"""Colours readable on light and dark backgrounds. Further protocols reuse them and are identified by their numbers."""

RULES = """.whisker { stroke: var(--ink); stroke-width: 1.5; fill: none; } .axis { stroke: var(--ink); }
.small { font-size: 10px; }"""


def table(
    comparison: Comparison, *, metrics: Sequence[str] = ("overhead", "busy_s", "loss_s", "forced_ratio", "recovery_s")
) -> str:
    """Return a table with one line per cell: mean ± half of the interval, and "*" if a protocol clearly differs from the first."""
    shown = [metric for metric in metrics if any(metric in cell.values for cell in comparison.cells)]
    clear = {(one.setting, one.metric) for one in comparison.contrasts if one.difference.is_clear}
    rows = [["pattern", "failures/s", "interval", "protocol", "passed", *shown]]
    for cell in comparison.cells:
        setting = cell.setting
        names = [setting.pattern, f"{setting.failure_rate_per_s:g}", f"{setting.interval_s:g} s", setting.protocol]
        numbers = [number(cell.metrics.get(one), is_clear=(setting, one) in clear) for one in shown]
        rows.append([*names, f"{cell.passed}/{len(comparison.seeds)}", *numbers])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    note = f"Mean ± 95 % over {len(comparison.seeds)} seeds; * differs clearly from {comparison.protocols[0]}, seed by seed."
    return "\n".join([*lines, note]) + "\n"


def number(summary: Summary | None, *, is_clear: bool) -> str:
    """Format a summary for a table."""
    if summary is None or summary.count == 0:
        return "–"
    half = summary.high - summary.mean
    around = f" ± {half:.2g}" if math.isfinite(half) else " ± ?"
    return f"{summary.mean:.4g}{around}{'*' if is_clear else ''}"


def advice_text(advice: Advice) -> str:
    """Format the advice for a terminal, with its reasons and all options considered."""
    lines = [f"Run {advice.protocol} with a checkpoint every {advice.interval_s:.3g} s.", ""]
    lines += [f"  {sentence}" for sentence in advice.why]
    lines += ["", "  seconds an hour  protocol and interval"]
    for one in advice.options:
        lines.append(f"  {one.cost_s:9.4g} ({one.low_s:.4g} to {one.high_s:.4g})  {one.protocol}, {one.interval_s:g} s")
    return "\n".join(lines) + "\n"


# -- figure -------------------------------------------------------------------------------------------------------------


class Scale(msgspec.Struct, frozen=True):
    """Mapping of values to vertical pixels in one panel, from the first tick to the last."""

    top: float
    ticks: list[float]

    def y(self, value: float) -> float:
        least, most = self.ticks[0], self.ticks[-1]
        held = min(max(value, least), most)
        return self.top + PANEL_HEIGHT * (most - held) / (most - least)


def figure(comparison: Comparison, metric: str = "overhead") -> str:
    """Return the figure as the text of an SVG file.

    Raises:
        UsageError: no cell has the metric.
    """
    summaries = [cell.metrics[metric] for cell in comparison.cells if metric in cell.metrics]
    known = [summary for summary in summaries if summary.count]
    if not known:
        available = sorted({name for cell in comparison.cells for name in cell.metrics})
        raise UsageError(f"no cell has the metric {metric!r}: use one of {', '.join(available)}")
    marked = ticks(known)
    panels = [(pattern, rate) for pattern in comparison.patterns for rate in comparison.failure_rates_per_s]
    bottom = TOP + len(panels) * (PANEL_HEIGHT + GAP)
    entries = [(_sample(index), f"{index + 1} {name}") for index, name in enumerate(comparison.protocols)]
    note = f"Bars: mean over {len(comparison.seeds)} seeds; whiskers: 95 % confidence."
    marks, height = legend(entries, left=16, right=LEFT + PANEL_WIDTH, top=bottom, notes=[note])
    heading = f"{comparison.name}: {metric}, {METRICS.get(metric, 'a metric of the runs')}"
    width = LEFT + PANEL_WIDTH + 32
    values = {"metric": metric}
    rows = [*head(heading=heading, width=width, height=height, values=values, rules=RULES)]
    for place, (pattern, rate) in enumerate(panels):
        scale = Scale(TOP + place * (PANEL_HEIGHT + GAP), marked)
        rows += _panel(comparison, metric, pattern, rate, scale)
    return "\n".join([*rows, *marks, "</svg>"]) + "\n"


def ticks(summaries: Sequence[Summary]) -> list[float]:
    """Return round values that enclose zero and all means and whiskers."""
    ends = [value for one in summaries for value in (one.mean, one.low, one.high) if math.isfinite(value)]
    least, most = min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)
    if most - least < NOTHING:
        return [0.0, 1.0]
    rough = (most - least) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [step * number for number in range(math.floor(least / step), math.ceil(most / step) + 1)]


def _sample(index: int) -> str:
    return f'<rect x="4" y="-6" width="14" height="12" style="fill:{COLORS[index % len(COLORS)]}"/>'


def _panel(comparison: Comparison, metric: str, pattern: str, rate: float, scale: Scale) -> Iterator[str]:
    heading = f"{pattern}, {f'{rate:g} failures per second' if rate else 'no failures'}"
    yield f'<text x="{LEFT}" y="{px(scale.top - 8)}">{text(heading)}</text>'
    for value in scale.ticks:
        y = px(scale.y(value))
        yield f'<path class="tick" d="M{LEFT} {y}h{PANEL_WIDTH}"/>'
        yield f'<text class="small faint" x="{LEFT - 6}" y="{y}" text-anchor="end">{value:.3g}</text>'
    yield f'<path class="axis" d="M{LEFT} {px(scale.y(0))}h{PANEL_WIDTH}"/>'
    group = PANEL_WIDTH / len(comparison.intervals_s)
    bar = min(BAR_MAX, group * 0.8 / len(comparison.protocols))
    for place, interval_s in enumerate(comparison.intervals_s):
        middle = LEFT + group * (place + 0.5)
        left = middle - bar * len(comparison.protocols) / 2
        y = px(scale.top + PANEL_HEIGHT + 28)
        yield f'<text x="{px(middle)}" y="{y}" text-anchor="middle">every {interval_s:g} s</text>'
        for index, protocol in enumerate(comparison.protocols):
            cell = comparison.cell(Setting(protocol, pattern, interval_s, rate))
            yield from _bar(cell, metric, index, left + bar * index, bar, scale)


def _bar(cell: Cell, metric: str, index: int, x: float, width: float, scale: Scale) -> Iterator[str]:
    summary = cell.metrics.get(metric)
    middle = x + width / 2
    y = px(scale.top + PANEL_HEIGHT + 13)
    yield f'<text class="small faint" x="{px(middle)}" y="{y}" text-anchor="middle">{index + 1}</text>'
    if summary is None or not summary.count:
        return
    setting = cell.setting
    yield f"<g{data(protocol=setting.protocol, interval_s=setting.interval_s, mean=f'{summary.mean:.6g}')}>"
    yield title(setting.protocol, f"every {setting.interval_s:g} s", number(summary, is_clear=False))
    upper, lower = scale.y(max(summary.mean, 0)), scale.y(min(summary.mean, 0))
    yield (
        f'<rect x="{px(x + 1)}" y="{px(upper)}" width="{px(width - 2)}" height="{px(max(lower - upper, 0.5))}" '
        f'style="fill:{COLORS[index % len(COLORS)]}"/>'
    )
    if math.isfinite(summary.low) and math.isfinite(summary.high):
        high, low = px(scale.y(summary.high)), px(scale.y(summary.low))
        yield (
            f'<path class="whisker" d="M{px(middle - 3)} {high}h6M{px(middle)} {high}V{low}M{px(middle - 3)} {low}h6"/>'
        )
    yield "</g>"
