"""Lists the changes between two states, field by field, up to a limit.

Both states are trees of plain values and of saved arrays, histories and blobs (`saved_values.py`). The two trees are compared node by node.
Dicts are compared by key, and lists and histories record by record.

Equal records of two lists are paired first, so that removing the first record does not mark all later records as edited. If equal records
occur several times, the first occurrences are paired, then the second occurrences, and so on. Of the paired records, the longest
subsequence with ascending positions is kept (as in patience diff, O(n log n)). Records between two pairs count as edited, inserted or
dropped. Records after the last pair count as edited, dropped or appended.

For a changed array, tensor or blob, the result contains the number, position and size of the changes. Arrays whose chunks have the same
size are compared by the chunks' digests. Only chunks that differ are read, a few MiB at a time. Elements are compared as bytes, so -0.0
differs from 0.0, and a NaN equals an identical NaN. The largest change is not reported if NumPy is not installed.

The output is bounded: at most `DIFFERENCES_MAX` changes are listed for each agent, and further changes are only counted. Long values are
truncated.
"""

import bisect
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from snapline.storage.capture.saved_values import Content, SavedArray, SavedBytes, SavedHistory
from snapline.storage.packs.checkpoint import ChunkReference

BATCH_BYTES = 8 * 2**20
"""Number of bytes that are read and compared at a time for each state, which limits memory use."""


class ArrayDifference(msgspec.Struct):
    """Changes between two arrays of the same type and shape.

    Attributes:
        elements: number of elements in each array.
        changed: number of elements that differ.
        first, last: indexes in C order of the first and the last element that differ.
        largest: largest absolute change of an element, or None if it is unknown because the elements are not numeric, a NaN is involved, or
            NumPy is missing.
    """

    elements: int
    changed: int = 0
    first: int = 0
    last: int = 0
    largest: int | float | None = None


class BytesDifference(msgspec.Struct, frozen=True):
    """A replacement of `removed` bytes at `offset` by `added` bytes. All bytes before and after the replaced bytes are equal."""

    offset: int
    removed: int
    added: int


def compare_arrays(before: SavedArray, after: SavedArray) -> ArrayDifference:
    """Compare two arrays of the same dtype and shape.

    Raises:
        DamagedDataError: If a chunk is damaged.
    """
    count = 1
    for length in before.shape:
        count *= length
    difference = ArrayDifference(count)
    item_bytes = before.content.size_bytes // count if count else 0
    if not item_bytes or not before.content.size_bytes == after.content.size_bytes == item_bytes * count:
        return difference
    for offset, old, new in _pairs(before.content, after.content, item_bytes):
        _compare(difference, before.dtype, item_bytes, offset // item_bytes, old, new)
    return difference


def compare_bytes(before: Content, after: Content) -> BytesDifference | None:
    """Compare two blobs. Return None if they are equal. At most the first and the last differing chunks of each blob are read.

    Raises:
        DamagedDataError: If a chunk is damaged.
    """
    if before.part is None or after.part is None:
        return _compare_bytes(before.whole(), after.whole())
    old, new = before.part.chunks(), after.part.chunks()
    same = _common(old, new)
    old, new = old[same:], new[same:]
    tail = _common(old[::-1], new[::-1])
    old, new = old[: len(old) - tail], new[: len(new) - tail]
    offset = sum([chunk.size_bytes for chunk in before.part.chunks()[:same]])
    if not old and not new:
        return None
    return _narrowed(before, after, old, new, offset)


def _narrowed(
    before: Content, after: Content, old: list[ChunkReference], new: list[ChunkReference], offset: int
) -> BytesDifference | None:
    """Determine the exact position and size of the difference from the first and the last chunk that differ."""
    sizes = [sum([chunk.size_bytes for chunk in side]) for side in (old, new)]
    if not old or not new:
        return BytesDifference(offset, *sizes)
    if max(len(old), len(new)) <= 2:
        difference = _compare_bytes(before.chunks(old), after.chunks(new))
        return (
            None
            if difference is None
            else BytesDifference(offset + difference.offset, difference.removed, difference.added)
        )
    front = _common(before.chunks(old[:1]), after.chunks(new[:1]))
    back = _common(before.chunks(old[-1:])[::-1], after.chunks(new[-1:])[::-1])
    back = min(back, min(sizes) - front)
    return BytesDifference(offset + front, sizes[0] - front - back, sizes[1] - front - back)


def _compare_bytes(old: memoryview, new: memoryview) -> BytesDifference | None:
    if old == new:
        return None
    front = _common(old, new)
    old, new = old[front:], new[front:]
    back = _common(old[::-1], new[::-1])
    return BytesDifference(front, len(old) - back, len(new) - back)


def _common(first: Any, second: Any) -> int:
    """Return the length of the common prefix of two sequences. A binary search is used, because comparing slices is fast."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _pairs(before: Content, after: Content, item_bytes: int) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield the offset, the old bytes and the new bytes of each range of bytes that may differ."""
    old, new = before.part, after.part
    if old is None or new is None or not old.chunk_bytes or old.chunk_bytes != new.chunk_bytes:
        yield 0, before.whole(), after.whole()
        return
    if old.chunk_bytes % item_bytes:  # elements cross chunk boundaries
        if old.digests != new.digests:
            yield 0, before.whole(), after.whole()
        return
    pairs = list(zip(old.chunks(), new.chunks(), strict=True))
    for first, last in _batches(pairs, max(1, BATCH_BYTES // old.chunk_bytes)):
        chosen = pairs[first:last]
        yield (
            first * old.chunk_bytes,
            before.chunks([x[0] for x in chosen]),
            after.chunks([x[1] for x in chosen]),
        )


def _batches(pairs: list[tuple[ChunkReference, ChunkReference]], most: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each run of consecutive pairs that differ. A run contains at most `most` pairs."""
    first = 0
    while first < len(pairs):
        if pairs[first][0].digest == pairs[first][1].digest:
            first += 1
            continue
        last = first
        while last < len(pairs) and last - first < most and pairs[last][0].digest != pairs[last][1].digest:
            last += 1
        yield first, last
        first = last


def _compare(found: ArrayDifference, dtype: str, item_bytes: int, start: int, old: memoryview, new: memoryview) -> None:
    """Add the differences between two equally long runs of elements. `start` is the index of the first element in both runs."""
    if importlib.util.find_spec("numpy") is None:
        changed = [
            place
            for place in range(len(old) // item_bytes)
            if old[place * item_bytes : (place + 1) * item_bytes] != new[place * item_bytes : (place + 1) * item_bytes]
        ]
        ends = (changed[0], changed[-1]) if changed else (0, 0)
        _add(found, start, len(changed), ends, None)
        return
    import numpy

    bytes_old, bytes_new = (numpy.frombuffer(x, numpy.uint8).reshape(-1, item_bytes) for x in (old, new))
    places = numpy.flatnonzero((bytes_old != bytes_new).any(axis=1))
    if len(places):
        ends = int(places[0]), int(places[-1])
        _add(found, start, len(places), ends, _largest(dtype, bytes_old[places], bytes_new[places]))


def _add(found: ArrayDifference, start: int, count: int, ends: tuple[int, int], largest: float | None) -> None:
    if not count:
        return
    if not found.changed:
        found.first = start + ends[0]
    found.last = start + ends[1]
    found.changed += count
    if largest is not None:
        found.largest = largest if found.largest is None else max(found.largest, largest)


def _largest(dtype: str, old: Any, new: Any) -> int | float | None:
    """Return the largest absolute change between two arrays, whose elements are given as rows of bytes. Return None if it is unknown. For
    integers, the result is exact."""
    import numpy

    before, after = _numbers(dtype, old), _numbers(dtype, new)
    if before is None or after is None:
        return None
    if before.dtype.kind in "iu":
        high, low = numpy.maximum(before, after), numpy.minimum(before, after)
        return int((high.astype(numpy.uint64) - low.astype(numpy.uint64)).max())  # exact, modulo 2**64
    wide = numpy.complex128 if before.dtype.kind == "c" else numpy.float64
    with numpy.errstate(all="ignore"):
        changes = numpy.abs(after.astype(wide) - before.astype(wide))
    changes = changes[~numpy.isnan(changes)]
    return float(changes.max()) if len(changes) else None


def _numbers(dtype: str, rows: Any) -> Any:
    """Decode rows of bytes as numbers. Return None if `dtype` is not a numeric type."""
    import numpy

    data = rows.tobytes()
    if dtype == "bfloat16":
        return (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    try:
        kind = numpy.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        return None
    return numpy.frombuffer(data, kind) if kind.kind in "iufc" and kind.itemsize == rows.shape[1] else None


DIFFERENCES_MAX = 50
"""Largest number of changes shown for one agent, which is more than a person reads. Further changes are only counted."""

RECORDS_SHOWN = 3
"""Largest number of records shown for each kind of change in a list or history."""

TEXT_MAX = 300
"""Largest number of characters shown of a text."""

ITEMS_MAX = 20
"""Largest number of items shown of one dict or list."""

DEPTH_SHOWN = 4
"""Largest number of nesting levels shown of a value."""

DEPTH_MAX = 100
"""Largest number of nesting levels that are compared one by one, since Python's stack is limited to 1,000 frames. Deeper values are
compared as a whole."""


class StateChanges:
    """Collects changes up to a limit. Each change is a dict with `path`, `change` and details.

    Attributes:
        shown: the first changes, up to the limit.
        more: number of changes beyond the limit.
    """

    def __init__(self, most: int = DIFFERENCES_MAX) -> None:
        self._most = most
        self.shown: list[dict[str, object]] = []
        self.more = 0

    def __bool__(self) -> bool:
        return bool(self.shown)

    def add(self, path: str, change: str, **fields: object) -> None:
        """Add one change. If the limit is reached, only count the change."""
        if len(self.shown) < self._most:
            self.shown.append({"path": path, "change": change, **fields})
        else:
            self.more += 1


def compare(before: object, after: object, changes: StateChanges, path: str = "", depth: int = 0) -> None:
    """Compare two values recursively, and add their differences to `changes`.

    Raises:
        DamagedDataError: If a chunk is damaged, or a history cannot be replayed.
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
    """Convert a value for display and JSON. Long values are truncated."""
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
    """The changes that turn one list into another, as indexes into the two lists.

    Attributes:
        edited: pairs of an index in the old list and an index in the new list.
        dropped: indexes into the old list.
        inserted, appended: indexes into the new list.
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
    """Return pairs of equal records with ascending positions. If no record occurs twice in a list, no larger set of such pairs exists."""
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
    """Return the longest subsequence of pairs in which the first members increase."""
    ends: list[int] = []  # for each length, the smallest first member that can end a chain
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
    """Compare two lists. Edited items are compared recursively. Inserted and dropped items are shown."""
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
    """Convert an element's index in C order to one index per axis."""
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
    """Return a byte string that is equal for equal values. Saved arrays, histories and blobs are represented by their digests, so their
    data is not read."""
    try:
        return _identity_encoder.encode(value)
    except TypeError:  # the encoder can sort only text keys
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
