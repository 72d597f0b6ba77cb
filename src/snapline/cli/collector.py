"""The garbage collector, seldom: most of what a fleet makes is freed by reference counts.

With Python's own thresholds a seventh of a start is looking at modules that are being imported.
"""

import gc

THRESHOLDS = (20_000, 20, 20)
"""The first is 700 by default. A batch of turns makes thousands of short-lived lists."""


def collect_seldom() -> None:
    """Before anything large is imported. Rarer collections find the few cycles soon enough."""
    gc.set_threshold(*THRESHOLDS)


def spare_imported() -> None:
    """Keep what has been imported out of sight: it is never garbage, and walking it takes tens of milliseconds at a time; a forked child would
    copy every page.
    """
    gc.collect()
    gc.freeze()
