"""Read access to a store, which includes refs, manifests, checkpoints and state parts. Reading changes nothing. `store.py` describes the
store."""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from snapline.errors import DamagedDataError, NotFoundError, StoreKeyError, UsageError
from snapline.storage.capture import decoder
from snapline.storage.capture.decoder import PartReader
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import Disk, parallel_map, requests_at_once
from snapline.storage.disk.record import Guard, authenticates
from snapline.storage.disk.store_files import ForkRecord, LogMark, OpenedDisk, exists, read_fork, read_marks
from snapline.storage.keys.key_records import list_keys
from snapline.storage.log.answer_files import AnswerFileReader, KeptBatch, RecordedAnswers
from snapline.storage.log.log_files import NO_STARTS, LogReader
from snapline.storage.log.log_record import LogBatch, LogName
from snapline.storage.outputs.output_files import ConsumerPosition, OutputBatch, OutputReader, read_consumers
from snapline.storage.outputs.output_record import Release
from snapline.storage.packs import checkpoint_packs
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.packs.compaction import other_generations
from snapline.storage.packs.manifest import AgentLine, Manifest, read_manifest, read_ref
from snapline.storage.packs.pack import BlobEntry, PackBlob, PackReference
from snapline.storage.retention import pins
from snapline.storage.store import verify
from snapline.storage.store.verify import Verification

_Result = TypeVar("_Result")

_PREFIX_DIGITS_MIN = 4
"""Shortest prefix of a root that is accepted. A shorter prefix is probably a typing error."""


class StoreReader:
    """Read-only access to a checkpoint store.

    Attributes:
        store_id: random id, which is chosen when the store is created and is contained in the store's files.
    """

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None = None) -> None:
        self.store_id = store_id
        self._disk = disk
        self._guard = guard
        self._log_reader = LogReader(disk, store_id, guard=guard)
        self._answer_reader = AnswerFileReader(disk, store_id, guard=guard)
        self._output_reader = OutputReader(disk, store_id, guard=guard)
        self._output_watchers: list[Callable[[int], None]] = []

    @property
    def location(self) -> str:
        """Location of the store, for messages to people."""
        return self._disk.location

    @property
    def disk(self) -> Disk:
        """The store's disk. Only the `storage` package may use the disk directly, because it obeys the store's rules."""
        return self._disk

    @property
    def guard(self) -> Guard | None:
        """Encryption and signing keys of the store, or None if blobs are not encrypted and refs are not signed."""
        return self._guard

    def require_available(self) -> None:
        """Check that the opened store is still present by reading its id. Raise StoreError if the store is unavailable or has been replaced
        by another store."""
        with store_files.reading(self._disk, layout.IDENTITY):
            if isinstance(self._disk, OpenedDisk):
                self._disk.require_available()

    def confirm_damage(self, read: Callable[[], _Result]) -> _Result:
        """Call `read` and return its result. If `read` reports damage, check that the store is present and call `read` again. Only damage
        that is found twice is reported.

        Raises:
            DamagedDataError: If the damage persists.
            StoreError: If the store is unavailable, or `read` raises this error.
        """
        try:
            return read()
        except DamagedDataError:
            self.require_available()
        return read()

    def epochs(self) -> list[int]:
        """Return the numbers of the published epochs in ascending order."""
        with store_files.reading(self._disk, layout.EPOCH_REFS):
            entries = self._disk.list_directory(layout.EPOCH_REFS)
        numbers = (layout.parse_ref_path(f"{layout.EPOCH_REFS}/{entry.name}") for entry in entries)
        return sorted(number for number in numbers if number is not None)

    def read_ref(self, epoch: int) -> str:
        """Return the root hash of `epoch`. Raise NotFoundError if the epoch is not published, and DamagedDataError if its ref is
        damaged."""
        with store_files.reading(self._disk, layout.ref_path(epoch), epoch=epoch):
            if not exists(self._disk, layout.ref_path(epoch)):
                raise NotFoundError(f"epoch {epoch} is not in the store {self.location}: `snapshot list` shows what is")
        return read_ref(self._disk, epoch, self.store_id, self._guard)

    def read_manifest(self, root: str, *, epoch: int | None = None) -> Manifest:
        """Read and check the manifest with this root. If `epoch` is given, the manifest must belong to that epoch, and error messages name
        the epoch.

        Raises:
            DamagedDataError: If the manifest is missing or damaged.
        """
        return read_manifest(self._disk, layout.check_root(root), epoch=epoch)

    def read_checkpoint(self, manifest: Manifest, agent: str) -> AgentCheckpoint:
        """Return the checkpoint of one agent, after checking every digest (G11).

        Raises:
            NotFoundError: If the epoch does not contain the agent.
            DamagedDataError: If the checkpoint is damaged. The message names the file, the epoch and the agent.
        """
        return self._read_line(manifest, manifest.line_of(agent))

    def read_checkpoints(self, manifest: Manifest, agents: Collection[str] | None = None) -> Iterator[AgentCheckpoint]:
        """Yield the checkpoints of `agents`, sorted by agent. The default is all agents. Raise the errors of `read_checkpoint`.

        Checkpoints in an object store are read in parallel, slightly before the caller needs them.
        """
        lines = manifest.agents
        if agents is not None:
            lines_by_agent = {line.agent: line for line in manifest.agents}
            lines = [
                lines_by_agent[agent] if agent in lines_by_agent else manifest.line_of(agent)
                for agent in sorted(set(agents))
            ]
        yield from parallel_map(functools.partial(self._read_line, manifest), lines, requests_at_once(self._disk))

    def part_reader(self, manifest: Manifest) -> PartReader:
        """Return a reader for the epoch's state parts, which are arrays, histories and blobs."""

        def others() -> Iterator[PartReader]:
            return map(self._part_reader, other_generations(self._disk, manifest))

        return self._part_reader(manifest, others)

    def checkpoint_packs(self, plan: int | None = None) -> list[str]:
        """Return the paths of all checkpoint packs, or of one plan's checkpoint packs, in sorted order."""
        with store_files.reading(self._disk, layout.CHECKPOINTS):
            return checkpoint_packs.find(self._disk, plan)

    def reference_checkpoint_pack(self, path: str) -> PackReference:
        """Return the reference to a pack, as its writer reported it. Raise the errors of `read_checkpoint_pack`."""
        return checkpoint_packs.make_reference(self._disk, path, store_id=self.store_id)

    def read_checkpoint_pack(
        self, pack: str | PackReference, wanted: Mapping[str, Collection[int]] | None = None
    ) -> list[AgentCheckpoint]:
        """Read checkpoints from a checkpoint pack, in the order in which the pack contains them. `wanted` maps each agent to the numbers of
        the checkpoints to read. The default is all checkpoints.

        Every digest is verified, and each checkpoint is compared with its name. If `pack` is a reference, the file must match the reported
        pack.

        Raises:
            NotFoundError: If the pack lacks one of these checkpoints.
            DamagedDataError: If the pack is missing or damaged. The message names the file and, if a single blob is damaged, the agent.
            UsageError: If `pack` is not the path of a checkpoint pack.
        """
        return checkpoint_packs.read(self._disk, pack, wanted, store_id=self.store_id, guard=self._guard)

    def read_chunks(self, path: str, digests: Collection[bytes]) -> Iterator[PackBlob]:
        """Yield chunks of a checkpoint pack, so that they can be written to another pack. Raise the errors of `read_checkpoint_pack`."""
        return checkpoint_packs.read_chunks(self._disk, path, digests, store_id=self.store_id, guard=self._guard)

    def resolve(self, snapshot: str) -> int:
        """Find the snapshot that a name denotes, and return its epoch. The name may be `"latest"`, an epoch number, a tag, or a unique
        prefix of a root with at least 4 digits.

        Raises:
            NotFoundError: If no snapshot matches, or several do.
        """
        epochs = self.epochs()
        if snapshot == "latest":
            if not epochs:
                raise NotFoundError(f"the store {self.location} holds no snapshot yet")
            return epochs[-1]
        if snapshot.isdecimal() and int(snapshot) in epochs:
            return int(snapshot)
        tagged = pins.tagged_epoch(self._disk, self.store_id, snapshot)
        if tagged is not None and tagged in epochs:
            return tagged
        matching = self._with_root_prefix(epochs, snapshot) if len(snapshot) >= _PREFIX_DIGITS_MIN else []
        if not matching:
            raise NotFoundError(f"no snapshot {snapshot!r} in the store {self.location}: `snapshot list` shows what is")
        if len(matching) > 1:
            raise NotFoundError(f"{snapshot!r} begins the roots of epochs {matching}: give more digits")
        return matching[0]

    def verify(self, epoch: int | None = None) -> Verification:
        """Read every byte of every file of the store, or of one epoch. Report each difference from what was originally written.

        Verification changes nothing, and may run while a fleet is using the store.

        Raises:
            NotFoundError: If the epoch does not exist.
            StoreError: If the store is unavailable.
        """
        with store_files.reading(self._disk, layout.EPOCH_REFS):
            if epoch is not None and not exists(self._disk, layout.ref_path(epoch)):
                raise NotFoundError(f"epoch {epoch} is not in the store {self.location}: `snapshot list` shows what is")
            verification = verify.verify_disk(self._disk, self.store_id, epoch=epoch, guard=self._guard)
        if verification.findings:
            self.require_available()
        return verification

    @property
    def logs_unsupported_reason(self) -> str:
        """Return why this store cannot contain host logs, or "" if it supports them."""
        return self._log_reader.unsupported_reason

    def find_logs(self, since_plan: int = 0) -> list[LogName]:
        """Return the host logs of this plan and later ones that have a directory, in sorted order.

        Raises:
            StoreError: If the store is unreadable.
        """
        return self._log_reader.find_logs(since_plan)

    def read_logs(self, logs: Iterable[LogName] | None = None) -> dict[LogName, list[int]]:
        """Return the numbers of all entries (batches and seals) of each non-empty log among `logs`, or among all host logs if that is None.
        Numbers are in ascending order.

        The function returns only after the entries are durable. The numbers may have gaps, and any entry may be a seal. So callers must
        read all entries and skip the seals.

        Raises:
            StoreError: If the store is unreadable.
        """
        return self._log_reader.read_logs(logs)

    def read_batch(self, log: LogName, number: int) -> LogBatch | None:
        """Read one entry of a host log. Return the batch, or None for a seal. The function returns only after the entry is durable.

        Raises:
            NotFoundError: If the entry does not exist. If `read_logs` listed the entry, it was deleted meanwhile, because every kept epoch
                covers its contents.
            DamagedDataError: If the entry is damaged. The message names its path.
            StoreError: If the store is unreadable, or the batch does not have the encryption that the store requires.
        """
        return self._log_reader.read_batch(log, number)

    def exclude_deleted(self, logs: Mapping[LogName, list[int]]) -> dict[LogName, list[int]]:
        """Remove batches that were deleted as garbage from `logs`, which is a result of `read_logs`.

        Deletions are recorded only in signed or encrypted stores. If a batch exists although it was deleted, the deleter crashed, or
        somebody without a key restored the file. Callers that deliver inputs from logs to agents must not read deleted batches.

        Raises:
            StoreError: As in `missing_batches`.
        """
        return self._log_reader.exclude_deleted(logs)

    def missing_batches(
        self,
        batches: Mapping[LogName, Collection[int]],
        newest: Mapping[LogName, int],
        starts: Mapping[LogName, int] = NO_STARTS,
    ) -> dict[LogName, int]:
        """Return the lowest missing batch number of each host log. A batch counts as missing only if it was not deleted as garbage.

        Missing batches can be detected only in signed or encrypted stores. For any other store, the result is empty.

        Args:
            batches: map from log to the numbers of the batches found by `read_logs` and `read_batch`. No process may append to the logs
                meanwhile.
            newest: map from log to the highest number that is known to have been appended.
            starts: map from log to the first number that is needed. No lower number counts as missing.

        Raises:
            StoreError: If the store is unreadable, or somebody without a key has written a deletion record.
        """
        return self._log_reader.missing_batches(batches, newest, starts)

    @property
    def log_key(self) -> bytes:
        """Public key that verifies the host-log batches of this process, or b"" if refs are not signed."""
        return self._guard.log_key() if self._guard is not None and self._guard.requires_signatures else b""

    @property
    def is_authenticated(self) -> bool:
        """Return whether the store is signed or encrypted."""
        return authenticates(self._guard)

    def output_epochs(self) -> list[int]:
        """Return the epochs whose output releases still exist, in ascending order. The function returns only after these releases are
        durable.

        Raises:
            StoreError: If the store is unreadable.
        """
        return self._output_reader.epochs()

    def read_release(self, epoch: int) -> Release:
        """Return all outputs that were released with an epoch.

        Raises:
            NotFoundError: If the release does not exist or was deleted.
            DamagedDataError: If the release is damaged. The message names its path.
            StoreError: If the store is unreadable, or the release does not have the encryption that the store requires.
        """
        return self._output_reader.release(epoch)

    def watch_outputs(self, watcher: Callable[[int], None]) -> None:
        """Register a watcher, which is called with the epoch of each release that this object makes or finds complete, and with 0 after
        each deletion.

        The calls come from the thread that releases or deletes, so `watcher` must return at once.
        """
        self._output_watchers.append(watcher)

    def read_outputs(self, after: str = "", *, epochs: Sequence[int] | None = None) -> Iterator[OutputBatch]:
        """Yield the outputs that have been released after a cursor, in order. Files are read lazily.

        `after` is a cursor from a previous batch, or "" to start with the oldest existing output. `OutputBatch.cursor` returns the cursor
        of each output. After a rollback of the fleet, a batch also names the epochs whose outputs are reverted before the batch applies.
        `epochs` is a result of `output_epochs` if the caller has one.

        Raises:
            UsageError: If `after` is not a cursor of this store.
            NotFoundError: If outputs after the cursor were deleted. The message names the epoch of the oldest existing outputs.
            DamagedDataError, StoreError: As in `read_release`.
        """
        return self._output_reader.batches(after, epochs)

    def output_consumers(self) -> dict[str, ConsumerPosition]:
        """Return the positions of all named consumers of outputs, sorted by name. Raise DamagedDataError or StoreError."""
        return read_consumers(self._disk, self.store_id)

    def read_probe(self, path: str) -> bytes:
        """Return the token in a probe file written by another process.

        Raises:
            DamagedDataError: If the probe is missing or damaged. If the probe is missing, this may be another store.
            UsageError: If the path is not a probe's path.
            StoreKeyError: If this process uses encryption, but the process that wrote the probe does not.
        """
        layout.check_probe(path)
        if self._guard is not None and self._guard.encrypts and not list_keys(self._disk):
            raise StoreKeyError(
                f"there is a key for the store {self.location}, and the coordinator has none: give all processes the same SNAPLINE_STORE_KEY"
            )
        return store_files.read_probe(self._disk, path, self.store_id)

    def answer_files(self) -> list[str]:
        """Return the paths of the files with answers of deleted batches (`log/answer_files.py`)."""
        return self._answer_reader.files()

    def read_answers(self, path: str) -> list[KeptBatch]:
        """Read an answer file. Raise DamagedDataError or StoreError."""
        return self._answer_reader.read(path)

    def recorded_answers(self) -> RecordedAnswers | None:
        """Return the answers on which the store's fleet runs, or None if it runs on none. Raise DamagedDataError or StoreError."""
        return self._answer_reader.recorded()

    def fork_record(self) -> ForkRecord | None:
        """Return the fork record of the store's fleet, or None if the fleet is not a fork. Raise DamagedDataError or StoreError."""
        return read_fork(self._disk, self.store_id, self._guard)

    def log_marks(self) -> dict[str, list[LogMark]]:
        """Return the log marks of each coordinator replica, oldest first. Raise DamagedDataError or StoreError."""
        return read_marks(self._disk, self.store_id)

    def read_pack_index(self, reference: PackReference) -> list[BlobEntry]:
        """Read and check the footer and index of a reported pack, and return the index's entries. The blobs themselves are not read.

        Raises:
            DamagedDataError: If the file is missing or does not match the report.
            UsageError: If the path is not a pack's path.
        """
        epoch = epoch_of_pack(reference.path)
        return checkpoint_packs.read_reported_index(self._disk, reference, store_id=self.store_id, epoch=epoch).entries

    def _part_reader(self, manifest: Manifest, others: Callable[[], Iterable[PartReader]] = tuple) -> PartReader:
        path = f"the manifest of epoch {manifest.metadata.epoch}"
        return decoder.reader_of_manifest(
            self._disk, manifest, store_id=self.store_id, guard=self._guard, path=path, others=others
        )

    def _read_line(self, manifest: Manifest, line: AgentLine) -> AgentCheckpoint:
        """Read an agent's checkpoint. If the blob is unreadable, try other manifest generations, because the blob may have moved or an
        intact copy may exist."""
        try:
            return self._read_place(manifest, line)
        except DamagedDataError:
            for other in other_generations(self._disk, manifest):
                with contextlib.suppress(DamagedDataError):
                    return self._read_place(other, other.line_of(line.agent))
            raise

    def _read_place(self, manifest: Manifest, line: AgentLine) -> AgentCheckpoint:
        pack = manifest.packs[line.pack]
        keyring = checkpoint_packs.keyring_of(self._guard, store_id=self.store_id, path=pack.path, key_id=pack.key_id)
        return checkpoint_packs.read_checkpoint(
            self._disk, pack.path, line.entry(), epoch=manifest.metadata.epoch, keyring=keyring
        )

    def _with_root_prefix(self, epochs: list[int], prefix: str) -> list[int]:
        matching = []
        for epoch in epochs:
            with contextlib.suppress(DamagedDataError, NotFoundError):  # A damaged ref has no root to compare.
                if self.read_ref(epoch).startswith(prefix.lower()):
                    matching.append(epoch)
        return matching


def epoch_of_pack(path: str) -> int:
    """Return the epoch of the pack at `path`. Raise UsageError if `path` is not the path of a pack."""
    name = layout.parse_pack_path(path)
    if name is None:
        raise UsageError(f"{path!r} is no path of a pack: they look like packs/<writer>/<epoch>.<random>")
    return name.number
