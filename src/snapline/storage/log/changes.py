"""Differences between two byte strings, so that a commit of a large state contains only what has changed.

Most changes of an encoded state are few and short: a counter gets another value, a record is added, the oldest one is dropped. All bytes
behind an insertion are shifted. So the strings are compared from the start to the first difference, and then a *probe*, a few bytes of the old
string behind the difference, is searched in the new string. From there on they are compared again, and so on. The probes are taken at
growing distances, because a change may be long. The result is not minimal.

Bytes are compared and searched by built-in operations, which take about 0.1 ms per MiB.
"""

from collections.abc import Iterable

import msgspec

PROBE_BYTES = 32
DISTANCES_BYTES = (0, 16, 64, 256, 1024, 4096, 16384, 65536)
"""Distances from a difference at which probes are taken from the old string."""

CHANGES_MAX = 64
"""Largest number of changes. The last one may replace more than necessary."""

_BLOCK_BYTES = 32 * 1024


class Replacement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Replacement of `length` bytes of the old string from `start` on by `data`."""

    start: int
    length: int
    data: bytes


def changes_between(old: bytes, new: bytes) -> list[Replacement]:
    """Return the changes that turn `old` into `new`, in ascending order. They do not overlap."""
    changes: list[Replacement] = []
    start = place = 0
    while True:
        same = _same_start(old, start, new, place)
        start, place = start + same, place + same
        if start == len(old) and place == len(new):
            return changes
        found = _resume(old, start, new, place) if len(changes) < CHANGES_MAX - 1 else None
        start_after, place_after = found or _without_same_end(old, start, new, place)
        changes.append(Replacement(start, start_after - start, new[place:place_after]))
        if found is None:
            return changes
        start, place = found


def apply(old: bytes, changes: Iterable[Replacement]) -> bytes:
    """Return the new string. Raise ValueError if the changes do not fit `old`."""
    pieces, place = [], 0
    for change in changes:
        if not place <= change.start <= change.start + change.length <= len(old):
            raise ValueError(f"a change at {change.start} of {change.length} bytes does not fit {len(old)} bytes")
        pieces += [old[place : change.start], change.data]
        place = change.start + change.length
    return b"".join([*pieces, old[place:]])


def _resume(old: bytes, start: int, new: bytes, place: int) -> tuple[int, int] | None:
    """Return the nearest places behind a difference from which both strings are equal again, or None if no probe is found."""
    for distance in DISTANCES_BYTES:
        begin = start + distance
        if begin + PROBE_BYTES > len(old):
            return None
        found = new.find(old[begin : begin + PROBE_BYTES], place, place + 2 * distance + 2 * PROBE_BYTES)
        if found >= 0:
            same = _same_end(old, start, begin, new, place, found)
            return begin - same, found - same
    return None


def _without_same_end(old: bytes, start: int, new: bytes, place: int) -> tuple[int, int]:
    same = _same_end(old, start, len(old), new, place, len(new))
    return len(old) - same, len(new) - same


def _same_start(old: bytes, start: int, new: bytes, place: int) -> int:
    """Return the number of equal bytes from these places on."""
    length = min(len(old) - start, len(new) - place)
    same = 0
    while (
        same < length
        and old[start + same : start + same + _BLOCK_BYTES] == new[place + same : place + same + _BLOCK_BYTES]
    ):
        same += _BLOCK_BYTES
    low, high = min(same, length), min(same + _BLOCK_BYTES, length)
    while low < high:
        middle = (low + high + 1) // 2
        if old[start + low : start + middle] == new[place + low : place + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _same_end(old: bytes, start: int, old_end: int, new: bytes, place: int, new_end: int) -> int:
    """Return the number of equal bytes before these ends, not going below `start` and `place`."""
    length = min(old_end - start, new_end - place)
    same = 0
    while same + _BLOCK_BYTES <= length and _are_equal(old, old_end - same, new, new_end - same, _BLOCK_BYTES):
        same += _BLOCK_BYTES
    low, high = same, min(same + _BLOCK_BYTES, length)
    while low < high:
        middle = (low + high + 1) // 2
        if _are_equal(old, old_end - low, new, new_end - low, middle - low):
            low = middle
        else:
            high = middle - 1
    return low


def _are_equal(old: bytes, old_end: int, new: bytes, new_end: int, count: int) -> bool:
    return old[old_end - count : old_end] == new[new_end - count : new_end]
