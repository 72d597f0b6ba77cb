"""Forking creates a store for a new fleet that starts from one snapshot of another fleet.

A fork is a new fleet with its own store and its own cluster, and shares nothing with its parent fleet. The fork's first snapshot has the
epoch number of the parent's snapshot, because stamps of messages in transit name epochs. The bytes of the two snapshots differ, because the
manifest names the new cluster, some states may have been changed, and digests of an encrypted store differ. So the fork's snapshot has
another root than the parent's snapshot.

Forking has five steps, each of which is durable before the next begins:

1. Write the fork record, the file `fork` (`disk/store_files.py`). A directory with a fork record but without an identity is not a store.
2. Write packs with the chunks under the writer name `fork`, then a pack with the checkpoints, and then the manifest.
3. Write the pending inputs to a host log of the snapshot's plan, and seal the log. Pending inputs are inputs that had not been consumed at
   the time of the snapshot. The parent fleet may be running meanwhile.
   Then write the answers on which the fork runs, if it does.
4. Write the ref. If signing keys are given for the fork, the ref is signed with them. The fork's keys may differ from the parent's
   keys.
5. Write the identity, which completes the store.

So a crash leaves either no fork, or an unfinished fork with a fork record. With `begin_again`, `write_fork` removes all files of an
unfinished fork, the fork record last, and starts again. When the coordinator of the new fleet starts, it creates its state from the fork
record and the manifest (`coordinator/service/backup.py`).

The caller must pin the snapshot meanwhile, and must not let another process fork into the same place. With `begin_again`, that process
could remove the files.

This module guarantees G4 (the ref comes after everything that it names) and G11 (every byte is compared with its digest).
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from snapline.errors import NotFoundError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import Disk, make_durable_directory, write_once
from snapline.storage.disk.store_files import ForkRecord, OpenedDisk, check_no_store, encode_fork, exists
from snapline.storage.keys.key_files import Keys
from snapline.storage.log.answer_files import RecordedAnswers, unique_batches
from snapline.storage.log.log_record import LogBatch, LoggedInput, LogName
from snapline.storage.packs.checkpoint import AgentCheckpoint, StatePart, decode_checkpoint, encode_checkpoint
from snapline.storage.packs.manifest import AgentLine, Manifest, Metadata, chunk_place
from snapline.storage.packs.pack import CODEC_LZ4, KIND_CHUNK, BlobEntry, PackBlob, PackReference
from snapline.storage.store.protection import make_guard
from snapline.storage.store.store import Store
from snapline.storage.transfer.snapshot_copy import (
    PlacedBlob,
    digests_of,
    pack_groups,
    place_of,
    read_blobs,
    read_checkpoints,
)

FORK_WRITER = "fork"
"""Writer of the packs of forks, and host of the log with their pending inputs. No start of a host has this name."""

TRIGGER = "fork"
"""Trigger in the manifest of a fork's first epoch."""

INPUTS_BYTES_MAX = 8 * 2**20
"""Largest total size in bytes of the payloads in one batch, so that the whole batch stays below its limit of 64 MiB."""

_ID_BYTES = 16


class ForkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters for creating a fork.

    Attributes:
        name, is_live, parent_name, gone, created: as in `ForkRecord`.
        fleet, config_hash: name and hash of the fleet definition of the fork.
        changed: map from agent to its checkpoint, for each agent whose checkpoint differs from that in the snapshot. A changed checkpoint
            must have the same parts as the original.
        inputs: pending inputs to copy into the fork. For each agent, the inputs follow the last consumed input without gaps.
        recorded: answers on which the fork runs, or None.
        dependencies: what the fork's snapshot names as its dependencies, or None for those of the parent's snapshot.
    """

    name: str
    parent_name: str
    is_live: bool
    created: str
    fleet: str
    config_hash: str
    gone: list[str] = []
    changed: dict[str, AgentCheckpoint] = {}
    inputs: Sequence[LoggedInput] = ()
    recorded: RecordedAnswers | None = None
    dependencies: dict[str, str] | None = None


def write_fork(
    source: Store,
    epoch: int,
    target: Disk,
    order: ForkOrder,
    *,
    keys: Keys | None,
    begin_again: bool = False,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Store:
    """Durably create the fork's store, and return it.

    Args:
        keys: keys for the new store.
        begin_again: whether to remove the files of an unfinished fork at `target` first.

    Raises:
        UsageError: If `target` contains a store, other files, or without `begin_again` an unfinished fork.
        DamagedDataError: If data in `source` differs from what was originally written.
        StoreError: If a disk failed. In that case, the remaining files can be removed with `begin_again`.
    """
    root = source.read_ref(epoch)
    manifest = source.read_manifest(root, epoch=epoch)
    store_id = random_bytes(_ID_BYTES).hex()
    record = ForkRecord(
        name=order.name,
        parent=source.store_id,
        parent_name=order.parent_name,
        epoch=epoch,
        root=root,
        is_live=order.is_live,
        gone=order.gone,
        store=store_id,
        created=order.created,
    )
    with store_files.writing(target, "a fork"):
        target.make_root()
        if begin_again:
            clear_unfinished(target)
        check_no_store(target)
        guard = make_guard(target, store_id, keys, random_bytes=random_bytes)
        name = f"0-{random_bytes(_ID_BYTES).hex()}"
        _write_first(target, encode_fork(record, guard), temporary_name=name)
    made = Store(target, store_id, random_bytes=random_bytes, guard=guard)
    with store_files.writing(target, "a fork"):
        for directory in layout.DIRECTORIES:
            make_durable_directory(target, directory)
    new_root = _Fork(source, manifest, made, order).write()
    made.publish(epoch, new_root)
    failpoint("store.fork.published")
    with store_files.writing(target, "the identity of a fork"):
        identity = store_files.encode_identity(store_id)
        write_once(target, layout.IDENTITY, (identity,), temporary_name=name, point="store.fork.identity")
    return Store(OpenedDisk(target, store_id), store_id, random_bytes=random_bytes, guard=guard)


def _write_first(target: Disk, data: bytes, *, temporary_name: str) -> None:
    try:
        write_once(target, layout.FORK, (data,), temporary_name=temporary_name, point="store.fork.record")
    except FileExistsError:
        raise UsageError(f"another process is creating a fork at {target.location}: use another place") from None


def clear_unfinished(target: Disk) -> None:
    """Remove the files of an unfinished fork, the fork record last. Do nothing if there is no unfinished fork. Raise OSError."""
    if exists(target, layout.IDENTITY) or not exists(target, layout.FORK):
        return
    for entry in target.list_directory(""):
        if entry.is_directory and entry.name in layout.ROOT_DIRECTORIES:
            _empty(target, entry.name)
    failpoint("store.fork.cleared")
    store_files.unlink(target, [layout.FORK])
    target.sync_directory("")


def _empty(target: Disk, directory: str) -> None:
    """Remove all files below a directory. Directories are kept."""
    with contextlib.suppress(FileNotFoundError):
        for entry in target.list_directory(directory):
            path = f"{directory}/{entry.name}"
            if entry.is_directory:
                _empty(target, path)
            else:
                store_files.unlink(target, [path])
        target.sync_directory(directory)


class _Fork:
    """Writer of a fork's packs, manifest and inputs.

    Attributes:
        _digests: map from each chunk's digest in the source to its digest in the target.
    """

    def __init__(self, source: Store, manifest: Manifest, target: Store, order: ForkOrder) -> None:
        self._source = source
        self._manifest = manifest
        self._target = target
        self._order = order
        self._epoch = manifest.metadata.epoch
        self._digests: dict[bytes, bytes] = {}
        self._state_bytes = 0

    def write(self) -> str:
        """Write the packs, the manifest and the inputs, and return the manifest's root."""
        packs = [self._write_chunks(group) for group in pack_groups(sorted(self._chunks(), key=place_of))]
        lines = self._target.write_pack(writer=FORK_WRITER, epoch=self._epoch, blobs=self._checkpoints())
        failpoint("store.fork.packs")
        root = self._target.write_manifest(self._build_manifest([*packs, lines]))
        write_inputs(self._target, self._manifest.metadata.plan, self._order.inputs)
        if self._order.recorded is not None:
            self._target.record_answers(self._order.recorded)
        failpoint("store.fork.written")
        return root

    def _chunks(self) -> list[PlacedBlob]:
        packs = self._manifest.packs
        return [PlacedBlob(packs[chunk.pack], chunk.entry()) for chunk in self._manifest.chunks]

    def _write_chunks(self, group: list[PlacedBlob]) -> PackReference:
        return self._target.write_chunks(writer=FORK_WRITER, epoch=self._epoch, chunks=self._read_chunks(group))

    def _read_chunks(self, group: list[PlacedBlob]) -> Iterator[PackBlob]:
        for blob, plain in read_blobs(self._source, group, self._epoch):
            entry = blob.entry
            digest = self._digests[entry.digest] = self._target.digest(plain)
            yield PackBlob("", KIND_CHUNK, plain, digest, bool(entry.codec & CODEC_LZ4))

    def _checkpoints(self) -> Iterator[tuple[str, bytes]]:
        manifest, changed = self._manifest, self._order.changed
        for agent, encoded in read_checkpoints(self._source, manifest, manifest.agents, digests_of(manifest)):
            before = decode_checkpoint(encoded)
            now = with_digests(changed.get(agent, before), self._digests)
            self._state_bytes += now.state_bytes - before.state_bytes
            yield agent, encoded if now == before else encode_checkpoint(now)

    def _build_manifest(self, packs: list[PackReference]) -> Manifest:
        kinds = {line.agent: line for line in self._manifest.agents}
        lines, chunks = [], []
        for number, pack in enumerate(packs):
            for entry in self._target.read_pack_index(pack):
                if entry.kind == KIND_CHUNK:
                    chunks.append(chunk_place(entry, pack=number))
                else:
                    lines.append(_moved(kinds[entry.name], entry, number))
        return Manifest(self._metadata(), lines, packs, chunks)

    def _metadata(self) -> Metadata:
        about, order = self._manifest.metadata, self._order
        return msgspec.structs.replace(
            about,
            created=order.created,
            trigger=TRIGGER,
            fleet=order.fleet,
            cluster=self._target.store_id,
            config_hash=order.config_hash,
            dependencies=about.dependencies if order.dependencies is None else order.dependencies,
            state_bytes=about.state_bytes + self._state_bytes,
        )


def _moved(line: AgentLine, entry: BlobEntry, pack: int) -> AgentLine:
    return msgspec.structs.replace(
        line,
        digest=entry.digest,
        size_bytes=entry.size_bytes,
        pack=pack,
        offset=entry.offset,
        stored_bytes=entry.stored_bytes,
        codec=entry.codec,
        stored_digest=entry.stored_digest,
    )


def with_digests(checkpoint: AgentCheckpoint, digests: Mapping[bytes, bytes]) -> AgentCheckpoint:
    """Replace the chunk digests in a checkpoint. `digests` maps the old digests to the new ones."""
    if all(digests[digest] == digest for digest in checkpoint.digests()):
        return checkpoint
    journal = checkpoint.journal_part
    return msgspec.structs.replace(
        checkpoint,
        parts=[_renamed(part, digests) for part in checkpoint.parts],
        saved_journal=msgspec.UNSET if journal is None else _renamed(journal, digests),
    )


def _renamed(part: StatePart, digests: Mapping[bytes, bytes]) -> StatePart:
    return msgspec.structs.replace(part, digests=b"".join([digests[chunk.digest] for chunk in part.chunks()]))


def write_inputs(target: Store, plan: int, inputs: Sequence[LoggedInput]) -> None:
    """Write inputs to a host log of a finished plan, and seal the log. Do nothing if there are no inputs.

    Raises:
        StoreError, UsageError: As in `Store.append_batch`, or if the store overwrites objects.
    """
    if not inputs:
        return
    log = LogName(plan, FORK_WRITER, 0)
    for number, batch in enumerate(_batches(inputs), 1):
        if not target.append_batch(target.prepare_batch(log, number, LogBatch(batch))):
            raise UsageError(f"another process is writing at {target.location}: use another place")
    target.seal_log(log)


def _batches(inputs: Iterable[LoggedInput]) -> Iterator[list[LoggedInput]]:
    batch: list[LoggedInput] = []
    size_bytes = 0
    for logged in inputs:
        if batch and size_bytes + len(logged.payload) > INPUTS_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
        batch.append(logged)
        size_bytes += len(logged.payload)
    if batch:
        yield batch


READINGS = 3
"""Number of readings in which a batch must be missing. An append may hide a batch from one listing, but hardly from three."""


def pending_inputs(store: Store, consumed: Mapping[str, int]) -> list[LoggedInput]:
    """Return the inputs of these agents that follow the given numbers, sorted by agent and number. No log is sealed.

    The result may lack inputs that hosts accept meanwhile. There may be gaps where no kept epoch of the fleet needs an input, unless the
    fleet has `keep_answers`.

    Raises:
        DamagedDataError: If a batch differs from what was originally written.
        StoreError: If the store is unreadable, or somebody without a key has written or removed a batch.
    """
    missing: dict[LogName, int] = {}
    for _ in range(READINGS):
        inputs: dict[tuple[str, int], LoggedInput] = {}
        batches: dict[LogName, list[int]] = {}
        for log, numbers in store.exclude_deleted(store.read_logs()).items():
            for number in numbers:
                try:
                    batch = store.read_batch(log, number)
                except NotFoundError:  # The batch was deleted after the listing.
                    continue
                if batch is None:
                    continue
                batches.setdefault(log, []).append(number)
                _add_pending(inputs, batch.inputs, consumed)
        missing = store.missing_batches(batches, {})
        for kept in unique_batches(map(store.read_answers, store.answer_files())):
            _add_pending(inputs, kept.inputs, consumed)
        if not missing:
            return [inputs[place] for place in sorted(inputs)]
    log, number = next(iter(missing.items()))
    raise StoreError(f"batch {number} of {log} was taken out of the store ({log.directory}), and not by snapline")


def _add_pending(
    found: dict[tuple[str, int], LoggedInput], inputs: Iterable[LoggedInput], consumed: Mapping[str, int]
) -> None:
    for logged in inputs:
        if logged.number > consumed.get(logged.agent, logged.number):
            found.setdefault((logged.agent, logged.number), logged)


def first_gap(inputs: list[LoggedInput], consumed: Mapping[str, int]) -> tuple[str, int] | None:
    """Return the agent and number of the first missing input before an existing one, or None if no input is missing."""
    last = dict(consumed)
    for logged in inputs:
        if logged.number != last[logged.agent] + 1:
            return logged.agent, last[logged.agent] + 1
        last[logged.agent] = logged.number
    return None
