"""Stores LangGraph's checkpoints and pending writes as entries of an object stream, and their values as objects of that stream.

    path (thread, namespace)                 name: id of a checkpoint        object: `CheckpointObject`
    path (thread, namespace, checkpoint)     name: <task>/<index>            object: `WriteObject`

Values
------
If a value or list item was saved before, only a reference to it is stored. The problem: LangGraph passes the complete value of a channel
whenever any part of the value has changed. Usually, the value is a list that has grown by one item, and that item has just been saved as a
pending write of a graph node.

Each item of a list is therefore saved as a separate object, and small items are saved in groups of 64. A dict is saved as a list of
alternating keys and values. The list itself is stored as a *list record*. A list record contains either the digests of all items, or a
reference to a base record. With a base record, it also contains the number of leading items taken from the base and the digests of the
remaining items. After max(32, n/8) records, a new chain of records is started. Appending n items one by one therefore takes about n
references in total, and a read follows a chain of bounded length. Any value that is not a list or dict is stored as one object, or inline
if it is very small.

    item, other value     length of the type's name (1) | type's name | bytes, both as LangGraph's serializer gives them
    list record           MessagePack: kind | items in an object | records before | items taken from the first; references: [base,] items

All values are encoded and decoded by LangGraph's serializer, which must encode equal values to equal bytes. An encrypting serializer does
not encode equal values to equal bytes, so no objects could be shared. Encrypt the store instead of the values.

Deletion
--------
Checkpoints contain their values, so any checkpoint may be deleted. Graphs with a `DeltaChannel` are an exception to this rule. In most
checkpoints of graphs with a `DeltaChannel`, the channel's value is missing. The value is built from the writes of the ancestor checkpoints,
back to the nearest ancestor that contains a value. The ancestors that are needed to build a value are not deleted.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, Checkpoint, CheckpointMetadata, get_checkpoint_id
from langgraph.checkpoint.serde.base import SerializerProtocol

from snapline.adapters.stored_records import INLINE_BYTES_MAX
from snapline.errors import NotFoundError, UsageError
from snapline.storage.store.object_segments import has_references
from snapline.storage.store.object_stream import Change, ObjectStream, Path

_Found = TypeVar("_Found")


class RecentValues(Generic[_Found]):
    """Cache of the `size_max` most recently used values, keyed by digest. Several threads may share the cache."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._values: OrderedDict[bytes, _Found] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: bytes) -> _Found | None:
        """Return the value and mark it as recently used. Return None if the value is not cached."""
        with self._lock:
            if digest not in self._values:
                return None
            self._values.move_to_end(digest)
            return self._values[digest]

    def put(self, digest: bytes, value: _Found) -> None:
        """Add a value. If the cache is full, evict the least recently used value."""
        with self._lock:
            self._values[digest] = value
            self._values.move_to_end(digest)
            if len(self._values) > self._size_max:
                self._values.popitem(last=False)


SPLIT_BYTES_MIN = 512
"""Smallest size in bytes of a list that is split into items. A smaller list is stored as one object."""

LARGE_ITEM_BYTES = 128
RUN_ITEMS = 64
"""Number of items in a group. Items are grouped if they are smaller than `LARGE_ITEM_BYTES` on average, since their digests would take
almost as much space as the items."""

SAMPLED_ITEMS = 16
"""Number of leading items from which the average size of items is computed. Only leading items are used, so that the result does not change
while a list grows."""

CHAIN_MIN = 32
CHAIN_PART = 8

RECENT_LISTS = 256
"""Number of cached lists. A list of 10,000 items takes about 80 KB in this cache, in addition to its digests."""

INLINE, BLOB, LIST, DICT = range(4)


class SavedValue(msgspec.Struct, frozen=True, gc=False):
    """Reference to a stored value. If the kind is `INLINE`, the reference contains the value's type and bytes instead of a digest."""

    kind: int
    digest: bytes = b""
    type: str = ""
    data: bytes = b""


class SavedPlace(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The form in which an object stores a reference to a value (`SavedValue`). `place` is an index into the list of references of the
    containing object."""

    kind: int
    place: int = 0
    type: str = ""
    data: bytes = b""


class ListRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The content of a list record, without its references.

    If `depth` is 0, the list record has no base record. Otherwise, the record's first reference refers to the base record. Whether there is
    a base can also be seen from the first reference, because records have references and items have none.
    """

    kind: int
    run: int
    depth: int
    kept: int


class KnownList(msgspec.Struct, frozen=True, gc=False):
    """A list record and the digests of all objects that contain the list's items."""

    record: ListRecord
    digests: tuple[bytes, ...]


_encoder = msgspec.msgpack.Encoder()
_record_decoder = msgspec.msgpack.Decoder(ListRecord)


class References:
    """The references of an object that is being built or has been read."""

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self.digests = list(digests)
        self._places = {digest: place for place, digest in enumerate(self.digests)}

    def place(self, value: SavedValue | None) -> SavedPlace | None:
        """Return the form in which this object stores the value, adding a reference if necessary."""
        if value is None or value.kind == INLINE:
            return None if value is None else SavedPlace(INLINE, 0, value.type, value.data)
        if value.digest not in self._places:
            self._places[value.digest] = len(self.digests)
            self.digests.append(value.digest)
        return SavedPlace(value.kind, self._places[value.digest])

    def value(self, place: SavedPlace | None) -> SavedValue | None:
        """Return the value that this object stores in the given form."""
        if place is None or place.kind == INLINE:
            return None if place is None else SavedValue(INLINE, b"", place.type, place.data)
        return SavedValue(place.kind, self.digests[place.place])


class ValueCodec:
    """Encodes values as objects, and decodes the objects. Several threads may share the encoder."""

    def __init__(self, objects: ObjectStream) -> None:
        self._objects = objects
        self._lists: RecentValues[KnownList] = RecentValues(RECENT_LISTS)

    def save(self, serde: SerializerProtocol, value: Any, change: Change, base: SavedValue | None = None) -> SavedValue:
        """Add the objects that encode a value to `change`, and return a reference to the value. `base` is the channel's previous value,
        whose objects must still exist."""
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
        """Read several values in one operation. Raise NotFoundError if one of the values was deleted."""
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
        """Return a list record together with the digests of all its items. All records in the chain are located through cached references,
        and then read in one operation."""
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
    """Split a list into objects. Return the number of items per object, and the objects' bytes. Return None if the list is too small to be
    split."""
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
    """Return the length of the longest common prefix of two tuples of digests."""
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


DELTA_COUNTERS = "counters_since_delta_snapshot"
"""Key in the metadata of checkpoints of graphs with a `DeltaChannel`. Its value contains the channels whose values may have to be built
from the writes of ancestors."""

Version = str | int | float | None
Channels = dict[str, tuple[Version, SavedValue | None]]
"""Channel name → the channel's version and its value, which is None if the checkpoint contains no value."""


class CheckpointObject(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The content of a checkpoint's object: the parent checkpoint's id, the serialized metadata, the channels, and the serialized rest of
    the checkpoint."""

    parent: str | None
    metadata: tuple[str, bytes]
    rest: tuple[str, bytes]
    channels: dict[str, tuple[Version, SavedPlace | None]]


class WriteObject(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The content of the object that stores one pending write."""

    task_path: str
    channel: str
    value: SavedPlace


class CheckpointPlace(msgspec.Struct, frozen=True, gc=False):
    """The checkpoint to which a LangGraph config refers. `checkpoint` is None if the config refers to the newest checkpoint."""

    thread: str
    namespace: str
    checkpoint: str | None

    @property
    def path(self) -> tuple[str, str]:
        """Path under which the checkpoints of this namespace are stored."""
        return self.thread, self.namespace

    def config(self, checkpoint: str) -> RunnableConfig:
        """Return a config that refers to a different checkpoint in the same namespace."""
        names = {"thread_id": self.thread, "checkpoint_ns": self.namespace, "checkpoint_id": checkpoint}
        return {"configurable": names}


_checkpoint_decoder = msgspec.msgpack.Decoder(CheckpointObject)
_write_decoder = msgspec.msgpack.Decoder(WriteObject)


def place_of(config: RunnableConfig) -> CheckpointPlace:
    """Return the checkpoint to which a config refers. Raise UsageError if the config contains no thread id."""
    configurable = config.get("configurable", {})
    thread = configurable.get("thread_id")
    if thread is None:
        raise UsageError('the config names no thread: give {"configurable": {"thread_id": …}}')
    return CheckpointPlace(str(thread), str(configurable.get("checkpoint_ns") or ""), get_checkpoint_id(config) or None)


def encode_checkpoint(
    parent: str | None, metadata: tuple[str, bytes], rest: tuple[str, bytes], channels: Channels
) -> tuple[bytes, list[bytes]]:
    """Encode a checkpoint as an object. Return the object's bytes and its references."""
    references = References()
    places = {name: (version, references.place(value)) for name, (version, value) in channels.items()}
    return _encoder.encode(CheckpointObject(parent, metadata, rest, places)), references.digests


def decode_checkpoint(data: bytes, digests: list[bytes]) -> tuple[CheckpointObject, Channels]:
    """Decode a checkpoint's object. Return the checkpoint and its channels."""
    checkpoint, references = _checkpoint_decoder.decode(data), References(digests)
    return checkpoint, {
        name: (version, references.value(place)) for name, (version, place) in checkpoint.channels.items()
    }


def encode_write(task_path: str, channel: str, value: SavedValue) -> tuple[bytes, list[bytes]]:
    """Encode a pending write as an object. Return the object's bytes and its references."""
    references = References()
    place = references.place(value)
    assert place is not None
    return _encoder.encode(WriteObject(task_path, channel, place)), references.digests


def decode_write(data: bytes, digests: list[bytes]) -> tuple[WriteObject, SavedValue]:
    """Decode the object of a pending write. Return the write and a reference to the write's value."""
    write = _write_decoder.decode(data)
    value = References(digests).value(write.value)
    assert value is not None
    return write, value


def write_name(task: str, channel: str, index: int) -> tuple[str, bool]:
    """Return the entry name of a task's write, and whether a later write with the same name replaces the write."""
    index = WRITES_IDX_MAP.get(channel, index)
    return f"{task}/{index}", index < 0


def split_write_name(name: str) -> tuple[str, int]:
    """Split the entry name of a write into the task id and the index."""
    task, _, index = name.rpartition("/")
    return task, int(index)


def without_channels(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint without the data that is stored per channel."""
    return {key: content for key, content in checkpoint.items() if key not in ("channel_values", "channel_versions")}


def delta_channels(metadata: CheckpointMetadata, channels: Channels) -> set[str]:
    """Return the names of the channels whose values must be built from the writes of ancestor checkpoints."""
    return {name for name in metadata.get(DELTA_COUNTERS) or () if channels.get(name, (None, None))[1] is None}


class MetadataReader(Protocol):
    """Interface that this module requires to read checkpoints without their values."""

    def read_metadata(self, digest: bytes) -> tuple[CheckpointMetadata, str | None, Channels]:
        """Return the metadata, the parent's id and the channels of the checkpoint that this object stores. Raise NotFoundError if the
        object was deleted."""


def forget_thread(objects: ObjectStream, change: Change, thread: str) -> str:
    """Delete all data of a thread. Return the id of the thread's newest checkpoint, or an empty string if the thread has no checkpoints."""
    newest = ""
    for path in objects.paths(thread):
        names = objects.entries(path)
        newest = max(newest, *names, "") if len(path) == 2 else newest
        _forget_names(change, path, names)
    return newest


def forget(objects: ObjectStream, change: Change, path: Path, kept: Collection[str]) -> None:
    """Delete all checkpoints of a namespace, with their pending writes, except the checkpoints in `kept`."""
    names = objects.entries(path)
    deleted = [name for name in names if name not in kept]
    _forget_names(change, path, deleted)
    for name in deleted:
        _forget_names(change, (*path, name), objects.entries((*path, name)))


def keep_latest(reader: MetadataReader, objects: ObjectStream, change: Change, thread: str) -> dict[Path, str]:
    """Delete, in each namespace of a thread, all checkpoints except the latest one and the ancestors from which the latest one is built.

    Return a map from each namespace's path to the id of its latest checkpoint.
    """
    latest: dict[Path, str] = {}
    for path in objects.paths(thread):
        names = objects.entries(path)
        if len(path) == 2 and names:
            latest[path] = max(names)
            kept = {latest[path]}
            forget(objects, change, path, kept | _ancestors(reader, names, kept))
    _forget_orphans(objects, change, thread)
    return latest


def newest(
    reader: MetadataReader,
    objects: ObjectStream,
    place: CheckpointPlace,
    added: str,
    metadata: CheckpointMetadata,
    channels: Channels,
    keep_last: int,
) -> set[str]:
    """Return the ids of the checkpoints to keep when the checkpoint `added` is saved. The kept checkpoints are the `keep_last` newest ones
    and the ancestors from which these are built.

    If `added` is older than all of the kept checkpoints, it is not kept itself.
    """
    names = objects.entries(place.path)
    kept = set(sorted({added, *names}, reverse=True)[:keep_last])
    if added not in kept or not metadata.get(DELTA_COUNTERS):
        return kept | _ancestors(reader, names, kept - {added})
    needed = delta_channels(metadata, channels)
    return kept | set(_walk(reader, names, place.checkpoint, needed)) | _ancestors(reader, names, kept - {added})


def forget_runs(reader: MetadataReader, objects: ObjectStream, change: Change, runs: Collection[str]) -> None:
    """Delete the checkpoints of the given runs. Raise UsageError if a remaining checkpoint is built from one of these checkpoints."""
    for thread in objects.first_words():
        for path in objects.paths(thread):
            if len(path) == 2:
                _forget_runs_in(reader, objects, change, path, runs)


def _forget_runs_in(
    reader: MetadataReader, objects: ObjectStream, change: Change, path: Path, runs: Collection[str]
) -> None:
    names = objects.entries(path)
    deleted = set()
    for name, digest in names.items():
        try:
            if reader.read_metadata(digest)[0].get("run_id") in runs:
                deleted.add(name)
        except NotFoundError:
            continue  # The checkpoint has been deleted meanwhile.
    if deleted:
        needed = _ancestors(reader, names, names.keys() - deleted) & deleted
        if needed:
            raise UsageError(
                f"thread {path[0]!r} has a DeltaChannel whose value is made of {len(needed)} checkpoints of these runs: "
                "delete the thread, or all of its runs"
            )
        forget(objects, change, path, names.keys() - deleted)


def _forget_names(change: Change, path: Path, names: Collection[str]) -> None:
    for name in names:
        change.name(path, name, None)


def _forget_orphans(objects: ObjectStream, change: Change, thread: str) -> None:
    """Delete the pending writes of checkpoints that do not exist and would be older than the newest checkpoint. Such checkpoints were lost
    in a crash or have been deleted."""
    for path in objects.paths(thread):
        if len(path) == 3:
            names = objects.entries(path[:2])
            if path[2] not in names and path[2] < max(names, default=""):
                _forget_names(change, path, objects.entries(path))


def _ancestors(reader: MetadataReader, names: dict[str, bytes], kept: Collection[str]) -> set[str]:
    """Return the ancestors from which the checkpoints in `kept` are built."""
    ancestors: set[str] = set()
    for name in kept:
        with contextlib.suppress(NotFoundError):  # A checkpoint that has been deleted meanwhile needs no ancestors.
            metadata, parent, channels = reader.read_metadata(names[name])
            ancestors.update(_walk(reader, names, parent, delta_channels(metadata, channels)))
    return ancestors


def _walk(reader: MetadataReader, names: dict[str, bytes], checkpoint: str | None, needed: set[str]) -> Iterator[str]:
    """Yield this checkpoint and its ancestors, until each channel in `needed` has a value."""
    while needed and checkpoint is not None and checkpoint in names:
        yield checkpoint
        try:
            _, checkpoint, channels = reader.read_metadata(names[checkpoint])
        except NotFoundError:
            return  # The ancestor has been deleted meanwhile, together with its values.
        needed = {name for name in needed if channels.get(name, (None, None))[1] is None}
