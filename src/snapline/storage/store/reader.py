"""Read access to a store: refs, manifests, checkpoints and state parts. Reading changes nothing. `store.py` describes the store."""

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
from snapline.storage.log.log_files import LogReader
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
    """Read-only view of one checkpoint store.

    Attributes:
        store_id: random id that is created with the store. The store's files contain it.
    """

    def __init__(self, disk: Disk, store_id: str, *, guard: Guard | None = None) -> None:
        self.store_id = store_id
        self._disk = disk
        self._guard = guard
        self._log_reader = LogReader(disk, store_id, guard=guard)
        self._output_reader = OutputReader(disk, store_id, guard=guard)
        self._output_watchers: list[Callable[[int], None]] = []

    @property
    def location(self) -> str:
        """Location of the store, for messages to people."""
        return self._disk.location

    @property
    def disk(self) -> Disk:
        """The store's disk. Only code in `storage/` may use it, because that code obeys the store's rules."""
        return self._disk

    @property
    def guard(self) -> Guard | None:
        """Keys of the store, or None if blobs are not encrypted and refs are not signed."""
        return self._guard

    def require_available(self) -> None:
        """Read the id of the opened store. Raise StoreError if the store is unavailable, or another store has replaced it."""
        with store_files.reading(self._disk, layout.IDENTITY):
            if isinstance(self._disk, OpenedDisk):
                self._disk.require_available()

    def confirm_damage(self, read: Callable[[], _Result]) -> _Result:
        """Return the result of `read`. If `read` finds damage, read the store's id and call `read` again. Only repeated damage counts.

        Raises:
            DamagedDataError: If the damage persists.
            StoreError: If the store is unavailable, or `read` raised this error.
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
        """Return the root of `epoch`. Raise NotFoundError if the epoch is not published, and DamagedDataError if its ref is damaged."""
        with store_files.reading(self._disk, layout.ref_path(epoch), epoch=epoch):
            if not exists(self._disk, layout.ref_path(epoch)):
                raise NotFoundError(f"epoch {epoch} is not in the store {self.location}: `snapshot list` shows what is")
        return read_ref(self._disk, epoch, self.store_id, self._guard)

    def read_manifest(self, root: str, *, epoch: int | None = None) -> Manifest:
        """Return the manifest that has this root. If `epoch` is given, the manifest must be of that epoch, and errors name the epoch.

        Raises:
            DamagedDataError: If the manifest is missing or damaged.
        """
        return read_manifest(self._disk, layout.check_root(root), epoch=epoch)

    def read_checkpoint(self, manifest: Manifest, agent: str) -> AgentCheckpoint:
        """Return the checkpoint of one agent, after checking every digest (G11).

        Raises:
            NotFoundError: If the agent is not in this epoch.
            DamagedDataError: If the checkpoint is damaged. The message names file, epoch and agent.
        """
        return self._read_line(manifest, manifest.line_of(agent))

    def read_checkpoints(self, manifest: Manifest, agents: Collection[str] | None = None) -> Iterator[AgentCheckpoint]:
        """Yield the checkpoints of `agents` (default: all), sorted by agent. Raise the errors of `read_checkpoint`.

        From an object store, checkpoints are read in parallel, and slightly before the caller needs them.
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
        """Return a reader for the state parts of this epoch: arrays, histories and blobs."""

        def others() -> Iterator[PartReader]:
            return map(self._part_reader, other_generations(self._disk, manifest))

        return self._part_reader(manifest, others)

    def checkpoint_packs(self, plan: int | None = None) -> list[str]:
        """Return the sorted paths of all checkpoint packs, or only of the packs of one plan."""
        with store_files.reading(self._disk, layout.CHECKPOINTS):
            return checkpoint_packs.find(self._disk, plan)

    def reference_checkpoint_pack(self, path: str) -> PackReference:
        """Return the reference that the pack's writer reported. Raise the errors of `read_checkpoint_pack`."""
        return checkpoint_packs.make_reference(self._disk, path, store_id=self.store_id)

    def read_checkpoint_pack(
        self, pack: str | PackReference, wanted: Mapping[str, Collection[int]] | None = None
    ) -> list[AgentCheckpoint]:
        """Return the checkpoints of a checkpoint pack in the order of the pack. `wanted` maps each agent to the numbers of its wanted
        checkpoints (default: all checkpoints).

        Every digest is checked, and each checkpoint is compared with its name. If `pack` is a reference, the file must match the reported
        pack.

        Raises:
            NotFoundError: If the pack lacks one of the wanted checkpoints.
            DamagedDataError: If the pack is missing or damaged. The message names the file, and also the agent if one blob is damaged.
            UsageError: If the path is not the path of a checkpoint pack.
        """
        return checkpoint_packs.read(self._disk, pack, wanted, store_id=self.store_id, guard=self._guard)

    def read_chunks(self, path: str, digests: Collection[bytes]) -> Iterator[PackBlob]:
        """Yield chunks of a checkpoint pack, to be written to another pack. Raise the errors of `read_checkpoint_pack`."""
        return checkpoint_packs.read_chunks(self._disk, path, digests, store_id=self.store_id, guard=self._guard)

    def resolve(self, snapshot: str) -> int:
        """Return the epoch that `snapshot` names. The name may be `"latest"`, a number, a tag, or a unique prefix (4 digits or more) of a
        root.

        Raises:
            NotFoundError: If no snapshot matches, or more than one does.
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
        """Read every byte of every file of the store, or of one epoch. Report each difference from the bytes that were written.

        Verification changes nothing, and may run while a fleet uses the store.

        Raises:
            NotFoundError: If there is no such epoch.
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
        """Return why this store cannot contain host logs, or "" if it can."""
        return self._log_reader.unsupported_reason

    def read_logs(self) -> dict[LogName, list[int]]:
        """Return a map from each non-empty host log to the numbers of its entries (batches and seals) in ascending order.

        The entries are durable when this function returns. The numbers have gaps, and any entry may be a seal. So read all entries and skip
        the seals.

        Raises:
            StoreError: If the store cannot be read.
        """
        return self._log_reader.read_logs()

    def read_batch(self, log: LogName, number: int) -> LogBatch | None:
        """Return one entry of a host log, or None if the entry is a seal. The entry is durable when this function returns.

        Raises:
            NotFoundError: If there is no such entry. If `read_logs` listed the entry, it was deleted meanwhile, because every kept epoch
                covers it.
            DamagedDataError: If the entry is damaged. The message names its path.
            StoreError: If the store cannot be read, or the batch is encrypted differently from the store.
        """
        return self._log_reader.read_batch(log, number)

    def exclude_deleted(self, logs: Mapping[LogName, list[int]]) -> dict[LogName, list[int]]:
        """Return `logs`, a result of `read_logs`, without the numbers of batches that were deleted as garbage.

        Deletions are known only where the store is signed or encrypted. If a deleted batch still exists, a crash has left it, or somebody
        without a key has restored it. Callers that deliver logs to agents must not read such a batch.

        Raises:
            StoreError: As in `missing_batches`.
        """
        return self._log_reader.exclude_deleted(logs)

    def missing_batches(
        self, batches: Mapping[LogName, Collection[int]], newest: Mapping[LogName, int]
    ) -> dict[LogName, int]:
        """Return a map from host log to its lowest missing number. A batch counts as missing if it was not deleted as garbage.

        Missing batches are known only where the store is signed or encrypted. Otherwise the result is empty.

        Args:
            batches: map from log to the numbers of the batches found by `read_logs` and `read_batch`. No process may append meanwhile.
            newest: map from log to the highest number that is known to be appended.

        Raises:
            StoreError: If the store cannot be read, or somebody without a key has recorded deletions.
        """
        return self._log_reader.missing_batches(batches, newest)

    @property
    def log_key(self) -> bytes:
        """Public key with which this process signs batches of host logs, or b"" where refs are not signed."""
        return self._guard.log_key() if self._guard is not None and self._guard.requires_signatures else b""

    @property
    def is_authenticated(self) -> bool:
        """Return whether the store is signed or encrypted."""
        return authenticates(self._guard)

    def output_epochs(self) -> list[int]:
        """Return the epochs whose output releases are kept, in ascending order. The releases are durable when this function returns.

        Raises:
            StoreError: If the store cannot be read.
        """
        return self._output_reader.epochs()

    def read_release(self, epoch: int) -> Release:
        """Return all outputs released with an epoch.

        Raises:
            NotFoundError: If there is no such release, or it was deleted.
            DamagedDataError: If the release is damaged. The message names its path.
            StoreError: If the store cannot be read, or the release is encrypted differently from the store.
        """
        return self._output_reader.release(epoch)

    def watch_outputs(self, watcher: Callable[[int], None]) -> None:
        """Call `watcher` with the epoch of each release that this object makes or finds already made, and with 0 after each deletion.

        The thread that releases or deletes makes the call, so `watcher` must return at once.
        """
        self._output_watchers.append(watcher)

    def read_outputs(self, after: str = "", *, epochs: Sequence[int] | None = None) -> Iterator[OutputBatch]:
        """Yield the outputs after a cursor that have already been released, in order. Files are read lazily.

        `after` is a cursor that came with an output, or "" to begin with the oldest remaining output. `OutputBatch.cursor` gives the cursor
        of each output. After a rollback of the fleet, a batch also names the epochs whose outputs are reverted before its own outputs
        apply. `epochs` is the result of `output_epochs`, if the caller has it.

        Raises:
            UsageError: If `after` is not a cursor of this store.
            NotFoundError: If outputs after the cursor were deleted. The message names the epoch of the oldest remaining outputs.
            DamagedDataError, StoreError: As in `read_release`.
        """
        return self._output_reader.batches(after, epochs)

    def output_consumers(self) -> dict[str, ConsumerPosition]:
        """Return the positions of the named consumers of outputs, sorted by name. Raise DamagedDataError or StoreError."""
        return read_consumers(self._disk, self.store_id)

    def read_probe(self, path: str) -> bytes:
        """Return the token in a probe file that another process wrote.

        Raises:
            DamagedDataError: If the probe is missing or damaged. A missing probe may mean that this is another store.
            UsageError: If the path is not the path of a probe.
            StoreKeyError: If this process encrypts, but the process that wrote the probe does not.
        """
        layout.check_probe(path)
        if self._guard is not None and self._guard.encrypts and not list_keys(self._disk):
            raise StoreKeyError(
                f"there is a key for the store {self.location}, and the coordinator has none: give all processes the same SNAPLINE_STORE_KEY"
            )
        return store_files.read_probe(self._disk, path, self.store_id)

    def fork_record(self) -> ForkRecord | None:
        """Return the fork record of the store's fleet, or None if the fleet is not a fork. Raise DamagedDataError or StoreError."""
        return read_fork(self._disk, self.store_id, self._guard)

    def log_marks(self) -> dict[str, list[LogMark]]:
        """Return the log marks of each replica of the coordinator, oldest first. Raise DamagedDataError or StoreError."""
        return read_marks(self._disk, self.store_id)

    def read_pack_index(self, reference: PackReference) -> list[BlobEntry]:
        """Read and check the footer and index of a reported pack, and return the index's entries. The blobs themselves are not read.

        Raises:
            DamagedDataError: If the file is missing, or differs from the reported file.
            UsageError: If the path is not the path of a pack.
        """
        epoch = epoch_of_pack(reference.path)
        return checkpoint_packs.read_reported_index(self._disk, reference, store_id=self.store_id, epoch=epoch).entries

    def _part_reader(self, manifest: Manifest, others: Callable[[], Iterable[PartReader]] = tuple) -> PartReader:
        path = f"the manifest of epoch {manifest.metadata.epoch}"
        return decoder.reader_of_manifest(
            self._disk, manifest, store_id=self.store_id, guard=self._guard, path=path, others=others
        )

    def _read_line(self, manifest: Manifest, line: AgentLine) -> AgentCheckpoint:
        """Read an agent's checkpoint. If that fails, try other generations, because the blob may have moved, or another copy may be
        intact."""
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
