"""Copying one snapshot into another store, with the same root. Every byte is compared with its digest (G11).

The problem. A snapshot is a ref, a manifest, and blobs in packs that other snapshots share. The root covers content,
not places. So a copy has other packs and other places, but the same root, and can be trusted like the original.

The steps are in the order of any epoch: packs (of at most `PACK_BYTES_MAX`, by the writer `copy`), manifest, ref. A crash leaves
unreferenced garbage, which the next try reuses. A blob is not copied if it is

1. in a pack that an earlier try of this copy left, or a simultaneous copy by another process;
2. in a pack that the target's manifests of near epochs name, up to this epoch's number: a manifest names no later packs.

The indexes of these packs are read and checked before they are used; their blobs are not (`snapshot_reading.check_epoch`
does that). If a manifest with this root and its packs already exist, only the ref is missing.

The caller's duties:

1. No process deletes epochs of the target meanwhile. A violation is detected: a deletion removes its manifest, then
   reads which packs others name, then removes packs. The copy writes its manifest, then checks that the reused packs still exist.
   If they do, the deletion sees the copy's manifest. **Write first, then check; not the other way round.**
2. No fleet runs on the target. Fleets number their epochs themselves, and two epochs with one number would stop the fleet. So a store that
   a fleet writes to accepts only its own epochs, below its newest one: the fleet will not use those numbers again. A fleet trusts its log, so it
   does not go back to such an epoch by itself.

Digests of encrypted stores are keyed, and agents' checkpoints list digests. So a snapshot keeps its root only between stores
with the same digests: both without encryption, or both with the keys of one store.

Carries: G4 (the ref comes last; one root for each epoch), G11.
"""

import contextlib
from collections.abc import Iterable, Iterator

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk import layout
from snapline.storage.packs.blob import (
    CODEC_LZ4,
    KIND_CHECKPOINT,
    KIND_CHUNK,
    BlobEntry,
    PackBlob,
)
from snapline.storage.packs.pack import PackReference, read_index
from snapline.storage.store import files
from snapline.storage.store.manifest import (
    AgentLine,
    ChunkPlace,
    Manifest,
    Metadata,
    chunk_place,
    encode_manifest,
    find_generation,
    list_generations,
)
from snapline.storage.store.snapshot_reading import (
    Key,
    PlacedBlob,
    check_places,
    digests_of,
    key_of,
    place_of,
    read_blobs,
    read_checkpoints,
)
from snapline.storage.store.store import Store

COPY_WRITER = "copy"
"""Writer of the packs of copies. Names of other writers end in the number of a host start, so none has this name."""

PACK_BYTES_MAX = 64 * 2**20
"""Largest number of plain bytes in one pack: an object store's client holds a pack in memory, and deletion works by pack. A larger blob has
its own pack."""

NEIGHBOURS_MAX = 16
"""Number of the target's nearest epochs whose chunks are searched. A manifest may have megabytes, and farther epochs seldom hold
chunks that nearer ones lack."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a copy.

    Attributes:
        epoch, root: those of the snapshot, in both stores.
        is_new: the target did not have the snapshot before.
        written_bytes: length of the written packs.
        found_bytes: plain bytes that the target already had.
    """

    epoch: int
    root: str
    is_new: bool = True
    written_bytes: int = 0
    found_bytes: int = 0


def copy_epoch(source: Store, target: Store, epoch: int, *, is_fleet_store: bool = False) -> Copied:
    """Copy a snapshot; when this returns it is published in `target`, and durable. Copying again succeeds.

    Args:
        source: may be in use by a fleet.
        target: see the module's text for the caller's duties.
        epoch: epoch of `source`.
        is_home: the caller knows that a fleet writes to `target`, even if it has not written anything yet.

    Raises:
        NotFoundError: the epoch is not in `source`, or was deleted meanwhile.
        DamagedDataError: some bytes in `source` differ from those written, or the copy of an earlier try was damaged.
        UsageError: `target` cannot accept the snapshot: it is a fleet's own store, or its digests differ.
        StoreError: `target` has another snapshot under this number, or a disk failed.
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
    """Return whether the store's blobs are encrypted, and so its digests keyed."""
    return store.guard is not None and store.guard.encrypts


# -- permitted copies --------------------------------------------------------------------------------------------------


def _root_in(store: Store, epoch: int) -> str | None:
    try:
        return store.confirm_damage(lambda: store.read_ref(epoch))
    except NotFoundError:
        return None


def _check_digests(source: Store, target: Store) -> None:
    """Refuse a target with other chunk digests. The check writes at most the target's digest key."""
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
    """Refuse an epoch that a fleet on `target` might take for its own, or whose number it might use."""
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
    """Return whether any writer other than copies has written to the store."""
    with files.reading(store.disk, layout.PACKS):
        writers = store.disk.list_directory(layout.PACKS)
    return any(entry.name != COPY_WRITER for entry in writers) or bool(store.checkpoint_packs())


@contextlib.contextmanager
def _reporting_deletion(source: Store, epoch: int) -> Iterator[None]:
    """Report data that is missing because the epoch was deleted meanwhile as not found, not as damage."""
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
        _placed: blobs of the snapshot that are in the target.
        _lenders: path of a pack → path of the manifest of another epoch of the target that names it.
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
        """Write packs and manifest, durable when this returns."""
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
        """Return whether an earlier try wrote the manifest. A manifest without its packs is removed: no ref names it."""
        disk = self._target.disk
        generations = list_generations(disk).get(self._root, [])
        if not generations:
            return False
        try:
            check_places(self._target, self._target.read_manifest(self._root, epoch=self._epoch))
        except DamagedDataError:
            with files.writing(disk, f"the removal of an unfinished copy of epoch {self._epoch}"):
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
        """Yield packs of this epoch that earlier copies wrote, except damaged ones."""
        disk, directory = self._target.disk, f"{layout.PACKS}/{COPY_WRITER}"
        with files.reading(disk, directory):
            try:
                paths = [f"{directory}/{entry.name}" for entry in disk.list_directory(directory)]
            except FileNotFoundError:
                return
        for path in paths:
            name = layout.parse_pack_path(path)
            if name is not None and name.number == self._epoch:
                with contextlib.suppress(DamagedDataError), files.reading(disk, path, epoch=self._epoch):
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
        except StoreError:  # Another process may have written a manifest with its own packs, which is as good.
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
        """Check, after the manifest is durable, that the packs it shares with other epochs still exist. See the module's text."""
        used = {blob.pack.path: None for blob in self._placed.values()}
        disk = self._target.disk
        for path in [self._shared_packs[path] for path in used if path in self._shared_packs]:
            with files.reading(disk, path):
                try:
                    disk.size(path)
                except FileNotFoundError:
                    raise StoreError(
                        f"an epoch of {self._target.location} was deleted while epoch {self._epoch} was being copied there: "
                        "copy it again"
                    ) from None


# -- inside -----------------------------------------------------------------------------------------------------------


def pack_groups(blobs: Iterable[PlacedBlob]) -> Iterator[list[PlacedBlob]]:
    """Yield blobs in lists, one per pack."""
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
