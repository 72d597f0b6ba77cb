"""Recovery objectives of the fleet's definition: how much work a failure may undo (RPO), how long a recovery may take (RTO).

Nothing is decided from them. One log line is written when an objective is missed, and one when it is met again.

*Time.* Objectives use the wall-clock times of the replicated state, but this core has only a monotonic clock. Each applied
operation carries the time of its proposal, so the offset between the clocks is known to one log round trip. A new leader with an
idle log is behind until the first operation is applied.

*RPO* is missed when the work at risk (`FleetView.at_risk_ns`) is more than allowed. It rises between two epochs and falls with
each. RPO is met again only when an epoch completes in time; otherwise a fleet whose interval is a little too long would log a
warning at each epoch. The work at risk does not grow while the fleet does not run.

*RTO* is missed when a failure keeps the fleet from running for longer than allowed. It is met again when a later recovery is in
time. Plans for restores or moves do not count.
"""

from collections.abc import Iterable

from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.state.fleet_records import RUNNING, PlanRecord
from snapline.messages.concerns import Concern

RPO, RTO = "rpo", "rto"
"""Kinds of concerns."""


def objectives_missed(concerns: Iterable[Concern]) -> tuple[str, ...]:
    """Return the objectives that the concerns name."""
    kinds = [concern.kind for concern in concerns]
    return tuple([kind for kind in (RPO, RTO) if kind in kinds])


class Objectives:
    """Monitor of the recovery objectives."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._offset_ns: int | None = None
        """Largest offset seen from the monotonic clock to the state's clock: operations are applied some time after their proposal."""
        self._line: tuple[int, int] | None = None
        """(plan, newest complete epoch) since which work is at risk; None: the fleet has not run under this leader."""
        self._line_ns = 0
        """Time since which work is at risk, by the state's clock."""
        self._peak_ns = 0
        """Work at risk when RPO was last missed."""
        self._since: dict[str, int] = {}
        """Missed objective → time since when it is missed."""

    # ---- checks -----------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Check both objectives, and log changes."""
        image = self._shared.state.image
        if not (image.rpo_ns or image.rto_ns) or not image.plans or image.outcome:
            return
        offset_ns = image.now_ns - self._shared.now
        self._offset_ns = offset_ns if self._offset_ns is None else max(self._offset_ns, offset_ns)
        if image.rpo_ns:
            self._check_rpo(image.rpo_ns)
        if image.rto_ns:
            self._check_rto(image.rto_ns)

    @property
    def _now_ns(self) -> int:
        return self._shared.now + (self._offset_ns or 0)

    def _check_rpo(self, rpo_ns: int) -> None:
        state = self._shared.state
        if state.phase != RUNNING:
            return
        at_risk_ns, before, line = self._at_risk_ns, self._line, (state.plan_number, state.newest_complete())
        if before is not None and before[0] == line[0] and before[1] < line[1]:
            peak_ns = self._now_ns - self._line_ns
            if peak_ns > rpo_ns:
                self._peak_ns = peak_ns
                self._on_missed(RPO, self._describe_rpo(peak_ns))
            else:
                self._on_met(
                    RPO, f"epoch {line[1]} came in time: {_s(peak_ns)} of work were at risk; rpo_s is {_s(rpo_ns)}"
                )
        self._line, self._line_ns = line, self._now_ns - at_risk_ns
        if at_risk_ns > rpo_ns:
            self._peak_ns = at_risk_ns
            self._on_missed(RPO, self._describe_rpo(at_risk_ns))

    @property
    def _at_risk_ns(self) -> int:
        return self._shared.state.at_risk_ns(self._now_ns) or 0

    def _check_rto(self, rto_ns: int) -> None:
        state = self._shared.state
        last = next((plan for plan in reversed(state.image.plans) if self._counts(plan) and plan.done_ns), None)
        lasts_ns = self._recovering_ns()
        if (lasts_ns is not None and lasts_ns > rto_ns) or (last is not None and self._took_ns(last) > rto_ns):
            self._on_missed(RTO, self._describe_rto())
        elif last is not None and lasts_ns is None:
            self._on_met(
                RTO, f"the recovery with plan {last.number} took {_s(self._took_ns(last))}; rto_s is {_s(rto_ns)}"
            )

    def _counts(self, plan: PlanRecord) -> bool:
        return plan.is_failure and plan.number > self._shared.state.start_plan

    def _took_ns(self, plan: PlanRecord) -> int:
        return plan.done_ns - self._shared.state.recovery_began_ns(plan)

    def _recovering_ns(self) -> int | None:
        """Return how long a failure has kept the fleet from running; None: the fleet runs, or no failure is the cause."""
        state, plan = self._shared.state, self._shared.state.plan
        began_ns = None
        if plan is not None and not plan.done_ns and plan.number > state.start_plan:
            began_ns = state.recovery_began_ns(plan) if plan.is_failure else None
        need = state.image.need
        if began_ns is None and need is not None and plan is not None:
            began_ns = need.suspected_ns
        return None if began_ns is None else max(0, self._now_ns - began_ns)

    # ---- reports ----------------------------------------------------------------------------------------------------

    def _on_missed(self, kind: str, text: str) -> None:
        if kind not in self._since:
            self._since[kind] = self._shared.now
            self._shared.note("warning", text)

    def _on_met(self, kind: str, text: str) -> None:
        if self._since.pop(kind, None) is not None:
            self._shared.note("info", text)

    def concerns(self) -> list[Concern]:
        """Return the missed objectives."""
        texts = {RPO: self._describe_rpo(self._peak_ns), RTO: self._describe_rto()}
        return [
            Concern(kind, (), self._shared.now - self._since[kind], texts[kind])
            for kind in texts
            if kind in self._since
        ]

    def _describe_rpo(self, peak_ns: int) -> str:
        state = self._shared.state
        most = "at most " if state.is_autonomous else ""
        rpo_s = _s(state.image.rpo_ns)
        if state.phase == RUNNING and self._at_risk_ns > state.image.rpo_ns:
            return f"a failure now would undo {most}{_s(self._at_risk_ns)} of work; rpo_s is {rpo_s}"
        return f"a failure would have undone {most}{_s(peak_ns)} of work before the last epoch was complete; rpo_s is {rpo_s}"

    def _describe_rto(self) -> str:
        state, lasts_ns = self._shared.state, self._recovering_ns()
        rto_s = _s(state.image.rto_ns)
        if lasts_ns is not None and lasts_ns > state.image.rto_ns:
            return f"a failure has kept the fleet from running for {_s(lasts_ns)}; rto_s is {rto_s}"
        done = [plan for plan in state.image.plans if self._counts(plan) and plan.done_ns]
        took = f"took {_s(self._took_ns(done[-1]))}" if done else "took longer"
        return f"the last recovery from a failure {took}; rto_s is {rto_s}"


def _s(time_ns: int) -> str:
    return f"{time_ns / 1e9:.1f} s" if time_ns >= 1e9 else f"{time_ns / 1e9:.3g} s"
