"""Epochs that the user's retention policy keeps, beyond those that a recovery needs, are not deleted.

Theory of operation
-------------------
The oracle has each epoch's creation time in milliseconds, from its manifest when it was complete. A policy keeps the newest `last`
epochs, and the newest epoch of each of the newest `hourly` and `daily` spans, counted backwards from the newest epoch. If an epoch's
time lies in the future, a clock is wrong: the policy deletes no such epochs, and the oracle judges nothing while they exist.
"""

from collections.abc import Iterator, Mapping

import msgspec

from snapline.sim.oracles.ground_truth_records import Finding


class ExpectedRetention(msgspec.Struct, frozen=True):
    """A policy in numbers. `hour_ms`, `day_ms`: lengths of the spans."""

    last: int
    hourly: int
    daily: int
    hour_ms: int
    day_ms: int


def wanted_epochs(created_ms: Mapping[int, int], wanted: ExpectedRetention) -> set[int]:
    """Return the epochs that the policy keeps, by their creation times."""
    newest_first = sorted(created_ms, reverse=True)
    kept = set(newest_first[: wanted.last])
    for length_ms, count in ((wanted.hour_ms, wanted.hourly), (wanted.day_ms, wanted.daily)):
        if not newest_first:
            continue
        end = max(time_ms // length_ms for time_ms in created_ms.values())
        for span in range(end, end - count, -1):
            kept.update([epoch for epoch in newest_first if created_ms[epoch] // length_ms == span][:1])
    return kept


def check_retained(
    before_ms: Mapping[int, int], after: set[int], wanted: ExpectedRetention, *, now_ms: int
) -> Iterator[Finding]:
    """Check a deletion: epochs with their times before it, epochs left after it, and the clock of the deleting node."""
    if max(before_ms.values(), default=0) > now_ms:
        return
    for epoch in sorted(wanted_epochs(before_ms, wanted) - after):
        text = f"epoch {epoch} was deleted, and the retention policy keeps it among {sorted(before_ms)}"
        yield "retention", "G7", text
        return
