"""The history of epochs and plans in the coordinator's log (G4), computed only from its committed entries.

Theory of operation
-------------------
The oracle keeps its own table of epochs. Every request counts once: it recognises repetitions by client, sequence and bytes, whatever
the product answers. The rules:

- An epoch begins once, with the next number, and ends once: complete or aborted.
- The newest complete epoch never goes back, unless it is condemned as damaged or the fleet is restored. A restore makes all later
  epochs void, and a void epoch is never a line again.
- A plan has the next number, and starts from the newest epoch that is complete and not condemned.
- A published ref names a complete epoch with the root in the log.

"Complete means durable, whole and verified" is checked by reading the epoch back from disk at that moment (`judge.py`).
"""

from collections.abc import Iterator

import msgspec

from snapline.coordinator.leader.modes.autonomous import RECOVERY_EPOCHS_MAX
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import APPLIED, RECOVERY_TRIGGER, OperationResult
from snapline.coordinator.state.fleet_view import FleetView
from snapline.sim.oracles.ground_truth_records import Finding

OPEN, COMPLETE, ABORTED, CONDEMNED, VOID = "open", "complete", "aborted", "condemned", "void"


class EpochLine(msgspec.Struct):
    """One epoch according to the log."""

    plan: int
    trigger: str
    state: str = OPEN
    root: str = ""


class Outcomes:
    """Outcome of each epoch.

    Attributes:
        epochs: all epochs that ever began, including forgotten ones.
        plan: number of the newest plan.
        is_used: whether any entry was seen.
    """

    def __init__(self) -> None:
        self.epochs: dict[int, EpochLine] = {}
        self.plan = 0
        self.is_used = False
        self._requests: dict[tuple[str, int, bytes], None] = {}
        self._removed: dict[tuple[int, str], int] = {}

    @property
    def condemned(self) -> list[int]:
        """Return the epochs that were complete and found damaged."""
        return [epoch for epoch, line in self.epochs.items() if line.state == CONDEMNED]

    @property
    def newest_complete(self) -> int:
        """Return the newest epoch that is complete and not condemned; 0 without one."""
        return max(self.complete_epochs(), default=0)

    def complete_epochs(self) -> list[int]:
        """Return the epochs that are complete and not condemned."""
        return [epoch for epoch, line in self.epochs.items() if line.state == COMPLETE]

    def open_epochs(self) -> list[int]:
        """Return the epochs without an outcome."""
        return [epoch for epoch, line in self.epochs.items() if line.state == OPEN]

    def is_removed(self, plan: int, agent: str) -> bool:
        """Return whether the agent has left the fleet of this plan, and no epoch that began before that is still open."""
        epochs_before = self._removed.get((plan, agent))
        return epochs_before is not None and all(epoch > epochs_before for epoch in self.open_epochs())

    def is_limited(self, plan: int) -> bool:
        """Return whether the line of the plan after `plan` may omit survivors: a limit was reached, or the store failed."""
        lines = [line for line in self.epochs.values() if line.plan == plan]
        recoveries = [line for line in lines if line.trigger == RECOVERY_TRIGGER]
        is_failing = any(line.state in (ABORTED, CONDEMNED) for line in recoveries) or any(
            line.state == CONDEMNED for line in self.epochs.values()
        )
        return is_failing or len(recoveries) >= RECOVERY_EPOCHS_MAX

    def is_repeated(self, operation: op.Operation) -> bool:
        """Return whether this request was committed before."""
        return _request_of(operation) in self._requests

    def on_committed(self, operation: op.Operation, result: OperationResult, state: FleetView) -> Iterator[Finding]:
        """Check a committed entry of the log."""
        self.is_used = True
        newest = self.newest_complete
        is_new = not self.is_repeated(operation)
        self._requests[_request_of(operation)] = None
        if result.status == APPLIED and is_new:
            yield from self._apply(operation.kind, result)
        if self.newest_complete != state.newest_complete():
            yield (
                "outcome",
                "G4",
                (
                    f"by the entries of the log epoch {self.newest_complete} is the newest complete one, "
                    f"the fleet's state says {state.newest_complete()}"
                ),
            )
        if self.newest_complete < newest and not isinstance(operation.kind, op.CondemnEpoch | op.Restore):
            yield "outcome", "G4", f"the newest complete epoch went back from {newest} to {self.newest_complete}"
        if tuple(self.open_epochs()) != state.open_epochs():
            yield (
                "outcome",
                "G4",
                (
                    f"by the entries of the log epochs {self.open_epochs()} are open, the state says {state.open_epochs()}"
                ),
            )

    def _apply(self, kind: op.Kind, result: OperationResult) -> Iterator[Finding]:
        match kind:
            case op.BeginEpoch():
                if result.number != len(self.epochs) + 1:
                    yield "outcome", "G4", f"epoch {result.number} began after {len(self.epochs)} others"
                self.epochs[result.number] = EpochLine(self.plan, kind.trigger)
            case op.CompleteEpoch():
                yield from self._end(kind.epoch, COMPLETE)
                if kind.epoch in self.epochs:
                    self.epochs[kind.epoch].root = kind.root
            case op.AbortEpoch():
                yield from self._end(kind.epoch, ABORTED)
            case op.CondemnEpoch():
                line = self.epochs.get(kind.epoch)
                if line is None or line.state != COMPLETE:
                    yield "outcome", "G4", f"epoch {kind.epoch} was condemned and was never complete"
                else:
                    line.state = CONDEMNED
                yield from self._abort(result)
            case op.CommitPlan():
                yield from self._check_plan(kind, result)
                yield from self._abort(result)
            case op.Restore():
                yield from self._go_back(kind, result)
                yield from self._abort(result)
            case op.LoseHosts() | op.AdmitHost() | op.EndFleet():
                yield from self._abort(result)
            case op.RemoveAgent():
                self._removed[(kind.plan, kind.agent)] = len(self.epochs)
            case _:
                pass

    def _abort(self, result: OperationResult) -> Iterator[Finding]:
        for epoch in result.epochs:
            yield from self._end(epoch, ABORTED)

    def _end(self, epoch: int, outcome: str) -> Iterator[Finding]:
        line = self.epochs.get(epoch)
        if line is None:
            yield "outcome", "G4", f"epoch {epoch} is {outcome} and never began"
        elif line.state != OPEN:
            yield "outcome", "G4", f"epoch {epoch} is {outcome}, and it was {line.state} before: two outcomes"
        else:
            line.state = outcome

    def _go_back(self, kind: op.Restore, result: OperationResult) -> Iterator[Finding]:
        line = self.epochs.get(kind.line_epoch)
        if line is None or line.state != COMPLETE:
            state = "unknown" if line is None else line.state
            yield "line", "G5", f"the fleet was taken back to epoch {kind.line_epoch}, which is {state}"
        for epoch in self.complete_epochs():
            if epoch > kind.line_epoch:
                self.epochs[epoch].state = VOID
        if result.number != self.plan + 1:
            yield "incarnation", "G9", f"plan {result.number} was committed after plan {self.plan}"
        self.plan = max(self.plan, result.number)

    def is_void(self, epoch: int) -> bool:
        """Return whether the fleet was restored past the epoch."""
        return epoch in self.epochs and self.epochs[epoch].state == VOID

    def _check_plan(self, kind: op.CommitPlan, result: OperationResult) -> Iterator[Finding]:
        if result.number != self.plan + 1:
            yield "incarnation", "G9", f"plan {result.number} was committed after plan {self.plan}"
        self.plan = max(self.plan, result.number)
        if kind.line_epoch != self.newest_complete:
            yield (
                "line",
                "G5",
                (
                    f"plan {result.number} starts from epoch {kind.line_epoch}; the newest complete one is {self.newest_complete}"
                ),
            )

    def on_published(self, epoch: int, root: str) -> Iterator[Finding]:
        """Check a published ref."""
        line = self.epochs.get(epoch)
        state = line.state if line is not None else "unknown"
        if line is None or line.state not in (COMPLETE, CONDEMNED, VOID):
            yield "outcome", "G4", f"a ref was published for epoch {epoch}, which is {state}"
        elif line.root != root:
            yield "outcome", "G4", f"the ref of epoch {epoch} names {root}, the log {line.root}"


def _request_of(operation: op.Operation) -> tuple[str, int, bytes]:
    return operation.client, operation.sequence, op.digest_of(operation.kind)
