"""Load checkpoints of `SnaplineWriter` on any number of ranks: each rank reads the parts that its plan names, from any writer."""

import dataclasses
import io
import os
from typing import Any

import msgspec
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from snapline.adapters.torch_checkpoint.records import CHECKPOINT, RECORD_VERSION, PartPlace, decode_record
from snapline.errors import EncodingError, StoreError, UsageError
from snapline.storage.capture.tensors import make_tensor
from snapline.storage.capture.values import ArrayHead
from snapline.storage.keys.key_files import Keys
from snapline.storage.packs.checkpoint import AgentCheckpoint, StatePart
from snapline.storage.packs.parts import PartReader
from snapline.storage.store.manifest import Manifest
from snapline.storage.store.store import Store


class SnaplineReader(StorageReader):
    """Loads for `torch.distributed.checkpoint.load` from a snapline store.

    Create it with `SnaplineReader.open("folder")` on every rank. `checkpoint_id` is the name or number of a checkpoint, or "latest".
    All bytes are verified with their digests before torch gets them.
    """

    def __init__(self, store: Store, checkpoint_id: str = "latest") -> None:
        """Use `open` unless you have a store of your own."""
        super().__init__()
        self._store = store
        self._wanted = checkpoint_id
        self._manifest: Manifest | None = None
        self._root = ""
        self._places: dict[Any, PartPlace] = {}

    @classmethod
    def open(
        cls, location: str | os.PathLike[str], checkpoint_id: str = "latest", *, keys: Keys | None = None
    ) -> "SnaplineReader":
        """Open a store read-only.

        Raises:
            StoreMissingError: the store does not exist.
            StoreError: the store is encrypted, and the key is missing.
        """
        return cls(Store.open(location, keys=keys), checkpoint_id)

    # -- torch's calls, in their order -------------------------------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Choose another checkpoint to load."""
        if checkpoint_id is not None:
            self._wanted = os.fspath(checkpoint_id)

    def read_metadata(self) -> Metadata:
        """Return the metadata of the checkpoint.

        Raises:
            NotFoundError: the checkpoint does not exist.
            DamagedDataError: a file is damaged.
            EncodingError: the checkpoint was written by a later release.
        """
        epoch = self._store.resolve(self._wanted)
        self._root = self._store.read_ref(epoch)
        self._manifest = self._store.read_manifest(self._root, epoch=epoch)
        checkpoint = self._store.read_checkpoint(self._manifest, CHECKPOINT)
        if checkpoint.state_version != RECORD_VERSION:
            raise EncodingError(
                f"checkpoint {epoch} has format {checkpoint.state_version}: use the snapline that wrote it"
            )
        metadata = decode_record(checkpoint.state)
        metadata.storage_meta = StorageMeta(checkpoint_id=self._wanted, save_id=str(epoch))
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Store the places of all items."""
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Add to the plan which checkpoint this rank has found."""
        return dataclasses.replace(plan, storage_data=self._root)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks have found the same checkpoint; raise StoreError if not."""
        if len({plan.storage_data for plan in plans}) > 1:
            raise StoreError(
                f"ranks have found different checkpoints as {self._wanted!r}: one was saved meanwhile, or they look into "
                "different stores; load again"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the parts named by the plan, each once.

        Raises:
            DamagedDataError: a part is damaged; names file, epoch and rank.
        """
        if self._manifest is None:
            raise UsageError("read_metadata comes before read_data")
        items_by_part: dict[PartPlace, list[ReadItem]] = {}
        for item in plan.items:
            items_by_part.setdefault(self._places[item.storage_index], []).append(item)
        ranks = _Ranks(self._store, self._manifest)
        for agent, number in sorted(items_by_part):
            part, content = ranks.read(agent, number)
            for item in items_by_part[agent, number]:
                _give(planner, item, part, content)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this can name a snapshot."""
        return bool(os.fspath(checkpoint_id))


class _Ranks:
    """The checkpoints of the ranks, each read when its first part is needed."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self._manifest = manifest
        self._parts: PartReader = store.part_reader(manifest)
        self._known: dict[str, AgentCheckpoint] = {}

    def read(self, agent: str, number: int) -> tuple[StatePart, memoryview]:
        if agent not in self._known:
            self._known[agent] = self._store.read_checkpoint(self._manifest, agent)
        part = self._known[agent].parts[number]
        (content,) = self._parts.read(agent, [part])
        return part, content


def _give(planner: LoadPlanner, item: ReadItem, part: StatePart, content: memoryview) -> None:
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(content))
        return
    head = msgspec.msgpack.decode(part.head, type=ArrayHead)
    tensor = make_tensor(head.dtype, head.shape, content)
    for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        tensor = tensor.narrow(dimension, start, length)
    target = planner.resolve_tensor(item).detach()
    if target.size() != tensor.size():
        raise UsageError(
            f"{item.dest_index.fqn} is to be {tuple(target.size())}, and {tuple(tensor.size())} of it was saved"
        )
    target.copy_(tensor)
    planner.commit_tensor(item, target)
