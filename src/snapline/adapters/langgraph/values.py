"""Values of channels as objects of a stream, so that a value or item that was saved before costs only a reference.

The problem. LangGraph passes the whole value of a channel whenever any part of it has changed. Mostly that is a list that has grown by one
item, and the same item was saved just before, as the write of the node that created it.

So a list is saved as its items, each an object of its own; small items are grouped by 64. A dict is saved as a list of alternating keys and values.
The value itself is a *list record*: the items' digests, or the number of leading items taken from another record and the items that follow. A chain
of records is restarted after max(32, n/8) records. So n appended items cost about n references in all, and a read follows a bounded chain. Any
other value is one object; a very small one is stored inline.

    item, other value     length of the type's name (1) | type's name | bytes, both as LangGraph's serializer gives them
    list record           MessagePack: kind | items in an object | records before | items taken from the first; references: [base,] items

Only LangGraph's serializer encodes and decodes values. It must encode equal values to equal bytes. A serializer that encrypts does not, so no
object would be shared (encrypt the store instead).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol

from snapline.adapters.langgraph.recent import RecentValues
from snapline.storage.object_streams.object_stream import Change, ObjectStream
from snapline.storage.object_streams.records import has_references

INLINE_BYTES_MAX = 96
"""Approximate overhead of an object, in addition to its bytes."""

SPLIT_BYTES_MIN = 512
"""Smallest size of a list that is split; a smaller one is one object."""

LARGE_ITEM_BYTES = 128
RUN_ITEMS = 64
"""Number of items in a group. Items that are smaller on average than this are grouped, since a digest each would be as large as they are."""

SAMPLED_ITEMS = 16
"""Number of leading items that determine the average size, so that the result is stable while a list grows."""

CHAIN_MIN = 32
CHAIN_PART = 8

RECENT_LISTS = 256
"""Number of cached lists. A list of 10,000 items takes about 80 KB here, in addition to its digests."""

INLINE, BLOB, LIST, DICT = range(4)

_encoder = msgspec.msgpack.Encoder()


class SavedValue(msgspec.Struct, frozen=True, gc=False):
    """A value in the stream, or, for kind `INLINE`, its type and bytes."""

    kind: int
    digest: bytes = b""
    type: str = ""
    data: bytes = b""


class SavedPlace(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A `SavedValue` as objects store it; `place`: index among the references of the containing object."""

    kind: int
    place: int = 0
    type: str = ""
    data: bytes = b""


class ListRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The bytes of a list record; `depth` 0: it has no base. Items have no references, so the first reference also identifies the base."""

    kind: int
    run: int
    depth: int
    kept: int


class KnownList(msgspec.Struct, frozen=True, gc=False):
    """A list record with its whole chain: digests of all objects, and their structure."""

    record: ListRecord
    digests: tuple[bytes, ...]


_record_decoder = msgspec.msgpack.Decoder(ListRecord)


class References:
    """The references of an object that is being built or was read."""

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self.digests = list(digests)
        self._places = {digest: place for place, digest in enumerate(self.digests)}

    def place(self, value: SavedValue | None) -> SavedPlace | None:
        """Return the value in the form stored in this object."""
        if value is None or value.kind == INLINE:
            return None if value is None else SavedPlace(INLINE, 0, value.type, value.data)
        if value.digest not in self._places:
            self._places[value.digest] = len(self.digests)
            self.digests.append(value.digest)
        return SavedPlace(value.kind, self._places[value.digest])

    def value(self, place: SavedPlace | None) -> SavedValue | None:
        """Return the value stored in this object."""
        if place is None or place.kind == INLINE:
            return None if place is None else SavedValue(INLINE, b"", place.type, place.data)
        return SavedValue(place.kind, self.digests[place.place])


class ValueCodec:
    """Encodes values as objects, and decodes them. Threads may share it."""

    def __init__(self, shelf: ObjectStream) -> None:
        self._objects = shelf
        self._lists: RecentValues[KnownList] = RecentValues(RECENT_LISTS)

    def save(self, serde: SerializerProtocol, value: Any, change: Change, base: SavedValue | None = None) -> SavedValue:
        """Add the objects of a value to `change`. `base`: the previous value of the channel, which still exists."""
        if type(value) in (list, dict):
            kind = LIST if type(value) is list else DICT
            items = value if kind == LIST else [part for pair in value.items() for part in pair]
            split = _split(serde, items)
            if split is not None:
                return self._save_list(change, kind, split, base)
        name, data = serde.dumps_typed(value)
        if len(data) <= INLINE_BYTES_MAX:
            return SavedValue(INLINE, b"", name, bytes(data))
        return SavedValue(BLOB, change.add(_pack(name, data)))

    def load(self, serde: SerializerProtocol, values: Mapping[str, SavedValue]) -> dict[str, Any]:
        """Return values, read together; raise NotFoundError if one was deleted."""
        lists = {name: self._known(value.digest) for name, value in values.items() if value.kind in (LIST, DICT)}
        digests = {value.digest for value in values.values() if value.kind == BLOB}
        digests.update(digest for known in lists.values() for digest in known.digests)
        objects = self._objects.read(digests)
        loaded: dict[str, Any] = {}
        for name, value in values.items():
            if value.kind == INLINE:
                loaded[name] = serde.loads_typed((value.type, value.data))
            elif value.kind == BLOB:
                loaded[name] = serde.loads_typed(_unpack(objects[value.digest]))
            else:
                items = list(_join(serde, lists[name], objects))
                loaded[name] = items if value.kind == LIST else dict(zip(items[::2], items[1::2], strict=True))
        return loaded

    def _save_list(
        self, change: Change, kind: int, split: tuple[int, list[bytes]], base: SavedValue | None
    ) -> SavedValue:
        run, item_objects = split
        digests = tuple(change.add(piece) for piece in item_objects)
        record, references = ListRecord(kind, run, 0, 0), digests
        if base is not None and base.kind == kind:
            base_list = self._known(base.digest)
            shared = _common(base_list.digests, digests)
            depth = base_list.record.depth + 1
            if base_list.record.run == run and shared > 1 and depth <= max(CHAIN_MIN, len(digests) // CHAIN_PART):
                record, references = ListRecord(kind, run, depth, shared), (base.digest, *digests[shared:])
        digest = change.add(_encoder.encode(record), references)
        self._lists.put(digest, KnownList(record, digests))
        return SavedValue(kind, digest)

    def _known(self, digest: bytes) -> KnownList:
        """Return a list record with its chain, read together: cached references name the records of the chain."""
        chain: dict[bytes, list[bytes]] = {}
        known_list = self._lists.get(digest)
        newest: bytes | None = digest
        while known_list is None and newest is not None:
            references = chain[newest] = self._objects.references(newest)
            newest = references[0] if has_references(references[0]) else None
            known_list = self._lists.get(newest) if newest is not None else None
        records = self._objects.read(chain)
        for record_digest, references in reversed(chain.items()):
            record = _record_decoder.decode(records[record_digest])
            shared_digests = known_list.digests[: record.kept] if known_list is not None else ()
            known_list = KnownList(record, (*shared_digests, *references[1 if record.depth else 0 :]))
        assert known_list is not None
        self._lists.put(digest, known_list)
        return known_list


def _split(serde: SerializerProtocol, items: list[Any]) -> tuple[int, list[bytes]] | None:
    """Return the number of items in an object, and the objects' bytes; None: the items are too small to split."""
    sample = [serde.dumps_typed(item) for item in items[:SAMPLED_ITEMS]]
    size_bytes = sum(len(data) for _, data in sample)
    if len(items) <= SAMPLED_ITEMS and size_bytes < SPLIT_BYTES_MIN:
        return None
    if size_bytes >= LARGE_ITEM_BYTES * len(sample):
        remaining = (serde.dumps_typed(item) for item in items[SAMPLED_ITEMS:])
        return 1, [_pack(name, data) for found in (sample, remaining) for name, data in found]
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
    """Return the number of leading digests that both have in common."""
    if second[: len(first)] == first:
        return len(first)
    return next(
        (index for index, (ours, theirs) in enumerate(zip(first, second, strict=False)) if ours != theirs),
        len(second),
    )


def _pack(name: str, data: bytes) -> bytes:
    encoded = name.encode()
    return bytes((len(encoded),)) + encoded + data


def _unpack(packed: bytes) -> tuple[str, bytes]:
    start = packed[0] + 1
    return packed[1:start].decode(), packed[start:]
