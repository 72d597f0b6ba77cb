"""Format of a sharded checkpoint in the store: an epoch whose agents are the job's ranks, and one more agent that describes the whole checkpoint.

    agent rank-<n>      state: {"items": [[name, offset, part], …]}; parts: its tensors, and the bytes of non-tensor values
    agent checkpoint    state: a `CheckpointRecord`: every tensor's type, size and pieces, and which part of which rank holds each

Both states are plain MessagePack; parts are stored like those of any agent's state. This module uses no pickle. However, torch's planner passes
non-tensor values as pickled bytes, and torch's planner loads them.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from snapline.errors import EncodingError
from snapline.storage.capture.torch_values import TensorPlaces, Unfolder, fold
from snapline.storage.capture.values import PART_EXTENSION
from snapline.storage.packs.pack import PackReference

CHECKPOINT = "checkpoint"
"""The agent whose state describes the whole checkpoint."""

KIND = "torch.distributed.checkpoint:Checkpoint"
RANK_KIND = "torch.distributed.checkpoint:Rank"

RECORD_VERSION = 1
"""The `state_version` of these checkpoints; other versions are rejected."""

_PLANNER = ("planner_data",)

Offset = tuple[int, ...] | None
PartPlace = tuple[str, int]
"""An agent, and the index of a part of its state."""


class PlannedSave(msgspec.Struct, frozen=True):
    """Decision of the coordinating rank for one rank: its agent, its epoch, and the epoch whose chunks it may reuse (0: none)."""

    agent: str
    epoch: int
    base: int


class StoredItem(msgspec.Struct, frozen=True):
    """Report of a rank on one item."""

    pack: PackReference
    agent: str
    part: int


class TensorPieces(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of the whole job: its type, its size, and the offset and size of each piece."""

    dtype: str
    requires_grad: bool
    size: tuple[int, ...]
    pieces: list[tuple[tuple[int, ...], tuple[int, ...]]]


class PlacedItem(msgspec.Struct, frozen=True, array_like=True):
    """Location of an item; `index` is the planner's hint."""

    name: str
    offset: Offset
    index: int | None
    agent: str
    part: int


class CheckpointRecord(msgspec.Struct, frozen=True):
    """The state of the agent `CHECKPOINT`. In `tensors`, None marks a value that is no tensor."""

    tensors: dict[str, TensorPieces | None]
    planner: Any
    places: list[PlacedItem]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CheckpointRecord)


def encode_items(indexes: Iterable[MetadataIndex]) -> bytes:
    """Return the state of a rank whose parts are these items, in this order."""
    items = [
        (index.fqn, _offset_of(index), msgspec.msgpack.Ext(PART_EXTENSION, _encoder.encode(part)))
        for part, index in enumerate(indexes)
    ]
    return _encoder.encode({"items": items})


def encode_record(metadata: Metadata, places: dict[MetadataIndex, PartPlace]) -> bytes:
    """Return the state of the agent `CHECKPOINT`.

    Raises:
        EncodingError: a custom planner has added data that is not plain.
    """
    try:
        tensors = {name: _pieces_of(tensor_metadata) for name, tensor_metadata in metadata.state_dict_metadata.items()}
        planner = fold(metadata.planner_data, _PLANNER, TensorPlaces())
        placed = [PlacedItem(x.fqn, _offset_of(x), x.index, agent, part) for x, (agent, part) in places.items()]
        return _encoder.encode(CheckpointRecord(tensors, planner, placed))
    except (NotImplementedError, TypeError) as error:
        raise EncodingError(f"the planner's metadata cannot be saved: {error}") from error


def decode_record(state: bytes) -> Metadata:
    """Decode the metadata that `encode_record` encoded; `storage_data` has the place of each item.

    Raises:
        EncodingError: the state is no checkpoint record.
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
