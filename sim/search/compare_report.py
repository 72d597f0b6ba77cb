"""Report on a comparison as a table for the terminal and as a figure, with a recommended protocol and checkpoint interval.

The figure has one panel for each pattern and failure rate. Each panel has one group of bars per checkpoint interval, and each group has one
bar per protocol. The whisker on a bar shows the 95 % confidence interval of the mean. Each protocol is identified by the colour of its bars
and by a number under each bar. The same comparison always produces a byte-identical figure. The SVG file contains no script.

The recommendation is one of the measured protocols, and the report states in words how certain it is. `protocols/advice.py` computes the
expected cost per hour, and chooses among protocols of equal cost. The *loss* is the average cost of one failure. If runs report lost turns,
the total loss of a run is the time for these turns at the speed of a bare run, plus the time spent in recoveries. If runs do not report
lost turns, the total loss is the extra time for the same work with failures, computed seed by seed. In both cases, the total loss is
divided by the number of failures to obtain the loss.

For each protocol, its best measured interval is considered, and the protocol with the lowest cost is recommended. If other protocols do not
cost clearly more, the simplest of all these protocols is recommended. Coordinated protocols count as simplest, then uncoordinated ones,
then communication-induced ones (`SIMPLEST_FIRST`).

The recommended interval is computed by Daly's formula (`protocols/policy.py`) from the measured cost of one checkpoint, which is the
overhead times the interval. Daly's interval is used only if it lies between measured intervals and costs no more than the best measured
interval. Otherwise, the best measured interval is recommended. Measurements take precedence over formulas, and Daly's formula is not used
if the measured cost cannot be distinguished from zero.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec

from snapline.diagrams.style import data, head, legend, px, text, title
from snapline.errors import UsageError
from snapline.protocols.advice import SIMPLEST_FIRST, hourly_cost_s, simplest
from snapline.protocols.policy import daly
from snapline.sim.search.compare import (
    METRICS,
    Cell,
    Comparison,
    Difference,
    Setting,
    Summary,
    draws,
    mean_of,
    with_percentiles,
)

# -- advice ---------------------------------------------------------------------------------------------------------------


class PricedSetting(msgspec.Struct, frozen=True):
    """Cost of a protocol at one measured interval, in seconds per hour. `difference` is the cost minus the cost of the cheapest setting."""

    protocol: str
    interval_s: float
    cost_s: float
    low_s: float
    high_s: float
    overhead: float
    loss_s: float
    difference: Difference


class Advice(msgspec.Struct, frozen=True):
    """Recommended settings. `why` explains the recommendation in sentences with numbers. `options` lists all settings that were considered,
    cheapest first."""

    protocol: str
    interval_s: float
    why: list[str]
    options: list[PricedSetting] = msgspec.field(name="priced")


def recommend(comparison: Comparison, mtbf_s: float) -> Advice:
    """Recommend settings for a fleet that fails every `mtbf_s` seconds on average.

    Raises:
        UsageError: If `mtbf_s` is not positive and finite, or if the comparison lacks cells with failures, cells without failures, or runs
            that passed.
    """
    if not (math.isfinite(mtbf_s) and mtbf_s > 0):
        raise UsageError(f"mtbf_s is {mtbf_s}: give the fleet's mean time between failures in seconds")
    if 0.0 not in comparison.failure_rates_per_s or max(comparison.failure_rates_per_s) == 0:
        raise UsageError("advice needs cells without failures and cells with them: compare rates 0 and above 0")
    pricer = Pricer(comparison, mtbf_s)
    options = pricer.all()
    if not options:
        raise UsageError("no cell has enough runs that passed: compare more seeds, or look at those that failed")
    best_of = {protocol: _first(options, protocol) for protocol in comparison.protocols}
    rivals = [one for one in best_of.values() if one is not None and not one.difference.is_clear]
    simplest_protocol = simplest([one.protocol for one in rivals])
    chosen = next(one for one in rivals if one.protocol == simplest_protocol)
    interval_s, interval_reasons = pricer.interval_of(
        chosen, [one for one in options if one.protocol == chosen.protocol]
    )
    why = [*_why(chosen, options[0], rivals, best_of, mtbf_s), *interval_reasons, _trust(comparison)]
    return Advice(chosen.protocol, interval_s, why, options)


def _first(options: Sequence[PricedSetting], protocol: str) -> PricedSetting | None:
    return next((one for one in options if one.protocol == protocol), None)


class Pricer:
    """Computes the cost of each protocol at each checkpoint interval, averaged over patterns."""

    def __init__(self, comparison: Comparison, mtbf_s: float) -> None:
        self._comparison = comparison
        self._mtbf_s = mtbf_s
        self._cells = {cell.setting: cell for cell in comparison.cells}
        self._rates = [rate for rate in comparison.failure_rates_per_s if rate]

    def all(self) -> list[PricedSetting]:
        """Return the cost of each protocol at each interval, cheapest first. Omit settings whose cost is unknown."""
        every = range(len(self._comparison.seeds))
        settings = [(p, i) for p in self._comparison.protocols for i in self._comparison.intervals_s]
        costs = {setting: self.cost_s(*setting, every) for setting in settings}
        known = [setting for setting in settings if not math.isnan(costs[setting])]
        known.sort(key=lambda setting: (costs[setting], SIMPLEST_FIRST.index(setting[0])))
        resampled = {setting: [self.cost_s(*setting, picked) for picked in draws(len(every))] for setting in known}
        return [self._priced(setting, known[0], costs, resampled) for setting in known]

    def _priced(
        self,
        setting: tuple[str, float],
        best: tuple[str, float],
        costs: dict[tuple[str, float], float],
        resampled: dict[tuple[str, float], list[float]],
    ) -> PricedSetting:
        """Compute a setting's cost and its difference from the cheapest setting. All settings use the same bootstrap samples, so costs can
        be subtracted sample by sample."""
        count = len(self._comparison.seeds)
        cost = with_percentiles(count, costs[setting], resampled[setting])
        differences = [one - other for one, other in zip(resampled[setting], resampled[best], strict=True)]
        difference = with_percentiles(count, costs[setting] - costs[best], differences)
        overhead, loss_s = self.overhead(*setting, range(count)), self.loss_s(*setting, range(count))
        return PricedSetting(*setting, cost.mean, cost.low, cost.high, overhead, loss_s, difference)

    def cost_s(self, protocol: str, interval_s: float, picked: Sequence[int]) -> float:
        """Return the cost of a setting in seconds per hour for the given seeds, or NaN if the cost is unknown."""
        overhead, loss_s = self.overhead(protocol, interval_s, picked), self.loss_s(protocol, interval_s, picked)
        return hourly_cost_s(overhead, loss_s=loss_s, mtbf_s=self._mtbf_s)

    def overhead(self, protocol: str, interval_s: float, picked: Sequence[int]) -> float:
        """Return the mean overhead of a setting in cells without failures."""
        cells = [self._cells[Setting(protocol, pattern, interval_s, 0.0)] for pattern in self._comparison.patterns]
        return _mean([_mean(_column(cell, "overhead", picked)) for cell in cells])

    def loss_s(self, protocol: str, interval_s: float, picked: Sequence[int]) -> float:
        """Return a setting's mean loss per failure in seconds, over all cells with failures."""
        return _mean([self._loss_s(protocol, interval_s, pattern, picked) for pattern in self._comparison.patterns])

    def _loss_s(self, protocol: str, interval_s: float, pattern: str, picked: Sequence[int]) -> float:
        lost_s = failures = 0.0
        for rate in self._rates:
            cell = self._cells[Setting(protocol, pattern, interval_s, rate)]
            counts = _column(cell, "failures", picked)
            for count, one_s in zip(counts, self._losses_s(cell, pattern, picked), strict=True):
                if count > 0 and not math.isnan(one_s):
                    failures += count
                    lost_s += one_s
        return lost_s / failures if failures else math.nan

    def _losses_s(self, cell: Cell, pattern: str, picked: Sequence[int]) -> list[float]:
        if "lost_turns" not in cell.values or "turns" not in cell.values:
            each = zip(_column(cell, "loss_s", picked), _column(cell, "failures", picked), strict=True)
            return [loss_s * count for loss_s, count in each]
        bare_s = self._comparison.bare[pattern]
        names = ("turns", "lost_turns", "recovery_s")
        turns, lost, recovery_s = (_column(cell, name, picked) for name in names)
        pace_s = [bare_s[index] / (turns[place] - lost[place] or math.nan) for place, index in enumerate(picked)]
        return [lost[place] * pace_s[place] + recovery_s[place] for place in range(len(picked))]

    def interval_of(self, chosen: PricedSetting, options: Sequence[PricedSetting]) -> tuple[float, list[str]]:
        """Return the recommended checkpoint interval, and sentences that justify it."""
        price_s = chosen.overhead * chosen.interval_s
        count = len(self._comparison.seeds)
        resampled = [self.overhead(chosen.protocol, chosen.interval_s, picked) for picked in draws(count)]
        sure = with_percentiles(count, chosen.overhead, resampled)
        if not (sure.low > 0 and price_s > 0):
            low, high = f"{sure.low:.2%}", f"{sure.high:.2%}"
            unsure = f"What checkpoints alone cost cannot be told from nothing (95 %: {low} to {high}), so no formula applies."
            return chosen.interval_s, [unsure, f"Of the measured intervals {chosen.interval_s:g} s is the cheapest."]
        formula_s = daly(price_s, self._mtbf_s)
        measured = sorted(options, key=lambda one: one.interval_s)
        formula_text = (
            f"One checkpoint costs {price_s:.4g} s, for which Daly's formula says an interval of {formula_s:.3g} s."
        )
        if not measured[0].interval_s <= formula_s <= measured[-1].interval_s:
            low_s, high_s = measured[0].interval_s, measured[-1].interval_s
            outside = f"That is outside of what was measured, {low_s:g} to {high_s:g} s; compare intervals around it."
            return chosen.interval_s, [formula_text, outside]
        loss_s = _between(measured, formula_s)
        expected_s = hourly_cost_s(price_s / formula_s, loss_s=loss_s, mtbf_s=self._mtbf_s)
        if expected_s <= chosen.cost_s:
            agrees = f"Between the measured cells it costs {expected_s:.3g} s an hour, no more than the best of them."
            return formula_s, [formula_text, agrees]
        worse = (
            f"By the measured cells it would cost {expected_s:.3g} s an hour, more than {chosen.interval_s:g} s does."
        )
        return chosen.interval_s, [formula_text, worse]


def _between(measured: Sequence[PricedSetting], interval_s: float) -> float:
    """Return a protocol's loss per failure at any interval, by linear interpolation between measured intervals."""
    above = next(index for index, one in enumerate(measured) if one.interval_s >= interval_s)
    high = measured[above]
    if high.interval_s == interval_s:
        return high.loss_s
    low = measured[above - 1]
    part = (interval_s - low.interval_s) / (high.interval_s - low.interval_s)
    return low.loss_s + part * (high.loss_s - low.loss_s)


def _column(cell: Cell, metric: str, picked: Sequence[int]) -> list[float]:
    values = cell.values.get(metric)
    return [math.nan] * len(picked) if values is None else [values[index] for index in picked]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return mean_of(known) if known else math.nan


def _why(
    chosen: PricedSetting,
    cheapest: PricedSetting,
    rivals: Sequence[PricedSetting],
    best_of: dict[str, PricedSetting | None],
    mtbf_s: float,
) -> list[str]:
    first = (
        f"{chosen.protocol} at {chosen.interval_s:g} s costs {chosen.cost_s:.3g} s an hour "
        f"(95 %: {chosen.low_s:.3g} to {chosen.high_s:.3g}), with a failure every {mtbf_s:g} s: "
        f"checkpoints {chosen.overhead:.2%}, and {chosen.loss_s:.3g} s for each failure."
    )
    sentences = [first]
    tied = [one.protocol for one in rivals if one.protocol != chosen.protocol]
    if tied:
        sentences.append(f"These runs cannot tell it from {', '.join(tied)}; of those it is the simplest.")
    if chosen.protocol != cheapest.protocol:
        sentences.append(
            f"{cheapest.protocol} measured {chosen.difference.mean:.3g} s an hour less "
            f"(95 %: {chosen.difference.low:.3g} to {chosen.difference.high:.3g}), which may be chance."
        )
    for one in best_of.values():
        if one is not None and one.difference.is_clear:
            low, high = one.difference.low, one.difference.high
            sentences.append(
                f"{one.protocol}, at its best interval of {one.interval_s:g} s, costs {one.difference.mean:.3g} s an hour "
                f"more than {cheapest.protocol} (95 %: {low:.3g} to {high:.3g})."
            )
    return sentences


def _trust(comparison: Comparison) -> str:
    failed = sum(sum(cell.failed.values()) for cell in comparison.cells)
    runs = len(comparison.cells) * len(comparison.seeds)
    sentence = f"Based on {len(comparison.seeds)} seeds in each of {len(comparison.cells)} cells, in virtual time"
    return f"{sentence}; {failed} of {runs} runs did not pass and are left out." if failed else f"{sentence}."


# -- table and figure -----------------------------------------------------------------------------------------------------

PANEL_WIDTH, PANEL_HEIGHT = 560, 180
GAP, LEFT, TOP = 64, 72, 72
BAR_MAX = 28.0
"""Maximum width of a bar in pixels. Bars are thinner if there are many."""

TICKS = 4
"""Approximate number of ticks on the vertical axis."""

NOTHING = 1e-12
"""Ranges of values that are smaller than this count as empty, because no metric is that precise."""

COLORS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#9a6700", "#0550ae", "#6e7781")
"""Colours that are readable on light and dark backgrounds. If there are more protocols than colours, colours are
reused, and the numbers under the bars identify the protocols."""

RULES = """.whisker { stroke: var(--ink); stroke-width: 1.5; fill: none; } .axis { stroke: var(--ink); }
.small { font-size: 10px; }"""


def table(
    comparison: Comparison, *, metrics: Sequence[str] = ("overhead", "busy_s", "loss_s", "forced_ratio", "recovery_s")
) -> str:
    """Return a table with one line per cell. Each value is the mean ± half the width of its confidence interval. A "*" marks a protocol
    that clearly differs from the first protocol."""
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
    """Format a metric's summary for the table."""
    if summary is None or summary.count == 0:
        return "–"
    half = summary.high - summary.mean
    around = f" ± {half:.2g}" if math.isfinite(half) else " ± ?"
    return f"{summary.mean:.4g}{around}{'*' if is_clear else ''}"


def advice_text(advice: Advice) -> str:
    """Format a recommendation for the terminal, with its reasons and all settings that were considered."""
    lines = [f"Run {advice.protocol} with a checkpoint every {advice.interval_s:.3g} s.", ""]
    lines += [f"  {sentence}" for sentence in advice.why]
    lines += ["", "  seconds an hour  protocol and interval"]
    for one in advice.options:
        lines.append(f"  {one.cost_s:9.4g} ({one.low_s:.4g} to {one.high_s:.4g})  {one.protocol}, {one.interval_s:g} s")
    return "\n".join(lines) + "\n"


# -- figure -------------------------------------------------------------------------------------------------------------


class Scale(msgspec.Struct, frozen=True):
    """Converts values to vertical pixel positions in a panel. Values beyond the axis are drawn at the first or last tick."""

    top: float
    ticks: list[float]

    def y(self, value: float) -> float:
        least, most = self.ticks[0], self.ticks[-1]
        held = min(max(value, least), most)
        return self.top + PANEL_HEIGHT * (most - held) / (most - least)


def figure(comparison: Comparison, metric: str = "overhead") -> str:
    """Return the figure as the text of an SVG file.

    Raises:
        UsageError: If no cell has the metric.
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
    """Return the axis ticks, which are round numbers. The range of the ticks includes zero, all means and all whiskers."""
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
