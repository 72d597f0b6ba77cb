"""Metrics of a coordinator process (`telemetry/metrics.py`): metrics of its replica and, while it leads, metrics of the fleet.

Only the leader reports the fleet's metrics, so that sums over all replicas count no value twice.

`LeaderFigures` contains the durations, sizes and pauses of epochs and recoveries, as measured by this process while it led. The
measurements come from the decisions and times in the replicated state, and from hosts' reports of how much they have written. The leader's
driver passes these decisions and reports to its observers, of which `LeaderFigures` is one. No decision depends on these figures. A new
leader's counters begin at zero, which monitoring systems treat as a counter reset.

`snapline status` shows the costs of epochs, which are computed from the replicated state and these figures. A replica that does not lead
computes the costs of epochs from the replicated state alone.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

from snapline.coordinator.leader.core import LeaderStatus
from snapline.coordinator.leader.epochs.store_watch import DEGRADED
from snapline.coordinator.leader.events import Event, MessageReceived
from snapline.coordinator.raft.raft_driver import Replica
from snapline.coordinator.service.leader_driver import LeaderObserver
from snapline.coordinator.service.leadership import Leadership
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    ALIVE,
    COMPLETE,
    FAILED,
    FINISHED,
    FORMING,
    LEFT,
    LOST,
    RECOVERING,
    RUNNING,
    Committed,
    EpochRecord,
    PlanRecord,
    ProposalOutcome,
)
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.host_messages import CheckpointsStored, EpochReport
from snapline.messages.status import KINDS, IntervalStatus, LossStatus, RecoveryTime
from snapline.telemetry.metrics import COUNTER, GAUGE, HISTOGRAM, SUMMARY, Distribution, Family, Readings, Total, Value

PACKS_KEPT = 4096
"""Number of packs whose sizes are kept, for the few open epochs. The oldest packs are dropped first."""

NS = 1e9


class ReportedPart(NamedTuple):
    """Figures about one pack, from a host's report.

    Attributes:
        epoch: number of the pack's epoch; 0 if the pack contains checkpoints that agents took on their own.
        pause_ns: longest pause, in nanoseconds, of a single agent.
        pauses_ns: total pause, in nanoseconds, of all agents.
    """

    epoch: int
    size_bytes: int
    host_start: int
    pause_ns: int
    pauses_ns: int


class LeaderFigures(LeaderObserver):
    """Figures collected during all leaderships of one process.

    Attributes:
        durations_s: durations of complete epochs, in seconds, from their start to the decision.
        plans_s: durations, in seconds, from the first suspicion to the commit of the recovery plan.
        loads_s: durations, in seconds, from the commit of a recovery plan until all hosts have applied it.
        last: the newest epoch completed while this process led; None before the first one.
        last_new_bytes: number of bytes written for the epoch in `last`.
        last_pause_ns: longest pause of a single agent, in nanoseconds, for the epoch in `last`.
        last_capture_ns: for the epoch in `last`, the largest total pause, in nanoseconds, of all agents on any one host.
        reclaimed_files: number of files deleted from the store. Files are counted on the thread that deletes them.
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
        """Record the figures in a host's report."""
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
        """Record a proposal's outcome after the state has applied the operation."""
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
        if self._state.continues_stopped_fleet(plan):
            return
        self._plan_counted = plan.number
        self.plans_s.observe(max(0, plan.committed_ns - plan.suspected_ns) / NS)
        self.loads_s.observe(max(0, plan.done_ns - plan.committed_ns) / NS)


RECOVERIES_SHOWN = 8
"""Number of latest recoveries to show. `snapline recovery history` shows more."""


def loss_of(state: FleetView, now_ns: int, missed: tuple[str, ...] = ()) -> LossStatus:
    """Return how much work a failure at this wall-clock time would undo. `missed` contains the recovery objectives that the leader
    reports as missed."""
    image, plans = state.image, state.image.plans
    if not plans:
        return LossStatus(rpo_ns=image.rpo_ns, rto_ns=image.rto_ns)
    over = [
        plan
        for plan in plans
        if plan.number > state.start_plan and plan.done_ns and not state.continues_stopped_fleet(plan)
    ]
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
    """Return the interval between epochs and the costs of epochs. `figures` contains this process's figures, or is None if this process
    does not lead."""
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


RAFT = (
    Family("raft_term", GAUGE, "Raft's term, as this replica knows it"),
    Family("raft_is_leader", GAUGE, "1 while this replica leads", "leader election"),
    Family("raft_is_learner", GAUGE, "1 while it catches up after it lost its log, and may not vote"),
    Family("raft_has_quorum", GAUGE, "1 while it is connected to a majority, itself counted"),
    Family("raft_commit_index", GAUGE, "last entry known to be committed"),
    Family("raft_apply_lag_entries", GAUGE, "entries that are committed and not applied here yet"),
    Family("raft_leader_changes_total", COUNTER, "how often another replica led than before, as seen here"),
    Family("raft_proposals_total", COUNTER, "proposals of this replica"),
    Family("raft_committed_total", COUNTER, "of these: committed"),
    Family("raft_rejected_total", COUNTER, "of these: not in the log, and never will be"),
    Family("raft_unknown_total", COUNTER, "of these: not known to be in the log, and proposed again"),
    Family("raft_in_flight", GAUGE, "proposals on their way"),
    Family("raft_commit_seconds", HISTOGRAM, "from a proposal of this replica to its commit"),
    Family("raft_reads_total", COUNTER, "linearizable reads"),
    Family("raft_barriers_total", COUNTER, "entries that only reads needed"),
    Family("raft_ticks_total", COUNTER, "rounds of the thread that runs Raft"),
    Family("raft_tick_max_seconds", GAUGE, "the longest of them"),
    Family("raft_tick_errors_total", COUNTER, "of them: ended by an error of ours"),
    Family("raft_log_entries", GAUGE, "entries in the log"),
    Family("raft_log_bytes", GAUGE, "length of these entries"),
    Family("raft_sync_seconds", SUMMARY, "writes of the log that had to reach the disk"),
    Family("raft_sync_max_seconds", GAUGE, "the longest of them"),
    Family("raft_streams_opened_total", COUNTER, "streams to and from other replicas"),
    Family("raft_streams_refused_total", COUNTER, "streams of others that were refused"),
)

FLEET = (
    Family("fleet_phase", GAUGE, "1 for the phase that the fleet is in, 0 for the others", "job status", ("phase",)),
    Family("hosts", GAUGE, "hosts by what is known of them", "registered task managers", ("state",)),
    Family("hosts_expected", GAUGE, "hosts that the fleet waited for before it started"),
    Family("agents", GAUGE, "agents that take turns", "tasks"),
    Family(
        "checkpoints_total",
        COUNTER,
        "epochs that have ended",
        "numberOfCompletedCheckpoints, numberOfFailedCheckpoints",
        ("outcome", "protocol"),
    ),
    Family("checkpoints_open", GAUGE, "epochs that have begun and not ended", "numberOfInProgressCheckpoints"),
    Family(
        "checkpoint_triggers_skipped_total",
        COUNTER,
        "epochs that were due and not begun, since too many were open, or because of the store",
    ),
    Family(
        "checkpoint_duration_seconds",
        HISTOGRAM,
        "complete epochs, from their begin to their decision",
        "end to end duration",
    ),
    Family("last_checkpoint_timestamp_seconds", GAUGE, "when the newest complete epoch was decided, since 1970"),
    Family(
        "last_checkpoint_new_bytes",
        GAUGE,
        "written for the newest complete epoch",
        "lastCheckpointSize (checkpointed size)",
    ),
    Family(
        "last_checkpoint_full_bytes",
        GAUGE,
        "states in the newest complete epoch, as if written whole",
        "lastCheckpointFullSize",
    ),
    Family("checkpoint_channel_state_bytes", GAUGE, "messages in transit in it", "persisted in-flight data"),
    Family("checkpoint_channel_state_messages", GAUGE, "the same, counted"),
    Family(
        "recovery_line_age_seconds",
        GAUGE,
        "work that would be lost if all hosts failed now; where agents checkpoint on their own: at most",
    ),
    Family(
        "rpo_seconds",
        GAUGE,
        "work that a failure may undo at most, as the fleet's definition says; silent if it does not",
    ),
    Family("rto_seconds", GAUGE, "how long a recovery may take at most; silent if nothing is said"),
    Family("recoveries_total", COUNTER, "recoveries that this process has led to their end", "numRestarts"),
    Family(
        "recovery_duration_seconds",
        HISTOGRAM,
        "recoveries: `plan` until the plan was committed, `load` until all hosts had applied it",
        "restartingTime",
        ("phase",),
    ),
    Family("rollback_agents", GAUGE, "agents that the last recovery took back"),
    Family("rollback_depth_checkpoints", GAUGE, "durable checkpoints that it undid, summed over the agents"),
    Family("lost_work_seconds", GAUGE, "work that it undid; silent where agents checkpoint on their own"),
    Family("store_is_degraded", GAUGE, "1 while epochs, or checkpoints of agents, cannot be stored"),
    Family(
        "store_log_bytes", GAUGE, "logs of messages in the store, above the newest epoch; where messages are logged"
    ),
    Family(
        "stored_checkpoints",
        GAUGE,
        "packs of checkpoints in the store that a recovery line might need; where agents have their own",
    ),
    Family("gc_reclaimed_files_total", COUNTER, "files of epochs, checkpoints and logs that nothing needed any more"),
    Family("concerns", GAUGE, "what the fleet waits for or goes without, as `snapline status` says it", "", ("kind",)),
)

FAMILIES = (*RAFT, *FLEET)


class CoordinatorMetrics:
    """Reads the metrics of a coordinator process."""

    def __init__(
        self,
        replica: Replica,
        leadership: Leadership,
        state: FleetView,
        figures: LeaderFigures,
        *,
        hosts_expected: int,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._replica = replica
        self._leadership = leadership
        self._state = state
        self._figures = figures
        self._hosts_expected = hosts_expected
        self._wall_ns = wall_ns

    async def read(self) -> Readings:
        """Read all metrics now. Raises CoordinatorUnavailableError if the thread that runs Raft does not answer in time."""
        raft, runner = await self._read_raft(), self._leadership.runner
        return raft if runner is None else {**raft, **self._read_fleet(runner.standing()), **self._read_figures()}

    async def _read_raft(self) -> dict[str, Value]:
        raft, plain = self._replica.driver, self._replica.metrics()
        status = await raft.status()
        values: dict[str, Value] = {family.name: plain[family.name] for family in RAFT if family.name in plain}
        if "raft_sync_seconds_sum" in plain:
            values["raft_sync_seconds"] = Total(plain["raft_sync_seconds_count"], plain["raft_sync_seconds_sum"])
        return {
            **values,
            "raft_has_quorum": float(status.has_quorum),
            "raft_commit_index": status.commit_index,
            "raft_apply_lag_entries": max(0, status.commit_index - status.applied),
            "raft_commit_seconds": raft.counters.commits_s,
        }

    def _read_fleet(self, standing: LeaderStatus) -> Readings:
        state, image = self._state, self._state.image
        hosts = Counter(record.state for record in image.hosts.values())
        kinds = Counter(concern.kind for concern in standing.concerns)
        newest, at_risk_ns = image.epochs.get(state.newest_complete()), state.at_risk_ns(self._wall_ns())
        ended: Mapping[tuple[str, ...], Value] = {
            ("complete", image.protocol): image.completed,
            ("aborted", image.protocol): image.aborted,
        }
        return {
            "fleet_phase": {(x,): float(x == state.phase) for x in (FORMING, RUNNING, RECOVERING, FINISHED, FAILED)},
            "hosts": {(x,): hosts[x] for x in (ALIVE, LOST, LEFT)},
            "hosts_expected": self._hosts_expected,
            "agents": sum(1 for _ in state.living_agents()),
            **({"checkpoints_total": ended} if image.protocol else {}),
            "checkpoints_open": len(state.open_epochs()),
            "checkpoint_triggers_skipped_total": standing.triggers_skipped,
            **({} if newest is None else {"last_checkpoint_timestamp_seconds": newest.ended_ns / NS}),
            **({} if at_risk_ns is None else {"recovery_line_age_seconds": at_risk_ns / NS}),
            **({"rpo_seconds": image.rpo_ns / NS} if image.rpo_ns else {}),
            **({"rto_seconds": image.rto_ns / NS} if image.rto_ns else {}),
            **self._read_rollback(),
            "store_is_degraded": float(standing.store.state == DEGRADED),
            "concerns": {(kind,): kinds[kind] for kind in KINDS},
            **(
                {"store_log_bytes": standing.stored_log_bytes, "stored_checkpoints": standing.stored_packs}
                if state.is_logged
                else {}
            ),
        }

    def _read_rollback(self) -> Readings:
        """Return the figures of the last completed recovery."""
        state = self._state
        done = [plan for plan in state.image.plans if plan.number > state.start_plan and plan.done_ns]
        if not done:
            return {}
        plan = done[-1]
        values = {"rollback_agents": plan.rolled_back, "rollback_depth_checkpoints": plan.checkpoints_lost}
        return values if state.is_autonomous else {**values, "lost_work_seconds": plan.lost_ns / NS}

    def _read_figures(self) -> Readings:
        figures = self._figures
        values: dict[str, Value] = {
            "checkpoint_duration_seconds": figures.durations_s,
            "recoveries_total": figures.loads_s.count,
            "gc_reclaimed_files_total": figures.reclaimed_files,
        }
        if figures.last is not None:
            values["last_checkpoint_new_bytes"] = figures.last_new_bytes
            values["last_checkpoint_full_bytes"] = figures.last.state_bytes
            values["checkpoint_channel_state_bytes"] = figures.last.channel_state_bytes
            values["checkpoint_channel_state_messages"] = figures.last.channel_state_messages
        return {**values, "recovery_duration_seconds": {("plan",): figures.plans_s, ("load",): figures.loads_s}}
