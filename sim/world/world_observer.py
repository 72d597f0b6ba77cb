"""Observers of a simulated world. The observers report the actions of hosts, coordinators, the log and the store to the judge, the
recording and the counters.

`LogObserver` follows the commits in the coordinator's log. `StoreObserver` reads the store directly, and reports which data has been
written and deleted. `SnapshotRequests` requests snapshots, as an operator would, and checks the answers.

`HostLogOracle` reads the log files of hosts directly from the disk. The host logs must confirm the hosts' answers to clients, and must keep
every input that may still be needed:

- *Receipts.* A host may report an input as accepted only if the input is in a log batch that survives every power cut. There is one
  exception: the batch may have been deleted if the newest complete epoch contains the effect of the input.
- *Final answers.* A host may report an answer as final only if the newest complete epoch, or the agent's newest commit, contains the turn that
  produced the answer.
- *Deletions.* The fleet can be restored to any epoch that is kept. So a batch may be deleted only if the oldest kept epoch contains the
  effects of all the batch's inputs. A commit may be deleted only if each of its agents recovers from the same checkpoint as before, even if
  the newest complete epoch is damaged.

The oracle identifies an input by its bytes, which are unique. The oracle does not rely on the numbers, keys or file names that the product
uses.

The code that reads checkpoint packs (`read_pack`) is independent of the product, and implements `docs/snapshot-format.md`. The judge
compares the checkpoints in each pack with the captured images. So the judge does not depend on the product's checks. Damaged packs are
ignored here, because detecting the damage is the duty of the components that read packs (G11).
"""

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from sys import intern
from typing import NamedTuple, Protocol

import lz4.block
import msgspec
from blake3 import blake3
from msgspec.structs import replace

from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.fleet import encode_state, restored
from snapline.agent_runtime.host import host_events as ev
from snapline.coordinator.leader import events as le
from snapline.coordinator.leader.events import AnswerMoves, AnswerRestore
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import APPLIED, RUNNING, OperationResult, ProposalOutcome
from snapline.coordinator.state.operations import decode_operation
from snapline.errors import NotFoundError, SnaplineError
from snapline.messages.client_requests import ACCEPTED, REPEATED, InputOutcome
from snapline.messages.host_messages import CheckpointsStored, HostMessage, TurnDeath
from snapline.messages.status import Standing
from snapline.protocols.names import LOCAL, is_autonomous, is_logged
from snapline.sim.oracles.commit_oracles import CommitOracle, CommitReader
from snapline.sim.oracles.line_oracles import Frozen
from snapline.sim.world.recording import EpochSpan
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_state import WorldState
from snapline.storage.capture.chunking import whole_turn
from snapline.storage.disk import layout
from snapline.storage.disk.layout import LOG
from snapline.storage.outputs.output_record import Release
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, decode_checkpoint
from snapline.storage.packs.manifest import Manifest
from snapline.storage.retention.epoch_retention import parse_created

# -- host logs ------------------------------------------------------------------------------------------------------------


SWEPT_BEHIND = 3
"""A deletion leaves no commits that an epoch covers which was complete before the epoch with this place among the complete ones, from the
newest, began. The leader needs two, and may not know the newest one yet. Each covers what hosts had captured when it began on them."""


class HostLogOracle:
    """Oracle that checks the host logs during a run. The oracle stops reporting once a fault has damaged a file or bytes of a complete
    epoch have been lost."""

    def __init__(
        self,
        shared: WorldState,
        log: SimulatedLog,
        store: "StoreObserver",
        commits: CommitOracle,
        begun_ns: Mapping[int, int],
        completed_ns: Mapping[int, int],
    ) -> None:
        self._shared = shared
        self._log = log
        self._begun_ns, self._completed_ns = begun_ns, completed_ns
        self._flipped = store.flipped
        self._store = store
        self._commits = commits
        self._payloads: dict[tuple[str, str], bytes] = {}
        """Each input's payload, by (agent, key)."""
        self._swept_ns, self._old = 0, ""
        """Time of the last deletion, and an old batch that it has left."""

    def _is_judged(self) -> bool:
        oracle = self._shared.judge.ground_truth.inputs
        return not self._flipped and not oracle.has_lost_bytes and self._shared.scenario.budget == "within"

    def on_offered(
        self, host: str, plan: int, inputs: Sequence[ev.OfferedInput], answers: Sequence[InputOutcome]
    ) -> None:
        """Check the answers from a host to a client's request. `plan` is the recovery plan that the host was following when the request
        arrived. The answers are not checked if a later plan has dropped inputs."""
        drops = self._shared.judge.ground_truth.inputs.drops.of_plan(self._log.canonical.plan_number)
        is_judged = self._is_judged() and all(drop.plan <= plan for drop in drops)
        for offered, answer in zip(inputs, answers, strict=True):
            if answer.status not in (ACCEPTED, REPEATED) or offered.is_operator_command:
                continue
            self._payloads[offered.agent, offered.key] = offered.payload
            if is_judged and not self._is_held(offered.agent, offered.payload):
                text = f"{host} says that input {offered.key} of {offered.agent} is {answer.status}, and no batch that would outlive a power cut holds it"
                self._shared.say("receipts", "R1", text)

    def on_asked(self, host: str, agent: str, key: str, answer: ev.AskAnswer) -> None:
        """Check an answer that a host has given to a client as final."""
        payload = self._payloads.get((agent, key))
        oracle = self._shared.judge.ground_truth.inputs
        if answer.status != "replied" or payload is None or oracle.has_fallen_back or not self._is_judged():
            return
        judge, epoch = self._shared.judge, self._log.canonical.newest_complete()
        is_final = judge.holds_answer(epoch, agent, payload)
        if not is_final and self._shared.workload.fleet.recovery == LOCAL:
            is_final = judge.has_committed_answer(agent, payload, self._store.read_commits)
        if not is_final:
            text = f"{host} tells the answer to input {key} of {agent} as final, and no complete epoch holds the turn that gave it"
            self._shared.say("receipts", "R2", text)

    def _is_held(self, agent: str, payload: bytes) -> bool:
        files = self._shared.stores.disk.durable_files(f"{LOG}/")
        if any(payload in data for data in files.values()):
            return True
        return self._shared.judge.holds_input(self._log.canonical.newest_complete(), agent, payload)

    # ---- deletions --------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """Return the contents of all existing log files of hosts, by path."""
        self._commits.look()
        return self._shared.stores.disk.files_below(f"{LOG}/")

    def on_swept(self, before: Mapping[str, bytes]) -> None:
        """Check whether a leader was allowed to delete the batches that it has deleted. `before` contains all log files of hosts before the
        deletion."""
        now = self.files()
        deleted = [data for path, data in before.items() if path not in now]
        epochs = self._log.canonical.complete_epochs()
        if before and self._shared.workload.fleet.recovery == LOCAL:
            self._swept_ns, self._old = self._shared.kernel.now_ns, self._find_old(now, epochs)
        if deleted and self._is_judged() and self._shared.workload.fleet.recovery == LOCAL:
            self._check_points(before, now, epochs)
        if not deleted or not epochs or not self._is_judged():
            return
        oracle = self._shared.judge.ground_truth.inputs
        for payload, offered in oracle.offered.items():
            if not offered.acknowledged_ns or not any(payload in data for data in deleted):
                continue
            is_dropped = oracle.drops.may_be_missing(self._log.canonical.plan_number, payload)
            if is_dropped or any(payload in data for data in now.values()):
                continue
            if not self._shared.judge.holds_input(epochs[0], offered.agent, payload):
                text = f"the batch with an input of {offered.client} for {offered.agent} is deleted, and epoch {epochs[0]}, which is kept, does not hold its effect"
                self._shared.say("garbage", "G7", text)
                return

    def _check_points(self, before: Mapping[str, bytes], now: Mapping[str, bytes], epochs: Sequence[int]) -> None:
        """Check that the deletion of commits has made no agent's point older, neither with the newest complete epoch as recovery line nor
        with the one before it, which becomes the line if the newest is damaged."""
        view = self._log.canonical
        era, plan = view.image.era, view.plan_number
        kept = self._store.commits.newest(now, era, plan + 1)
        had = self._store.commits.newest(before, era, plan + 1)
        for line in [0, *epochs][-2:]:
            numbers = self._shared.judge.checkpoint_numbers(line)
            if numbers is None:
                continue
            for agent, commit in had.items():
                record = view.image.agents.get(agent)
                least = max(numbers.get(agent, -1), kept[agent].number if agent in kept else -1)
                if record is not None and record.left_plan is None and least < commit.number:
                    text = f"commit {commit.number} of {agent} is deleted, and epoch {line} or another commit holds only checkpoint {least}"
                    self._shared.say("garbage", "G7", text)
                    return

    def _find_old(self, now: Mapping[str, bytes], epochs: Sequence[int]) -> str:
        """Return a description of a batch whose commits the base of every leader must cover (`SWEPT_BEHIND`), or "" if there is none."""
        begun_ns = self._begun_ns.get(epochs[-SWEPT_BEHIND], 0) if len(epochs) >= SWEPT_BEHIND else 0
        epoch = max([epoch for epoch in epochs if self._completed_ns.get(epoch, begun_ns) < begun_ns], default=0)
        numbers = self._shared.judge.checkpoint_numbers(epoch) if epoch else None
        for path, commits in self._store.commits.numbers_in_batches(now) if numbers else ():
            if commits and all(number <= (numbers or {}).get(agent, -1) for agent, number in commits):
                return f"{path} is left, and epoch {epoch} contains newer checkpoints of all its agents"
        return ""

    def check_bounded(self, healed_ns: int) -> None:
        """Check at the end of a run that the last deletion, if it was after all faults were healed, has left no old commits. Then logs stay
        bounded."""
        if self._old and self._swept_ns > healed_ns:
            self._shared.say("garbage", "G7", self._old)


# -- requested snapshots --------------------------------------------------------------------------------------------------


class SnapshotLeader(Protocol):
    """Interface of a leader that handles snapshot requests. Implemented by `simulated_replica.SimLeader`."""

    @property
    def is_over(self) -> bool: ...
    def ask(self, number: int) -> None:
        """Request a snapshot from the leader. `number` identifies the request."""
        ...


class SnapshotRequest(NamedTuple):
    """A request for a snapshot. `begun` is the number of the newest epoch that had already begun at the time of the request."""

    leader: SnapshotLeader
    asked_ns: int
    begun: int


class SnapshotRequests:
    """Sends snapshot requests, and keeps track of the requests that are not answered yet."""

    def __init__(self, shared: WorldState, log: SimulatedLog, completed_ns: Mapping[int, int]) -> None:
        self._shared = shared
        self._log = log
        self._completed_ns = completed_ns
        self._open: dict[int, SnapshotRequest] = {}
        self._count = 0

    def put(self, leader: SnapshotLeader) -> None:
        """Request a snapshot from the given leader."""
        self._count += 1
        self._open[self._count] = SnapshotRequest(leader, self._shared.kernel.now_ns, self._log.canonical.image.begun)
        leader.ask(self._count)

    def on_answered(self, answer: le.AnswerSnapshot) -> None:
        """Check the answer to a snapshot request. The snapshot in the answer must be a complete epoch. Under a coordinated protocol, this
        epoch must have begun after the request."""
        question = self._open.pop(answer.request, None)
        if question is None:
            text = f"question {answer.request} for a snapshot is answered twice, or was never put"
            self._shared.say("answer", "G4", text)
            return
        self._shared.judge.probes.sometimes(answer.is_complete, "snapshot asked for")
        if not answer.is_complete:
            return
        if answer.epoch not in self._completed_ns:
            text = f"epoch {answer.epoch} is given as a complete snapshot, and was never complete"
            self._shared.say("answer", "G4", text)
        elif not is_autonomous(self._shared.workload.fleet.protocol) and answer.epoch <= question.begun:
            text = f"epoch {answer.epoch} answers a request made when epoch {question.begun} had begun"
            self._shared.say("answer", "G4", text)

    def unanswered(self, since_ns: int) -> list[int]:
        """Return the numbers of all unanswered requests that were made before `since_ns` and whose leader still leads."""
        open_ = {number: each for number, each in self._open.items() if not each.leader.is_over}
        return [number for number, each in open_.items() if each.asked_ns < since_ns]


# -- packs ----------------------------------------------------------------------------------------------------------------

_FOOTER = struct.Struct("<QQ32s16s8s")
_MAGIC = b"SNAPFOOT"
_RECORD_HEAD_BYTES, _RECORD_DIGEST_BYTES = 24, 32
_BLOB_HEAD_BYTES = 96 + 16
"""Size of a blob's header in bytes, without the name."""

_LZ4 = 1
_CHECKPOINT, _CHUNK = 1, 2

_decode_index = msgspec.msgpack.Decoder().decode
_decode_run = msgspec.msgpack.Decoder(list[JournalEntry]).decode

_Entry = tuple[str, int, int, int, int, int, bytes, bytes]


def read_pack(data: bytes) -> list[AgentCheckpoint]:
    """Return the checkpoints in a pack, in order. The list is empty if the pack is damaged."""
    if data[-len(_MAGIC) :] != _MAGIC:
        return []
    start, size = _FOOTER.unpack(data[-_FOOTER.size :])[:2]
    body = data[start + _RECORD_HEAD_BYTES : start + size - _RECORD_DIGEST_BYTES]
    try:
        entries = _decode_index(body)["entries"]
        checkpoints = [decode_checkpoint(_read_blob(data, entry)) for entry in entries if entry[1] == _CHECKPOINT]
        if any(each.journal_part is not None for each in checkpoints):
            chunks = {entry[6]: _read_blob(data, entry) for entry in entries if entry[1] == _CHUNK}
            checkpoints = [_with_journal(each, chunks) for each in checkpoints]
        return checkpoints
    except (msgspec.DecodeError, lz4.block.LZ4BlockError, SnaplineError, _NotWholeError):
        return []


class _NotWholeError(Exception):
    """Raised if a blob does not match the index of its pack."""


def _read_blob(data: bytes, entry: _Entry) -> bytes:
    name, _kind, codec, offset, stored_bytes, size_bytes, _digest, stored_digest = entry
    start = offset + _BLOB_HEAD_BYTES + len(name)
    stored = data[start : start + stored_bytes]
    if blake3(stored).digest() != stored_digest:
        raise _NotWholeError(name)
    return lz4.block.decompress(stored, uncompressed_size=size_bytes) if codec == _LZ4 else stored


def _with_journal(checkpoint: AgentCheckpoint, chunks: Mapping[bytes, bytes]) -> AgentCheckpoint:
    """Return the checkpoint. If the checkpoint contains a durable turn, the turn in the result has its complete journal."""
    turn, part = checkpoint.turn, checkpoint.journal_part
    if turn is None or part is None:
        return checkpoint
    digests = [part.digests[start : start + 32] for start in range(0, len(part.digests), 32)]
    sealed = [entry for digest in digests for entry in _decode_run(chunks[digest])]
    return replace(checkpoint, saved_turn=replace(turn, journal=sealed + turn.journal), saved_journal=msgspec.UNSET)


# -- store ----------------------------------------------------------------------------------------------------------------


class StoreObserver:
    """Observes the store, and reports its contents to the judge.

    Attributes:
        flipped: the flipped bit of each file that a fault has damaged, by path.
        commits: reader of the commits in host logs.
    """

    def __init__(self, shared: WorldState, log: SimulatedLog) -> None:
        self._shared = shared
        self._log = log
        self._disk = shared.stores.disk
        self._reader = shared.stores.reader
        self.flipped: dict[str, int] = {}
        self._packs: dict[str, list[tuple[str, int]]] = {}
        self._unreported: dict[str, None] = {}
        self._published_ms: dict[int, int] = {}
        self._last_read: tuple[str, list[tuple[str, bytes | None]]] = "", []
        self.commits = CommitReader()

    # ---- packs of checkpoints -------------------------------------------------------------------------------------

    def on_reported(self, message: HostMessage) -> None:
        """Report a pack's checkpoints when a host has reported the pack as durable."""
        if isinstance(message, CheckpointsStored):
            self._unreported.pop(message.pack.path, None)
            self._see_pack(message.pack.path)

    def see_packs(self, plan: int) -> None:
        """Report the checkpoints in all packs that were written under this plan, even if no host has reported the packs."""
        for path in self._reader.checkpoint_packs(plan):
            if path not in self._packs:
                self._unreported[path] = None
                self._see_pack(path)

    def _see_pack(self, path: str) -> None:
        if path in self._packs:
            return
        self._packs[path] = []
        data = self._disk.bytes_of(path)
        checkpoints = read_pack(data) if data is not None and path not in self.flipped else []
        if not checkpoints:
            return
        self._packs[path] = [(checkpoint.agent, checkpoint.number) for checkpoint in checkpoints]
        name = layout.parse_any_pack_path(path)
        if name is not None:
            self._note_saved(checkpoints)
            self._shared.judge.on_checkpoints_durable(self._shared.kernel.now_ns, name.number, checkpoints)

    def _note_saved(self, found: Iterable[AgentCheckpoint]) -> None:
        now_ns, ground_truth = self._shared.kernel.now_ns, self._shared.judge.ground_truth
        for captured in filter(None, map(ground_truth.find, found)):
            self._shared.figures.on_saved(now_ns - captured.t_ns)

    def on_known(self, path: str) -> None:
        """Report that the coordinator has acknowledged a pack's checkpoints to the host that wrote the pack."""
        name = layout.parse_any_pack_path(path)
        for agent, number in self._packs.get(path, ()):
            self._shared.judge.on_checkpoints_known(0 if name is None else name.number, agent, number)

    # ---- commits --------------------------------------------------------------------------------------------------

    def read_commits(self, era: int, plan: int) -> dict[str, AgentCheckpoint]:
        """Return the newest checkpoint of each agent in the durable commits of the logs of plans from `era` and below `plan`."""
        return self.commits.newest(self._disk.durable_files(f"{LOG}/"), era, plan)

    def is_committed(self, text: bytes) -> bool:
        """Return whether a durable commit contains this text."""
        plan = self._log.canonical.plan_number
        files = self._disk.durable_files(f"{LOG}/")
        return any(text in checkpoint for checkpoint in self.commits.checkpoints(files, 0, plan + 1))

    # ---- publishing and deletion ----------------------------------------------------------------------------------

    def on_published(self, epoch: int, root: str) -> None:
        """Report to the judge that a leader has written the ref of an epoch."""
        self._shared.judge.on_published(self._shared.kernel.now_ns, epoch, root)
        if self._shared.scenario.run.retention and epoch not in self._published_ms:
            with contextlib.suppress(SnaplineError):
                self._published_ms[epoch] = self._created_of(epoch, root)

    def on_released(self, epoch: int) -> None:
        """Report that a leader has released the outputs of an epoch. The outputs are read from the release file if it exists."""
        self._shared.judge.on_released(self._shared.kernel.now_ns, epoch, self._read_release(epoch))

    def _read_release(self, epoch: int) -> Release | None:
        try:
            return self._reader.read_release(epoch)
        except NotFoundError:
            return None

    def releases(self) -> dict[int, Release]:
        """Return the contents of all release files that are readable, by epoch."""
        files = {epoch: self._read_release(epoch) for epoch in self._reader.output_epochs()}
        return {epoch: release for epoch, release in files.items() if release is not None}

    def on_deleted(self, command: le.Command, node: str) -> None:
        """Report to the judge that a leader has deleted data. The judge checks that all data for the newest recovery line still exists."""
        if not isinstance(command, le.DeleteEpochs | le.SweepStore | le.DeleteCheckpoints | le.SweepCheckpoints):
            return
        self._note_refs(node)
        nodes = self._disk.nodes
        missing: dict[int, list[tuple[str, int]]] = {}
        for path in [path for path in self._packs if path not in nodes]:
            name = layout.parse_any_pack_path(path)
            missing.setdefault(0 if name is None else name.number, []).extend(self._packs.pop(path))
        epoch = self._log.canonical.newest_complete()
        is_readable = not epoch or bool(self.flipped) or self._is_readable(epoch)
        for plan, checkpoints in (missing or {0: []}).items():
            self._shared.judge.on_deleted(self._shared.kernel.now_ns, is_readable, checkpoints, plan=plan)

    def _note_refs(self, node: str) -> None:
        """Report which epochs are left in the store if a retention policy is set."""
        if not self._shared.scenario.run.retention or self.flipped:
            return
        after = set(self._reader.epochs())
        before_ms = {**self._created_ms(after - self._published_ms.keys()), **self._published_ms}
        now_ms = self._shared.clocks.wall_ns(node) // 1_000_000
        self._shared.judge.on_retained(self._shared.kernel.now_ns, before_ms, after, now_ms=now_ms)
        self._published_ms = {epoch: each for epoch, each in self._published_ms.items() if epoch in after}

    def _created_ms(self, unreported: set[int]) -> dict[int, int]:
        """Return the creation times of epochs whose ref was written by a leader that crashed before it could report the epoch."""
        created_ms = {}
        for epoch in sorted(unreported):
            with contextlib.suppress(SnaplineError):
                created_ms[epoch] = self._created_of(epoch, self._reader.read_ref(epoch))
        return created_ms

    def _created_of(self, epoch: int, root: str) -> int:
        created = parse_created(self._reader.read_manifest(root, epoch=epoch).metadata.created)
        return (created or 0) // 1_000_000

    # ---- damage ---------------------------------------------------------------------------------------------------

    def on_damaged(self, path: str) -> None:
        """Record that the coordinator has detected damage in a file. If the path is "", no file is damaged."""
        self._shared.judge.probes.sometimes(bool(path) and path not in self.flipped, "torn write found")

    def files_of(self, epoch: int) -> list[str]:
        """Return the paths of all files of a complete epoch."""
        root = self._log.canonical.image.epochs[epoch].root
        try:
            packs = [pack.path for pack in self._reader.read_manifest(root, epoch=epoch).packs]
        except SnaplineError:
            packs = []
        return [layout.ref_path(epoch), layout.manifest_path(root), *packs]

    def is_flipped(self, epoch: int) -> bool:
        """Return whether a fault has damaged a file of the epoch."""
        return any(path in self.flipped for path in self.files_of(epoch))

    def on_power_cut(self, host: str) -> None:
        """Check that all complete epochs have survived a power cut of a host. A pack may be lost if no host has reported it as durable."""
        for path in [path for path in self._unreported if path not in self._disk.nodes]:
            del self._unreported[path]
            self._packs.pop(path, None)
        if self.flipped:
            return
        for epoch in self._log.canonical.complete_epochs():
            checkpoints, error = self._read_epoch(epoch)
            if checkpoints is None:
                text = f"epoch {epoch} was complete, and lost with the power of {host}: {error}"
                self._shared.say("durable", "G4", text)
        self._check_refs(host)

    def _check_refs(self, node: str) -> None:
        """Check that every epoch with a readable ref is undamaged. Every readable ref must belong to an undamaged epoch, because a deletion
        removes the ref before other files. A torn ref is detected when the ref is read."""
        for epoch in self._reader.epochs():
            with contextlib.suppress(SnaplineError):
                checkpoints, error = self.read_root(epoch, self._reader.read_ref(epoch))
                if checkpoints is None:
                    text = f"epoch {epoch} is listed after {node} lost its power, and is not whole: {error}"
                    self._shared.say("listed", "G4", text)

    # ---- reading whole epochs -------------------------------------------------------------------------------------

    def read_back(self) -> None:
        """Read every kept epoch except the newest epoch, which plans and oracles have already read. Report the results to the judge."""
        for epoch in self._log.canonical.complete_epochs()[:-1]:
            if not self.is_flipped(epoch):
                self._shared.judge.on_read_back(self._shared.kernel.now_ns, epoch, *self._read_epoch(epoch))

    def _is_readable(self, epoch: int) -> bool:
        """Return whether all bytes of a complete epoch are readable. If no file has changed since the last check, no file is read again."""
        root = self._log.canonical.image.epochs[epoch].root
        read_root, files = self._last_read
        if root == read_root and all(self._disk.bytes_of(path) is data for path, data in files):
            return True
        return self.read_root(epoch, root)[0] is not None

    def _read_epoch(self, epoch: int) -> tuple[Mapping[str, AgentCheckpoint] | None, str]:
        return self.read_root(epoch, self._log.canonical.image.epochs[epoch].root)

    def read_root(self, epoch: int, root: str) -> tuple[Mapping[str, AgentCheckpoint] | None, str]:
        """Read all checkpoints of an epoch from the disk. Return the checkpoints and "". If they are unreadable, return None and an error
        message."""
        try:
            manifest = self._reader.read_manifest(root, epoch=epoch)
            read = [self._whole(manifest, checkpoint) for checkpoint in self._reader.read_checkpoints(manifest)]
            checkpoints = {checkpoint.agent: checkpoint for checkpoint in _share_fields(read)}
        except SnaplineError as error:
            return None, str(error)
        paths = [layout.manifest_path(root), *(pack.path for pack in manifest.packs)]
        self._last_read = root, [(path, self._disk.bytes_of(path)) for path in paths]
        return checkpoints, ""

    def read_written(self, epoch: int, root: str) -> tuple[Mapping[str, AgentCheckpoint] | None, str]:
        """Read all checkpoints of an epoch as they were before faults damaged the epoch's files."""
        damaged = [(path, bit) for path, bit in self.flipped.items() if path in self._disk.nodes]
        for path, bit in damaged:
            self._disk.flip(path, bit)
        try:
            return self.read_root(epoch, root)
        finally:
            for path, bit in damaged:
                self._disk.flip(path, bit)

    def _whole(self, manifest: Manifest, checkpoint: AgentCheckpoint) -> AgentCheckpoint:
        """Return the checkpoint in the form in which it was captured, with the whole state and with the journal in the turn."""
        parts = self._reader.part_reader(manifest)
        if checkpoint.journal_part is not None:
            checkpoint = whole_turn(checkpoint, parts.read(checkpoint.agent, [checkpoint.journal_part])[0])
        if not checkpoint.parts:
            return checkpoint
        contents = parts.read(checkpoint.agent, checkpoint.parts)
        agent_object = restored(self._shared.workload.fleet, checkpoint, contents)
        state = encode_state(checkpoint.agent, agent_object, agent_type(type(agent_object)))
        return replace(checkpoint, state=state, parts=[])


def _share_fields(checkpoints: Iterable[AgentCheckpoint]) -> Iterator[AgentCheckpoint]:
    """Yield equivalent checkpoints that use less memory. Agents of the same class share one description of their state's fields."""
    known: dict[str, AgentCheckpoint] = {}
    for checkpoint in checkpoints:
        other = known.setdefault(checkpoint.kind, checkpoint)
        if other is not checkpoint and other.state_fields == checkpoint.state_fields:
            yield replace(
                checkpoint,
                kind=other.kind,
                state_fields=other.state_fields,
                sent={intern(agent): number for agent, number in checkpoint.sent.items()},
                received={intern(agent): number for agent, number in checkpoint.received.items()},
            )
        else:
            yield checkpoint


# -- the coordinator's log ------------------------------------------------------------------------------------------------

_ABORTING = op.AbortEpoch | op.AdmitHost | op.CommitPlan | op.CondemnEpoch | op.EndFleet | op.LoseHosts | op.Restore
"""Operations that abort open epochs. Their result lists these epochs."""

Freezing = Callable[[tuple[str, int], op.CommitPlan], list[Frozen]]
"""Function that returns the freezes of the hosts that froze in time for a plan, given the request that commits the plan."""


class LogObserver:
    """Observes the coordinator's log.

    Attributes:
        begun_ns, completed_ns: the times when each epoch began, and when it was completed.
        on_running: functions to call when the fleet starts to run the next time.
        is_ended: whether a leader has reported the end of the fleet's run.
    """

    def __init__(self, shared: WorldState, log: SimulatedLog, store: StoreObserver, frozen: Freezing) -> None:
        self._shared = shared
        self._log = log
        self._store = store
        self._frozen = frozen
        self.completed_ns: dict[int, int] = {}
        self.begun_ns: dict[int, int] = {}
        self.on_running: list[Callable[[], None]] = []
        self.is_ended = False
        self._proposals = 0
        self._lost_ns = 0
        self._requests: dict[tuple[str, int], None] = {}

    def _note_running(self, now_ns: int, *, is_first: bool) -> None:
        """Record that the fleet has started to run. `is_first` is False after a recovery. `is_first` is also False if a host died before it
        applied the first plan, so that the fleet starts under a later plan."""
        waiting, self.on_running = self.on_running, []
        for call in waiting:
            call()
        if self._lost_ns and not is_first:
            self._shared.figures.count("recoveries")
            self._shared.figures.count("recovery_s", (now_ns - self._lost_ns) / 1e9)
            self._lost_ns = 0

    def is_over(self) -> bool:
        """Return whether the fleet has ended, so that its hosts are no longer needed."""
        return self.is_ended or bool(self._log.canonical.image.outcome)

    def on_proposed(self, node: str, entry: bytes) -> int:
        """Record a proposal by a leader, and return the number of the proposal."""
        self._proposals += 1
        self._shared.judge.probes.sometimes(self._log.leader not in ("", node), "stale leader proposed")
        self._shared.judge.on_proposed(self._shared.kernel.now_ns, self._proposals, entry)
        return self._proposals

    def on_outcome(self, proposal: int, outcome: ProposalOutcome) -> None:
        """Report the outcome that a leader has learned for its proposal."""
        self._shared.judge.on_outcome(self._shared.kernel.now_ns, proposal, outcome, None)

    def on_standing(self, node: str, standing: Standing) -> None:
        """Record that a replica has learned of a new leader or a new term."""
        shared = self._shared
        shared.journal.add(
            (shared.kernel.now_ns, node, standing.leader, "leads", standing.term, int(standing.is_leader))
        )
        if standing.is_leader and standing.term > 1:
            shared.judge.probes.hit("leader change")
            shared.judge.probes.sometimes(bool(self._log.canonical.open_epochs()), "leader change during an epoch")

    def on_committed(self, index: int, node: str, entry: bytes, result: OperationResult) -> None:
        """Report a log entry that has been committed and applied."""
        operation = decode_operation(entry)
        now_ns, judge = self._shared.kernel.now_ns, self._shared.judge
        kind = operation.kind
        self._shared.journal.add((now_ns, node, type(kind).__name__, "committed", index, result.status))
        request = (operation.client, operation.sequence)
        # A repeated request returns the result of the first.
        is_new = result.status == APPLIED and request not in self._requests
        if is_new:
            self._requests[request] = None
        if isinstance(kind, op.CompleteEpoch) and is_new:
            self._on_epoch_complete(kind)
        judge.on_committed(now_ns, index + 1, operation, result, self._log.canonical)
        if is_new and isinstance(kind, op.CommitPlan):
            judge.on_survivors(now_ns, operation, self._frozen(request, kind))
        if is_new:
            self._note_operation(kind, result)

    def _on_epoch_complete(self, kind: op.CompleteEpoch) -> None:
        now_ns, judge = self._shared.kernel.now_ns, self._shared.judge
        record = self._log.canonical.image.epochs[kind.epoch]
        if is_logged(self._shared.workload.fleet.protocol):
            self._store.see_packs(record.plan)
        else:
            self._shared.figures.on_saved(now_ns - self.begun_ns[kind.epoch])
        checkpoints, error = self._store.read_root(kind.epoch, kind.root)
        self.completed_ns[kind.epoch] = now_ns
        self._shared.figures.count("epochs_complete")
        if checkpoints is None and self._store.is_flipped(kind.epoch):
            judge.on_damaged_base(kind.epoch)
            checkpoints, error = self._store.read_written(kind.epoch, kind.root)
        judge.on_epoch_complete(now_ns, kind.epoch, record.trigger, checkpoints, error)
        recording = self._shared.recording
        if recording is not None and checkpoints is not None:
            span = recording.epochs.setdefault(kind.epoch, EpochSpan(kind.epoch, record.plan, now_ns))
            span.ended_ns, span.outcome = now_ns, "complete"
            span.cut = {
                agent: checkpoint.number for agent, checkpoint in checkpoints.items() if not checkpoint.is_unborn
            }

    def _note_operation(self, kind: op.Kind, result: OperationResult) -> None:
        now_ns, state, recording = self._shared.kernel.now_ns, self._log.canonical, self._shared.recording
        match kind:
            case op.BeginEpoch():
                number = state.image.begun
                self.begun_ns[number] = now_ns
                if recording is not None:
                    recording.epochs[number] = EpochSpan(number, state.plan_number, now_ns)
            case op.LoseHosts():
                self._lost_ns = self._lost_ns or now_ns
            case op.CommitPlan() | op.Restore():
                self._note_plan()
            case op.CondemnEpoch():
                self._shared.judge.on_condemned(now_ns, kind.epoch, is_whole=self._is_whole(kind.epoch))
            case op.ConfirmPlan() if state.phase == RUNNING:
                self._note_running(now_ns, is_first=state.plan_number == 1)
            case _:
                pass
        if isinstance(kind, _ABORTING):
            self._note_aborted(result.epochs)

    def _is_whole(self, epoch: int) -> bool:
        """Return whether the epoch is unchanged since it was written, including its ref and the tables in its packs."""
        if self._store.is_flipped(epoch):
            return False
        checkpoints, _ = self._store.read_root(epoch, self._log.canonical.image.epochs[epoch].root)
        return checkpoints is not None

    def _note_plan(self) -> None:
        state, figures = self._log.canonical, self._shared.figures
        plan = state.plan
        assert plan is not None
        undone = self._shared.judge.rollback_of(plan.number - 1, plan.line_epoch)
        figures.count("agents_rolled_back", len(undone))
        for turns, checkpoints in undone:
            figures.count("lost_turns", turns)
            figures.count("checkpoints_lost", checkpoints)
            figures.raise_to("rollback_turns", turns)
            figures.raise_to("domino_depth", checkpoints)
        if self._shared.trace is not None:
            placed = {agent: record.host for agent, record in state.living_agents()}
            self._shared.trace.on_plan(plan.number, plan.line_epoch, placed)

    def _note_aborted(self, epochs: tuple[int, ...]) -> None:
        recording = self._shared.recording
        for epoch in epochs:
            self._shared.figures.count("epochs_aborted")
            if recording is not None and epoch in recording.epochs:
                span = recording.epochs[epoch]
                span.ended_ns, span.outcome = self._shared.kernel.now_ns, "aborted"


class WorldObserver:
    """All observers of a simulated world. `on_restore_answered` and `on_moves_answered` are called with the leader's answers to
    operators."""

    on_restore_answered: Callable[[AnswerRestore], None]
    on_moves_answered: Callable[[AnswerMoves], None]

    def __init__(self, shared: WorldState, log: SimulatedLog, frozen: Freezing) -> None:
        self.store = StoreObserver(shared, log)
        self.commits = CommitOracle(
            shared.judge.report,
            shared.judge.ground_truth,
            is_durable=shared.stores.disk.is_durable,
            era=lambda: log.canonical.image.era,
        )
        self.log = LogObserver(shared, log, self.store, frozen)
        times = self.log.begun_ns, self.log.completed_ns
        self.host_logs = HostLogOracle(shared, log, self.store, self.commits, *times)
        self.died: dict[str, tuple[str, tuple[TurnDeath, ...]]] = {}
        """For each host, the latest run that was killed by a message, and the marks that this run left."""
        self.questions = SnapshotRequests(shared, log, self.log.completed_ns)
