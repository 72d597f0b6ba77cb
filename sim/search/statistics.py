"""Statistics of a metric over a few runs: mean, percentiles and confidence intervals.

Model: the runs of a sweep are independent and identically distributed, because their seeds are. There are two kinds of 95 %
confidence intervals:

- Student's, for one mean: mean ± t(n - 1) · s / √n. It is exact for normal values, and good for others from about thirty
  runs on.
- The paired bootstrap, for the difference of two settings run with the *same* seeds (Efron 1979; Efron and Tibshirani 1993,
  chapter 13). Draw n of the n seeds with replacement, take the mean of the differences, and repeat many times. The interval
  lies between the percentiles 2.5 and 97.5. Effects of a seed that both settings share cancel out. With fewer than ten seeds
  the interval is too narrow.

Without enough values, an interval reaches from minus to plus infinity: nothing may be concluded. Bootstraps use their own
seed, so that the same runs give the same text.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import msgspec

from snapline.sim.choices import stream_of

RESAMPLES = 2_000
"""Number of resamples: enough for the ends of an interval to be stable to about 5 % of its width."""

BOOTSTRAPPED_MAX = 1_000
"""Maximum number of pairs for a bootstrap. For more, Student's interval is accurate enough and a bootstrap takes seconds."""

EXACT_DEGREES_MAX = 200
"""Largest degrees of freedom for the exact t distribution. Beyond, an expansion is accurate to more than six digits."""

NORMAL_975 = 1.959963984540054
"""The normal distribution's percentile 97.5."""


class Summary(msgspec.Struct, frozen=True):
    """Summary of one metric over runs. `low` and `high` enclose the mean with 95 % confidence."""

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
        """Return whether zero is outside of the interval."""
        return self.low > 0 or self.high < 0


def summarise(values: Iterable[float]) -> Summary:
    """Return the mean with Student's interval, and percentiles; NaN without values."""
    ordered = sorted(values)
    if not ordered:
        return Summary(0, math.nan, math.nan, math.nan, math.nan, -math.inf, math.inf)
    mean = mean_of(ordered)
    half = half_width(ordered)
    p50, p95 = percentile(ordered, 0.5), percentile(ordered, 0.95)
    return Summary(len(ordered), mean, p50, p95, ordered[-1], mean - half, mean + half)


def mean_of(values: Sequence[float]) -> float:
    """Return the mean, rounded once, so that the order of the values does not matter."""
    return math.fsum(values) / len(values)


def half_width(values: Sequence[float]) -> float:
    """Return half of Student's interval around the mean; infinite for fewer than two values."""
    if len(values) < 2:
        return math.inf
    mean = mean_of(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return t_975(len(values) - 1) * math.sqrt(variance / len(values))


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the quantile `part` of sorted values, by linear interpolation (Hyndman and Fan's type 7)."""
    position = part * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def t_975(degrees: int) -> float:
    """Return percentile 97.5 of Student's t distribution."""
    if degrees > EXACT_DEGREES_MAX:
        return _expanded(degrees)
    low, high = NORMAL_975, 13.0  # the largest value, for one degree of freedom, is 12.7
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < 0.95 else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """Return the probability of a value between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
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
    """Return percentile 97.5 by Cornish and Fisher's expansion (Abramowitz and Stegun, 26.7.5)."""
    z = NORMAL_975
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def paired_difference(baseline: Sequence[float], values: Sequence[float], *, seed: int = 0) -> Difference:
    """Return the mean of `values` minus `baseline`, pair by pair. Both are in the order of the same seeds."""
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
    """Return a statistic of the runs 0 … count - 1 with its percentile interval.

    Args:
        count: number of runs.
        statistic: function of run indices, some of which may repeat. Draws for which it is NaN are left out.
        seed: seed of the draws.
    """
    if count == 0:
        return Difference(0, math.nan, -math.inf, math.inf)
    return with_percentiles(count, statistic(range(count)), map(statistic, draws(count, seed)))


def with_percentiles(count: int, value: float, resampled: Iterable[float]) -> Difference:
    """Return a value of `count` runs with the percentile interval of its resampled values."""
    ordered = sorted(one for one in resampled if not math.isnan(one))
    if count < 2 or not ordered:
        return Difference(count, value, -math.inf, math.inf)
    return Difference(count, value, percentile(ordered, 0.025), percentile(ordered, 0.975))


@lru_cache(maxsize=4)  # a comparison uses the same draws many times
def draws(count: int, seed: int = 0) -> list[list[int]]:
    """Return `RESAMPLES` samples of `count` runs, drawn with replacement."""
    random = stream_of(seed, "bootstrap").random
    return [[int(random() * count) for _ in range(count)] for _ in range(RESAMPLES)]
