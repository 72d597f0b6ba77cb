"""The garbage collector, run rarely: most of what a fleet makes is freed by reference counts.

With Python's own thresholds a seventh of a start is looking at modules that are being imported.
"""

import gc

THRESHOLDS = (20_000, 20, 20)
"""The first is 700 by default. A batch of turns makes thousands of short-lived lists."""


def collect_seldom() -> None:
    """Collect rarely; call before large imports. The few cycles are found soon enough."""
    gc.set_threshold(*THRESHOLDS)


def spare_imported() -> None:
    """Freeze imported objects: they are never garbage, and walking them takes tens of milliseconds at a time; a forked child would
    copy every page.
    """
    gc.collect()
    gc.freeze()
