"""Runs Python's garbage collector rarely, because reference counting frees most of a fleet's objects.

With Python's default thresholds, garbage collections during imports take a seventh of the start time.
"""

import gc

THRESHOLDS = (20_000, 20, 20)
"""Thresholds for `gc`. The first threshold is 700 by default, but a batch of turns creates thousands of short-lived lists."""


def collect_rarely() -> None:
    """Make garbage collections rare. Call this function before large imports. Reference cycles, which are few, are still collected soon
    enough."""
    gc.set_threshold(*THRESHOLDS)


def freeze_imported() -> None:
    """Exclude imported objects from garbage collection, because they live as long as the process.

    Each collection that includes them takes tens of milliseconds, and makes a forked child copy their memory pages.
    """
    gc.collect()
    gc.freeze()
