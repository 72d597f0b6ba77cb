"""Saves torch's sharded checkpoints as epochs of a store. Every rank writes its own packs, and the coordinating rank makes the checkpoint
visible.

Phases of a save:

    prepare_global_plan   the coordinating rank chooses the next epoch number, and the newest checkpoint as the base
    write_data            all ranks concurrently write their packs, which are still unreferenced (`RankWriter`)
    finish                the coordinating rank, when all ranks have reported, reads every pack's index back, writes the manifest, and
                          publishes the epoch's ref. This is the commit point. Before this point the checkpoint does not exist, and after it
                          the checkpoint is complete.

Any number of ranks may be killed at any time. If ranks are killed before the commit point, the last complete checkpoint remains the newest.
The next save by another process removes the incomplete data. Each new epoch number is higher than all numbers ever written, so no number is
used twice.

A rank writes packs of chunks in the same way as a host does for its agents. Each tensor or other value is stored as one part. The chunks of
each part are deduplicated against the base epoch. Chunks are first compared by hash with the chunks that this process last saved for the
same item at the same position. Chunks are then compared by digest with all chunks of the base epoch, including chunks of other ranks. If
data has not changed, or has only moved, only a reference to it is stored. Items are requested one at a time, and are written in blocks of
32 MiB. If a tensor is on another device, host memory holds only 32 MiB in addition to the tensor itself.

**Only one job at a time** may save into a store. On a file system, the coordinating rank holds a lock while it saves, and a save by a
second job is rejected. An object store has no such lock. If two jobs save into the same object store, either their checkpoints are
interleaved or one of the saves fails when it publishes its checkpoint. In an object store, incomplete data from killed saves is not
removed, because it might belong to another job.
"""

import contextlib
import dataclasses
import io
import os
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from snapline.adapters.torch_checkpoint.checkpoint_reader import (
    CHECKPOINT,
    KIND,
    RANK_KIND,
    RECORD_VERSION,
    PartPlace,
    PlannedSave,
    StoredItem,
    encode_items,
    encode_record,
)
from snapline.errors import DamagedDataError, EncodingError, NotFoundError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.capture import numpy_and_torch
from snapline.storage.capture.chunking import chunk_image
from snapline.storage.capture.encoder import chunk_bytes_for
from snapline.storage.capture.image import PART_BLOB, PART_TENSOR, CapturedPart, ChunkTable, SourceChunk, StateImage
from snapline.storage.disk import layout
from snapline.storage.keys.key_files import Keys
from snapline.storage.packs import compaction
from snapline.storage.packs import manifest as manifests
from snapline.storage.packs.checkpoint import AgentCheckpoint, ChunkReference, StatePart, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, agent_line
from snapline.storage.packs.pack import KIND_CHUNK, PackBlob, PackNeeds, PackReference, group_blobs
from snapline.storage.retention import epoch_retention, pins
from snapline.storage.store.store import Holds, Store
from snapline.storage.timestamps import instant

PACK_BYTES = 32 * 2**20
"""Largest total size in bytes of the new chunks in one pack. Only whole packs are deleted, so a tensor that is still in use prevents the
deletion of at most this amount of other data."""

ItemTables = dict[MetadataIndex, ChunkTable]
"""Item → table of the chunks that this process has last saved for the item."""


class RankWriter:
    """Writes one rank's data of one checkpoint.

    Attributes:
        tables: chunk tables of the rank's items, which the next checkpoint uses if this checkpoint becomes complete.
        sizes: sizes of the rank's items in bytes, in order.
    """

    def __init__(
        self, store: Store, planned: PlannedSave, *, base: dict[bytes, ChunkReference], tables: ItemTables
    ) -> None:
        """Create a writer. `base` contains all chunks of the base epoch. `tables` contains the chunk tables of the items in the base
        epoch."""
        self.tables: ItemTables = {}
        self.sizes: list[int] = []
        self._store = store
        self._planned = planned
        self._base = base
        self._earlier = tables
        self._parts: list[StatePart] = []
        self._reused: dict[bytes, None] = {}
        self._written: set[bytes] = set()

    def write(self, items: Iterable[Any], planner: Any) -> PackReference:
        """Write the items of this rank. The items are durable when this method returns. The parts are numbered in the same order as the
        items.

        Raises:
            EncodingError: a tensor cannot be saved. The error names the tensor that cannot be saved.
            StoreError: the disk has failed. Files that were already written remain, but nothing refers to them.
        """
        agent, epoch = self._planned.agent, self._planned.epoch
        pending: list[PackBlob] = []
        earlier_packs: list[PackReference] = []
        for group in group_blobs(self._new_chunks(items, planner), PACK_BYTES):
            if pending:
                earlier_packs.append(self._store.write_chunks(writer=agent, epoch=epoch, chunks=pending))
            pending = group
        made = AgentCheckpoint(
            agent=agent,
            kind=RANK_KIND,
            epoch=epoch,
            state=encode_items(self.tables),
            state_version=RECORD_VERSION,
            parts=self._parts,
        )
        needs = PackNeeds(self._planned.base if self._reused else 0, list(self._reused), earlier_packs)
        blobs = [(agent, encode_checkpoint(made))]
        return self._store.write_pack(writer=agent, epoch=epoch, blobs=blobs, chunks=pending, needs=needs)

    def _new_chunks(self, items: Iterable[Any], planner: Any) -> Iterator[PackBlob]:
        for item in items:
            part = _captured(item.index.fqn, planner.resolve_data(item))
            earlier = self._earlier.get(item.index, ChunkTable())
            known_chunks = ChunkTable({}, earlier.by_place, self._base)
            chunked = chunk_image(StateImage(b"", [part]), known_chunks, digest=self._store.digest)
            self.tables[item.index] = chunked.table
            self.sizes.append(part.size_bytes)
            self._parts += chunked.parts
            self._reused |= dict.fromkeys([chunk.digest for chunk in chunked.reused])
            for chunk in chunked.new:
                if chunk.digest not in self._written:
                    self._written.add(chunk.digest)
                    yield PackBlob("", KIND_CHUNK, chunk.data, chunk.digest, chunk.compresses)


def _captured(name: str, value: Any) -> CapturedPart:
    if isinstance(value, io.BytesIO):
        whole = value.getbuffer()
        chunks = [SourceChunk(0, whole, len(whole))] if len(whole) else []
        return CapturedPart(PART_BLOB, b"", len(whole), 0, chunks)
    try:
        plain = value.detach()
        content, head = memoryview(numpy_and_torch.bytes_of(plain)), numpy_and_torch.head_of(plain)
    except NotImplementedError as error:
        raise EncodingError(f"{name} cannot be saved: {error}") from error
    size = chunk_bytes_for(len(content))
    pieces = (content[start : start + size] for start in range(0, len(content), size))
    return CapturedPart(PART_TENSOR, head, len(content), size, [SourceChunk(0, piece, len(piece)) for piece in pieces])


VALIDITY = "whole: every rank's packs were read back"


class SnaplineWriter(StorageWriter):
    """Storage writer for `torch.distributed.checkpoint.save` and `async_save` that saves into a snapline store.

    On every rank, create one writer with `SnaplineWriter.open("folder")`, and use it for all saves. The writer can be used as a context
    manager. If a save has a `checkpoint_id`, this id becomes the checkpoint's tag. The tag identifies the checkpoint for loading, and
    protects it from deletion. When `save` returns, the checkpoint is durable.
    """

    def __init__(self, store: Store, *, keep_last: int | None = None) -> None:
        """Create a writer for a store that is already open. In all other cases, use `open`."""
        super().__init__()
        self._store = store
        self._holds = Holds(store, now_s=time.time)
        self._keep_last = keep_last
        self._next_name: str | None = None
        self._name: str | None = None
        self._base: tuple[int, str] = (0, "")
        self._epoch = 0
        self._written: tuple[int, ItemTables] = (0, {})
        self._lock: int | None = None
        self._is_swept = False

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str],
        *,
        keep_last: int | None = None,
        keys: Keys | None = None,
        must_exist: bool = False,
    ) -> "SnaplineWriter":
        """Open the store at a folder or a URL (`s3://bucket/prefix`). If the store does not exist, it is created.

        Args:
            location: a folder or URL that only this job uses. The location must be the same on every rank.
            keep_last: number of checkpoints to retain. When new checkpoints are saved, older checkpoints that have neither a tag nor a pin
                are deleted. None retains all checkpoints.
            keys: encryption keys of the store, by default the keys in the environment variables (docs/protection.md).
            must_exist: whether to raise an error if the store does not exist, instead of creating it. Set this option for an existing
                store, so that a missing mount is reported as an error.

        Raises:
            StoreMissingError: the store does not exist, and `must_exist` is set.
            UsageError: `keep_last` is less than 1, or the location cannot contain a store.
            StoreError: the store is encrypted and the key is missing, or the disk has failed.
        """
        if keep_last is not None and keep_last < 1:
            raise UsageError(f"keep_last={keep_last} would keep no checkpoint: give 1 or more, or None for all")
        store = (Store.open if must_exist else Store.open_or_create)(location, keys=keys)
        return cls(store, keep_last=keep_last)

    def close(self) -> None:
        """Release the writer's lock on the store. Releasing the lock again has no effect."""
        handle, self._lock = self._lock, None
        if handle is not None:
            os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- torch's calls, in their order -------------------------------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a save under the given name. Raise UsageError if the name is not a valid tag."""
        self._next_name = None if checkpoint_id is None else pins.check_tag(os.fspath(checkpoint_id))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Prepare a save on this rank. Raise UsageError if `use_collectives` is False, because the ranks must communicate."""
        self.close()  # ends a previous save that has failed on another rank
        self._name, self._next_name = self._next_name, None
        if not kwargs.get("use_collectives", True):
            raise UsageError("use_collectives=False writes checkpoints that are not of one piece: leave it out")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan without changes."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Choose the epoch number of this save, and the base epoch whose chunks may be reused. Return the plans of all ranks, extended by
        both epoch numbers.

        Raises:
            UsageError: another job is saving into the store, the store contains a fleet's snapshots, the name is in use, or the planner
                caches its plans.
        """
        if not all(getattr(plan, "usable", True) for plan in plans):
            raise UsageError("the planner caches its plans, and each save needs its own: set enable_plan_caching=False")
        self._take_lock()
        if self._name is not None and pins.tagged_epoch(self._store.disk, self._store.store_id, self._name) is not None:
            raise UsageError(f"there is a checkpoint {self._name!r} already: give another checkpoint_id, or untag it")
        self._base = self._newest()
        self._epoch = 1 + max(self._store.epochs()[-1:] + _numbers_of_packs(self._store), default=0)
        if self._lock is not None and not self._is_swept:
            self._store.delete_unreferenced(begun_below=self._epoch, open_writers=(compaction.WRITER,))
            self._is_swept = True
        epoch, base = self._epoch, self._base[0]
        return [
            dataclasses.replace(plan, storage_data=PlannedSave(f"rank-{rank}", epoch, base))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's data of the checkpoint. The data is durable when this method returns."""
        written: Future[list[WriteResult]] = Future()
        written.set_result(self._write(plan.storage_data, list(plan.items), planner))
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Make the checkpoint visible. The checkpoint is durable when this method returns."""
        packs: dict[str, PackReference] = {}
        places: dict[MetadataIndex, PartPlace] = {}
        for result in (result for written in results for result in written):
            stored: StoredItem = result.storage_data
            packs[stored.pack.path] = stored.pack
            places[result.index] = (stored.agent, stored.part)
        metadata.storage_data, metadata.storage_meta = places, self.storage_meta()
        size_bytes = sum(result.size_in_bytes for written in results for result in written)
        self._publish(encode_record(metadata, places), list(packs.values()), size_bytes)
        if self._name is not None:
            self._holds.tag(self._name, self._epoch)
        if self._keep_last is not None:
            self._forget(self._keep_last)
        self.close()

    def storage_meta(self) -> StorageMeta:
        """Return the name and the epoch number of the checkpoint that is being saved."""
        return StorageMeta(checkpoint_id=self._name, save_id=str(self._epoch))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether the id is a valid checkpoint name."""
        with contextlib.suppress(UsageError):
            return bool(pins.check_tag(os.fspath(checkpoint_id)))
        return False

    # -- internal ----------------------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        lock = getattr(self._store.disk, "lock", None)
        if lock is None or self._lock is not None:
            return
        self._store.require_available()  # taking a lock would create the lock file
        try:
            self._lock = lock(layout.IDENTITY)
        except BlockingIOError:
            raise UsageError(
                f"another job saves into the store {self._store.location}: give each job a folder of its own"
            ) from None

    def _newest(self) -> tuple[int, str]:
        """Return the epoch and the root digest of the newest readable checkpoint, or (0, "") if there is none."""
        for epoch in reversed(self._store.epochs()):
            try:
                root = self._store.read_ref(epoch)
                self._store.read_manifest(root, epoch=epoch).line_of(CHECKPOINT)
            except DamagedDataError:
                continue  # The new checkpoint must not reuse data from the unreadable one.
            except NotFoundError:
                message = (
                    f"the store {self._store.location} holds snapshots of a fleet: give the job a folder of its own"
                )
                raise UsageError(message) from None
            return epoch, root
        return 0, ""

    def _write(self, planned: PlannedSave, items: list[Any], planner: SavePlanner) -> list[WriteResult]:
        if not items:
            return []
        base: dict[bytes, ChunkReference] = {}
        if planned.base:
            manifest = self._store.read_manifest(self._store.read_ref(planned.base), epoch=planned.base)
            base = {chunk.digest: ChunkReference(chunk.digest, chunk.size_bytes) for chunk in manifest.chunks}
        epoch, tables = self._written
        rank = RankWriter(self._store, planned, base=base, tables=tables if epoch == planned.base else {})
        reference = rank.write(items, planner)
        failpoint("torch.rank.written")
        self._written = planned.epoch, rank.tables
        return [
            WriteResult(item.index, size_bytes, StoredItem(reference, planned.agent, part))
            for part, (item, size_bytes) in enumerate(zip(items, rank.sizes, strict=True))
        ]

    def _publish(self, record: bytes, packs: list[PackReference], size_bytes: int) -> None:
        made = AgentCheckpoint(
            agent=CHECKPOINT, kind=KIND, epoch=self._epoch, state=record, state_version=RECORD_VERSION
        )
        blobs = [(CHECKPOINT, encode_checkpoint(made))]
        packs.append(self._store.write_pack(writer=CHECKPOINT, epoch=self._epoch, blobs=blobs))
        base, root = self._base
        gathered = self._store.gather(packs, epoch=self._epoch, bases={base: root} if base else {})
        lines = [
            agent_line(blob, pack=pack, kind=KIND if name == CHECKPOINT else RANK_KIND, host=name, incarnation=1)
            for pack, found_checkpoints in enumerate(gathered.checkpoints)
            for name, blob in found_checkpoints.items()
        ]
        metadata = manifests.Metadata(
            epoch=self._epoch,
            created=instant(time.time()),
            trigger="torch",
            state_bytes=size_bytes,
            validity=VALIDITY,
        )
        found_root = self._store.write_manifest(Manifest(metadata, lines, gathered.packs, gathered.chunks))
        failpoint("torch.manifest.written")
        self._store.publish(self._epoch, found_root)

    def _forget(self, keep_last: int) -> None:
        self._holds.delete(self._store.epochs()[:-keep_last])
        self._store.compact(now_s=time.monotonic())


def _numbers_of_packs(store: Store) -> list[int]:
    """Return the numbers of all epochs for which packs exist, including packs from saves that were killed."""
    names = [layout.parse_pack_path(path) for path in epoch_retention.pack_paths(store.disk)]
    return [name.number for name in names if name is not None]
