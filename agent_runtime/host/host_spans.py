"""Spans of a host's part in epochs and recoveries, made from its messages to the coordinator. Each is a child of the coordinator's span.

An epoch report has successive durations that end at the moment of the report, so the whole span is made at that moment.
"""

import time

from snapline.messages.host_messages import Directive, EpochReport, HostMessage, Plan, PlanApplied, Welcome
from snapline.telemetry.span_export import SpanExport, context_of
from snapline.telemetry.spans import checkpoint_ids, recovery_ids

EPOCHS_KEPT = 64
"""Number of reported epochs remembered: unanswered reports are repeated, and few epochs are open at once."""


class HostSpans:
    """Spans of one host."""

    def __init__(self, export: SpanExport) -> None:
        self._export = export
        self._store = ""
        self._told: dict[int, None] = {}
        self._plan: Plan | None = None
        self._plan_ns = 0

    def directive_received(self, directive: Directive) -> None:
        """Handle a directive of the coordinator."""
        if isinstance(directive, Welcome):
            self._store = directive.cluster
        elif isinstance(directive, Plan) and (self._plan is None or directive.number > self._plan.number):
            self._plan, self._plan_ns = directive, time.time_ns()

    def said(self, message: HostMessage) -> None:
        """Handle a message to the coordinator."""
        if isinstance(message, EpochReport) and message.epoch not in self._told:
            self._told[message.epoch] = None
            if len(self._told) > EPOCHS_KEPT:
                del self._told[next(iter(self._told))]
            self._tell_part(message, time.time_ns())
        elif isinstance(message, PlanApplied) and self._plan is not None and message.plan == self._plan.number:
            self._tell_load(self._plan, time.time_ns())

    def _tell_part(self, report: EpochReport, end_ns: int) -> None:
        closed_ns = end_ns - report.store_ns
        recorded_ns = closed_ns - report.alignment_ns
        begun_ns = recorded_ns - report.slowest_capture_ns - report.start_delay_ns
        parent = context_of(checkpoint_ids(self._store, report.epoch))
        span = self._export.begin(
            "host.checkpoint",
            under=parent,
            start_ns=begun_ns,
            attributes={
                "snapline.epoch": report.epoch,
                "snapline.agents": len(report.agents),
                "snapline.new_bytes": report.new_bytes,
                "snapline.channel_state_messages": report.channel_state_messages,
                "snapline.capture_max_ns": report.capture_ns,
            },
        )
        span.add_event("recorded", timestamp=recorded_ns)
        span.add_event("channels closed", timestamp=closed_ns)
        span.add_event("stored", timestamp=end_ns)
        if report.slowest:
            agent = self._export.begin(
                "agent.checkpoint",
                under=span.get_span_context(),
                start_ns=recorded_ns - report.slowest_capture_ns,
                attributes={"snapline.epoch": report.epoch, "snapline.agent": report.slowest},
            )
            agent.end(recorded_ns)
        span.end(end_ns)

    def _tell_load(self, plan: Plan, end_ns: int) -> None:
        self._plan_ns, begun_ns = 0, self._plan_ns
        if not begun_ns:
            return  # a repeated report
        span = self._export.begin(
            "host.recovery",
            under=context_of(recovery_ids(self._store, plan.number)),
            start_ns=begun_ns,
            attributes={"snapline.plan": plan.number, "snapline.line_epoch": plan.line_epoch},
        )
        span.end(end_ns)
