"""Delta debugging: leave out as much of a list as possible while something still fails.

The problem, the algorithm and its name are Zeller and Hildebrandt's ("Simplifying and isolating failure-inducing input",
2002): split the list into n parts; if one part alone fails, go on with it; else if all but one part fail, go on with those; else
use twice as many parts, until each holds one item. The result is *1-minimal*: leaving out any single item makes it pass. No
more is promised: a smaller failing list may exist. Tests: a few times log₂ of the length for a single culprit, at most
quadratic for a list that cannot be made smaller.

`lowest` is the same for a number: a smaller one that still fails.

Departure: a test that fails may say that it never looked at some of the items; those are left out at once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def ddmin(items: Sequence[T], needed: Callable[[list[T]], list[T] | None]) -> list[T]:
    """A 1-minimal part of `items`, in their order.

    Args:
        items: they fail; this is not tried.
        needed: None if these do not fail; else those of them that were looked at, in order.
    """
    kept = list(items)
    parts = 2
    while len(kept) >= 2:
        size = -(-len(kept) // parts)
        chunks = [kept[start : start + size] for start in range(0, len(kept), size)]
        found, is_part = _smaller(chunks, needed)
        if found is not None:
            kept, parts = found, 2 if is_part else max(parts - 1, 2)
        elif size == 1:
            return kept
        else:
            parts = min(2 * parts, len(kept))
    if kept and needed([]) is not None:
        return []
    return kept


def _smaller(chunks: list[list[T]], needed: Callable[[list[T]], list[T] | None]) -> tuple[list[T] | None, bool]:
    """Return the needed items of one chunk, or of all others; and whether it was one chunk."""
    for chunk in chunks:
        found = needed(chunk)
        if found is not None:
            return found, True
    if len(chunks) == 2:
        return None, False  # the others are the other chunk
    for index in range(len(chunks)):
        found = needed([item for place, chunk in enumerate(chunks) if place != index for item in chunk])
        if found is not None:
            return found, False
    return None, False


def lowest(value: int, least: int, works: Callable[[int], bool], fineness: int = 2**62) -> None:
    """Look for a lower value that works: the first of `least`, +1, +2, +4 …; then halve what lies below it.

    Args:
        value: works, as is known.
        fineness: stop when it is known to one part in so many.
    """
    low = least - 1
    for lower in growing(least, value):
        if works(lower):
            value = lower
            break
        low = lower
    while value - low > 1 and (value - low) * fineness > value:
        middle = (value + low) // 2
        if works(middle):
            value = middle
        else:
            low = middle


def growing(least: int, value: int) -> Iterator[int]:
    """Values below `value`: `least`, +1, +2, +4 …"""
    step = 0
    while least + step < value:
        yield least + step
        step = max(1, step * 2)
