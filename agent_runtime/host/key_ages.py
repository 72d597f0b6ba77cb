"""How old the keys are that an agent remembers: by clocks that people put right.

A clock that is an hour, or fifty years, ahead of what it was a second ago would make all keys old at once, those too that clients still
repeat. So age is what has passed from one key to the next, and each of these steps counts for so much at most.
"""

import itertools


def step_ns(before_ns: int, after_ns: int, most_ns: int) -> int:
    """What one step counts: nothing if the clock was put back."""
    return min(max(after_ns - before_ns, 0), most_ns)


def span_ns(times_ns: list[int], most_ns: int) -> int:
    """From the first time to the last, step by step."""
    return sum([step_ns(*pair, most_ns) for pair in itertools.pairwise(times_ns)])
