"""A durable wait with a time limit ends when its time is over, counted from its first begin: no recovery restarts it (G3) or ends it early.

As in `steps.py`, a wait is identified by the begin of its turn and the outcomes that the turn has seen. A crashed or slow host may be late. So the
deadline is the latest of the wait's own end, the last load of its agent and the end of the last fault, plus some patience. The oracle does not
judge runs with wrong wall clocks.
"""

from collections.abc import Sequence

from snapline.agent_runtime.durable import DONE, LATE
from snapline.sim.oracles.ground_truth_records import Report
from snapline.sim.result import ExecutedFault
from snapline.storage.packs.checkpoint import JournalEntry

PATIENCE_NS = 2_000_000_000
"""Time allowed for the handler to reach its wait again, and for freezes."""

EARLY_NS = 1_000_000

Place = tuple[object, ...]


class WaitOracle:
    """Wait oracle of one run."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._due_ns: dict[Place, tuple[int, int]] = {}
        """Wait → earliest and latest time of its end: several histories may have reached it, and a replaced host continues."""
        self._loaded_ns: dict[str, int] = {}

    def on_loaded(self, t_ns: int, agent: str) -> None:
        """Record that a plan has loaded the agent."""
        self._loaded_ns[agent] = t_ns

    def on_waiting(self, t_ns: int, place: Place, timeout_ns: int, *, is_again: bool) -> None:
        """Record a turn's wait. `is_again`: the turn was restored from a checkpoint taken during this wait."""
        if not is_again or place not in self._due_ns:
            due_ns = t_ns + timeout_ns
            least_ns, most_ns = self._due_ns.get(place, (due_ns, due_ns))
            self._due_ns[place] = min(least_ns, due_ns), max(most_ns, due_ns)

    def on_over(
        self, t_ns: int, agent: str, place: Place, found: JournalEntry, faults: Sequence[ExecutedFault]
    ) -> None:
        """Check the end of a wait, after which its turn continues. `faults`: faults executed so far."""
        due = self._due_ns.get(place)
        is_timed = (found.kind, found.outcome) == ("sleep", DONE) or found.outcome == LATE
        if due is None or not is_timed or any(fault.kind == "clock" for fault in faults):
            return
        least_ns, due_ns = due
        if t_ns < least_ns - EARLY_NS:
            self._report(
                "waits", "G3", t_ns, f"a {found.kind} of {agent} ends {_s(least_ns - t_ns)} before its time is over"
            )
        ends_ns = [fault.until_ns or fault.at_ns for fault in faults]
        latest_ns = max([due_ns, self._loaded_ns.get(agent, 0), *ends_ns])
        if latest_ns < t_ns - PATIENCE_NS:
            text = f"a {found.kind} of {agent} ends {_s(t_ns - due_ns)} after its time is over, and {_s(t_ns - latest_ns)} after the last fault or recovery"
            self._report("waits", "G3", t_ns, text)


def _s(span_ns: int) -> str:
    return f"{span_ns / 1e9:.3g} s"
