"""Ages by clocks that people correct: of keys that agents remember, and of released outputs.

A clock that is an hour, or fifty years, ahead of what it was a second ago would make all of them old at once, those too that clients still
repeat, or that nobody has read. So an age is a sum of the steps from one to the next, and each step counts up to a limit.
"""

import itertools
from collections.abc import Sequence


def step_ns(before_ns: int, after_ns: int, most_ns: int) -> int:
    """Return the length of one step: 0 if the clock was set back."""
    return min(max(after_ns - before_ns, 0), most_ns)


def ages_ns(times_ns: Sequence[int], most_ns: int) -> list[int]:
    """Return the age of each when the last one comes, step by step."""
    steps = [step_ns(*pair, most_ns) for pair in itertools.pairwise(times_ns)]
    return list(itertools.accumulate(reversed(steps), initial=0))[::-1]
