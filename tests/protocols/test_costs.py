"""What an hour costs, and what failures seen say of their rate: by known tables and by simulation of the definition."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.errors import UsageError
from snapline.protocols.advice import declared_mtbf, hourly_cost_s, observed_mtbf, poisson_limits, simplest
from snapline.protocols.names import PROTOCOLS


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


@given(st.sets(st.sampled_from(PROTOCOLS), min_size=1))
def test_the_simplest_stands_first_in_the_order(protocols: set[str]) -> None:
    assert simplest(protocols) == next(one for one in PROTOCOLS if one in protocols)
