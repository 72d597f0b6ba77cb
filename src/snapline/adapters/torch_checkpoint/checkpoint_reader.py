"""Defines how sharded checkpoints are stored, and reads such checkpoints on any number of ranks.

Each checkpoint is an epoch of the store. The agents in the epoch are the job's ranks, plus one agent that describes the whole checkpoint:

    agent rank-<n>      state: {"items": [[name, offset, part], …]}; parts: its tensors, and the bytes of non-tensor values
    agent checkpoint    state: a `CheckpointRecord`: every tensor's type, size and pieces, and which part of which rank holds each

The states of both kinds of agents are plain MessagePack. Tensors and other large values are stored as parts, like the parts of any agent's
state. This module does not use pickle. However, torch's planner pickles values that are not tensors, and unpickles them when they are
loaded.

Each rank reads the parts in its load plan, regardless of which rank wrote them.
"""

import dataclasses
import io
import os
from collections.abc import Iterable
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from snapline.errors import EncodingError, StoreError, UsageError
from snapline.storage.capture.decoder import PartReader
from snapline.storage.capture.numpy_and_torch import make_tensor
from snapline.storage.capture.torch_state import TensorPlaces, Unfolder, fold
from snapline.storage.capture.values import PART_EXTENSION, ArrayHead
from snapline.storage.keys.key_files import Keys
from snapline.storage.packs.checkpoint import AgentCheckpoint, StatePart
from snapline.storage.packs.manifest import Manifest
from snapline.storage.packs.pack import PackReference
from snapline.storage.store.store import Store

CHECKPOINT = "checkpoint"
"""Id of the agent whose state describes the whole checkpoint."""

KIND = "torch.distributed.checkpoint:Checkpoint"
RANK_KIND = "torch.distributed.checkpoint:Rank"

RECORD_VERSION = 1
"""The `state_version` of these checkpoints. Other versions are rejected."""

_PLANNER = ("planner_data",)

Offset = tuple[int, ...] | None
PartPlace = tuple[str, int]
"""An agent's id, and the index of a part of that agent's state."""


class PlannedSave(msgspec.Struct, frozen=True):
    """Instructions from the coordinating rank to one rank. The instructions contain the rank's agent id, the epoch to write, and the base
    epoch whose chunks the rank may reuse. `base` is 0 if there is no base epoch."""

    agent: str
    epoch: int
    base: int


class StoredItem(msgspec.Struct, frozen=True):
    """A rank's report on one item that it has saved."""

    pack: PackReference
    agent: str
    part: int


class TensorPieces(msgspec.Struct, frozen=True, array_like=True):
    """Description of a tensor that may be distributed over several ranks. The description contains the tensor's type, its size, and the
    offset and size of each piece."""

    dtype: str
    requires_grad: bool
    size: tuple[int, ...]
    pieces: list[tuple[tuple[int, ...], tuple[int, ...]]]


class PlacedItem(msgspec.Struct, frozen=True, array_like=True):
    """Identifies the location of an item within the checkpoint. `index` is the index hint that torch's planner provides."""

    name: str
    offset: Offset
    index: int | None
    agent: str
    part: int


class CheckpointRecord(msgspec.Struct, frozen=True):
    """The state of the agent `CHECKPOINT`, which describes the whole checkpoint. In `tensors`, None marks an item that is not a tensor."""

    tensors: dict[str, TensorPieces | None]
    planner: Any
    places: list[PlacedItem]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CheckpointRecord)


def encode_items(indexes: Iterable[MetadataIndex]) -> bytes:
    """Encode the state of a rank whose parts contain the given items, in the same order."""
    items = [
        (index.fqn, _offset_of(index), msgspec.msgpack.Ext(PART_EXTENSION, _encoder.encode(part)))
        for part, index in enumerate(indexes)
    ]
    return _encoder.encode({"items": items})


def encode_record(metadata: Metadata, places: dict[MetadataIndex, PartPlace]) -> bytes:
    """Encode the state of the agent `CHECKPOINT`, which describes the whole checkpoint.

    Raises:
        EncodingError: a custom planner has added data that does not consist of plain Python types.
    """
    try:
        tensors = {name: _pieces_of(tensor_metadata) for name, tensor_metadata in metadata.state_dict_metadata.items()}
        planner = fold(metadata.planner_data, _PLANNER, TensorPlaces())
        placed = [PlacedItem(x.fqn, _offset_of(x), x.index, agent, part) for x, (agent, part) in places.items()]
        return _encoder.encode(CheckpointRecord(tensors, planner, placed))
    except (NotImplementedError, TypeError) as error:
        raise EncodingError(f"the planner's metadata cannot be saved: {error}") from error


def decode_record(state: bytes) -> Metadata:
    """Decode metadata that was encoded by `encode_record`. The field `storage_data` of the result contains the location of each item.

    Raises:
        EncodingError: the state is not a valid checkpoint record.
    """
    try:
        record = _decoder.decode(state)
        tensors = {
            name: BytesStorageMetadata() if pieces is None else _metadata_of(pieces)
            for name, pieces in record.tensors.items()
        }
        planner = Unfolder().unfold(record.planner, _PLANNER)
    except (msgspec.DecodeError, ValueError) as error:
        raise EncodingError(f"the record of the checkpoint cannot be read: {error}") from error
    places = {MetadataIndex(x.name, x.offset, x.index): (x.agent, x.part) for x in record.places}
    return Metadata(tensors, planner_data=planner, storage_data=places)


def _offset_of(index: MetadataIndex) -> Offset:
    return None if index.offset is None else tuple(index.offset)


def _pieces_of(found: Any) -> TensorPieces | None:
    if isinstance(found, BytesStorageMetadata):
        return None
    dtype = str(found.properties.dtype).removeprefix("torch.")
    pieces = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in found.chunks]
    return TensorPieces(dtype, bool(found.properties.requires_grad), tuple(found.size), pieces)


def _metadata_of(found: TensorPieces) -> TensorStorageMetadata:
    kind = getattr(torch, found.dtype, None)
    if not isinstance(kind, torch.dtype):
        raise EncodingError(f"the checkpoint holds tensors of {found.dtype!r}, which this torch does not have")
    chunks = [ChunkStorageMetadata(torch.Size(offset), torch.Size(size)) for offset, size in found.pieces]
    properties = TensorProperties(dtype=kind, requires_grad=found.requires_grad)
    return TensorStorageMetadata(properties, torch.Size(found.size), chunks)


class SnaplineReader(StorageReader):
    """Storage reader for `torch.distributed.checkpoint.load` that reads from a snapline store.

    Create a reader with `SnaplineReader.open("folder")` on every rank. `checkpoint_id` is the name or number of a checkpoint, or "latest".
    All data is verified against its digests before it is passed to torch.
    """

    def __init__(self, store: Store, checkpoint_id: str = "latest") -> None:
        """Create a reader for a store that is already open. In all other cases, use `open`."""
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
        """Open a store for reading only.

        Raises:
            StoreMissingError: the store does not exist.
            StoreError: the store is encrypted and the key is missing.
        """
        return cls(Store.open(location, keys=keys), checkpoint_id)

    # -- torch's calls, in their order -------------------------------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Choose the checkpoint that the next load reads. If `checkpoint_id` is None, the previous choice remains in effect."""
        if checkpoint_id is not None:
            self._wanted = os.fspath(checkpoint_id)

    def read_metadata(self) -> Metadata:
        """Return the metadata of the chosen checkpoint.

        Raises:
            NotFoundError: the checkpoint does not exist.
            DamagedDataError: a file is damaged.
            EncodingError: the checkpoint was written by a later release of snapline.
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
        """Remember the locations of all items."""
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan, with the root digest of the checkpoint that this rank has found."""
        return dataclasses.replace(plan, storage_data=self._root)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Raise StoreError unless all ranks have found the same checkpoint."""
        if len({plan.storage_data for plan in plans}) > 1:
            raise StoreError(
                f"ranks have found different checkpoints as {self._wanted!r}: one was saved meanwhile, or they look into "
                "different stores; load again"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read each part in the plan exactly once.

        Raises:
            DamagedDataError: a part of the checkpoint is damaged. The error names the file, the epoch and the rank.
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
        """Return whether the id is a possible checkpoint id. Any non-empty id is possible."""
        return bool(os.fspath(checkpoint_id))


class _Ranks:
    """The parts that the ranks of one checkpoint have written. The description of a rank's parts is read when one of the rank's parts is
    first needed."""

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
