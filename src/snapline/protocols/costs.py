"""Cost of checkpoints and failures in an hour, and choice among equal protocols: for advice from simulations or from a running fleet.

The expected cost of an hour is

    3600 s × (overhead without failures + loss per failure / mean time between failures)

where the overhead is the share of time that checkpoints add, and the loss per failure is the repeated work plus the recovery (J. T. Daly,
FGCS 22(3), 2006, section 2, to first order). Among protocols that cannot be distinguished from the cheapest one, the simplest wins:
coordinated before uncoordinated before communication-induced.

*Mean time between failures.* Failures without memory make a Poisson process, so the number seen gives the rate with the exact limits of F. Garwood
(Biometrika 28, 1936): rates at which this number or more, or this number or fewer, would be seen with 2.5 % probability. If no failure was seen
in a time t, the mean is above t / 3.0 with 95 % confidence (the rule of three: e^-3 = 5 %).
"""

import math
from collections.abc import Iterable

import msgspec

from snapline.errors import UsageError
from snapline.protocols.names import PROTOCOLS

HOUR_S = 3600.0

SIMPLEST_FIRST = PROTOCOLS
"""Protocols from simple to complex. Coordinated ones come first, since they recover from one known epoch; the rest follows docs/protocols.md."""

TAIL = 0.025
"""Probability on each side of the limits."""

NONE_SEEN = -math.log(2 * TAIL)
"""Expected number of failures in a time that has at least one with 95 % probability."""

STEPS = 80
"""Number of bisection steps until a limit is exact to the last bit."""


def hourly_cost_s(overhead: float, *, loss_s: float, mtbf_s: float) -> float:
    """Seconds of an hour that checkpoints and failures take."""
    return HOUR_S * (overhead + loss_s / mtbf_s)


def simplest(protocols: Iterable[str]) -> str:
    """Return the simplest of some that cannot be distinguished."""
    return min(protocols, key=SIMPLEST_FIRST.index)


class Mtbf(msgspec.Struct, frozen=True):
    """The mean time between failures of a fleet, in seconds.

    Attributes:
        mean_s: None: nothing has failed yet.
        low_s, high_s: limits with 95 % confidence; infinite if unknown.
        failures, observed_s: observations behind the mean; both 0: the mean was declared.
    """

    mean_s: float | None
    low_s: float
    high_s: float
    failures: int = 0
    observed_s: float = 0.0


def declared_mtbf(mtbf_s: float) -> Mtbf:
    """Return a declared mean time between failures.

    Raises:
        UsageError: the value is not a positive, finite time.
    """
    if not (math.isfinite(mtbf_s) and mtbf_s > 0):
        raise UsageError(f"mtbf_s is {mtbf_s}: give the fleet's mean time between failures in seconds")
    return Mtbf(mtbf_s, mtbf_s, mtbf_s)


def observed_mtbf(failures: int, observed_s: float) -> Mtbf:
    """Return the mean time between failures, estimated from observed failures.

    Raises:
        UsageError: a negative number, or failures in no time.
    """
    if failures < 0 or not (math.isfinite(observed_s) and observed_s >= 0) or (failures and not observed_s):
        raise UsageError(f"{failures} failures in {observed_s} s is not possible")
    if not failures:
        return Mtbf(None, observed_s / NONE_SEEN, math.inf, 0, observed_s)
    low, high = poisson_limits(failures)
    return Mtbf(observed_s / failures, observed_s / high, observed_s / low, failures, observed_s)


def poisson_limits(count: int) -> tuple[float, float]:
    """Return the 95 % confidence limits of the mean of a Poisson distribution of which `count` was observed (Garwood 1936)."""
    high = _mean_where(count, TAIL)
    return (_mean_where(count - 1, 1 - TAIL) if count else 0.0), high


def _mean_where(count: int, chance: float) -> float:
    """Return the mean at which at most `count` events come with this probability, which falls as the mean grows."""
    low, high = 0.0, 10.0 + 4.0 * count
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, middle) > chance else (low, middle)
    return (low + high) / 2


def _at_most(count: int, mean: float) -> float:
    """Return the probability of at most `count` events. Uses logarithms: the terms may be too large or too small for floats."""
    if mean == 0:
        return 1.0
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))
