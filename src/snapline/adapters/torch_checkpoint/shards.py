"""Packs of chunks that one rank writes for one checkpoint, as a host does for its agents.

Each tensor or value is a part. Its chunks are deduplicated against the base epoch: first by hash, with what this process saved last at the same
place of the same item; then by digest, with all chunks of the base, including other ranks'. So data that is unchanged or only moved costs a
reference.

Items are requested one by one, and written 32 MiB at a time. For a tensor on another device, memory holds only that much and the tensor itself.
"""

import io
from collections.abc import Iterable, Iterator
from typing import Any

from torch.distributed.checkpoint.metadata import MetadataIndex

from snapline.adapters.torch_checkpoint.records import RANK_KIND, RECORD_VERSION, PlannedSave, encode_items
from snapline.errors import EncodingError
from snapline.storage.capture import tensors
from snapline.storage.capture.chunking import chunk_image
from snapline.storage.capture.encoder import chunk_bytes_for
from snapline.storage.capture.image import (
    PART_BLOB,
    PART_TENSOR,
    CapturedPart,
    ChunkTable,
    SourceChunk,
    StateImage,
)
from snapline.storage.packs.blob import KIND_CHUNK, PackBlob, group_blobs
from snapline.storage.packs.checkpoint import AgentCheckpoint, ChunkReference, StatePart, encode_checkpoint
from snapline.storage.packs.pack import PackNeeds, PackReference
from snapline.storage.store.store import Store

PACK_BYTES = 32 * 2**20
"""Largest size of new chunks in one pack. Whole packs are deleted, so one tensor still in use retains at most this much of others."""

ItemTables = dict[MetadataIndex, ChunkTable]
"""Chunk table of each item as this process saved it last."""


class RankWriter:
    """Writes one rank's part of one checkpoint.

    Attributes:
        tables: chunk tables of its items, for the next checkpoint if this one becomes complete.
        sizes: sizes of its items in bytes, in their order.
    """

    def __init__(
        self, store: Store, planned: PlannedSave, *, base: dict[bytes, ChunkReference], tables: ItemTables
    ) -> None:
        """`base`: all chunks of the base epoch; `tables`: chunk tables of the items in it."""
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
        """Write the items, which are durable when this returns; their parts are numbered in their order.

        Raises:
            EncodingError: a tensor cannot be saved; names it.
            StoreError: the disk failed. The files left behind are unreferenced.
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
        content, head = memoryview(tensors.bytes_of(plain)), tensors.head_of(plain)
    except NotImplementedError as error:
        raise EncodingError(f"{name} cannot be saved: {error}") from error
    size = chunk_bytes_for(len(content))
    pieces = (content[start : start + size] for start in range(0, len(content), size))
    return CapturedPart(PART_TENSOR, head, len(content), size, [SourceChunk(0, piece, len(piece)) for piece in pieces])
