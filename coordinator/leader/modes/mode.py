"""What differs between the ways in which a fleet's epochs are made: one object with few methods, chosen by the fleet's protocol.

coordinated.py   chandy-lamport: hosts are told, report their parts, and a manifest puts these together
koo_toueg.py     koo-toueg: a round asks those agents that must take part; its line is made the epoch
autonomous.py    all others: agents checkpoint by themselves, and the recovery line is made the epoch
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from snapline.coordinator.leader.epochs.open_epochs import EpochUnderway, Stage
from snapline.coordinator.leader.hosts.host_sessions import HostSession
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import OperationResult, PlanRecord
from snapline.messages.host_messages import Directive, RetireAgent


class Wish(msgspec.Struct, frozen=True):
    """Why an epoch could begin now: a tool asks, the period is over. `is_held`: a plan is wanted, so none should. `is_of_all`: it is to hold all that every agent has done,
    though agents checkpoint by themselves; then it is due, too. `is_overdue`: agents have waited for an epoch for so long that others may hold the line back."""

    is_asked: bool
    is_due: bool
    is_held: bool
    is_of_all: bool = False
    is_overdue: bool = False


class Begun(msgspec.Struct, frozen=True):
    """BeginEpoch is proposed."""


class Later(msgspec.Struct, frozen=True):
    """Another epoch comes first: who asked waits, a period that is over is skipped."""


class Declined(msgspec.Struct, frozen=True):
    """No epoch can begin now: whoever asked is refused."""

    reason: str


class Present(msgspec.Struct, frozen=True):
    """There is an epoch already that is the snapshot; why it is no newer one."""

    epoch: int
    reason: str


class Losses(msgspec.Struct, frozen=True):
    """Of a plan: agents that do not keep their live state, and durable checkpoints past its line."""

    rolled_back: int
    checkpoints: int = 0


class Mode(Protocol):
    """Makes epochs, and knows what of a fleet survives."""

    def evaluate(self) -> None:
        """Follow the state; before all else that looks at checkpoints."""

    def try_begin(self, wish: Wish) -> Begun | Later | Declined | Present | None:
        """Propose an epoch, if there is a reason and nothing is against it. None: there is nothing to begin now."""

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """BeginEpoch came back."""

    def start(self, epoch: int, plan: PlanRecord) -> Stage | None:
        """The log has begun an epoch: do what comes first. None: not yet."""

    def collect(self, entry: EpochUnderway) -> None:
        """Move an epoch on that is collecting or asking, if all that it waits for is there."""

    def on_ended(self, entry: EpochUnderway, *, is_complete: bool) -> None:
        """The log has decided it."""

    def directives_for(self, host: str) -> Sequence[Directive]:
        """What a host that has just come back must hear of what is going on."""

    def is_line_made(self) -> bool:
        """A plan is wanted: whether the newest complete epoch is what it starts from. Called until it is."""

    def on_plan_ended(self) -> None:
        """CommitPlan came back."""

    def losses(self, line: int, applied: Mapping[str, tuple[int, int]]) -> Losses:
        """What a plan that starts from epoch `line` costs; `applied`: host → (plan, host start) that it has applied."""

    def retire(self, session: HostSession, message: RetireAgent) -> op.RemoveAgent | None:
        """An agent has stopped: what is proposed for it now. None: it leaves later, and its host is told then."""
