"""R1 where inputs are dropped: what was taken before the fleet was taken back, and the target has not consumed, never takes effect again in a
history that came from there; and who says it again is not told that it was taken.

The books go by plans and by cuts: which plan drops, and what the cut it starts from holds. A later plan from the same epoch drops the same, and
one from a later epoch of that history comes from where it was dropped. What was said to a host of that plan, or a later one, was not dropped; of
all else nobody can say whether it was on its way.
"""

from collections.abc import Mapping

import msgspec

from snapline.sim.oracles.ground_truth_records import CutRecord


class Drop(msgspec.Struct, frozen=True):
    """One drop: its plan, when that was committed, and agent → its turns in the cut that it starts from."""

    plan: int
    at_ns: int
    turns: Mapping[str, int]


class Drops:
    """Dropped inputs of one run."""

    def __init__(self) -> None:
        self._of_epoch: dict[int, Drop] = {}
        self._of_plan: dict[int, list[Drop]] = {}
        self._accepted: dict[bytes, int] = {}
        """Payload → the plan of the host to which it was said when it was taken; and below, when it was answered as taken before."""
        self._repeated: dict[bytes, int] = {}

    def on_plan(self, t_ns: int, plan: int, cut: CutRecord | None, *, is_dropping: bool) -> None:
        """A plan starts from a cut; None: from the initial states."""
        if cut is None:
            self._of_plan[plan] = []
            return
        if is_dropping:
            self._of_epoch[cut.epoch] = Drop(plan, t_ns, {agent: place.turns for agent, place in cut.places.items()})
        before = self._of_plan.get(cut.plan, [])
        own = [self._of_epoch[cut.epoch]] if cut.epoch in self._of_epoch else []
        self._of_plan[plan] = [*before, *own]

    def on_taken(self, plan: int, payload: bytes, *, is_repeated: bool) -> None:
        """Note an input sent to a host of this plan, which has accepted it, or answered that it was accepted before."""
        found = self._repeated if is_repeated else self._accepted
        found[payload] = max(plan, found.get(payload, 0))

    def of_plan(self, plan: int) -> list[Drop]:
        """Return the drops in the history of a plan."""
        return self._of_plan.get(plan, [])

    def may_be_missing(self, plan: int, payload: bytes) -> bool:
        """Return whether an input may have been dropped from the history of a plan."""
        return any(self._accepted.get(payload, 0) < drop.plan for drop in self._of_plan.get(plan, []))

    def is_told_as_taken(self, plan: int, payload: bytes) -> bool:
        """Return whether a repeated send of a dropped input was answered as accepted. The last plan that drops has dropped it at the latest."""
        last = max([drop.plan for drop in self._of_plan.get(plan, [])], default=0)
        return self._repeated.get(payload, 0) >= last > 0

    def was_dropped(self, plan: int, agent: str, acknowledged_ns: int, turn: int) -> bool:
        """Return whether an input acknowledged then, and consumed in this turn of the plan's history, had been dropped from it."""
        return any(
            acknowledged_ns < drop.at_ns and turn > drop.turns.get(agent, 0) for drop in self._of_plan.get(plan, [])
        )
