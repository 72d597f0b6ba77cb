"""Retention of epochs: which snapshots to keep, and deletion of epochs and unreferenced files.

**Deletion.** Files are deleted in the order ref, manifest, packs. The directory is synced after each kind but the last. So after a crash
every ref still has its manifest, and every manifest its packs. Other remaining files are garbage, which the next sweep finds.

Packs are shared: an epoch's manifest may name packs of earlier epochs. So a pack is deleted only if no remaining manifest names it.
Manifests without a ref count too, because their epoch may be complete and about to be published. An unreadable manifest may need any pack
of its epoch or an earlier one, so none of those packs is deleted. If even its epoch is unknown, no pack is deleted at all. Manifests are
written once, so their contents are cached (`Notes`).

The sweep (`delete_unreferenced`) keeps every pack and manifest that a ref needs. The sweep also keeps all files of an epoch whose ref or
manifest cannot be read, and of epochs and writers that the caller lists as possibly in use. Only one process deletes, and only that process
publishes: otherwise a ref could appear during the sweep.

**The policy.** Snapshots that no recovery needs are kept too: the last ones, one an hour, one a day, manual ones, and held ones. The
problem: a fleet writes a snapshot every few seconds. Keeping all snapshots fills any disk. Keeping only the newest does not help somebody
who finds out on Tuesday what went wrong on Sunday.

The model: `retained` is a pure function of the existing snapshots, the policy and the time. A snapshot is kept if

1. the snapshot is held (by a pin, a tag or a recovery): the caller passes held snapshots with the reason;
2. the snapshot is one of the last `keep_last`, by epoch number. Damaged snapshots do not count towards this number, but those among the
   last are kept: they are evidence, and a reader that looks for the newest must see them;
3. the snapshot is the newest of one of the last `hourly` hours, or of one of the last `daily` days (UTC). The hours and days end with the
   newest snapshot, not with the clock: a store that nobody uses for a month loses nothing;
4. the snapshot is one of the last `manual` that somebody took by hand;
5. the snapshot is at most `within_s` older than the newest. The time between two consecutive snapshots counts as an hour at most, so a
   clock correction makes no snapshot old;
6. the snapshot's time is unknown, or later than the clock. Then a clock is wrong, and nothing uncertain is deleted. Such a snapshot
   represents no hour and no day, so it displaces no other snapshot.

Snapshots are ordered by number, not by clock. Of two snapshots in one hour, the one with the higher number is newer, even if the clock was
set back.

Invariants (tested as properties):

- the newest snapshot is kept;
- rules 2 to 4 keep at most `keep_last + hourly + daily + manual`, not counting damaged ones;
- while time moves forward, rules 1 to 4 never keep a snapshot that they dropped earlier: a day's newest is also an hour's newest.
  So early and late deletion leave the same snapshots.

This module supports G7: the policy only decides what to *keep*; the coordinator decides what may be deleted.
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
map at later deletions. Entries of deleted manifests are dropped."""


def delete_epoch(disk: Disk, store_id: str, epoch: int, notes: Notes) -> list[str]:
    """Delete one published epoch; see `Store.delete_epoch`."""
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
    """Delete files that no ref needs; see `Store.delete_unreferenced`."""
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
    """Return the manifest of an epoch, in all its generations, and the packs that any generation names, each once.

    If the ref or the manifest is damaged, return the packs with the epoch's number.
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

    A damaged manifest without a ref can no longer become a snapshot, so it is ignored.

    Attributes:
        kept_up_to: packs of epochs up to this one are kept, since the manifest of this epoch cannot be read; -1 if all can be read.
    """

    def __init__(self, disk: Disk, store_id: str, notes: Notes) -> None:
        self._paths: set[str] = set()
        self.kept_up_to = -1
        paths = _list_files(disk, layout.MANIFESTS)
        for gone in notes.keys() - set(paths):
            del notes[gone]
        damaged: list[str] = []
        for path in paths:
            known = notes.get(path)  # The cache comes first, since a deletion checks every name.
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
    """Read a manifest; cache its epoch and packs. Raises StoreError if the store cannot be read now; then nothing may be deleted."""
    return note(notes, path, read_manifest(disk, root, generation=generation))


def note(notes: Notes, path: str, manifest: Manifest) -> tuple[int, frozenset[str]]:
    """Cache epoch and packs of a manifest that was just read or written; return both."""
    known = notes[path] = manifest.metadata.epoch, frozenset(pack.path for pack in manifest.packs)
    return known


def _roots(disk: Disk, store_id: str) -> dict[str, int]:
    """Return root → epoch for all refs."""
    epochs = {}
    for path in _list_files(disk, layout.EPOCH_REFS):
        epoch = layout.parse_ref_path(path)
        if epoch is not None:
            with contextlib.suppress(StoreError):
                epochs[read_ref(disk, epoch, store_id)] = epoch
    return epochs


class _Sweep:
    """One search for garbage. Epochs in `_kept_epochs` have unreadable files, so none of their files is deleted."""

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
        """Return the manifests to delete. Unreadable manifests are kept, as their epoch is unknown. `verify` reports them."""
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
        """Collect the packs that the remaining manifests name."""
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
        """Remove the directories that are empty."""
        for entry in self._disk.list_directory(layout.PACKS):
            if entry.is_directory and entry.name not in self._open_writers:
                with contextlib.suppress(OSError):
                    self._disk.remove_directory(f"{layout.PACKS}/{entry.name}")

    def _is_over(self, epoch: int) -> bool:
        return epoch < self._begun_below and epoch not in self._open_epochs and epoch not in self._kept_epochs


def pack_paths(disk: Disk) -> list[str]:
    """Return the paths of all packs of epochs."""
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
"""Largest number in a policy: `snapshot list` could not usefully show more snapshots."""

LAST, HOURLY, DAILY, MANUAL, WITHIN = "last", "hourly", "daily", "manual", "within"
UNKNOWN_TIME, FUTURE_TIME = "time unknown", "created later than now"
"""Reasons of the policy to keep a snapshot. The caller passes other reasons: `pinned`, `tag NAME`, `in use`."""

_FIELDS = {LAST: "keep_last", HOURLY: "hourly", DAILY: "daily", MANUAL: "manual", WITHIN: "within_s"}

MANUAL_TRIGGER = "hand"
"""Trigger that manifests of manual snapshots contain."""

WITHIN_S_MAX = 10 * 366 * 86_400
"""Largest `within_s`: ten years, in seconds."""

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Policy(msgspec.Struct, frozen=True):
    """Numbers of snapshots to keep beyond those needed for recovery.

    Attributes:
        keep_last: number of newest snapshots to keep; at least 1.
        hourly: number of hours of which the newest snapshot is kept; 0 for none.
        daily: number of days of which the newest snapshot is kept; 0 for none.
        manual: number of newest manual snapshots to keep; 0 for none.
        within_s: age in seconds, relative to the newest snapshot, up to which all are kept; 0 for none.
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
    """Facts about a snapshot that the policy needs.

    Attributes:
        epoch: epoch number.
        created_ns: nanoseconds since 1970; None if unknown. The time is an integer, since rounding could move a time across the edge of
            an hour.
        is_damaged: the snapshot cannot be restored.
        is_manual: somebody took the snapshot by hand.
    """

    epoch: int
    created_ns: int | None
    is_damaged: bool = False
    is_manual: bool = False


def parse_policy(text: str, default: Policy | None = None) -> Policy:
    """Return the policy that a text describes, such as `"last=10,hourly=24,daily=14,manual=100,within=2h"`. Parts that the text omits are
    taken from `default`.

    Raises:
        UsageError: a name is unknown or given twice, or a number is missing or out of range.
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
    """Return the seconds that `"90s"`, `"30m"`, `"2h"` or `"7d"` denotes; a number without a unit counts seconds.

    Raises:
        UsageError: `text` is not a duration.
    """
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    if match is None:
        raise UsageError(f"{text!r} is not a duration: write a whole number and a unit, such as 90s, 30m, 2h or 7d")
    return int(match[1]) * _UNITS_S[match[2]]


def parse_created(created: str) -> int | None:
    """Return a manifest's `created` in nanoseconds since 1970; None if it is not a valid time."""
    try:
        time = datetime.fromisoformat(created)
        return 1000 * (((time if time.tzinfo else time.replace(tzinfo=UTC)) - _1970) // timedelta(microseconds=1))
    except (ValueError, OverflowError):
        return None


def retained(
    snapshots: Iterable[SnapshotTime], policy: Policy, *, now_ns: int, held: Mapping[int, str]
) -> dict[int, str]:
    """Return the epochs to keep, ascending, each with the first reason that applies.

    `held` maps epochs to reasons that precede all others, such as `"pinned"`. Epochs outside `snapshots` are ignored.
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
    """Return the last epoch of each of the last `count` periods of `length_ns`; `times` ascends by epoch."""
    newest = {created_ns // length_ns: epoch for epoch, created_ns in times}
    end = max(newest, default=0)
    return frozenset([epoch for span, epoch in newest.items() if span > end - count])


def _within(times: Sequence[tuple[int, int]], length_ns: int) -> frozenset[int]:
    """Return the epochs that are at most `length_ns` older than the last one; `times` ascends by epoch."""
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
