"""The checkpoint store: packs of checkpoints, a manifest per epoch, a ref per complete epoch (docs/snapshot-format.md).

Beside them lie checkpoint packs: what agents saved on their own, and the coordinator makes an epoch of when it is on a line.

The life of an epoch here:

1. every host writes a pack (`write_pack`) and reports the `PackReference`;
2. the coordinator reads each pack's index back (`read_pack_index`), and writes the manifest (`write_manifest`);
3. it commits *epoch complete, root* in its log: the commit point;
4. it publishes the ref (`publish`). The ref's bytes follow from the log: any leader may do it, again too.

Callers' duties:

1. Only roots that the log says are complete are published, and only after `write_manifest` returned.
2. `delete_epoch` and `delete_unreferenced` are called from one place, with the epochs that may still be in use; a complete
   epoch whose ref is not published yet is in use.
3. Every epoch number is used once in a store. `publish` finds out where two fleets share one.
4. A checkpoint pack is deleted only when the epoch that makes it needless is complete in the log.

All calls block, and may come from any thread. A call that raised has changed nothing that others see, except that a file
may remain which nothing refers to. Calls may be repeated; `write_pack` then makes another pack.

Carries: G4 (whole: packs and manifest are durable before anything refers to them; one root per epoch) and G11 (every byte
read is compared with a digest first).
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from snapline.errors import DamagedDataError, MisuseError, NotFoundError, StoreError, StoreMissingError
from snapline.failpoints import failpoint
from snapline.storage import checkpoint_packs, files, layout, pack_files, retention, verify
from snapline.storage.blob import BlobEntry
from snapline.storage.checkpoint import AgentCheckpoint
from snapline.storage.disk import Disk, LocalDisk, make_durable_directory, write_once
from snapline.storage.manifest import AgentLine, Manifest, encode_manifest
from snapline.storage.pack import PackReference, PackWriter
from snapline.storage.verify import Verification

_ID_BYTES = 16
"""Random ids never meet: 128 bits."""

_PREFIX_DIGITS_MIN = 4
"""A shorter prefix of a root is more likely a typing error."""


class Store:
    """One checkpoint store.

    Attributes:
        store_id: random, made with the store; its files name it.
    """

    def __init__(self, disk: Disk, store_id: str, *, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        """Use `open`, `create` or `open_or_create`, unless you bring your own disk and randomness."""
        self.store_id = store_id
        self._disk = disk
        self._random_bytes = random_bytes
        self._known_directories: set[str] = set()
        """Directories of packs that this object has synced in their parents."""

    @property
    def location(self) -> str:
        """Where the store lies, for messages."""
        return self._disk.location

    # -- opening -----------------------------------------------------------------------------------------------------

    @staticmethod
    def open(path: str | os.PathLike[str], *, disk: Disk | None = None) -> "Store":
        """Open the store at a `file:///…` URL or a plain path; changes nothing. A `disk` is used instead of `path`.

        Raises:
            StoreMissingError: there is none.
            DamagedDataError: its identity file is damaged.
            MisuseError: an unknown scheme.
        """
        disk = disk or LocalDisk(layout.parse_location(os.fspath(path)))
        with files.reading(disk, layout.IDENTITY):
            if not _exists(disk, layout.IDENTITY):
                raise StoreMissingError(
                    f"there is no store at {disk.location}: check the path and whether it is mounted"
                )
        return Store(disk, files.read_identity(disk))

    @staticmethod
    def create(
        path: str | os.PathLike[str], *, disk: Disk | None = None, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> "Store":
        """Make a new store there, durable when this returns.

        Raises:
            MisuseError: there is a store already, or something else.
        """
        disk = disk or LocalDisk(layout.parse_location(os.fspath(path)))
        with files.writing(disk, "a new store"):
            disk.make_root()
            _check_free(disk)
            for directory in layout.DIRECTORIES:
                make_durable_directory(disk, directory)
            failpoint("store.create.directories")
            store_id = random_bytes(_ID_BYTES).hex()
            name = f"0-{random_bytes(_ID_BYTES).hex()}"
            try:
                data = files.encode_identity(store_id)
                write_once(disk, layout.IDENTITY, (data,), temporary_name=name, point="store.identity")
            except FileExistsError:
                raise _already_there(disk) from None
        return Store(disk, store_id, random_bytes=random_bytes)

    @staticmethod
    def open_or_create(path: str | os.PathLike[str], *, disk: Disk | None = None) -> "Store":
        """Open the store, or make it if there is none; of several racing processes all get the same store."""
        disk = disk or LocalDisk(layout.parse_location(os.fspath(path)))
        with contextlib.suppress(StoreMissingError):
            return Store.open(path, disk=disk)
        try:
            return Store.create(path, disk=disk)
        except MisuseError:
            if not _exists(disk, layout.IDENTITY):
                raise
            return Store.open(path, disk=disk)

    # -- committing --------------------------------------------------------------------------------------------------

    def write_pack(self, *, writer: str, epoch: int, blobs: Iterable[tuple[str, bytes]]) -> PackReference:
        """Write checkpoints, `(agent, encoded checkpoint)`, as one pack; durable when this returns.

        `writer` names one run of one host, such as `h1.3`. Large packs are written while `blobs` is consumed.

        Raises:
            StoreError: the disk is full or failed. Nothing remains but garbage; another call makes another file.
            MisuseError: a name is no id, or an agent comes twice.
        """
        layout.check_writer(writer)
        name = layout.PackName(writer, layout.check_epoch(epoch), self._random_bytes(_ID_BYTES).hex())
        return self._write_pack(name, blobs, what=f"the pack of epoch {epoch}", point="store.pack")

    def write_checkpoints(self, *, writer: str, plan: int, blobs: Iterable[tuple[str, int, bytes]]) -> PackReference:
        """Write checkpoints that agents took on their own, `(agent, number, encoded)`, as one checkpoint pack.

        An agent may come several times, with different numbers. Otherwise as `write_pack`. Their `epoch` is 0. Nothing in
        the store refers to the pack: whoever wrote it reports it to the coordinator.
        """
        layout.check_writer(writer)
        pack_id = self._random_bytes(_ID_BYTES).hex()
        name = layout.PackName(writer, layout.check_plan(plan), pack_id, layout.CHECKPOINTS)
        named = ((layout.checkpoint_name(agent, number), blob) for agent, number, blob in blobs)
        return self._write_pack(name, named, what=f"checkpoints of plan {plan}", point="store.checkpoints")

    def read_pack_index(self, reference: PackReference) -> list[BlobEntry]:
        """Read the footer and index of a reported pack back, and compare. The blobs themselves are not read.

        Raises:
            DamagedDataError: the file is missing, or not the one reported.
            MisuseError: no pack can have this path.
        """
        name = layout.parse_pack_path(reference.path)
        if name is None:
            raise MisuseError(
                f"{reference.path!r} is no path of a pack: they look like packs/<writer>/<epoch>.<random>"
            )
        return pack_files.read_reported_index(self._disk, reference, store_id=self.store_id, epoch=name.epoch).entries

    def write_manifest(self, manifest: Manifest) -> str:
        """Write the manifest, durable when this returns; return its root. The same manifest again is success.

        Raises:
            MisuseError: it contradicts itself.
            StoreError: the disk failed, or another manifest has this root.
        """
        root, data = encode_manifest(manifest)
        epoch = manifest.metadata.epoch
        path = layout.manifest_path(root)
        with files.writing(self._disk, f"the manifest of epoch {epoch}"):
            try:
                self._create(path, data, epoch=epoch, point="store.manifest")
            except FileExistsError:
                files.read_manifest(self._disk, root, epoch=epoch)
                raise StoreError(
                    f"{path} exists with other packs: give the new manifest of epoch {epoch} another creation time"
                ) from None
        return root

    def publish(self, epoch: int, root: str) -> None:
        """Write the ref of a complete epoch, durable when this returns. The same root again is success.

        Raises:
            StoreError: the epoch has another root: two fleets use this store. Or the manifest is missing.
            DamagedDataError: there is a ref, and it is damaged.
        """
        path = layout.ref_path(epoch)
        with files.reading(self._disk, layout.manifest_path(root), epoch=epoch):
            self._disk.size(layout.manifest_path(root))
        with files.writing(self._disk, f"the ref of epoch {epoch}"):
            try:
                data = files.encode_ref(epoch, root, self.store_id)
                self._create(path, data, epoch=epoch, point="store.ref")
            except FileExistsError:
                other = files.read_ref(self._disk, epoch, self.store_id)
                raise StoreError(
                    f"two fleets on one store: epoch {epoch} of {self.location} has root {other[:12]}…, not {root[:12]}…; "
                    "give each fleet a store of its own"
                ) from None

    # -- reading -----------------------------------------------------------------------------------------------------

    def epochs(self) -> list[int]:
        """Return the numbers of the published epochs, ascending."""
        with files.reading(self._disk, layout.EPOCH_REFS):
            entries = self._disk.list_directory(layout.EPOCH_REFS)
        numbers = (layout.parse_ref_path(f"{layout.EPOCH_REFS}/{entry.name}") for entry in entries)
        return sorted(number for number in numbers if number is not None)

    def read_ref(self, epoch: int) -> str:
        """Return the root of `epoch`; NotFoundError if it is not published, DamagedDataError if its ref is damaged."""
        with files.reading(self._disk, layout.ref_path(epoch), epoch=epoch):
            if not _exists(self._disk, layout.ref_path(epoch)):
                raise NotFoundError(f"epoch {epoch} is not in the store {self.location}: `snapshot list` shows what is")
        return files.read_ref(self._disk, epoch, self.store_id)

    def read_manifest(self, root: str, *, epoch: int | None = None) -> Manifest:
        """Return the manifest with `root`; given `epoch`, errors name it, and it must be of that epoch.

        Raises:
            DamagedDataError: missing or damaged.
        """
        return files.read_manifest(self._disk, layout.check_root(root), epoch=epoch)

    def read_checkpoint(self, manifest: Manifest, agent: str) -> AgentCheckpoint:
        """Return one agent's checkpoint; every digest was checked before a byte is returned (G11).

        Raises:
            NotFoundError: the agent is not in this epoch.
            DamagedDataError: names file, epoch and agent.
        """
        return self._read_line(manifest, manifest.line_of(agent))

    def read_checkpoints(self, manifest: Manifest, agents: Collection[str] | None = None) -> Iterator[AgentCheckpoint]:
        """Yield the checkpoints of `agents` (default: all), sorted by agent; errors as `read_checkpoint`."""
        lines = manifest.agents
        if agents is not None:
            found = {line.agent: line for line in manifest.agents}
            lines = [found[agent] if agent in found else manifest.line_of(agent) for agent in sorted(set(agents))]
        for line in lines:
            yield self._read_line(manifest, line)

    def checkpoint_packs(self, plan: int | None = None) -> list[str]:
        """Return the paths of all checkpoint packs, or of those of one plan, sorted."""
        with files.reading(self._disk, layout.CHECKPOINTS):
            return checkpoint_packs.find(self._disk, plan)

    def refer_to_checkpoints(self, path: str) -> PackReference:
        """Return what the writer of a checkpoint pack reported of it; errors as `read_checkpoint_pack`."""
        return checkpoint_packs.refer_to(self._disk, path, store_id=self.store_id)

    def read_checkpoint_pack(
        self, pack: str | PackReference, wanted: Mapping[str, Collection[int]] | None = None
    ) -> list[AgentCheckpoint]:
        """Return the checkpoints `wanted`, agent → numbers (default: all), of a checkpoint pack, in its order.

        Every digest was checked, and that each checkpoint is the one that its name says. Given a reference, the file must
        be the one that was reported.

        Raises:
            NotFoundError: it does not hold one of them.
            DamagedDataError: missing or damaged; names the file and, where one blob is hit, the agent.
            MisuseError: no checkpoint pack can have this path.
        """
        return checkpoint_packs.read(self._disk, pack, wanted, store_id=self.store_id)

    def resolve(self, snapshot: str) -> int:
        """Return the epoch that `"latest"`, a number, or a unique prefix (4 digits or more) of a root names.

        Raises:
            NotFoundError: none, or several.
        """
        epochs = self.epochs()
        if snapshot == "latest":
            if not epochs:
                raise NotFoundError(f"the store {self.location} holds no snapshot yet")
            return epochs[-1]
        if snapshot.isdecimal() and int(snapshot) in epochs:
            return int(snapshot)
        found = self._with_root_prefix(epochs, snapshot) if len(snapshot) >= _PREFIX_DIGITS_MIN else []
        if not found:
            raise NotFoundError(f"no snapshot {snapshot!r} in the store {self.location}: `snapshot list` shows what is")
        if len(found) > 1:
            raise NotFoundError(f"{snapshot!r} begins the roots of epochs {found}: give more digits")
        return found[0]

    def verify(self, epoch: int | None = None) -> Verification:
        """Read every byte of every file of the store, or of one epoch, and report what is not as it was written.

        Changes nothing, and may run while a fleet uses the store.

        Raises:
            NotFoundError: there is no such epoch.
        """
        if epoch is not None and not _exists(self._disk, layout.ref_path(epoch)):
            raise NotFoundError(f"epoch {epoch} is not in the store {self.location}: `snapshot list` shows what is")
        return verify.verify_disk(self._disk, self.store_id, epoch=epoch)

    # -- deleting ----------------------------------------------------------------------------------------------------

    def delete_epoch(self, epoch: int) -> list[str]:
        """Delete a published epoch: its ref, then its manifest, then its packs; return the paths removed.

        The caller knows that no recovery needs it any more (G7). If this is interrupted, what remains is garbage for
        `delete_unreferenced`. An epoch that is not there is no error.
        """
        with files.writing(self._disk, f"the deletion of epoch {epoch}"):
            return retention.delete_epoch(self._disk, self.store_id, epoch)

    def delete_unreferenced(
        self, *, begun_below: int, open_epochs: Collection[int] = (), open_writers: Collection[str] = ()
    ) -> list[str]:
        """Delete manifests and packs that no ref needs, and old temporary files; return the paths removed.

        Args:
            begun_below: only epochs with a smaller number are touched. One more than the latest epoch begun when the
                caller looked: an epoch that begins meanwhile is then safe.
            open_epochs: not touched: not decided yet, or complete but not published.
            open_writers: their packs and directories are not touched.
        """
        with files.writing(self._disk, "the deletion of garbage"):
            return retention.delete_unreferenced(
                self._disk,
                self.store_id,
                begun_below=begun_below,
                open_epochs=frozenset(open_epochs),
                open_writers=frozenset(open_writers),
            )

    def delete_checkpoints(self, paths: Collection[str]) -> list[str]:
        """Delete checkpoint packs; return the paths removed. One that is not there is no error."""
        with files.writing(self._disk, "the deletion of checkpoints"):
            return checkpoint_packs.delete(self._disk, paths)

    def sweep_checkpoints(self, *, plans_below: int, kept: Collection[str] = ()) -> list[str]:
        """Delete checkpoint packs of plans with a smaller number, but `kept`; return the paths removed."""
        with files.writing(self._disk, "the deletion of checkpoints"):
            return checkpoint_packs.sweep(self._disk, plans_below=plans_below, kept=kept)

    # -- probes: do two processes see the same store? ----------------------------------------------------------------

    def write_probe(self) -> tuple[str, bytes]:
        """Write a probe; return its path and its random content, which `read_probe` elsewhere must return."""
        token = self._random_bytes(_ID_BYTES)
        path = f"{layout.PROBES}/{self._random_bytes(_ID_BYTES).hex()}"
        with files.writing(self._disk, "a probe"):
            self._create(path, files.encode_probe(token, self.store_id), epoch=0, point="store.probe")
        return path, token

    def read_probe(self, path: str) -> bytes:
        """Return the content of a probe that another process wrote.

        Raises:
            DamagedDataError: it is missing (this may be another store) or damaged.
            MisuseError: no probe can have this path.
        """
        _check_probe_path(path)
        return files.read_probe(self._disk, path, self.store_id)

    def remove_probe(self, path: str) -> None:
        """Remove a probe; one that is gone is no error."""
        _check_probe_path(path)
        with files.writing(self._disk, "the removal of a probe"), contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _write_pack(
        self, name: layout.PackName, blobs: Iterable[tuple[str, bytes]], *, what: str, point: str
    ) -> PackReference:
        path = layout.pack_path(name)
        pack = PackWriter(name, store_id=self.store_id)
        with files.writing(self._disk, what):
            try:
                self._prepare_directory(name, f"{point}.directory")
                temporary_name = layout.temporary_name(name)
                write_once(self._disk, path, pack.pieces(blobs), temporary_name=temporary_name, point=point)
            except OSError:  # Whatever failed, the next call does not rely on the directory.
                self._known_directories.discard(name.directory)
                raise
        return PackReference(path, pack.size_bytes, pack.index_digest)

    def _prepare_directory(self, name: layout.PackName, point: str) -> None:
        """Make the writer's directory durable, once; again if a sweep found it empty and removed it."""
        if name.directory not in self._known_directories or not _exists(self._disk, name.directory):
            if name.folder not in layout.DIRECTORIES:
                make_durable_directory(self._disk, name.folder)
            make_durable_directory(self._disk, name.directory)
            self._known_directories.add(name.directory)
            failpoint(point)

    def _create(self, path: str, data: bytes, *, epoch: int, point: str) -> None:
        name = self._temporary_name(epoch)
        files.create_or_compare(self._disk, path, data, temporary_name=name, epoch=epoch, point=point)

    def _temporary_name(self, epoch: int) -> str:
        return f"{epoch}-{self._random_bytes(_ID_BYTES).hex()}"

    def _read_line(self, manifest: Manifest, line: AgentLine) -> AgentCheckpoint:
        path = manifest.packs[line.pack].path
        return pack_files.read_checkpoint(self._disk, path, line.entry(), epoch=manifest.metadata.epoch)

    def _with_root_prefix(self, epochs: list[int], prefix: str) -> list[int]:
        found = []
        for epoch in epochs:
            with contextlib.suppress(DamagedDataError, NotFoundError):  # A damaged ref has no root to compare.
                if self.read_ref(epoch).startswith(prefix.lower()):
                    found.append(epoch)
        return found


def _exists(disk: Disk, path: str) -> bool:
    try:
        disk.size(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _check_free(disk: Disk) -> None:
    """Refuse to make a store over a store, or in a directory that holds something else."""
    if _exists(disk, layout.IDENTITY):
        raise _already_there(disk)
    for entry in disk.list_directory(""):
        if not entry.is_directory or entry.name not in layout.ROOT_DIRECTORIES:
            raise MisuseError(f"{disk.location} holds {entry.name!r} and is no store: give an empty directory")
    with contextlib.suppress(FileNotFoundError):
        if disk.list_directory(layout.EPOCH_REFS):
            raise MisuseError(f"{disk.location} holds epochs, but lost the file {layout.IDENTITY!r}: bring it back")


def _already_there(disk: Disk) -> MisuseError:
    return MisuseError(f"there is a store at {disk.location} already: open it, or give another directory")


def _check_probe_path(path: str) -> None:
    if not layout.is_probe_path(path):
        raise MisuseError(f"{path!r} is no path of a probe")
