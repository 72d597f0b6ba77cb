"""R1 for dropped inputs: an input accepted before a restore without inputs, and not consumed by the target, has no effect in later histories.

A client that sends such an input again must not be answered that it was accepted.

The oracle goes by plans and cuts: which plan drops inputs, and which cut it starts from. A later plan from the same epoch drops the same inputs; a
plan from a later epoch of that history descends from the drop. Inputs sent to a host of that plan, or of a later one, were not dropped. All other
inputs may have been in transit.
"""

from collections.abc import Mapping

import msgspec

from snapline.sim.oracles.ground_truth_records import CutRecord


class Drop(msgspec.Struct, frozen=True):
    """One drop: its plan, its commit time, and agent → turns in the cut from which it starts."""

    plan: int
    at_ns: int
    turns: Mapping[str, int]


class Drops:
    """Dropped inputs of one run."""

    def __init__(self) -> None:
        self._of_epoch: dict[int, Drop] = {}
        self._of_plan: dict[int, list[Drop]] = {}
        self._accepted: dict[bytes, int] = {}
        """Payload → plan of the host that accepted it."""
        self._repeated: dict[bytes, int] = {}
        """Payload → plan of the host that answered that it was accepted before."""

    def on_plan(self, t_ns: int, plan: int, cut: CutRecord | None, *, is_dropping: bool) -> None:
        """Record that a plan starts from a cut, or (None) from the initial states."""
        if cut is None:
            self._of_plan[plan] = []
            return
        if is_dropping:
            self._of_epoch[cut.epoch] = Drop(plan, t_ns, {agent: place.turns for agent, place in cut.places.items()})
        before = self._of_plan.get(cut.plan, [])
        own = [self._of_epoch[cut.epoch]] if cut.epoch in self._of_epoch else []
        self._of_plan[plan] = [*before, *own]

    def on_taken(self, plan: int, payload: bytes, *, is_repeated: bool) -> None:
        """Record that a host of this plan has accepted an input, or answered that it was accepted before."""
        plans = self._repeated if is_repeated else self._accepted
        plans[payload] = max(plan, plans.get(payload, 0))

    def of_plan(self, plan: int) -> list[Drop]:
        """Return the drops in the history of a plan."""
        return self._of_plan.get(plan, [])

    def may_be_missing(self, plan: int, payload: bytes) -> bool:
        """Return whether an input may have been dropped from the history of a plan."""
        return any(self._accepted.get(payload, 0) < drop.plan for drop in self._of_plan.get(plan, []))

    def was_reported_accepted(self, plan: int, payload: bytes) -> bool:
        """Return whether a repeated send of a dropped input was answered as accepted. The last dropping plan has dropped it at the latest."""
        last = max([drop.plan for drop in self._of_plan.get(plan, [])], default=0)
        return self._repeated.get(payload, 0) >= last > 0

    def was_dropped(self, plan: int, agent: str, acknowledged_ns: int, turn: int) -> bool:
        """Return whether an input acknowledged at that time, and consumed in this turn of the plan's history, had been dropped."""
        return any(
            acknowledged_ns < drop.at_ns and turn > drop.turns.get(agent, 0) for drop in self._of_plan.get(plan, [])
        )
