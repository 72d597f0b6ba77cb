"""Time format of manifests and documents, and ages that are robust against clock corrections.

Snapline computes ages of idempotency keys and of released outputs. If an age were a simple time difference, a clock that jumped ahead by an
hour or by fifty years would make all items old at once. Items would then be deleted too early, even keys that clients still resend and
outputs that nobody has read. So an item's age is the sum of the time steps between consecutive items, each limited to a maximum.
"""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime


def instant(now_s: float) -> str:
    """Format a time as manifests do, in UTC."""
    return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def step_ns(before_ns: int, after_ns: int, step_ns_max: int) -> int:
    """Return the length of the time step in nanoseconds, at most `step_ns_max`, or 0 if the clock was set back."""
    return min(max(after_ns - before_ns, 0), step_ns_max)


def ages_ns(times_ns: Sequence[int], step_ns_max: int) -> list[int]:
    """Return the age of each item relative to the last item, as a sum of limited time steps."""
    steps = [step_ns(*pair, step_ns_max) for pair in itertools.pairwise(times_ns)]
    return list(itertools.accumulate(reversed(steps), initial=0))[::-1]
