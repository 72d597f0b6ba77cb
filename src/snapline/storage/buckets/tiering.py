"""Moving old snapshots to a second store, where room is cheaper: copy, verify the copy, and only then delete here.

The problem. Disks near the fleet are small, yet last month's snapshots are still needed.

The model. Snapshots are copied one after the other, the oldest first (`transfer.copy_epoch`): so each finds its unchanged chunks in the
copy of the one before. Then every byte of the copy is read back from the second store and compared; a pack that several
copies share is read once in a run. A snapshot is removed only after that, and never

1. if somebody holds it: the removal goes through the guarded deletion of `pins.py`;
2. if it is the newest one: a fleet that is started again goes back to it;
3. if both stores are one: then there is no copy. Stores with different ids are two. If the ids are equal (a store that was copied
   file by file, or one under two names), a probe written here and looked for there decides.

All of it may be interrupted and run again. The caller's duties are those of `transfer.py`; and removing, as any deletion, is for a
store whose fleet does not run, unless the fleet's coordinator does it.

Supports G7: nothing is deleted that is not whole elsewhere.
"""

from collections.abc import Iterable, Iterator

import msgspec

from snapline.errors import DamagedDataError, UsageError
from snapline.storage.retention.holds import Holds
from snapline.storage.store.snapshot_reading import check_epoch
from snapline.storage.store.store import Store
from snapline.storage.transfer.transfer import Copied, copy_epoch

NEWEST = "it is the newest one"
HELD = "pinned or tagged"


class Moved(msgspec.Struct, frozen=True):
    """Result for one snapshot.

    Attributes:
        copied: see there.
        is_removed: it is in the second store only.
        kept_because: why it was not removed, though that was requested; otherwise empty.
    """

    copied: Copied
    is_removed: bool = False
    kept_because: str = ""


def older_than(store: Store, count: int) -> list[int]:
    """Return all epochs but the newest `count`, ascending."""
    if count < 1:
        raise UsageError(f"{count} newest snapshots are to stay: at least 1 must")
    return store.epochs()[:-count]


def move_epochs(
    source: Store, target: Store, epochs: Iterable[int], *, holds: Holds | None = None, is_home: bool = False
) -> Iterator[Moved]:
    """Copy snapshots to `target` and verify the copies; yield each when it is done.

    Args:
        source, target, is_home: see `transfer.copy_epoch`.
        epochs: of `source`.
        holds: of `source`: remove there what has been copied; None: nothing is removed.

    Raises:
        DamagedDataError: a snapshot, or its copy, is not what was written. It was not removed.
        others: see `transfer.copy_epoch`.
    """
    wanted = sorted(set(epochs))
    if holds is not None:
        check_two(source, target)
    checked: set[str] = set()
    for epoch in wanted:
        copied = copy_epoch(source, target, epoch, is_home=is_home)
        check_epoch(target, epoch, checked)
        yield Moved(copied) if holds is None else _remove(source, target, copied, holds)


def _remove(source: Store, target: Store, copied: Copied, holds: Holds) -> Moved:
    if source.epochs()[-1:] == [copied.epoch]:
        return Moved(copied, kept_because=NEWEST)
    if target.read_ref(copied.epoch) != copied.root:
        raise DamagedDataError(f"epoch {copied.epoch} of {target.location} is no copy any more: look at that store")
    removed = holds.delete([copied.epoch])[copied.epoch]
    return Moved(copied, kept_because=HELD) if removed is None else Moved(copied, is_removed=True)


def check_two(source: Store, target: Store) -> None:
    """Raise UsageError if both are one store: what was removed after it was copied there would be gone."""
    if _are_one(source, target):
        raise UsageError(f"{source.location} and {target.location} are one store: nothing would be left")


def _are_one(source: Store, target: Store) -> bool:
    """Return whether what is written here is seen there."""
    if source.store_id != target.store_id:
        return False
    path, token = source.write_probe()
    try:
        return target.read_probe(path) == token
    except DamagedDataError:  # It is not there.
        return False
    finally:
        source.remove_probe(path)
