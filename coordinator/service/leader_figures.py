"""Durations and sizes of epochs and recoveries, and agents' waits for them, as this process has seen them while it led.

The replicated state says what was decided and when; a report says how much its host has written. Both pass the leader's adapter
(`adapter.py`), which shows them here. Nothing is decided from it, and a new leader begins anew: counters of monitoring systems may.
"""

from collections import Counter
from typing import NamedTuple

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import COMPLETE, Committed, ProposalOutcome
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.host_messages import CheckpointsStored, EpochReport, HostMessage
from snapline.telemetry.metrics import Distribution

PACKS_KEPT = 4096
"""Packs whose sizes are known, oldest first to go: those of the few epochs that are open. Hosts say twice what was not answered."""

NS = 1e9


class ReportedPart(NamedTuple):
    """Report about one pack. `epoch`: 0: of checkpoints that agents took on their own; `pause_ns`: the longest of one agent; `pauses_ns`: of all."""

    epoch: int
    size_bytes: int
    host_start: int
    pause_ns: int
    pauses_ns: int


class LeaderFigures:
    """Figures of all leaders of one process.

    Attributes:
        durations_s: of complete epochs, from their begin to their decision.
        plans_s: of recoveries, from the first suspicion until their plan was committed.
        loads_s: of recoveries, from their plan until all hosts had applied it.
        last: of the newest epoch that completed here: what it holds; None before there is one.
        last_new_bytes: written for it.
        last_pause_ns: longest wait of one agent for it. last_capture_ns: total wait of a host's agents, where it is longest.
        reclaimed_files: deleted in the store; counted on the thread that deletes.
    """

    def __init__(self, state: FleetView) -> None:
        self._state = state
        self.durations_s = Distribution()
        self.plans_s, self.loads_s = Distribution(), Distribution()
        self.last: op.CompleteEpoch | None = None
        self.last_new_bytes = self.last_pause_ns = self.last_capture_ns = self.reclaimed_files = 0
        self._packs: dict[str, ReportedPart] = {}
        """Path → what it says, of what no complete epoch holds yet."""
        self._plan_counted = 0

    def heard(self, message: HostMessage) -> None:
        """A host has said something."""
        match message:
            case EpochReport():
                self._keep(message, message.epoch)
            case CheckpointsStored():
                self._keep(message, 0)
            case _:
                pass

    def _keep(self, said: EpochReport | CheckpointsStored, epoch: int) -> None:
        pack = said.pack
        if not pack.path:
            return
        pauses = said.capture_ns, said.captures_ns
        self._packs[pack.path] = ReportedPart(epoch, pack.size_bytes, said.host_start, *pauses)
        while len(self._packs) > PACKS_KEPT:
            del self._packs[next(iter(self._packs))]

    def deleted(self, files: int) -> None:
        """Count deleted files that nothing needed."""
        self.reclaimed_files += files

    def decided(self, kind: op.Kind, outcome: ProposalOutcome) -> None:
        """A proposal has ended; the state has applied it."""
        if not isinstance(outcome, Committed) or outcome.result.is_refused:
            return
        if isinstance(kind, op.CompleteEpoch):
            self._count_epoch(kind)
        elif isinstance(kind, op.AbortEpoch):
            self._packs = {path: found for path, found in self._packs.items() if found.epoch != kind.epoch}
        elif isinstance(kind, op.ConfirmPlan | op.CommitPlan | op.Restore):
            self._count_plan()

    def _count_epoch(self, completed: op.CompleteEpoch) -> None:
        record = self._state.image.epochs.get(completed.epoch)
        if record is None or record.status != COMPLETE:
            return
        self.durations_s.observe((record.ended_ns - record.begun_ns) / NS)
        own = {path: found for path, found in self._packs.items() if found.epoch in (0, completed.epoch)}
        waited: Counter[int] = Counter()
        for part in own.values():
            waited[part.host_start] += part.pauses_ns
        self.last, self.last_new_bytes = completed, sum([part.size_bytes for part in own.values()])
        self.last_pause_ns = max([part.pause_ns for part in own.values()], default=0)
        self.last_capture_ns = max(waited.values(), default=0)
        self._packs = {path: found for path, found in self._packs.items() if path not in own}

    def _count_plan(self) -> None:
        """The current one, once, when all hosts have applied it."""
        plan = self._state.plan
        if plan is None or not plan.done_ns or plan.number <= max(self._state.start_plan, self._plan_counted):
            return
        self._plan_counted = plan.number
        self.plans_s.observe(max(0, plan.committed_ns - plan.suspected_ns) / NS)
        self.loads_s.observe(max(0, plan.done_ns - plan.committed_ns) / NS)
