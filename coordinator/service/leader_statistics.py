"""Durations and sizes of epochs and recoveries, and pauses of agents, as this process has seen them while it led.

The replicated state has decisions and their times; hosts report how much they have written. The leader's driver shows both to its
observers. Nothing is decided from them. A new leader begins at zero, which monitoring systems handle as a counter reset.
"""

from collections import Counter
from typing import NamedTuple

from snapline.coordinator.leader.events import Event, MessageReceived
from snapline.coordinator.service.leader_driver import LeaderObserver
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import COMPLETE, Committed, ProposalOutcome
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.host_messages import CheckpointsStored, EpochReport
from snapline.telemetry.metrics import Distribution

PACKS_KEPT = 4096
"""Number of packs whose sizes are kept, for the few open epochs; the oldest are dropped first. Hosts repeat unanswered reports."""

NS = 1e9


class ReportedPart(NamedTuple):
    """Report about one pack.

    Attributes:
        epoch: the epoch; 0: checkpoints that agents took on their own.
        pause_ns: longest pause of one agent.
        pauses_ns: total pauses of all agents.
    """

    epoch: int
    size_bytes: int
    host_start: int
    pause_ns: int
    pauses_ns: int


class LeaderFigures(LeaderObserver):
    """Figures of all leaders of one process.

    Attributes:
        durations_s: durations of complete epochs, from begin to decision.
        plans_s: durations of recoveries, from the first suspicion until the plan was committed.
        loads_s: durations of recoveries, from the plan until all hosts had applied it.
        last: the newest epoch that completed under this process; None before there is one.
        last_new_bytes: bytes written for that epoch.
        last_pause_ns: longest pause of one agent for that epoch.
        last_capture_ns: largest total pause of one host's agents for that epoch.
        reclaimed_files: number of files deleted in the store; counted on the thread that deletes.
    """

    def __init__(self, state: FleetView) -> None:
        self._state = state
        self.durations_s = Distribution()
        self.plans_s, self.loads_s = Distribution(), Distribution()
        self.last: op.CompleteEpoch | None = None
        self.last_new_bytes = self.last_pause_ns = self.last_capture_ns = self.reclaimed_files = 0
        self._packs: dict[str, ReportedPart] = {}
        """Path → report on a pack that no complete epoch holds yet."""
        self._plan_counted = 0

    def event_received(self, event: Event) -> None:
        """Take a host's report."""
        match event:
            case MessageReceived(message=EpochReport() as report):
                self._keep(report, report.epoch)
            case MessageReceived(message=CheckpointsStored() as report):
                self._keep(report, 0)
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
        """Count deleted files."""
        self.reclaimed_files += files

    def proposal_ended(self, kind: op.Kind, outcome: ProposalOutcome) -> None:
        """Take the outcome of a proposal that the state has applied."""
        if not isinstance(outcome, Committed) or outcome.result.is_refused:
            return
        if isinstance(kind, op.CompleteEpoch):
            self._count_epoch(kind)
        elif isinstance(kind, op.AbortEpoch):
            self._packs = {path: part for path, part in self._packs.items() if part.epoch != kind.epoch}
        elif isinstance(kind, op.ConfirmPlan | op.CommitPlan | op.Restore):
            self._count_plan()

    def _count_epoch(self, completed: op.CompleteEpoch) -> None:
        record = self._state.image.epochs.get(completed.epoch)
        if record is None or record.status != COMPLETE:
            return
        self.durations_s.observe((record.ended_ns - record.begun_ns) / NS)
        own = {path: report for path, report in self._packs.items() if report.epoch in (0, completed.epoch)}
        pauses_ns_by_start: Counter[int] = Counter()
        for part in own.values():
            pauses_ns_by_start[part.host_start] += part.pauses_ns
        self.last, self.last_new_bytes = completed, sum([part.size_bytes for part in own.values()])
        self.last_pause_ns = max([part.pause_ns for part in own.values()], default=0)
        self.last_capture_ns = max(pauses_ns_by_start.values(), default=0)
        self._packs = {path: report for path, report in self._packs.items() if path not in own}

    def _count_plan(self) -> None:
        """Count the current plan once, when all hosts have applied it."""
        plan = self._state.plan
        if plan is None or not plan.done_ns or plan.number <= max(self._state.start_plan, self._plan_counted):
            return
        self._plan_counted = plan.number
        self.plans_s.observe(max(0, plan.committed_ns - plan.suspected_ns) / NS)
        self.loads_s.observe(max(0, plan.done_ns - plan.committed_ns) / NS)
