"""G3: an agent that requests a rollback (`ctx.rollback`) takes no further turn in that incarnation, and the fleet is restored for it once.

The oracle uses the turns that request rollbacks and the entries of the log. The plan of a restore that names an agent answers a request of that
incarnation. A second rollback from the same place for the same reason is left to operators, as long as the log keeps the plan of the first one and
no operator has restored the fleet since.
"""

from snapline.coordinator.state import fleet_records
from snapline.coordinator.state import operations as op
from snapline.sim.oracles.ground_truth_records import Report


class RollbackOracle:
    """Rollback oracle of one run.

    Attributes:
        asked: (agent, incarnation) that requested a rollback → time of the request.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.asked: dict[tuple[str, int], int] = {}
        self._granted: dict[str, int] = {}
        """Reason of a rollback, as in the plan → plan."""

    def on_rollback_requested(self, t_ns: int, agent: str, incarnation: int) -> None:
        """Record a turn that ended with a rollback request."""
        self.asked[agent, incarnation] = t_ns

    def on_turn(self, t_ns: int, agent: str, incarnation: int) -> None:
        """Check that an agent takes no turn after its rollback request."""
        if (agent, incarnation) in self.asked:
            self._report("rollback", "G3", t_ns, f"{agent} has asked that the fleet goes back, and takes a turn")

    def on_restored(self, t_ns: int, kind: op.Restore, plan: int) -> None:
        """Check a restore against the rollback requests."""
        if not kind.agent:
            self._granted.clear()
            return
        if kind.request not in [f"{agent}@{incarnation}" for agent, incarnation in self.asked]:
            self._report("rollback", "G3", t_ns, f"the fleet goes back for {kind.request}, which has not asked for it")
        before = self._granted.get(kind.reason)
        if before is not None and plan - before < fleet_records.PLANS_KEPT:
            self._report("rollback", "G3", t_ns, f"the fleet goes back once more, since plan {before}: {kind.reason}")
        self._granted[kind.reason] = plan
