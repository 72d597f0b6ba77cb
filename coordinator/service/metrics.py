"""Metrics of a coordinator process (`telemetry/metrics.py`), which describe its replica and, while it leads, the fleet.

A replica that does not lead omits the fleet's metrics, so a sum over replicas counts no value twice.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping

from snapline.coordinator.leader.core import LeaderStatus
from snapline.coordinator.leader.epochs.store_watch import DEGRADED
from snapline.coordinator.raft.raft_driver import Replica
from snapline.coordinator.service.leader_statistics import NS, LeaderFigures
from snapline.coordinator.service.leadership import Leadership
from snapline.coordinator.state.fleet_records import (
    ALIVE,
    FAILED,
    FINISHED,
    FORMING,
    LEFT,
    LOST,
    RECOVERING,
    RUNNING,
)
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.status import KINDS
from snapline.telemetry.metrics import COUNTER, GAUGE, HISTOGRAM, SUMMARY, Family, Readings, Total, Value

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
        """Read all current metrics. Raise CoordinatorUnavailableError if the thread that runs Raft does not answer."""
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
        """Return the figures of the last recovery that has finished."""
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
