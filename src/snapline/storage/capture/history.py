"""`History`: a list of frozen records. The cost of capturing a history depends on the changes, not on the length of the list.

The problem: an agent has a chat history of ten thousand messages and receives ten more messages between two checkpoints. Encoding all
messages again would pause the agent for 5 to 10 ms and store another 11 MB.

So the list keeps a *log* of all operations since the last capture: append, replace, delete and insert. A capture encodes only the log,
which becomes a new *segment*. The list is reproduced by applying all segments in order (`history_operations.py`). Small segments are
merged. As a result of merging, the rest of the list is not rewritten when old records are edited or dropped.

The bytes of overwritten or deleted records remain in old segments as *dead bytes*. When more than half of all bytes are dead, the next
capture rewrites the whole list. A rewrite costs at most twice the dead bytes, so rewrites multiply the cost of each edit by at most a
constant factor. A capture that rewrites the list pauses the agent for the time that encoding the whole list takes.

The list is also rewritten if there is no log. There is no log at the first capture, after `clear` or `reverse`, and after so many edits
that encoding them would cost more than encoding the list. The list is also rewritten if the base is not the base of the last capture and
lacks a segment whose bytes have been dropped.

Invariants. (1) Applying all segments and then the log always reproduces the list. (2) If a segment has no bytes in memory, it was contained
in an earlier base. (3) A capture that fails changes nothing. So any number of epochs may abort: a segment keeps its bytes until a base
contains it, and the log is cleared only after it has become a segment.

A record is encoded only once, so it must never change. All methods must be called on the event loop of the agent.

**Segments** have immutable contents, and each segment is one chunk in the store. The problem: each capture that writes only the appended
records adds one small segment. After ten thousand captures, a checkpoint would name ten thousand segments. If all segments were merged at
each capture, all bytes would be written each time.

So small segments are merged with neighbours of similar size, as in a log-structured merge tree. The target size of a segment is called M. A
segment of at least M/2 bytes is *full*, and is never merged again. All other segments are *open*. Open segments are divided into tiers,
where the segments of each tier are eight times as large as those of the tier below. Only the segments after the last full segment are
merged:

- If the last eight or more segments are of one tier or lower tiers, they are merged into one segment.
- If the open segments together exceed M, the first of them are merged into a full segment.
- If a full segment is added, the open segments before it are merged into one segment.

Each byte is written once, and once more each time its segment is merged into a higher tier. This happens two times for captures of 11 KB,
and three times for small captures. Invariants: (1) the concatenated contents always encode the same list. (2) The open segments together
have at most M bytes, and there are never more than `OPEN_SEGMENTS_MAX` of them. (3) Of any two neighbours among all other segments, at
least one is full. So there are at most 4 · total / M + 1 other segments, and about total / M if all segments were appended in order.

Bytes stay in memory only as long as they may be needed. Open segments need their bytes for merging, and full segments need them until a
base contains the segment. The base's table identifies a segment by its token, and a merged segment gets a new token.

**Frozen records.** A history encodes each record only once. If a record contained a list that was changed later, checkpoints would silently
keep the old contents. So mutable records are refused when they are added.

Inspecting each record would cost more than adding it to the list. So for a frozen struct or dataclass, the declared field types are
inspected once. If the declared types exclude mutable values, further records of the same type are accepted without inspection.
"""

import dataclasses
import datetime
import decimal
import enum
import functools
import types
import typing
import uuid
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any, Generic, TypeVar

import msgspec

from snapline.errors import DamagedDataError, EncodingError
from snapline.storage.capture.history_operations import (
    APPEND,
    DELETE,
    EDIT_BYTES,
    INSERT,
    REPLACE,
    HistoryOperation,
    Replay,
    encode_operations,
    encode_records,
)
from snapline.storage.capture.image import PART_HISTORY, CapturedPart, ChunkTable, SourceChunk, fresh_token
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded
from snapline.storage.disk.record import Buffer
from snapline.storage.packs.checkpoint import ChunkReference, StatePart

SEGMENT_BYTES_MAX = 256 * 1024
"""M, the target size of a segment in bytes, for histories below 256 MiB. An 11 MB history has about 50 segments, and merging one takes
0.1 ms."""

SEGMENTS_MAX = 1024
"""Number of segments beyond which M grows with the history. Each capture walks the list of segments, at about 0.1 µs per segment."""

MERGED_SEGMENTS = 8
"""Number of segments of a tier that are merged. A smaller number would write bytes more often. A larger number would leave more segments in
checkpoints (37 bytes per segment)."""

_TIERS = 3
"""Number of open tiers, with segments below M/128, below M/16 and below M/2."""

OPEN_SEGMENTS_MAX = MERGED_SEGMENTS * _TIERS


class Segment(msgspec.Struct):
    """One segment of a history.

    Attributes:
        token: number that identifies the content of the segment.
        data: the content, or None if a base contains the segment and the segment will not be merged again.
    """

    token: int
    size_bytes: int
    data: bytes | None


def segment_bytes(live_bytes: int) -> int:
    """Return the target segment size M, in bytes, for a history whose records take `live_bytes` bytes."""
    return max(SEGMENT_BYTES_MAX, live_bytes // SEGMENTS_MAX)


def is_full(size_bytes: int, target_bytes: int) -> bool:
    """Return whether a segment of this size is full, which means that it is never merged again."""
    return 2 * size_bytes >= target_bytes


def add(segments: list[Segment], content: bytes, target_bytes: int) -> None:
    """Append `content` as a new segment, and merge segments if necessary. `target_bytes` is M."""
    first = first_open_index(segments, target_bytes)
    if is_full(len(content), target_bytes):
        _merge(segments, first, len(segments))
        segments.append(Segment(fresh_token(), len(content), content))
        return
    segments.append(Segment(fresh_token(), len(content), content))
    first = _fill(segments, first, target_bytes)
    _merge_tiers(segments, first, target_bytes)


def first_open_index(segments: list[Segment], target_bytes: int) -> int:
    """Return the index of the first open segment, or the number of segments if none is open.

    A segment without bytes is never open. Such a segment was full when its bytes were dropped, even if M has grown since then.
    """
    index = len(segments)
    while index and segments[index - 1].data is not None and not is_full(segments[index - 1].size_bytes, target_bytes):
        index -= 1
    return index


def fill_open_segments(segments: list[Segment], contents: memoryview, target_bytes: int) -> None:
    """Set the bytes of all open segments, so that they can be merged. The open segments are the last ones in the list. `contents` contains
    the concatenated contents of all segments."""
    end = len(contents)
    for segment in reversed(segments):
        start = end - segment.size_bytes
        if is_full(segment.size_bytes, target_bytes):
            return
        segment.data, end = bytes(contents[start:end]), start


def _fill(segments: list[Segment], first: int, target_bytes: int) -> int:
    """Merge the first open segments into full ones while the open segments together have more than M bytes. Return the new index of the
    first open segment."""
    while sum([segment.size_bytes for segment in segments[first:]]) > target_bytes:
        end, size = first, 0
        while size + segments[end].size_bytes <= target_bytes:
            size += segments[end].size_bytes
            end += 1
        _merge(
            segments, first, end
        )  # The result is over M/2, because the next segment has less than M/2 and did not fit.
        first += 1
    return first


def _merge_tiers(segments: list[Segment], first: int, target_bytes: int) -> None:
    while len(segments) - first >= MERGED_SEGMENTS:
        tier = _tier(segments[-1].size_bytes, target_bytes)
        start = len(segments)
        while start > first and _tier(segments[start - 1].size_bytes, target_bytes) <= tier:
            start -= 1
        if len(segments) - start < MERGED_SEGMENTS:
            return
        _merge(segments, start, len(segments))
        if is_full(segments[-1].size_bytes, target_bytes):
            return


def _tier(size_bytes: int, target_bytes: int) -> int:
    """Return the tier of a segment, where 0 is the tier of the smallest segments. The segments of each tier are eight times as large as the
    segments of the next lower tier."""
    return (16 * size_bytes >= target_bytes) + (128 * size_bytes >= target_bytes)


def _merge(segments: list[Segment], start: int, end: int) -> None:
    if end - start < 2:
        return
    content = b"".join([segment.data for segment in segments[start:end] if segment.data is not None])
    segments[start:end] = [Segment(fresh_token(), len(content), content)]


TRUSTED_TYPES_MAX = 256
"""Number of types that a history remembers as immutable. If a program has more, they are checked again."""

_ATOMS = (
    *(str, bytes, int, float, bool, types.NoneType, decimal.Decimal, uuid.UUID),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, msgspec.UnsetType),
)
_ATOM_TYPES = frozenset(_ATOMS)


def check_record(record: Any, trusted: set[type]) -> None:
    """Refuse a mutable record. If all records of this type are immutable, add the type to `trusted`.

    Raises:
        EncodingError: If the record is mutable. The message names the type of the mutable value and its position in the record.
    """
    kind: Any = type(record)
    try:
        reason = _mutable_part(record, kind.__qualname__)
    except RecursionError:
        reason = f"a {kind.__qualname__} is nested too deeply"
    if reason:
        raise EncodingError(
            f"a History takes records that cannot change, and {reason}: use a frozen msgspec.Struct, a frozen dataclass, "
            "a tuple, or plain values"
        )
    if is_immutable_type(kind):
        if len(trusted) >= TRUSTED_TYPES_MAX:
            trusted.clear()
        trusted.add(kind)


def _mutable_part(value: object, where: str) -> str:
    """Describe the mutable part of `value`. Return "" if there is none."""
    kind = type(value)
    if _is_atom(kind):
        return ""
    if isinstance(value, tuple | frozenset):
        inner = [
            (f"{where}[{i}]" if isinstance(value, tuple) else f"an element of {where}", x) for i, x in enumerate(value)
        ]
    elif is_frozen(kind):
        inner = [(f"{where}.{name}", getattr(value, name, None)) for name in _fields(kind)]
    else:
        return f"{where} is a {kind.__qualname__}" if kind.__qualname__ != where else f"{where} can"
    return next(filter(None, (_mutable_part(x, place) for place, x in inner)), "")


def is_frozen(kind: type) -> bool:
    """Return whether `kind` is a frozen struct class or a frozen dataclass."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    return dataclasses.is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]  # typeshed lacks it


def _is_atom(kind: type) -> bool:
    if kind in _ATOM_TYPES or issubclass(kind, enum.Enum):
        return True
    numpy = numpy_if_loaded()
    return numpy is not None and issubclass(kind, numpy.bool_ | numpy.integer | numpy.floating)


def _fields(kind: type) -> tuple[str, ...]:
    names: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", ())
    return tuple(names)


@functools.lru_cache(maxsize=1024)  # A program has far fewer types of records and fields.
def is_immutable_type(kind: type[Any]) -> bool:
    """Return whether all instances of exactly this class are immutable, according to the declared types of its fields."""
    if _is_atom(kind):
        return True
    if not is_frozen(kind):
        return False
    try:
        return _has_immutable_fields(kind, (kind,))
    except Exception:  # If a name cannot be resolved, each record is inspected.
        return False


def _has_immutable_fields(kind: type, outer: tuple[type, ...]) -> bool:
    hints = typing.get_type_hints(kind)
    return all(_is_immutable_hint(hints.get(name, Any), outer) for name in _fields(kind))


def _is_immutable_hint(hint: Any, outer: tuple[type, ...]) -> bool:
    """Return whether all values of this type are immutable. `outer` contains the enclosing types, which need not be inspected again."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return True
    if origin is typing.Annotated:
        return _is_immutable_hint(inner[0], outer)
    if origin in (typing.Union, types.UnionType, tuple, frozenset):
        return bool(inner) and all(part is ... or _is_immutable_hint(part, outer) for part in inner)
    if not isinstance(hint, type) or origin is not None:
        return False
    if is_frozen(hint) and hint not in outer and not hint.__subclasses__():
        return _has_immutable_fields(hint, (*outer, hint))
    return _is_atom(hint) or hint in outer


T = TypeVar("T")

LOG_RECORDS_MIN = 1024
"""Smallest limit on the number of records in the log. If the list is longer, its length is the limit. Beyond the limit, rewriting the list
costs less than encoding the log. Without a limit, the log of an agent that is never captured again would grow forever."""

MEASURED_RECORDS_MAX = 64
"""Number of records that are encoded to measure how many bytes a deletion makes dead. For more records the result is an estimate."""


class HistoryMark(msgspec.Struct, frozen=True):
    """Contents of a history at an earlier time, to which `rollback` can return."""

    records: list[Any]
    log: list[HistoryOperation] | None
    logged: int
    segments: list[Segment]
    dead_bytes: int


@typing.final
class History(MutableSequence[T], Generic[T]):
    """List of immutable records, which are frozen structs or dataclasses, strings, bytes, numbers, or tuples of these.

    Declare the field with the type of the records, for example as `History[Message]`. If the type of the records is not declared, a
    restored history contains plain values. As in all other parts of a state, a tuple is refused if the declared type is `Any`, because it
    would be restored as a list.

    Raises:
        EncodingError: If a record is mutable. The message names the record's type.
    """

    __slots__ = (
        "__weakref__",
        "_checked_by",
        "_dead_bytes",
        "_log",
        "_logged",
        "_records",
        "_references",
        "_segments",
        "_trusted",
    )

    def __init__(self, records: Iterable[T] = ()) -> None:
        self._trusted: set[type] = set()
        self._records: list[T] = self._checked(records)
        self._log: list[HistoryOperation] | None = None
        self._logged = 0
        self._segments: list[Segment] = []
        self._dead_bytes = 0
        self._references: dict[int, ChunkReference] = {}
        self._checked_by: object = None

    # Reading, which works as with a list.

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[T]:
        return iter(self._records)

    def __reversed__(self) -> Iterator[T]:
        return reversed(self._records)

    def __contains__(self, record: object) -> bool:
        return record in self._records

    @typing.overload
    def __getitem__(self, index: typing.SupportsIndex) -> T: ...
    @typing.overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: typing.SupportsIndex | slice) -> T | list[T]:
        return self._records[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, History):
            return self._records == other._records
        return self._records == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable, as a list

    def __repr__(self) -> str:
        return f"History({self._records!r})"

    def __reduce__(self) -> tuple[type["History[T]"], tuple[list[T]]]:
        """Copy or pickle only the records. The copy has no segments, because a token must never identify two contents."""
        return History, (self._records,)

    def index(self, record: T, start: int = 0, stop: int | None = None) -> int:
        """Return the index of the first record that is equal to `record`.

        Raises:
            ValueError: If there is no such record between `start` and `stop`.
        """
        return self._records.index(record, start, len(self._records) if stop is None else stop)

    def count(self, record: T) -> int:
        """Return the number of records that are equal to `record`."""
        return self._records.count(record)

    def records_for_inline(self) -> list[T]:
        """Return the internal list of records without copying it. The caller must not change the list."""
        return self._records

    def records_to_check(self, checked_by: object) -> list[list[T]]:
        """Return the records that no capture has encoded yet. If `checked_by` has not checked the earlier records, return all records."""
        if self._log is None or self._checked_by is not checked_by:
            return [self._records]
        return [operation.records for operation in self._log]

    def note_checked(self, checked_by: object) -> None:
        """Remember that `checked_by` has checked all current records against their declared type, so that it does not check them again."""
        self._checked_by = checked_by

    # Changing. Each method checks the records, changes the list, and logs the operation.

    def append(self, record: T) -> None:
        """Add a record at the end."""
        if type(record) not in self._trusted:
            check_record(record, self._trusted)
        self._records.append(record)
        if self._log is not None:
            self._note_appended([record])

    def extend(self, records: Iterable[T]) -> None:
        """Add several records at the end. If any record is refused, none is added."""
        added = self._checked(records)
        self._records += added
        if self._log is not None and added:
            self._note_appended(added)

    def insert(self, index: typing.SupportsIndex, record: T) -> None:
        """Add a record before `index`."""
        place = slice(index, index).indices(len(self._records))[0]
        self._change(place, place, self._checked([record]))

    @typing.overload
    def __setitem__(self, index: typing.SupportsIndex, value: T) -> None: ...
    @typing.overload
    def __setitem__(self, index: slice, value: Iterable[T]) -> None: ...
    def __setitem__(self, index: typing.SupportsIndex | slice, value: T | Iterable[T]) -> None:
        if not isinstance(index, slice):
            place = self._place(index)
            self._change(place, place + 1, self._checked([typing.cast(T, value)]))
            return
        records = self._checked(typing.cast("Iterable[T]", value))
        places = range(*index.indices(len(self._records)))
        if places.step == 1:
            self._change(places.start, max(places.start, places.stop), records)
            return
        if len(records) != len(places):
            raise ValueError(f"{len(records)} records for a slice of {len(places)}")
        for place, record in zip(places, records, strict=True):
            self._change(place, place + 1, [record])

    def __delitem__(self, index: typing.SupportsIndex | slice) -> None:
        if not isinstance(index, slice):
            place = self._place(index)
            self._change(place, place + 1, [])
            return
        places = range(*index.indices(len(self._records)))
        if places.step == 1:
            self._change(places.start, max(places.start, places.stop), [])
            return
        for place in sorted(places, reverse=True):
            self._change(place, place + 1, [])

    def clear(self) -> None:
        """Remove all records. The stored segments of the history are not needed any more."""
        self._records.clear()
        self._schedule_rewrite()

    def reverse(self) -> None:
        """Reverse the order of the records. After a reversal, the next capture rewrites the list."""
        self._records.reverse()
        self._schedule_rewrite()

    def _checked(self, records: Iterable[T]) -> list[T]:
        listed, trusted = list(records), self._trusted
        for record in listed:
            if type(record) not in trusted:
                check_record(record, trusted)
        return listed

    def _place(self, index: typing.SupportsIndex) -> int:
        place = index.__index__()
        place += len(self._records) if place < 0 else 0
        if not 0 <= place < len(self._records):
            raise IndexError(f"index {index} of a History of {len(self._records)} records")
        return place

    # The log.

    def _schedule_rewrite(self) -> None:
        self._log, self._logged = None, 0

    def _note_appended(self, records: list[T]) -> None:
        """Log appended records. Successive appends are combined into one operation, whose index is the length of the list before the first
        append."""
        assert self._log is not None
        self._logged += len(records)
        last = self._log[-1] if self._log else None
        if last is not None and last.code == APPEND:
            last.records += records
        else:
            self._log.append(HistoryOperation(APPEND, len(self._records) - len(records), 0, list(records)))

    def _change(self, start: int, stop: int, records: list[T]) -> None:
        old = self._records[start:stop]
        self._records[start:stop] = records
        if self._log is None or (not old and not records):
            return
        last = self._log[-1] if self._log else None
        if last is not None and last.code == APPEND and start >= last.index and start < last.index + len(last.records):
            last.records[start - last.index : stop - last.index] = (
                records  # These were not encoded yet, so no bytes become dead.
            )
            return
        self._logged += len(records) + 1
        if self._logged > max(LOG_RECORDS_MIN, len(self._records)):
            self._schedule_rewrite()
            return
        self._dead_bytes += _estimate_bytes(old) + EDIT_BYTES
        self._note_changed(start, len(old), records)

    def _note_changed(self, start: int, deleted: int, records: list[T]) -> None:
        """Log a change. Log as many of the records as possible as replaced, and the rest as deleted or inserted."""
        assert self._log is not None
        replaced = min(deleted, len(records))
        if replaced:
            self._log.append(HistoryOperation(REPLACE, start, 0, records[:replaced]))
        if deleted > replaced:
            last = self._log[-1] if self._log else None
            if last is not None and last.code == DELETE and start <= last.index <= start + deleted:
                last.index, last.count = start, last.count + deleted  # For example repeated `pop(0)` or `pop()`.
            else:
                self._log.append(HistoryOperation(DELETE, start + replaced, deleted - replaced))
        elif len(records) > replaced:
            self._log.append(HistoryOperation(INSERT, start + replaced, 0, records[replaced:]))

    # Capture and restore.

    def capture(self, base: ChunkTable | None) -> CapturedPart:
        """Return the history as a part of an image. The part contains the bytes of all segments except those that are in the base.

        The returned bytes never change. This method must be called between two turns. The method may be called any number of times, whether
        or not an epoch completes. A segment's bytes are returned until a base contains the segment.

        Raises:
            EncodingError: If a record cannot be encoded. The history is unchanged.
        """
        known = {} if base is None else base.by_token
        lost = any(segment.data is None and segment.token not in known for segment in self._segments)
        size = sum([segment.size_bytes for segment in self._segments])
        target = segment_bytes(size - self._dead_bytes)
        if self._log is None or lost or 2 * self._dead_bytes > size or not self._encode_log(self._log, target):
            self._encode_all(target)
        self._log, self._logged = [], 0
        return self._part(known, target)

    def _encode_log(self, log: list[HistoryOperation], target: int) -> bool:
        """Encode the log as new segments. Return False if a record in the log cannot be encoded. The caller then encodes the whole list,
        which may succeed because a later edit may have replaced this record."""
        try:
            contents = encode_operations(log, target)
        except EncodingError:
            return False
        for content in contents:
            add(self._segments, content, target)
        return True

    def _encode_all(self, target: int) -> None:
        contents = encode_operations([HistoryOperation(APPEND, 0, 0, self._records)], target)
        self._segments = [Segment(fresh_token(), len(content), content) for content in contents]
        self._dead_bytes = 0

    def _part(self, known: dict[int, ChunkReference], target: int) -> CapturedPart:
        """Return the part. Drop the bytes of full segments if the segments are in a base."""
        chunks, first_open = [], first_open_index(self._segments, target)
        for index, segment in enumerate(self._segments):
            is_known = segment.token in known
            chunks.append(SourceChunk(segment.token, None if is_known else segment.data, segment.size_bytes))
            if is_known and index < first_open:
                segment.data = None
        head = msgspec.msgpack.encode((len(self._records),))
        return CapturedPart(PART_HISTORY, head, sum([chunk.size_bytes for chunk in chunks]), 0, chunks)

    @classmethod
    def restore(cls, record_type: Any, part: StatePart, buffer: Buffer) -> "History[Any]":
        """Return the history whose segments have been read into `buffer`, verified and concatenated.

        Args:
            record_type: the declared type of the records. If the record type is Any, the records are decoded as plain values.
            part: the checkpoint's part that contains the history.
            buffer: bytes of all segments, which the history does not need after this call.

        Raises:
            DamagedDataError: If the segments are not operations on a list, or if they do not produce the number of records that the head
                states.
            EncodingError: If a record does not have the declared type.
        """
        view = memoryview(buffer).cast("B")
        if part.contradiction() or len(view) != part.size_bytes:
            raise DamagedDataError(
                "a history of the state has another length than its segments: restore an earlier epoch"
            )
        replay, history = Replay(record_type), cls()
        start = 0
        for reference in part.chunks():
            replay.do(view[start : start + reference.size_bytes])
            start += reference.size_bytes
            segment = Segment(fresh_token(), reference.size_bytes, None)
            history._segments.append(segment)
            history._references[segment.token] = reference
        _check_count(part.head, len(replay.records))
        live = min(sum(replay.sizes_bytes), part.size_bytes)
        history._records, history._log = replay.records, []
        history._dead_bytes = part.size_bytes - live
        fill_open_segments(history._segments, view, segment_bytes(live))
        return history

    @classmethod
    def of_decoded(cls, records: list[T]) -> "History[T]":
        """Return a history that uses the given list of records directly, without a copy and without checks."""
        history: History[T] = cls()
        history._records = records
        return history

    def table_entries(self) -> dict[int, ChunkReference]:
        """Return a map from tokens to the chunks that were restored. The map must be part of the first base, so that no chunk is stored
        again."""
        return dict(self._references)

    # Undo.

    def mark(self) -> HistoryMark:
        """Return a mark that can be passed to `rollback`. The list is copied, which takes 20 µs for 10 000 records. The records themselves
        are not copied."""
        log = (
            None
            if self._log is None
            else [HistoryOperation(o.code, o.index, o.count, list(o.records)) for o in self._log]
        )
        return HistoryMark(list(self._records), log, self._logged, list(self._segments), self._dead_bytes)

    def rollback(self, mark: HistoryMark) -> None:
        """Restore the contents that the history had at `mark`. Each mark can be used only once. Segments from later captures are
        dropped."""
        self._records, self._log, self._logged = mark.records, mark.log, mark.logged
        self._segments, self._dead_bytes = mark.segments, mark.dead_bytes


def _estimate_bytes(records: list[Any]) -> int:
    """Return the approximate size of these records when encoded. The size is exact if there are only a few records. Records that cannot be
    encoded were never stored, so their size is 0."""
    step = max(1, len(records) // MEASURED_RECORDS_MAX)
    sample = records[::step][:MEASURED_RECORDS_MAX]
    try:
        return len(encode_records(sample)) * len(records) // max(1, len(sample))
    except EncodingError:
        return 0


def _check_count(head: bytes, count: int) -> None:
    try:
        (declared,) = msgspec.msgpack.decode(head, type=tuple[int])
    except msgspec.DecodeError as error:
        raise DamagedDataError(f"the head of a history cannot be read: {error}") from error
    if declared != count:
        raise DamagedDataError(f"a history should have {declared} records, its segments give {count}")
