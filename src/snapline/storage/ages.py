"""How old things are by clocks that people put right: keys that agents remember, outputs that were released.

A clock that is an hour, or fifty years, ahead of what it was a second ago would make all of them old at once, those too that clients still
repeat, or that nobody has read. So age is what has passed from one to the next, and each of these steps counts for so much at most.
"""

import itertools
from collections.abc import Sequence


def step_ns(before_ns: int, after_ns: int, most_ns: int) -> int:
    """What one step counts: nothing if the clock was put back."""
    return min(max(after_ns - before_ns, 0), most_ns)


def ages_ns(times_ns: Sequence[int], most_ns: int) -> list[int]:
    """How old each is when the last one comes, step by step."""
    steps = [step_ns(*pair, most_ns) for pair in itertools.pairwise(times_ns)]
    return list(itertools.accumulate(reversed(steps), initial=0))[::-1]
