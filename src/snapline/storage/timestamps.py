"""Time format of manifests and documents, and ages that are robust against clock corrections.

Idempotency keys and released outputs have ages. If a clock jumped ahead by an hour or fifty years, all items would be old at once, even
keys that clients still repeat and outputs that nobody has read. So an age is a sum of the steps between consecutive items, and each step
counts only up to a limit.
"""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime


def instant(now_s: float) -> str:
    """Return the UTC time in the format of manifests."""
    return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def step_ns(before_ns: int, after_ns: int, step_ns_max: int) -> int:
    """Return the length of one step in nanoseconds, at most `step_ns_max`; 0 if the clock was set back."""
    return min(max(after_ns - before_ns, 0), step_ns_max)


def ages_ns(times_ns: Sequence[int], step_ns_max: int) -> list[int]:
    """Return the age of each item relative to the last item, as a sum of limited steps."""
    steps = [step_ns(*pair, step_ns_max) for pair in itertools.pairwise(times_ns)]
    return list(itertools.accumulate(reversed(steps), initial=0))[::-1]
