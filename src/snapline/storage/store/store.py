"""The checkpoint store: packs of checkpoints, a manifest for each epoch, and a ref for each complete epoch (docs/snapshot-format.md).

The store also contains checkpoint packs, host logs and outputs. Checkpoint packs contain checkpoints that agents saved independently. The
coordinator makes an epoch of such checkpoints when they are on a recovery line. Through host logs and outputs, the fleet exchanges messages
with clients.

The life of an epoch in the store:

1. every host writes a pack (`write_pack`, and `write_chunks` for large amounts of data) and reports the `PackReference`;
2. the coordinator reads the index of each pack, finds reused chunks (`gather`), and writes the manifest
   (`write_manifest`);
3. the coordinator commits *epoch complete, root* in its log, which is the commit point;
4. the coordinator publishes the ref (`publish`). The log determines the ref's bytes, so any leader may publish the ref, even repeatedly.

Callers' duties:

1. Publish only roots that are complete in the log, and only after `write_manifest` has returned.
2. Call `delete_epoch` and `delete_unreferenced` from one process only, and pass the epochs that may still be in use. A complete epoch whose
   ref has not been published yet is in use.
3. Use every epoch number once in a store. `publish` detects two fleets that share one store.
4. Delete a checkpoint pack only after the epoch that replaces it is complete in the log.
5. Delete no epoch between `gather` and the end of `write_manifest`, because the epoch's packs may contain gathered chunks.

All calls block, and may come from any thread. A failed call has changed nothing that other processes see, except that an unreferenced file
may remain. Calls may be repeated. A repeated `write_pack` writes another pack.

The store carries G4 (packs and manifest are durable before anything refers to them, and each epoch has one root) and G11 (bytes that were
read are used only after they match a digest).

`Holds` provides pins, tags and guarded deletion for a store. `Holds` calls the functions of `pins.py` with the store's own disk and
randomness.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from snapline.errors import DamagedDataError, NotFoundError, StoreError, StoreKeyError, StoreMissingError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import Disk, make_durable_directory, write_once
from snapline.storage.disk.object_disk import open_disk
from snapline.storage.disk.record import Buffer, Guard, digest_of
from snapline.storage.disk.store_files import (
    LogMark,
    OpenedDisk,
    add_mark,
    exists,
    initialize_store,
    missing_store_error,
)
from snapline.storage.keys import key_records
from snapline.storage.keys.key_files import VERIFY_KEY_VARIABLE, Keys
from snapline.storage.log.log_files import LogWriter, keys_of_batches
from snapline.storage.log.log_record import LogBatch, LogName, PreparedBatch
from snapline.storage.outputs.output_files import (
    AGE_NS_MAX,
    AGE_NS_MIN,
    ConsumerPosition,
    OutputWriter,
    keys_of_outputs,
)
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.packs import checkpoint_packs, compaction
from snapline.storage.packs.checkpoint_packs import Gathered, gather, key_of_pack
from snapline.storage.packs.compaction import read_newest
from snapline.storage.packs.manifest import (
    Manifest,
    UnsignedRefError,
    encode_manifest,
    encode_ref,
    find_generation,
    read_manifest,
    read_ref,
)
from snapline.storage.packs.pack import (
    KIND_CHECKPOINT,
    PLAIN_KEYRING,
    Keyring,
    PackBlob,
    PackNeeds,
    PackReference,
    PackWriter,
)
from snapline.storage.retention import epoch_retention, pins
from snapline.storage.retention.pins import Pin, Tag
from snapline.storage.store.object_segments import keys_of_object_streams
from snapline.storage.store.protection import make_guard, resolve_keys
from snapline.storage.store.reader import StoreReader, epoch_of_pack


def keys_in_use(disk: Disk, store_id: str) -> set[str]:
    """Return the ids of the keys that packs, batches, outputs and object streams name. Raise DamagedDataError or StoreError if a file
    cannot be read."""
    paths = [*epoch_retention.pack_paths(disk), *checkpoint_packs.find(disk)]
    packs = {key_of_pack(disk, path, store_id) for path in paths}
    return (
        packs
        | keys_of_batches(disk, store_id)
        | keys_of_outputs(disk, store_id)
        | keys_of_object_streams(disk, store_id)
    )


SIGNERS_MAX = 16
"""Number of the newest refs among which one must be signed by a given key. An attacker who forges refs rarely forges more."""

_ID_BYTES = 16
"""Size of a random id in bytes (128 bits, so ids do not collide)."""


class Store(StoreReader):
    """A checkpoint store with read and write access. Threads may share the object."""

    def __init__(
        self,
        disk: Disk,
        store_id: str,
        *,
        random_bytes: Callable[[int], bytes] = os.urandom,
        guard: Guard | None = None,
    ) -> None:
        """Private constructor. Use `open`, `create` or `open_or_create` unless you supply your own disk and randomness."""
        super().__init__(disk, store_id, guard=guard)
        self._random_bytes = random_bytes
        self._notes: epoch_retention.Notes = {}
        self._compaction = compaction.Notes()
        self._log_writer = LogWriter(disk, store_id, guard=guard, random_bytes=random_bytes)
        self._output_writer = OutputWriter(
            disk, store_id, guard=guard, random_bytes=random_bytes, watchers=self._output_watchers
        )
        self._known_directories: set[str] = set()
        """Pack directories that are durable because this object has synced their parent directories."""

    # -- opening -----------------------------------------------------------------------------------------------------

    @staticmethod
    def open(path: str | os.PathLike[str], *, disk: Disk | None = None, keys: Keys | None = None) -> "Store":
        """Open the store at a URL or a plain path (`object_disk.py`). Nothing is changed. If `disk` is given, it is used instead of `path`.

        If neither `keys` nor `disk` is given, the keys come from the environment (docs/protection.md).

        Raises:
            StoreMissingError: If there is no store at this location.
            DamagedDataError: If the store's identity file is damaged.
            StoreKeyError: If the store's key is missing, or a given key is superfluous or not the store's.
            StoreError: If the object store is unreachable or returns wrong bytes.
            UsageError: If the scheme is unknown.
        """
        keys = resolve_keys(keys, disk)
        disk = disk or open_disk(os.fspath(path))
        store_id = _identity_of(disk)
        disk = OpenedDisk(disk, store_id)
        store = Store(disk, store_id, guard=make_guard(disk, store_id, keys))
        store._check_signer()
        return store

    def _check_signer(self) -> None:
        """Raise StoreKeyError if no given key has signed any of the newest refs. One bad ref is damage, but if all are bad, the key is
        wrong."""
        if self.guard is None or not self.guard.requires_signatures:
            return
        refused: UnsignedRefError | None = None
        for epoch in reversed(self.epochs()[-SIGNERS_MAX:]):
            try:
                self.read_ref(epoch)
            except UnsignedRefError as error:
                refused = refused or error
            except (DamagedDataError, NotFoundError):
                continue
            else:
                return
        if refused is not None:
            raise StoreKeyError(
                f"no key that is given has signed the snapshots of the store {self.location}: give the public key of who signed them in "
                f"{VERIFY_KEY_VARIABLE} ({refused})"
            )

    @staticmethod
    def create(
        path: str | os.PathLike[str],
        *,
        disk: Disk | None = None,
        keys: Keys | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> "Store":
        """Create a new store durably.

        Raises:
            UsageError: If the location already contains a store or other files.
        """
        keys = resolve_keys(keys, disk)
        disk = disk or open_disk(os.fspath(path))
        store_id = initialize_store(disk, random_bytes=random_bytes)
        disk = OpenedDisk(disk, store_id)
        guard = make_guard(disk, store_id, keys, random_bytes=random_bytes)
        return Store(disk, store_id, random_bytes=random_bytes, guard=guard)

    @staticmethod
    def open_or_create(path: str | os.PathLike[str], *, disk: Disk | None = None, keys: Keys | None = None) -> "Store":
        """Open the store, or create it if there is none. If several processes race, they all get the same store."""
        keys = resolve_keys(keys, disk)
        disk = disk or open_disk(os.fspath(path))
        with contextlib.suppress(StoreMissingError):
            return Store.open(path, disk=disk, keys=keys)
        try:
            return Store.create(path, disk=disk, keys=keys)
        except UsageError:
            if not exists(disk, layout.IDENTITY):
                raise
            return Store.open(path, disk=disk, keys=keys)

    # -- committing --------------------------------------------------------------------------------------------------

    def digest(self, data: Buffer) -> bytes:
        """Return the digest of a chunk with these bytes. The digest is keyed where blobs are encrypted."""
        guard = self._guard
        return guard.digest(data) if guard is not None and guard.encrypts else digest_of(data)

    def write_pack(
        self,
        *,
        writer: str,
        epoch: int,
        blobs: Iterable[tuple[str, bytes]],
        chunks: Iterable[PackBlob] = (),
        needs: PackNeeds | None = None,
    ) -> PackReference:
        """Write checkpoints, given as `(agent, encoded checkpoint)`, and their chunks durably as one pack.

        `writer` names one start of one host, such as `h1.3`. `needs` lists chunks and packs that the checkpoints need from other files.
        A large pack is written while `chunks` and `blobs` are consumed.

        Raises:
            StoreError: If the disk is full or failed. Only garbage remains, and a repeated call writes another file.
            UsageError: If a name is invalid, or an agent is a duplicate.
        """
        name = self._pack_name(writer, epoch)
        all_blobs = itertools.chain(chunks, _checkpoints(blobs))
        return self._write_pack(name, all_blobs, needs=needs, what=f"the pack of epoch {epoch}", point="store.pack")

    def write_chunks(self, *, writer: str, epoch: int, chunks: Iterable[PackBlob]) -> PackReference:
        """Write chunks without checkpoints as a pack, to be listed in the `needs` of a later pack. Otherwise same as `write_pack`."""
        name = self._pack_name(writer, epoch)
        return self._write_pack(name, chunks, what=f"chunks of epoch {epoch}", point="store.chunks")

    def write_checkpoints(
        self,
        *,
        writer: str,
        plan: int,
        blobs: Iterable[tuple[str, int, bytes]],
        chunks: Iterable[PackBlob] = (),
    ) -> PackReference:
        """Write checkpoints that agents took independently, given as `(agent, number, encoded checkpoint)`, as one checkpoint pack.

        An agent may have several checkpoints with different numbers. The pack contains all chunks of its checkpoints, and each checkpoint's
        `epoch` is 0. No file in the store refers to the pack, so its writer reports the pack to the coordinator. Otherwise same as
        `write_pack`.
        """
        layout.check_writer(writer)
        pack_id = self._random_bytes(_ID_BYTES).hex()
        name = layout.PackName(writer, layout.check_plan(plan), pack_id, layout.CHECKPOINTS)
        named = ((layout.checkpoint_name(agent, number), blob) for agent, number, blob in blobs)
        all_blobs = itertools.chain(chunks, _checkpoints(named))
        return self._write_pack(name, all_blobs, what=f"checkpoints of plan {plan}", point="store.checkpoints")

    def gather(self, references: Sequence[PackReference], *, epoch: int, bases: Mapping[int, str]) -> Gathered:
        """Read the indexes of all packs reported for `epoch`, and find the chunks that they reuse.

        `bases` maps each epoch whose chunks may be reused to its root.

        Raises:
            DamagedDataError: If a pack is missing, or differs from the reported pack.
            StoreError: If a reused chunk is not in its base epoch, or the base epoch is not in `bases`.
            UsageError: If a path is not the path of a pack.
        """
        for reference in references:
            epoch_of_pack(reference.path)

        def read_base(base: int) -> Manifest:
            root = bases.get(base)
            if root is None or base >= epoch:
                raise StoreError(
                    f"epoch {epoch} was written over epoch {base}, which is not kept any more: take it again"
                )
            return read_newest(self._disk, root, epoch=base)

        return gather(self._disk, references, store_id=self.store_id, epoch=epoch, read_base=read_base)

    def write_manifest(self, manifest: Manifest) -> str:
        """Write the manifest durably, and return its root. Writing the same manifest again succeeds.

        Raises:
            UsageError: If the manifest is inconsistent.
            StoreError: If the disk failed, or another manifest has this root.
        """
        root, data = encode_manifest(manifest)
        epoch = manifest.metadata.epoch
        path = layout.manifest_path(root)
        with store_files.writing(self._disk, f"the manifest of epoch {epoch}"):
            try:
                self._create(path, data, epoch=epoch, point="store.manifest")
            except FileExistsError:
                read_manifest(self._disk, root, epoch=epoch)
                raise StoreError(
                    f"{path} exists with other packs: give the new manifest of epoch {epoch} another creation time"
                ) from None
        epoch_retention.note(self._notes, path, manifest)
        return root

    def publish(self, epoch: int, root: str) -> None:
        """Write the ref of a complete epoch durably. Publishing the same root again succeeds.

        Raises:
            StoreError: If the epoch has another root, which means that two fleets use this store, or if the manifest is missing.
            DamagedDataError: If the existing ref is damaged.
        """
        path = layout.ref_path(epoch)
        manifest = layout.manifest_path(root, find_generation(self._disk, root))
        with store_files.reading(self._disk, manifest, epoch=epoch):
            self._disk.size(manifest)
        with store_files.writing(self._disk, f"the ref of epoch {epoch}"):
            try:
                data = encode_ref(epoch, root, self.store_id, self._guard)
                self._create(path, data, epoch=epoch, point="store.ref")
            except FileExistsError:
                other = read_ref(self._disk, epoch, self.store_id, self._guard)
                raise StoreError(
                    f"two fleets on one store: epoch {epoch} of {self.location} has root {other[:12]}…, not {root[:12]}…; "
                    "give each fleet a store of its own"
                ) from None

    # -- host logs: external inputs accepted by hosts (`storage/log/`) -----------------------------------------------

    def certify_log(self, log: LogName, public: bytes) -> bytes:
        """Return the certificate with which the host of this log may sign its batches. `public` is the public half of the host's key.

        The certificate is b"" where refs are not signed.
        """
        return self._log_writer.certify(log, public)

    def prepare_batch(self, log: LogName, number: int, batch: LogBatch, certificate: bytes = b"") -> PreparedBatch:
        """Return the encoded file of a batch. Pass it to `append_batch` until the outcome is known. This call writes at most a key to the
        store.

        `certificate` is the coordinator's certificate for `log_key`, which is needed where refs are signed. A process with the private key
        needs none.

        Raises:
            UsageError: If the batch is invalid, or larger than `log_record.BATCH_BYTES_MAX`.
            StoreError: If the key could not be written, or if batches are signed and `certificate` is not valid for this log.
        """
        return self._log_writer.prepare(log, number, batch, certificate)

    def append_batch(self, prepared: PreparedBatch) -> bool:
        """Create the entry. Return True if this call or an earlier attempt made the entry durable. Return False if another entry has taken
        the number permanently.

        The caller appends one batch at a time, and uses the next number only after the outcome of the previous batch is known.

        Raises:
            StoreError: If the outcome is unknown. Repeat the call with the same `prepared`.
        """
        return self._log_writer.append(prepared)

    def seal_log(self, log: LogName) -> None:
        """Seal a log durably, even if it is empty. Any number of processes may seal the same log, even repeatedly.

        Once a log is sealed, `read_logs` finds every batch of the log that was or will be acknowledged.

        Raises:
            StoreError: If the outcome is unknown. Repeat the call.
        """
        self._log_writer.seal(log)

    def delete_batches(self, places: Iterable[tuple[LogName, int]], *, plans_below: int = 0) -> list[str]:
        """Delete batches that no epoch needs (`log/log_files.py`) and temporary files of plans below `plans_below`. Return the removed
        paths.

        Seals are kept, and so is the entry with the highest number in each log. Batches of a log that is being sealed are kept too, so call
        again later.
        """
        return self._log_writer.delete(places, plans_below=plans_below)

    # -- outputs of agents to consumers outside (`storage/outputs/`) ---------------------------------------------------

    def release_outputs(
        self, epoch: int, root: str, after: int, outputs: Sequence[EmittedOutput] | None, *, created_ns: int
    ) -> None:
        """Release outputs durably with a complete epoch. Repeating the same release succeeds. `storage/outputs/output_files.py` lists the
        caller's duties.

        Args:
            epoch, root: the complete epoch and its root. Epochs are released in ascending order.
            after: the previous epoch in the epoch's history, or 0 if there is none.
            outputs: outputs of the epoch's turns since `after`, in any order. If the sequence is empty, a file is written only if it
                reverts other outputs. If None, there are no outputs, and an empty file prevents a later release.
            created_ns: wall-clock time in nanoseconds since 1970, for retention.

        Raises:
            StoreError: If the outcome is unknown (repeat the call), or if the epoch has another root, so that two fleets use this store.
            UsageError: If an output is invalid or a duplicate, or if the disk overwrites objects.
        """
        self._output_writer.release(epoch, root, after, outputs, created_ns=created_ns)

    def acknowledge_outputs(self, consumer: str, cursor: str, *, now_ns: int) -> ConsumerPosition:
        """Record durably that a named consumer has read all outputs up to `cursor`. Return the consumer's position, which never moves back.

        The first call creates the consumer. The cursor may be empty.

        Raises:
            UsageError: If the name is invalid, or `cursor` is not a cursor of this store.
            StoreError: If the position could not be written. Repeat the call.
        """
        return self._output_writer.acknowledge(consumer, cursor, now_ns=now_ns)

    def forget_consumer(self, consumer: str) -> bool:
        """Remove a consumer, so that outputs are no longer kept for that consumer. Return whether the consumer existed."""
        return self._output_writer.forget(consumer)

    def delete_outputs(self, *, now_ns: int, age_ns_max: int = AGE_NS_MAX, age_ns_min: int = AGE_NS_MIN) -> list[str]:
        """Delete releases older than `age_ns_max`. Also delete releases that all named consumers have read and that are at least
        `age_ns_min` old.

        The newest release is kept. Return the removed paths. If there is no named consumer, only `age_ns_max` counts. Only the process that
        releases outputs may call this method, one call at a time.
        """
        return self._output_writer.delete(now_ns=now_ns, age_ns_max=age_ns_max, age_ns_min=age_ns_min)

    # -- deleting ----------------------------------------------------------------------------------------------------

    def delete_epoch(self, epoch: int) -> list[str]:
        """Delete a published epoch: its ref, then its manifest, then its packs. Return the removed paths.

        The caller must know that no recovery needs the epoch (G7). If the deletion is interrupted, `delete_unreferenced` removes the
        remaining files. A missing epoch is not an error.
        """
        with store_files.writing(self._disk, f"the deletion of epoch {epoch}"):
            return epoch_retention.delete_epoch(self._disk, self.store_id, epoch, self._notes)

    def delete_unreferenced(
        self, *, begun_below: int, open_epochs: Collection[int] = (), open_writers: Collection[str] = ()
    ) -> list[str]:
        """Delete manifests and packs that no ref needs, and old temporary files. Return the removed paths.

        Args:
            begun_below: files are deleted only if their epoch has a smaller number. Pass one more than the latest epoch that had begun when
                the caller checked, so that epochs that begin meanwhile are safe.
            open_epochs: epochs to keep: epochs that are undecided, and complete epochs that are not published.
            open_writers: writers whose packs and directories are kept.
        """
        with store_files.writing(self._disk, "the deletion of garbage"):
            return epoch_retention.delete_unreferenced(
                self._disk,
                self.store_id,
                self._notes,
                begun_below=begun_below,
                open_epochs=frozenset(open_epochs),
                open_writers=frozenset(open_writers),
            )

    def compact(
        self,
        *,
        now_s: float,
        bytes_max: int = compaction.COMPACT_BYTES_MAX,
        grace_s: float = compaction.GRACE_S,
    ) -> compaction.Compacted:
        """Move live blobs out of packs that are mostly dead, up to about `bytes_max` bytes. See `compaction.py`.

        The process that deletes epochs should call this method regularly, even while epochs are committed and read. `now_s` must come from
        a clock that does not jump. Later calls on the same object remove replaced generations after `grace_s` seconds. Afterwards
        `delete_unreferenced` removes the packs of these generations. Pass `open_writers=(compaction.WRITER,)` to it.

        Raises:
            StoreError: If the disk is full or failed. Every epoch is as intact as before, and another call continues.
        """
        with store_files.writing(self._disk, "compacted packs"):
            return compaction.compact(
                self._disk,
                self.store_id,
                self._compaction,
                guard=self._guard,
                write_pack=self.write_pack,
                create=self._create,
                now_s=now_s,
                bytes_max=bytes_max,
                grace_s=grace_s,
            )

    def delete_unneeded_keys(self) -> list[str]:
        """Delete the keys that no pack, batch, output or object stream names. Return the removed paths. No process may write to the store
        meanwhile.

        If a file that may name a key cannot be read, its key is unknown, and nothing is deleted.
        """
        if self._guard is None or not self._guard.encrypts:
            return []
        with store_files.writing(self._disk, "the deletion of keys"):
            try:
                needed = keys_in_use(self._disk, self.store_id)
            except StoreError:
                return []
            return key_records.remove_unneeded(self._disk, self.store_id, needed=needed, open_writers=())

    def delete_checkpoints(self, paths: Collection[str]) -> list[str]:
        """Delete checkpoint packs, and return the removed paths. A missing pack is not an error."""
        with store_files.writing(self._disk, "the deletion of checkpoints"):
            return checkpoint_packs.delete(self._disk, paths)

    def sweep_checkpoints(self, *, plans_below: int, kept: Collection[str] = ()) -> list[str]:
        """Delete checkpoint packs of plans below `plans_below`, except the packs in `kept`. Return the removed paths."""
        with store_files.writing(self._disk, "the deletion of checkpoints"):
            return checkpoint_packs.sweep(self._disk, plans_below=plans_below, kept=kept)

    # -- probes: do two processes see the same store? ----------------------------------------------------------------

    def write_probe(self) -> tuple[str, bytes]:
        """Write a probe file, and return its path and random token. In another process, `read_probe` must return the same token."""
        token = self._random_bytes(_ID_BYTES)
        path = f"{layout.PROBES}/{self._random_bytes(_ID_BYTES).hex()}"
        with store_files.writing(self._disk, "a probe"):
            self._create(path, store_files.encode_probe(token, self.store_id), epoch=0, point="store.probe")
        return path, token

    def remove_probe(self, path: str) -> None:
        """Remove a probe file. A missing probe is not an error."""
        layout.check_probe(path)
        with store_files.writing(self._disk, "the removal of a probe"), contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)

    # -- log marks: the logs that the coordinator's replicas have had ------------------------------------------------

    def add_log_mark(self, replica: str, mark: LogMark) -> None:
        """Make `mark` the newest log mark of `replica`, durably. Raise StoreError if another process of that replica has just written a
        mark."""
        add_mark(self._disk, self.store_id, replica, mark, random_bytes=self._random_bytes)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _pack_name(self, writer: str, epoch: int) -> layout.PackName:
        layout.check_writer(writer)
        return layout.PackName(writer, layout.check_epoch(epoch), self._random_bytes(_ID_BYTES).hex())

    def _write_pack(
        self, name: layout.PackName, blobs: Iterable[PackBlob], *, needs: PackNeeds | None = None, what: str, point: str
    ) -> PackReference:
        path = layout.pack_path(name)
        with store_files.writing(self._disk, what):
            pack = PackWriter(name, store_id=self.store_id, needs=needs, keyring=self._keyring_for(name))
            try:
                self._prepare_directory(name, f"{point}.directory")
                temporary_name = layout.temporary_name(name)
                write_once(self._disk, path, pack.pieces(blobs), temporary_name=temporary_name, point=point)
            except OSError:  # The next call must not assume that the directory exists.
                self._known_directories.discard(name.directory)
                raise
        return PackReference(path, pack.size_bytes, pack.index_digest, pack.key_id)

    def _keyring_for(self, name: layout.PackName) -> Keyring:
        guard = self._guard
        if guard is None or not guard.encrypts:
            return PLAIN_KEYRING
        return Keyring(self.store_id, name.pack_id, guard, guard.begin_pack(name.writer, name.pack_id))

    def _prepare_directory(self, name: layout.PackName, point: str) -> None:
        """Create the writer's directory durably, once, and again if a sweep has removed the empty directory."""
        if name.directory not in self._known_directories or not exists(self._disk, name.directory):
            if name.folder not in layout.DIRECTORIES:
                make_durable_directory(self._disk, name.folder)
            make_durable_directory(self._disk, name.directory)
            self._known_directories.add(name.directory)
            failpoint(point)

    def _create(self, path: str, data: bytes, *, epoch: int, point: str) -> None:
        name = self._temporary_name(epoch)
        store_files.create_or_compare(self._disk, path, data, temporary_name=name, epoch=epoch, point=point)

    def _temporary_name(self, epoch: int) -> str:
        return f"{epoch}-{self._random_bytes(_ID_BYTES).hex()}"


def _identity_of(disk: Disk) -> str:
    """Return the store's id. If the identity file is damaged, read it again, because the store may have become unavailable between two
    calls."""
    with store_files.reading(disk, layout.IDENTITY):
        try:
            if exists(disk, layout.IDENTITY):
                return store_files.read_identity(disk)
        except DamagedDataError:
            if exists(disk, layout.IDENTITY):
                return store_files.read_identity(disk)
        raise missing_store_error(disk)


def _checkpoints(blobs: Iterable[tuple[str, bytes]]) -> Iterator[PackBlob]:
    return (PackBlob(name, KIND_CHECKPOINT, data) for name, data in blobs)


_TOKEN_BYTES = 16
"""Size of a random token in bytes (128 bits, so tokens do not collide)."""


class Holds:
    """Pins, tags and guarded deletion for one store, using its disk and randomness. `pins.py` describes the operations."""

    def __init__(self, store: Store, *, now_s: Callable[[], float]) -> None:
        """Create the object. `now_s` returns the time in seconds since 1970."""
        self._store = store
        self._disk = store.disk
        self._id = store.store_id
        self._now_s = now_s

    def pin(self, epoch: int) -> Pin:
        """Pin a snapshot, so that it is not deleted."""
        return self._pin(epoch, self._token())

    @contextlib.contextmanager
    def holding(self, epoch: int) -> Iterator[Pin]:
        """Pin a snapshot for the duration of the block. If the process dies meanwhile, the pin remains until `unpin` removes it."""
        token = self._token()
        made = self._pin(epoch, token)
        try:
            yield made
        finally:
            pins.unpin_own(self._disk, epoch, token)

    def unpin(self, epoch: int) -> bool:
        """Remove all pins of an epoch, and return whether there were any."""
        return pins.unpin(self._disk, epoch)

    def tag(self, name: str, epoch: int) -> Tag:
        """Tag a snapshot, so that it is kept under a name."""
        token, now_s = self._token(), self._now_s()
        return self._store.confirm_damage(lambda: pins.tag(self._disk, self._id, name, epoch, token=token, now_s=now_s))

    def untag(self, name: str) -> bool:
        """Remove a tag, and return whether it existed."""
        return pins.untag(self._disk, name)

    def pins(self) -> list[Pin]:
        """Return one pin for each pinned epoch, in ascending order of epochs."""
        return pins.list_pins(self._disk, self._id)

    def pinned(self) -> list[int]:
        """Return the pinned epochs in ascending order. Damaged pins count."""
        return pins.pinned_epochs(self._disk)

    def tags(self) -> list[Tag]:
        """Return all tags of the store, sorted by name."""
        return pins.list_tags(self._disk, self._id)

    def held(self) -> dict[int, str]:
        """Return a map from each held epoch to the reason for keeping it."""
        return pins.held_epochs(self._disk, self._id)

    def delete(
        self, epochs: Sequence[int], delete: Callable[[int], list[str]] | None = None
    ) -> dict[int, list[str] | None]:
        """Delete the epochs that are not held. `delete` removes one epoch (default: `Store.delete_epoch`). See `pins.guarded_delete`."""
        delete = delete or self._store.delete_epoch
        return pins.guarded_delete(self._disk, self._id, epochs, delete, tokens=self._token, now_s=self._now_s())

    def clear_leftovers(self, *, is_alone: bool = False) -> list[str]:
        """Remove the pins, tags and intents that dead processes left. See `pins.clear_leftovers`."""
        return pins.clear_leftovers(self._disk, self._id, now_s=self._now_s(), is_alone=is_alone)

    def _pin(self, epoch: int, token: str) -> Pin:
        now_s = self._now_s()
        return self._store.confirm_damage(lambda: pins.pin(self._disk, self._id, epoch, token=token, now_s=now_s))

    def _token(self) -> str:
        return self._store._random_bytes(_TOKEN_BYTES).hex()
