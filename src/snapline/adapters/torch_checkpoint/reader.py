"""Load what `SnaplineWriter` has saved, on any number of ranks: each reads the parts that its plan names, from any writer."""

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
    """Loads for `torch.distributed.checkpoint.load` from a store of snapline.

    `SnaplineReader.open("folder")` on every rank gives one. `checkpoint_id` is what a checkpoint was saved as, its number, or "latest". Every byte is
    compared with its digest before torch sees it.
    """

    def __init__(self, store: Store, checkpoint_id: str = "latest") -> None:
        """Use `open`, unless you bring your own store."""
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
        """Open a store; changes nothing.

        Raises:
            StoreMissingError: there is none.
            StoreError: it is encrypted, and its key is not there.
        """
        return cls(Store.open(location, keys=keys), checkpoint_id)

    # -- torch's calls, in their order -------------------------------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Choose another checkpoint to load."""
        if checkpoint_id is not None:
            self._wanted = os.fspath(checkpoint_id)

    def read_metadata(self) -> Metadata:
        """Return what the checkpoint holds.

        Raises:
            NotFoundError: there is no such checkpoint.
            DamagedDataError: it is not what was written.
            EncodingError: a later release has written it.
        """
        epoch = self._store.resolve(self._wanted)
        self._root = self._store.read_ref(epoch)
        self._manifest = self._store.read_manifest(self._root, epoch=epoch)
        found = self._store.read_checkpoint(self._manifest, CHECKPOINT)
        if found.state_version != RECORD_VERSION:
            raise EncodingError(f"checkpoint {epoch} has format {found.state_version}: use the snapline that wrote it")
        metadata = decode_record(found.state)
        metadata.storage_meta = StorageMeta(checkpoint_id=self._wanted, save_id=str(epoch))
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take the places of all items."""
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Say which checkpoint this rank has found."""
        return dataclasses.replace(plan, storage_data=self._root)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """All ranks must have found the same one; StoreError: they have not."""
        if len({plan.storage_data for plan in plans}) > 1:
            raise StoreError(
                f"ranks have found different checkpoints as {self._wanted!r}: one was saved meanwhile, or they look into "
                "different stores; load again"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan names, each part once.

        Raises:
            DamagedDataError: a part is not what was written; names file, epoch and rank.
        """
        if self._manifest is None:
            raise UsageError("read_metadata comes before read_data")
        wanted: dict[PartPlace, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(self._places[item.storage_index], []).append(item)
        ranks = _Ranks(self._store, self._manifest)
        for agent, number in sorted(wanted):
            part, content = ranks.read(agent, number)
            for item in wanted[agent, number]:
                _give(planner, item, part, content)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this may name a snapshot."""
        return bool(os.fspath(checkpoint_id))


class _Ranks:
    """The ranks' checkpoints, each read when its first part is wanted."""

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
