"""Functions that carry out the coordinator's calls to the checkpoint store. Each call blocks its thread, and is answered by one event.

This module makes no decisions. Each failure is reported with the path of the damaged file, or with the reason why the store could not be
used.

*Logs.* Batches of host logs are deleted when no epoch needs them anymore, as decided by `storage/log/log_files.py`.

*Releases.* The release of an epoch contains the outputs that agents have emitted since the previous epoch. The outputs are read from the
new epoch's checkpoints. The previous epoch's manifest shows which outputs have already been released. If the previous epoch is condemned,
its data may be damaged, and it is unknown whether any leader has released its outputs or is about to do so. A condemned epoch is therefore
*closed*: an empty release is written for it unless a release already exists. (Release files are created exclusively.) After the epoch is
closed, its release file shows which outputs were released.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b

import msgspec

from snapline.coordinator.leader.events import (
    CheckLine,
    CheckpointsScanned,
    DeleteCheckpoints,
    DeleteEpochs,
    EpochPublished,
    EpochReleased,
    LineChecked,
    LineMaterialised,
    ManifestAgent,
    ManifestWritten,
    MaterialiseLine,
    ProbeWritten,
    PublishEpoch,
    ReleaseEpoch,
    RemoveProbe,
    ResolveSnapshot,
    ScanCheckpoints,
    SnapshotResolved,
    SweepCheckpoints,
    SweepLogs,
    SweepStore,
    WriteManifest,
    WriteProbe,
)
from snapline.coordinator.service import line_store
from snapline.coordinator.state.fleet_view import Ancestor, FleetView
from snapline.errors import DamagedDataError, NotFoundError, SnaplineError, StoreError, UsageError
from snapline.failpoints import failpoint
from snapline.messages.dependencies import merged
from snapline.protocols.names import is_autonomous
from snapline.storage.disk.layout import manifest_path, parse_manifest_path
from snapline.storage.disk.record import damaged, finding_of
from snapline.storage.log.answer_files import KEPT_KINDS, KeptBatch
from snapline.storage.log.log_files import BatchNumbers, SettledEpoch, base_of, batch_numbers, find_garbage
from snapline.storage.log.log_record import LogBatch, LogName
from snapline.storage.outputs.output_record import EmittedOutput, parse_part_path
from snapline.storage.packs.compaction import WRITER
from snapline.storage.packs.manifest import AgentLine, Manifest, Metadata, agent_line
from snapline.storage.packs.pack import BlobEntry, PackReference
from snapline.storage.retention.epoch_retention import Policy, SnapshotTime, retained
from snapline.storage.store.catalog import snapshot_time, summarise
from snapline.storage.store.store import Holds, Store
from snapline.storage.timestamps import instant

_log = logging.getLogger("snapline.coordinator")


NO_LOG = LogName(0, "", 0)


class LogSweeper:
    """Deletes batches of host logs on behalf of one coordinator. Because batches and manifests are immutable, each of them is read only
    once, except that a batch with answers to keep is read again before it is deleted.

    Kept answers are deleted when all snapshots in the store cover their turns, so that no snapshot is left from which they can be used.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batches: dict[tuple[LogName, int], BatchNumbers] = {}
        self._numbers: dict[int, Metadata] = {}
        self._kept: dict[tuple[LogName, int], None] = {}
        """Batches whose answers are in answer files, but which were still in the store after the last sweep."""
        self._answers: dict[str, BatchNumbers] = {}
        """Highest numbers in each answer file, as if it were one batch."""
        self._snapshots: dict[int, Metadata] = {}

    def sweep(self, command: SweepLogs) -> None:
        """Delete batches that are no longer needed. The next sweep retries failed deletions. If any epoch is unreadable, no batch is
        deleted."""
        try:
            batches = self._read_batches()
            numbers = self._read_numbers(command.epochs) if batches else {}
            inputs = {epoch: metadata.inputs for epoch, metadata in numbers.items()}
            turns = {epoch: metadata.durable_turns for epoch, metadata in numbers.items()}
            settled = SettledEpoch(command.plan, command.settled_epoch)
            garbage = find_garbage(batches, inputs, command.left, turns, settled, base_of(numbers, command.era))
            if garbage:
                self._keep_answers(garbage, command.plan)
                self._store.delete_batches(garbage, plans_below=command.plan)
            self._delete_answers(command)
        except (SnaplineError, OSError) as error:
            _log.warning("batches of host logs that no epoch needs remain in the store: %s", error)

    def _keep_answers(self, garbage: list[tuple[LogName, int]], plan: int) -> None:
        """Copy the answers in batches that are about to be deleted."""
        present = {(log, number): None for log, number in garbage if self._batches[log, number].keeps_answers}
        self._kept = {place: None for place in self._kept if place in present}
        found = []
        for log, number in [place for place in present if place not in self._kept]:
            with contextlib.suppress(NotFoundError):  # another leader has deleted the batch, and kept its answers
                batch = self._store.read_batch(log, number)
                batch = batch or LogBatch()
                entries = [entry for entry in batch.entries if entry.entry.kind in KEPT_KINDS]
                found.append(KeptBatch(log, number, entries, batch.inputs))
        self._store.keep_answers(found, plan=plan)
        self._kept |= present

    def _delete_answers(self, command: SweepLogs) -> None:
        paths = self._store.answer_files()
        if not paths:
            return
        self._answers = {path: self._answers.get(path) or self._numbers_of(path) for path in paths}
        self._snapshots = {
            epoch: self._snapshots.get(epoch) or self._metadata_of(epoch) for epoch in self._store.epochs()
        }
        inputs = {epoch: metadata.inputs for epoch, metadata in self._snapshots.items()}
        turns = {epoch: metadata.durable_turns for epoch, metadata in self._snapshots.items()}
        unused = [path for path in paths if find_garbage([self._answers[path]], inputs, command.left, turns)]
        self._store.delete_answers(unused)

    def _numbers_of(self, path: str) -> BatchNumbers:
        kept = self._store.read_answers(path)
        inputs = [logged for each in kept for logged in each.inputs]
        return batch_numbers(NO_LOG, 0, LogBatch(inputs, [entry for each in kept for entry in each.entries]))

    def _metadata_of(self, epoch: int) -> Metadata:
        return self._store.read_manifest(self._store.read_ref(epoch), epoch=epoch).metadata

    def _read_batches(self) -> list[BatchNumbers]:
        """Return all batches of each log except the highest, which is always kept."""
        batches: dict[tuple[LogName, int], BatchNumbers] = {}
        for log, numbers in self._store.read_logs().items():
            for number in numbers[:-1]:
                key = log, number
                batch = self._batches.get(key) or self._read_batch(log, number)
                if batch is not None:
                    batches[key] = batch
        self._batches = batches
        return list(batches.values())

    def _read_batch(self, log: LogName, number: int) -> BatchNumbers | None:
        try:
            batch = self._store.read_batch(log, number)
        except NotFoundError:  # another leader has deleted the batch
            return None
        return None if batch is None else batch_numbers(log, number, batch)

    def _read_numbers(self, epochs: dict[int, str]) -> dict[int, Metadata]:
        self._numbers = {
            epoch: self._numbers.get(epoch) or self._store.read_manifest(root, epoch=epoch).metadata
            for epoch, root in epochs.items()
        }
        return self._numbers


EPOCHS_KEPT = 8
"""Number of epochs whose numbers are cached, so that a new epoch and its predecessor need not be read from the store."""

Numbers = dict[str, int]


class _CachedNumbers(msgspec.Struct, frozen=True):
    """Cached data of an epoch: its root, and the numbers of each agent's last consumed input and last emitted output."""

    root: str
    inputs: Numbers
    outputs: Numbers


class OutputReleaser:
    """Releases outputs on behalf of one coordinator. The methods of an OutputReleaser may run on any thread, but only one `release` at a
    time."""

    def __init__(self, store: Store, wall_ns: Callable[[], int]) -> None:
        self._store = store
        self._wall_ns = wall_ns
        self._known: dict[int, _CachedNumbers] = {}

    def on_written(self, root: str, metadata: Metadata) -> None:
        """Cache the input and output numbers in a manifest that this process has written."""
        self._note(metadata.epoch, _CachedNumbers(root, metadata.inputs, metadata.outputs))

    def known(self, epoch: int, root: str) -> tuple[Numbers, Numbers] | None:
        """Return an epoch's cached input and output numbers, or None if they are not cached."""
        known = self._known.get(epoch)
        return (known.inputs, known.outputs) if known is not None and known.root == root else None

    def release(self, command: ReleaseEpoch) -> EpochReleased:
        """Release the outputs of an epoch. A repeated release succeeds."""
        epoch = command.epoch
        try:
            now = self._store.confirm_damage(lambda: self._release(command))
        except DamagedDataError as error:
            return EpochReleased(epoch, str(error) or repr(error), *_damage_of(error, command))
        except (SnaplineError, OSError) as error:
            return EpochReleased(epoch, str(error) or repr(error))
        return EpochReleased(epoch, inputs=now.inputs, outputs=now.outputs)

    def _release(self, command: ReleaseEpoch) -> _CachedNumbers:
        released = self._read(command.epoch, command.root)
        now = released.outputs
        before = self._emitted_before(command.ancestors, now)
        fresh = {agent: before.get(agent, 0) for agent, number in now.items() if number > before.get(agent, 0)}
        if not fresh and not command.is_fall_back:
            return released
        outputs = self._read_outputs(command, fresh, now) if fresh else None
        after = command.ancestors[0].epoch if command.ancestors else 0
        self._write(command.epoch, command.root, after, outputs)
        return released

    def _write(self, epoch: int, root: str, after: int, outputs: Sequence[EmittedOutput] | None) -> None:
        """Write a release. If `outputs` is None, write an empty release, so that no later writer can release outputs for the epoch."""
        try:
            self._store.release_outputs(epoch, root, after, outputs, created_ns=self._wall_ns())
        except UsageError:
            if outputs or self._store.output_epochs():
                raise  # otherwise ignore the error: this store has no releases, so nothing must be reverted

    # ---- earlier releases -----------------------------------------------------------------------------------------

    def _emitted_before(self, ancestors: Sequence[Ancestor], now: Numbers) -> Numbers:
        """Return the number of each agent's last output in earlier releases."""
        whole = next((x for x in ancestors if not x.is_condemned), None)
        before = dict(self._read(whole.epoch, whole.root).outputs) if whole is not None and now else {}
        condemned = [x for x in reversed(ancestors) if x.is_condemned]
        if not any(number > before.get(agent, 0) for agent, number in now.items()):
            return before
        after = 0 if whole is None else whole.epoch
        for ancestor in condemned:
            for agent, number in self._close(ancestor, after).items():
                before[agent] = max(number, before.get(agent, 0))
            after = ancestor.epoch
        return before

    def _close(self, ancestor: Ancestor, after: int) -> Numbers:
        """Close the release of a condemned epoch. Return the number of each agent's last output in that release."""
        self._write(ancestor.epoch, ancestor.root, after, None)
        try:
            released = self._store.read_release(ancestor.epoch)
        except NotFoundError:  # a release of a later epoch exists, so this epoch was closed or released before
            return {}
        return {output.agent: output.number for output in released.outputs}

    # ---- reading --------------------------------------------------------------------------------------------------

    def _read_outputs(self, command: ReleaseEpoch, fresh: Numbers, now: Numbers) -> list[EmittedOutput]:
        """Return the new outputs of the agents in `fresh`. Only the checkpoints of these agents are read."""
        manifest = self._store.read_manifest(command.root, epoch=command.epoch)
        outputs: list[EmittedOutput] = []
        for checkpoint in self._store.read_checkpoints(manifest, list(fresh)):
            agent = checkpoint.agent
            pending = [x for x in checkpoint.outputs.pending if x.number > fresh[agent]]
            _check_whole(manifest, agent, [x.number for x in pending], above=fresh[agent], last=now[agent])
            outputs += [EmittedOutput(agent, x.number, x.topic, x.payload, x.emitted_ns) for x in pending]
        return outputs

    def _read(self, epoch: int, root: str) -> _CachedNumbers:
        known = self._known.get(epoch)
        if known is None or known.root != root:
            metadata = self._store.read_manifest(root, epoch=epoch).metadata
            known = _CachedNumbers(root, metadata.inputs, metadata.outputs)
            self._note(epoch, known)
        return known

    def _note(self, epoch: int, known: _CachedNumbers) -> None:
        kept = sorted({*self._known, epoch})[-EPOCHS_KEPT:]
        self._known = {kept_epoch: known if kept_epoch == epoch else self._known[kept_epoch] for kept_epoch in kept}


def _check_whole(manifest: Manifest, agent: str, numbers: list[int], *, above: int, last: int) -> None:
    """Raise DamagedDataError unless the checkpoint contains all outputs since the previous epoch. No output may be missing, because hosts
    discard only released outputs."""
    if numbers != list(range(above + 1, last + 1)):
        path = manifest.packs[manifest.line_of(agent).pack].path
        raise damaged(path, f"outputs beyond {above} are missing", epoch=manifest.metadata.epoch, blob=agent)


def _damage_of(error: DamagedDataError, command: ReleaseEpoch) -> tuple[int, str]:
    """Return the number of the damaged epoch and the path of the damaged file. If only a release file is damaged, return (0, ""), because
    that damages no epoch."""
    finding = finding_of(error)
    path = manifest_path(command.root) if finding is None else finding.path
    if parse_part_path(path) is not None:
        return 0, ""
    manifests = {manifest_path(ancestor.root): ancestor.epoch for ancestor in command.ancestors}
    return manifests.get(path, command.epoch), path


VALIDITY = "consistent: every channel covered, every pack's index read back"
"""Validity text in the manifest of an epoch that hosts have made."""

LINE_VALIDITY = "consistent: a line of {protocol} over epoch {base}, every message in transit found, no orphan"
"""Validity text in the manifest of an epoch that the coordinator has composed from checkpoints."""

DELETED_KEPT = 10_000
"""Number of deleted epochs that are remembered. Far fewer epochs are deleted while a manifest with bases waits to be written."""


class StoreKeeper:
    """Executes one coordinator's calls to the store (`LeaderStore`). Methods may run on any thread, and several may run at the same
    time."""

    def __init__(
        self,
        store: Store,
        state: FleetView,
        *,
        retention: Policy | None = None,
        on_deleted: Callable[[int], None] = lambda files: None,
        wall_ns: Callable[[], int] = time.time_ns,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Prepare the store calls. The store is neither read nor written yet.

        Args:
            state: the replicated state, which provides the fleet's name (fixed once defined) and the agents' ordinals.
            retention: policy by which forgotten epochs stay in the store; None keeps only pinned and tagged epochs.
            on_deleted: function that is called with the number of deleted files, on the thread that deletes them.
            wall_ns: function that returns the wall-clock time.
            now_ns: function that returns the monotonic time.
        """
        self._store = store
        self._on_deleted = on_deleted
        self._image = state.image
        self._wall_ns = wall_ns
        self._now_ns = now_ns
        self._retention = retention
        self._logs = LogSweeper(store)
        self._outputs = OutputReleaser(store, wall_ns)
        self._holds = Holds(store, now_s=lambda: wall_ns() / 1e9)
        self._times: dict[int, SnapshotTime] = {}
        self._topology: tuple[object, str] = (None, "")
        self._marking = threading.Lock()
        """Lock that is held while chunks are reused until the manifest refers to them, so that no deletion happens in between."""
        self._deleted: dict[int, None] = {}
        """Epochs that the replicated log has forgotten, in the order in which it forgot them."""

    def write_probe(self, command: WriteProbe) -> ProbeWritten:
        """Write a new probe file, which a host must read."""
        try:
            path, content = self._store.write_probe()
        except (SnaplineError, OSError) as error:
            return ProbeWritten(command.session, "", b"", str(error))
        return ProbeWritten(command.session, path, content)

    def remove_probe(self, command: RemoveProbe) -> None:
        """Remove a probe file."""
        self._quietly(lambda: self._store.remove_probe(command.path), f"probe {command.path} remains")

    def write_manifest(self, command: WriteManifest) -> ManifestWritten:
        """Read every pack's index, compare it with the hosts' reports, and write the manifest (G4, G11)."""
        try:
            root = self._store.confirm_damage(lambda: self._write_manifest(command, VALIDITY))
        except (SnaplineError, OSError) as error:
            return ManifestWritten(command.epoch, "", str(error) or repr(error), *_damaged_base(error, command.bases))
        return ManifestWritten(command.epoch, root)

    def _write_manifest(self, command: WriteManifest, validity: str) -> str:
        references = [PackReference(x.path, x.size_bytes, x.index_digest) for x in command.packs]
        with self._marking:
            gathered = self._store.gather(references, epoch=command.epoch, bases=self._kept(command.bases))
            failpoint("coordinator.epoch.checked")
            lines = [_line(agent, gathered.checkpoints[agent.pack], command) for agent in command.agents]
            metadata = self._metadata(command, validity)
            root = self._store.write_manifest(Manifest(metadata, lines, gathered.packs, gathered.chunks))
        self._outputs.on_written(root, metadata)
        failpoint("coordinator.epoch.stored")
        return root

    def _kept(self, bases: Mapping[int, str]) -> dict[int, str]:
        """Return the base epochs that have not been deleted since the command was issued."""
        return {epoch: root for epoch, root in bases.items() if epoch not in self._deleted}

    def materialise(self, command: MaterialiseLine) -> LineMaterialised:
        """Store a recovery line as an epoch (G1, G2, G4, G11); see `line_store`."""
        try:
            line = self._store.confirm_damage(lambda: line_store.read_line(self._store, command))
        except DamagedDataError as error:
            finding = finding_of(error)
            return LineMaterialised(
                command.epoch,
                "",
                error=str(error),
                damaged_path=_path_of(error, command.base_root),
                damaged_agent="" if finding is None else finding.agent,
            )
        except (SnaplineError, OSError) as error:
            return LineMaterialised(command.epoch, "", error=str(error) or repr(error))
        try:
            written = line_store.write_line(self._store, command, line)
            failpoint("coordinator.line.written")
            validity = LINE_VALIDITY.format(protocol=self._image.protocol, base=command.base_epoch)
            root = self._write_manifest(written, validity)
        except (SnaplineError, OSError) as error:
            return LineMaterialised(command.epoch, "", error=str(error) or repr(error))
        return LineMaterialised(
            command.epoch,
            root,
            unborn=tuple([agent.agent for agent in written.agents if agent.is_unborn]),
            state_bytes=written.state_bytes,
            channel_state_bytes=written.channel_state_bytes,
            channel_state_messages=written.channel_state_messages,
            finished=line.finished,
        )

    def scan(self, command: ScanCheckpoints) -> CheckpointsScanned:
        """List the checkpoints in the base epoch and in the plan's checkpoint packs."""
        plan, base_epoch = command.plan, command.base_epoch
        try:
            base = self._store.confirm_damage(lambda: line_store.scan_base(self._store, command))
        except DamagedDataError as error:
            path = _path_of(error, command.base_root)
            return CheckpointsScanned(plan, base_epoch, error=str(error), damaged_path=path)
        except (SnaplineError, OSError) as error:
            return CheckpointsScanned(plan, base_epoch, error=str(error) or repr(error))
        try:
            found = line_store.scan_packs(self._store, command)
        except (SnaplineError, OSError) as error:
            return CheckpointsScanned(plan, base_epoch, error=str(error) or repr(error))
        return CheckpointsScanned(plan, base_epoch, tuple(base), tuple(found))

    def _metadata(self, command: WriteManifest, validity: str) -> Metadata:
        image, ordinals = self._image, self._ordinals_of(command)
        return Metadata(
            epoch=command.epoch,
            created=instant(self._wall_ns() / 1e9),
            trigger=command.trigger,
            fleet=image.name,
            cluster=image.cluster,
            plan=command.plan,
            protocol=image.protocol,
            hosts=command.hosts,
            kinds=dict.fromkeys(sorted({x.kind for x in command.agents}), ""),
            dependencies=self._dependencies_of(command.hosts),
            topology_fingerprint=self._topology_of(command),
            config_hash=image.definition_digest.hex(),
            state_bytes=command.state_bytes,
            channel_state_bytes=command.channel_state_bytes,
            channel_state_messages=command.channel_state_messages,
            inputs=command.inputs,
            outputs=command.outputs,
            durable_turns=command.durable_turns,
            log_floors=command.log_floors,
            log_starts=command.log_starts,
            validity=validity,
            ordinals=ordinals,
            next_ordinal=image.next_ordinal if ordinals else 0,
        )

    def _dependencies_of(self, hosts: Mapping[str, int]) -> dict[str, str]:
        """Return what these hosts run on, as far as they have reported it."""
        reports, records = self._image.reports, {host: self._image.hosts.get(host) for host in hosts}
        keys = {
            host: record.report
            for host, record in records.items()
            if record is not None and record.start == hosts[host]
        }
        return merged({host: reports[key] for host, key in keys.items() if key in reports})

    def _ordinals_of(self, command: WriteManifest) -> dict[str, int]:
        """Return the agents' ordinals in autonomous protocols, otherwise an empty dictionary. A fork needs the ordinals to read the
        vectors in the checkpoints."""
        if not is_autonomous(self._image.protocol):
            return {}
        records = self._image.agents
        return {x.agent: records[x.agent].ordinal for x in command.agents if x.agent in records}

    def _topology_of(self, command: WriteManifest) -> str:
        """Return a fingerprint of the agents, classes and channels. The last fingerprint is cached, because it rarely changes."""
        agents = tuple([(x.agent, x.kind) for x in command.agents])
        cached_key, fingerprint = self._topology
        if cached_key != (agents, command.channels):
            digest = blake2b(digest_size=16)
            for names in (agents, command.channels):
                digest.update(b"\n".join(sorted([f"{first}\0{second}".encode() for first, second in names])) + b"\0\0")
            fingerprint = digest.hexdigest()
            self._topology = (agents, command.channels), fingerprint
        return fingerprint

    def publish(self, command: PublishEpoch) -> EpochPublished:
        """Write the ref of a complete epoch. A repeated call succeeds."""
        epoch = command.epoch
        try:
            failpoint("coordinator.epoch.completed")
            self._store.confirm_damage(lambda: self._store.publish(epoch, command.root))
            failpoint("coordinator.epoch.published")
        except DamagedDataError as error:
            return EpochPublished(epoch, str(error), damaged_path=_path_of(error, command.root))
        except (SnaplineError, OSError) as error:
            return EpochPublished(epoch, str(error), is_final=self._has_other_owner(epoch, command.root))
        numbers = self._outputs.known(epoch, command.root)
        return (
            EpochPublished(epoch) if numbers is None else EpochPublished(epoch, inputs=numbers[0], outputs=numbers[1])
        )

    def _has_other_owner(self, epoch: int, root: str) -> bool:
        try:
            return self._store.read_ref(epoch) != root
        except (SnaplineError, OSError):
            return False

    def release(self, command: ReleaseEpoch) -> EpochReleased:
        """Release the outputs of a complete epoch."""
        return self._outputs.release(command)

    def resolve(self, command: ResolveSnapshot) -> SnapshotResolved:
        """Return the epoch to which a tag or number refers, or in which a turn has not begun."""
        try:
            epoch = self._epoch_before_turn(command) if command.turn else self._store.resolve(command.snapshot)
            return SnapshotResolved(command.snapshot, epoch, agent=command.agent)
        except (SnaplineError, OSError) as error:
            return SnapshotResolved(command.snapshot, 0, str(error) or repr(error), command.agent)

    def _epoch_before_turn(self, command: ResolveSnapshot) -> int:
        for epoch in command.epochs:
            with contextlib.suppress(
                DamagedDataError, NotFoundError
            ):  # what is damaged or deleted is nothing to go back to
                manifest = self._store.read_manifest(self._store.read_ref(epoch), epoch=epoch)
                if all(line.agent != command.agent for line in manifest.agents):
                    return epoch  # the agent was created later
                if self._store.read_checkpoint(manifest, command.agent).durable_turns < command.turn:
                    return epoch
        raise NotFoundError("the turn has begun in all snapshots that are kept")

    def check_line(self, command: CheckLine) -> LineChecked:
        """Check whether the fleet can restart from the epoch.

        Blobs are normally checked by the hosts that load them. If `is_whole` is set, this call checks all blobs too.
        """
        try:
            self._store.confirm_damage(lambda: self._check_line(command))
        except DamagedDataError as error:
            return LineChecked(command.epoch, str(error), damaged_path=_path_of(error, command.root))
        except (SnaplineError, OSError) as error:
            return LineChecked(command.epoch, str(error) or repr(error))
        return LineChecked(command.epoch)

    def _check_line(self, command: CheckLine) -> None:
        self._store.publish(command.epoch, command.root)
        self._store.read_ref(command.epoch)
        manifest = self._store.read_manifest(command.root, epoch=command.epoch)
        for pack in manifest.packs:
            self._store.read_pack_index(pack)
        for found in self._store.verify(command.epoch).findings if command.is_whole else ():
            raise damaged(found.path, found.reason, epoch=command.epoch)

    def delete(self, command: DeleteEpochs) -> None:
        """Delete forgotten epochs, except those kept by the retention policy, a pin or a tag. The next sweep retries failed deletions."""
        with self._marking:
            self._deleted |= dict.fromkeys(command.epochs)
            while len(self._deleted) > DELETED_KEPT:
                del self._deleted[next(iter(self._deleted))]
        self._quietly(lambda: self._delete_unkept(command.epochs), "forgotten epochs remain")

    def sweep(self, command: SweepStore) -> None:
        """Delete forgotten epochs, unreferenced data, and released outputs that may be deleted. Also compact packs."""
        kept = {*command.kept, *command.undecided}

        def sweep_forgotten() -> None:
            self._holds.clear_leftovers()
            epochs = [epoch for epoch in self._store.epochs() if epoch <= command.begun]
            self._delete_unkept([epoch for epoch in epochs if epoch not in kept])

        def sweep() -> None:
            removed = self._store.delete_unreferenced(
                begun_below=command.begun + 1, open_epochs=command.undecided, open_writers=(WRITER,)
            )
            self._on_deleted(len(removed))
            if removed:
                _log.info("removed %d files of epochs that were aborted or forgotten", len(removed))

        def compact() -> None:
            done = self._store.compact(now_s=self._now_ns() / 1e9)
            if done.packs:
                _log.info("moved %d bytes into %d packs", done.copied_bytes, len(done.packs))

        self._quietly(sweep_forgotten, "forgotten epochs remain")
        self._quietly(sweep, "garbage remains")
        self._quietly(compact, "packs that are mostly dead remain")
        self._quietly(lambda: self._store.delete_outputs(now_ns=self._wall_ns()), "outputs that all have had remain")

    def _delete_unkept(self, forgotten: Sequence[int]) -> None:
        """Delete the forgotten epochs that the retention policy no longer keeps."""
        times = self._read_times()
        kept: Collection[int] = ()
        if self._retention is not None:
            kept = retained(times, self._retention, now_ns=self._wall_ns(), held={})
        published = {snapshot.epoch for snapshot in times}
        due = [epoch for epoch in forgotten if epoch in published and epoch not in kept]
        self._holds.delete(due, self._delete_one)

    def _delete_one(self, epoch: int) -> list[str]:
        removed: list[str] = []
        self._quietly(lambda: removed.extend(self._store.delete_epoch(epoch)), f"epoch {epoch} remains")
        self._on_deleted(len(removed))
        return removed

    def _read_times(self) -> list[SnapshotTime]:
        """Return when each epoch in the store was created.

        Each manifest is read only once because it is immutable, and only if there is a retention policy.
        """
        if self._retention is None:
            return [SnapshotTime(epoch, None) for epoch in self._store.epochs()]
        times, cache = list[SnapshotTime](), dict[int, SnapshotTime]()
        for epoch in self._store.epochs():
            snapshot = self._times.get(epoch) or self._read_time(epoch)
            if snapshot is not None:
                times.append(snapshot)
                if snapshot.created_ns is not None:
                    cache[epoch] = snapshot
        self._times = cache
        return times

    def _read_time(self, epoch: int) -> SnapshotTime | None:
        try:
            summary = summarise(self._store, epoch)
        except StoreError:  # the manifest is not damaged: keep the epoch until it can be read again
            return SnapshotTime(epoch, None)
        if summary is None:
            return None
        return snapshot_time(summary)

    def sweep_logs(self, command: SweepLogs) -> None:
        """Delete batches of host logs that no recovery plan can need anymore."""
        self._logs.sweep(command)

    def delete_checkpoints(self, command: DeleteCheckpoints) -> None:
        """Delete checkpoint packs. The sweep after the next recovery plan retries failed deletions."""
        self._quietly(
            lambda: self._on_deleted(len(self._store.delete_checkpoints(command.paths))), "checkpoints remain"
        )

    def sweep_checkpoints(self, command: SweepCheckpoints) -> None:
        """Delete all checkpoint packs of earlier recovery plans, except those in `command.kept`."""

        def sweep() -> None:
            removed = self._store.sweep_checkpoints(plans_below=command.plan, kept=command.kept)
            self._on_deleted(len(removed))
            if removed:
                _log.info("removed %d files of checkpoints before plan %d", len(removed), command.plan)

        self._quietly(sweep, "checkpoints of earlier plans remain")

    def _quietly(self, call: Callable[[], object], otherwise: str) -> None:
        try:
            call()
        except (SnaplineError, OSError) as error:
            _log.warning("%s in the store: %s", otherwise, error)


def _line(agent: ManifestAgent, index: dict[str, BlobEntry], command: WriteManifest) -> AgentLine:
    entry = index.get(agent.agent)
    if entry is None:
        path = command.packs[agent.pack].path
        raise DamagedDataError(f"{path} holds no checkpoint of agent {agent.agent}, which host {agent.host} reported")
    return agent_line(
        entry,
        pack=agent.pack,
        kind=agent.kind,
        host=agent.host,
        incarnation=agent.incarnation,
        is_unborn=agent.is_unborn,
    )


def _path_of(error: DamagedDataError, root: str) -> str:
    finding = finding_of(error)
    return manifest_path(root) if finding is None else finding.path


def _damaged_base(error: Exception, bases: Mapping[int, str]) -> tuple[int, str]:
    """Return the number of the damaged base epoch and the path of its damaged manifest. Return (0, "") if the error has a different cause.

    Only damage to a base epoch's manifest counts, so that a wrong report from a host cannot condemn an epoch.
    """
    finding = finding_of(error) if isinstance(error, DamagedDataError) else None
    if finding is None or finding.epoch not in bases or parse_manifest_path(finding.path) is None:
        return 0, ""
    return finding.epoch or 0, finding.path
