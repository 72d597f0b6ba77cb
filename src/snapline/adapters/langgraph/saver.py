"""A LangGraph checkpointer that saves checkpoints in snapline's store. If a step has not changed a value, only a reference to the value is
stored.

Each checkpoint is an object that refers to the values of its channels. The saver encodes only the new values, which LangGraph lists in
`new_versions`. Values that are not listed have not changed since the previous checkpoint. Checkpoints and pending writes are entries of an
object stream, and values are objects of that stream (`checkpoints.py`). Every change is atomic, and it is durable when the call returns.

The asynchronous methods call the synchronous methods in the event loop's thread pool (`in_thread`).

`LateWrites` detects writes by runs whose checkpoints have since been deleted. The saver ignores late writes. A run that was cancelled, or
that still runs in an operating system thread, may save a checkpoint after its conversation was deleted or pruned. The parent of such a late
checkpoint was deleted, or was itself ignored as late. A checkpoint without a parent is always saved, because it begins a new run or belongs
to a conversation that is being restored. Late writes can come only from this process, because only one process at a time can have the
stream open. Late writes can therefore be detected from data in memory.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Collection, Container, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from snapline.adapters.langgraph import checkpoints as checkpoints_module
from snapline.adapters.langgraph.checkpoints import (
    Channels,
    CheckpointPlace,
    RecentValues,
    ValueCodec,
    decode_checkpoint,
    decode_write,
    encode_checkpoint,
    encode_write,
    place_of,
    split_write_name,
    without_channels,
    write_name,
)
from snapline.adapters.stored_records import in_thread
from snapline.errors import NotFoundError, UsageError
from snapline.storage.keys.key_files import Keys
from snapline.storage.store.object_stream import Change, ObjectStream, Path, StaleReferenceError
from snapline.storage.store.store import Store

REMEMBERED_MAX = 4096
"""Largest number of deleted threads that are remembered. The same limit applies to pruned namespaces, to deleted runs and to ignored
checkpoints. Late writes arrive within seconds, and with this limit the memory used stays below 1 MB."""


class LateWrites:
    """Detects late writes, as defined in the module docstring. Several threads may share an instance."""

    def __init__(self) -> None:
        self._deleted: dict[str, str] = {}
        self._pruned: dict[Path, str] = {}
        self._runs: dict[str, None] = {}
        self._ignored: dict[str, None] = {}

    def on_thread_deleted(self, thread: str, newest: str) -> None:
        """Record that all checkpoints of a thread were deleted. `newest` is the id of the newest deleted checkpoint."""
        _remember(self._deleted, thread, max(newest, self._deleted.get(thread, "")))

    def on_pruned(self, path: Path, kept: str) -> None:
        """Record that all checkpoints of a namespace older than `kept` were deleted, except the ancestors from which `kept` is built."""
        _remember(self._pruned, path, max(kept, self._pruned.get(path, "")))

    def on_runs_deleted(self, runs: Collection[str]) -> None:
        """Record that all checkpoints of the given runs were deleted."""
        for run in runs:
            _remember(self._runs, run, None)

    def on_not_saved(self, checkpoint: str) -> None:
        """Record that a checkpoint was not saved because enough newer checkpoints exist."""
        _remember(self._ignored, checkpoint, None)

    def is_late(
        self, path: Path, known: Container[str], checkpoint: str, *, parent: str | None, run: Any = None
    ) -> bool:
        """Return whether a checkpoint comes from a run whose checkpoints have been deleted. `known` contains the existing checkpoints of
        the namespace."""
        if str(run) in self._runs:
            return True
        if parent is None or parent in known or checkpoint in known:
            return False
        is_pruned = max(parent, checkpoint) < self._pruned.get(path, "")
        if is_pruned or parent <= self._deleted.get(path[0], "") or parent in self._ignored:
            _remember(self._ignored, checkpoint, None)
            return True
        return False

    def are_late(self, path: Path, known: Container[str], checkpoint: str) -> bool:
        """Return whether these pending writes belong to a checkpoint that was already deleted or ignored."""
        if checkpoint in known:
            return False
        deleted = max(self._deleted.get(path[0], ""), self._pruned.get(path, ""))
        return checkpoint <= deleted or checkpoint in self._ignored


def _remember(found: dict[Any, Any], key: Any, value: Any) -> None:
    found.pop(key, None)
    found[key] = value
    while len(found) > REMEMBERED_MAX:
        found.pop(next(iter(found)), None)


SHELF = "langgraph"
"""Name of the saver's object stream in its store."""

RECENT_CHECKPOINTS = 1024
"""Number of checkpoints whose channels are cached. Usually these are the newest checkpoints of the running threads."""

_STALE_MAX = 10
"""Largest number of attempts at a change if objects to which it refers are deleted meanwhile. From the second attempt on, a checkpoint is
saved with all its values."""

Writes = list[tuple[str, str, Any]]
Listed = list[tuple[CheckpointPlace, str, bytes]]
"""Alias defined at module level, because inside the class `list` is a method."""


class SnaplineSaver(BaseCheckpointSaver[str]):
    """Saves the checkpoints of LangGraph graphs in a snapline store.

    Create a saver with `SnaplineSaver.open("folder")`. The saver is both a synchronous and an asynchronous context manager. Several threads
    and event loops may share one saver. Only one saver in a single process may have a folder open.

    Every change is atomic, and it is durable when the method returns. Writes by a run whose thread or checkpoints have been deleted or
    pruned are ignored. If a coroutine is cancelled, it ends only after its change has completed. If the environment variable
    `SNAPLINE_STORE_KEY` contains a key, all data is encrypted, and unencrypted data is rejected.
    """

    def __init__(
        self, objects: ObjectStream, *, serde: SerializerProtocol | None = None, keep_last: int | None = None
    ) -> None:
        """Create a saver for an object stream that is already open. In all other cases, use `open`."""
        super().__init__(serde=serde)
        self._objects = objects
        self._codec = ValueCodec(objects)
        self._recent: RecentValues[Channels] = RecentValues(RECENT_CHECKPOINTS)
        self._keep_last = keep_last
        self._late = LateWrites()

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        keep_last: int | None = None,
        keys: Keys | None = None,
        must_exist: bool = False,
    ) -> "SnaplineSaver":
        """Open the store at a folder or a URL (`s3://bucket/prefix`). If the store does not exist, it is created.

        Args:
            location: a folder or URL that only this saver uses.
            serde: LangGraph's serializer for values, by default its `JsonPlusSerializer`.
            keep_last: number of checkpoints to retain in each namespace of a thread. Older checkpoints are deleted whenever a new one is
                saved. None retains all checkpoints.
            keys: encryption keys of the store, by default the keys in the environment variables (docs/protection.md).
            must_exist: whether to raise an error if the store does not exist, instead of creating it. Set this option for an existing
                store, so that a missing mount is reported as an error.

        Raises:
            StoreMissingError: the store does not exist, and `must_exist` is set.
            ObjectStreamInUseError: another process, or another saver of this process, has the object stream open.
            UsageError: `keep_last` is less than 1, or the location cannot contain a store.
            StoreError: the store is encrypted and the key is missing, or the disk has failed.
            DamagedDataError: a file is damaged.
        """
        if keep_last is not None and keep_last < 1:
            raise UsageError(f"keep_last={keep_last} would keep no checkpoint: give 1 or more, or None for all")
        store = (Store.open if must_exist else Store.open_or_create)(location, keys=keys)
        return cls(ObjectStream.open(store, SHELF), serde=serde, keep_last=keep_last)

    from_conn_string = open
    """Alias with the name that other savers use: `with SnaplineSaver.from_conn_string("folder") as saver`."""

    def close(self) -> None:
        """Close the store. Closing the store again has no effect."""
        self._objects.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await in_thread(self.close)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return a new channel version, which consists of a counter and a random part. The version is unique among all branches of the
        thread."""
        number = int(str(current).partition(".")[0]) if current is not None else 0
        return f"{number + 1:032}.{int.from_bytes(os.urandom(7)):017}"

    # -- writing -----------------------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint. The new checkpoint's parent is the checkpoint to which the config refers. Channels that are not in
        `new_versions` have not changed since the parent checkpoint."""
        place = place_of(config)
        written = get_serializable_checkpoint_metadata(config, metadata)
        entries = self._objects.entries(place.path)
        if self._late.is_late(
            place.path, entries, checkpoint["id"], parent=place.checkpoint, run=written.get("run_id")
        ):
            return place.config(checkpoint["id"])
        saved = self.serde.dumps_typed(written)
        content = self.serde.dumps_typed(without_channels(checkpoint))
        for before in self._parents(place):
            change = self._objects.change()
            channels = self._channels(change, checkpoint, new_versions, before)
            digest = change.add(*encode_checkpoint(place.checkpoint, saved, content, channels))
            change.name(place.path, checkpoint["id"], digest)
            if self._keep_last is not None:
                kept = checkpoints_module.newest(
                    self, self._objects, place, checkpoint["id"], metadata, channels, self._keep_last
                )
                if checkpoint["id"] not in kept:
                    self._late.on_not_saved(checkpoint["id"])
                    return place.config(checkpoint["id"])
                checkpoints_module.forget(self._objects, change, place.path, kept)
            with contextlib.suppress(StaleReferenceError):
                self._objects.commit(change)
                self._recent.put(digest, channels)
                return place.config(checkpoint["id"])
        raise NotFoundError(f"the parent of checkpoint {checkpoint['id']} is deleted again and again while it is saved")

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save a task's writes for the superstep that follows the checkpoint in the config."""
        place = place_of(config)
        if place.checkpoint is None:
            raise UsageError('the config names no checkpoint: give {"configurable": {"checkpoint_id": …}}')
        if self._late.are_late(place.path, self._objects.entries(place.path), place.checkpoint):
            return
        path = (*place.path, place.checkpoint)
        entries = self._objects.entries(path)
        change = self._objects.change()
        for index, (channel, value) in enumerate(writes):
            name, is_replaced = write_name(task_id, channel, index)
            if name not in entries or is_replaced:
                saved = self._codec.save(self.serde, value, change)
                change.name(path, name, change.add(*encode_write(task_path, channel, saved)))
        if change.entries:
            self._objects.commit(change)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with its checkpoints and writes in all namespaces."""
        self._forget_thread(change := self._objects.change(), str(thread_id))
        self._commit(change)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete all checkpoints of the given runs, with their writes. This method reads the metadata of every checkpoint in the store.

        Raises:
            UsageError: a remaining checkpoint needs one of these checkpoints to build the value of a `DeltaChannel`.
        """
        change = self._objects.change()
        checkpoints_module.forget_runs(self, self._objects, change, {str(run) for run in run_ids})
        self._late.on_runs_deleted([str(run) for run in run_ids])
        self._commit(change)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread. The copy contains only references to the stored objects."""
        for _ in range(_STALE_MAX):
            change = self._objects.change()
            for path in self._objects.paths(str(source_thread_id)):
                for name, digest in self._objects.entries(path).items():
                    change.name((str(target_thread_id), *path[1:]), name, digest)
            with contextlib.suppress(StaleReferenceError):  # An object has been deleted meanwhile.
                return self._commit(change)
        raise NotFoundError(f"thread {source_thread_id!r} is deleted again and again while it is copied")

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of the given threads. The strategy `keep_latest` deletes all checkpoints except the latest one of each
        namespace. The strategy `delete` deletes all checkpoints.

        In graphs with a `DeltaChannel`, `keep_latest` also keeps the ancestors from which the latest checkpoint is built.
        """
        if strategy not in ("keep_latest", "delete"):
            raise UsageError(f"{strategy!r} is no strategy: give 'keep_latest' or 'delete'")
        change = self._objects.change()
        for thread in {str(thread) for thread in thread_ids}:
            if strategy == "delete":
                self._forget_thread(change, thread)
            else:
                for path, latest in checkpoints_module.keep_latest(self, self._objects, change, thread).items():
                    self._late.on_pruned(path, latest)
        self._commit(change)

    # -- reading -----------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint to which the config refers, or None if there is no such checkpoint. If the config names no checkpoint,
        return the newest checkpoint of its thread and namespace."""
        place = place_of(config)
        for _ in range(
            _STALE_MAX
        ):  # The checkpoint may be deleted during the read: then another one is the newest, or none.
            names = self._objects.entries(place.path)
            checkpoint = place.checkpoint or max(names, default=None)
            if checkpoint not in names or checkpoint is None:
                return None
            with contextlib.suppress(NotFoundError):
                return self._load(place, checkpoint, names[checkpoint])
        return None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the selected checkpoints, newest first. If `config` is None, yield the checkpoints of all threads."""
        yielded = 0
        for place, checkpoint, digest in self._listed(config, before):
            if limit is not None and yielded >= limit:
                return
            with contextlib.suppress(NotFoundError):  # It has been deleted meanwhile.
                if not filter or self._is_wanted(digest, filter):
                    loaded = self._load(place, checkpoint, digest)
                    yielded += 1
                    yield loaded

    def read_metadata(self, digest: bytes) -> tuple[CheckpointMetadata, str | None, Channels]:
        """Return the metadata, the parent's id and the channels of the checkpoint that this object stores. Raise NotFoundError if the
        object was deleted."""
        checkpoint, channels = decode_checkpoint(self._objects.read([digest])[digest], self._objects.references(digest))
        return self.serde.loads_typed(checkpoint.metadata), checkpoint.parent, channels

    # -- async versions ----------------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Call `put` in a thread of the thread pool."""
        return await in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Call `put_writes` in a thread of the thread pool."""
        await in_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Call `delete_thread` in a thread of the thread pool."""
        await in_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Call `delete_for_runs` in a thread of the thread pool."""
        await in_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Call `copy_thread` in a thread of the thread pool."""
        await in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Call `prune` in a thread of the thread pool."""
        await in_thread(self.prune, thread_ids, strategy=strategy)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Call `get_tuple` in a thread of the thread pool."""
        return await in_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the results of `list` asynchronously, reading them in threads of the thread pool."""
        checkpoints = self.list(config, filter=filter, before=before, limit=limit)
        while (checkpoint := await in_thread(next, checkpoints, None)) is not None:
            yield checkpoint

    # -- internal ----------------------------------------------------------------------------------------------------

    def _parents(self, place: CheckpointPlace) -> Iterator[Channels]:
        """Yield, for each attempt to save a checkpoint, the parent's channels against which values are compared. The first attempt uses the
        actual parent. Later attempts use empty channels, in case the parent was deleted in the meantime."""
        digest = self._objects.find(place.path, place.checkpoint) if place.checkpoint is not None else None
        if digest is not None:
            channels = self._recent.get(digest)
            with contextlib.suppress(NotFoundError):
                yield self.read_metadata(digest)[2] if channels is None else channels
        for _ in range(_STALE_MAX):
            yield {}

    def _channels(
        self, change: Change, checkpoint: Checkpoint, new_versions: ChannelVersions, before: Channels
    ) -> Channels:
        """Return the version and the value of each channel of a checkpoint. New values are added to the change `change`."""
        values, channels = checkpoint["channel_values"], Channels()
        versions = checkpoint["channel_versions"]
        for name in [*versions, *(name for name in values if name not in versions)]:
            version, (version_before, value_before) = versions.get(name), before.get(name, (None, None))
            is_same = name not in new_versions and value_before is not None and version == version_before
            if is_same or name not in values:
                channels[name] = (version, value_before if is_same else None)
            else:
                try:
                    saved = self._codec.save(self.serde, values[name], change, value_before)
                except NotFoundError:  # The parent's value has been deleted with the parent.
                    saved = self._codec.save(self.serde, values[name], change)
                channels[name] = (version, saved)
        return channels

    def _forget_thread(self, change: Change, thread: str) -> None:
        self._late.on_thread_deleted(thread, checkpoints_module.forget_thread(self._objects, change, thread))

    def _commit(self, change: Change) -> None:
        if change.entries:
            self._objects.commit(change)

    def _load(self, place: CheckpointPlace, checkpoint: str, digest: bytes) -> CheckpointTuple:
        stored, channels = decode_checkpoint(self._objects.read([digest])[digest], self._objects.references(digest))
        self._recent.put(digest, channels)
        values = {name: value for name, (_, value) in channels.items() if value is not None}
        loaded: Checkpoint = {
            **self.serde.loads_typed(stored.rest),
            "channel_values": self._codec.load(self.serde, values),
            "channel_versions": {name: version for name, (version, _) in channels.items() if version is not None},
        }
        return CheckpointTuple(
            config=place.config(checkpoint),
            checkpoint=loaded,
            metadata=self.serde.loads_typed(stored.metadata),
            parent_config=place.config(stored.parent) if stored.parent is not None else None,
            pending_writes=self._load_writes((*place.path, checkpoint)),
        )

    def _load_writes(self, path: tuple[str, ...]) -> Writes:
        """Return the pending writes in the order in which the next superstep applies them."""
        names = self._objects.entries(path)
        objects = self._objects.read(names.values())
        writes = []
        for name, digest in names.items():
            task, index = split_write_name(name)
            write, value = decode_write(objects[digest], self._objects.references(digest))
            writes.append(((write.task_path, task, index), task, write.channel, name, value))
        loaded = self._codec.load(self.serde, {name: value for _, _, _, name, value in writes})
        return [
            (task, channel, loaded[name]) for _, task, channel, name, _ in sorted(writes, key=lambda write: write[0])
        ]

    def _listed(self, config: RunnableConfig | None, before: RunnableConfig | None) -> Listed:
        """Return the checkpoints to list, filtered by thread, namespace and id, newest first."""
        threads = self._objects.first_words() if config is None else [place_of(config).thread]
        namespace = config["configurable"].get("checkpoint_ns") if config is not None else None
        wanted_checkpoint = place_of(config).checkpoint if config is not None else None
        limit = place_of(before).checkpoint if before is not None else None
        matches = [
            (CheckpointPlace(thread, path[1], None), checkpoint, digest)
            for thread in threads
            for path in self._objects.paths(thread)
            if len(path) == 2 and namespace in (None, path[1])
            for checkpoint, digest in self._objects.entries(path).items()
            if wanted_checkpoint in (None, checkpoint) and (limit is None or checkpoint < limit)
        ]
        return sorted(matches, key=lambda each: each[1], reverse=True)

    def _is_wanted(self, digest: bytes, filter: dict[str, Any]) -> bool:
        metadata = self.read_metadata(digest)[0]
        return all(metadata.get(key) == value for key, value in filter.items())
