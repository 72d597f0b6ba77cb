"""Runs the garbage collector rarely, because reference counts free most objects of a fleet.

With Python's default thresholds, a seventh of the start time is spent on collections during imports.
"""

import gc

THRESHOLDS = (20_000, 20, 20)
"""Thresholds of `gc`; the first is 700 by default, but a batch of turns creates thousands of short-lived lists."""


def collect_rarely() -> None:
    """Collect rarely; call this before large imports. The few cycles are still collected soon enough."""
    gc.set_threshold(*THRESHOLDS)


def freeze_imported() -> None:
    """Exclude imported objects from collections. They are never garbage, and each pass over them would take tens of milliseconds and make
    a forked child copy their pages.
    """
    gc.collect()
    gc.freeze()
