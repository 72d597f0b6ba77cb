"""Oracles for the coordinator's log. The oracles check the history of epochs and plans (G4), and linearizability as observed by the log's
callers (G8).

Theory of operation
-------------------
*Outcomes* (G4). The oracle computes its own table of epochs from the committed log entries alone. Every request counts once. The oracle
detects duplicates by client, sequence number and payload, whatever the product replies. The oracle checks the following rules.

- An epoch begins once, with the next number, and ends once, as complete or aborted.
- The number of the newest complete epoch never decreases, unless the epoch is condemned as damaged or the fleet is restored. A restore
  makes all later epochs void, and a void epoch never serves as a recovery line again.
- Plans are numbered consecutively, and each starts from the newest epoch that is complete and not condemned.
- A published ref names a complete epoch and the root that the log contains.

To check that a complete epoch is durable, whole and verified, the judge (`judge.py`) reads it from the disk when it becomes complete.

*Linearizability* (G8). Each acknowledged proposal is in the log exactly once. The order of proposals is consistent with real time. A log is
linearizable if every proposal appears to take effect at a single instant between its call and its answer (Herlihy and Wing 1990). If only
calls and answers are known, checking linearizability is expensive (Wing and Gong 1993). Here, the entries of the log also show the order,
as a *witness*. So the following checks, which take linear time, are sufficient.

1. Every entry in the log was proposed earlier, at least as many times as it is committed.
2. Every acknowledged proposal is in the log with the acknowledged result, and each acknowledgement has its own entry.
3. A rejected proposal is never in the log.
4. If one proposal was made after another was answered, it also follows the other in the log (real-time order).
5. No log index is committed twice with different entries.

If a proposal's outcome is unknown, its entry may be committed at any time or never. Tests compare these checks with Wing and Gong's
checker, which tries every possible order of a few operations.
"""

from collections.abc import Iterator

import msgspec

from snapline.coordinator.leader.modes.autonomous_epochs import RECOVERY_EPOCHS_MAX
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    APPLIED,
    RECOVERY_TRIGGER,
    Committed,
    OperationResult,
    ProposalOutcome,
    Rejected,
)
from snapline.coordinator.state.fleet_view import FleetView
from snapline.sim.oracles.ground_truth_records import Finding

OPEN, COMPLETE, ABORTED, CONDEMNED, VOID = "open", "complete", "aborted", "condemned", "void"


class EpochLine(msgspec.Struct):
    """An epoch, as the committed log entries describe it."""

    plan: int
    trigger: str
    state: str = OPEN
    root: str = ""


class Outcomes:
    """Oracle that computes each epoch's outcome from the committed log entries, and checks the rules for epochs and plans.

    Attributes:
        epochs: all epochs that have ever begun, even if the product no longer remembers them.
        is_used: whether the oracle has received any log entry.
    """

    def __init__(self) -> None:
        self.epochs: dict[int, EpochLine] = {}
        self.plan = 0
        self.is_used = False
        self._requests: dict[tuple[str, int, bytes], None] = {}
        self._removed: dict[tuple[int, str], int] = {}

    @property
    def condemned(self) -> list[int]:
        """Return the epochs that became complete and were later found to be damaged."""
        return [epoch for epoch, line in self.epochs.items() if line.state == CONDEMNED]

    @property
    def newest_complete(self) -> int:
        """Return the newest epoch that is complete and not condemned, or 0 if there is none."""
        return max(self.complete_epochs(), default=0)

    def complete_epochs(self) -> list[int]:
        """Return the epochs that are complete and not condemned."""
        return [epoch for epoch, line in self.epochs.items() if line.state == COMPLETE]

    def open_epochs(self) -> list[int]:
        """Return the epochs that have no outcome yet."""
        return [epoch for epoch, line in self.epochs.items() if line.state == OPEN]

    def is_removed(self, plan: int, agent: str) -> bool:
        """Return whether the agent has left the fleet under this plan, and all epochs that began before it left have ended."""
        epochs_before = self._removed.get((plan, agent))
        return epochs_before is not None and all(epoch > epochs_before for epoch in self.open_epochs())

    def is_limited(self, plan: int) -> bool:
        """Return whether the plan after `plan` may start from a line without survivors' live states, because a limit was reached or the
        store failed."""
        lines = [line for line in self.epochs.values() if line.plan == plan]
        recoveries = [line for line in lines if line.trigger == RECOVERY_TRIGGER]
        is_failing = any(line.state in (ABORTED, CONDEMNED) for line in recoveries) or any(
            line.state == CONDEMNED for line in self.epochs.values()
        )
        return is_failing or len(recoveries) >= RECOVERY_EPOCHS_MAX

    def is_repeated(self, operation: op.Operation) -> bool:
        """Return whether this request has already been committed."""
        return _request_of(operation) in self._requests

    def on_committed(self, operation: op.Operation, result: OperationResult, state: FleetView) -> Iterator[Finding]:
        """Check a committed log entry."""
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
        """Return whether the epoch is void because the fleet was restored to an earlier epoch."""
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
        """Check that a published ref names a complete epoch and its root."""
        line = self.epochs.get(epoch)
        state = line.state if line is not None else "unknown"
        if line is None or line.state not in (COMPLETE, CONDEMNED, VOID):
            yield "outcome", "G4", f"a ref was published for epoch {epoch}, which is {state}"
        elif line.root != root:
            yield "outcome", "G4", f"the ref of epoch {epoch} names {root}, the log {line.root}"


def _request_of(operation: op.Operation) -> tuple[str, int, bytes]:
    return operation.client, operation.sequence, op.digest_of(operation.kind)


class _Entry(msgspec.Struct):
    index: int
    result: OperationResult
    is_claimed: bool = False


class _Proposal(msgspec.Struct):
    entry: bytes
    floor: int  # greatest index acknowledged when the proposal was made
    is_rejected: bool = False


class LogHistory:
    """Oracle that checks the linearizability of one run's log from the proposals, their answers and the committed entries."""

    def __init__(self) -> None:
        self._proposals: dict[int, _Proposal] = {}
        self._proposed: dict[bytes, list[int]] = {}
        self._committed: dict[bytes, list[_Entry]] = {}
        self._order: dict[int, bytes] = {}
        self._last = -1
        self._acknowledged = -1

    def on_proposed(self, proposal: int, entry: bytes) -> None:
        """Record a proposal."""
        self._proposals[proposal] = _Proposal(entry, self._acknowledged)
        self._proposed.setdefault(entry, []).append(proposal)

    def on_committed(self, index: int, entry: bytes, result: OperationResult) -> Iterator[Finding]:
        """Check an entry that has been committed."""
        if index <= self._last:
            if self._order.get(index) != entry:
                yield "log", "G8", f"entry {index} of the log was committed a second time, with something else"
            return
        self._last = index
        self._order[index] = entry
        copies = self._committed.setdefault(entry, [])
        copies.append(_Entry(index, result))
        if not self._proposals:
            return  # this world does not report proposals
        proposed = [self._proposals[x] for x in self._proposed.get(entry, ())]
        if len(copies) > len(proposed):
            yield "log", "G8", f"entry {index} was committed {len(copies)} times and proposed {len(proposed)} times"
        elif len(copies) > sum(not x.is_rejected for x in proposed):
            yield "log", "G8", f"entry {index} is in the log, and its proposal was rejected"

    def on_outcome(self, proposal: int, outcome: ProposalOutcome, index: int | None) -> Iterator[Finding]:
        """Check the outcome of a proposal as its caller has received it. `index` is the index of the proposal's entry, or None if it is
        unknown."""
        record = self._proposals[proposal]
        if isinstance(outcome, Rejected):
            record.is_rejected = True
            proposed = [self._proposals[x] for x in self._proposed[record.entry]]
            if len(self._committed.get(record.entry, ())) > sum(not x.is_rejected for x in proposed):
                yield "log", "G8", f"proposal {proposal} was rejected, and it is in the log"
        elif isinstance(outcome, Committed):
            yield from self._acknowledge(proposal, record, outcome.result, index)

    def _acknowledge(
        self, proposal: int, made: _Proposal, result: OperationResult, index: int | None
    ) -> Iterator[Finding]:
        entries = [x for x in self._committed.get(made.entry, ()) if index is None or x.index == index]
        if not entries:
            yield "log", "G8", f"proposal {proposal} was acknowledged, and it is not in the log"
            return
        free = [x for x in entries if not x.is_claimed]
        if not free:
            yield "log", "G8", f"proposal {proposal} was acknowledged by an entry that had answered another one"
            return
        matching = [x for x in free if x.result == result]
        if not matching:
            yield "log", "G8", f"proposal {proposal} was answered {result}, the log says {free[0].result}"
            return
        later = [x for x in matching if x.index > made.floor]
        if not later:
            yield (
                "log",
                "G8",
                (
                    f"proposal {proposal} is entry {matching[0].index}; it was made after entry {made.floor} had been acknowledged"
                ),
            )
            return
        later[0].is_claimed = True
        self._acknowledged = max(self._acknowledged, later[0].index)
