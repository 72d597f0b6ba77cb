"""Daly's interval, against the numerical optimum."""

import math

import pytest

from snapline.errors import UsageError
from snapline.protocols.policy import daly

MTBF_S = 3_600.0


def time_per_work(interval_s: float, cost_s: float) -> float:
    """Expected time per unit of work with exponential failures and restarts that cost nothing."""
    return MTBF_S * math.expm1((interval_s + cost_s) / MTBF_S) / interval_s


def least_time(cost_s: float) -> float:
    """Golden section: the function falls and then rises."""
    low, high = 1e-6, 10 * MTBF_S
    shrink = (math.sqrt(5) - 1) / 2
    for _ in range(200):
        left, right = high - shrink * (high - low), low + shrink * (high - low)
        if time_per_work(left, cost_s) < time_per_work(right, cost_s):
            high = right
        else:
            low = left
    return time_per_work((low + high) / 2, cost_s)


RATIOS = [10**exponent for exponent in (-6, -5, -4, -3, -2, -1)] + [0.3, 0.5, 1, 1.5, 1.9]


@pytest.mark.parametrize("ratio", RATIOS)
def test_daly_costs_little_more_than_the_optimum(ratio: float) -> None:
    cost_s = ratio * MTBF_S
    assert time_per_work(daly(cost_s, MTBF_S), cost_s) <= 1.002 * least_time(cost_s)


@pytest.mark.parametrize("factor", [0.5, 2])
def test_half_and_double_the_interval_cost_more(factor: float) -> None:
    """So the tests above can fail."""
    cost_s = 0.01 * MTBF_S
    assert time_per_work(factor * daly(cost_s, MTBF_S), cost_s) > 1.02 * least_time(cost_s)


def test_where_a_checkpoint_costs_more_than_two_failures_daly_stays_at_their_distance() -> None:
    assert daly(2 * MTBF_S, MTBF_S) == daly(5 * MTBF_S, MTBF_S) == MTBF_S
    assert daly(1.999999 * MTBF_S, MTBF_S) == pytest.approx(MTBF_S * (2 * (1 + 1 / 3 + 1 / 9) - 2), rel=1e-3)


@pytest.mark.parametrize(("name", "cost_s", "mtbf_s"), [("cost_s", 0, 1), ("cost_s", -1, 1), ("mtbf_s", 1, 0)])
@pytest.mark.parametrize("nonsense", [None, math.nan, math.inf])
def test_nonsense_is_refused(name: str, cost_s: float, mtbf_s: float, nonsense: float | None) -> None:
    """No pause, no failures: then there is no such interval, and the caller should not ask."""
    if nonsense is not None:
        cost_s, mtbf_s = (nonsense, 1) if name == "cost_s" else (1, nonsense)
    with pytest.raises(UsageError, match=f"{name} is .*: give the measured seconds"):
        daly(cost_s, mtbf_s)
