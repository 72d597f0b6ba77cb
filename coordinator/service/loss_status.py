"""Costs of failures and epochs, for `snapline status`, from the replicated state and the leader's figures.

Nothing is decided from them. A replica that does not lead has only the state's data on the newest epoch.
"""

from itertools import pairwise

from snapline.coordinator.service.leader_statistics import LeaderFigures
from snapline.coordinator.state.fleet_records import COMPLETE, EpochRecord, PlanRecord
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.status import IntervalStatus, LossStatus, RecoveryTime

RECOVERIES_SHOWN = 8
"""Number of latest recoveries to show; `snapline recovery history` has more."""


def loss_of(state: FleetView, now_ns: int, missed: tuple[str, ...] = ()) -> LossStatus:
    """Return the losses at this wall-clock time. `missed`: objectives that the leader reports as missed."""
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
    """Return the interval and costs of epochs. `figures`: of this process; None: it does not lead."""
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
