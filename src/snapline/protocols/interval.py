"""Checkpoint intervals: those of Young and of Daly.

Theory of operation
-------------------
A checkpoint costs a pause C; failures strike the fleet at random with mean time M between them, and each undoes the work
since the last checkpoint. Checkpointing rarely loses more work to failures, checkpointing often more to pauses. With
exponential failures the expected time per unit of work is proportional to (e^((T + C)/M) - 1)/T, where T is the work
between two checkpoints. It is flat around its minimum, so simple formulas come close:

- Young (1974): T = sqrt(2CM), right for C much smaller than M; at C = M/10 it costs 0.5 % more than the optimum;
- Daly (2006), for C < 2M: T = sqrt(2CM) * (1 + sqrt(C/2M)/3 + C/18M) - C, else M; at most 0.2 % more.

C is only the time that an agent waits: the background upload adds to the loss per failure instead. Keep T above its duration.
"""

import math

from snapline.errors import UsageError


def young(cost_s: float, mtbf_s: float) -> float:
    """Seconds of work between two checkpoints, by Young's formula.

    Args:
        cost_s: the pause one checkpoint costs, seconds.
        mtbf_s: the fleet's mean time between failures, seconds: that of one host divided by the number of hosts.

    Raises:
        UsageError: an argument is not a finite number above 0.
    """
    _check(cost_s, mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s)


def daly(cost_s: float, mtbf_s: float) -> float:
    """Seconds of work between two checkpoints, by Daly's higher-order formula; arguments and errors as `young`."""
    _check(cost_s, mtbf_s)
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def _check(cost_s: float, mtbf_s: float) -> None:
    for name, value in (("cost_s", cost_s), ("mtbf_s", mtbf_s)):
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} is {value}: give the measured seconds, a finite number above 0")
