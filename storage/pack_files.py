"""Reading packs back: the index as it was reported, and checkpoints under their digests (G11)."""

from snapline.errors import DamagedDataError
from snapline.storage import files
from snapline.storage.blob import BlobEntry, decode_blob, header_bytes
from snapline.storage.checkpoint import AgentCheckpoint, decode_checkpoint
from snapline.storage.damage import damaged, owner_of
from snapline.storage.disk import Disk
from snapline.storage.pack import PackIndex, PackReference, read_index


def difference_in_size(found: int, expected: int) -> str:
    """Return what a wrong length means; empty if it is right."""
    if found < expected:
        return f"truncated: {found} of {expected} bytes"
    return f"{found - expected} surplus bytes after the end" if found > expected else ""


def read_reported_index(disk: Disk, reference: PackReference, *, store_id: str, epoch: int | None) -> PackIndex:
    """Return the index of the pack that a host reported.

    Raises:
        DamagedDataError: the file is missing, or not the one reported.
    """
    with files.reading(disk, reference.path, epoch=epoch):
        size_bytes = disk.size(reference.path)
        reason = difference_in_size(size_bytes, reference.size_bytes)
        if reason:
            raise damaged(reference.path, reason, epoch=epoch)
        index, found = read_index(disk, reference.path, size_bytes=size_bytes, store_id=store_id)
    if found != reference:
        raise damaged(reference.path, "its index is not the one that was reported", epoch=epoch)
    return index


def read_checkpoint(disk: Disk, path: str, entry: BlobEntry, *, epoch: int | None) -> AgentCheckpoint:
    """Return the checkpoint at `entry`, which comes from an index or a manifest whose digest has been checked.

    It says itself whose it is, in a checkpoint pack also which; both are compared with its name.

    Raises:
        DamagedDataError: names file, epoch and agent.
    """
    with files.reading(disk, path, epoch=epoch, blob=entry.name):
        data = disk.read(path, entry.offset, header_bytes(entry.name) + entry.stored_bytes)
    plain = decode_blob(data, entry, path=path, epoch=epoch)
    try:
        checkpoint = decode_checkpoint(plain)
    except DamagedDataError as error:
        raise damaged(path, str(error), epoch=epoch, blob=entry.name) from error
    agent, number = owner_of(path, entry.name)
    if checkpoint.agent != agent:
        raise damaged(path, f"it is the checkpoint of {checkpoint.agent!r}", epoch=epoch, blob=entry.name)
    if number not in (None, checkpoint.number):
        raise damaged(path, f"it is checkpoint {checkpoint.number}", epoch=epoch, blob=entry.name)
    return checkpoint
