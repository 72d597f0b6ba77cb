"""A fleet ends when its `stop_when` holds of a complete cut, and not otherwise.

Theory of operation
-------------------
The oracle evaluates the user's predicate on every complete cut that the world reads back, after the other oracles have compared the
cut with the ground truth. It checks:

- A "stopped" fleet stopped at one of these cuts, and the predicate holds of it (G3).
- Once the predicate holds of the newest cut, the fleet ends, or completes a cut of which it does not hold (G10). This is checked at
  the end of a run.
- A fleet with effects ends in a cut without open effects, and turns that have had an effect get some seconds to end (G12).

A predicate that raises ends the fleet as failed, and is not judged here.
"""

from collections.abc import Iterator

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.snapshots.cut import Cut
from snapline.coordinator.state import operations as op
from snapline.sim.oracles.ground_truth_records import Finding

TURNS_NS = 5_000_000_000
"""Time that the stop waits for turns that have had an effect."""


class StopOracle:
    """Result of `stop_when` for each complete cut."""

    def __init__(self, fleet: Fleet) -> None:
        self._holds = fleet.stop_when
        self._said: dict[int, bool] = {}
        self._held_ns: int | None = None
        """Time at which the predicate first held."""
        self._open: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        """Epoch → its open effects, and its running turns that have had effects."""

    def on_cut(self, t_ns: int, cut: Cut) -> None:
        """Evaluate the predicate on a complete epoch."""
        if self._holds is None:
            return
        try:
            self._said[cut.epoch] = bool(self._holds(cut))
            self._open[cut.epoch] = cut.open_effects, cut.turns_with_effects
            if self._said[cut.epoch] and self._held_ns is None:
                self._held_ns = t_ns
        except Exception:
            self._said.pop(cut.epoch, None)  # the fleet will fail with the user's error

    def on_ended(self, t_ns: int, kind: op.EndFleet) -> Iterator[Finding]:
        """Check a committed EndFleet."""
        effects, turns = self._open.get(kind.epoch, ((), ()))
        if kind.outcome == "stopped" and effects:
            yield "stop", "G12", f"the fleet has stopped in epoch {kind.epoch} with open effects: {', '.join(effects)}"
        if kind.outcome == "stopped" and turns and t_ns < (self._held_ns or 0) + TURNS_NS:
            yield (
                "stop",
                "G12",
                f"the fleet has stopped in epoch {kind.epoch} in the middle of turns that have had effects: {', '.join(turns)}",
            )
        if kind.outcome == "stopped" and not self._said.get(kind.epoch, False):
            reason = "does not hold of it" if kind.epoch in self._said else "was never asked about it"
            yield "stop", "G3", f"the fleet has stopped in epoch {kind.epoch}, and stop_when {reason}"

    def required_reason(self, newest: int) -> str:
        """Return why the fleet must end; "" if it need not."""
        return f"stop_when holds of epoch {newest}, and the fleet has not ended" if self._said.get(newest) else ""
