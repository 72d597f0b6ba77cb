"""Delta debugging: leave out as much of a list as possible while a test still fails.

The algorithm `ddmin` is Zeller and Hildebrandt's ("Simplifying and isolating failure-inducing input", 2002):

1. Split the list into n parts.
2. If one part alone fails, continue with it.
3. Otherwise, if all parts but one fail, continue with those.
4. Otherwise use twice as many parts, until each holds one item.

The result is *1-minimal*: leaving out any single item makes the test pass. A smaller failing list may exist. The number of
tests is a small multiple of log₂ of the length for a single culprit, and at most quadratic if nothing can be left out.

`lowest` does the same for a number: it finds a smaller one that still fails.

Departure: a failing test may report that it never used some of the items. Those are left out at once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def ddmin(items: Sequence[T], needed: Callable[[list[T]], list[T] | None]) -> list[T]:
    """Return a 1-minimal part of `items`, in their order.

    Args:
        items: a list that is known to fail.
        needed: test of a list; returns None if it passes, else the items that the test used, in order.
    """
    kept = list(items)
    parts = 2
    while len(kept) >= 2:
        size = -(-len(kept) // parts)
        chunks = [kept[start : start + size] for start in range(0, len(kept), size)]
        smaller, is_part = _smaller(chunks, needed)
        if smaller is not None:
            kept, parts = smaller, 2 if is_part else max(parts - 1, 2)
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
        needed_items = needed(chunk)
        if needed_items is not None:
            return needed_items, True
    if len(chunks) == 2:
        return None, False  # with two chunks, a complement is the other chunk
    for index in range(len(chunks)):
        needed_items = needed([item for place, chunk in enumerate(chunks) if place != index for item in chunk])
        if needed_items is not None:
            return needed_items, False
    return None, False


def lowest(value: int, least: int, works: Callable[[int], bool], fineness: int = 2**62) -> None:
    """Search for a lower value that works: the first of `least`, +1, +2, +4 …, then by bisection below it.

    Args:
        value: a value that is known to work.
        fineness: stop when the remaining range is smaller than 1 / fineness of the value.
    """
    low = least - 1
    for lower in doubling_steps(least, value):
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


def doubling_steps(least: int, value: int) -> Iterator[int]:
    """Yield values below `value`: `least`, +1, +2, +4 …"""
    step = 0
    while least + step < value:
        yield least + step
        step = max(1, step * 2)
