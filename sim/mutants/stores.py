"""Seeded bugs of the store."""

from typing import Any

from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.sim.world.disk import NodeDisk
from snapline.sim.world.product_patches import Patch
from snapline.storage.disk import record
from snapline.storage.packs import pack


def nothing_synced() -> list[Patch]:
    """Skip all syncs of the disk."""
    return [(NodeDisk, "sync_data", lambda *_: None), (NodeDisk, "sync_directory", lambda *_: None)]


def newest_epoch_deleted() -> list[Patch]:
    original = StoreKeeper.delete

    def delete(self: StoreKeeper, command: Any) -> None:
        original(self, command)
        newest = self._store.epochs()[-1:]
        for epoch in newest:
            self._store.delete_epoch(epoch)

    return [(StoreKeeper, "delete", delete)]


def needed_pack_deleted() -> list[Patch]:
    original = StoreKeeper.delete_checkpoints

    def delete_checkpoints(self: StoreKeeper, command: Any) -> None:
        original(self, command)
        self._store.delete_checkpoints(self._store.checkpoint_packs()[-1:])

    return [(StoreKeeper, "delete_checkpoints", delete_checkpoints)]


def damage_unnoticed() -> list[Patch]:
    """Make all digests equal."""
    same = bytes(32)

    def digest_of(data: object) -> bytes:
        return same

    patches: list[Patch] = [(record, "digest_of", digest_of)]
    for module in (pack, pack):
        if "digest_of" in vars(module):
            patches.append((module, "digest_of", digest_of))
    return patches
