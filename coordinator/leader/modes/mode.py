"""Interface to the ways of making epochs: one object with few methods, chosen by the fleet's protocol.

coordinated.py   chandy-lamport: hosts receive BeginEpoch, report their parts, and a manifest puts these together
koo_toueg.py     koo-toueg: a round asks those agents that must take part; its line is made the epoch
autonomous.py    all others: agents checkpoint by themselves, and the recovery line is made the epoch
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from snapline.coordinator.leader.epochs.open_epochs import OpenEpoch, Stage
from snapline.coordinator.leader.hosts.host_sessions import HostSession
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import OperationResult, PlanRecord
from snapline.messages.host_messages import Directive, RetireAgent


class EpochDemand(msgspec.Struct, frozen=True):
    """Reasons for an epoch now: a tool asks, the period is over. `is_held`: a plan is wanted, so none should begin. `is_of_all`: it is
    to hold all work of every agent, though agents checkpoint by themselves; then it is due, too. `is_overdue`: agents have waited
    for an epoch for so long that others may hold the line back."""

    is_asked: bool
    is_due: bool
    is_held: bool
    is_of_all: bool = False
    is_overdue: bool = False


class Begun(msgspec.Struct, frozen=True):
    """Result: BeginEpoch is proposed."""


class Later(msgspec.Struct, frozen=True):
    """Result: another epoch comes first. Requests wait, a period that is over is skipped."""


class Declined(msgspec.Struct, frozen=True):
    """Result: no epoch can begin now; requests are refused."""

    reason: str


class Present(msgspec.Struct, frozen=True):
    """Result: this epoch is the snapshot already; `reason`: why there is no newer one."""

    epoch: int
    reason: str


class LossReport(msgspec.Struct, frozen=True):
    """Losses of a plan: agents that do not keep their live state, and durable checkpoints past its line."""

    rolled_back: int
    checkpoints: int = 0


class Mode(Protocol):
    """Maker of epochs, which also decides what survives a plan."""

    def evaluate(self) -> None:
        """Follow the state; before all else that looks at checkpoints."""

    def try_begin(self, demand: EpochDemand) -> Begun | Later | Declined | Present | None:
        """Propose an epoch, if there is a reason and nothing is against it. None: there is nothing to begin now."""

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Take the result of BeginEpoch."""

    def start(self, epoch: int, plan: PlanRecord) -> Stage | None:
        """Start an epoch that has begun in the log; return its first stage. None: not yet."""

    def collect(self, entry: OpenEpoch) -> None:
        """Advance an epoch that is collecting or asking, if it waits for nothing more."""

    def on_ended(self, entry: OpenEpoch, *, is_complete: bool) -> None:
        """Finish an epoch that the log has decided."""

    def directives_for(self, host: str) -> Sequence[Directive]:
        """Return the directives of running epochs for a host that has just come back."""

    def is_line_made(self) -> bool:
        """Return whether the wanted plan can start from the newest complete epoch. Called until it can."""

    def on_plan_ended(self) -> None:
        """Reset after CommitPlan."""

    def losses(self, line: int, applied: Mapping[str, tuple[int, int]]) -> LossReport:
        """Return what a plan that starts from epoch `line` costs; `applied`: host → (plan, host start) that it has applied."""

    def retire(self, session: HostSession, message: RetireAgent) -> op.RemoveAgent | None:
        """Return the removal to propose for a stopped agent. None: it leaves later, and its host is answered then."""
