"""Gathers the contents of a manifest from the packs that hosts report: all packs that an epoch needs, and the place of each chunk.

The index of a reported pack names what its checkpoints need from elsewhere: packs written with it, and chunks of a base epoch. Both are
resolved here, once, into a list of every pack and every chunk: the manifest refers to no other manifest.

A host reuses only chunks of its base, and the base must still exist. Deletion spares what any manifest names (`retention.py`). So deletion cannot
race with reuse, if the caller deletes no epoch between gathering and writing the manifest.
"""

from collections.abc import Callable, Sequence

import msgspec

from snapline.errors import StoreError
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import Disk
from snapline.storage.packs.blob import BlobEntry
from snapline.storage.packs.checkpoint_packs import read_reported_index
from snapline.storage.packs.pack import PackIndex, PackReference
from snapline.storage.store.manifest import ChunkPlace, Manifest, chunk_place


class Gathered(msgspec.Struct, frozen=True):
    """Contents of the packs of one epoch.

    Attributes:
        packs: the reported packs, in their order, then all others that are needed.
        checkpoints: for each reported pack, agent → its blob.
        chunks: every chunk that a checkpoint may name.
    """

    packs: list[PackReference]
    checkpoints: list[dict[str, BlobEntry]]
    chunks: list[ChunkPlace]


def gather(
    disk: Disk,
    references: Sequence[PackReference],
    *,
    store_id: str,
    epoch: int,
    read_base: Callable[[int], Manifest],
) -> Gathered:
    """Read the indexes of all packs of `epoch`, and find the packs and chunks that they reuse; `read_base` returns a base epoch's manifest.

    Raises:
        DamagedDataError: a pack is missing, or differs from the reported one.
        StoreError: a chunk is not in the base.
    """
    return _Gathering(disk, store_id, epoch, read_base).run(references)


class _Gathering:
    """One run of `gather`. `_places`: digest → place; `_numbers`: path of a pack → its index in `_packs`."""

    def __init__(self, disk: Disk, store_id: str, epoch: int, read_base: Callable[[int], Manifest]) -> None:
        self._disk = disk
        self._store_id = store_id
        self._epoch = epoch
        self._read_base = read_base
        self._packs: list[PackReference] = []
        self._numbers: dict[str, int] = {}
        self._places: dict[bytes, ChunkPlace] = {}

    def run(self, references: Sequence[PackReference]) -> Gathered:
        indexes = [self._add(reference) for reference in references]
        for index in indexes:
            for other in index.others:
                self._check_companion_pack(index, other)
                self._add(other)
        for index in indexes:
            if index.reused:
                self._resolve(index)
        checkpoints = [{entry.name: entry for entry in index.checkpoints()} for index in indexes]
        return Gathered(self._packs, checkpoints, list(self._places.values()))

    def _add(self, reference: PackReference) -> PackIndex:
        index = read_reported_index(self._disk, reference, store_id=self._store_id, epoch=self._epoch)
        number = self._number_of(msgspec.structs.replace(reference, key_id=index.key))
        for entry in index.chunks():
            self._places.setdefault(entry.digest, chunk_place(entry, pack=number))
        return index

    def _number_of(self, pack: PackReference) -> int:
        if pack.path not in self._numbers:
            self._numbers[pack.path] = len(self._packs)
            self._packs.append(pack)
        return self._numbers[pack.path]

    def _check_companion_pack(self, index: PackIndex, other: PackReference) -> None:
        name = layout.parse_pack_path(other.path)
        if name is None or (name.writer, name.number) != (index.writer, index.epoch):
            raise StoreError(
                f"a pack of {index.writer} for epoch {index.epoch} names {other.path!r} as a companion pack, which it is not"
            )

    def _resolve(self, index: PackIndex) -> None:
        base = self._read_base(index.base)
        places = {chunk.digest: chunk for chunk in base.chunks}
        for digest in index.reused_digests():
            place = places.get(digest)
            if place is None:
                raise StoreError(
                    f"a pack of {index.writer} for epoch {index.epoch} reuses the chunk {digest.hex()[:12]} of epoch "
                    f"{index.base}, which does not hold it"
                )
            if digest not in self._places:
                number = self._number_of(base.packs[place.pack])
                self._places[digest] = msgspec.structs.replace(place, pack=number)
