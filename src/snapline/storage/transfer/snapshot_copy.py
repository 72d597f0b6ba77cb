"""Copy snapshots into another store under the same root, and move old snapshots there.

Every byte is compared with its digest (G11).

The problem: a snapshot consists of a ref, a manifest, and blobs in packs that other snapshots share. A snapshot's root covers the content
but not the locations. So a copy has other packs and locations but the same root, and is as trustworthy as the original.

The steps are the same as for any epoch: write packs (of at most `PACK_BYTES_MAX`, under the writer name `copy`), the manifest, and the ref.
A crash leaves unreferenced files, which the next attempt to copy the snapshot reuses. A blob is not copied if it already exists in one of
these packs of the target:

1. a pack of this epoch that an earlier or concurrent attempt to copy the snapshot wrote;
2. a pack that manifests of the target's nearest epochs name. The pack's epoch must not be later than the copied epoch, because a manifest
   may not name later packs.

The indexes of these packs are checked before the packs are used, but their blobs are not (`check_epoch` checks them). If a manifest with
this root and its packs already exist, only the ref is missing.

The caller's duties:

1. No process may delete epochs of the target during a copy. A violation is detected. The deletion of an epoch removes its manifest, then
   reads which packs other manifests name, and then removes packs. A copy writes its manifest, and then checks that the manifests which name
   the reused packs still exist. If these manifests still exist, any process that deletes them afterwards finds the copy's manifest. **Write
   first, then check; never the other way round.**
2. No fleet may run on the target store. Each fleet numbers its own epochs, and two different epochs with the same number would stop the
   fleet. So a store to which a fleet writes accepts only older epochs of the same fleet, because the fleet will not reuse their numbers. A
   fleet trusts its log, so it never rolls back to a copied epoch unless that is requested.

Digests of encrypted stores are keyed, and agents' checkpoints contain digests. So a snapshot keeps its root only if both stores have the
same digests, because both are unencrypted or both have the keys of one store.

This module guarantees G4 (the ref comes last, and each epoch has one root) and G11.

**Reading all blobs of a snapshot.** When blobs are copied or verified, they are read in the order of their locations. Manifests list the
location and digest of each blob. So blobs can be read with the manifest alone, and adjacent blobs with a single call. Reading a pack of a
thousand chunks from an object store takes eight requests. The indexes of packs are read only to compare the manifest with the packs
(`check_places`).

**Moving old snapshots** to a second, cheaper store takes three steps: copy the snapshots, verify the copies, and only then delete the
originals. The problem: disks near the fleet are small, but last month's snapshots are still needed.

Snapshots are copied one at a time, oldest first (`copy_epoch`), so that each copy finds its unchanged chunks in the previous copy.
Afterwards every byte of the copy is read from the second store and checked. A pack that several copies share is read only once per run. A
snapshot is removed from the first store only after its copy has been verified. A snapshot is never removed from the first store in these
cases:

1. A pin, a tag or a recovery holds the snapshot, which the guarded deletion of `pins.py` checks.
2. The snapshot is the newest one, which a restarted fleet restores.
3. Both stores are the same store, so that there is no copy. Stores with different ids are different stores. If the ids are equal, it may
   be one store under two names, or one may be a file-by-file copy of the other. A probe that is written to the first store and read from
   the second decides.

A move can be interrupted and repeated. The caller of a move has the same duties as the caller of a copy. As with any deletion, the first
store's fleet must not be running, unless the fleet's coordinator removes the snapshots.

This module supports G7: nothing is deleted without a complete copy.
"""

import contextlib
from collections.abc import Iterable, Iterator

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import Buffer, damaged
from snapline.storage.packs.checkpoint import decode_checkpoint
from snapline.storage.packs.checkpoint_packs import keyring_of
from snapline.storage.packs.manifest import (
    AgentLine,
    ChunkPlace,
    Manifest,
    Metadata,
    chunk_place,
    encode_manifest,
    find_generation,
    list_generations,
)
from snapline.storage.packs.pack import (
    CODEC_LZ4,
    KIND_CHECKPOINT,
    KIND_CHUNK,
    PLAIN_KEYRING,
    BlobEntry,
    Keyring,
    PackBlob,
    PackReference,
    decode_blob,
    end_of,
    read_index,
)
from snapline.storage.store.store import Holds, Store

RUN_BYTES_MAX = 8 * 2**20
"""Largest read in bytes. At this size, the cost of a request to an object store is small compared with the cost of its bytes."""


class PlacedBlob(msgspec.Struct, frozen=True, gc=False):
    """A blob and the pack that contains it."""

    pack: PackReference
    entry: BlobEntry


Key = tuple[str, bytes]
"""Name and digest, which identify a blob. Chunks have no name."""


def check_epoch(store: Store, epoch: int, checked: set[str]) -> None:
    """Read and check every blob of every pack that a snapshot needs.

    `checked` contains the paths of packs that were already checked and are skipped. The call adds the packs that it reads to `checked`.

    Raises:
        NotFoundError: If the epoch does not exist.
        DamagedDataError: If a file is damaged. The message names the first damaged file.
    """
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    check_places(store, manifest)
    for pack in manifest.packs:
        if pack.path not in checked:
            for _ in read_blobs(store, [PlacedBlob(pack, entry) for entry in store.read_pack_index(pack)], epoch):
                pass
            checked.add(pack.path)
    for _ in read_checkpoints(store, manifest, manifest.agents, digests_of(manifest)):
        pass


def read_blobs(store: Store, blobs: Iterable[PlacedBlob], epoch: int) -> Iterator[tuple[PlacedBlob, Buffer]]:
    """Yield each blob with its verified plaintext, sorted by location. Adjacent blobs are read with a single call.

    Raises:
        DamagedDataError: If a blob is damaged. The message names the file, the epoch and the agent.
    """
    disk, guard = store.disk, store.guard
    keyrings: dict[str, Keyring] = {}
    for run in _runs(blobs):
        pack = run[0].pack
        if pack.path not in keyrings:
            keyrings[pack.path] = keyring_of(guard, store_id=store.store_id, path=pack.path, key_id=pack.key_id)
        yield from _read_run(disk, run, epoch, keyrings[pack.path])


def check_places(store: Store, manifest: Manifest) -> None:
    """Check that every pack exists and contains the blobs that the manifest lists. Blobs are not read."""
    entries: dict[tuple[int, Key], BlobEntry] = {}
    for number, pack in enumerate(manifest.packs):
        entries |= {(number, key_of(entry)): entry for entry in store.read_pack_index(pack)}
    blobs = [(line.pack, line.entry()) for line in manifest.agents]
    blobs += [(chunk.pack, chunk.entry()) for chunk in manifest.chunks]
    for number, entry in blobs:
        if entries.get((number, key_of(entry))) != entry:
            reason = f"its index and the manifest differ about {entry.label}"
            raise damaged(manifest.packs[number].path, reason, epoch=manifest.metadata.epoch, blob=entry.name)


def digests_of(manifest: Manifest) -> frozenset[bytes]:
    return frozenset([chunk.digest for chunk in manifest.chunks])


def read_checkpoints(
    store: Store, manifest: Manifest, lines: Iterable[AgentLine], digests: frozenset[bytes]
) -> Iterator[tuple[str, bytes]]:
    """Yield each agent with its encoded checkpoint. Check that all chunks of each checkpoint are among `digests`."""
    epoch = manifest.metadata.epoch
    for blob, plain in read_blobs(store, [PlacedBlob(manifest.packs[x.pack], x.entry()) for x in lines], epoch):
        try:
            checkpoint = decode_checkpoint(plain)
        except DamagedDataError as error:
            raise damaged(blob.pack.path, str(error), epoch=epoch, blob=blob.entry.name) from error
        if checkpoint.agent != blob.entry.name:
            reason = f"it is the checkpoint of {checkpoint.agent!r}"
            raise damaged(blob.pack.path, reason, epoch=epoch, blob=blob.entry.name)
        if not digests.issuperset(checkpoint.digests()):
            reason = f"it does not say where a chunk of agent {checkpoint.agent!r} lies"
            raise damaged(f"the manifest of epoch {epoch}", reason, epoch=epoch)
        yield checkpoint.agent, bytes(plain)


def _read_run(
    disk: Disk, run: list[PlacedBlob], epoch: int, keyring: Keyring = PLAIN_KEYRING
) -> Iterator[tuple[PlacedBlob, Buffer]]:
    path, start, end = run[0].pack.path, run[0].entry.offset, end_of(run[-1].entry)
    with store_files.reading(disk, path, epoch=epoch, blob=run[0].entry.name):
        data = memoryview(disk.read(path, start, end - start))
    for blob in run:
        stored = data[blob.entry.offset - start : end_of(blob.entry) - start]
        yield blob, decode_blob(stored, blob.entry, path=path, epoch=epoch, keyring=keyring)


def _runs(blobs: Iterable[PlacedBlob]) -> Iterator[list[PlacedBlob]]:
    """Group blobs that are adjacent in a pack, so that one read serves each group."""
    run: list[PlacedBlob] = []
    for blob in sorted(blobs, key=place_of):
        if run:
            is_next = blob.pack.path == run[-1].pack.path and blob.entry.offset == end_of(run[-1].entry)
            if not is_next or end_of(blob.entry) - run[0].entry.offset > RUN_BYTES_MAX:
                yield run
                run = []
        run.append(blob)
    if run:
        yield run


def place_of(blob: PlacedBlob) -> tuple[str, int]:
    return blob.pack.path, blob.entry.offset


def key_of(entry: BlobEntry) -> Key:
    return entry.name, entry.digest


COPY_WRITER = "copy"
"""Writer of the packs of copies. Names of other writers end in the number of a host start or are reserved, so no other writer has this
name."""

PACK_BYTES_MAX = 64 * 2**20
"""Largest number of plaintext bytes in one pack. An object store's client holds a pack in memory, and packs are only deleted as a whole. A
larger blob has its own pack."""

NEIGHBOURS_MAX = 16
"""Number of the target's nearest epochs in which chunks are searched. A manifest may have megabytes, and farther epochs rarely contain
chunks that nearer epochs lack."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Result of copying one snapshot.

    Attributes:
        epoch, root: epoch and root of the snapshot, which are the same in both stores.
        is_new: whether the target lacked the snapshot before.
        written_bytes: total size of the packs written.
        found_bytes: total plaintext size of the blobs that the target already had.
    """

    epoch: int
    root: str
    is_new: bool = True
    written_bytes: int = 0
    found_bytes: int = 0


def copy_epoch(source: Store, target: Store, epoch: int, *, is_fleet_store: bool = False) -> Copied:
    """Copy a snapshot. The function returns only after the snapshot is published in `target` and durable. Copying a snapshot again has no
    effect.

    Args:
        source: store that contains the snapshot, which a fleet may be using.
        target: store that receives the copy. The module docstring lists the caller's duties.
        epoch: epoch of `source`.
        is_fleet_store: whether a fleet is known to write to `target`, even if it has not written anything yet.

    Raises:
        NotFoundError: If the epoch is not in `source` or was deleted meanwhile.
        DamagedDataError: If data in `source` differs from what was originally written, or an earlier attempt left a damaged copy.
        UsageError: If `target` cannot accept the snapshot because it is a fleet's store or has different digests.
        StoreError: If `target` has a different snapshot with this epoch number, or a disk failed.
    """
    root = source.read_ref(epoch)
    existing_root = _root_in(target, epoch)
    if existing_root is not None:
        if existing_root != root:
            raise StoreError(
                f"epoch {epoch} of {target.location} is another snapshot (root {existing_root[:12]}…, not {root[:12]}…): "
                "give another store"
            )
        target.read_manifest(root, epoch=epoch)
        return Copied(epoch=epoch, root=root, is_new=False)
    with _reporting_deletion(source, epoch):
        manifest = source.read_manifest(root, epoch=epoch)
        _check_target(target, manifest.metadata, is_fleet_store=is_fleet_store)
        _check_digests(source, target)
        copied = _Copy(source, target, manifest, root).run()
    target.publish(epoch, root)
    failpoint("store.copy.published")
    return copied


def is_encrypted(store: Store) -> bool:
    """Return whether the store's blobs are encrypted, and therefore its digests keyed."""
    return store.guard is not None and store.guard.encrypts


# -- permitted copies --------------------------------------------------------------------------------------------------


def _root_in(store: Store, epoch: int) -> str | None:
    try:
        return store.confirm_damage(lambda: store.read_ref(epoch))
    except NotFoundError:
        return None


def _check_digests(source: Store, target: Store) -> None:
    """Raise UsageError if the chunk digests of the two stores differ. The check writes nothing except perhaps the target's digest key."""
    if is_encrypted(source) == is_encrypted(target) and (
        not is_encrypted(source) or source.digest(b"snapline") == target.digest(b"snapline")
    ):
        return
    encrypted = source if is_encrypted(source) else target
    raise UsageError(
        f"the store {encrypted.location} is encrypted, and digests in it depend on its keys: its snapshots cannot be copied to or "
        "from a store with other keys, or none (`snapshot export` makes a file of one, with its keys)"
    )


def _check_target(target: Store, about: Metadata, *, is_fleet_store: bool) -> None:
    """Raise UsageError if a fleet on `target` might mistake the epoch for its own, or might use its number."""
    if not is_fleet_store and not _has_writers(target):
        return
    newest = target.epochs()[-1:]
    if about.cluster == target.store_id and newest and about.epoch < newest[0]:
        return
    raise UsageError(
        f"{target.location} is the store of a fleet, and epoch {about.epoch} is not an older one of its own: give another "
        "store, which is made if it is not there"
    )


def _has_writers(store: Store) -> bool:
    """Return whether any writer other than `COPY_WRITER` has written to the store."""
    with store_files.reading(store.disk, layout.PACKS):
        writers = store.disk.list_directory(layout.PACKS)
    return any(entry.name != COPY_WRITER for entry in writers) or bool(store.checkpoint_packs())


@contextlib.contextmanager
def _reporting_deletion(source: Store, epoch: int) -> Iterator[None]:
    """Raise NotFoundError instead of DamagedDataError if data is missing because its epoch was deleted meanwhile."""
    try:
        yield
    except DamagedDataError as error:
        if _root_in(source, epoch) is None:
            raise NotFoundError(
                f"epoch {epoch} of {source.location} was deleted while it was read: pin a snapshot before you copy it"
            ) from error
        raise


# -- the copy ---------------------------------------------------------------------------------------------------------


class _Copy:
    """One run of `copy_epoch`.

    Attributes:
        _placed: blobs of the snapshot that already exist in the target.
        _shared_packs: map from the path of each shared pack to the path of another epoch's manifest in the target that names the pack.
    """

    def __init__(self, source: Store, target: Store, manifest: Manifest, root: str) -> None:
        self._source = source
        self._target = target
        self._manifest = manifest
        self._root = root
        self._epoch = manifest.metadata.epoch
        self._placed: dict[Key, PlacedBlob] = {}
        self._shared_packs: dict[str, str] = {}
        self._written_bytes = 0
        self._digests = digests_of(manifest)

    def run(self) -> Copied:
        """Durably write packs and manifest, and return the result."""
        if not self._is_written():
            wanted = self._wanted()
            self._find(wanted)
            found_bytes = sum([blob.entry.size_bytes for blob in self._placed.values()])
            missing = [blob for key, blob in wanted.items() if key not in self._placed]
            for group in pack_groups(sorted(missing, key=place_of)):
                self._write_pack(group)
                failpoint("store.copy.pack")
            self._write_manifest()
            self._check_shared_packs()
            return self._outcome(found_bytes)
        return self._outcome(sum([line.size_bytes for line in self._manifest.agents]))

    def _outcome(self, found_bytes: int) -> Copied:
        return Copied(epoch=self._epoch, root=self._root, written_bytes=self._written_bytes, found_bytes=found_bytes)

    def _wanted(self) -> dict[Key, PlacedBlob]:
        packs = self._manifest.packs
        chunks = [PlacedBlob(packs[chunk.pack], chunk.entry()) for chunk in self._manifest.chunks]
        lines = [PlacedBlob(packs[line.pack], line.entry()) for line in self._manifest.agents]
        return {key_of(blob.entry): blob for blob in (*chunks, *lines)}

    # Finding blobs in the target.

    def _is_written(self) -> bool:
        """Return whether an earlier attempt has written the manifest. If the manifest's packs are missing, remove the manifest, which no
        ref names."""
        disk = self._target.disk
        generations = list_generations(disk).get(self._root, [])
        if not generations:
            return False
        try:
            check_places(self._target, self._target.read_manifest(self._root, epoch=self._epoch))
        except DamagedDataError:
            with store_files.writing(disk, f"the removal of an unfinished copy of epoch {self._epoch}"):
                for generation in generations:
                    with contextlib.suppress(FileNotFoundError):
                        disk.unlink(layout.manifest_path(self._root, generation))
                disk.sync_directory(layout.MANIFESTS)
            return False
        return True

    def _find(self, wanted: dict[Key, PlacedBlob]) -> None:
        for reference, entries in self._left_behind():
            self._take(reference, entries, wanted)
        epochs = [epoch for epoch in self._target.epochs() if epoch != self._epoch]
        for epoch in sorted(epochs, key=lambda epoch: (abs(epoch - self._epoch), epoch))[:NEIGHBOURS_MAX]:
            with contextlib.suppress(DamagedDataError, NotFoundError):  # An unreadable epoch is not used.
                self._find_in(epoch, wanted)

    def _left_behind(self) -> Iterator[tuple[PackReference, list[BlobEntry]]]:
        """Yield undamaged packs of this epoch that earlier copies wrote."""
        disk, directory = self._target.disk, f"{layout.PACKS}/{COPY_WRITER}"
        with store_files.reading(disk, directory):
            try:
                paths = [f"{directory}/{entry.name}" for entry in disk.list_directory(directory)]
            except FileNotFoundError:
                return
        for path in paths:
            name = layout.parse_pack_path(path)
            if name is not None and name.number == self._epoch:
                with contextlib.suppress(DamagedDataError), store_files.reading(disk, path, epoch=self._epoch):
                    size_bytes, store_id = disk.size(path), self._target.store_id
                    index, reference = read_index(disk, path, size_bytes=size_bytes, store_id=store_id)
                    yield reference, index.entries

    def _find_in(self, epoch: int, wanted: dict[Key, PlacedBlob]) -> None:
        root = self._target.read_ref(epoch)
        manifest = self._target.read_manifest(root, epoch=epoch)
        useful = {c.pack for c in manifest.chunks if ("", c.digest) in wanted and ("", c.digest) not in self._placed}
        for number in sorted(useful):
            pack = manifest.packs[number]
            name = layout.parse_pack_path(pack.path)
            if name is not None and name.number <= self._epoch:
                with contextlib.suppress(DamagedDataError):
                    self._take(pack, self._target.read_pack_index(pack), wanted)
                    self._shared_packs[pack.path] = layout.manifest_path(root, find_generation(self._target.disk, root))

    def _take(self, pack: PackReference, entries: Iterable[BlobEntry], wanted: dict[Key, PlacedBlob]) -> None:
        for entry in entries:
            key = key_of(entry)
            if key in wanted and wanted[key].entry.size_bytes == entry.size_bytes:
                self._placed.setdefault(key, PlacedBlob(pack, entry))

    # Writing to the target.

    def _write_pack(self, group: list[PlacedBlob]) -> None:
        chunks = [blob for blob in group if blob.entry.kind == KIND_CHUNK]
        names = {blob.entry.name for blob in group if blob.entry.kind == KIND_CHECKPOINT}
        lines = [line for line in self._manifest.agents if line.agent in names] if names else []
        reference = self._target.write_pack(
            writer=COPY_WRITER,
            epoch=self._epoch,
            blobs=read_checkpoints(self._source, self._manifest, lines, self._digests),
            chunks=self._read_chunks(chunks),
        )
        self._written_bytes += reference.size_bytes
        for entry in self._target.read_pack_index(reference):
            self._placed[key_of(entry)] = PlacedBlob(reference, entry)

    def _read_chunks(self, chunks: list[PlacedBlob]) -> Iterator[PackBlob]:
        for blob, plain in read_blobs(self._source, chunks, self._epoch):
            entry = blob.entry
            yield PackBlob("", KIND_CHUNK, plain, entry.digest, bool(entry.codec & CODEC_LZ4))

    def _write_manifest(self) -> None:
        manifest = self._moved()
        root, _ = encode_manifest(manifest)
        if root != self._root:
            raise StoreError(
                f"epoch {self._epoch} was written by another release, and its root would change: copy it with that one"
            )
        try:
            self._target.write_manifest(manifest)
        except StoreError:  # Another process may have written a manifest with its own packs, which serves as well.
            if not self._is_written():
                raise
        failpoint("store.copy.manifest")

    def _moved(self) -> Manifest:
        packs: dict[str, PackReference] = {}
        numbers: dict[str, int] = {}

        def number_of(pack: PackReference) -> int:
            packs[pack.path] = pack
            return numbers.setdefault(pack.path, len(numbers))

        lines: list[AgentLine] = []
        for line in self._manifest.agents:
            blob = self._placed[(line.agent, line.digest)]
            x = blob.entry
            lines.append(
                msgspec.structs.replace(
                    line,
                    pack=number_of(blob.pack),
                    offset=x.offset,
                    stored_bytes=x.stored_bytes,
                    codec=x.codec,
                    stored_digest=x.stored_digest,
                )
            )
        places = [self._placed[("", chunk.digest)] for chunk in self._manifest.chunks]
        chunks: list[ChunkPlace] = [chunk_place(blob.entry, pack=number_of(blob.pack)) for blob in places]
        return Manifest(self._manifest.metadata, lines, list(packs.values()), chunks)

    def _check_shared_packs(self) -> None:
        """Check that the manifests that name the reused packs still exist. As the module docstring explains, this check must follow the
        durable writing of the copy's manifest."""
        used = {blob.pack.path: None for blob in self._placed.values()}
        disk = self._target.disk
        for path in [self._shared_packs[path] for path in used if path in self._shared_packs]:
            with store_files.reading(disk, path):
                try:
                    disk.size(path)
                except FileNotFoundError:
                    raise StoreError(
                        f"an epoch of {self._target.location} was deleted while epoch {self._epoch} was being copied there: "
                        "copy it again"
                    ) from None


# -- inside -----------------------------------------------------------------------------------------------------------


def pack_groups(blobs: Iterable[PlacedBlob]) -> Iterator[list[PlacedBlob]]:
    """Group blobs so that each group fills one pack."""
    group: list[PlacedBlob] = []
    size_bytes = 0
    for blob in blobs:
        if group and size_bytes + blob.entry.size_bytes > PACK_BYTES_MAX:
            yield group
            group, size_bytes = [], 0
        group.append(blob)
        size_bytes += blob.entry.size_bytes
    if group:
        yield group


NEWEST = "it is the newest one"
HELD = "pinned or tagged"


class MoveResult(msgspec.Struct, frozen=True):
    """Result of moving one snapshot.

    Attributes:
        copied: result of the copy.
        is_removed: whether the snapshot was removed from the first store, so that it exists only in the second.
        kept_because: reason why the snapshot was not removed although removal was requested, otherwise "".
    """

    copied: Copied
    is_removed: bool = False
    kept_because: str = ""


def all_but_newest(store: Store, count: int) -> list[int]:
    """Return all epochs except the newest `count`, in ascending order."""
    if count < 1:
        raise UsageError(f"{count} newest snapshots would be kept: keep at least 1")
    return store.epochs()[:-count]


def move_epochs(
    source: Store, target: Store, epochs: Iterable[int], *, holds: Holds | None = None, is_fleet_store: bool = False
) -> Iterator[MoveResult]:
    """Copy snapshots to `target` and verify the copies. Yield the result of each snapshot when it is finished.

    Args:
        source, target, is_fleet_store: as in `copy_epoch`.
        epochs: epochs of `source`.
        holds: pins and tags of `source`. If given, copied epochs are removed from `source`, otherwise nothing is removed.

    Raises:
        DamagedDataError: If data of a snapshot or its copy differs from what was originally written. In that case, the snapshot has not
            been removed.
        others: as in `copy_epoch`.
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
    """Raise UsageError if both are the same store, because then removing a copied snapshot would lose it."""
    if _are_one(source, target):
        raise UsageError(f"{source.location} and {target.location} are one store: nothing would be left")


def _are_one(source: Store, target: Store) -> bool:
    """Return whether both are the same store: their ids are equal, and a file written to `source` is visible in `target`."""
    if source.store_id != target.store_id:
        return False
    path, token = source.write_probe()
    try:
        return target.read_probe(path) == token
    except DamagedDataError:  # The probe is not in the target.
        return False
    finally:
        source.remove_probe(path)
