"""G3: an agent that has asked that the fleet goes back (`ctx.rollback`) takes no turn any more in that life, and the fleet goes back for it once.

The books are the turns that have asked, and the entries of the log. A plan of a restore that names an agent answers a wish of that very life. The second one from the same place for
the same reason is for people: as long as the log keeps the plan of the first, and until an operator takes the fleet back, who has looked.
"""

from snapline.coordinator.state import fleet_records
from snapline.coordinator.state import operations as op
from snapline.sim.oracles.ground_truth_records import Report


class RollbackOracle:
    """Rollback oracle of one run.

    Attributes:
        asked: agent and incarnation that requested a rollback → when.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.asked: dict[tuple[str, int], int] = {}
        self._granted: dict[str, int] = {}
        """Reason of a rollback, as plans hold it → the plan."""

    def on_asked(self, t_ns: int, agent: str, incarnation: int) -> None:
        """A turn has ended with a rollback request."""
        self.asked[agent, incarnation] = t_ns

    def on_turn(self, t_ns: int, agent: str, incarnation: int) -> None:
        """A turn begins."""
        if (agent, incarnation) in self.asked:
            self._report("rollback", "G3", t_ns, f"{agent} has asked that the fleet goes back, and takes a turn")

    def on_restored(self, t_ns: int, kind: op.Restore, plan: int) -> None:
        """The fleet goes back."""
        if not kind.agent:
            self._granted.clear()
            return
        if kind.request not in [f"{agent}@{incarnation}" for agent, incarnation in self.asked]:
            self._report("rollback", "G3", t_ns, f"the fleet goes back for {kind.request}, which has not asked for it")
        before = self._granted.get(kind.reason)
        if before is not None and plan - before < fleet_records.PLANS_KEPT:
            self._report("rollback", "G3", t_ns, f"the fleet goes back once more, since plan {before}: {kind.reason}")
        self._granted[kind.reason] = plan
