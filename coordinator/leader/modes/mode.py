"""Interface of the checkpoint modes: how epochs are made, chosen by the fleet's protocol.

coordinated.py   chandy-lamport: hosts receive BeginEpoch and report their parts, which a manifest combines
koo_toueg.py     koo-toueg: a round asks the agents that must take part; its line becomes the epoch
autonomous.py    all others: agents checkpoint on their own, and the recovery line becomes the epoch
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
    """Reasons for or against an epoch now.

    Attributes:
        is_asked: a tool requests a snapshot.
        is_due: the period is over, or an early epoch may begin.
        is_held: a plan is wanted, so no other epoch should begin.
        is_of_all: the epoch must hold all work of every agent, even if agents checkpoint on their own; implies `is_due`.
        is_overdue: hosts have waited for an epoch so long that idle agents may hold the line back.
    """

    is_asked: bool
    is_due: bool
    is_held: bool
    is_of_all: bool = False
    is_overdue: bool = False


class Begun(msgspec.Struct, frozen=True):
    """Result: BeginEpoch is proposed."""


class Later(msgspec.Struct, frozen=True):
    """Result: another epoch comes first. Requests wait, and a periodic trigger is skipped."""


class Declined(msgspec.Struct, frozen=True):
    """Result: no epoch can begin now; requests are refused."""

    reason: str


class Present(msgspec.Struct, frozen=True):
    """Result: an existing epoch is the snapshot; `reason`: why there is no newer one."""

    epoch: int
    reason: str


class LossReport(msgspec.Struct, frozen=True):
    """Losses of a plan: number of agents that lose their live state, and of durable checkpoints past its line."""

    rolled_back: int
    checkpoints: int = 0


class Mode(Protocol):
    """A checkpoint mode: makes epochs, and decides what survives a plan."""

    def evaluate(self) -> None:
        """Follow the state. Called before any other part that uses checkpoints."""

    def try_begin(self, demand: EpochDemand) -> Begun | Later | Declined | Present | None:
        """Propose an epoch if there is a reason and nothing prevents it. None: there is nothing to begin now."""

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Take the result of BeginEpoch."""

    def start(self, epoch: int, plan: PlanRecord) -> Stage | None:
        """Start an epoch that has begun in the log; return its first stage. None: not yet."""

    def collect(self, entry: OpenEpoch) -> None:
        """Advance an epoch that is Collecting or Asking if all answers have arrived."""

    def on_ended(self, entry: OpenEpoch, *, is_complete: bool) -> None:
        """Finish an epoch that the log has decided."""

    def directives_for(self, host: str) -> Sequence[Directive]:
        """Return the directives of running epochs for a host that has just reconnected."""

    def is_line_made(self) -> bool:
        """Return whether the wanted plan can start from the newest complete epoch. Called until it can."""

    def on_plan_ended(self) -> None:
        """Reset after CommitPlan."""

    def losses(self, line: int, applied: Mapping[str, tuple[int, int]]) -> LossReport:
        """Return what a plan that starts from epoch `line` costs; `applied`: host → (plan, host start) that it has applied."""

    def retire(self, session: HostSession, message: RetireAgent) -> op.RemoveAgent | None:
        """Return the removal to propose for a stopped agent. None: the agent leaves later, and its host is answered then."""
