"""Reading all blobs of one snapshot in the order of their places, to copy or to verify it (G11).

A manifest lists each blob's place and digest. So blobs are read from the manifest alone, and adjacent ones with one call:
from an object store, a pack of a thousand chunks takes eight requests. Indexes of packs are read only to compare
the manifest with the packs (`check_places`).
"""

from collections.abc import Iterable, Iterator

import msgspec

from snapline.errors import DamagedDataError
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import Buffer, damaged
from snapline.storage.packs.blob import PLAIN_KEYRING, BlobEntry, Keyring, decode_blob, end_of
from snapline.storage.packs.checkpoint import decode_checkpoint
from snapline.storage.packs.checkpoint_packs import keyring_of
from snapline.storage.packs.pack import PackReference
from snapline.storage.store import files
from snapline.storage.store.manifest import AgentLine, Manifest
from snapline.storage.store.store import Store

RUN_BYTES_MAX = 8 * 2**20
"""Largest read: on an object store the cost of a request is then small compared with its bytes."""


class PlacedBlob(msgspec.Struct, frozen=True, gc=False):
    """A blob and its pack."""

    pack: PackReference
    entry: BlobEntry


Key = tuple[str, bytes]
"""Name and digest, which identify a blob. Chunks have no name."""


def check_epoch(store: Store, epoch: int, checked: set[str]) -> None:
    """Read and check every blob of every pack that a snapshot needs.

    `checked`: paths of packs that were already read and are skipped; the packs read now are added.

    Raises:
        NotFoundError: there is no such epoch.
        DamagedDataError: names the first damaged file.
    """
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    check_places(store, manifest)
    for pack in manifest.packs:
        if pack.path not in checked:
            for _ in read_blobs(store, [PlacedBlob(pack, entry) for entry in store.read_pack_index(pack)], epoch):
                pass
            checked.add(pack.path)
    for _ in read_checkpoints(store, manifest, manifest.agents, digests_of(manifest)):
        pass


def read_blobs(store: Store, blobs: Iterable[PlacedBlob], epoch: int) -> Iterator[tuple[PlacedBlob, Buffer]]:
    """Yield blobs with their plain bytes, sorted by place and checked; adjacent ones are read with one call.

    Raises:
        DamagedDataError: names file, epoch and agent.
    """
    disk, guard = store.disk, store.guard
    keyrings: dict[str, Keyring] = {}
    for run in _runs(blobs):
        pack = run[0].pack
        if pack.path not in keyrings:
            keyrings[pack.path] = keyring_of(guard, store_id=store.store_id, path=pack.path, key_id=pack.key_id)
        yield from _read_run(disk, run, epoch, keyrings[pack.path])


def check_places(store: Store, manifest: Manifest) -> None:
    """Check that every pack exists, with the blobs that the manifest lists. Blobs are not read."""
    entries: dict[tuple[int, Key], BlobEntry] = {}
    for number, pack in enumerate(manifest.packs):
        entries |= {(number, key_of(entry)): entry for entry in store.read_pack_index(pack)}
    blobs = [(line.pack, line.entry()) for line in manifest.agents]
    blobs += [(chunk.pack, chunk.entry()) for chunk in manifest.chunks]
    for number, entry in blobs:
        if entries.get((number, key_of(entry))) != entry:
            reason = f"its index and the manifest differ about {entry.label}"
            raise damaged(manifest.packs[number].path, reason, epoch=manifest.metadata.epoch, blob=entry.name)


def digests_of(manifest: Manifest) -> frozenset[bytes]:
    return frozenset([chunk.digest for chunk in manifest.chunks])


def read_checkpoints(
    store: Store, manifest: Manifest, lines: Iterable[AgentLine], digests: frozenset[bytes]
) -> Iterator[tuple[str, bytes]]:
    """Yield agents and their encoded checkpoints, whose chunks are all among `digests`."""
    epoch = manifest.metadata.epoch
    for blob, plain in read_blobs(store, [PlacedBlob(manifest.packs[x.pack], x.entry()) for x in lines], epoch):
        try:
            checkpoint = decode_checkpoint(plain)
        except DamagedDataError as error:
            raise damaged(blob.pack.path, str(error), epoch=epoch, blob=blob.entry.name) from error
        if checkpoint.agent != blob.entry.name:
            reason = f"it is the checkpoint of {checkpoint.agent!r}"
            raise damaged(blob.pack.path, reason, epoch=epoch, blob=blob.entry.name)
        if not digests.issuperset(checkpoint.digests()):
            reason = f"it does not say where a chunk of agent {checkpoint.agent!r} lies"
            raise damaged(f"the manifest of epoch {epoch}", reason, epoch=epoch)
        yield checkpoint.agent, bytes(plain)


def _read_run(
    disk: Disk, run: list[PlacedBlob], epoch: int, keyring: Keyring = PLAIN_KEYRING
) -> Iterator[tuple[PlacedBlob, Buffer]]:
    path, start, end = run[0].pack.path, run[0].entry.offset, end_of(run[-1].entry)
    with files.reading(disk, path, epoch=epoch, blob=run[0].entry.name):
        data = memoryview(disk.read(path, start, end - start))
    for blob in run:
        stored = data[blob.entry.offset - start : end_of(blob.entry) - start]
        yield blob, decode_blob(stored, blob.entry, path=path, epoch=epoch, keyring=keyring)


def _runs(blobs: Iterable[PlacedBlob]) -> Iterator[list[PlacedBlob]]:
    """Yield blobs in lists that one read can serve: adjacent in one pack."""
    run: list[PlacedBlob] = []
    for blob in sorted(blobs, key=place_of):
        if run:
            is_next = blob.pack.path == run[-1].pack.path and blob.entry.offset == end_of(run[-1].entry)
            if not is_next or end_of(blob.entry) - run[0].entry.offset > RUN_BYTES_MAX:
                yield run
                run = []
        run.append(blob)
    if run:
        yield run


def place_of(blob: PlacedBlob) -> tuple[str, int]:
    return blob.pack.path, blob.entry.offset


def key_of(entry: BlobEntry) -> Key:
    return entry.name, entry.digest
