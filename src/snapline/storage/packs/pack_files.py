"""Reading packs: reported indexes and blobs, both checked against their digests (G11)."""

from snapline.errors import DamagedDataError
from snapline.storage.packs.blob import PLAIN_KEYRING, BlobEntry, Keyring, decode_blob, header_bytes
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint
from snapline.storage.packs.pack import PackIndex, PackReference, read_index
from snapline.storage.store import files, layout
from snapline.storage.store.damage import damaged, owner_of
from snapline.storage.store.disk import Disk
from snapline.storage.store.guard import Guard
from snapline.storage.store.record import Buffer


def difference_in_size(found: int, expected: int) -> str:
    """Return a description of a wrong length; empty if it is right."""
    if found < expected:
        return f"truncated: {found} of {expected} bytes"
    return f"{found - expected} surplus bytes after the end" if found > expected else ""


def keyring_of(guard: Guard | None, *, store_id: str, path: str, key_id: str) -> Keyring:
    """Return the keyring that decrypts the blobs of the pack at `path`, written under `key_id`.

    Raises:
        StoreError: there is no such key.
    """
    name = layout.parse_any_pack_path(path)
    if guard is None or name is None:
        return PLAIN_KEYRING
    cipher = guard.open_pack(key_id, name.pack_id) if key_id else None
    return Keyring(store_id, name.pack_id, guard, cipher)


def read_reported_index(disk: Disk, reference: PackReference, *, store_id: str, epoch: int | None) -> PackIndex:
    """Return the index of the pack that a host reported.

    Raises:
        DamagedDataError: the file is missing, or differs from the reported one.
    """
    with files.reading(disk, reference.path, epoch=epoch):
        size_bytes = disk.size(reference.path)
        reason = difference_in_size(size_bytes, reference.size_bytes)
        if reason:
            raise damaged(reference.path, reason, epoch=epoch)
        index, actual = read_index(disk, reference.path, size_bytes=size_bytes, store_id=store_id)
    if actual.index_digest != reference.index_digest:
        raise damaged(reference.path, "its index is not the one that was reported", epoch=epoch)
    return index


def key_of_pack(disk: Disk, path: str, store_id: str) -> str:
    """Return the id of the key that encrypts the pack's blobs; raises DamagedDataError, StoreError."""
    with files.reading(disk, path):
        return read_index(disk, path, size_bytes=disk.size(path), store_id=store_id)[0].key


def read_blob(
    disk: Disk, path: str, entry: BlobEntry, *, epoch: int | None, keyring: Keyring = PLAIN_KEYRING
) -> Buffer:
    """Return the plain bytes of the blob at `entry`, which comes from an index or manifest whose digest has been checked.

    Raises:
        DamagedDataError: names file, epoch and agent.
    """
    try:
        data = disk.read(path, entry.offset, header_bytes(entry.name) + entry.stored_bytes)
    except OSError as error:
        raise files.unreadable(error, disk, path, epoch=epoch, blob=entry.name) from error
    return decode_blob(data, entry, path=path, epoch=epoch, keyring=keyring)


def read_checkpoint(
    disk: Disk, path: str, entry: BlobEntry, *, epoch: int | None, keyring: Keyring = PLAIN_KEYRING
) -> AgentCheckpoint:
    """Return the checkpoint at `entry`; see `read_blob`.

    The checkpoint contains its agent's id, and in a checkpoint pack also its number; both are compared with the blob's name.
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
