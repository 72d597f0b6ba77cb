"""Generations of a manifest: which of them are valid, and when a replaced one is deleted.

A generation `<root>.<g>` is replaced by a higher one of the same root with other places for the blobs
(`compaction.py` has the theory). Deletion spares all packs that any manifest names, so a generation keeps its packs as long as it
exists. So it is removed only after a grace period, and only if the newest one is whole.

Carries part of G4: each published root keeps a generation that is whole.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from snapline.errors import DamagedDataError, StoreError
from snapline.failpoints import failpoint
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import Disk
from snapline.storage.packs.blob import BlobEntry
from snapline.storage.packs.checkpoint_packs import read_reported_index
from snapline.storage.packs.pack import PackReference
from snapline.storage.store import files
from snapline.storage.store.manifest import Manifest, encode_manifest, list_generations, read_manifest, read_ref

WRITER = "compaction"
"""Writer id of the packs that compaction writes. No host start has this id: theirs end in a number."""

GRACE_S = 3600.0
"""Seconds that a replaced generation stays. A commit or restore takes minutes at most; a deposed leader notices within seconds."""


class Notes(msgspec.Struct):
    """State that one process keeps between calls. Losing it costs only time.

    Attributes:
        replaced: path of a replaced generation → time at which that was first seen.
        unnamed: path of a compaction pack that no manifest names → time at which that was first seen.
        whole: newest generations that have been verified as whole.
        aside: packs that could not be read; compaction skips them.
        packs_of: path of a manifest → the packs that it names.
        quiet: refs and manifests as they were when there was nothing to do.
    """

    replaced: dict[str, float] = {}
    unnamed: dict[str, float] = {}
    whole: set[str] = set()
    unreadable_packs: set[str] = set()
    packs_of: dict[str, frozenset[str]] = {}
    idle_listing: tuple[str, ...] = ()


def read_newest(disk: Disk, root: str, *, epoch: int | None) -> Manifest:
    """Return the newest generation, for writing a new manifest, which must name packs that stay; errors as `read_manifest`."""
    generation = max(list_generations(disk).get(root, [0]))
    return read_manifest(disk, root, epoch=epoch, generation=generation)


def other_generations(disk: Disk, manifest: Manifest) -> Iterator[Manifest]:
    """Yield the generations with other places for the blobs of `manifest`, newest first.

    For a reader that misses a pack: its generation was replaced an hour ago, or never became whole.
    """
    root, _ = encode_manifest(manifest)
    numbers: list[int] = []
    with contextlib.suppress(OSError):  # The reader's own error is more useful.
        numbers = sorted(list_generations(disk).get(root, []), reverse=True)
    for generation in numbers:
        with contextlib.suppress(StoreError):
            other = read_manifest(disk, root, generation=generation)
            if (other.packs, other.agents, other.chunks) != (manifest.packs, manifest.agents, manifest.chunks):
                yield other


def published_roots(disk: Disk, store_id: str) -> dict[str, int]:
    """Return root → epoch of all readable refs."""
    epochs = {}
    for entry in disk.list_directory(layout.EPOCH_REFS):
        epoch = layout.parse_ref_path(f"{layout.EPOCH_REFS}/{entry.name}")
        if epoch is not None and not entry.is_directory:
            with contextlib.suppress(StoreError):
                epochs[read_ref(disk, epoch, store_id)] = epoch
    return epochs


def entries_of(manifest: Manifest) -> Iterator[tuple[PackReference, BlobEntry]]:
    for line in manifest.agents:
        yield manifest.packs[line.pack], line.entry()
    for chunk in manifest.chunks:
        yield manifest.packs[chunk.pack], chunk.entry()


class Retirement:
    """Removes replaced generations `grace_s` after this process first saw the replacement."""

    def __init__(self, disk: Disk, store_id: str, notes: Notes, *, now_s: float, grace_s: float) -> None:
        self._disk = disk
        self._store_id = store_id
        self._notes = notes
        self._now_s = now_s
        self._grace_s = grace_s
        self._indexes: dict[str, dict[str | bytes, BlobEntry] | None] = {}

    def run(self) -> list[str]:
        notes, removed = self._notes, list[str]()
        generations = list_generations(self._disk)
        replaced = []
        for root, epoch in published_roots(self._disk, self._store_id).items():
            *older, newest = sorted(generations.get(root, [0]))
            if older:
                replaced += [layout.manifest_path(root, number) for number in older]
                removed += self._retire(root, epoch, older, newest)
        notes.whole &= {layout.manifest_path(root, max(numbers)) for root, numbers in generations.items()}
        notes.replaced = {path: notes.replaced.get(path, self._now_s) for path in replaced if path not in removed}
        removed += self._remove_unnamed(generations)
        return removed

    def _retire(self, root: str, epoch: int, older: list[int], newest: int) -> list[str]:
        path = layout.manifest_path(root, newest)
        paths = [layout.manifest_path(root, number) for number in older]
        due = [candidate for candidate in paths if self._is_due(self._notes.replaced, candidate)]
        if path in self._notes.whole and not due:
            return []
        if self._is_whole(root, epoch, newest):
            self._notes.whole.add(path)
            return self._remove(due)
        self._notes.whole.discard(path)
        # The newest never became whole, or was damaged since. An older whole one becomes valid again: readers find it at once.
        return self._remove([path] if any(self._is_whole(root, epoch, number) for number in older) else [])

    def _is_due(self, since: Mapping[str, float], path: str) -> bool:
        return self._now_s - since.get(path, self._now_s) >= self._grace_s

    def _is_whole(self, root: str, epoch: int, generation: int) -> bool:
        """Return whether every pack exists and its index agrees with the manifest."""
        try:
            manifest = read_manifest(self._disk, root, epoch=epoch, generation=generation)
        except DamagedDataError:
            return False
        return all(self._is_in_pack(pack, entry) for pack, entry in entries_of(manifest))

    def _is_in_pack(self, pack: PackReference, entry: BlobEntry) -> bool:
        if pack.path not in self._indexes:
            self._indexes[pack.path] = self._read_entries(pack)
        entries = self._indexes[pack.path]
        return entries is not None and entries.get(entry.name or entry.digest) == entry

    def _read_entries(self, pack: PackReference) -> dict[str | bytes, BlobEntry] | None:
        try:
            index = read_reported_index(self._disk, pack, store_id=self._store_id, epoch=None)
        except DamagedDataError:
            return None
        return {entry.name or entry.digest: entry for entry in index.entries}

    def _remove_unnamed(self, generations: Mapping[str, Sequence[int]]) -> list[str]:
        """Remove packs of interrupted compactions: no manifest has named them for the grace period."""
        directory = f"{layout.PACKS}/{WRITER}"
        with contextlib.suppress(FileNotFoundError):
            paths = [f"{directory}/{entry.name}" for entry in self._disk.list_directory(directory)]
            paths = [path for path in paths if layout.parse_pack_path(path) is not None]
            named = self._named(generations) if paths else set[str]()
            if named is not None:
                unnamed = [path for path in paths if path not in named]
                due = [path for path in unnamed if self._is_due(self._notes.unnamed, path)]
                self._notes.unnamed = {path: self._notes.unnamed.get(path, self._now_s) for path in unnamed}
                return files.unlink(self._disk, due)
        return []

    def _named(self, generations: Mapping[str, Sequence[int]]) -> set[str] | None:
        """Return all paths that any manifest names; None if a manifest cannot be read."""
        known = self._notes.packs_of
        packs_by_manifest: dict[str, frozenset[str]] = {}
        for root, numbers in generations.items():
            for number in numbers:
                path = layout.manifest_path(root, number)
                try:
                    packs_by_manifest[path] = known[path] if path in known else self._packs_of(root, number)
                except DamagedDataError:
                    return None
        self._notes.packs_of = packs_by_manifest
        return {pack for packs in packs_by_manifest.values() for pack in packs}

    def _packs_of(self, root: str, generation: int) -> frozenset[str]:
        manifest = read_manifest(self._disk, root, generation=generation)
        return frozenset([pack.path for pack in manifest.packs])

    def _remove(self, paths: Sequence[str]) -> list[str]:
        """Remove generations. The remaining ones must be durable first: their writer may have died before it synced the directory."""
        if not paths:
            return []
        self._disk.sync_directory(layout.MANIFESTS)
        removed = files.unlink(self._disk, paths)
        self._disk.sync_directory(layout.MANIFESTS)
        failpoint("store.compact.retired")
        return removed
