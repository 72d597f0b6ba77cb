"""The checkpoint store contains packs of checkpoints, a manifest for each epoch, and a ref for each complete epoch
(docs/snapshot-format.md).

The store also contains checkpoint packs, host logs and outputs. Checkpoint packs contain checkpoints that agents took independently. The
coordinator makes an epoch from independent checkpoints when they form a recovery line. The fleet exchanges messages with its clients
through host logs and outputs.

An epoch is stored in four steps:

1. Every host writes a pack (`write_pack`, and `write_chunks` for large amounts of data) and reports the `PackReference`.
2. The coordinator reads the index of each pack, finds reused chunks (`gather`), and writes the manifest (`write_manifest`).
3. The coordinator commits *epoch complete, root* in its log, which is the commit point.
4. The coordinator publishes the ref (`publish`). The coordinator's log determines the ref's bytes, so any leader may publish the ref, even
   repeatedly.

Callers' duties:

1. Publish a root only if its epoch is complete in the log and `write_manifest` has returned.
2. Call `delete_epoch` and `delete_unreferenced` only from one process, and pass the epochs that may still be in use. A complete epoch is in
   use until its ref has been published.
3. Use each epoch number only once in a store. `publish` detects that two fleets share one store.
4. Delete a checkpoint pack only after the epoch that replaces it is complete in the log.
5. Do not delete epochs between `gather` and the end of `write_manifest`, because their packs may contain gathered chunks.

All calls are blocking, and may come from any thread. A failed call changes nothing that other processes see, except that it may leave an
unreferenced file. Calls may be repeated. Calling `write_pack` again writes another pack.

The store guarantees G4 (packs and manifest are durable before anything refers to them, and each epoch has one root) and G11 (data that was
read is used only after its digest has been verified).

`Holds` provides pins, tags and guarded deletion for a store. `Holds` calls the functions of `pins.py` with the store's own disk and random
generator.
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
from snapline.storage.log.answer_files import AnswerFileWriter, KeptBatch, RecordedAnswers, keys_of_answers
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
    """Return the ids of all keys that are named in packs, batches, outputs, answer files and object streams. Raise DamagedDataError or StoreError if a
    file is unreadable."""
    paths = [*epoch_retention.pack_paths(disk), *checkpoint_packs.find(disk)]
    packs = {key_of_pack(disk, path, store_id) for path in paths}
    return (
        packs
        | keys_of_batches(disk, store_id)
        | keys_of_outputs(disk, store_id)
        | keys_of_answers(disk, store_id)
        | keys_of_object_streams(disk, store_id)
    )


SIGNERS_MAX = 16
"""Number of the newest refs among which one must be signed by a given key. An attacker who forges refs rarely forges more."""

_ID_BYTES = 16
"""Size of a random id in bytes (128 bits, so ids do not collide)."""


class Store(StoreReader):
    """A checkpoint store with read and write access. Threads may share the instance."""

    def __init__(
        self,
        disk: Disk,
        store_id: str,
        *,
        random_bytes: Callable[[int], bytes] = os.urandom,
        guard: Guard | None = None,
    ) -> None:
        """Private constructor. Use `open`, `create` or `open_or_create` instead, unless you supply your own disk and random generator."""
        super().__init__(disk, store_id, guard=guard)
        self._random_bytes = random_bytes
        self._notes: epoch_retention.Notes = {}
        self._compaction = compaction.Notes()
        self._log_writer = LogWriter(disk, store_id, guard=guard, random_bytes=random_bytes)
        self._output_writer = OutputWriter(
            disk, store_id, guard=guard, random_bytes=random_bytes, watchers=self._output_watchers
        )
        self._answer_writer = AnswerFileWriter(disk, store_id, guard=guard, random_bytes=random_bytes)
        self._known_directories: set[str] = set()
        """Pack directories that are durable because this object has synced their parent directories."""

    # -- opening -----------------------------------------------------------------------------------------------------

    @staticmethod
    def open(path: str | os.PathLike[str], *, disk: Disk | None = None, keys: Keys | None = None) -> "Store":
        """Open the store at a URL or a plain path (`object_disk.py`). Nothing is changed. If `disk` is given, it takes precedence over
        `path`.

        If neither `keys` nor `disk` is given, keys are read from the environment (docs/protection.md).

        Raises:
            StoreMissingError: If no store exists at this location.
            DamagedDataError: If the store's identity file is damaged.
            StoreKeyError: If the store's key is missing, or a given key is unnecessary or wrong.
            StoreError: If the object store is unreachable or returns incorrect data.
            UsageError: If the URL scheme is unknown.
        """
        keys = resolve_keys(keys, disk)
        disk = disk or open_disk(os.fspath(path))
        store_id = _identity_of(disk)
        disk = OpenedDisk(disk, store_id)
        store = Store(disk, store_id, guard=make_guard(disk, store_id, keys))
        store._check_signer()
        return store

    def _check_signer(self) -> None:
        """Raise StoreKeyError if none of the newest refs has a valid signature by a given key. A single invalid signature indicates damage,
        but if all are invalid, the key is wrong."""
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
            UsageError: If a store or other files already exist at this location.
        """
        keys = resolve_keys(keys, disk)
        disk = disk or open_disk(os.fspath(path))
        store_id = initialize_store(disk, random_bytes=random_bytes)
        disk = OpenedDisk(disk, store_id)
        guard = make_guard(disk, store_id, keys, random_bytes=random_bytes)
        return Store(disk, store_id, random_bytes=random_bytes, guard=guard)

    @staticmethod
    def open_or_create(path: str | os.PathLike[str], *, disk: Disk | None = None, keys: Keys | None = None) -> "Store":
        """Open the store, or create it if it does not exist. If several processes create the store concurrently, all get the same store."""
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

    @property
    def is_encrypted(self) -> bool:
        """Return whether blobs are encrypted, so that digests are keyed."""
        return self._guard is not None and self._guard.encrypts

    def digest(self, data: Buffer) -> bytes:
        """Return the digest of a chunk, keyed if blobs are encrypted."""
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
        """Durably write checkpoints and their chunks as one pack. Each checkpoint is given as `(agent, encoded checkpoint)`.

        `writer` identifies the host and its start number, such as `h1.3`. `needs` lists the chunks and packs in other files that the
        checkpoints need. A large pack is written piece by piece while `chunks` and `blobs` are consumed.

        Raises:
            StoreError: If the disk is full or failed. A failed call leaves only garbage, and a repeated call writes another file.
            UsageError: If a name is invalid or an agent occurs twice.
        """
        name = self._pack_name(writer, epoch)
        all_blobs = itertools.chain(chunks, _checkpoints(blobs))
        return self._write_pack(name, all_blobs, needs=needs, what=f"the pack of epoch {epoch}", point="store.pack")

    def write_chunks(self, *, writer: str, epoch: int, chunks: Iterable[PackBlob]) -> PackReference:
        """Write a pack of chunks without checkpoints. A later pack refers to it in its `needs`. In all other respects, this method is like
        `write_pack`."""
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
        """Write independently taken checkpoints as one checkpoint pack. Each checkpoint is given as `(agent, number, encoded checkpoint)`.

        An agent may have several checkpoints, with different numbers. The pack must contain all chunks of its checkpoints, and each
        checkpoint's `epoch` must be 0. No file in the store refers to the pack, so its writer must report the pack to the coordinator. In
        all other respects, this method is like `write_pack`.
        """
        layout.check_writer(writer)
        pack_id = self._random_bytes(_ID_BYTES).hex()
        name = layout.PackName(writer, layout.check_plan(plan), pack_id, layout.CHECKPOINTS)
        named = ((layout.checkpoint_name(agent, number), blob) for agent, number, blob in blobs)
        all_blobs = itertools.chain(chunks, _checkpoints(named))
        return self._write_pack(name, all_blobs, what=f"checkpoints of plan {plan}", point="store.checkpoints")

    def gather(self, references: Sequence[PackReference], *, epoch: int, bases: Mapping[int, str]) -> Gathered:
        """Read the indexes of all packs reported for `epoch`, and find the packs and chunks that their checkpoints need.

        `bases` maps each epoch whose chunks may be reused to the epoch's root.

        Raises:
            DamagedDataError: If a pack is missing or does not match the report.
            StoreError: If a reused chunk is not in its base epoch, or the base epoch is not in `bases`.
            UsageError: If a path is not a pack's path.
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
        """Durably write the manifest, and return its root. Writing the same manifest again has no effect.

        Raises:
            UsageError: If the manifest is inconsistent.
            StoreError: If the disk failed, or a different manifest with this root exists.
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
        """Durably write the ref of a complete epoch. Publishing the same root again has no effect.

        Raises:
            StoreError: If the manifest is missing, or the epoch has another root, which means that two fleets use this store.
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
        """Create the certificate that allows a host to sign the batches of this log. `public` is the host's public key.

        If refs are not signed, the certificate is b"".
        """
        return self._log_writer.certify(log, public)

    def prepare_batch(self, log: LogName, number: int, batch: LogBatch, certificate: bytes = b"") -> PreparedBatch:
        """Encode a batch as a file. The caller passes the result to `append_batch` until the outcome is known. `prepare_batch` writes
        nothing to the store except perhaps a key.

        `certificate` is the coordinator's certificate for `log_key`, which is required if refs are signed. A process with the private key
        needs no certificate.

        Raises:
            UsageError: If the batch is invalid or exceeds `log_record.BATCH_BYTES_MAX`.
            StoreError: If the key cannot be written, or if batches are signed and `certificate` is invalid for this log.
        """
        return self._log_writer.prepare(log, number, batch, certificate)

    def append_batch(self, prepared: PreparedBatch) -> bool:
        """Create the file of a log entry. Return True if this call or an earlier attempt made the entry durable. Return
        False if the number permanently belongs to another entry.

        The caller must append one batch at a time, and use the next number only after the outcome of the previous batch is known.

        Raises:
            StoreError: If the outcome is unknown. The caller should repeat the call with the same `prepared`.
        """
        return self._log_writer.append(prepared)

    def seal_log(self, log: LogName) -> None:
        """Durably seal a log, even if it is empty. Several processes may seal the same log, even repeatedly.

        Once a log is sealed, `read_logs` finds every batch of the log that has been or will be acknowledged.

        Raises:
            StoreError: If the outcome is unknown. The caller should repeat the call.
        """
        self._log_writer.seal(log)

    def delete_batches(self, places: Iterable[tuple[LogName, int]], *, plans_below: int = 0) -> list[str]:
        """Delete batches that no epoch needs (`log/log_files.py`), and temporary files of plans below `plans_below`. Return the removed
        paths.

        Seals and the entry with the highest number in each log are kept. Batches of a log that is being sealed are also kept, so the caller
        should repeat the call later.
        """
        return self._log_writer.delete(places, plans_below=plans_below)

    def keep_answers(self, batches: Iterable[KeptBatch], *, plan: int) -> None:
        """Durably write the answers in batches that are about to be deleted. `plan` is the current plan. Raise StoreError."""
        self._answer_writer.keep(batches, plan=plan)

    def delete_answers(self, paths: Collection[str]) -> list[str]:
        """Delete answer files, and return the removed paths."""
        return self._answer_writer.delete(paths)

    def record_answers(self, answers: RecordedAnswers) -> None:
        """Write the answers on which the fleet of this store will run. No host may have started yet.

        Raises:
            UsageError: If there are too many answers, or the fleet has some already.
            StoreError: If the disk failed.
        """
        self._answer_writer.record(answers)

    # -- outputs of agents to consumers outside (`storage/outputs/`) ---------------------------------------------------

    def release_outputs(
        self, epoch: int, root: str, after: int, outputs: Sequence[EmittedOutput] | None, *, created_ns: int
    ) -> None:
        """Durably release the outputs of a complete epoch. Repeating the same release has no effect. The module docstring of
        `storage/outputs/output_files.py` lists the caller's duties.

        Args:
            epoch, root: number and root of the complete epoch. Epochs must be released in ascending order.
            after: previous epoch in the same history, or 0 if there is none.
            outputs: outputs emitted by the turns of the epoch since `after`, in any order. An empty sequence is written to a file only if
                the release reverts other outputs. None also means that there are no outputs, but forces an empty file, which prevents a
                later release.
            created_ns: wall-clock time in nanoseconds since 1970, for retention.

        Raises:
            StoreError: If the outcome is unknown, in which case the caller repeats the call, or if the epoch has another root because two
                fleets use this store.
            UsageError: If an output is invalid or duplicate, or the disk overwrites objects.
        """
        self._output_writer.release(epoch, root, after, outputs, created_ns=created_ns)

    def acknowledge_outputs(self, consumer: str, cursor: str, *, now_ns: int) -> ConsumerPosition:
        """Durably record that a named consumer has read all outputs up to `cursor`. Return the consumer's position, which never moves
        backwards.

        The first call creates the consumer. The cursor may be empty.

        Raises:
            UsageError: If the name is invalid, or `cursor` does not belong to this store.
            StoreError: If the position cannot be written. The caller should then repeat the call.
        """
        return self._output_writer.acknowledge(consumer, cursor, now_ns=now_ns)

    def forget_consumer(self, consumer: str) -> bool:
        """Remove a consumer, so that outputs are no longer kept for it. Return whether it existed."""
        return self._output_writer.forget(consumer)

    def delete_outputs(self, *, now_ns: int, age_ns_max: int = AGE_NS_MAX, age_ns_min: int = AGE_NS_MIN) -> list[str]:
        """Delete releases older than `age_ns_max`. Also delete releases that are at least `age_ns_min` old and that all named consumers
        have read.

        The newest release is always kept. Return the removed paths. Without named consumers, only releases older than `age_ns_max` are
        deleted. Only the process that releases outputs may call this method, one call at a time.
        """
        return self._output_writer.delete(now_ns=now_ns, age_ns_max=age_ns_max, age_ns_min=age_ns_min)

    # -- deleting ----------------------------------------------------------------------------------------------------

    def delete_epoch(self, epoch: int) -> list[str]:
        """Delete a published epoch in the order ref, manifest, packs. Return the removed paths.

        The caller must ensure that no recovery needs the epoch (G7). If the deletion is interrupted, `delete_unreferenced` removes the
        remaining files. It is not an error if the epoch does not exist.
        """
        with store_files.writing(self._disk, f"the deletion of epoch {epoch}"):
            return epoch_retention.delete_epoch(self._disk, self.store_id, epoch, self._notes)

    def delete_unreferenced(
        self, *, begun_below: int, open_epochs: Collection[int] = (), open_writers: Collection[str] = ()
    ) -> list[str]:
        """Delete manifests and packs that no ref needs, and old temporary files. Return the removed paths.

        Args:
            begun_below: first epoch number whose files are always kept. Pass one more than the latest epoch that had begun when the caller
                checked, to protect epochs that begin meanwhile.
            open_epochs: further epochs to keep, which are undecided epochs and complete epochs without a published ref.
            open_writers: writers whose packs and directories must be kept.
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
        """Move up to about `bytes_max` bytes of live blobs out of packs that are mostly dead. See `compaction.py`.

        The process that deletes epochs should call this method regularly, even while epochs are committed and read. `now_s` must come from
        a monotonic clock. Later calls on the same instance remove replaced generations after `grace_s` seconds. After that,
        `delete_unreferenced` removes the packs of these generations. Pass `open_writers=(compaction.WRITER,)` to it.

        Raises:
            StoreError: If the disk is full or failed. Every epoch remains as intact as before, and another call continues the work.
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
        """Delete keys that no pack, batch, output, answer file or object stream names. Return the removed paths. No process may write to the store
        meanwhile.

        If a file that may name a key is unreadable, nothing is deleted, because its key may be needed.
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
        """Delete these checkpoint packs, and return the removed paths. It is not an error if a pack is missing."""
        with store_files.writing(self._disk, "the deletion of checkpoints"):
            return checkpoint_packs.delete(self._disk, paths)

    def sweep_checkpoints(self, *, plans_below: int, kept: Collection[str] = ()) -> list[str]:
        """Delete the checkpoint packs of plans below `plans_below`, except the packs in `kept`. Return the removed paths."""
        with store_files.writing(self._disk, "the deletion of checkpoints"):
            return checkpoint_packs.sweep(self._disk, plans_below=plans_below, kept=kept)

    # -- probes: do two processes see the same store? ----------------------------------------------------------------

    def write_probe(self) -> tuple[str, bytes]:
        """Write a probe file, and return its path and random token. Another process that uses the same store reads the same token with
        `read_probe`."""
        token = self._random_bytes(_ID_BYTES)
        path = f"{layout.PROBES}/{self._random_bytes(_ID_BYTES).hex()}"
        with store_files.writing(self._disk, "a probe"):
            self._create(path, store_files.encode_probe(token, self.store_id), epoch=0, point="store.probe")
        return path, token

    def remove_probe(self, path: str) -> None:
        """Remove a probe file. It is not an error if the probe is missing."""
        layout.check_probe(path)
        with store_files.writing(self._disk, "the removal of a probe"), contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)

    # -- log marks: the logs that the coordinator's replicas have had ------------------------------------------------

    def add_log_mark(self, replica: str, mark: LogMark) -> None:
        """Store `mark` durably as the newest log mark of `replica`. Raise StoreError if another process has just written a mark for this
        replica."""
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
        """Create the writer's directory durably, unless it is known and still exists. Garbage collection may have removed an empty
        directory."""
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
    """Return the store's id. A damaged identity file is read again, because the store may have become unavailable between two calls."""
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
    """Pins, tags and guarded deletion for one store. `pins.py` describes the operations."""

    def __init__(self, store: Store, *, now_s: Callable[[], float]) -> None:
        """Create the object. `now_s` returns the current time in seconds since 1970."""
        self._store = store
        self._disk = store.disk
        self._id = store.store_id
        self._now_s = now_s

    def pin(self, epoch: int) -> Pin:
        """Pin a snapshot, so that it is not deleted."""
        return self._pin(epoch, self._token())

    @contextlib.contextmanager
    def holding(self, epoch: int) -> Iterator[Pin]:
        """Keep a snapshot pinned for the duration of the `with` block. If the process dies, the pin remains until `unpin` removes it."""
        token = self._token()
        made = self._pin(epoch, token)
        try:
            yield made
        finally:
            pins.unpin_own(self._disk, epoch, token)

    def unpin(self, epoch: int) -> bool:
        """Remove all pins of an epoch, and return whether any existed."""
        return pins.unpin(self._disk, epoch)

    def tag(self, name: str, epoch: int) -> Tag:
        """Tag a snapshot, so that it is kept under a name."""
        token, now_s = self._token(), self._now_s()
        return self._store.confirm_damage(lambda: pins.tag(self._disk, self._id, name, epoch, token=token, now_s=now_s))

    def untag(self, name: str) -> bool:
        """Remove a tag, and return whether it existed."""
        return pins.untag(self._disk, name)

    def pins(self) -> list[Pin]:
        """Return one pin per pinned epoch, in ascending order of epochs."""
        return pins.list_pins(self._disk, self._id)

    def pinned(self) -> list[int]:
        """Return the pinned epochs in ascending order. Damaged pins count."""
        return pins.pinned_epochs(self._disk)

    def tags(self) -> list[Tag]:
        """Return all tags of the store, sorted by name."""
        return pins.list_tags(self._disk, self._id)

    def held(self) -> dict[int, str]:
        """Return the reason for which each held epoch is kept."""
        return pins.held_epochs(self._disk, self._id)

    def delete(
        self, epochs: Sequence[int], delete: Callable[[int], list[str]] | None = None
    ) -> dict[int, list[str] | None]:
        """Delete all given epochs that are not held. `delete` must delete one epoch, and is `Store.delete_epoch` by default. See
        `pins.guarded_delete`."""
        delete = delete or self._store.delete_epoch
        return pins.guarded_delete(self._disk, self._id, epochs, delete, tokens=self._token, now_s=self._now_s())

    def clear_leftovers(self, *, is_alone: bool = False) -> list[str]:
        """Remove the pins, tags and intents that dead processes left behind. See `pins.clear_leftovers`."""
        return pins.clear_leftovers(self._disk, self._id, now_s=self._now_s(), is_alone=is_alone)

    def _pin(self, epoch: int, token: str) -> Pin:
        now_s = self._now_s()
        return self._store.confirm_damage(lambda: pins.pin(self._disk, self._id, epoch, token=token, now_s=now_s))

    def _token(self) -> str:
        return self._store._random_bytes(_TOKEN_BYTES).hex()
