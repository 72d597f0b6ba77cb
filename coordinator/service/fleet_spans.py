"""OpenTelemetry spans of epochs and recoveries, made from committed operations. The leader exports a span as soon as its epoch or recovery
has ended.

    checkpoint (epoch, trigger, protocol)         recovery (plan, reason, line)  → link to the checkpoint that it restores
      host.checkpoint, one per host                 recovery.plan    from the suspicion until the plan was committed
        agent.checkpoint, its last agent            recovery.load    until all hosts had applied it
      checkpoint.commit                               host.recovery, one per host

Hosts export their own spans. A leader that has taken over an epoch exports the whole span, because all times are in the log. If a leader
dies after a decision but before it exports the span, the hosts' spans have no parent span.
"""

from opentelemetry import trace

from snapline.coordinator.service.leader_driver import LeaderObserver
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import Committed, EpochEnd, PlanRecord, ProposalOutcome
from snapline.coordinator.state.fleet_view import FleetView
from snapline.telemetry.span_export import SpanExport, checkpoint_ids, recovery_ids

NAMES_SHOWN = 16
"""Largest number of lost hosts that one span names."""


class FleetSpans(LeaderObserver):
    """Observer that exports spans during all leaderships of one process."""

    def __init__(self, export: SpanExport, state: FleetView) -> None:
        self._export = export
        self._state = state
        self._exported: set[int] = set()
        self._exported_plan = 0

    def begin(self) -> None:
        """Start exporting spans under a new leadership. Skip epochs and recoveries that have already ended, because earlier leaders have
        exported them."""
        self._exported = {end.epoch for end in self._state.image.ends}
        plan = self._state.plan
        self._exported_plan = plan.number if plan is not None and plan.done_ns else self._exported_plan

    def proposal_ended(self, kind: op.Kind, outcome: ProposalOutcome) -> None:
        """Export the spans of epochs and recoveries that an operation has ended, after the state has applied it."""
        if not isinstance(outcome, Committed) or outcome.result.is_refused:
            return
        if isinstance(kind, op.CompleteEpoch | op.AbortEpoch | op.CommitPlan | op.Restore):
            self._export_epochs()
        if isinstance(kind, op.ConfirmPlan):
            self._tell_plan()

    # ---- epochs -----------------------------------------------------------------------------------------------------

    def _export_epochs(self) -> None:
        """Export all newly ended epochs, including those that a plan has aborted."""
        ends = self._state.image.ends
        for end in ends:
            if end.epoch not in self._exported:
                self._export_epoch(end)
        self._exported = {end.epoch for end in ends}

    def _export_epoch(self, end: EpochEnd) -> None:
        image, account = self._state.image, end.account
        span = self._export.begin(
            "checkpoint",
            ids=checkpoint_ids(image.cluster, end.epoch),
            start_ns=end.begun_ns,
            attributes={
                "snapline.fleet": image.name,
                "snapline.epoch": end.epoch,
                "snapline.plan": end.plan,
                "snapline.trigger": end.trigger,
                "snapline.protocol": image.protocol,
                "snapline.is_complete": end.is_complete,
                "snapline.state_bytes": end.state_bytes,
                "snapline.channel_state_messages": end.channel_state_messages,
                "snapline.new_bytes": 0 if account is None else account.new_bytes,
            },
        )
        ended_ns = max(end.begun_ns, end.ended_ns)
        if not end.is_complete:
            span.set_status(trace.StatusCode.ERROR, end.reason)
        elif account is not None and account.last is not None:
            reported_ns = min(ended_ns, end.begun_ns + account.last.after_ns)
            commit = self._export.begin(
                "checkpoint.commit",
                under=span.get_span_context(),
                start_ns=reported_ns,
                attributes={"snapline.epoch": end.epoch, "snapline.last_host": account.last.host},
            )
            commit.end(ended_ns)
        span.end(ended_ns)

    # ---- recoveries -------------------------------------------------------------------------------------------------

    def _tell_plan(self) -> None:
        """Export the span of the current plan once, after all hosts have applied the plan. The plan that started the fleet is not
        exported, because it is not a recovery."""
        plan = self._state.plan
        if plan is None or not plan.done_ns or plan.number <= max(self._state.start_plan, self._exported_plan):
            return
        self._exported_plan = plan.number
        cluster = self._state.image.cluster
        line = (checkpoint_ids(cluster, plan.line_epoch),) if plan.line_epoch else ()
        begun_ns = min(plan.suspected_ns or plan.committed_ns, plan.committed_ns)
        span = self._export.begin(
            "recovery",
            ids=recovery_ids(cluster, plan.number),
            start_ns=begun_ns,
            attributes=self._about(plan),
            links=line,
        )
        for name, start_ns, end_ns in (
            ("recovery.plan", begun_ns, plan.committed_ns),
            ("recovery.load", plan.committed_ns, plan.done_ns),
        ):
            part = self._export.begin(name, under=span.get_span_context(), start_ns=start_ns)
            part.end(max(start_ns, end_ns))
        span.end(max(plan.committed_ns, plan.done_ns))

    def _about(self, plan: PlanRecord) -> dict[str, str | int | float | bool]:
        return {
            "snapline.fleet": self._state.image.name,
            "snapline.plan": plan.number,
            "snapline.reason": plan.reason,
            "snapline.line_epoch": plan.line_epoch,
            "snapline.lost_hosts": ", ".join(plan.lost[:NAMES_SHOWN]),
            "snapline.agents": plan.agents,
            "snapline.rolled_back": plan.rolled_back,
            "snapline.messages": plan.messages,
            "snapline.lost_work_s": plan.lost_ns / 1e9,
        }
