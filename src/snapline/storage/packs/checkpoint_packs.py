"""Read two kinds of packs: packs of independently taken checkpoints, and packs that hosts report for a manifest.

A recovery line that is not an epoch yet consists of checkpoints that agents took independently.

The checkpoint packs `checkpoints/<writer>/<plan>.<random>` have the same format as an epoch's packs. No other file of the store refers to a
checkpoint pack. Hosts report checkpoint packs to the coordinator, which knows which packs a recovery may need. After a restart, the
coordinator finds the checkpoint packs by listing their directory. A checkpoint pack may contain several checkpoints of an agent, in the
order in which the agent took them. Since nothing refers to a checkpoint pack, a deleted pack that reappears after a crash is harmless, so
deletions are not synced.

Empty directories are kept, because a host may be about to link a file into one of them.

The indexes and blobs of reported packs are checked against their digests (G11).

**Gathering.** `gather` collects the contents of a manifest from the reported packs: all packs that an epoch needs, and the location of each
chunk. A reported pack's index lists the other data that its checkpoints need, which are packs written with it and chunks of a base epoch.
`gather` resolves these references into a complete list of packs and chunks, so that the manifest refers to no other manifest.

A host may reuse only chunks of its base epoch, and the base epoch must still exist. Garbage collection keeps every pack that any manifest
names (`epoch_retention.py`). So garbage collection cannot interfere with reuse, provided that the caller deletes no epoch between gathering
and writing the manifest.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import Buffer, Guard, damaged, owner_of
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint
from snapline.storage.packs.manifest import ChunkPlace, Manifest, chunk_place
from snapline.storage.packs.pack import (
    KIND_CHUNK,
    PLAIN_KEYRING,
    BlobEntry,
    Keyring,
    PackBlob,
    PackIndex,
    PackReference,
    decode_blob,
    header_bytes,
    read_index,
)


def difference_in_size(found: int, expected: int) -> str:
    """Return an error message if the length is wrong, otherwise ""."""
    if found < expected:
        return f"truncated: {found} of {expected} bytes"
    return f"{found - expected} surplus bytes after the end" if found > expected else ""


def keyring_of(guard: Guard | None, *, store_id: str, path: str, key_id: str) -> Keyring:
    """Return the keyring for the blobs of the pack at `path`, which were encrypted with the key `key_id`.

    Raises:
        StoreError: If the store has no key with this id.
    """
    name = layout.parse_any_pack_path(path)
    if guard is None or name is None:
        return PLAIN_KEYRING
    cipher = guard.open_pack(key_id, name.pack_id) if key_id else None
    return Keyring(store_id, name.pack_id, guard, cipher)


def read_reported_index(disk: Disk, reference: PackReference, *, store_id: str, epoch: int | None) -> PackIndex:
    """Read and check the index of a pack that a host reported.

    Raises:
        DamagedDataError: If the file is missing or does not match the report.
    """
    with store_files.reading(disk, reference.path, epoch=epoch):
        size_bytes = disk.size(reference.path)
        reason = difference_in_size(size_bytes, reference.size_bytes)
        if reason:
            raise damaged(reference.path, reason, epoch=epoch)
        index, actual = read_index(disk, reference.path, size_bytes=size_bytes, store_id=store_id)
    if actual.index_digest != reference.index_digest:
        raise damaged(reference.path, "its index is not the one that was reported", epoch=epoch)
    return index


def key_of_pack(disk: Disk, path: str, store_id: str) -> str:
    """Return the id of the key that encrypts the pack's blobs, or "" if they are not encrypted. Raise DamagedDataError or StoreError if the
    pack is unreadable."""
    with store_files.reading(disk, path):
        return read_index(disk, path, size_bytes=disk.size(path), store_id=store_id)[0].key


def read_blob(
    disk: Disk, path: str, entry: BlobEntry, *, epoch: int | None, keyring: Keyring = PLAIN_KEYRING
) -> Buffer:
    """Read the plaintext of a blob. `entry` must come from an index or manifest whose digest has been checked.

    Raises:
        DamagedDataError: If the blob is damaged. The message names the file, the epoch and the agent.
    """
    try:
        data = disk.read(path, entry.offset, header_bytes(entry.name) + entry.stored_bytes)
    except OSError as error:
        raise store_files.unreadable(error, disk, path, epoch=epoch, blob=entry.name) from error
    return decode_blob(data, entry, path=path, epoch=epoch, keyring=keyring)


def read_checkpoint(
    disk: Disk, path: str, entry: BlobEntry, *, epoch: int | None, keyring: Keyring = PLAIN_KEYRING
) -> AgentCheckpoint:
    """Read the checkpoint in a blob. See `read_blob`.

    The agent's id in the checkpoint must match the blob's name. In a checkpoint pack, the checkpoint's number must match too.
    """
    plain = read_blob(disk, path, entry, epoch=epoch, keyring=keyring)
    try:
        checkpoint = decode_checkpoint(plain)
    except DamagedDataError as error:
        raise damaged(path, str(error), epoch=epoch, blob=entry.name) from error
    agent, number = owner_of(path, entry.name)
    reason = next(filter(None, [part.contradiction() for part in checkpoint.chunked]), "")
    if checkpoint.agent != agent:
        reason = f"it is the checkpoint of {checkpoint.agent!r}"
    elif number not in (None, checkpoint.number):
        reason = f"it is checkpoint {checkpoint.number}"
    if reason:
        raise damaged(path, reason, epoch=epoch, blob=entry.name)
    return checkpoint


def find(disk: Disk, plan: int | None = None) -> list[str]:
    """Return the paths of all checkpoint packs, or of one plan's checkpoint packs, in sorted order."""
    return sorted([path for path, name in _packs(disk) if plan is None or name.number == plan])


def make_reference(disk: Disk, path: str, *, store_id: str) -> PackReference:
    """Return the reference to a pack, as its writer reported it. See `Store.reference_checkpoint_pack`."""
    return _read_index(disk, path, store_id)[1]


def read(
    disk: Disk,
    pack: str | PackReference,
    wanted: Mapping[str, Collection[int]] | None,
    *,
    store_id: str,
    guard: Guard | None = None,
) -> list[AgentCheckpoint]:
    """Return the pack's checkpoints, in the order in which the pack contains them. See `Store.read_checkpoint_pack`."""
    if isinstance(pack, str):
        index, reference = _read_index(disk, pack, store_id)
    else:
        _check_path(pack.path)
        index, reference = read_reported_index(disk, pack, store_id=store_id, epoch=None), pack
    entries = index.checkpoints() if wanted is None else _choose(index.checkpoints(), wanted, reference.path)
    keyring = keyring_of(guard, store_id=store_id, path=reference.path, key_id=index.key)
    checkpoints = []
    for entry in entries:
        checkpoint = read_checkpoint(disk, reference.path, entry, epoch=None, keyring=keyring)
        if checkpoint.epoch:
            raise damaged(reference.path, f"it is of epoch {checkpoint.epoch}", blob=entry.name)
        checkpoints.append(checkpoint)
    return checkpoints


def read_chunks(
    disk: Disk, path: str, digests: Collection[bytes], *, store_id: str, guard: Guard | None
) -> Iterator[PackBlob]:
    """Yield chunks of the pack, keeping only one in memory at a time. See `Store.read_chunks`."""
    index, _ = _read_index(disk, path, store_id)
    entries = {entry.digest: entry for entry in index.chunks()}
    keyring = keyring_of(guard, store_id=store_id, path=path, key_id=index.key)
    for digest in digests:
        entry = entries.get(digest)
        if entry is None:
            raise damaged(path, f"it does not hold chunk {digest.hex()[:12]} of a checkpoint in it")
        data = read_blob(disk, path, entry, epoch=None, keyring=keyring)
        yield PackBlob("", KIND_CHUNK, data, digest)


def _choose(entries: list[BlobEntry], wanted: Mapping[str, Collection[int]], path: str) -> list[BlobEntry]:
    names = {layout.checkpoint_name(agent, number) for agent, numbers in wanted.items() for number in numbers}
    chosen = [entry for entry in entries if entry.name in names]
    missing = names - {entry.name for entry in chosen}
    if missing:
        agent, number = layout.parse_checkpoint_name(min(missing)) or ("", 0)
        raise NotFoundError(f"{path} holds no checkpoint {number} of agent {agent!r}")
    return chosen


def delete(disk: Disk, paths: Collection[str]) -> list[str]:
    """Delete these checkpoint packs, and return the paths of the packs that existed."""
    for path in paths:
        _check_path(path)
    removed = store_files.unlink(disk, paths)
    failpoint("store.checkpoints.deleted")
    return removed


def sweep(disk: Disk, *, plans_below: int, kept: Collection[str]) -> list[str]:
    """Delete the checkpoint packs of earlier plans. See `Store.sweep_checkpoints`."""
    removed = delete(disk, [path for path, name in _packs(disk) if name.number < plans_below and path not in kept])
    with contextlib.suppress(FileNotFoundError):
        for entry in disk.list_directory(layout.TEMPORARY):
            path = f"{layout.TEMPORARY}/{entry.name}"
            folder, number = layout.parse_temporary_path(path) or ("", 0)
            if folder == layout.CHECKPOINTS and number < plans_below:
                removed += store_files.unlink(disk, [path])
    return removed


def _check_path(path: str) -> None:
    if layout.parse_pack_path(path, layout.CHECKPOINTS) is None:
        raise UsageError(
            f"{path!r} is no path of a checkpoint pack: they look like checkpoints/<writer>/<plan>.<random>"
        )


def _read_index(disk: Disk, path: str, store_id: str) -> tuple[PackIndex, PackReference]:
    _check_path(path)
    with store_files.reading(disk, path):
        return read_index(disk, path, size_bytes=disk.size(path), store_id=store_id)


def _packs(disk: Disk) -> list[tuple[str, layout.PackName]]:
    """Return the checkpoint packs. A store without checkpoint packs has no directory for them, and an existing directory vanishes only
    together with the store."""
    packs = []
    with contextlib.suppress(FileNotFoundError):
        for writer in disk.list_directory(layout.CHECKPOINTS):
            if writer.is_directory:
                directory = f"{layout.CHECKPOINTS}/{writer.name}"
                for entry in disk.list_directory(directory):
                    path = f"{directory}/{entry.name}"
                    name = layout.parse_pack_path(path, layout.CHECKPOINTS)
                    if name is not None and not entry.is_directory:
                        packs.append((path, name))
    return packs


class Gathered(msgspec.Struct, frozen=True):
    """Packs, checkpoints and chunks of one epoch.

    Attributes:
        packs: reported packs in their order, followed by all other packs that the epoch needs.
        checkpoints: for each reported pack, a map from agent to the blob of its checkpoint.
        chunks: locations of all chunks that the checkpoints may refer to.
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
    """Read the indexes of all reported packs of `epoch`, and find the packs and chunks that their checkpoints need. `read_base` returns the
    manifest of a base epoch.

    Raises:
        DamagedDataError: If a pack is missing or does not match the report.
        StoreError: If a reused chunk is not in the base epoch.
    """
    return _Gathering(disk, store_id, epoch, read_base).run(references)


class _Gathering:
    """One run of `gather`. `_places` maps each chunk's digest to its location, and `_numbers` maps each pack's path to its index in
    `_packs`."""

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
