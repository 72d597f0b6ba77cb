"""What hosts, coordinators and their log do, told to the judge, the recording and the figures."""

import contextlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.fleet import encode_state
from snapline.agent_runtime.host.turns import restored
from snapline.channels.frame import Frame, Items
from snapline.conversation.messages import CheckpointsStored, HostMessage
from snapline.coordinator.leader import events as le
from snapline.coordinator.raft.outcomes import Standing
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import APPLIED, RUNNING, OperationResult, ProposalOutcome
from snapline.coordinator.state.operations import decode_operation
from snapline.errors import SnaplineError
from snapline.protocols.names import is_autonomous, is_logged
from snapline.sim.oracles.pack_reader import read_pack
from snapline.sim.oracles.survivors import Frozen
from snapline.sim.result import Violation
from snapline.sim.world.base import WorldBase
from snapline.sim.world.host import SimHost
from snapline.sim.world.recording import EpochSpan
from snapline.sim.world.steps import NotSimulatedError
from snapline.storage import layout
from snapline.storage.checkpoint import AgentCheckpoint
from snapline.storage.manifest import Manifest
from snapline.storage.retention_policy import parse_created

if TYPE_CHECKING:
    from snapline.sim.world.seat import SimLeader

RESTART_NS = 500_000_000
"""A launcher starts a host again that ended although the fleet has not."""

NOTES_MAX = 1_000
"""Warnings kept for whoever looks into a run."""

_ABORTING = op.AbortEpoch | op.AdmitHost | op.CommitPlan | op.CondemnEpoch | op.EndFleet | op.LoseHosts
"""What ends open epochs; the epochs in its result are those."""


class Question(NamedTuple):
    """A snapshot is asked for. `begun`: epochs that had begun then."""

    leader: "SimLeader"
    asked_ns: int
    begun: int


class WorldNotes(WorldBase):
    """What is told.

    Attributes:
        notes: warnings of coordinators: time, node, level, text.
        completed_ns: epoch → when it was complete.
        exit_code: of the fleet, once its leader has said so.
    """

    notes: list[tuple[int, str, str, str]]
    completed_ns: dict[int, int]
    exit_code: int | None
    _proposals: int
    _lost_ns: int
    _flipped: dict[str, None]
    _packs: dict[str, list[tuple[str, int]]]
    _unreported: dict[str, None]
    _requests: dict[tuple[str, int], None]
    _received: dict[tuple[str, str], int]  # (run, peer) → the newest item of its link
    _published_ms: dict[int, int]
    _questions: dict[int, Question]
    _asked: int
    _last_read: tuple[str, list[tuple[str, bytes | None]]]

    def _init_notes(self) -> None:
        self.notes = []
        self.completed_ns = {}
        self.exit_code = None
        self._proposals = self._lost_ns = 0
        self._flipped = {}
        self._packs = {}
        self._unreported = {}
        self._requests = {}
        self._received = {}
        self._last_read = "", []
        self._published_ms = {}
        self._questions = {}
        self._asked = 0

    def start_host(self, host: str) -> None:
        raise NotImplementedError

    def _is_flipped(self, epoch: int) -> bool:
        raise NotImplementedError

    def on_running(self) -> None:
        """The fleet has begun to work."""

    def _record_end(self, host: str) -> None:
        for span in self.recording.hosts if self.recording is not None else ():
            if span.host == host and not span.until_ns:
                span.until_ns = self.kernel.now_ns

    # ---- what they tell -------------------------------------------------------------------------------------------

    def misused(self, why: str) -> None:
        """The user's code cannot be simulated."""
        self.misuse = self.misuse or why
        self.kernel.is_over = True

    def core_failed(self, node: str, error: Exception) -> None:
        """The product raised: that is a bug found. What the simulator itself raises makes the run a broken one."""
        if isinstance(error, NotSimulatedError):
            self.misused(str(error))
            return
        where = traceback.extract_tb(error.__traceback__)[-1]
        if "/sim/" in where.filename:
            raise error
        if not self.kernel.is_over:
            place = f"{where.name}, {where.filename.rpartition('/')[2]}:{where.lineno}"
            self.say("core", "core", f"{node}: {type(error).__name__}: {error} ({place})")
        self.kernel.is_over = True

    def say(self, oracle: str, guarantee: str, text: str) -> None:
        """Something is wrong that the world itself has seen."""
        self.judge.violations.append(Violation(oracle, guarantee, self.kernel.now_ns, text))

    def host_ended(self, run: SimHost) -> None:
        """A host has ended by itself."""
        if not run.is_alive:
            return
        run.die()
        self._record_end(run.name)
        self.network.close_all(run.name)
        if self.exit_code is None and not self.log.canonical.image.outcome:
            self.call_at(self.kernel.now_ns + RESTART_NS, lambda: self.start_host(run.name))

    def fleet_ended(self, exit_code: int) -> None:
        """The leader says that the fleet's run is over."""
        self.exit_code = exit_code

    def note_said(self, node: str, level: str, text: str) -> None:
        if level != "info" and len(self.notes) < NOTES_MAX:
            self.notes.append((self.kernel.now_ns, node, level, text))

    def ask_for_snapshots(self) -> None:
        """From now on somebody asks whoever leads, now and then."""
        every_ns = self.scenario.run.snapshots_every_ns
        if not every_ns:
            return
        seat = next((seat for seat in self.seats.values() if seat.leader is not None), None)
        if seat is not None and seat.leader is not None:
            self._asked += 1
            self._questions[self._asked] = Question(seat.leader, self.kernel.now_ns, self.log.canonical.image.begun)
            seat.leader.fire((seat.leader.feed, le.SnapshotRequested(self._asked)))
        self.call_at(self.kernel.now_ns + every_ns, self.ask_for_snapshots)

    def snapshot_answered(self, leader: "SimLeader", answer: le.AnswerSnapshot) -> None:
        """Complete must be complete; and in coordinated fleets the cut is made after the question."""
        question = self._questions.pop(answer.request, None)
        if question is None:
            self.say("answer", "G4", f"question {answer.request} for a snapshot is answered twice, or was never put")
            return
        self.judge.probes.sometimes(answer.is_complete, "snapshot asked for")
        if not answer.is_complete:
            return
        if answer.epoch not in self.completed_ns:
            self.say("answer", "G4", f"epoch {answer.epoch} is given as a complete snapshot, and was never complete")
        elif not is_autonomous(self.fleet.protocol) and answer.epoch <= question.begun:
            text = f"epoch {answer.epoch} is given to somebody who asked when epoch {question.begun} had begun"
            self.say("answer", "G4", text)

    def unanswered(self, since_ns: int) -> list[int]:
        """Questions that a leader who leads still was asked before that time."""
        open_ = {number: each for number, each in self._questions.items() if not each.leader.is_over}
        return [number for number, each in open_.items() if each.asked_ns < since_ns]

    def note_message(self, node: str) -> None:
        self.count("control_messages")

    def note_frame(self, host: SimHost, peer: str, frame: Frame) -> None:
        if isinstance(frame.body, Items):
            link = (host.instance, peer)
            newest = self._received.get(link, 0)
            self.judge.probes.sometimes(frame.first_number <= newest, "duplicate frame dropped")
            self._received[link] = max(newest, frame.first_number + len(frame.body.channel) - 1)
        self.journal.add((self.kernel.now_ns, host.name, peer, "frame", frame.first_number, frame.ack))

    def note_stored(self, host: SimHost, message: HostMessage) -> None:
        """A host reports a pack of checkpoints: they are durable."""
        if isinstance(message, CheckpointsStored):
            self._unreported.pop(message.pack.path, None)
            self._see_pack(message.pack.path)

    def _see_pack(self, path: str) -> None:
        if path in self._packs:
            return
        self._packs[path] = []
        data = self.disk.bytes_of(path)
        found = read_pack(data) if data is not None and path not in self._flipped else []
        if not found:
            return
        self._packs[path] = [(each.agent, each.number) for each in found]
        name = layout.parse_any_pack_path(path)
        if name is not None:
            self.judge.on_checkpoints_durable(self.kernel.now_ns, name.number, found)

    def note_power_cut(self) -> None:
        """A pack whose writer died before it said that it is durable may go with the power, as if it had never been."""
        for path in [path for path in self._unreported if path not in self.disk.nodes]:
            del self._unreported[path]
            self._packs.pop(path, None)

    def note_known(self, path: str) -> None:
        """The coordinator has acknowledged a pack of checkpoints to its host."""
        name = layout.parse_any_pack_path(path)
        for agent, number in self._packs.get(path, ()):
            self.judge.on_checkpoints_known(0 if name is None else name.number, agent, number)

    def note_deleted(self, command: le.Command, node: str) -> None:
        """The coordinator's leader has deleted something: what the newest line needs must be there."""
        if not isinstance(command, le.DeleteEpochs | le.SweepStore | le.DeleteCheckpoints | le.SweepCheckpoints):
            return
        self._note_refs(node)
        nodes = self.disk.nodes
        missing: dict[int, list[tuple[str, int]]] = {}
        for path in [path for path in self._packs if path not in nodes]:
            name = layout.parse_any_pack_path(path)
            missing.setdefault(0 if name is None else name.number, []).extend(self._packs.pop(path))
        epoch = self.log.canonical.newest_complete()
        is_readable = not epoch or bool(self._flipped) or self._is_readable(epoch)
        for plan, checkpoints in (missing or {0: []}).items():
            self.judge.on_deleted(self.kernel.now_ns, is_readable, checkpoints, plan=plan)

    def _note_refs(self, node: str) -> None:
        """Which epochs are left in the store, when a policy says more than the log."""
        if not self.scenario.run.retention or self._flipped:
            return
        after = set(self.reader.epochs())
        before_ms = {**self._created_ms(after - self._published_ms.keys()), **self._published_ms}
        self.judge.on_retained(self.kernel.now_ns, before_ms, after, now_ms=self.wall_ns(node) // 1_000_000)
        self._published_ms = {epoch: each for epoch, each in self._published_ms.items() if epoch in after}

    def _created_ms(self, untold: set[int]) -> dict[int, int]:
        """When these epochs were created. Their refs lie there, for the policy to see, and who wrote them died before saying so."""
        found = {}
        for epoch in sorted(untold):
            with contextlib.suppress(SnaplineError):
                found[epoch] = self._created_of(epoch, self.reader.read_ref(epoch))
        return found

    def _created_of(self, epoch: int, root: str) -> int:
        created = parse_created(self.reader.read_manifest(root, epoch=epoch).metadata.created)
        return (created or 0) // 1_000_000

    def note_published(self, epoch: int, root: str) -> None:
        """A leader has written an epoch's ref."""
        self.judge.on_published(self.kernel.now_ns, epoch, root)
        if self.scenario.run.retention and epoch not in self._published_ms:
            with contextlib.suppress(SnaplineError):
                self._published_ms[epoch] = self._created_of(epoch, root)

    # ---- the log --------------------------------------------------------------------------------------------------

    def note_proposed(self, node: str, entry: bytes) -> int:
        self._proposals += 1
        self.judge.probes.sometimes(self.log.leader not in ("", node), "stale leader proposed")
        self.judge.on_proposed(self.kernel.now_ns, self._proposals, entry)
        return self._proposals

    def note_outcome(self, proposal: int, outcome: ProposalOutcome) -> None:
        self.judge.on_outcome(self.kernel.now_ns, proposal, outcome, None)

    def _on_standing(self, node: str, standing: Standing) -> None:
        self.journal.add((self.kernel.now_ns, node, standing.leader, "leads", standing.term, int(standing.is_leader)))
        if standing.is_leader and standing.term > 1:
            self.judge.probes.hit("leader change")
            self.judge.probes.sometimes(bool(self.log.canonical.open_epochs()), "leader change during an epoch")
        self.seats[node].on_standing(standing)

    def _on_committed(self, index: int, node: str, entry: bytes, result: OperationResult) -> None:
        operation = decode_operation(entry)
        now_ns, state = self.kernel.now_ns, self.log.canonical
        kind = operation.kind
        self.journal.add((now_ns, node, type(kind).__name__, "committed", index, result.status))
        request = (operation.client, operation.sequence)
        is_new = result.status == APPLIED and request not in self._requests  # a request said twice has its first result
        if is_new:
            self._requests[request] = None
        if isinstance(kind, op.CompleteEpoch) and is_new:
            self._on_epoch_complete(kind)
        self.judge.on_committed(now_ns, index + 1, operation, result, state)
        if is_new and isinstance(kind, op.CommitPlan):
            self.judge.on_survivors(now_ns, operation, self._frozen(request, kind))
        if is_new:
            self._note_operation(kind, result)

    def _frozen(self, request: tuple[str, int], kind: op.CommitPlan) -> list[Frozen]:
        """Who froze in time for a plan, or would have."""
        leaders = [seat.leader for seat in self.seats.values() if seat.leader is not None]
        return [
            self._awaited(each) if each.is_awaited else each
            for leader in leaders
            for each in leader.freezes.in_time(request, kind.hosts)
        ]

    def _awaited(self, frozen: Frozen) -> Frozen:
        """The same of the run that is there: what does not move just now would have stood still."""
        run = self.run_of(frozen.host)
        if run is None or run.carrier.core.plan != frozen.plan:
            return frozen
        core = run.carrier.core
        still = [x.id for x in core.agents.values() if x.current is None and x.is_born and not x.is_failed]
        self.judge.on_frozen(frozen.host, core.start, frozen.plan, frozen.number, still)
        return replace(frozen, start=core.start)

    def _on_epoch_complete(self, kind: op.CompleteEpoch) -> None:
        image = self.log.canonical.image
        record = image.epochs[kind.epoch]
        if is_logged(self.fleet.protocol):
            for path in self.reader.checkpoint_packs(record.plan):
                if path not in self._packs:
                    self._unreported[path] = None
                    self._see_pack(path)
        found, error = self._read_root(kind.epoch, kind.root)
        self.completed_ns[kind.epoch] = self.kernel.now_ns
        self.count("epochs_complete")
        if found is None and self._is_flipped(kind.epoch):
            self.judge.on_damaged_base(kind.epoch)
        self.judge.on_epoch_complete(self.kernel.now_ns, kind.epoch, record.trigger, found, error)
        if self.recording is not None and found is not None:
            span = self.recording.epochs.setdefault(kind.epoch, EpochSpan(kind.epoch, record.plan, self.kernel.now_ns))
            span.ended_ns, span.outcome = self.kernel.now_ns, "complete"
            span.cut = {agent: each.number for agent, each in found.items() if not each.is_unborn}

    def _is_readable(self, epoch: int) -> bool:
        """Whether every byte of a complete epoch can be read. Files that are the very same as last time need no reading."""
        root = self.log.canonical.image.epochs[epoch].root
        read_root, files = self._last_read
        if root == read_root and all(self.disk.bytes_of(path) is data for path, data in files):
            return True
        return self._read_root(epoch, root)[0] is not None

    def _read_epoch(self, epoch: int) -> tuple[Mapping[str, AgentCheckpoint] | None, str]:
        return self._read_root(epoch, self.log.canonical.image.epochs[epoch].root)

    def _read_root(self, epoch: int, root: str) -> tuple[Mapping[str, AgentCheckpoint] | None, str]:
        """Every byte of a complete epoch, as it lies on the disk."""
        try:
            manifest = self.reader.read_manifest(root, epoch=epoch)
            read = [self._whole(manifest, each) for each in self.reader.read_checkpoints(manifest)]
            found = {each.agent: each for each in _share_fields(read)}
        except SnaplineError as error:
            return None, str(error)
        paths = [layout.manifest_path(root), *(pack.path for pack in manifest.packs)]
        self._last_read = root, [(path, self.disk.bytes_of(path)) for path in paths]
        return found, ""

    def _whole(self, manifest: Manifest, checkpoint: AgentCheckpoint) -> AgentCheckpoint:
        """The same with all of its state in one record, as the judge was told it when it was captured."""
        if not checkpoint.parts:
            return checkpoint
        contents = self.reader.part_reader(manifest).read(checkpoint.agent, checkpoint.parts)
        made = restored(self.fleet, checkpoint, contents)
        state = encode_state(checkpoint.agent, made, agent_type(type(made)))
        return replace(checkpoint, state=state, parts=[])

    def _note_operation(self, kind: op.Kind, result: OperationResult) -> None:
        now_ns = self.kernel.now_ns
        match kind:
            case op.BeginEpoch() if self.recording is not None:
                number = self.log.canonical.image.begun
                self.recording.epochs[number] = EpochSpan(number, self.log.canonical.plan_number, now_ns)
            case op.LoseHosts():
                self._lost_ns = self._lost_ns or now_ns
            case op.CommitPlan():
                self._note_plan()
            case op.ConfirmPlan() if self.log.canonical.plan_number == 1 and self.log.canonical.phase == RUNNING:
                self.on_running()
                self.call_at(now_ns, self.ask_for_snapshots)
            case op.ConfirmPlan() if self._lost_ns and self.log.canonical.phase == RUNNING:
                self.count("recoveries")
                self.count("recovery_s", (now_ns - self._lost_ns) / 1e9)
                self._lost_ns = 0
            case _:
                pass
        if isinstance(kind, _ABORTING):
            self._note_aborted(result.epochs)

    def _note_plan(self) -> None:
        plan = self.log.canonical.plan
        assert plan is not None
        undone = self.judge.rollback_of(plan.number - 1, plan.line_epoch)
        self.count("agents_rolled_back", len(undone))
        for turns, checkpoints in undone:
            self.count("lost_turns", turns)
            self.count("checkpoints_lost", checkpoints)
            self.counts["rollback_turns"] = max(self.counts.get("rollback_turns", 0), turns)
            self.counts["domino_depth"] = max(self.counts.get("domino_depth", 0), checkpoints)
        if self.trace is not None:
            self.trace.on_plan(plan.number, plan.line_epoch)

    def _note_aborted(self, epochs: tuple[int, ...]) -> None:
        for epoch in epochs:
            self.count("epochs_aborted")
            if self.recording is not None and epoch in self.recording.epochs:
                span = self.recording.epochs[epoch]
                span.ended_ns, span.outcome = self.kernel.now_ns, "aborted"


def _share_fields(checkpoints: Iterable[AgentCheckpoint]) -> Iterator[AgentCheckpoint]:
    """The same values in less memory: agents of one class have the same description of their state."""
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
