"""Fit columns of text into the width of a terminal."""

import textwrap
from collections.abc import Iterable, Sequence

COLUMN_GAP = 2
"""Number of blanks between two columns of a table in a terminal."""


def columns_that_fit(widths: Sequence[int], optional: Iterable[int], room: int) -> list[int]:
    """Return the indices of the columns to show in `room` characters. Columns in `optional` are left out in that order until the rest fit."""
    shown = list(range(len(widths)))
    for index in optional:
        if sum(widths[at] for at in shown) + COLUMN_GAP * (len(shown) - 1) <= room:
            break
        shown.remove(index)
    return shown


def shrink(widths: list[int], least: Sequence[int], room: int) -> list[int]:
    """Reduce the largest widths, none below its least, until all fit into the room, if they can."""
    widths = [max(low, min(width, room)) for width, low in zip(widths, least, strict=True)]
    while sum(widths) > room:
        spare = [(width, at) for at, width in enumerate(widths) if width > least[at]]
        if not spare:
            break
        widths[max(spare)[1]] -= 1
    return widths


def wrap(text: str, width: int) -> list[str]:
    """Split a text into lines that are no longer than the width in characters, unless a word is."""
    wrapped = [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, max(width, 1), break_long_words=False, break_on_hyphens=False) or [""]
    ]
    return wrapped or [""]
