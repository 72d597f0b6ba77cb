"""Compaction: live blobs move out of packs that are mostly dead, and of many small packs into few.

The problem. A pack goes when no manifest names it. One chunk that is reused for weeks keeps a whole pack of dead ones, and an epoch whose chunks
were written over many epochs is in as many files.

The model. Files are written once. A manifest `<root>.<g>` lists the contents of an epoch (the root) and their places; a later generation lists the
same contents. A blob is *live* if the newest generation of a published epoch names it.

One call of `compact` does three things, each bounded:

1. **retire**: it removes generations that were replaced at least `GRACE_S` ago, if the newest one is whole;
2. **plan**: it picks packs under `LIVE_SHARE_MIN` live, and the small packs of an epoch that lies in too many;
3. **move**: it copies their live blobs into new packs (each under its digests; encrypted ones are sealed again, since they are
   bound to their place), and writes the next generation of each manifest that names one of them, the newest epoch's first.

Packs that are no longer named are left to `Store.delete_unreferenced`.

Invariants:

- **I1** Each published root has, at every moment, a generation that is whole: all its packs are there and agree with it.
  Only `retire` removes generations of epochs that stay, and it reads the indexes of all packs of the newest back first.
- **I2** A pack that any generation names stays (`retention.py`). So a replaced generation *is* the grace of its packs: a
  reader that began with it, and a commit that found reused chunks through it, have an hour before anything vanishes.
- **I3** A manifest names packs of its epoch or before. A new pack has the number of the oldest epoch that needs one of its
  blobs; checkpoints of different epochs go into different packs, for an agent comes once in a pack.
- **I4** The root does not cover locations. It is computed again before a generation is written, and must be the same.

Crash. New packs are durable before a generation names them, a generation before an older one goes: after a crash at any
step each ref restores. What is left is an unnamed pack, or a generation more.

Two processes. Only the leader compacts, but a deposed one may not know it yet, and come late with any step:

- its packs have random names: nobody else's are hit;
- a generation is created, never replaced: of two processes that write the same number one stops. A late one with an
  old number, whose epoch goes on, is older than the newest, and retired like any other. If the epoch was deleted meanwhile, the generation's writer
  finds no ref, and removes it;
- it removes a generation only if a newer one was whole, after the grace, which it counted itself. Of a root's whole generations the newest is never
  removed;
- another's sweep may take a new pack before a generation names it, if it looked before and deletes after. Therefore sweeps
  leave packs of the writer `WRITER` alone (`open_writers`); here they are removed after `GRACE_S` without a name. Should a pack
  be missing all the same, the generation that names it is not whole: the next call removes it, and the older one counts
  again. Readers meanwhile try the other generations (`generations.py`).

All this assumes that no process stops for longer than `GRACE_S` between looking and acting.

Carries: G4 and G7, which it must not break; G11 (nothing is copied unchecked).
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from snapline.errors import DamagedDataError, StoreError
from snapline.failpoints import failpoint
from snapline.storage.packs.blob import KIND_CHUNK, BlobEntry, PackBlob, end_of
from snapline.storage.packs.generations import GRACE_S, WRITER, Notes, Retirement, entries_of, published_roots
from snapline.storage.packs.pack import PackReference, read_index
from snapline.storage.packs.pack_files import keyring_of, read_blob, read_reported_index
from snapline.storage.store import files, layout
from snapline.storage.store.disk import Disk
from snapline.storage.store.guard import Guard
from snapline.storage.store.manifest import Manifest, agent_line, chunk_place, encode_manifest

LIVE_SHARE_MIN = 0.5
"""Below, a pack's blobs are moved: a store then takes at most about twice what is live, and each move frees as much as it
writes."""

DEAD_BYTES_MIN = 2**20
"""Packs under the share stay while all of them together hold less than 1 MiB dead: it would not pay for the new files."""

PACKS_PER_EPOCH_MAX = 32
"""Largest number of small packs for each host: more are merged. A restore opens each pack; 32 are read in a few milliseconds."""

PACK_BYTES_MAX = 64 * 2**20
"""Largest size of new packs (one larger blob gets a pack of its own). They are held in memory while they are written."""

SMALL_BYTES_MAX = PACK_BYTES_MAX // 2
"""A pack with less live is small. Two small ones fit a new pack, so merging makes fewer of them."""

MERGED_PACKS_MIN = 4
"""Fewer are not merged: their chunks make up to half as many packs, and their checkpoints one more for the epoch."""

COMPACT_BYTES_MAX = 256 * 2**20
"""Copied by one call: about a second, so that the idle sweep that calls gets to its other work."""

GENERATIONS_MAX = 8
"""Largest number of generations of one manifest: with more waiting for their grace nothing is moved, or manifests would fill the disk instead of
packs."""

__all__ = ["GRACE_S", "WRITER", "Compacted", "Notes", "compact", "plan_compaction", "relocated"]

WritePack = Callable[..., PackReference]
"""`Store.write_pack`."""
Create = Callable[..., None]
"""`Store._create`."""


class LiveBlob(msgspec.Struct, gc=False):
    """A blob to be moved: where it lies, and the oldest and the newest epoch that need it."""

    pack: PackReference
    entry: BlobEntry
    first_epoch: int
    last_epoch: int


class Compacted(msgspec.Struct, frozen=True):
    """Result of one call.

    Attributes:
        copied_bytes: of the blobs moved, as they were stored.
        packs, generations: paths of the files written.
        removed: paths of the generations and packs removed.
    """

    copied_bytes: int
    packs: list[str]
    generations: list[str]
    removed: list[str]


def plan_compaction(
    disk: Disk, store_id: str, *, bytes_max: int = COMPACT_BYTES_MAX, aside: Collection[str] = ()
) -> list[LiveBlob]:
    """Return the blobs that should move, pack by pack, at most about `bytes_max` of them; changes nothing.

    Raises:
        StoreError: the store cannot be read just now.
        OSError: likewise.
    """
    survey = _Survey(disk, store_id, aside)
    return survey.blobs_of(survey.choose(bytes_max), bytes_max)


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
    """Retire, plan and move; see `Store.compact`."""
    removed = Retirement(disk, store_id, notes, now_s=now_s, grace_s=grace_s).run()
    survey = _Survey(disk, store_id, notes.aside)
    if survey.listing == notes.quiet or survey.generations_max() >= GENERATIONS_MAX:
        return Compacted(0, [], [], removed)
    blobs = survey.blobs_of(survey.choose(bytes_max), bytes_max)
    notes.quiet = survey.listing if survey.is_complete and not blobs else ()
    mover = _Mover(disk, store_id, notes, guard, write_pack)
    for batch in _batches(blobs):
        mover.move(*batch)
    failpoint("store.compact.packs")
    generations = _write_generations(survey, mover.places, create)
    return Compacted(mover.copied_bytes, mover.packs, generations, removed)


# -- what is live ------------------------------------------------------------------------------------------------------


class _Survey:
    """Packs and blobs that the published epochs name.

    Attributes:
        listing: names of all refs and manifests.
        epochs: root -> epoch, of the published epochs whose ref can be read, newest first.
    """

    def __init__(self, disk: Disk, store_id: str, aside: Collection[str]) -> None:
        self.disk = disk
        self.store_id = store_id
        self._generations = files.generations(disk)
        roots = published_roots(disk, store_id)
        self.epochs = dict(sorted(roots.items(), key=lambda item: item[1], reverse=True))
        names = [f"{root}.{number}" for root in sorted(self._generations) for number in sorted(self._generations[root])]
        self.listing = (*sorted(self.epochs), *names)
        self._aside = set(aside)
        self._packs: dict[str, PackReference] = {}
        self._live: dict[str, dict[int, int]] = {}
        """Path of a pack -> offset of a live blob -> its bytes."""
        self._of_epoch: dict[int, tuple[int, list[str]]] = {}
        """Epoch -> how many hosts, which packs."""
        self._unknown_up_to = -1
        """An epoch whose manifest cannot be read may need anything that is not newer."""

    def generations_max(self) -> int:
        """Number of generations of the manifest that has most."""
        return max(map(len, self._generations.values()), default=0)

    def newest(self, root: str) -> tuple[int, Manifest]:
        """Return number and content of the newest generation; DamagedDataError if it is missing or damaged."""
        generation = max(self._generations.get(root, [0]))
        return generation, files.read_manifest(self.disk, root, epoch=self.epochs[root], generation=generation)

    @property
    def is_complete(self) -> bool:
        """Could every manifest be read?"""
        return self._unknown_up_to < 0

    def choose(self, bytes_max: int) -> list[str]:
        """Return the packs to be emptied, those that gain most first."""
        self._look()
        chosen = self._sparse()
        rest = bytes_max - sum(map(self._live_bytes, chosen))
        for epoch in self._of_epoch:
            scattered = self._scattered(epoch, set(chosen), rest)
            if scattered:
                return chosen + scattered
        return chosen

    def blobs_of(self, paths: Sequence[str], bytes_max: int) -> list[LiveBlob]:
        """Return what is live in these packs, in their order, until `bytes_max` is reached; one blob at least."""
        ranks = {path: rank for rank, path in enumerate(paths)}
        found: dict[tuple[int, int], LiveBlob] = {}
        if not paths:
            return []
        for root, epoch in self.epochs.items():
            with contextlib.suppress(DamagedDataError):
                for pack, entry in entries_of(self.newest(root)[1]):
                    rank = ranks.get(pack.path)
                    if rank is None:
                        continue
                    known = found.setdefault((rank, entry.offset), LiveBlob(pack, entry, epoch, epoch))
                    known.first_epoch = min(known.first_epoch, epoch)
        blobs = [found[place] for place in sorted(found)]
        before = itertools.accumulate([_stored(blob.entry) for blob in blobs], initial=0)
        return [blob for blob, used in zip(blobs, before, strict=False) if used < bytes_max]

    def _look(self) -> None:
        for root, epoch in self.epochs.items():
            try:
                manifest = self.newest(root)[1]
            except StoreError:
                self._unknown_up_to = max(self._unknown_up_to, epoch)
                continue
            self._of_epoch[epoch] = (
                max(1, len({line.host for line in manifest.agents})),
                [x.path for x in manifest.packs],
            )
            for pack, entry in entries_of(manifest):
                self._packs[pack.path] = pack
                self._live.setdefault(pack.path, {})[entry.offset] = _stored(entry)
        self._leave_open_ones()

    def _leave_open_ones(self) -> None:
        """Spare packs that belong to no published epoch: theirs may be about to be published, so they would stay anyway."""
        for root, numbers in sorted(self._generations.items()):
            for number in numbers if root not in self.epochs else ():
                with contextlib.suppress(DamagedDataError):
                    packs = files.read_manifest(self.disk, root, generation=number).packs
                    self._aside.update([pack.path for pack in packs])

    def _is_free(self, path: str) -> bool:
        name = layout.parse_pack_path(path)
        return name is not None and path not in self._aside and name.number > self._unknown_up_to

    def _live_bytes(self, path: str) -> int:
        return sum(self._live.get(path, {}).values())

    def _sparse(self) -> list[str]:
        """Return the packs that are mostly dead, the emptiest first."""
        found = []
        dead_bytes = 0
        for path in sorted(self._live):
            live, all_bytes = self._live_bytes(path), self._blob_bytes(path)
            if live < LIVE_SHARE_MIN * all_bytes:
                found.append((live / all_bytes, path))
                dead_bytes += all_bytes - live
        return [path for _, path in sorted(found)] if dead_bytes >= DEAD_BYTES_MIN else []

    def _blob_bytes(self, path: str) -> int:
        """Return the bytes of all blobs, dead ones too; 0 where the pack must be left alone, or is surely not sparse.

        The file's length decides for most packs. The others' indexes are read: in a pack of tiny blobs headers and index
        are the larger part, and nothing is gained by moving them.
        """
        pack = self._packs[path]
        if not self._is_free(path) or self._live_bytes(path) >= LIVE_SHARE_MIN * pack.size_bytes:
            return 0
        try:
            with files.reading(self.disk, path):
                index, _ = read_index(self.disk, path, size_bytes=pack.size_bytes, store_id=self.store_id)
        except DamagedDataError:
            return 0
        return sum(map(_stored, index.entries))

    def _scattered(self, epoch: int, chosen: Collection[str], bytes_max: int) -> list[str]:
        """Return the small packs of an epoch that lies in too many, the smallest first; empty if it does not."""
        hosts, paths = self._of_epoch[epoch]
        small = [path for path in paths if self._is_free(path) and self._live_bytes(path) < SMALL_BYTES_MAX]
        if len(small) <= PACKS_PER_EPOCH_MAX * hosts:
            return []
        small = sorted([path for path in small if path not in chosen], key=lambda path: (self._live_bytes(path), path))
        total = itertools.accumulate(map(self._live_bytes, small))
        merged = [path for path, used in zip(small, total, strict=True) if used <= bytes_max]
        return merged if len(merged) >= MERGED_PACKS_MIN else []


def _stored(entry: BlobEntry) -> int:
    """Return the stored size with the header."""
    return end_of(entry) - entry.offset


# -- moving ------------------------------------------------------------------------------------------------------------

_Place = tuple[PackReference, BlobEntry]


def _batches(blobs: Iterable[LiveBlob]) -> Iterator[tuple[int, list[list[LiveBlob]]]]:
    """Yield what goes into one pack: its number, and for each new blob all old ones that it replaces.

    Chunks that are needed as long lie together, so that they die together; otherwise as they lay, for the reader's sake.
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
    for same in group:
        blob_bytes = _stored(same[0].entry)
        if batch and size_bytes + blob_bytes > PACK_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
        batch.append(same)
        size_bytes += blob_bytes
    if batch:
        yield batch


class _Mover:
    """Copies blobs. `places`: where a blob lay (path, offset) -> where it lies as well now."""

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
        """Write one pack, and note where its blobs lie. What cannot be read stays where it is, for `verify` to name."""
        contents = [data for same in batch if (data := self._read(same)) is not None]
        if not contents:
            return
        chunks = [blob for blob in contents if blob.kind == KIND_CHUNK]
        blobs = [(blob.name, blob.data) for blob in contents if blob.kind != KIND_CHUNK]
        pack = self._write_pack(writer=WRITER, epoch=number, blobs=blobs, chunks=chunks)
        index = read_reported_index(self._disk, pack, store_id=self._store_id, epoch=number)
        found = {entry.name or entry.digest: entry for entry in index.entries}
        for same in batch:
            entry = found.get(same[0].entry.name or same[0].entry.digest)
            if entry is not None:
                self.places |= {(blob.pack.path, blob.entry.offset): (pack, entry) for blob in same}
        self.packs.append(pack.path)
        self.copied_bytes += sum(map(_stored, index.entries))

    def _read(self, same: list[LiveBlob]) -> PackBlob | None:
        """Return the first of these copies that is whole."""
        for blob in same:
            pack, entry = blob.pack, blob.entry
            keyring = keyring_of(self._guard, store_id=self._store_id, path=pack.path, key_id=pack.key_id)
            try:
                data = read_blob(self._disk, pack.path, entry, epoch=None, keyring=keyring)
            except DamagedDataError:
                self._notes.aside.add(pack.path)
                continue
            return PackBlob(entry.name, entry.kind, data, entry.digest)
        return None


def _write_generations(survey: _Survey, places: Mapping[tuple[str, int], _Place], create: Create) -> list[str]:
    """Write the next generation of each manifest that names a moved blob; return their paths."""
    written = []
    for root, epoch in survey.epochs.items() if places else ():
        try:
            generation, manifest = survey.newest(root)
        except DamagedDataError:  # Or deleted meanwhile.
            continue
        moved = relocated(manifest, places)
        if moved is None:
            continue
        found_root, data = encode_manifest(moved)
        if found_root != root:
            raise StoreError(f"the manifest of epoch {epoch} would have the root {found_root[:12]}… if its blobs moved")
        path = layout.manifest_path(root, generation + 1)
        with contextlib.suppress(FileExistsError):  # Another process compacts; what it wrote is as good.
            create(path, data, epoch=epoch, point="store.generation")
            if _is_published(survey.disk, survey.store_id, epoch, root):
                written.append(path)
            else:
                files.unlink(survey.disk, [path])
        failpoint("store.compact.generation")
    return written


def relocated(manifest: Manifest, places: Mapping[tuple[str, int], _Place]) -> Manifest | None:
    """Return the manifest with blobs in their new places; None if none of them moved."""
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
    """Return whether the ref has this root. A ref that cannot be read just now counts: the sweep handles what is left."""
    try:
        return files.read_ref(disk, epoch, store_id) == root
    except DamagedDataError:
        try:
            disk.size(layout.ref_path(epoch))
        except FileNotFoundError:
            return False
        return True
