"""Values of channels as objects of a shelf, so that what was saved before costs a reference.

The problem. LangGraph gives a saver the whole value of a channel whenever anything in it has changed. Mostly that is a list, and one item
longer; and the same item was saved a moment ago, as the write of the node that made it.

So a list is saved as its items, each an object of its own; what is small goes by 64. A dict is a list of keys and values in turn. The value itself is then a *list record*: the
items' digests, or how many of another record's come first and what follows. Such a chain of records begins anew after max(32, n/8) of them: so n
appended items cost about n references in all, and reading walks a bounded chain. Whatever else is one object; what is very small stands where it
is used.

    item, other value     length of the type's name (1) | type's name | bytes, both as LangGraph's serializer gives them
    list record           MessagePack: kind | items in an object | records before | items kept of the first; references: [base,] items

Bytes come from LangGraph's serializer, and only it makes values of them. Of one serializer the same value must give the same bytes: one that
encrypts does not, and nothing would be found again (encrypt the store instead).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol

from snapline.adapters.langgraph.recent import RecentValues
from snapline.storage.object_streams.object_stream import Change, ObjectStream
from snapline.storage.object_streams.records import has_references

INLINE_BYTES_MAX = 96
"""Approximate cost of an object, besides its bytes."""

SPLIT_BYTES_MIN = 512
"""A list below is one object."""

LARGE_ITEM_BYTES = 128
RUN_ITEMS = 64
"""Items that are smaller on average go by so many: a digest each would be as large as they are."""

SAMPLED_ITEMS = 16
"""The first ones tell how large items are: so the answer stays the same while a list grows."""

CHAIN_MIN = 32
CHAIN_PART = 8

RECENT_LISTS = 256
"""A list of 10,000 items takes some 80 KB here, besides its digests."""

INLINE, BLOB, LIST, DICT = range(4)

_encoder = msgspec.msgpack.Encoder()


class SavedValue(msgspec.Struct, frozen=True, gc=False):
    """A value on the shelf, or, `INLINE`, its type and bytes."""

    kind: int
    digest: bytes = b""
    type: str = ""
    data: bytes = b""


class SavedPlace(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A `SavedValue` as objects hold it: `place` counts the references of the object that it is in."""

    kind: int
    place: int = 0
    type: str = ""
    data: bytes = b""


class ListRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The bytes of a list record; `depth` 0: there is no base. Items refer to nothing, so the first reference tells it, too."""

    kind: int
    run: int
    depth: int
    kept: int


class KnownList(msgspec.Struct, frozen=True, gc=False):
    """A list record with its whole chain: digests of all objects, and how they are made."""

    record: ListRecord
    digests: tuple[bytes, ...]


_record_decoder = msgspec.msgpack.Decoder(ListRecord)


class References:
    """The references of an object that is being made, or was read."""

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self.digests = list(digests)
        self._places = {digest: place for place, digest in enumerate(self.digests)}

    def place(self, value: SavedValue | None) -> SavedPlace | None:
        """Return the value as this object will hold it."""
        if value is None or value.kind == INLINE:
            return None if value is None else SavedPlace(INLINE, 0, value.type, value.data)
        if value.digest not in self._places:
            self._places[value.digest] = len(self.digests)
            self.digests.append(value.digest)
        return SavedPlace(value.kind, self._places[value.digest])

    def value(self, place: SavedPlace | None) -> SavedValue | None:
        """Return the value that this object holds."""
        if place is None or place.kind == INLINE:
            return None if place is None else SavedValue(INLINE, b"", place.type, place.data)
        return SavedValue(place.kind, self.digests[place.place])


class ValueCodec:
    """Makes objects of values, and values of objects. Threads may share it."""

    def __init__(self, shelf: ObjectStream) -> None:
        self._objects = shelf
        self._lists: RecentValues[KnownList] = RecentValues(RECENT_LISTS)

    def save(self, serde: SerializerProtocol, value: Any, change: Change, base: SavedValue | None = None) -> SavedValue:
        """Add to `change` what a value consists of. `base`: what was saved in its place before, and is still there."""
        if type(value) in (list, dict):
            kind = LIST if type(value) is list else DICT
            items = value if kind == LIST else [part for pair in value.items() for part in pair]
            found = _split(serde, items)
            if found is not None:
                return self._save_list(change, kind, found, base)
        name, data = serde.dumps_typed(value)
        if len(data) <= INLINE_BYTES_MAX:
            return SavedValue(INLINE, b"", name, bytes(data))
        return SavedValue(BLOB, change.add(_pack(name, data)))

    def load(self, serde: SerializerProtocol, values: Mapping[str, SavedValue]) -> dict[str, Any]:
        """Return values, read together; NotFoundError: one is gone."""
        lists = {name: self._known(value.digest) for name, value in values.items() if value.kind in (LIST, DICT)}
        wanted = {value.digest for value in values.values() if value.kind == BLOB}
        wanted.update(digest for known in lists.values() for digest in known.digests)
        found = self._objects.read(wanted)
        loaded: dict[str, Any] = {}
        for name, value in values.items():
            if value.kind == INLINE:
                loaded[name] = serde.loads_typed((value.type, value.data))
            elif value.kind == BLOB:
                loaded[name] = serde.loads_typed(_unpack(found[value.digest]))
            else:
                items = list(_join(serde, lists[name], found))
                loaded[name] = items if value.kind == LIST else dict(zip(items[::2], items[1::2], strict=True))
        return loaded

    def _save_list(
        self, change: Change, kind: int, split: tuple[int, list[bytes]], base: SavedValue | None
    ) -> SavedValue:
        run, pieces = split
        digests = tuple(change.add(piece) for piece in pieces)
        record, references = ListRecord(kind, run, 0, 0), digests
        if base is not None and base.kind == kind:
            known = self._known(base.digest)
            kept = _common(known.digests, digests)
            depth = known.record.depth + 1
            if known.record.run == run and kept > 1 and depth <= max(CHAIN_MIN, len(digests) // CHAIN_PART):
                record, references = ListRecord(kind, run, depth, kept), (base.digest, *digests[kept:])
        digest = change.add(_encoder.encode(record), references)
        self._lists.put(digest, KnownList(record, digests))
        return SavedValue(kind, digest)

    def _known(self, digest: bytes) -> KnownList:
        """Return a list record with its chain, whose records are read together: which ones tell their references, and these are in memory."""
        chain: dict[bytes, list[bytes]] = {}
        found = self._lists.get(digest)
        newest: bytes | None = digest
        while found is None and newest is not None:
            references = chain[newest] = self._objects.references(newest)
            newest = references[0] if has_references(references[0]) else None
            found = self._lists.get(newest) if newest is not None else None
        records = self._objects.read(chain)
        for each, references in reversed(chain.items()):
            record = _record_decoder.decode(records[each])
            kept = found.digests[: record.kept] if found is not None else ()
            found = KnownList(record, (*kept, *references[1 if record.depth else 0 :]))
        assert found is not None
        self._lists.put(digest, found)
        return found


def _split(serde: SerializerProtocol, items: list[Any]) -> tuple[int, list[bytes]] | None:
    """Return how many items go into an object, and the objects' bytes; None: they are all too small for that."""
    sample = [serde.dumps_typed(item) for item in items[:SAMPLED_ITEMS]]
    size_bytes = sum(len(data) for _, data in sample)
    if len(items) <= SAMPLED_ITEMS and size_bytes < SPLIT_BYTES_MIN:
        return None
    if size_bytes >= LARGE_ITEM_BYTES * len(sample):
        rest = (serde.dumps_typed(item) for item in items[SAMPLED_ITEMS:])
        return 1, [_pack(name, data) for found in (sample, rest) for name, data in found]
    runs = (items[start : start + RUN_ITEMS] for start in range(0, len(items), RUN_ITEMS))
    return RUN_ITEMS, [_pack(*serde.dumps_typed(run)) for run in runs]


def _join(serde: SerializerProtocol, known: KnownList, found: Mapping[bytes, bytes]) -> Iterator[Any]:
    for digest in known.digests:
        loaded = serde.loads_typed(_unpack(found[digest]))
        if known.record.run == 1:
            yield loaded
        else:
            yield from loaded


def _common(first: tuple[bytes, ...], second: tuple[bytes, ...]) -> int:
    """Return how many digests both begin with."""
    if second[: len(first)] == first:
        return len(first)
    return next((at for at, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), len(second))


def _pack(name: str, data: bytes) -> bytes:
    encoded = name.encode()
    return bytes((len(encoded),)) + encoded + data


def _unpack(packed: bytes) -> tuple[str, bytes]:
    start = packed[0] + 1
    return packed[1:start].decode(), packed[start:]
