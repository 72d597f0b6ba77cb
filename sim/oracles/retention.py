"""Epochs that the user's retention policy keeps, beyond what a recovery needs, are not deleted.

Theory of operation
-------------------
The books have when each epoch was created, in milliseconds, as its manifest said when it was complete. Before files are deleted a
policy wants the newest `last`, and of each of the newest `hourly` and `daily` spans the newest: counted here from the newest epoch
backwards, one after the other, in whole milliseconds. Epochs whose time lies after the clock's are left alone by the policy, for a
clock is wrong then; here they are not judged, nor is anything while they are there.
"""

from collections.abc import Iterator, Mapping

import msgspec

Finding = tuple[str, str, str]


class Wanted(msgspec.Struct, frozen=True):
    """A policy in numbers. `hour_ms`, `day_ms`: how long the spans are."""

    last: int
    hourly: int
    daily: int
    hour_ms: int
    day_ms: int


def wanted_epochs(created_ms: Mapping[int, int], wanted: Wanted) -> set[int]:
    """Return the epochs that the policy keeps, by their creation times."""
    newest_first = sorted(created_ms, reverse=True)
    kept = set(newest_first[: wanted.last])
    for length_ms, count in ((wanted.hour_ms, wanted.hourly), (wanted.day_ms, wanted.daily)):
        if not newest_first:
            continue
        end = max(each // length_ms for each in created_ms.values())
        for span in range(end, end - count, -1):
            kept.update([epoch for epoch in newest_first if created_ms[epoch] // length_ms == span][:1])
    return kept


def check_retained(before_ms: Mapping[int, int], after: set[int], wanted: Wanted, *, now_ms: int) -> Iterator[Finding]:
    """Compare epochs with their times before a deletion, those left after it, and the clock of the deleting node."""
    if max(before_ms.values(), default=0) > now_ms:
        return
    for epoch in sorted(wanted_epochs(before_ms, wanted) - after):
        text = f"epoch {epoch} was deleted, and the retention policy keeps it among {sorted(before_ms)}"
        yield "retention", "G7", text
        return
