"""What an hour costs, and what failures seen say of their rate: by known tables and by simulation of the definition."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.errors import UsageError
from snapline.protocols.advice import declared_mtbf, hourly_cost_s, observed_mtbf, poisson_limits, simplest
from snapline.protocols.names import PROTOCOLS
from snapline.protocols.policy import daly


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [
        (0, 0.0, 3.689),
        (1, 0.0253, 5.572),
        (2, 0.2422, 7.225),
        (5, 1.623, 11.668),
        (10, 4.795, 18.390),
        (50, 37.11, 65.92),
    ],
)
def test_limits_are_those_of_garwood_s_table(count: int, low: float, high: float) -> None:
    assert poisson_limits(count) == pytest.approx((low, high), abs=0.006)


@given(st.integers(0, 100))
def test_limits_enclose_what_was_seen_and_grow_with_it(count: int) -> None:
    low, high = poisson_limits(count)
    more_low, more_high = poisson_limits(count + 1)
    assert low <= count < high and low < more_low and high < more_high


@given(failures=st.integers(1, 64), observed_s=st.floats(1.0, 1e7))
def test_a_mean_time_lies_between_its_limits(failures: int, observed_s: float) -> None:
    found = observed_mtbf(failures, observed_s)
    assert found.mean_s == pytest.approx(observed_s / failures)
    assert found.mean_s is not None and 0 < found.low_s < found.mean_s < found.high_s < math.inf


def test_no_failure_says_only_how_often_they_are_not() -> None:
    found = observed_mtbf(0, 3_000.0)
    assert found.mean_s is None and found.high_s == math.inf
    assert found.low_s == pytest.approx(1_001.4, abs=0.1), (
        "the rule of three: a rate of 3 in that time shows none with 5 %"
    )
    assert observed_mtbf(0, 0.0).low_s == 0


@pytest.mark.parametrize("wrong", [(-1, 1.0), (1, 0.0), (1, -1.0), (0, math.nan), (0, math.inf)])
def test_impossible_observations_are_refused(wrong: tuple[int, float]) -> None:
    with pytest.raises(UsageError, match="is not possible"):
        observed_mtbf(*wrong)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_times_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(UsageError, match="mean time between failures"):
        declared_mtbf(wrong)


def test_an_hour_by_hand() -> None:
    """A checkpoint of 1 s every 100 s, and a failure each 1,000 s that costs 50 s: 36 s and 180 s."""
    assert hourly_cost_s(0.01, loss_s=50.0, mtbf_s=1_000.0) == pytest.approx(216.0)


@given(price_s=st.floats(1e-4, 10.0), mtbf_s=st.floats(1e3, 1e7), factor=st.floats(0.2, 5.0))
def test_daly_s_interval_costs_the_least_of_all(price_s: float, mtbf_s: float, factor: float) -> None:
    """To first order: within 1 % where a checkpoint is short beside the time between failures."""

    def cost_s(interval_s: float) -> float:
        return hourly_cost_s(price_s / interval_s, loss_s=interval_s / 2, mtbf_s=mtbf_s)

    best_s = daly(price_s, mtbf_s)
    assert cost_s(best_s) <= 1.01 * cost_s(best_s * factor)


@given(st.sets(st.sampled_from(PROTOCOLS), min_size=1))
def test_the_simplest_stands_first_in_the_order(protocols: set[str]) -> None:
    assert simplest(protocols) == next(one for one in PROTOCOLS if one in protocols)
