"""Retention of epochs: the rules for which snapshots to keep, and the deletion of epochs and unreferenced files.

**Deletion.** An epoch's files are deleted in the order ref, manifest, packs. The directory is synced after the ref is deleted, and again
after the manifest is deleted. So after a crash every ref still has its manifest, and every manifest has its packs. All other files are
garbage, which the next garbage collection removes.

Epochs share packs, because the manifest of an epoch may name packs of earlier epochs. So a pack is deleted only if no remaining manifest
names it. A manifest without a ref also keeps its packs, because its epoch may be complete and about to be published. If a manifest with a
ref is damaged, it may need any pack of its epoch or an earlier epoch, so none of those packs is deleted. Manifests are written once, so
their contents are cached (`Notes`).

Garbage collection (`delete_unreferenced`) keeps every pack and manifest that a ref needs. It also keeps all files of epochs with an
unreadable ref or manifest, and of epochs and writers that the caller lists as possibly in use. Only one process may delete epochs, and only
the same process may publish them. If another process could publish an epoch, it might create a ref during garbage collection.

**The policy.** The policy also keeps snapshots that no recovery needs: the newest snapshots, one per hour, one per day, manual snapshots,
and held snapshots. The problem: a fleet writes a snapshot every few seconds. Keeping all snapshots would fill any disk. Keeping only the
newest snapshot does not help a user who finds out on Tuesday what went wrong on Sunday.

The model: `retained` is a pure function of the existing snapshots, the policy and the time. A snapshot is kept if any of these conditions
holds:

1. The snapshot is held by a pin, a tag or a recovery. The caller passes each held snapshot together with the reason.
2. The snapshot is one of the last `keep_last` undamaged snapshots by epoch number, or is damaged and newer than the oldest of these.
   Damaged snapshots are kept as evidence, and so that readers that look for the newest snapshot find them.
3. The snapshot is the newest within one of the last `hourly` hours, or within one of the last `daily` days (UTC). The hours and days are
   counted back from the newest snapshot rather than from the clock. So a store that is unused for a month loses nothing.
4. The snapshot is one of the last `manual` manually taken snapshots.
5. The snapshot is at most `within_s` older than the newest snapshot. The time between two consecutive snapshots is counted as at most one
   hour, so a clock correction cannot make a snapshot look old.
6. The snapshot's creation time is unknown or in the future. In this case a clock was wrong, and a snapshot of uncertain age is not deleted.
   A snapshot of uncertain age never counts as the newest of an hour or day, so it displaces no other snapshot.

Snapshots are ordered by epoch number rather than by clock. Of two snapshots in the same hour, the one with the higher epoch number counts
as newer, even if the clock was set back.

Invariants (tested as properties):

- The newest snapshot is kept.
- Rules 2 to 4 keep at most `keep_last + hourly + daily + manual` undamaged snapshots.
- As long as clocks move forward, rules 1 to 4 never keep a snapshot that they have dropped before, because the newest snapshot of a day is
  also the newest of an hour. So the kept snapshots do not depend on whether deletion runs early or late.

This module supports G7. The policy only decides which snapshots to *keep*. The coordinator decides which snapshots may be deleted.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from snapline.errors import DamagedDataError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import Disk
from snapline.storage.packs.manifest import Manifest, list_generations, read_manifest, read_ref

Notes = dict[str, tuple[int, frozenset[str]]]
"""Map from the path of a manifest to its epoch and the packs that it names. A manifest never changes, so the owner of a store reuses this
map for later deletions. Entries of deleted manifests are dropped."""


def delete_epoch(disk: Disk, store_id: str, epoch: int, notes: Notes) -> list[str]:
    """Delete one published epoch. See `Store.delete_epoch`."""
    manifests, packs = _files_of_epoch(disk, store_id, epoch, notes)
    removed = store_files.unlink(disk, [layout.ref_path(epoch)])
    if not removed:
        return []
    disk.sync_directory(layout.EPOCH_REFS)
    failpoint("store.delete.ref")
    if manifests:
        removed += store_files.unlink(disk, manifests)
        disk.sync_directory(layout.MANIFESTS)
        failpoint("store.delete.manifest")
    named = _NamedPacks(disk, store_id, notes)
    removed += store_files.unlink(disk, [path for path in packs if not named.needs(path)])
    failpoint("store.delete.packs")
    return removed


def delete_unreferenced(
    disk: Disk,
    store_id: str,
    notes: Notes,
    *,
    begun_below: int,
    open_epochs: frozenset[int],
    open_writers: frozenset[str],
) -> list[str]:
    """Delete files that no ref needs. See `Store.delete_unreferenced`."""
    sweep = _Sweep(disk, store_id, begun_below, open_epochs, open_writers)
    sweep.find_needed()
    removed = store_files.unlink(disk, sweep.manifests_to_delete())
    if removed:
        disk.sync_directory(layout.MANIFESTS)
    failpoint("store.sweep.manifests")
    sweep.find_named(notes)
    removed += store_files.unlink(disk, sweep.packs_to_delete())
    removed += store_files.unlink(disk, sweep.temporary_to_delete())
    sweep.remove_empty_directories()
    return removed


def _files_of_epoch(disk: Disk, store_id: str, epoch: int, notes: Notes) -> tuple[list[str], list[str]]:
    """Return the paths of all generations of an epoch's manifest, and of all packs that any generation names, without duplicates.

    If the ref or the manifest is damaged, return the packs named after the epoch.
    """
    manifests: list[str] = []
    try:
        root = read_ref(disk, epoch, store_id)
        manifests = _manifests_with(disk, root)
        packs: dict[str, None] = {}
        for path in manifests or [layout.manifest_path(root)]:
            packs |= dict.fromkeys(_packs_of(disk, path, root, epoch, notes))
    except DamagedDataError:
        return manifests, [path for path, name in _packs(disk) if name.epoch == epoch]
    return manifests, list(packs)


def _manifests_with(disk: Disk, root: str) -> list[str]:
    return [layout.manifest_path(root, number) for number in sorted(list_generations(disk).get(root, []))]


def _packs_of(disk: Disk, path: str, root: str, epoch: int, notes: Notes) -> Sequence[str]:
    known = notes.get(path)
    if known is not None and known[0] == epoch:
        return sorted(known[1])
    _, generation = layout.parse_manifest_path(path) or ("", 0)
    return [pack.path for pack in read_manifest(disk, root, epoch=epoch, generation=generation).packs]


class _NamedPacks:
    """Packs that the existing manifests name.

    A damaged manifest without a ref is ignored, because it can never become a snapshot.

    Attributes:
        kept_up_to: highest epoch with a ref whose manifest is damaged, or -1 if there is none. Packs of that epoch and of all earlier ones
            are kept.
    """

    def __init__(self, disk: Disk, store_id: str, notes: Notes) -> None:
        self._paths: set[str] = set()
        self.kept_up_to = -1
        paths = _list_files(disk, layout.MANIFESTS)
        for gone in notes.keys() - set(paths):
            del notes[gone]
        damaged: list[str] = []
        for path in paths:
            known = notes.get(path)  # Look in the cache first, since each deletion checks all manifests.
            if known is None:
                parsed = layout.parse_manifest_path(path)
                if parsed is None:
                    continue
                try:
                    known = _note(disk, path, *parsed, notes)
                except DamagedDataError:
                    damaged.append(parsed[0])
                    continue
            self._paths |= known[1]
        roots = _roots(disk, store_id) if damaged else {}
        self.kept_up_to = max([roots[root] for root in damaged if root in roots], default=-1)

    def needs(self, path: str) -> bool:
        """Return whether this pack must be kept."""
        name = layout.parse_pack_path(path)
        return path in self._paths or (name is not None and name.number <= self.kept_up_to)


def _note(disk: Disk, path: str, root: str, generation: int, notes: Notes) -> tuple[int, frozenset[str]]:
    """Read a manifest, and cache its epoch and packs. If the store is currently unreadable, StoreError is raised, so that nothing is
    deleted."""
    return note(notes, path, read_manifest(disk, root, generation=generation))


def note(notes: Notes, path: str, manifest: Manifest) -> tuple[int, frozenset[str]]:
    """Cache and return the epoch and packs of a manifest that this process has just read or written."""
    known = notes[path] = manifest.metadata.epoch, frozenset(pack.path for pack in manifest.packs)
    return known


def _roots(disk: Disk, store_id: str) -> dict[str, int]:
    """Return the epoch of each root whose ref is readable."""
    epochs = {}
    for path in _list_files(disk, layout.EPOCH_REFS):
        epoch = layout.parse_ref_path(path)
        if epoch is not None:
            with contextlib.suppress(StoreError):
                epochs[read_ref(disk, epoch, store_id)] = epoch
    return epochs


class _Sweep:
    """One search for garbage. `_kept_epochs` lists epochs with an unreadable ref or manifest. None of their files is deleted."""

    def __init__(
        self, disk: Disk, store_id: str, begun_below: int, open_epochs: frozenset[int], open_writers: frozenset[str]
    ) -> None:
        self._disk = disk
        self._store_id = store_id
        self._begun_below = begun_below
        self._open_epochs = open_epochs
        self._open_writers = open_writers
        self._kept_epochs: set[int] = set()
        self._needed_roots: set[str] = set()
        self._named: _NamedPacks | None = None

    def find_needed(self) -> None:
        for path in _list_files(self._disk, layout.EPOCH_REFS):
            epoch = layout.parse_ref_path(path)
            if epoch is None:
                continue
            try:
                root = read_ref(self._disk, epoch, self._store_id)
                self._needed_roots.add(root)
                read_manifest(self._disk, root, epoch=epoch)
            except StoreError:
                self._kept_epochs.add(epoch)

    def manifests_to_delete(self) -> list[str]:
        unreferenced = []
        for path in _list_files(self._disk, layout.MANIFESTS):
            root, generation = layout.parse_manifest_path(path) or ("", 0)
            if not root or root in self._needed_roots:
                continue
            with contextlib.suppress(StoreError):
                manifest = read_manifest(self._disk, root, generation=generation)
                if self._is_over(manifest.metadata.epoch):
                    unreferenced.append(path)
        return unreferenced

    def find_named(self, notes: Notes) -> None:
        """Find the packs that the remaining manifests name."""
        self._named = _NamedPacks(self._disk, self._store_id, notes)

    def packs_to_delete(self) -> list[str]:
        named = self._named
        return [
            path
            for path, name in _packs(self._disk)
            if named is not None
            and not named.needs(path)
            and name.writer not in self._open_writers
            and self._is_over(name.number)
        ]

    def temporary_to_delete(self) -> list[str]:
        old_files = []
        with contextlib.suppress(FileNotFoundError):
            for path in _list_files(self._disk, layout.TEMPORARY):
                folder, epoch = layout.parse_temporary_path(path) or ("", 0)
                if folder == layout.PACKS and self._is_over(epoch):
                    old_files.append(path)
        return old_files

    def remove_empty_directories(self) -> None:
        """Remove empty pack directories, except those of writers that may be in use."""
        for entry in self._disk.list_directory(layout.PACKS):
            if entry.is_directory and entry.name not in self._open_writers:
                with contextlib.suppress(OSError):
                    self._disk.remove_directory(f"{layout.PACKS}/{entry.name}")

    def _is_over(self, epoch: int) -> bool:
        return epoch < self._begun_below and epoch not in self._open_epochs and epoch not in self._kept_epochs


def pack_paths(disk: Disk) -> list[str]:
    """Return the paths of all packs in the store."""
    return [path for path, _ in _packs(disk)]


def _packs(disk: Disk) -> list[tuple[str, layout.PackName]]:
    paths = []
    for entry in disk.list_directory(layout.PACKS):
        if entry.is_directory:
            for path in _list_files(disk, f"{layout.PACKS}/{entry.name}"):
                name = layout.parse_pack_path(path)
                if name is not None:
                    paths.append((path, name))
    return paths


def _list_files(disk: Disk, directory: str) -> list[str]:
    return [f"{directory}/{entry.name}" for entry in disk.list_directory(directory) if not entry.is_directory]


HOUR_NS, DAY_NS = 3_600_000_000_000, 86_400_000_000_000

_1970 = datetime(1970, 1, 1, tzinfo=UTC)

COUNT_MAX = 1_000_000
"""Largest number in a policy. `snapshot list` could not usefully show more snapshots."""

LAST, HOURLY, DAILY, MANUAL, WITHIN = "last", "hourly", "daily", "manual", "within"
UNKNOWN_TIME, FUTURE_TIME = "time unknown", "created later than now"
"""Reasons for which the policy keeps a snapshot. The caller passes other reasons: `pinned`, `tag NAME`, `in use`."""

_FIELDS = {LAST: "keep_last", HOURLY: "hourly", DAILY: "daily", MANUAL: "manual", WITHIN: "within_s"}

MANUAL_TRIGGER = "hand"
"""Value of a manifest's trigger for a manual snapshot."""

WITHIN_S_MAX = 10 * 366 * 86_400
"""Largest `within_s`, in seconds (ten years)."""

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Policy(msgspec.Struct, frozen=True):
    """Limits on the snapshots to keep in addition to those that a recovery needs.

    Attributes:
        keep_last: number of newest snapshots to keep, at least 1.
        hourly: number of past hours for each of which the newest snapshot is kept, or 0 to disable this rule.
        daily: number of past days for each of which the newest snapshot is kept, or 0 to disable this rule.
        manual: number of newest manual snapshots to keep, or 0 to disable this rule.
        within_s: age in seconds, relative to the newest snapshot, up to which every snapshot is kept. 0 disables this rule.
    """

    keep_last: int = 10
    hourly: int = 24
    daily: int = 14
    manual: int = 100
    within_s: int = 0

    def __post_init__(self) -> None:
        limits = ((LAST, 1, COUNT_MAX), (HOURLY, 0, COUNT_MAX), (DAILY, 0, COUNT_MAX), (MANUAL, 0, COUNT_MAX))
        for name, least, most in (*limits, (WITHIN, 0, WITHIN_S_MAX)):
            count = getattr(self, _FIELDS[name])
            if not least <= count <= most:
                raise UsageError(f"the retention's {name}={count} is not possible: give {least} to {most}")

    def __str__(self) -> str:
        return (
            f"last={self.keep_last},hourly={self.hourly},daily={self.daily},manual={self.manual},"
            f"within={self.within_s}s"
        )


class SnapshotTime(msgspec.Struct, frozen=True):
    """Properties of a snapshot on which the policy depends.

    Attributes:
        epoch: epoch number.
        created_ns: creation time in nanoseconds since 1970, or None if unknown. The time is an integer, because rounding could move the
            snapshot into another hour.
        is_damaged: whether the snapshot cannot be restored.
        is_manual: whether the snapshot was taken manually.
    """

    epoch: int
    created_ns: int | None
    is_damaged: bool = False
    is_manual: bool = False


def parse_policy(text: str, default: Policy | None = None) -> Policy:
    """Parse a policy such as `"last=10,hourly=24,daily=14,manual=100,within=2h"`. Omitted parts are taken from `default`.

    Raises:
        UsageError: If a name is unknown or given twice, or a number is missing or out of range.
    """
    numbers: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, count = (text_part.strip() for text_part in part.partition("="))
        if name not in _FIELDS:
            raise UsageError(
                f"{part!r} is no part of a retention: write last=N,hourly=N,daily=N,manual=N,within=DURATION"
            )
        if _FIELDS[name] in numbers:
            raise UsageError(f"the retention {text!r} gives {name} twice: give it once")
        if name == WITHIN:
            numbers[_FIELDS[name]] = parse_duration_s(count)
            continue
        if not (count.isascii() and count.isdecimal() and len(count) <= len(str(COUNT_MAX))):
            raise UsageError(f"{part!r} needs a number from 0 to {COUNT_MAX}: write {name}=N")
        numbers[_FIELDS[name]] = int(count)
    return msgspec.structs.replace(default or Policy(), **numbers)


def parse_duration_s(text: str) -> int:
    """Parse a duration such as `"90s"`, `"30m"`, `"2h"` or `"7d"`, and return it in seconds. A number without a unit is in seconds.

    Raises:
        UsageError: If `text` is not a duration.
    """
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    if match is None:
        raise UsageError(f"{text!r} is not a duration: write a whole number and a unit, such as 90s, 30m, 2h or 7d")
    return int(match[1]) * _UNITS_S[match[2]]


def parse_created(created: str) -> int | None:
    """Convert a manifest's `created` to nanoseconds since 1970. Return None if `created` is invalid."""
    try:
        time = datetime.fromisoformat(created)
        return 1000 * (((time if time.tzinfo else time.replace(tzinfo=UTC)) - _1970) // timedelta(microseconds=1))
    except (ValueError, OverflowError):
        return None


def retained(
    snapshots: Iterable[SnapshotTime], policy: Policy, *, now_ns: int, held: Mapping[int, str]
) -> dict[int, str]:
    """Return the epochs to keep, in ascending order, with the first reason that applies to each.

    `held` maps held epochs to reasons such as `"pinned"`, which take precedence over all other reasons. Epochs that are not in `snapshots`
    are ignored.
    """
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.epoch)
    undamaged = [snapshot for snapshot in ordered if not snapshot.is_damaged]
    oldest_of_last = undamaged[-policy.keep_last].epoch if len(undamaged) >= policy.keep_last else 0
    judged = [(x.epoch, x.created_ns) for x in undamaged if x.created_ns is not None and x.created_ns <= now_ns]
    hourly = _newest_of_each(judged, HOUR_NS, policy.hourly)
    daily = _newest_of_each(judged, DAY_NS, policy.daily)
    manual = frozenset([x.epoch for x in undamaged if x.is_manual][-policy.manual :] if policy.manual else ())
    within = _within(judged, policy.within_s * 10**9)
    kept: dict[int, str] = {}
    for snapshot in ordered:
        epoch = snapshot.epoch
        if epoch in held:
            kept[epoch] = held[epoch]
        elif epoch >= oldest_of_last:
            kept[epoch] = LAST
        elif epoch in hourly:
            kept[epoch] = HOURLY
        elif epoch in daily:
            kept[epoch] = DAILY
        elif epoch in manual:
            kept[epoch] = MANUAL
        elif epoch in within:
            kept[epoch] = WITHIN
        elif not snapshot.is_damaged and (reason := _untrusted_time_reason(snapshot.created_ns, now_ns)):
            kept[epoch] = reason
    return kept


def _untrusted_time_reason(created_ns: int | None, now_ns: int) -> str:
    if created_ns is None:
        return UNKNOWN_TIME
    return "" if created_ns <= now_ns else FUTURE_TIME


def _newest_of_each(times: Sequence[tuple[int, int]], length_ns: int, count: int) -> frozenset[int]:
    """Return the newest epoch in each of the last `count` periods of length `length_ns`. `times` must be sorted by epoch."""
    newest = {created_ns // length_ns: epoch for epoch, created_ns in times}
    end = max(newest, default=0)
    return frozenset([epoch for span, epoch in newest.items() if span > end - count])


def _within(times: Sequence[tuple[int, int]], length_ns: int) -> frozenset[int]:
    """Return the epochs that are at most `length_ns` older than the newest epoch. `times` must be sorted by epoch."""
    kept: set[int] = set()
    age_ns, after_ns = 0, None
    for epoch, created_ns in reversed(times if length_ns else ()):
        if after_ns is not None:
            age_ns += min(max(after_ns - created_ns, 0), HOUR_NS)
        if age_ns > length_ns:
            break
        kept.add(epoch)
        after_ns = created_ns
    return frozenset(kept)
