"""Moving old snapshots to a second, cheaper store: copy, verify the copy, and only then delete the original.

The problem. Disks near the fleet are small, yet last month's snapshots are still needed.

The model. Snapshots are copied one after the other, oldest first (`transfer.copy_epoch`), so each finds its unchanged chunks in the
previous copy. Then every byte of the copy is read back from the second store and checked. A pack that several
copies share is read once per run. Only then is a snapshot removed, and never

1. if somebody holds it: the removal uses the guarded deletion of `pins.py`;
2. if it is the newest one: a restarted fleet restores it;
3. if both stores are the same: then there is no copy. Stores with different ids are different. If the ids are equal (a store copied
   file by file, or one store under two names), a probe written to the first store and read from the second decides.

A move may be interrupted and repeated. The caller's duties are those of `transfer.py`. As any deletion, removal requires that the store's
fleet does not run, unless the fleet's coordinator does it.

Supports G7: nothing is deleted without a complete copy.
"""

from collections.abc import Iterable, Iterator

import msgspec

from snapline.errors import DamagedDataError, UsageError
from snapline.storage.store.snapshot_reading import check_epoch
from snapline.storage.store.store import Holds, Store
from snapline.storage.transfer.transfer import Copied, copy_epoch

NEWEST = "it is the newest one"
HELD = "pinned or tagged"


class MoveResult(msgspec.Struct, frozen=True):
    """Result for one snapshot.

    Attributes:
        copied: result of the copy.
        is_removed: the snapshot is now only in the second store.
        kept_because: why the snapshot was not removed on request; otherwise empty.
    """

    copied: Copied
    is_removed: bool = False
    kept_because: str = ""


def all_but_newest(store: Store, count: int) -> list[int]:
    """Return all epochs but the newest `count`, ascending."""
    if count < 1:
        raise UsageError(f"{count} newest snapshots would be kept: keep at least 1")
    return store.epochs()[:-count]


def move_epochs(
    source: Store, target: Store, epochs: Iterable[int], *, holds: Holds | None = None, is_fleet_store: bool = False
) -> Iterator[MoveResult]:
    """Copy snapshots to `target` and verify the copies; yield each when it is done.

    Args:
        source, target, is_home: see `transfer.copy_epoch`.
        epochs: epochs of `source`.
        holds: pins and tags of `source`; copied epochs are removed there. None removes nothing.

    Raises:
        DamagedDataError: bytes of a snapshot or its copy differ from those written. The snapshot was not removed.
        others: see `transfer.copy_epoch`.
    """
    wanted = sorted(set(epochs))
    if holds is not None:
        check_distinct_stores(source, target)
    checked: set[str] = set()
    for epoch in wanted:
        copied = copy_epoch(source, target, epoch, is_fleet_store=is_fleet_store)
        check_epoch(target, epoch, checked)
        yield MoveResult(copied) if holds is None else _remove(source, target, copied, holds)


def _remove(source: Store, target: Store, copied: Copied, holds: Holds) -> MoveResult:
    if source.epochs()[-1:] == [copied.epoch]:
        return MoveResult(copied, kept_because=NEWEST)
    if target.read_ref(copied.epoch) != copied.root:
        raise DamagedDataError(f"epoch {copied.epoch} of {target.location} is no longer a copy of it: check that store")
    removed = holds.delete([copied.epoch])[copied.epoch]
    return MoveResult(copied, kept_because=HELD) if removed is None else MoveResult(copied, is_removed=True)


def check_distinct_stores(source: Store, target: Store) -> None:
    """Raise UsageError if both are one store: removing a snapshot after the copy would lose it."""
    if _are_one(source, target):
        raise UsageError(f"{source.location} and {target.location} are one store: nothing would be left")


def _are_one(source: Store, target: Store) -> bool:
    """Return whether a file written to `source` is visible in `target`."""
    if source.store_id != target.store_id:
        return False
    path, token = source.write_probe()
    try:
        return target.read_probe(path) == token
    except DamagedDataError:  # The probe is not in the target.
        return False
    finally:
        source.remove_probe(path)
