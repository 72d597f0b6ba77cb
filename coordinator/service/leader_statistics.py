"""Durations, sizes and pauses of epochs and recoveries, measured by this process while it led; also the costs of failures and epochs.

The replicated state contains decisions and their times, and hosts report how much they have written. The leader's driver passes both to its
observers. No decision depends on these figures. A new leader begins at zero, which monitoring systems handle as a counter reset.

`snapline status` shows the costs, which are computed from the replicated state and these figures. A replica that does not lead uses only
the data about epochs in the replicated state.
"""

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

from snapline.coordinator.leader.events import Event, MessageReceived
from snapline.coordinator.service.leader_driver import LeaderObserver
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import COMPLETE, Committed, EpochRecord, PlanRecord, ProposalOutcome
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.host_messages import CheckpointsStored, EpochReport
from snapline.messages.status import IntervalStatus, LossStatus, RecoveryTime
from snapline.telemetry.metrics import Distribution

PACKS_KEPT = 4096
"""Number of packs whose sizes are kept, for the few open epochs. The oldest packs are dropped first."""

NS = 1e9


class ReportedPart(NamedTuple):
    """Figures from a host's report about one pack.

    Attributes:
        epoch: the epoch to which the pack belongs; 0 if the pack contains checkpoints that agents took on their own.
        pause_ns: longest pause of a single agent.
        pauses_ns: sum of the pauses of all agents.
    """

    epoch: int
    size_bytes: int
    host_start: int
    pause_ns: int
    pauses_ns: int


class LeaderFigures(LeaderObserver):
    """Figures from all leaderships of one process.

    Attributes:
        durations_s: durations of complete epochs, from the start to the decision.
        plans_s: durations from the first suspicion until the recovery plan was committed.
        loads_s: durations from the commit of the recovery plan until all hosts had applied it.
        last: the newest epoch that completed while this process led; None before the first such epoch.
        last_new_bytes: number of bytes written for that epoch.
        last_pause_ns: longest pause of a single agent for that epoch.
        last_capture_ns: largest sum of pauses of one host's agents for that epoch.
        reclaimed_files: number of files deleted in the store. The files are counted on the thread that deletes them.
    """

    def __init__(self, state: FleetView) -> None:
        self._state = state
        self.durations_s = Distribution()
        self.plans_s, self.loads_s = Distribution(), Distribution()
        self.last: op.CompleteEpoch | None = None
        self.last_new_bytes = self.last_pause_ns = self.last_capture_ns = self.reclaimed_files = 0
        self._packs: dict[str, ReportedPart] = {}
        """Path → report on a pack that no complete epoch contains yet."""
        self._plan_counted = 0

    def event_received(self, event: Event) -> None:
        """Record the figures from a host's report."""
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
        """Record the outcome of a proposal after the state has applied it."""
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
        """Count the current plan once, after all hosts have applied it."""
        plan = self._state.plan
        if plan is None or not plan.done_ns or plan.number <= max(self._state.start_plan, self._plan_counted):
            return
        self._plan_counted = plan.number
        self.plans_s.observe(max(0, plan.committed_ns - plan.suspected_ns) / NS)
        self.loads_s.observe(max(0, plan.done_ns - plan.committed_ns) / NS)


RECOVERIES_SHOWN = 8
"""Number of latest recoveries to show. `snapline recovery history` shows more."""


def loss_of(state: FleetView, now_ns: int, missed: tuple[str, ...] = ()) -> LossStatus:
    """Return the work that a failure at this wall-clock time would undo. `missed` contains the objectives that the leader reports as
    missed."""
    image, plans = state.image, state.image.plans
    if not plans:
        return LossStatus(rpo_ns=image.rpo_ns, rto_ns=image.rto_ns)
    over = [plan for plan in plans if plan.number > state.start_plan and plan.done_ns]
    return LossStatus(
        at_risk_ns=state.at_risk_ns(now_ns),
        failures=sum([plan.is_failure for plan in plans[1:]]),
        observed_ns=max(0, now_ns - plans[0].committed_ns),
        recoveries=tuple([_time_of(plan, state) for plan in over[-RECOVERIES_SHOWN:]]),
        rpo_ns=image.rpo_ns,
        rto_ns=image.rto_ns,
        missed=missed,
    )


def _time_of(plan: PlanRecord, state: FleetView) -> RecoveryTime:
    return RecoveryTime(
        plan=plan.number,
        is_failure=plan.is_failure,
        plan_ns=max(0, plan.committed_ns - state.recovery_began_ns(plan)),
        load_ns=max(0, plan.done_ns - plan.committed_ns),
        agents=plan.agents,
        rolled_back=plan.rolled_back,
        lost_ns=None if state.is_autonomous else plan.lost_ns,
        checkpoints_lost=plan.checkpoints_lost,
    )


def interval_of(state: FleetView, figures: LeaderFigures | None) -> IntervalStatus:
    """Return the interval and the costs of epochs. `figures` are those of this process; None if this process does not lead."""
    image = state.image
    complete = [
        (epoch, record) for epoch, record in image.epochs.items() if record.status == COMPLETE and record.ended_ns
    ]
    durations = [max(0, record.ended_ns - record.begun_ns) for _, record in complete]
    gaps = _gaps([record for _, record in complete])
    status = IntervalStatus(
        period_ns=image.period_ns,
        policy=image.policy if state.is_autonomous else "",
        epochs=len(complete),
        duration_ns=_mean(durations),
        duration_max_ns=max(durations, default=0),
        gap_ns=_mean(gaps),
    )
    newest = None if figures is None else figures.last
    if figures is None or newest is None or newest.epoch not in dict(complete):
        return status
    return IntervalStatus(
        *(status.period_ns, status.policy, status.epochs, status.duration_ns, status.duration_max_ns, status.gap_ns),
        pause_ns=figures.last_pause_ns,
        capture_ns=figures.last_capture_ns,
        new_bytes=figures.last_new_bytes,
        state_bytes=newest.state_bytes,
        channel_state_bytes=newest.channel_state_bytes,
    )


def _gaps(records: list[EpochRecord]) -> list[int]:
    return [max(0, b.begun_ns - a.begun_ns) for a, b in pairwise(records) if a.plan == b.plan]


def _mean(times_ns: list[int]) -> int:
    return sum(times_ns) // len(times_ns) if times_ns else 0
