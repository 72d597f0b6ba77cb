"""Time format of manifests and documents, and ages that a clock correction distorts little.

Idempotency keys and released outputs have ages. If the clock jumped ahead by an hour or by fifty years, simple ages would make all items
old at once. Such ages would affect even keys that clients still resend and outputs that nobody has read. So an age is the sum of the steps
between consecutive items, and each step counts only up to a limit.
"""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime


def instant(now_s: float) -> str:
    """Return the UTC time in the format used in manifests."""
    return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def step_ns(before_ns: int, after_ns: int, step_ns_max: int) -> int:
    """Return the length of one step in nanoseconds, limited to `step_ns_max`, or 0 if the clock was set back."""
    return min(max(after_ns - before_ns, 0), step_ns_max)


def ages_ns(times_ns: Sequence[int], step_ns_max: int) -> list[int]:
    """Return the age of each item relative to the last item, as a sum of limited steps."""
    steps = [step_ns(*pair, step_ns_max) for pair in itertools.pairwise(times_ns)]
    return list(itertools.accumulate(reversed(steps), initial=0))[::-1]
