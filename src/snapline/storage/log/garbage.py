"""Finds which batches of host logs may be deleted.

The problem. After a failure an agent goes back to an epoch, and gets its later inputs again from the logs. The target epoch
is not known in advance: the newest one may still be rejected. So an input must stay as long as a kept epoch could need it.

The model. A cut holds for each agent in it the number of the last input that the agent had consumed. An epoch *covers* an input in two cases:
that number is not below the input's, or the agent had left before the epoch, so no agent exists to consume it. An epoch before the
agent's creation covers none of its inputs: recovery creates the agent again, and it needs them all. A batch may be deleted when each kept epoch
covers each of its inputs and each of its entries. A batch is one file, so one needed input keeps the others.

The same holds for entries of durable turns: a cut holds the number of an agent's finished turns, and covers their entries. But a turn that a
recovery has undone may never run again, and then no epoch would ever cover it. If it runs again, then soon. So entries of plans before the present
one are no longer needed when all kept epochs are *settled*: far behind that plan's beginning. A turn that is repeated even later runs its steps
again. Inputs have no such limit.

The caller's duties:

1. `epochs` are all epochs that a recovery may go back to: those that the coordinator's log keeps, pinned ones, and the recovery lines of
   open plans. Without any epoch, nothing is deleted.
2. `left` names agents that do not exist now. It excludes agents that were created again under the same id: an epoch between
   two incarnations needs the inputs accepted for the second one.
3. An old leader may delete batches late: a covered batch stays covered, as epochs only become fewer and later.

Supports R1 of inputs (an acknowledged input takes effect after any rollback), as G7 for checkpoints.
"""

from collections.abc import Iterable, Mapping

import msgspec

from snapline.storage.log.log_record import LogBatch, LogName

_ALL = float("inf")


class BatchNumbers(msgspec.Struct, frozen=True, gc=False):
    """Numbers of a batch that garbage collection needs.

    Attributes:
        log, number: name of the batch.
        highest: agent → the highest number of its inputs in the batch.
        turns: agent → the highest number of its durable turns in the batch.
    """

    log: LogName
    number: int
    highest: dict[str, int]
    turns: dict[str, int] = {}


class SettledEpoch(msgspec.Struct, frozen=True, gc=False):
    """Epoch from which on no work of earlier plans than `plan` is repeated."""

    plan: int
    epoch: int


NEVER_SETTLED = SettledEpoch(0, 0)


def batch_numbers(log: LogName, number: int, batch: LogBatch) -> BatchNumbers:
    """Return the numbers of this batch: small enough to be kept in memory for each batch."""
    highest: dict[str, int] = {}
    for logged in batch.inputs:
        highest[logged.agent] = max(logged.number, highest.get(logged.agent, 0))
    turns: dict[str, int] = {}
    for entry in batch.entries:
        turns[entry.agent] = max(entry.turn, turns.get(entry.agent, 0))
    return BatchNumbers(log, number, highest, turns)


def find_garbage(
    batches: Iterable[BatchNumbers],
    epochs: Mapping[int, Mapping[str, int]],
    left: Mapping[str, int],
    turns: Mapping[int, Mapping[str, int]] | None = None,
    settled: SettledEpoch = NEVER_SETTLED,
) -> list[tuple[LogName, int]]:
    """Return the batches that may be deleted, in the given order; see the module's text for the caller's duties.

    Args:
        batches: any batches, also those of a deleted log.
        epochs: number of each kept epoch → its `Metadata.inputs`.
        left: agent → the lowest epoch before which it had left.
        turns: number of each kept epoch → its `Metadata.durable_turns`; None if no turn has ended anywhere.
    """
    if not epochs:
        return []
    inputs = _CoveredNumbers(epochs, left)
    ended = _CoveredNumbers(turns if turns is not None else {epoch: {} for epoch in epochs}, left)
    is_settled = min(epochs) >= settled.epoch

    def is_deletable(batch: BatchNumbers) -> bool:
        are_old = is_settled and batch.log.plan < settled.plan
        return inputs.cover(batch.highest) and (are_old or ended.cover(batch.turns))

    return [(batch.log, batch.number) for batch in batches if is_deletable(batch)]


class _CoveredNumbers:
    """Agent → the highest number that every epoch covers."""

    def __init__(self, epochs: Mapping[int, Mapping[str, int]], left: Mapping[str, int]) -> None:
        self._epochs = epochs
        self._left = left
        self._known: dict[str, float] = {}

    def cover(self, highest: Mapping[str, int]) -> bool:
        """Return whether the kept epochs cover all these numbers."""
        return all(number <= self._of(agent) for agent, number in highest.items())

    def _of(self, agent: str) -> float:
        if agent not in self._known:
            self._known[agent] = _lowest_covered(agent, self._epochs, self._left.get(agent))
        return self._known[agent]


def _lowest_covered(agent: str, epochs: Mapping[int, Mapping[str, int]], left: int | None) -> float:
    """Return the highest number that every epoch covers.

    If an epoch knows an agent that is listed as having left before it, the agent was made again (duty 2), and counts as present.
    """
    if left is not None and any(agent in inputs for epoch, inputs in epochs.items() if epoch >= left):
        left = None
    asking = [inputs.get(agent, 0) for epoch, inputs in epochs.items() if left is None or epoch < left]
    return min(asking, default=_ALL)
