"""Comparison of protocols, patterns, checkpoint intervals and failure rates, in all combinations and with the same seeds.

A *cell* is one combination. All cells use the same seeds. So for a given seed, fleets, message delays and failure times are the same in all
cells. Hosts crash at random with a constant rate, and restart soon after each crash. The times between crashes are exponentially
distributed and depend only on the seed. Cells are compared seed by seed (`paired_difference`), so that effects of a seed that are the same
in both cells cancel out. If a run does not pass, its cell has no value for this seed. The difference between two cells is computed only
from the seeds that passed in both cells.

The *overhead* is the relative increase in virtual time compared with a *bare* run, which has neither checkpoints nor failures. The overhead
includes pauses, piggybacked data, lost work and recoveries. In a cell without failures, the overhead is only the cost of checkpoints.

Statistics over several runs assume that the runs are independent and identically distributed, which holds because the seeds are. There are
two kinds of 95 % confidence intervals:

- Student's interval for a single mean is mean ± t(n - 1) · s / √n. It is exact for normally distributed values, and accurate for other
  distributions with about thirty runs or more.
- The paired bootstrap interval is used for the difference between two settings that ran with the *same* seeds (Efron 1979; Efron and
  Tibshirani 1993, chapter 13). To compute the paired bootstrap interval, draw n of the n seeds with replacement, take the mean of their
  differences, and repeat this many times. The bootstrap interval extends from the 2.5th to the 97.5th percentile of these means. In a
  paired comparison, effects of a seed that are the same under both settings cancel out. With fewer than ten seeds, a bootstrap interval is
  too narrow.

If there are too few values, the interval is infinite, which means that no conclusion is possible. Bootstraps use a fixed random seed, so
that the same runs always give the same report.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache

import msgspec

from snapline.errors import UsageError
from snapline.messages.answers import document
from snapline.protocols.names import CHANDY_LAMPORT, PROTOCOLS
from snapline.sim.choices import stream_of
from snapline.sim.faults.fault_kinds import CrashFault, duration_ns, format_duration
from snapline.sim.result import Result
from snapline.sim.scenario import FaultPart, Scenario, TriggerPart
from snapline.sim.search.pool import SEED_TIMEOUT_S, make_setup, run_tasks
from snapline.sim.search.swarm import draw
from snapline.sim.search.worker import Runner, Task

# -- statistics -----------------------------------------------------------------------------------------------------------

RESAMPLES = 2_000
"""Number of bootstrap samples. It is large enough that the ends of an interval are stable to about 5 % of the interval's width."""

BOOTSTRAPPED_MAX = 1_000
"""Maximum number of pairs for a bootstrap. With more pairs, Student's interval is accurate enough, and a bootstrap would take seconds."""

EXACT_DEGREES_MAX = 200
"""Maximum degrees of freedom for which the t distribution is computed exactly. With more degrees, an expansion is
accurate to more than six digits."""

NORMAL_975 = 1.959963984540054
"""Percentile 97.5 of the standard normal distribution."""


class Summary(msgspec.Struct, frozen=True):
    """Summary of a metric over several runs. The mean's 95 % confidence interval extends from `low` to `high`."""

    count: int
    mean: float
    p50: float
    p95: float
    max: float
    low: float
    high: float


class Difference(msgspec.Struct, frozen=True):
    """Mean of paired differences, with its 95 % confidence interval."""

    count: int
    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Return whether the confidence interval excludes zero."""
        return self.low > 0 or self.high < 0


def summarise(values: Iterable[float]) -> Summary:
    """Return the mean with Student's interval, and the percentiles. If there are no values, return an infinite interval and NaN for all
    other fields."""
    ordered = sorted(values)
    if not ordered:
        return Summary(0, math.nan, math.nan, math.nan, math.nan, -math.inf, math.inf)
    mean = mean_of(ordered)
    half = half_width(ordered)
    p50, p95 = percentile(ordered, 0.5), percentile(ordered, 0.95)
    return Summary(len(ordered), mean, p50, p95, ordered[-1], mean - half, mean + half)


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of the values. The sum is exact, so the result does not depend on the order of the values."""
    return math.fsum(values) / len(values)


def half_width(values: Sequence[float]) -> float:
    """Return half the width of Student's confidence interval for the mean. The width is infinite if there are fewer than two values."""
    if len(values) < 2:
        return math.inf
    mean = mean_of(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return t_975(len(values) - 1) * math.sqrt(variance / len(values))


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the quantile `part` (from 0 to 1) of sorted values, by linear interpolation (Hyndman and Fan's type 7)."""
    position = part * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def t_975(degrees: int) -> float:
    """Return the 97.5th percentile of Student's t distribution."""
    if degrees > EXACT_DEGREES_MAX:
        return _expanded(degrees)
    low, high = NORMAL_975, 13.0  # the largest value is 12.7, for one degree of freedom
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < 0.95 else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """Return the probability that a t-distributed value lies between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    is_odd = degrees % 2 == 1
    term = total = math.cos(angle) if is_odd else 1.0
    for index in range(2 if is_odd else 1, degrees - 2, 2):
        term *= square * index / (index + 1)
        total += term
    if not is_odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if degrees > 1 else 0))


def _expanded(degrees: int) -> float:
    """Approximate the 97.5th percentile of Student's t distribution by a Cornish-Fisher expansion (Abramowitz and Stegun, 26.7.5)."""
    z = NORMAL_975
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def paired_difference(baseline: Sequence[float], values: Sequence[float], *, seed: int = 0) -> Difference:
    """Return the mean difference between `values` and `baseline`, with its confidence interval. Both sequences must list the same seeds in
    the same order."""
    differences = [value - base for base, value in zip(baseline, values, strict=True)]
    if differences and min(differences) == max(differences) and len(differences) > 1:
        return Difference(len(differences), differences[0], differences[0], differences[0])
    if len(differences) > BOOTSTRAPPED_MAX:
        mean, half = mean_of(differences), half_width(differences)
        return Difference(len(differences), mean, mean - half, mean + half)
    return bootstrap(
        len(differences), lambda picked: sum(map(differences.__getitem__, picked)) / len(picked), seed=seed
    )


def bootstrap(count: int, statistic: Callable[[Sequence[int]], float], *, seed: int = 0) -> Difference:
    """Return a statistic of `count` runs, with its bootstrap confidence interval.

    Args:
        statistic: function that computes the statistic from a list of run indices, which may contain an index several times. Samples for
            which the function returns NaN are omitted.
        seed: random seed for drawing the samples.
    """
    if count == 0:
        return Difference(0, math.nan, -math.inf, math.inf)
    return with_percentiles(count, statistic(range(count)), map(statistic, draws(count, seed)))


def with_percentiles(count: int, value: float, resampled: Iterable[float]) -> Difference:
    """Return a value that was computed from `count` runs, with the percentile interval of its bootstrap samples."""
    ordered = sorted(one for one in resampled if not math.isnan(one))
    if count < 2 or not ordered:
        return Difference(count, value, -math.inf, math.inf)
    return Difference(count, value, percentile(ordered, 0.025), percentile(ordered, 0.975))


@lru_cache(maxsize=4)  # a comparison uses the same samples many times over
def draws(count: int, seed: int = 0) -> list[list[int]]:
    """Return `RESAMPLES` samples of `count` run indices, drawn with replacement."""
    random = stream_of(seed, "bootstrap").random
    return [[int(random() * count) for _ in range(count)] for _ in range(RESAMPLES)]


# -- comparison -----------------------------------------------------------------------------------------------------------

METRICS: Mapping[str, str] = {
    "overhead": "relative increase in duration over runs without checkpoints and failures",
    "finish_s": "virtual time until the work was done",
    "throughput_per_s": "messages per virtual second",
    "busy_s": "virtual time that hosts spent on turns and images, all together",
    "loss_s": "virtual time that one failure cost",
    "checkpoint_s": "virtual time from a checkpoint's begin until it is durable, mean",
    "recovery_s": "virtual time in recoveries",
    "lost_turns": "turns undone by failures",
    "rollback_turns": "turns that an agent was rolled back, maximum",
    "agents_rolled_back": "agents rolled back",
    "domino_depth": "checkpoints that an agent was rolled back, maximum",
    "forced_ratio": "forced checkpoints per basic one",
    "checkpoints_basic": "basic checkpoints",
    "checkpoints_forced": "forced checkpoints",
    "checkpoints_useless": "checkpoints that no consistent cut contains",
    "epochs_complete": "epochs complete",
    "epochs_aborted": "epochs aborted",
    "control_messages": "control messages",
    "piggyback_bytes": "bytes of piggyback",
    "store_bytes": "bytes in the store at the end",
}
"""Descriptions of the metrics that are compared, in the order of the table. Metrics that no run reports are omitted."""

RESTART_AFTER_S = 0.2
"""Downtime of a crashed host. It is short, so that the protocol is measured rather than the reboot."""

FAILURES_MAX = 1_000
"""Maximum number of failures in a run. With more failures, no work would be completed."""

CELLS_MAX = 10_000


class Setting(msgspec.Struct, frozen=True):
    """Settings of a cell. An interval of 0 stands for the bare run, which takes no checkpoints."""

    protocol: str
    pattern: str
    interval_s: float
    failure_rate_per_s: float


class Cell(msgspec.Struct):
    """Results of all runs with one combination of settings.

    Attributes:
        failed: number of seeds with each verdict other than "pass".
        values: for each metric, one value per seed. The value is NaN for a seed whose run did not pass.
    """

    setting: Setting
    passed: int
    failed: dict[str, int]
    values: dict[str, list[float]]
    metrics: dict[str, Summary] = {}


class Contrast(msgspec.Struct, frozen=True):
    """Difference in a metric between a cell and the cell that has the first protocol and otherwise the same settings, computed seed by
    seed."""

    setting: Setting
    baseline: str
    metric: str
    difference: Difference


class Comparison(msgspec.Struct):
    """Comparison of all cells. For each pattern, `bare` contains the duration of the bare run with each seed, in virtual seconds."""

    name: str
    protocols: list[str]
    patterns: list[str]
    intervals_s: list[float]
    failure_rates_per_s: list[float]
    seeds: list[int]
    bare: dict[str, list[float]]
    cells: list[Cell]
    contrasts: list[Contrast] = []

    def cell(self, setting: Setting) -> Cell:
        return next(cell for cell in self.cells if cell.setting == setting)

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(document("Comparison", of=self)))


def compare(
    template: Scenario,
    *,
    protocols: Sequence[str],
    patterns: Sequence[str] = (),
    intervals: Sequence[str] = ("500ms",),
    failure_rates_per_s: Sequence[float] = (0.0,),
    seeds: Sequence[int] = range(20),
    jobs: int = 1,
    runner: Runner | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    seed_timeout_s: float = SEED_TIMEOUT_S,
) -> Comparison:
    """Run all cells, and compare them.

    Args:
        template: scenario that provides all other settings. The template's faults occur in every cell.
        protocols: protocols to compare. Each protocol is compared with the first protocol.
        patterns: patterns to run. If the list is empty, the template's own pattern is run.
        intervals: checkpoint intervals, such as "500ms".
        failure_rates_per_s: rates of host crashes, in crashes per virtual second in the whole fleet.
        on_progress: function that is called with the number of completed runs and the total number.

    Raises:
        UsageError: If there is nothing to compare, a name is unknown, or there are too many cells.
    """
    pattern_names = list(patterns) or [template.fleet.module or template.fleet.pattern.name]
    settings = _settings(
        protocols, pattern_names, [duration_ns(interval) / 1e9 for interval in intervals], failure_rates_per_s
    )
    bare = [Setting(CHANDY_LAMPORT, pattern, 0.0, 0.0) for pattern in pattern_names]
    jobs_to_do = [(setting, seed) for setting in [*bare, *settings] for seed in seeds]
    templates = [scenario_of(template, setting, seed) for setting, seed in jobs_to_do]
    setup = make_setup(templates, runner=runner, seed_timeout_s=seed_timeout_s)
    tasks = [Task(seed, template=index) for index, (_, seed) in enumerate(jobs_to_do)]
    results: dict[tuple[Setting, int], Result] = {}
    with closing(run_tasks(setup, tasks, jobs=jobs)) as answers:
        for task, result in answers:
            results[jobs_to_do[task.template]] = result
            if on_progress is not None:
                on_progress(len(results), len(tasks))
    rates = list(failure_rates_per_s)
    comparison = Comparison(template.name, list(protocols), pattern_names, [], rates, list(seeds), {}, [])
    comparison.intervals_s = list(dict.fromkeys(setting.interval_s for setting in settings))
    _fill(comparison, bare, settings, results)
    return comparison


def _settings(
    protocols: Sequence[str], patterns: Sequence[str], intervals_s: Sequence[float], rates: Sequence[float]
) -> list[Setting]:
    unknown = [protocol for protocol in protocols if protocol not in PROTOCOLS]
    if unknown or not protocols:
        raise UsageError(f"protocols to compare are {list(protocols)}: use some of {', '.join(PROTOCOLS)}")
    if not intervals_s or min(intervals_s) <= 0 or not rates or min(rates) < 0:
        raise UsageError("compare needs intervals above 0 and failure rates of 0 or more: name at least one of each")
    settings = [
        Setting(protocol, pattern, interval_s, rate)
        for pattern in patterns
        for rate in rates
        for interval_s in intervals_s
        for protocol in protocols
    ]
    if len(settings) > CELLS_MAX:
        raise UsageError(f"{len(settings)} cells are more than {CELLS_MAX}: compare less at once")
    return settings


def scenario_of(template: Scenario, setting: Setting, seed: int) -> Scenario:
    """Return the scenario of a cell's run with one seed."""
    replace = msgspec.structs.replace
    scenario = draw(template, seed)
    trigger = TriggerPart(kind="none")
    if setting.interval_s:
        every = format_duration(round(setting.interval_s * 1e9))
        trigger = replace(scenario.fleet.trigger, kind="period", every=every)
    if scenario.fleet.module:
        fleet = replace(scenario.fleet, protocol=setting.protocol, trigger=trigger, is_varied=True)
    else:
        pattern = replace(scenario.fleet.pattern, name=setting.pattern)
        fleet = replace(scenario.fleet, protocol=setting.protocol, recovery="global", pattern=pattern, trigger=trigger)
    faults = [] if not setting.interval_s else [*scenario.fault, *failures(scenario, setting.failure_rate_per_s, seed)]
    return replace(scenario, fleet=fleet, fault=faults, swarm=None)


def failures(scenario: Scenario, rate_per_s: float, seed: int) -> list[FaultPart]:
    """Return the host crashes of a run, at exponentially distributed intervals until the end of the run. Every cell with this failure rate
    has the same crashes."""
    if not rate_per_s:
        return []
    random = stream_of(seed, "failures").random
    until_s = scenario.run.until_ns / 1e9 - RESTART_AFTER_S  # the host must have restarted by the end of the run
    crashes: list[FaultPart] = []
    at_s = 0.0
    while len(crashes) < FAILURES_MAX:
        at_s -= math.log(1.0 - random()) / rate_per_s
        if at_s >= until_s:
            break
        at = format_duration(max(1, round(at_s * 1e3)) * 10**6)
        crashes.append(FaultPart(crash=CrashFault(at=at, restart_after=f"{round(RESTART_AFTER_S * 1e3)}ms")))
    return crashes


# -- from results to cells ----------------------------------------------------------------------------------------------


def _fill(
    found: Comparison, bare: list[Setting], settings: list[Setting], results: Mapping[tuple[Setting, int], Result]
) -> None:
    for setting in bare:
        of_seeds = [results[setting, seed] for seed in found.seeds]
        found.bare[setting.pattern] = [work_s(one) if one.verdict == "pass" else math.nan for one in of_seeds]
    for setting in settings:
        calm = msgspec.structs.replace(setting, failure_rate_per_s=0.0)
        of_seeds = [results[setting, seed] for seed in found.seeds]
        without = [results.get((calm, seed)) for seed in found.seeds]
        found.cells.append(_cell(setting, of_seeds, without, found.bare[setting.pattern]))
    found.contrasts = list(_contrasts(found))


def _cell(
    setting: Setting, results: Sequence[Result], without: Sequence[Result | None], bare_s: Sequence[float]
) -> Cell:
    cell = Cell(setting, sum(result.verdict == "pass" for result in results), {}, {})
    rows = [values_of(*inputs) for inputs in zip(results, without, bare_s, strict=True)]
    for result in results:
        if result.verdict != "pass":
            cell.failed[result.verdict] = cell.failed.get(result.verdict, 0) + 1
    for name in sorted({name for row in rows for name in row}):
        cell.values[name] = [row.get(name, math.nan) for row in rows]
        cell.metrics[name] = summarise(value for value in cell.values[name] if not math.isnan(value))
    return cell


def values_of(result: Result, without: Result | None, bare_s: float) -> dict[str, float]:
    """Return all metrics of a run, including derived metrics, or an empty dict if the run did not pass.

    Args:
        without: result of the same run without failures, or None if there is none.
        bare_s: duration of the bare run in virtual seconds, or NaN if it is unknown.
    """
    if result.verdict != "pass":
        return {}
    values = dict(result.metrics)
    basic, forced = values.get("checkpoints_basic", 0.0), values.get("checkpoints_forced", 0.0)
    if basic:
        values["forced_ratio"] = forced / basic
    took_s = work_s(result)
    if bare_s > 0 and not math.isnan(took_s):
        values["overhead"] = took_s / bare_s - 1
    values["failures"] = float(failures_of(result, took_s))
    if without is not None and without.verdict == "pass" and values["failures"]:
        values["loss_s"] = (took_s - work_s(without)) / values["failures"]
    return values


def work_s(result: Result) -> float:
    """Return how long the fleet took to finish its work. If the pattern never ends, return the time per thousand messages. Return NaN if
    the duration is unknown."""
    if "finish_s" in result.metrics:
        return result.metrics["finish_s"]
    per_s = result.metrics.get("throughput_per_s", 0.0)
    return 1000 / per_s if per_s else math.nan


def failures_of(result: Result, took_s: float) -> int:
    """Return the number of crashes that occurred before the work was finished. Later crashes do not affect the work."""
    until_ns = math.inf if "finish_s" not in result.metrics else took_s * 1e9
    return sum(fault.kind == "crash" and fault.at_ns <= until_ns for fault in result.faults)


def _contrasts(found: Comparison) -> Iterator[Contrast]:
    """Yield the difference between each protocol and the first protocol, with all other settings equal."""
    baseline = found.protocols[0]
    for cell in found.cells:
        if cell.setting.protocol == baseline:
            continue
        other = found.cell(msgspec.structs.replace(cell.setting, protocol=baseline))
        for metric in METRICS:
            if metric in cell.values and metric in other.values:
                difference = difference_of(other.values[metric], cell.values[metric])
                yield Contrast(cell.setting, baseline, metric, difference)


def difference_of(baseline: Sequence[float], values: Sequence[float]) -> Difference:
    """Return the paired difference of two sequences, computed from the seeds that have a value in both."""
    pairs = [
        (base, value)
        for base, value in zip(baseline, values, strict=True)
        if not math.isnan(base) and not math.isnan(value)
    ]
    return paired_difference([base for base, _ in pairs], [value for _, value in pairs])
