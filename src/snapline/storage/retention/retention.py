"""Deleting epochs and unreferenced files.

Files are deleted in the order ref, manifest, packs, and the directory is synced after each but the last. So after a crash every ref still
has its manifest, and every manifest its packs. Other remains are garbage, which the next sweep finds.

Packs are shared: an epoch's manifest may name packs of earlier epochs. So a pack is deleted only if no remaining manifest names it. This includes
manifests without a ref, whose epoch may be complete and about to be published. The needs of an unreadable manifest are
unknown. Then no pack that is as old as its epoch is deleted, and no pack at all if even the epoch is
unknown. Manifests are written once, so their contents are cached (`Notes`).

The sweep (`delete_unreferenced`) keeps every pack and manifest that a ref needs. It keeps everything of an epoch whose ref or manifest
cannot be read, and of epochs and writers that the caller lists as possibly in use. Only one process deletes, and
only that process publishes: otherwise a ref could appear during the sweep.
"""

import contextlib
from collections.abc import Sequence

from snapline.errors import DamagedDataError, StoreError
from snapline.failpoints import failpoint
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import Disk
from snapline.storage.store import files
from snapline.storage.store.manifest import Manifest, list_generations, read_manifest, read_ref

Notes = dict[str, tuple[int, frozenset[str]]]
"""Path of a manifest → its epoch, and the packs that it names. A manifest never changes, so the owner of a store keeps
these from one deletion to the next. Entries of deleted manifests are dropped."""


def delete_epoch(disk: Disk, store_id: str, epoch: int, notes: Notes) -> list[str]:
    """Delete one published epoch; see `Store.delete_epoch`."""
    manifests, packs = _files_of_epoch(disk, store_id, epoch, notes)
    removed = files.unlink(disk, [layout.ref_path(epoch)])
    if not removed:
        return []
    disk.sync_directory(layout.EPOCH_REFS)
    failpoint("store.delete.ref")
    if manifests:
        removed += files.unlink(disk, manifests)
        disk.sync_directory(layout.MANIFESTS)
        failpoint("store.delete.manifest")
    named = _NamedPacks(disk, store_id, notes)
    removed += files.unlink(disk, [path for path in packs if not named.needs(path)])
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
    removed = files.unlink(disk, sweep.manifests_to_delete())
    if removed:
        disk.sync_directory(layout.MANIFESTS)
    failpoint("store.sweep.manifests")
    sweep.find_named(notes)
    removed += files.unlink(disk, sweep.packs_to_delete())
    removed += files.unlink(disk, sweep.temporary_to_delete())
    sweep.remove_empty_directories()
    return removed


def _files_of_epoch(disk: Disk, store_id: str, epoch: int, notes: Notes) -> tuple[list[str], list[str]]:
    """Return the manifest of an epoch, in all its generations, and the packs that any of them names, each once.

    If ref or manifest is damaged, return the packs with its epoch number.
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
    """Packs that the present manifests name.

    A damaged manifest without a ref can no longer become a snapshot, so it is ignored.

    Attributes:
        kept_up_to: packs of epochs up to this one stay, since its manifest cannot be read; -1 if there is none.
    """

    def __init__(self, disk: Disk, store_id: str, notes: Notes) -> None:
        self._paths: set[str] = set()
        self.kept_up_to = -1
        paths = _list_files(disk, layout.MANIFESTS)
        for gone in notes.keys() - set(paths):
            del notes[gone]
        damaged: list[str] = []
        for path in paths:
            known = notes.get(path)  # first, since a deletion checks every name
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
        """Return whether this pack must stay."""
        name = layout.parse_pack_path(path)
        return path in self._paths or (name is not None and name.number <= self.kept_up_to)


def _note(disk: Disk, path: str, root: str, generation: int, notes: Notes) -> tuple[int, frozenset[str]]:
    """Read and cache epoch and packs of a manifest. StoreError: the store cannot be read now, so nothing may be deleted."""
    return note(notes, path, read_manifest(disk, root, generation=generation))


def note(notes: Notes, path: str, manifest: Manifest) -> tuple[int, frozenset[str]]:
    """Cache epoch and packs of a manifest that has just been read or written; return them."""
    known = notes[path] = manifest.metadata.epoch, frozenset(pack.path for pack in manifest.packs)
    return known


def _roots(disk: Disk, store_id: str) -> dict[str, int]:
    """Return root → epoch of all refs."""
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
        """Return the manifests to delete. Unreadable ones stay, as their epoch is unknown. `verify` reports them."""
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
        """Remove empty directories. Others stay."""
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
