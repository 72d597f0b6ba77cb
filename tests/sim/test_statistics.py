"""Means, percentiles and intervals, against closed forms and against their meaning."""

import math
import statistics as standard
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.sim.search.compare import (
    bootstrap,
    half_width,
    mean_of,
    paired_difference,
    percentile,
    summarise,
    t_975,
)

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        *[(1, 12.7062047364), (2, 4.30265272975), (3, 3.18244630528), (5, 2.57058183564), (10, 2.22813885196)],
        *[(30, 2.0422724563), (120, 1.97993040505), (1000, 1.96233908082)],
    ],
)
def test_the_t_distribution_has_the_percentiles_of_the_printed_tables(degrees: int, expected: float) -> None:
    assert t_975(degrees) == pytest.approx(expected, rel=1e-9)


@given(st.lists(NUMBERS, min_size=2, max_size=40))
def test_a_summary_agrees_with_the_standard_library(values: list[float]) -> None:
    summary = summarise(values)
    assert summary.mean == pytest.approx(standard.fmean(values), abs=1e-6)
    assert summary.p50 == pytest.approx(standard.median(values), abs=1e-6)
    assert summary.max == max(values)
    spread = t_975(len(values) - 1) * standard.stdev(values) / math.sqrt(len(values))
    assert summary.high - summary.mean == pytest.approx(spread, rel=1e-6, abs=1e-6)


@given(st.lists(NUMBERS, min_size=1, max_size=30), st.floats(0, 1))
def test_a_percentile_has_its_part_of_the_values_below_it(values: list[float], part: float) -> None:
    at = percentile(sorted(values), part)
    below = sum(value < at for value in values)
    assert below <= part * (len(values) - 1) + 1
    assert sum(value <= at for value in values) >= math.floor(part * (len(values) - 1))


def test_nothing_is_known_from_too_few_runs() -> None:
    assert summarise([]).count == 0 and math.isnan(summarise([]).mean)
    assert summarise([3.0]).high == math.inf
    assert not paired_difference([1.0], [2.0]).is_clear
    assert not paired_difference([], []).is_clear
    assert half_width([1.0]) == math.inf


def test_student_s_interval_holds_the_truth_in_nineteen_of_twenty_samples() -> None:
    random = Random(1)
    held = 0
    for _ in range(2000):
        summary = summarise(random.gauss(5, 2) for _ in range(5))
        held += summary.low <= 5 <= summary.high
    assert 0.935 < held / 2000 < 0.965


def test_the_bootstrap_s_interval_holds_the_truth_nearly_as_often() -> None:
    """Percentile bootstraps of thirty values are a little too narrow."""
    random = Random(2)
    held = 0
    for sample in range(60):
        base = [random.expovariate(1) for _ in range(30)]
        more = [value + random.gauss(0.5, 1) for value in base]
        found = paired_difference(base, more, seed=sample)
        held += found.low <= 0.5 <= found.high
    assert held >= 51


@settings(max_examples=10)
@given(st.lists(NUMBERS, min_size=2, max_size=8), st.integers(0, 10))
def test_a_bootstrap_repeats_itself_and_encloses_the_mean(values: list[float], seed: int) -> None:
    def mean(picked: object) -> float:
        assert isinstance(picked, list | range)
        return mean_of([values[index] for index in picked])

    found = bootstrap(len(values), mean, seed=seed)
    assert found == bootstrap(len(values), mean, seed=seed)
    assert min(values) - 1e-6 <= found.low <= found.high <= max(values) + 1e-6


def test_draws_without_a_value_are_left_out() -> None:
    """Such as lost work per failure, in a draw of runs that had none."""
    failures, lost = [0, 0, 1, 2], [0, 0, 10, 20]

    def per_failure(picked: object) -> float:
        assert isinstance(picked, list | range)
        total = sum(failures[index] for index in picked)
        return sum(lost[index] for index in picked) / total if total else math.nan

    found = bootstrap(4, per_failure)
    assert (found.mean, found.low, found.high) == (10, 10, 10)
