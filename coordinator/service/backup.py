"""Backups of the coordinator's state, restoring replicas from backups, and creating the first log of a fork's coordinator.

Theory of operation (G8, G9, G11)
---------------------------------
No backup is needed as long as a majority of the replicas survives. A backup is needed if the disks of all replicas are lost. Decisions made
after the backup are then lost, although the store and the hosts still reflect them. Losing decisions has two consequences: numbers must
not be reused, and the store is newer than the backup.

*No number is reused (G9).* The numbers of plans, epochs, host starts and ordinals continue far above all numbers in the backup and the
store. The gap also covers numbers that appear neither in the backup nor in the store: a million plans or epochs that left nothing in the
store, or four thousand ordinals.

*The store is newer than the backup.* A ref is written only after its epoch is complete in the log. The newest epochs that are missing from
the backup are therefore *adopted*, together with their agents. If they were not adopted, the fleet would return to an epoch from the time
of the backup, which the retention policy may have deleted. Each agent is a member of all epochs in one interval. If the manifests
contradict this rule, only the epochs after the contradiction are adopted. (This happens, for example, if an agent was created, undone and
created again, with a damaged epoch in between.) In autonomous protocols, an agent unknown to the backup cannot be adopted, because no
manifest contains its index in the checkpoints' vectors. Epochs that are no longer in the store are dropped, and damaged epochs are
condemned.

The restored fleet needs a recovery plan: its open epochs are aborted, and the first leader recovers the fleet from its recovery line.
This plan begins an era, so commits of hosts are void even if recovery is local. The backup may lack restores, creations and removals on
which the commits depend. So the fleet goes back to the newest epoch, and work committed since is undone.

*Replicas are equal.* Replicas that are restored one after another have equal states, because the new state depends only on the backup and
the store. Restored replicas differ if the store changes between their restores, because a replica was started too early. Raft would not
notice different states, because it compares entries only by index and term. The dump's term therefore contains a digest of the state, so
that replicas with different states contradict each other and end (H3).

The dump is written before the journal, because a replica with a dump but no journal refuses to start.

Some information is not restored: all users' tokens are dropped. The ids of agents that were created and left after the backup may be
reused. Hosts that joined after the backup, and that appear in no manifest or host log's name, begin with start number 1.

*The first log of a fork's coordinator.* A fork is a store with one snapshot and a fork record (`storage/transfer/forking.py`), for which
no coordinator has run yet. The fork's first plan must start from that snapshot, with the snapshot's agents, and with numbers above those
of the parent fleet.

A replica that has never had a log (the store has no mark of it) therefore creates a log before it takes part. All replicas create equal
logs, whenever they start, because the state in the log depends only on the fork record and the manifest. The new log does not contain the
fleet's definition. The first host defines the fleet, and must have the definition for which the fork was made. A replica that has lost
its log becomes a learner, as in any fleet.

The log is created in a temporary folder and then moved into place. The journal is moved last, because a log is valid only if it has a
journal. If a crash interrupts the creation of the log, the log is created again.

If a replica first starts after the snapshot has been deleted, it creates no log. Such a replica receives the log from the other replicas,
a majority of which must have it by then.
"""

import functools
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import NoReturn

import msgspec

from snapline.coordinator.raft.dump import DumpFile
from snapline.coordinator.raft.durability import make_folder, replace_durably
from snapline.coordinator.raft.journal import SqliteJournal
from snapline.coordinator.raft.learner import LogMarks
from snapline.coordinator.raft.node import DUMP_FILE, JOURNAL_FILE
from snapline.coordinator.state.fleet_records import (
    COMPLETE,
    CONDEMNED,
    LEFT,
    LOST,
    OUTCOMES_KEPT,
    AgentRecord,
    CondemnedRecord,
    EpochRecord,
    FleetImage,
    ForkOrigin,
    HostRecord,
    OutcomeRecord,
    PlanNeed,
)
from snapline.coordinator.state.fleet_state import FleetState
from snapline.errors import DamagedDataError, ExternalFailureError, LogError, NotFoundError, UsageError
from snapline.failpoints import failpoint
from snapline.folders import sync_folder
from snapline.messages.dependencies import reports_in
from snapline.protocols.names import is_autonomous
from snapline.storage.disk.layout import CHECKPOINTS, manifest_path, parse_pack_path
from snapline.storage.disk.record import canonical, seal, unseal
from snapline.storage.disk.store_files import ForkRecord, LogMark
from snapline.storage.packs.manifest import Manifest
from snapline.storage.store.store import Store

NUMBERS_STEP = 1_000_000
"""Distance of new plan, epoch and host start numbers from the largest numbers found. The distance exceeds the count of numbers used between
two backups, and new numbers remain readable."""

ORDINALS_STEP = 4096
"""Distance of new ordinals from the largest ordinal found. The distance is small because vectors are as long as the largest ordinal, which
is at most 65,536."""

TERM = 1_000_000
"""Lower bound of the new term. The term is so high that no old replica that is still running can win an election."""

REASON = "the coordinator was restored from a backup"

_KIND = b"BKUP"
_NO_OP = b"\x01"
"""PySyncObj's no-op entry. An entry that a dump replaces is never applied."""


class Backup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of a backup file, encoded in MessagePack within a record of kind `BKUP` (storage/disk/record.py).

    Attributes:
        cluster: id of the store, which is also the name of the Raft cluster.
        image: the replicated state, encoded by `FleetState.freeze`.
    """

    cluster: str
    image: bytes


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The result of restoring a backup.

    Attributes:
        state: the new replicated state, whose numbers all exceed those found in the backup and the store.
        adopted: epochs that were missing from the backup and were added from the store.
        skipped: for each unusable epoch in the store, the reason.
    """

    state: bytes
    adopted: tuple[int, ...]
    skipped: dict[int, str]


class _Epoch(msgspec.Struct, frozen=True):
    """An epoch in the store."""

    root: str
    manifest: Manifest

    @property
    def number(self) -> int:
        """Return the epoch's number."""
        return self.manifest.metadata.epoch


class _ContradictionError(Exception):
    """Error: no sequence of creations and removals explains the agents in two epochs."""


# ---- the file -------------------------------------------------------------------------------------------------------


def write_backup(path: Path, image: bytes, cluster: str) -> Backup:
    """Write a new backup file. The file is durable when the function returns.

    Raises:
        LogError: this release cannot read `image`.
        OSError: the disk could not be written.
    """
    FleetState.restore(image)
    made = Backup(cluster=cluster, image=image)
    replace_durably(path, [seal(_KIND, canonical.encode(made))], point="coordinator.service.backup")
    return made


def read_backup(path: Path) -> Backup:
    """Read a backup file.

    Raises:
        DamagedDataError: the file is damaged, or is not a backup.
        StoreError: the file was written by a later release.
        NotFoundError: the file does not exist.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no backup {path}") from error
    except OSError as error:
        raise ExternalFailureError(f"{path} cannot be read: {error}") from error
    body = unseal(_KIND, data, path=str(path), epoch=None)
    try:
        return msgspec.msgpack.decode(body, type=Backup)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedDataError(f"{path} is no backup of this release: {error}") from error


def describe_backup(backup: Backup) -> dict[str, object]:
    """Return a description of a backup for display."""
    state = FleetState.restore(backup.image)
    return {
        "cluster": backup.cluster,
        "fleet": state.image.name,
        "phase": state.phase,
        "plan": state.plan_number,
        "last_complete_epoch": state.newest_complete(),
        "epochs_begun": state.image.begun,
        "agents": sum(1 for _ in state.living_agents()),
        "size_bytes": len(backup.image),
    }


# ---- a new replica -------------------------------------------------------------------------------------------------


def restore(path: Path, data_dir: Path, *, store: str, node: str) -> dict[str, object]:
    """Restore the files of replica `node` in `data_dir` from a backup. Return a description of the result for display.

    Raises:
        UsageError: `data_dir` is in use, the backup belongs to another store, or the store has no usable epoch.
        DamagedDataError, LogError: the backup is unreadable.
        ExternalFailureError: the disk could not be written. The operator must remove `data_dir` and try again.
    """
    if data_dir.exists() and (not data_dir.is_dir() or any(data_dir.iterdir())):
        raise UsageError(f"{data_dir} is not empty: a replica that forgot its votes must not return; give a new folder")
    backup = read_backup(path)
    opened = Store.open(store)
    if opened.store_id != backup.cluster:
        raise UsageError(
            f"{path} belongs to store {backup.cluster}, {opened.location} is {opened.store_id}: give the --store it had"
        )
    restored = restored_state(backup.image, opened)
    try:
        write_replica(data_dir, restored.state, cluster=backup.cluster, node=node, marks=opened)
    except OSError as error:
        raise ExternalFailureError(f"{data_dir} cannot be written ({error}): remove it and restore again") from error
    state = FleetState.restore(restored.state)
    return {
        "cluster": backup.cluster,
        "fleet": state.image.name,
        "line_epoch": state.newest_complete(),
        "next_plan": state.plan_number + 1,
        "next_epoch": state.image.begun + 1,
        "adopted_epochs": list(restored.adopted),
        "skipped_epochs": {str(epoch): reason for epoch, reason in restored.skipped.items()},
        "digest": _digest_of(restored.state).hex(),
    }


def write_replica(folder: Path, state: bytes, *, cluster: str, node: str, marks: LogMarks) -> None:
    """Write a dump of `state` and a matching journal into an empty folder. Both files are durable when the function returns.

    The store records this log as the replica's newest one, so that any older log of the replica is rejected.

    Raises:
        ExternalFailureError, OSError: the disk could not be written. After such an error, the folder must be deleted.
    """
    make_folder(folder)
    term = TERM + int.from_bytes(_digest_of(state)) % TERM
    previous, last = (_NO_OP, 1, 0), (_NO_OP, 2, term)
    dump = DumpFile(
        str(folder / DUMP_FILE), NUMBERS_STEP, False, lambda: state, None, None,
        cluster=cluster, node=node, applied=lambda: 0, fail=_fail,
    )  # fmt: skip
    dump.serialize((None, last, previous, ()), 1)
    journal = SqliteJournal(folder / JOURNAL_FILE, cluster=cluster, node=node, fail=_fail)
    try:
        journal.setCurrentTerm(term, None)
        journal.add(*previous)
        journal.add(*last)
        journal.setRaftCommitIndex(last[1])
        journal.onOneSecondTimer()
        marks.add_log_mark(node, LogMark(journal.log_id, True))
        journal.become_voter()
    finally:
        journal.abandon()
    sync_folder(folder)


def _fail(reason: str) -> NoReturn:
    raise LogError(reason)


def _digest_of(state: bytes) -> bytes:
    return blake2b(state, digest_size=8).digest()


# ---- the new state --------------------------------------------------------------------------------------------------


def restored_state(image: bytes, store: Store) -> Restored:
    """Return the state with which restored replicas begin. The state depends only on the image and the store.

    Raises:
        UsageError: the fleet had not begun at the time of the backup, or the store has no epoch to which it could return.
        LogError: the state in the backup cannot be decoded.
        StoreError: the store is currently unreadable.
    """
    state = FleetState.restore(image)
    if state.plan is None:
        raise UsageError("the fleet had not begun when this backup was taken: start a new fleet with an empty --store")
    _abort_open_epochs(state.image)
    state.image.tokens = {}  # all tokens are dropped, because those revoked since the backup would be valid again
    newer, skipped = _read_newer(state.image, store)
    _check_known(state, store)
    state, adopted = _with_newer(state, newer, skipped)
    is_line_lost = not state.newest_complete() and bool(state.image.completed or skipped)
    if is_line_lost and not state.image.outcome:
        reasons = "".join(f"; epoch {epoch}: {reason}" for epoch, reason in skipped.items())
        raise UsageError(f"the store {store.location} has no snapshot that the fleet could go back to{reasons}")
    _raise_numbers(state, _LargestNumbers(state, store, newer))
    if not state.image.outcome:
        state.image.need = PlanNeed(REASON, [], state.image.now_ns)
    state.validate()
    return Restored(state=state.freeze(), adopted=adopted, skipped=skipped)


def _abort_open_epochs(image: FleetImage) -> None:
    for epoch in [epoch for epoch, record in image.epochs.items() if not record.root]:
        del image.epochs[epoch]
        image.aborted += 1
        image.outcomes.append(OutcomeRecord(epoch, False, REASON))
    del image.outcomes[:-OUTCOMES_KEPT]


def _read_newer(image: FleetImage, store: Store) -> tuple[list[_Epoch], dict[int, str]]:
    """Return the usable epochs that are missing from the backup, in ascending order. Also return the reasons why other epochs are
    skipped."""
    newer: list[_Epoch] = []
    skipped: dict[int, str] = {}
    newest_known = max(image.epochs, default=0)
    for epoch in store.epochs():
        if epoch <= newest_known:
            continue
        try:
            root = store.confirm_damage(functools.partial(store.read_ref, epoch))
            manifest = store.confirm_damage(functools.partial(_read_epoch, store, root, epoch))
        except DamagedDataError as error:
            skipped[epoch] = str(error)
            continue
        if manifest.metadata.config_hash != image.definition_digest.hex():
            raise UsageError(f"epoch {epoch} of the store is another fleet's: give the --store that the backup is of")
        newer.append(_Epoch(root, manifest))
    return newer, skipped


def _check_known(state: FleetState, store: Store) -> None:
    """Drop the backup's epochs that retention has since deleted, and condemn its epochs that are damaged."""
    image, published = state.image, dict.fromkeys(store.epochs())
    for epoch in state.complete_epochs():
        record = image.epochs[epoch]
        try:
            store.confirm_damage(functools.partial(_read_epoch, store, record.root, epoch))
        except DamagedDataError:
            if epoch in published:
                record.status = CONDEMNED
                path = manifest_path(record.root)  # the error's text is omitted, because replicas must be equal
                image.condemned.append(CondemnedRecord(epoch, state.plan_number, path, "it was damaged at the restore"))
            else:
                del image.epochs[epoch]
    del image.condemned[:-OUTCOMES_KEPT]


def _read_epoch(store: Store, root: str, epoch: int) -> Manifest:
    """Return an epoch's manifest after checking its packs. Raise DamagedDataError if a pack is damaged or missing."""
    manifest = store.read_manifest(root, epoch=epoch)
    for pack in manifest.packs:
        store.read_pack_index(pack)
    return manifest


def _with_newer(
    state: FleetState, found: Sequence[_Epoch], skipped: dict[int, str]
) -> tuple[FleetState, tuple[int, ...]]:
    """Add to `state` the newest epochs that form one consistent history, and return the new state and the numbers of these epochs."""
    image = state.freeze()
    for first in range(len(found) + 1):
        tried = FleetState.restore(image)
        try:
            for epoch in found[first:]:
                _adopt(tried, epoch)
        except _ContradictionError as contradiction:
            skipped[found[first].number] = str(contradiction)
            continue
        return tried, tuple([epoch.number for epoch in found[first:]])
    raise AssertionError("where nothing is adopted, nothing contradicts")


def _adopt(state: FleetState, epoch: _Epoch) -> None:
    """Add an epoch that is newer than all epochs in the state. Also record which agents were created or removed before the epoch."""
    image, about, plan = state.image, epoch.manifest.metadata, state.plan
    assert plan is not None, "a fleet that has begun"
    before = state.newest_complete()
    lines = {line.agent: line for line in epoch.manifest.agents}
    for agent, record in image.agents.items():
        line = lines.get(agent)
        if line is not None and line.is_unborn:
            record.born_epoch = max(
                record.born_epoch, epoch.number
            )  # as if the agent had been created while the epoch was open
        elif line is not None:
            _record_membership(agent, record, epoch.number, before)
        elif record.left_epoch is None and record.born_epoch < epoch.number:
            record.left_epoch, record.left_plan = max(before, record.born_epoch), plan.number
    for agent, line in lines.items():
        if agent not in image.agents:
            if is_autonomous(image.protocol) or agent in image.gone:
                raise _ContradictionError(f"agent {agent} of epoch {epoch.number} was created after the backup")
            born = epoch.number if line.is_unborn else before
            image.agents[agent] = AgentRecord(line.kind, line.host, plan.number, False, born, None, plan.number)
            image.agents[agent].ordinal = image.next_ordinal
            image.next_ordinal += 1
        elif image.agents[agent].left_epoch is None:
            image.agents[agent].host = line.host
    image.epochs[epoch.number] = EpochRecord(
        plan=about.plan,
        trigger=about.trigger,
        begun_ns=_time_ns(about.created),
        status=COMPLETE,
        root=epoch.root,
        ended_ns=_time_ns(about.created),
        unborn=[agent for agent, line in lines.items() if line.is_unborn],
        channel_state_messages=about.channel_state_messages,
    )
    image.begun = max(image.begun, epoch.number)
    image.completed += 1
    plan.hosts = sorted(about.hosts)
    plan.confirmed = list(plan.hosts) if plan.done_ns else []


def _record_membership(agent: str, record: AgentRecord, epoch: int, before: int) -> None:
    """Record that an agent is a member of `epoch`, the next complete epoch after `before`."""
    if record.born_epoch >= epoch:
        raise _ContradictionError(f"agent {agent} was created after epoch {epoch} had begun, and is a member of it")
    if record.left_epoch is not None and record.left_epoch < epoch:
        if record.left_epoch < before:
            raise _ContradictionError(f"agent {agent} is not in epoch {before}, and again in epoch {epoch}")
        record.left_epoch = record.left_plan = None  # a recovery has undone the agent's removal


class _LargestNumbers:
    """The largest numbers found in the backup and the store.

    Attributes:
        epoch, plan: the largest epoch number and the largest plan number.
        starts: the largest start number of each host.
    """

    def __init__(self, state: FleetState, store: Store, found: Iterable[_Epoch]) -> None:
        image = state.image
        self.starts = {host: record.start for host, record in image.hosts.items()}
        self.plan = state.plan_number
        self.epoch = max([image.begun, *store.epochs()])
        for epoch in found:
            self.plan = max(self.plan, epoch.manifest.metadata.plan)
            for host, start in epoch.manifest.metadata.hosts.items():
                self.starts[host] = max(start, self.starts.get(host, 0))
        for path in store.checkpoint_packs():
            name = parse_pack_path(path, CHECKPOINTS)
            if name is not None:
                host, _, digits = name.writer.rpartition(".")
                self.plan = max(self.plan, name.number)
                if host and digits.isdecimal():
                    self.starts[host] = max(int(digits), self.starts.get(host, 0))
        for log in store.read_logs():
            self.plan = max(self.plan, log.plan)
            self.starts[log.host] = max(log.start, self.starts.get(log.host, 0))


def _raise_numbers(state: FleetState, seen: _LargestNumbers) -> None:
    """Raise all numbers in the state far above the largest numbers found. Add the same amount to the numbers of all recorded plans, so
    that no gaps arise between them."""
    image, plan = state.image, state.plan
    assert plan is not None, "a fleet that has begun"
    offset = seen.plan + NUMBERS_STEP - plan.number
    image.plans = [
        x for x in image.plans if x.number > state.start_plan or x is plan
    ]  # the start of the fleet is not a recovery
    for record in image.plans:
        record.number += offset
    image.era = plan.number + 1  # commits may depend on decisions that the backup lacks
    for condemned in image.condemned:
        condemned.plan += offset
    for host, start in sorted(seen.starts.items()):
        host_record = image.hosts.setdefault(host, HostRecord(0, "", "", LOST))
        host_record.start = start + NUMBERS_STEP
        if host_record.state == LEFT and host in plan.hosts:
            host_record.state = LOST
    image.forgotten_start += NUMBERS_STEP
    for _, agent in state.living_agents():
        agent.incarnation = plan.number
        if agent.host not in plan.hosts:
            agent.host = plan.hosts[0]
    image.next_ordinal += ORDINALS_STEP
    image.begun = seen.epoch + NUMBERS_STEP
    image.aborted = image.begun - image.completed  # epochs whose outcome is unknown count as aborted


def _time_ns(written: str) -> int:
    """Parse a time that is used only for display. Treat a time without a zone as UTC, because the state must not depend on the machine's
    time zone."""
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return 0
    return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000) * 1_000_000


FORK_SCRATCH_FOLDER = "founding"


class _NullLogMarks:
    """Implementation of log marks that stores nothing, because the replica marks its log only after moving it into place."""

    def log_marks(self) -> dict[str, list[LogMark]]:
        return {}

    def add_log_mark(self, replica: str, mark: LogMark) -> None:
        """Do nothing."""


def create_fork_log(folder: Path, store: Store, *, node: str) -> bool:
    """Create the log of replica `node` if the store belongs to a fork and the replica has never had a log. Return whether a log was
    created.

    Raises:
        DamagedDataError: the fork record or the manifest is damaged.
        StoreError: the store is currently unreadable.
        ExternalFailureError: the folder cannot be written.
    """
    if (folder / JOURNAL_FILE).exists():
        return False
    record = store.fork_record()
    if record is None or store.log_marks().get(node):
        return False
    try:
        root = store.read_ref(record.epoch)
    except NotFoundError:
        return False
    state = fork_initial_state(record, root, store.read_manifest(root, epoch=record.epoch))
    try:
        _write(folder, state.freeze(), cluster=store.store_id, node=node)
    except OSError as error:
        raise ExternalFailureError(f"{folder} cannot be written: {error}") from error
    return True


def _write(folder: Path, state: bytes, *, cluster: str, node: str) -> None:
    scratch = folder / FORK_SCRATCH_FOLDER
    shutil.rmtree(scratch, ignore_errors=True)
    write_replica(scratch, state, cluster=cluster, node=node, marks=_NullLogMarks())
    for name in (DUMP_FILE, JOURNAL_FILE):
        (scratch / name).replace(folder / name)
        sync_folder(folder)
        failpoint("coordinator.fork.moved")
    shutil.rmtree(scratch, ignore_errors=True)


def fork_initial_state(record: ForkRecord, root: str, manifest: Manifest) -> FleetState:
    """Return the initial state of a fork's coordinator. The initial state of a fork is a forming fleet with one complete epoch and that
    epoch's agents.

    Raises:
        DamagedDataError: the fork record and the manifest contradict each other.
    """
    about, epoch = manifest.metadata, record.epoch
    state = FleetState()
    image = state.image
    image.cluster, image.name, image.protocol = record.store, about.fleet, about.protocol
    image.definition_digest = bytes.fromhex(about.config_hash)
    image.fork = ForkOrigin(record.name, record.parent, record.parent_name, epoch, about.plan, record.is_live)
    image.fork_reports = reports_in(about.dependencies)
    image.forgotten_start = max(about.hosts.values(), default=0)
    image.begun, image.completed, image.aborted, image.forgotten = epoch, 1, epoch - 1, epoch - 1
    image.gone = dict.fromkeys(record.gone)
    ordinals = about.ordinals
    if not is_autonomous(about.protocol):
        ordinals = {line.agent: place for place, line in enumerate(manifest.agents)}
    for line in manifest.agents:
        if line.agent not in ordinals or line.agent in image.gone:
            raise DamagedDataError(
                f"the fork's record and its epoch {epoch} contradict each other about agent {line.agent!r}"
            )
        born = epoch if line.is_unborn else 0  # as if the agent had been created while the epoch was open
        image.agents[line.agent] = AgentRecord(
            line.kind, is_initial=False, born_epoch=born, ordinal=ordinals[line.agent]
        )
    image.next_ordinal = about.next_ordinal or len(ordinals)
    image.epochs[epoch] = EpochRecord(
        plan=about.plan,
        trigger=about.trigger,
        begun_ns=0,
        status=COMPLETE,
        root=root,
        unborn=[line.agent for line in manifest.agents if line.is_unborn],
        channel_state_messages=about.channel_state_messages,
    )
    state.validate()
    return state
