"""The record of a fork: a fleet made from one snapshot of another fleet (`storage/transfer/forking.py`).

    fork        record FORK {created, epoch, gone, is_live, name, parent, parent_name, root, signature, store}

The record is the first file of the store, and the identity is the last. A record without identity is an unfinished fork. Where
refs are signed, so is the record: otherwise an attacker could allow a fork to make effects.
"""

import msgspec

from snapline.errors import StoreError
from snapline.storage.disk.guard import Guard
from snapline.storage.disk.layout import FORK, is_root
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import canonical, check_store, damaged, seal, unseal
from snapline.storage.store import files

FORK_KIND = b"FORK"

FORK_BYTES_MAX = 64 * 2**20
"""Largest record: a fleet has at most 200,000 agents in its life, with ids of 128 bytes. Checked before reading."""

_PURPOSE = "snapline fork 1"


class ForkRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Record of a fork.

    Attributes:
        name: name of the fork.
        parent: store id, and so cluster id, of the parent fleet; `parent_name`: name of that fleet.
        epoch: epoch of the snapshot, in both fleets; `root`: the snapshot's root in the parent's store.
        is_live: whether the fork may make effects.
        gone: ids of agents that had left before the snapshot, as far as its agents know them. Never reused.
        store: store id of the fork.
        created: UTC time, ISO 8601; for people.
        signature: signature of the record with this field empty; empty if not signed.
    """

    name: str
    parent: str
    parent_name: str
    epoch: int
    root: str
    is_live: bool
    gone: list[str]
    store: str
    created: str
    signature: bytes = b""


def encode_fork(record: ForkRecord, guard: Guard | None) -> bytes:
    """Return the file; signed if the guard has a signing key."""
    if guard is not None and guard.signs:
        record = msgspec.structs.replace(record, signature=guard.sign(_message(record)))
    return seal(FORK_KIND, canonical.encode(record))


def read_fork(disk: Disk, store_id: str | None, guard: Guard | None = None) -> ForkRecord | None:
    """Return the record of the store's fork; None if it is not a fork. `store_id` None skips that comparison.

    Raises:
        DamagedDataError: the record is damaged, or belongs to another store.
        StoreError: the record is not signed as the guard demands, or cannot be read.
    """
    with files.reading(disk, FORK):
        try:
            disk.size(FORK)
        except FileNotFoundError:
            return None
    data = files.read_file(disk, FORK, epoch=None, size_bytes_max=FORK_BYTES_MAX)
    body = unseal(FORK_KIND, data, path=FORK, epoch=None)
    with files.decoding(FORK):
        record = msgspec.msgpack.decode(body, type=ForkRecord)
    check_store(record.store, FORK, store_id)
    if not is_root(record.root) or record.epoch < 1:
        raise damaged(FORK, f"there is no snapshot {record.epoch} with root {record.root!r}")
    _check_signature(record, guard)
    return record


def _check_signature(record: ForkRecord, guard: Guard | None) -> None:
    if guard is not None and guard.verifies and not guard.verify(_message(record), record.signature):
        raise StoreError(f"{FORK} was not signed by the owner of the key: do not use this store")


def _message(record: ForkRecord) -> bytes:
    return canonical.encode((_PURPOSE, msgspec.structs.replace(record, signature=b"")))
