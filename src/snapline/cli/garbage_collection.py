"""Run the garbage collector rarely, because reference counts free most of a fleet's objects.

With Python's default thresholds, collections during imports take a seventh of the start time.
"""

import gc

THRESHOLDS = (20_000, 20, 20)
"""Thresholds for `gc`. The first threshold is 700 by default, but a batch of turns creates thousands of short-lived lists."""


def collect_rarely() -> None:
    """Make garbage collections rare. Call this before large imports. The few reference cycles are still collected soon enough."""
    gc.set_threshold(*THRESHOLDS)


def freeze_imported() -> None:
    """Exclude imported objects from garbage collections, because they are never garbage.

    Each pass over them would take tens of milliseconds, and would make a forked child copy their memory pages.
    """
    gc.collect()
    gc.freeze()
