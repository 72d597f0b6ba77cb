"""Epochs made of recovery lines: the common part of the modes of logged fleets.

Hosts make no epochs here. A line is computed, or made by a round, and materialised (`lines.py`); from then on the epoch is like any
other. One epoch is open at a time. An epoch that this leader did not begin is aborted: its line or round was lost with the leader that
began it.
"""

import msgspec

from snapline.coordinator.leader.epochs.open_epochs import Failing, OpenEpoch, OpenEpochs, StoringLine
from snapline.coordinator.leader.events import LineMaterialised
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.recovery_lines.lines import Lines
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RECOVERY_TRIGGER, OperationResult

RETRY_NS = 1 * SECOND_NS
"""Delay before an epoch for the logs or a recovery is retried after a failure of the store: a full disk is not cleared faster."""

LOG_TRIGGER = "log"


class Begin(msgspec.Struct, frozen=True):
    """Start of an epoch: the plan, the line at that time and, in koo-toueg, the initiators of the round."""

    plan: int
    line: dict[str, int]
    initiators: tuple[str, ...]


class LineEpochs:
    """The running epoch of a logged fleet.

    Attributes:
        recovery_failures: number of recovery epochs that could not be stored since the last plan.
    """

    def __init__(self, shared: LeaderState, open_epochs: OpenEpochs, lines: Lines) -> None:
        self._shared = shared
        self._open_epochs = open_epochs
        self._lines = lines
        self._proposed: Begin | None = None
        """Start for the pending BeginEpoch."""
        self._begun: dict[int, Begin] = {}
        self._retry_ns = 0
        self.recovery_failures = 0

    @property
    def is_busy(self) -> bool:
        """Return whether an epoch is open, or about to be."""
        return bool(self._shared.state.open_epochs()) or self._shared.is_pending("begin")

    # ---- begin ----------------------------------------------------------------------------------------------------

    def may_begin(self, trigger: str) -> bool:
        """Return whether the ledger is loaded, and the retry delay after a failure is over."""
        is_urgent = trigger in (LOG_TRIGGER, RECOVERY_TRIGGER)
        return self._lines.ledger is not None and not (is_urgent and self._shared.now < self._retry_ns)

    def propose(self, trigger: str, initiators: tuple[str, ...] = ()) -> bool:
        """Propose BeginEpoch; return whether it was proposed."""
        state, ledger = self._shared.state, self._lines.ledger
        if ledger is None or not self.may_begin(trigger):
            return False
        if not self._shared.propose("begin", op.BeginEpoch(state.image.begun, trigger)):
            return False
        self._proposed = Begin(state.plan_number, dict(ledger.line), initiators)
        return True

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Take the result of BeginEpoch."""
        proposed, self._proposed = self._proposed, None
        if proposed is not None and result is not None and not result.is_refused:
            self._begun[result.number] = proposed

    def take(self, epoch: int) -> Begin | Failing | None:
        """Return the start of an open epoch. None: BeginEpoch is pending, and its result shows whether this leader began the epoch."""
        if self._shared.is_pending("begin"):
            return None
        begun = self._begun.pop(epoch, None)
        if begun is None:
            return Failing("the coordinator that began it has ended")
        if begun.plan != self._shared.state.plan_number or self._lines.ledger is None:
            return Failing("the checkpoints in the store are being read")
        return begun

    # ---- progress -------------------------------------------------------------------------------------------------

    def on_materialised(self, event: LineMaterialised) -> None:
        """Decide the epoch of a stored line, or fail it. Damage found while the epoch is failing already is handled too."""
        entry = self._open_epochs.get(event.epoch)
        if entry is None or not isinstance(entry.stage, StoringLine | Failing):
            return
        if event.error or event.damaged_path:
            self._fail(entry, event)
        elif isinstance(entry.stage, StoringLine):
            sizes = (event.state_bytes, event.channel_state_bytes, event.channel_state_messages)
            self._lines.on_materialised(event)
            self._open_epochs.decide(entry, op.CompleteEpoch(entry.epoch, event.root, event.unborn, *sizes))

    def _fail(self, entry: OpenEpoch, event: LineMaterialised) -> None:
        problem = f"its line could not be stored: {event.error or event.damaged_path}"
        self._shared.note("error", f"epoch {event.epoch}: {problem}")
        if event.damaged_path:
            self._open_epochs.fail(entry, problem)
            self._lines.on_damaged(event)
        else:
            self._open_epochs.fail_to_store(entry, problem)
            self.recovery_failures += entry.trigger == RECOVERY_TRIGGER
            self._retry_ns = self._shared.now + RETRY_NS

    def on_plan_ended(self) -> None:
        """Reset the count of failures after CommitPlan."""
        self.recovery_failures = 0
