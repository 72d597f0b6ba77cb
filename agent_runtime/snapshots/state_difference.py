"""Changes between two states, field by field, as a bounded list.

Both are trees of plain values and of saved arrays, histories and blobs (`saved_values.py`). They are walked together: dicts by key, lists and
histories record by record.

Records are first paired with equal ones, so that one record dropped from the front does not make all others "edited". Among equal records the first
is paired with the first, the second with the second, and so on. The longest chain of pairs in order is kept (as in patience diff, O(n log n)).
Records between two pairs were edited, inserted or dropped; records after the last pair were appended.

Output is bounded: each agent shows `DIFFERENCES_MAX` changes and counts the rest; long values are truncated.
"""

import bisect
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from snapline.agent_runtime.snapshots.array_difference import compare_arrays, compare_bytes
from snapline.storage.capture.saved_values import SavedArray, SavedBytes, SavedHistory

DIFFERENCES_MAX = 50
"""Largest number of changes shown for one agent: more than a person reads. Other changes are counted."""

RECORDS_SHOWN = 3
"""Largest number of records shown of each kind of change in a list or history."""

TEXT_MAX = 300
"""Largest number of characters shown of a text."""

ITEMS_MAX = 20
"""Largest number of items shown of a dict or list inside another value."""

DEPTH_SHOWN = 4
"""Largest number of levels shown of a value."""

DEPTH_MAX = 100
"""Largest number of levels walked; deeper values are compared as a whole. Python's stack has 1,000 frames."""


class StateChanges:
    """Collects changes up to a limit; each change is a dict with `path`, `change` and details.

    Attributes:
        shown: the first changes.
        more: number of changes not shown.
    """

    def __init__(self, most: int = DIFFERENCES_MAX) -> None:
        self._most = most
        self.shown: list[dict[str, object]] = []
        self.more = 0

    def __bool__(self) -> bool:
        return bool(self.shown)

    def add(self, path: str, change: str, **fields: object) -> None:
        """Add one change."""
        if len(self.shown) < self._most:
            self.shown.append({"path": path, "change": change, **fields})
        else:
            self.more += 1


def compare(before: object, after: object, changes: StateChanges, path: str = "", depth: int = 0) -> None:
    """Walk two values, and add their differences.

    Raises:
        DamagedDataError: a chunk is damaged, or a history cannot be replayed.
    """
    if depth > DEPTH_MAX:
        if _identity(before) != _identity(after):
            changes.add(path, "value", before=shown(before), after=shown(after))
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        _compare_mappings(before, after, changes, path, depth)
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        _compare_lists(before, after, changes, path, depth)
    elif isinstance(before, SavedHistory) and isinstance(after, SavedHistory):
        _compare_histories(before, after, changes, path)
    elif isinstance(before, SavedArray) and isinstance(after, SavedArray):
        _compare_arrays(before, after, changes, path)
    elif isinstance(before, SavedBytes) and isinstance(after, SavedBytes):
        _compare_blobs(before, after, changes, path)
    elif not _is_same(before, after):
        changes.add(path, "value", before=shown(before), after=shown(after))


def shown(value: object, depth: int = DEPTH_SHOWN) -> object:
    """Return `value` for display and JSON, truncated if long."""
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[: TEXT_MAX - 1]}…"
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value[: TEXT_MAX // 2])
        return data.hex() if len(value) == len(data) else f"{data.hex()}… ({len(value):,} bytes)"
    if isinstance(value, Mapping | list | tuple):
        return _shown_inside(value, depth) if depth else f"<{len(value):,} items>"
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _shown_inside(value: Mapping[object, object] | Sequence[object], depth: int) -> object:
    more = len(value) - ITEMS_MAX
    if isinstance(value, Mapping):
        some = {str(key): shown(value[key], depth - 1) for key in list(value)[:ITEMS_MAX]}
        return some if more <= 0 else {**some, "…": f"{more:,} more"}
    listed = [shown(item, depth - 1) for item in value[:ITEMS_MAX]]
    return listed if more <= 0 else [*listed, f"… {more:,} more"]


# -- dicts and lists --------------------------------------------------------------------------------------------------


def _compare_mappings(
    before: Mapping[object, object], after: Mapping[object, object], changes: StateChanges, path: str, depth: int
) -> None:
    for key, value in before.items():
        if key in after:
            compare(value, after[key], changes, _join(path, key), depth + 1)
        else:
            changes.add(_join(path, key), "removed", before=shown(value))
    for key, value in after.items():
        if key not in before:
            changes.add(_join(path, key), "added", after=shown(value))


def _join(path: str, key: object) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


class _Alignment:
    """Steps from one list to another: indexes.

    Attributes:
        edited: (before, after).
        dropped: before.
        inserted, appended: after.
    """

    def __init__(self, before: Sequence[object], after: Sequence[object]) -> None:
        self.edited: list[tuple[int, int]] = []
        self.dropped: list[int] = []
        self.inserted: list[int] = []
        self.appended: list[int] = []
        pairs = _paired([_identity(x) for x in before], [_identity(x) for x in after])
        ends = [(-1, -1), *pairs, (len(before), len(after))]
        for (i, j), (next_i, next_j) in pairwise(ends):
            count = min(next_i - i, next_j - j) - 1
            self.edited += [(i + k, j + k) for k in range(1, count + 1)]
            self.dropped += range(i + count + 1, next_i)
            is_end = next_j == len(after)
            (self.appended if is_end else self.inserted).extend(range(j + count + 1, next_j))

    @property
    def keeps_length(self) -> bool:
        return not (self.dropped or self.inserted or self.appended)


def _paired(before: Sequence[bytes], after: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return pairs of equal records in order: as many as possible where no two records of one list are equal."""
    front = 0
    while front < min(len(before), len(after)) and before[front] == after[front]:
        front += 1
    places: dict[bytes, list[int]] = {}
    for i in range(len(before) - 1, front - 1, -1):
        places.setdefault(before[i], []).append(i)
    candidates = [
        (places[after[j]].pop(), j) for j in range(front, len(after)) if after[j] in places and places[after[j]]
    ]
    return [(i, i) for i in range(front)] + _longest_chain(candidates)


def _longest_chain(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence whose first members increase."""
    ends: list[int] = []  # the smallest first member that ends a chain of each length
    holders: list[int] = []
    previous: list[int] = []
    for number, (i, _) in enumerate(pairs):
        length = bisect.bisect_left(ends, i)
        previous.append(holders[length - 1] if length else -1)
        ends[length : length + 1] = [i]
        holders[length : length + 1] = [number]
    chain: list[tuple[int, int]] = []
    number = holders[-1] if holders else -1
    while number >= 0:
        chain.append(pairs[number])
        number = previous[number]
    return chain[::-1]


def _compare_lists(
    before: Sequence[object], after: Sequence[object], changes: StateChanges, path: str, depth: int
) -> None:
    """Compare two lists: walk edited items, and show inserted and dropped ones."""
    alignment = _Alignment(before, after)
    if not alignment.keeps_length:
        changes.add(path, "list", **_counts(alignment, before, after, with_edited=False))
    for i, j in alignment.edited:
        compare(before[i], after[j], changes, f"{path}[{j}]", depth + 1)


def _compare_histories(before: SavedHistory, after: SavedHistory, changes: StateChanges, path: str) -> None:
    if before.content.identity == after.content.identity:
        return
    old, new = before.records(), after.records()
    alignment = _Alignment(old, new)
    if alignment.edited or not alignment.keeps_length:
        changes.add(path, "history", **_counts(alignment, old, new, with_edited=True))


def _counts(
    found: _Alignment, before: Sequence[object], after: Sequence[object], *, with_edited: bool
) -> dict[str, object]:
    fields: dict[str, object] = {
        "length_before": len(before),
        "length_after": len(after),
        "appended": len(found.appended),
        "inserted": len(found.inserted),
        "edited": len(found.edited),
        "dropped": len(found.dropped),
    }
    rows: list[dict[str, object]] = []
    if with_edited:
        rows += [
            {"edited": j, "before": shown(before[i]), "after": shown(after[j])} for i, j in found.edited[:RECORDS_SHOWN]
        ]
    rows += [{"dropped": i, "before": shown(before[i])} for i in found.dropped[:RECORDS_SHOWN]]
    rows += [{"inserted": j, "after": shown(after[j])} for j in found.inserted[:RECORDS_SHOWN]]
    rows += [{"appended": j, "after": shown(after[j])} for j in found.appended[:RECORDS_SHOWN]]
    return {**fields, "records": rows}


# -- arrays and bytes -------------------------------------------------------------------------------------------------


def _compare_arrays(before: SavedArray, after: SavedArray, changes: StateChanges, path: str) -> None:
    if (before.dtype, before.shape, before.is_tensor) != (after.dtype, after.shape, after.is_tensor):
        changes.add(path, "array type", before=str(before), after=str(after))
        return
    difference = compare_arrays(before, after)
    if difference.changed:
        changes.add(
            path,
            "array",
            array=str(after),
            elements=difference.elements,
            changed_elements=difference.changed,
            first_changed=_index(difference.first, after.shape),
            last_changed=_index(difference.last, after.shape),
            largest_change=difference.largest,
        )


def _index(place: int, shape: Sequence[int]) -> list[int]:
    """Return the index of an element along each axis."""
    index: list[int] = []
    for length in reversed(shape):
        place, rest = divmod(place, length)
        index.append(rest)
    return index[::-1]


def _compare_blobs(before: SavedBytes, after: SavedBytes, changes: StateChanges, path: str) -> None:
    if before.name != after.name:
        changes.add(path, "value", before=str(before), after=str(after))
        return
    difference = compare_bytes(before.content, after.content)
    if difference is not None:
        changes.add(
            path,
            before.name,
            size_before=before.content.size_bytes,
            size_after=after.content.size_bytes,
            offset=difference.offset,
            removed_bytes=difference.removed,
            added_bytes=difference.added,
        )


# -- equality ---------------------------------------------------------------------------------------------------------


def _is_same(before: object, after: object) -> bool:
    return type(before) is type(after) and (before == after or (before != before and after != after))  # noqa: PLR0124


def _identity(value: object) -> bytes:
    """Return bytes that are equal for equal values. Saved arrays and the like count by digests: nothing is read."""
    try:
        return _identity_encoder.encode(value)
    except TypeError:  # The encoder can sort only keys that are text.
        return _identity_encoder.encode(_with_sorted_keys(value))


def _with_sorted_keys(value: object) -> object:
    if isinstance(value, Mapping):
        pairs = [(_identity_encoder.encode(key), _with_sorted_keys(item)) for key, item in value.items()]
        return "mapping", sorted(pairs, key=lambda pair: pair[0])
    return [_with_sorted_keys(item) for item in value] if isinstance(value, list | tuple) else value


def _encode_saved(value: object) -> object:
    match value:
        case SavedArray():
            return "array", value.is_tensor, value.dtype, value.shape, value.content.identity
        case SavedHistory() | SavedBytes():
            return str(value), value.content.identity
    raise NotImplementedError(f"objects of type {type(value).__qualname__}")


_identity_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_saved, order="deterministic")
