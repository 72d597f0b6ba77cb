"""Initial log of a fork's coordinator, made from the fork's store.

The problem. A fork is a store with one snapshot and a record (`storage/transfer/forking.py`); no coordinator has run on it. Its first
plan must start from that snapshot, with the agents of the snapshot, under numbers above those of the parent.

The solution. A replica that never had a log (the store has no mark of it) makes one before it takes part. Its state follows from record and
manifest alone, as after a restore from a backup (`backup.py`), so all replicas make the same log at any time. The fleet is not defined in
it yet: the first host defines it, and must have the definition for which the fork was made. A replica that had a log and lost it becomes a
learner, as in any fleet.

The log is made in a scratch folder and moved, the journal last, because the journal marks a valid log. After a crash it is made again.

A replica that starts for the first time after the snapshot was deleted makes nothing: by then a majority has a log, and the replica
receives theirs.
"""

import shutil
from pathlib import Path

from snapline.coordinator.raft.durability import sync_folder
from snapline.coordinator.raft.node import DUMP_FILE, JOURNAL_FILE
from snapline.coordinator.service.backup import write_replica
from snapline.coordinator.state.fleet_records import COMPLETE, AgentRecord, EpochRecord, ForkOrigin
from snapline.coordinator.state.fleet_state import FleetState
from snapline.errors import DamagedDataError, ExternalFailureError, NotFoundError
from snapline.failpoints import failpoint
from snapline.protocols.names import is_autonomous
from snapline.storage.disk.store_files import ForkRecord, LogMark
from snapline.storage.packs.manifest import Manifest
from snapline.storage.store.store import Store

FORK_SCRATCH_FOLDER = "founding"


class _NullLogMarks:
    """Log marks that do nothing: the replica marks its log itself once it is in place."""

    def log_marks(self) -> dict[str, list[LogMark]]:
        return {}

    def add_log_mark(self, replica: str, mark: LogMark) -> None:
        """Do nothing."""


def create_fork_log(folder: Path, store: Store, *, node: str) -> bool:
    """Make the log of replica `node` in its folder if the store is a fork's and the replica never had a log; return whether it was made.

    Raises:
        DamagedDataError: the record or the manifest is damaged.
        StoreError: the store cannot be read just now.
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
    """Return the initial state of a fork's coordinator: forming, one complete epoch, and its agents.

    Raises:
        DamagedDataError: record and manifest contradict each other.
    """
    about, epoch = manifest.metadata, record.epoch
    state = FleetState()
    image = state.image
    image.cluster, image.name, image.protocol = record.store, about.fleet, about.protocol
    image.definition_digest = bytes.fromhex(about.config_hash)
    image.fork = ForkOrigin(record.name, record.parent, record.parent_name, epoch, about.plan, record.is_live)
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
        born = epoch if line.is_unborn else 0  # as if it had been created while the epoch was open
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
