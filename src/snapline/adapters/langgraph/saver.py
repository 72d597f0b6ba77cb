"""LangGraph's checkpointer on snapline's store: what a step has not touched costs a reference.

A checkpoint is an object that refers to the values of its channels. Of these only the new ones are looked at: LangGraph says which
(`new_versions`), and the others are what they were in the checkpoint before. Checkpoints and pending writes are entries of one shelf
(`checkpoints.py`), values its objects (`values.py`). A call that returns has made its change durable; a crash leaves each change whole or not at all.

The async methods do the same in threads of the event loop's pool (`in_thread.py`).
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
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

from snapline.adapters.in_thread import in_thread
from snapline.adapters.langgraph import thinning
from snapline.adapters.langgraph.checkpoints import (
    Channels,
    CheckpointPlace,
    decode_checkpoint,
    decode_write,
    encode_checkpoint,
    encode_write,
    place_of,
    split_write_name,
    without_channels,
    write_name,
)
from snapline.adapters.langgraph.late_writes import LateWrites
from snapline.adapters.langgraph.recent import RecentValues
from snapline.adapters.langgraph.values import ValueCodec
from snapline.errors import NotFoundError, UsageError
from snapline.storage.keys.key_files import Keys
from snapline.storage.object_streams.object_stream import Change, ObjectStream, StaleReferenceError
from snapline.storage.store.store import Store

SHELF = "langgraph"
"""Name of the saver's shelf in its store."""

RECENT_CHECKPOINTS = 1024
"""Channels of so many are kept in memory: mostly the newest of each running thread."""

_STALE_MAX = 10
"""A change whose references were removed meanwhile is made again: at the second time with everything in it."""

Writes = list[tuple[str, str, Any]]
Listed = list[tuple[CheckpointPlace, str, bytes]]
"""Named here: inside the class `list` is its method."""


class SnaplineSaver(BaseCheckpointSaver[str]):
    """Saves the checkpoints of LangGraph's graphs in a store of snapline.

    `SnaplineSaver.open("folder")` gives one; it is a context manager, and an async one. Threads and event loops may share it. One process at a
    time may have a folder open, with one saver; another is refused.

    Whatever a method changes is durable when it returns, whole or not at all. What a run saves after its thread, or its checkpoints, were deleted or
    pruned changes nothing; and a cancelled coroutine ends when its change is over. Where the environment names a key (`SNAPLINE_STORE_KEY`), all of it is
    encrypted, and what is not encrypted is refused.
    """

    def __init__(
        self, shelf: ObjectStream, *, serde: SerializerProtocol | None = None, keep_last: int | None = None
    ) -> None:
        """Use `open`, unless you bring your own shelf."""
        super().__init__(serde=serde)
        self._objects = shelf
        self._codec = ValueCodec(shelf)
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
        """Open the store at a folder or a URL (`s3://bucket/prefix`), and make it if there is none.

        Args:
            location: a folder of the saver's own.
            serde: LangGraph's serializer of values; None: its `JsonPlusSerializer`.
            keep_last: of each thread and namespace keep so many checkpoints; older ones are deleted as new ones come. None: all.
            keys: None: those that the environment names (docs/protection.md).
            must_exist: make none. For a program that has a store: its mount may be away.

        Raises:
            StoreMissingError: there is none, and it must exist.
            ObjectStreamInUseError: another process has it open, or another saver of this one.
            UsageError: `keep_last` is below 1, or there can be no store.
            StoreError: it is encrypted, and its key is not there; or the disk refused.
            DamagedDataError: something in it is not what was written.
        """
        if keep_last is not None and keep_last < 1:
            raise UsageError(f"keep_last={keep_last} would keep no checkpoint: give 1 or more, or None for all")
        store = (Store.open if must_exist else Store.open_or_create)(location, keys=keys)
        return cls(ObjectStream.open(store, SHELF), serde=serde, keep_last=keep_last)

    from_conn_string = open
    """Name that other savers use: `with SnaplineSaver.from_conn_string("folder") as saver`."""

    def close(self) -> None:
        """Let go of the store. May be called twice."""
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
        """Return a version that no other branch of the thread gives: a number, and chance."""
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
        """Save a checkpoint; the config names its parent. Channels that are not in `new_versions` are as in the parent."""
        place = place_of(config)
        written = get_serializable_checkpoint_metadata(config, metadata)
        known = self._objects.entries(place.path)
        if self._late.is_late(place.path, known, checkpoint["id"], parent=place.checkpoint, run=written.get("run_id")):
            return place.config(checkpoint["id"])
        saved = self.serde.dumps_typed(written)
        rest = self.serde.dumps_typed(without_channels(checkpoint))
        for before in self._parents(place):
            change = self._objects.change()
            channels = self._channels(change, checkpoint, new_versions, before)
            digest = change.add(*encode_checkpoint(place.checkpoint, saved, rest, channels))
            change.name(place.path, checkpoint["id"], digest)
            if self._keep_last is not None:
                kept = thinning.newest(
                    self, self._objects, place, checkpoint["id"], metadata, channels, self._keep_last
                )
                if checkpoint["id"] not in kept:
                    self._late.on_overtaken(checkpoint["id"])
                    return place.config(checkpoint["id"])
                thinning.forget(self._objects, change, place.path, kept)
            with contextlib.suppress(StaleReferenceError):
                self._objects.commit(change)
                self._recent.put(digest, channels)
                return place.config(checkpoint["id"])
        raise NotFoundError(f"the parent of checkpoint {checkpoint['id']} is deleted again and again while it is saved")

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save what a task has written for the step after the checkpoint that the config names."""
        place = place_of(config)
        if place.checkpoint is None:
            raise UsageError('the config names no checkpoint: give {"configurable": {"checkpoint_id": …}}')
        if self._late.are_late(place.path, self._objects.entries(place.path), place.checkpoint):
            return
        path = (*place.path, place.checkpoint)
        known = self._objects.entries(path)
        change = self._objects.change()
        for index, (channel, value) in enumerate(writes):
            name, is_replaced = write_name(task_id, channel, index)
            if name not in known or is_replaced:
                saved = self._codec.save(self.serde, value, change)
                change.name(path, name, change.add(*encode_write(task_path, channel, saved)))
        if change.entries:
            self._objects.commit(change)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread: its checkpoints and writes, in all namespaces."""
        self._forget_thread(change := self._objects.change(), str(thread_id))
        self._commit(change)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete all checkpoints of these runs, and their writes. It reads the metadata of every checkpoint there is.

        Raises:
            UsageError: a checkpoint that stays needs one of them: a `DeltaChannel` keeps in ancestors what it is made of.
        """
        change = self._objects.change()
        thinning.forget_runs(self, self._objects, change, {str(run) for run in run_ids})
        self._late.on_runs_deleted([str(run) for run in run_ids])
        self._commit(change)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread. It costs references: no value is written again."""
        for _ in range(_STALE_MAX):
            change = self._objects.change()
            for path in self._objects.paths(str(source_thread_id)):
                for name, digest in self._objects.entries(path).items():
                    change.name((str(target_thread_id), *path[1:]), name, digest)
            with contextlib.suppress(StaleReferenceError):  # Something of it was deleted meanwhile.
                return self._commit(change)
        raise NotFoundError(f"thread {source_thread_id!r} is deleted again and again while it is copied")

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all but the latest checkpoint of each namespace (`keep_latest`), or all (`delete`).

        Of graphs with a `DeltaChannel` those ancestors stay, too, that the latest is made of.
        """
        if strategy not in ("keep_latest", "delete"):
            raise UsageError(f"{strategy!r} is no strategy: give 'keep_latest' or 'delete'")
        change = self._objects.change()
        for thread in {str(thread) for thread in thread_ids}:
            if strategy == "delete":
                self._forget_thread(change, thread)
            else:
                for path, kept in thinning.keep_latest(self, self._objects, change, thread).items():
                    self._late.on_pruned(path, kept)
        self._commit(change)

    # -- reading -----------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest of its thread; None if there is none."""
        place = place_of(config)
        for _ in range(_STALE_MAX):  # It may be deleted while it is read: then there is another newest, or none.
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
        """Yield checkpoints, newest first; `config` None: of all threads."""
        found = 0
        for place, checkpoint, digest in self._listed(config, before):
            if limit is not None and found >= limit:
                return
            with contextlib.suppress(NotFoundError):  # Deleted meanwhile.
                if not filter or self._is_wanted(digest, filter):
                    loaded = self._load(place, checkpoint, digest)
                    found += 1
                    yield loaded

    def read_metadata(self, digest: bytes) -> tuple[CheckpointMetadata, str | None, Channels]:
        """Return metadata, parent and channels of the checkpoint that this object holds; NotFoundError: it is gone."""
        found, channels = decode_checkpoint(self._objects.read([digest])[digest], self._objects.references(digest))
        return self.serde.loads_typed(found.metadata), found.parent, channels

    # -- the same, for event loops -----------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Call `put` in a thread."""
        return await in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Call `put_writes` in a thread."""
        await in_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Call `delete_thread` in a thread."""
        await in_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Call `delete_for_runs` in a thread."""
        await in_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Call `copy_thread` in a thread."""
        await in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Call `prune` in a thread."""
        await in_thread(self.prune, thread_ids, strategy=strategy)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Call `get_tuple` in a thread."""
        return await in_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Call `list` in threads."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await in_thread(next, found, None)) is not None:
            yield each

    # -- inside ------------------------------------------------------------------------------------------------------

    def _parents(self, place: CheckpointPlace) -> Iterator[Channels]:
        """Yield the channels of the parent; then, if that was deleted meanwhile, none."""
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
        """Return each channel's version and value, new ones added to the change."""
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
                except NotFoundError:  # The parent's value is gone with the parent.
                    saved = self._codec.save(self.serde, values[name], change)
                channels[name] = (version, saved)
        return channels

    def _forget_thread(self, change: Change, thread: str) -> None:
        self._late.on_thread_deleted(thread, thinning.forget_thread(self._objects, change, thread))

    def _commit(self, change: Change) -> None:
        if change.entries:
            self._objects.commit(change)

    def _load(self, place: CheckpointPlace, checkpoint: str, digest: bytes) -> CheckpointTuple:
        found, channels = decode_checkpoint(self._objects.read([digest])[digest], self._objects.references(digest))
        self._recent.put(digest, channels)
        values = {name: value for name, (_, value) in channels.items() if value is not None}
        loaded: Checkpoint = {
            **self.serde.loads_typed(found.rest),
            "channel_values": self._codec.load(self.serde, values),
            "channel_versions": {name: version for name, (version, _) in channels.items() if version is not None},
        }
        return CheckpointTuple(
            config=place.config(checkpoint),
            checkpoint=loaded,
            metadata=self.serde.loads_typed(found.metadata),
            parent_config=place.config(found.parent) if found.parent is not None else None,
            pending_writes=self._load_writes((*place.path, checkpoint)),
        )

    def _load_writes(self, path: tuple[str, ...]) -> Writes:
        """Return the writes in the order in which their step applies them."""
        names = self._objects.entries(path)
        found = self._objects.read(names.values())
        writes = []
        for name, digest in names.items():
            task, index = split_write_name(name)
            write, value = decode_write(found[digest], self._objects.references(digest))
            writes.append(((write.task_path, task, index), task, write.channel, name, value))
        loaded = self._codec.load(self.serde, {name: value for _, _, _, name, value in writes})
        return [
            (task, channel, loaded[name]) for _, task, channel, name, _ in sorted(writes, key=lambda write: write[0])
        ]

    def _listed(self, config: RunnableConfig | None, before: RunnableConfig | None) -> Listed:
        """Return what is to be listed, as far as its name tells."""
        threads = self._objects.first_words() if config is None else [place_of(config).thread]
        namespace = config["configurable"].get("checkpoint_ns") if config is not None else None
        wanted = place_of(config).checkpoint if config is not None else None
        limit = place_of(before).checkpoint if before is not None else None
        found = [
            (CheckpointPlace(thread, path[1], None), checkpoint, digest)
            for thread in threads
            for path in self._objects.paths(thread)
            if len(path) == 2 and namespace in (None, path[1])
            for checkpoint, digest in self._objects.entries(path).items()
            if wanted in (None, checkpoint) and (limit is None or checkpoint < limit)
        ]
        return sorted(found, key=lambda each: each[1], reverse=True)

    def _is_wanted(self, digest: bytes, filter: dict[str, Any]) -> bool:
        metadata = self.read_metadata(digest)[0]
        return all(metadata.get(key) == value for key, value in filter.items())
