"""A fleet ends when its `stop_when` says so of a complete cut, and not otherwise.

Theory of operation
-------------------
The user's predicate is asked about every complete cut as the world has read it back, after the other oracles have compared it
with the books. Two things follow. A fleet that has "stopped" did so at one of these cuts, and of that one the predicate holds
(G3: its end is one that the user has described). And once it holds of the newest cut, the fleet has to end, or to complete a cut
of which it does not hold (G10): that is asked for at the end of a run.

A fleet with effects ends in a cut in which none is open, and turns that have had an effect get some seconds to end.

A predicate that raises ends the fleet as failed; nothing is said of it here.
"""

from collections.abc import Iterator

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.snapshots.cut import Cut
from snapline.coordinator.state import operations as op

Finding = tuple[str, str, str]

TURNS_NS = 5_000_000_000
"""Time for which the stop waits for turns that have had an effect."""


class StopOracle:
    """Result of `stop_when` for each complete cut."""

    def __init__(self, fleet: Fleet) -> None:
        self._holds = fleet.stop_when
        self._said: dict[int, bool] = {}
        self._held_ns: int | None = None
        """Time when the predicate first held."""
        self._open: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        """Epoch → its open effects, and its turns that have had effects."""

    def on_cut(self, t_ns: int, cut: Cut) -> None:
        """An epoch is complete."""
        if self._holds is None:
            return
        try:
            self._said[cut.epoch] = bool(self._holds(cut))
            self._open[cut.epoch] = cut.open_effects, cut.turns_with_effects
            if self._said[cut.epoch] and self._held_ns is None:
                self._held_ns = t_ns
        except Exception:
            self._said.pop(cut.epoch, None)  # the fleet will fail, with the user's words

    def on_ended(self, t_ns: int, kind: op.EndFleet) -> Iterator[Finding]:
        """EndFleet was committed."""
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
            what = "does not hold of it" if kind.epoch in self._said else "was never asked about it"
            yield "stop", "G3", f"the fleet has stopped in epoch {kind.epoch}, and stop_when {what}"

    def owed(self, newest: int) -> str:
        """Why the fleet has to end; "" if it has not."""
        return f"stop_when holds of epoch {newest}, and the fleet has not ended" if self._said.get(newest) else ""
