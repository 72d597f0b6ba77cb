"""Compaction moves live blobs out of packs that are mostly dead, and merges small packs.

The problem: a pack is deleted only when no manifest names it. If a single chunk of a pack is reused for weeks, the pack and all its dead
chunks are kept. If the chunks of an epoch were written during many epochs, they are spread over equally many files.

The model: files are written once and never changed. The manifest `<root>.<g>` lists the contents of the epoch with this root, and the
location of each item. Each later generation `g` of a manifest lists the same contents at other locations. A blob is *live* if the newest
manifest generation of a published epoch names it.

Each call of `compact` takes three bounded steps:

1. **retire**: remove each generation that was replaced at least `GRACE_S` ago, if its newest generation is intact.
2. **plan**: choose packs whose live share is below `LIVE_SHARE_MIN`, and the small packs of an epoch that is spread over too many packs.
3. **move**: copy the live blobs of the chosen packs into new packs, without changing their plaintext digests. Encrypted blobs are
   re-encrypted, since their encryption is bound to their location. Finally write the next generation of each manifest that names a moved
   blob, starting with the newest epoch.

`Store.delete_unreferenced` later deletes the packs that no manifest names any more.

Invariants:

- **I1** At every moment, each published root has an intact generation, whose packs all exist and agree with it. Only the step `retire`
  removes generations of kept epochs, and it first reads the indexes of all packs of the newest generation.
- **I2** A pack is kept as long as any manifest generation names it (`epoch_retention.py`). So a pack is also kept during the grace period
  of a replaced generation that names it. A reader of a replaced generation, or a commit that reuses chunks through it, has one hour before
  anything is deleted.
- **I3** A manifest names only packs of its own or earlier epochs. So a new pack gets the number of the oldest epoch that needs one of its
  blobs. Checkpoints of different epochs go into different packs, since a pack contains at most one checkpoint per agent.
- **I4** The root hash does not cover locations. Before a generation is written, its root is recomputed and must be unchanged.

Crashes. New packs are durable before a generation names them, and a generation is durable before an older one is removed. So every ref can
be restored after a crash at any step. A crash may leave behind a pack that no generation names, or an extra generation.

Two processes. Only the leader compacts. But a deposed leader may not know that it was deposed, and may execute any step late.

- The packs of each process have random names, so they never collide with packs of another process.
- A generation is created, never overwritten. If two processes write the same number, one of them stops. A generation that is written late
  with an old number is older than the newest one, and is retired like any other. If the epoch was deleted meanwhile, the process that wrote
  the generation finds no ref and removes the generation.
- A process removes a generation only if a newer one was intact, and after a grace period that the process measured itself. No process
  removes the newest intact generation of a root.
- Another process's garbage collection may read the manifests before a generation names a new pack, and delete the pack afterwards.
  Therefore garbage collection skips packs of the writer `WRITER` (`open_writers`). Compaction itself removes its packs that no manifest has
  named for `GRACE_S`. If a pack is missing nevertheless, the generation that names it is not intact. The next call removes it, and the
  older generation is valid again. Readers of a generation with a missing pack try the other generations (`other_generations`).

Safety assumes that no process pauses for longer than `GRACE_S` between reading and acting.

This module preserves G4 (each published root keeps an intact generation), G7, and G11 (every copied byte is checked).
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from snapline.errors import DamagedDataError, StoreError
from snapline.failpoints import failpoint
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import Guard
from snapline.storage.packs.checkpoint_packs import keyring_of, read_blob, read_reported_index
from snapline.storage.packs.manifest import (
    Manifest,
    agent_line,
    chunk_place,
    encode_manifest,
    list_generations,
    read_manifest,
    read_ref,
)
from snapline.storage.packs.pack import KIND_CHUNK, BlobEntry, PackBlob, PackReference, end_of, read_index

WRITER = "compaction"
"""Writer id of the packs that compaction writes. No host has this writer id, since the writer ids of hosts end in a number."""

GRACE_S = 3600.0
"""Time in seconds for which a replaced generation is kept. A commit or restore takes minutes at most. A deposed leader notices within
seconds that it was deposed."""


class Notes(msgspec.Struct):
    """State that a process keeps between calls of `compact`. Losing it costs only time: removals are delayed, and the next call takes
    longer.

    Attributes:
        replaced: map from the path of each replaced generation to the time at which this process first saw that it was replaced.
        unnamed: map from the path of each compaction pack that no manifest names to the time at which this process first saw that.
        whole: paths of those newest generations that have been verified as intact.
        unreadable_packs: paths of packs that could not be read. Compaction skips them.
        packs_of: map from the path of each manifest to the packs that it names.
        idle_listing: names of all refs and manifests at the last call, if that call had nothing to do.
    """

    replaced: dict[str, float] = {}
    unnamed: dict[str, float] = {}
    whole: set[str] = set()
    unreadable_packs: set[str] = set()
    packs_of: dict[str, frozenset[str]] = {}
    idle_listing: tuple[str, ...] = ()


def read_newest(disk: Disk, root: str, *, epoch: int | None) -> Manifest:
    """Read the newest generation of a manifest. Garbage collection keeps the packs of the newest generation, so a new manifest may name
    them. Raise the errors of `read_manifest`."""
    generation = max(list_generations(disk).get(root, [0]))
    return read_manifest(disk, root, epoch=epoch, generation=generation)


def other_generations(disk: Disk, manifest: Manifest) -> Iterator[Manifest]:
    """Yield the generations that list other locations for the blobs of `manifest`, newest first.

    Readers use this function when a pack is missing because the generation they read was replaced an hour ago or was never intact.
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
    """Return the epoch of each published root whose ref is readable."""
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
    """Removal of replaced generations. Each generation is removed `grace_s` seconds after this process first saw that it was replaced."""

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
        # The newest generation was never intact, or has been damaged since. An older intact one becomes valid again, and readers use it.
        return self._remove([path] if any(self._is_whole(root, epoch, number) for number in older) else [])

    def _is_due(self, since: Mapping[str, float], path: str) -> bool:
        return self._now_s - since.get(path, self._now_s) >= self._grace_s

    def _is_whole(self, root: str, epoch: int, generation: int) -> bool:
        """Return whether every pack of this generation exists and its index agrees with the manifest."""
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
        """Remove packs of interrupted compactions that no manifest has named since the beginning of the grace period."""
        directory = f"{layout.PACKS}/{WRITER}"
        with contextlib.suppress(FileNotFoundError):
            paths = [f"{directory}/{entry.name}" for entry in self._disk.list_directory(directory)]
            paths = [path for path in paths if layout.parse_pack_path(path) is not None]
            named = self._named(generations) if paths else set[str]()
            if named is not None:
                unnamed = [path for path in paths if path not in named]
                due = [path for path in unnamed if self._is_due(self._notes.unnamed, path)]
                self._notes.unnamed = {path: self._notes.unnamed.get(path, self._now_s) for path in unnamed}
                return store_files.unlink(self._disk, due)
        return []

    def _named(self, generations: Mapping[str, Sequence[int]]) -> set[str] | None:
        """Return the paths of all packs that any manifest names, or None if a manifest is unreadable."""
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
        """Remove generations. The directory is synced first, because the writers of the remaining generations may have died before syncing
        it."""
        if not paths:
            return []
        self._disk.sync_directory(layout.MANIFESTS)
        removed = store_files.unlink(self._disk, paths)
        self._disk.sync_directory(layout.MANIFESTS)
        failpoint("store.compact.retired")
        return removed


LIVE_SHARE_MIN = 0.5
"""Share of live bytes below which a pack's blobs are moved. So a store takes at most about twice its live bytes, and each move frees at
least as many bytes as it writes."""

DEAD_BYTES_MIN = 2**20
"""Total number of dead bytes below which packs that are mostly dead are kept (1 MiB), because writing new files would not pay off."""

PACKS_PER_EPOCH_MAX = 32
"""Largest number of small packs per host in an epoch before they are merged. A restore opens each pack, and opens 32 packs in a few
milliseconds."""

PACK_BYTES_MAX = 64 * 2**20
"""Largest size of new packs in bytes. A larger blob gets its own pack. A new pack is held in memory while it is written."""

SMALL_BYTES_MAX = PACK_BYTES_MAX // 2
"""Number of live bytes below which a pack counts as small. Two small packs fit into a new one, so merging reduces the number of packs."""

MERGED_PACKS_MIN = 4
"""Smallest number of packs to merge. The merged chunks fill at most half as many packs as before, and the checkpoints need one more
pack."""

COMPACT_BYTES_MAX = 256 * 2**20
"""Number of bytes that one call copies, which takes about a second. The limit lets the idle sweep continue with its other work."""

GENERATIONS_MAX = 8
"""Largest number of generations of one manifest. If more generations wait for the end of their grace period, nothing is moved. Otherwise
manifests would fill the disk instead of packs."""

WritePack = Callable[..., PackReference]
"""Type of `Store.write_pack`."""
Create = Callable[..., None]
"""Type of `Store._create`."""


class LiveBlob(msgspec.Struct, gc=False):
    """A blob to be moved, with its location and the oldest and newest epochs that need it."""

    pack: PackReference
    entry: BlobEntry
    first_epoch: int
    last_epoch: int


class Compacted(msgspec.Struct, frozen=True):
    """Result of one call of `compact`.

    Attributes:
        copied_bytes: stored size of all moved blobs in bytes.
        packs, generations: paths of the packs and generations written.
        removed: paths of the generations and packs removed.
    """

    copied_bytes: int
    packs: list[str]
    generations: list[str]
    removed: list[str]


def compact(
    disk: Disk,
    store_id: str,
    notes: Notes,
    *,
    guard: Guard | None,
    write_pack: WritePack,
    create: Create,
    now_s: float,
    bytes_max: int,
    grace_s: float,
) -> Compacted:
    removed = Retirement(disk, store_id, notes, now_s=now_s, grace_s=grace_s).run()
    survey = Survey(disk, store_id, notes.unreadable_packs)
    if survey.listing == notes.idle_listing or survey.generations_max() >= GENERATIONS_MAX:
        return Compacted(0, [], [], removed)
    blobs = survey.blobs_of(survey.choose(bytes_max), bytes_max)
    notes.idle_listing = survey.listing if survey.is_complete and not blobs else ()
    mover = _BlobMover(disk, store_id, notes, guard, write_pack)
    for batch in _batches(blobs):
        mover.move(*batch)
    failpoint("store.compact.packs")
    generations = _write_generations(survey, mover.places, create)
    return Compacted(mover.copied_bytes, mover.packs, generations, removed)


# -- survey of live blobs ----------------------------------------------------------------------------------------------


class Survey:
    """Packs and blobs that the manifests of published epochs name.

    Attributes:
        listing: names of all refs and manifests.
        epochs: map from root to epoch for all published epochs whose ref is readable, newest first.
    """

    def __init__(self, disk: Disk, store_id: str, unreadable_packs: Collection[str]) -> None:
        self.disk = disk
        self.store_id = store_id
        self._generations = list_generations(disk)
        roots = published_roots(disk, store_id)
        self.epochs = dict(sorted(roots.items(), key=lambda item: item[1], reverse=True))
        names = [f"{root}.{number}" for root in sorted(self._generations) for number in sorted(self._generations[root])]
        self.listing = (*sorted(self.epochs), *names)
        self._aside = set(unreadable_packs)
        self._packs: dict[str, PackReference] = {}
        self._live: dict[str, dict[int, int]] = {}
        """Map from the path of a pack to its live blobs, given as a map from offset to size in bytes."""
        self._of_epoch: dict[int, tuple[int, list[str]]] = {}
        """Map from an epoch to the number of its hosts, and its packs."""
        self._unreadable_epoch_max = -1
        """Newest epoch with an unreadable manifest. That manifest may need any pack of its epoch or an earlier one."""

    def generations_max(self) -> int:
        """Return the number of generations of the manifest that has the most."""
        return max(map(len, self._generations.values()), default=0)

    def newest(self, root: str) -> tuple[int, Manifest]:
        """Return the number and contents of the newest generation of a root's manifest. Raise DamagedDataError if it is missing or
        damaged."""
        generation = max(self._generations.get(root, [0]))
        return generation, read_manifest(self.disk, root, epoch=self.epochs[root], generation=generation)

    @property
    def is_complete(self) -> bool:
        """Return whether all manifests were readable."""
        return self._unreadable_epoch_max < 0

    def choose(self, bytes_max: int) -> list[str]:
        """Return the packs from which blobs should be moved, most profitable first."""
        self._look()
        chosen = self._sparse()
        rest = bytes_max - sum(map(self._live_bytes, chosen))
        for epoch in self._of_epoch:
            scattered = self._scattered(epoch, set(chosen), rest)
            if scattered:
                return chosen + scattered
        return chosen

    def blobs_of(self, paths: Sequence[str], bytes_max: int) -> list[LiveBlob]:
        """Return live blobs of these packs, in order, until their total size reaches `bytes_max`. Return at least one blob if any blob is
        live."""
        ranks = {path: rank for rank, path in enumerate(paths)}
        live_blobs: dict[tuple[int, int], LiveBlob] = {}
        if not paths:
            return []
        for root, epoch in self.epochs.items():
            with contextlib.suppress(DamagedDataError):
                for pack, entry in entries_of(self.newest(root)[1]):
                    rank = ranks.get(pack.path)
                    if rank is None:
                        continue
                    known = live_blobs.setdefault((rank, entry.offset), LiveBlob(pack, entry, epoch, epoch))
                    known.first_epoch = min(known.first_epoch, epoch)
        blobs = [live_blobs[place] for place in sorted(live_blobs)]
        before = itertools.accumulate([_stored(blob.entry) for blob in blobs], initial=0)
        return [blob for blob, used in zip(blobs, before, strict=False) if used < bytes_max]

    def _look(self) -> None:
        for root, epoch in self.epochs.items():
            try:
                manifest = self.newest(root)[1]
            except StoreError:
                self._unreadable_epoch_max = max(self._unreadable_epoch_max, epoch)
                continue
            self._of_epoch[epoch] = (
                max(1, len({line.host for line in manifest.agents})),
                [x.path for x in manifest.packs],
            )
            for pack, entry in entries_of(manifest):
                self._packs[pack.path] = pack
                self._live.setdefault(pack.path, {})[entry.offset] = _stored(entry)
        self._exclude_unpublished()

    def _exclude_unpublished(self) -> None:
        """Exclude packs that manifests of unpublished epochs name, because such an epoch may be about to be published and then needs the
        packs."""
        for root, numbers in sorted(self._generations.items()):
            for number in numbers if root not in self.epochs else ():
                with contextlib.suppress(DamagedDataError):
                    packs = read_manifest(self.disk, root, generation=number).packs
                    self._aside.update([pack.path for pack in packs])

    def _is_free(self, path: str) -> bool:
        name = layout.parse_pack_path(path)
        return name is not None and path not in self._aside and name.number > self._unreadable_epoch_max

    def _live_bytes(self, path: str) -> int:
        return sum(self._live.get(path, {}).values())

    def _sparse(self) -> list[str]:
        """Return the packs in which less than `LIVE_SHARE_MIN` is live, lowest live share first. Return an empty list if too few bytes are
        dead in total."""
        sparse = []
        dead_bytes = 0
        for path in sorted(self._live):
            live, all_bytes = self._live_bytes(path), self._blob_bytes(path)
            if live < LIVE_SHARE_MIN * all_bytes:
                sparse.append((live / all_bytes, path))
                dead_bytes += all_bytes - live
        return [path for _, path in sorted(sparse)] if dead_bytes >= DEAD_BYTES_MIN else []

    def _blob_bytes(self, path: str) -> int:
        """Return the total size of a pack's blobs in bytes, including dead blobs. Return 0 if the pack must be skipped or is clearly not
        sparse.

        For most packs, the file's length alone shows that they are not sparse. If the file's length is inconclusive, the index is read. In
        a pack of tiny blobs, headers and index take most of the space, so moving the blobs gains nothing.
        """
        pack = self._packs[path]
        if not self._is_free(path) or self._live_bytes(path) >= LIVE_SHARE_MIN * pack.size_bytes:
            return 0
        try:
            with store_files.reading(self.disk, path):
                index, _ = read_index(self.disk, path, size_bytes=pack.size_bytes, store_id=self.store_id)
        except DamagedDataError:
            return 0
        return sum(map(_stored, index.entries))

    def _scattered(self, epoch: int, chosen: Collection[str], bytes_max: int) -> list[str]:
        """Return the small packs of an epoch that is spread over too many packs, smallest first. For any other epoch, return an empty
        list."""
        hosts, paths = self._of_epoch[epoch]
        small = [path for path in paths if self._is_free(path) and self._live_bytes(path) < SMALL_BYTES_MAX]
        if len(small) <= PACKS_PER_EPOCH_MAX * hosts:
            return []
        small = sorted([path for path in small if path not in chosen], key=lambda path: (self._live_bytes(path), path))
        total = itertools.accumulate(map(self._live_bytes, small))
        merged = [path for path, used in zip(small, total, strict=True) if used <= bytes_max]
        return merged if len(merged) >= MERGED_PACKS_MIN else []


def _stored(entry: BlobEntry) -> int:
    """Return the stored size of a blob including its header, in bytes."""
    return end_of(entry) - entry.offset


# -- moving ------------------------------------------------------------------------------------------------------------

_Place = tuple[PackReference, BlobEntry]


def _batches(blobs: Iterable[LiveBlob]) -> Iterator[tuple[int, list[list[LiveBlob]]]]:
    """Group the blobs into new packs. For each pack, yield its epoch number, and for each new blob the old blobs that it replaces.

    Chunks that will become dead at the same time are stored together. Within a pack, the previous order is kept, so that reading stays
    fast.
    """
    chunks: dict[bytes, list[LiveBlob]] = {}
    checkpoints: dict[int, list[list[LiveBlob]]] = {}
    for blob in blobs:
        if blob.entry.kind == KIND_CHUNK:
            chunks.setdefault(blob.entry.digest, []).append(blob)
        else:
            checkpoints.setdefault(blob.first_epoch, []).append([blob])
    order = sorted(chunks.values(), key=lambda same: -max([blob.last_epoch for blob in same]))
    for group in [order, *checkpoints.values()]:
        for batch in _split(group):
            yield min([blob.first_epoch for same in batch for blob in same]), batch


def _split(group: Iterable[list[LiveBlob]]) -> Iterator[list[list[LiveBlob]]]:
    batch: list[list[LiveBlob]] = []
    size_bytes = 0
    for copies in group:
        blob_bytes = _stored(copies[0].entry)
        if batch and size_bytes + blob_bytes > PACK_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
        batch.append(copies)
        size_bytes += blob_bytes
    if batch:
        yield batch


class _BlobMover:
    """Copies blobs into new packs. `places` maps the old location (path and offset) of each moved blob to the location of its copy."""

    def __init__(self, disk: Disk, store_id: str, notes: Notes, guard: Guard | None, write_pack: WritePack) -> None:
        self._disk = disk
        self._store_id = store_id
        self._notes = notes
        self._guard = guard
        self._write_pack = write_pack
        self.places: dict[tuple[str, int], _Place] = {}
        self.packs: list[str] = []
        self.copied_bytes = 0

    def move(self, number: int, batch: list[list[LiveBlob]]) -> None:
        """Write one pack, and record the new locations of its blobs. Unreadable blobs are not moved, and `verify` reports them."""
        contents = [data for copies in batch if (data := self._read(copies)) is not None]
        if not contents:
            return
        chunks = [blob for blob in contents if blob.kind == KIND_CHUNK]
        blobs = [(blob.name, blob.data) for blob in contents if blob.kind != KIND_CHUNK]
        pack = self._write_pack(writer=WRITER, epoch=number, blobs=blobs, chunks=chunks)
        index = read_reported_index(self._disk, pack, store_id=self._store_id, epoch=number)
        written = {entry.name or entry.digest: entry for entry in index.entries}
        for copies in batch:
            entry = written.get(copies[0].entry.name or copies[0].entry.digest)
            if entry is not None:
                self.places |= {(blob.pack.path, blob.entry.offset): (pack, entry) for blob in copies}
        self.packs.append(pack.path)
        self.copied_bytes += sum(map(_stored, index.entries))

    def _read(self, same: list[LiveBlob]) -> PackBlob | None:
        """Return the contents of the first undamaged copy of a blob, or None if all copies are damaged."""
        for blob in same:
            pack, entry = blob.pack, blob.entry
            keyring = keyring_of(self._guard, store_id=self._store_id, path=pack.path, key_id=pack.key_id)
            try:
                data = read_blob(self._disk, pack.path, entry, epoch=None, keyring=keyring)
            except DamagedDataError:
                self._notes.unreadable_packs.add(pack.path)
                continue
            return PackBlob(entry.name, entry.kind, data, entry.digest)
        return None


def _write_generations(survey: Survey, places: Mapping[tuple[str, int], _Place], create: Create) -> list[str]:
    """Write the next generation of each manifest that names a moved blob. Return the paths of these generations."""
    written = []
    for root, epoch in survey.epochs.items() if places else ():
        try:
            generation, manifest = survey.newest(root)
        except DamagedDataError:  # The manifest is damaged, or was deleted meanwhile.
            continue
        moved = relocated(manifest, places)
        if moved is None:
            continue
        found_root, data = encode_manifest(moved)
        if found_root != root:
            raise StoreError(f"the manifest of epoch {epoch} would have the root {found_root[:12]}… if its blobs moved")
        path = layout.manifest_path(root, generation + 1)
        with contextlib.suppress(
            FileExistsError
        ):  # Another process compacts too, and its generation serves equally well.
            create(path, data, epoch=epoch, point="store.generation")
            if _is_published(survey.disk, survey.store_id, epoch, root):
                written.append(path)
            else:
                store_files.unlink(survey.disk, [path])
        failpoint("store.compact.generation")
    return written


def relocated(manifest: Manifest, places: Mapping[tuple[str, int], _Place]) -> Manifest | None:
    """Return the manifest with the new locations of its blobs, or None if none of its blobs moved."""
    packs: dict[str, PackReference] = {}
    numbers: dict[str, int] = {}
    is_moved = False

    def place(pack: PackReference, entry: BlobEntry) -> tuple[int, BlobEntry]:
        nonlocal is_moved
        moved = places.get((pack.path, entry.offset))
        is_moved = is_moved or moved is not None
        pack, entry = moved or (pack, entry)
        packs.setdefault(pack.path, pack)
        return numbers.setdefault(pack.path, len(numbers)), entry

    lines = []
    for line in manifest.agents:
        number, entry = place(manifest.packs[line.pack], line.entry())
        lines.append(
            agent_line(
                entry,
                pack=number,
                kind=line.kind,
                host=line.host,
                incarnation=line.incarnation,
                is_unborn=line.is_unborn,
            )
        )
    chunks = []
    for chunk in manifest.chunks:
        number, entry = place(manifest.packs[chunk.pack], chunk.entry())
        chunks.append(chunk_place(entry, pack=number))
    return Manifest(manifest.metadata, lines, list(packs.values()), chunks) if is_moved else None


def _is_published(disk: Disk, store_id: str, epoch: int, root: str) -> bool:
    """Return whether the ref of `epoch` names this root. If the ref is unreadable, assume that it does. If the ref in fact names another
    root, garbage collection removes the generation."""
    try:
        return read_ref(disk, epoch, store_id) == root
    except DamagedDataError:
        try:
            disk.size(layout.ref_path(epoch))
        except FileNotFoundError:
            return False
        return True
