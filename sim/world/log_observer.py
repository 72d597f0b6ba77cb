"""Observer of the coordinator's log: reports its commits to the judge, the recording and the counters."""

from collections.abc import Callable

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import APPLIED, RUNNING, OperationResult, ProposalOutcome
from snapline.coordinator.state.operations import decode_operation
from snapline.messages.status import Standing
from snapline.protocols.names import is_logged
from snapline.sim.oracles.line_oracles import Frozen
from snapline.sim.world.recording import EpochSpan
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.store_observer import StoreObserver
from snapline.sim.world.world_state import WorldState

_ABORTING = op.AbortEpoch | op.AdmitHost | op.CommitPlan | op.CondemnEpoch | op.EndFleet | op.LoseHosts | op.Restore
"""Operations that end open epochs; their result lists these epochs."""

Freezing = Callable[[tuple[str, int], op.CommitPlan], list[Frozen]]
"""Function that returns the hosts that froze in time for the plan of a request."""


class LogObserver:
    """Observer of the log.

    Attributes:
        completed_ns: epoch → time of its completion.
        on_running: functions to call when the fleet begins to work.
        is_ended: a leader has reported that the fleet's run is over.
    """

    def __init__(self, shared: WorldState, log: SimulatedLog, store: StoreObserver, frozen: Freezing) -> None:
        self._shared = shared
        self._log = log
        self._store = store
        self._frozen = frozen
        self.completed_ns: dict[int, int] = {}
        self._begun_ns: dict[int, int] = {}
        self.on_running: list[Callable[[], None]] = []
        self.is_ended = False
        self._proposals = 0
        self._lost_ns = 0
        self._requests: dict[tuple[str, int], None] = {}

    def _note_running(self, now_ns: int, *, is_first: bool) -> None:
        """Record that the fleet runs; under a later plan than the first if a host died before it had applied the first."""
        waiting, self.on_running = self.on_running, []
        for call in waiting:
            call()
        if self._lost_ns and not is_first:
            self._shared.figures.count("recoveries")
            self._shared.figures.count("recovery_s", (now_ns - self._lost_ns) / 1e9)
            self._lost_ns = 0

    def is_over(self) -> bool:
        """Return whether the fleet's hosts are no longer needed."""
        return self.is_ended or bool(self._log.canonical.image.outcome)

    def on_proposed(self, node: str, entry: bytes) -> int:
        """Record a leader's proposal, and return its number."""
        self._proposals += 1
        self._shared.judge.probes.sometimes(self._log.leader not in ("", node), "stale leader proposed")
        self._shared.judge.on_proposed(self._shared.kernel.now_ns, self._proposals, entry)
        return self._proposals

    def on_outcome(self, proposal: int, outcome: ProposalOutcome) -> None:
        """Report the outcome of a proposal that its leader has learned."""
        self._shared.judge.on_outcome(self._shared.kernel.now_ns, proposal, outcome, None)

    def on_standing(self, node: str, standing: Standing) -> None:
        """Record a replica's changed knowledge of the leader."""
        shared = self._shared
        shared.journal.add(
            (shared.kernel.now_ns, node, standing.leader, "leads", standing.term, int(standing.is_leader))
        )
        if standing.is_leader and standing.term > 1:
            shared.judge.probes.hit("leader change")
            shared.judge.probes.sometimes(bool(self._log.canonical.open_epochs()), "leader change during an epoch")

    def on_committed(self, index: int, node: str, entry: bytes, result: OperationResult) -> None:
        """Report a committed and applied entry."""
        operation = decode_operation(entry)
        now_ns, judge = self._shared.kernel.now_ns, self._shared.judge
        kind = operation.kind
        self._shared.journal.add((now_ns, node, type(kind).__name__, "committed", index, result.status))
        request = (operation.client, operation.sequence)
        is_new = result.status == APPLIED and request not in self._requests  # a repeated request has its first result
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
            self._shared.figures.on_saved(now_ns - self._begun_ns[kind.epoch])
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
                self._begun_ns[number] = now_ns
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
        """Return whether every byte of the epoch is as written, including its ref and the tables of its packs."""
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
