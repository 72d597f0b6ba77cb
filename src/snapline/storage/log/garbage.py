"""Finds which batches of host logs may be deleted.

The problem. After a failure an agent goes back to an epoch, and gets the inputs beyond its number there once more, out of the logs. Which
epoch it will be is not known: the newest may yet be condemned. So an input must stay as long as one of the kept epochs could need it.

The model. A cut holds for each agent in it the number of the last input that it had consumed. An epoch *covers* an input if that number
is not below the input's, or if the agent had left before it: then no agent is there to consume it. An epoch before the
agent's birth covers none of its inputs: the agent is made again on the way, and needs them all. A batch may go when each kept epoch
covers each of its inputs, and each of its entries. A batch is one file, so one input keeps the others.

Entries of durable turns likewise: a cut holds how many of an agent's have ended, and covers their entries. But a turn that a recovery has undone
need not come again: then nothing would ever cover it. It comes soon or never. So the entries of plans before the present one keep
nothing any more when all kept epochs are *settled*: far behind that plan's beginning. Should a turn come later still, its steps are
run again; inputs have no such end.

The caller's duties:

1. `epochs` are all epochs that a recovery may go back to: those that the coordinator's log keeps, those that are pinned, and the lines of
   open plans. Without any, nothing goes.
2. `left` names agents that do not exist now, and not those that were made again under the same id: what was admitted
   for the second life is needed by an epoch between the two lives.
3. Batches may be deleted late, by an old leader: what is covered once stays covered, as epochs only become fewer and later.

Supports R1 of inputs (an acknowledged one takes effect, whatever is rolled back), as G7 for checkpoints.
"""

from collections.abc import Iterable, Mapping

import msgspec

from snapline.storage.log.names import LogName
from snapline.storage.log.record import LogBatch

_ALL = float("inf")


class BatchNumbers(msgspec.Struct, frozen=True, gc=False):
    """Numbers of a batch that garbage collection needs.

    Attributes:
        log, number: which one.
        highest: agent → the highest number of its inputs in there.
        turns: agent → the highest number of its durable turns in there.
    """

    log: LogName
    number: int
    highest: dict[str, int]
    turns: dict[str, int] = {}


class Settled(msgspec.Struct, frozen=True, gc=False):
    """Epoch from which on nothing is repeated that was done under plans before this one."""

    plan: int
    epoch: int


NEVER = Settled(0, 0)


def numbers_of(log: LogName, number: int, batch: LogBatch) -> BatchNumbers:
    """Return what garbage asks of this batch: small enough to be kept for each."""
    highest: dict[str, int] = {}
    for each in batch.inputs:
        highest[each.agent] = max(each.number, highest.get(each.agent, 0))
    turns: dict[str, int] = {}
    for entry in batch.entries:
        turns[entry.agent] = max(entry.turn, turns.get(entry.agent, 0))
    return BatchNumbers(log, number, highest, turns)


def find_garbage(
    batches: Iterable[BatchNumbers],
    epochs: Mapping[int, Mapping[str, int]],
    left: Mapping[str, int],
    turns: Mapping[int, Mapping[str, int]] | None = None,
    settled: Settled = NEVER,
) -> list[tuple[LogName, int]]:
    """Return the batches that may go, in the order given; see the module's text for the duties.

    Args:
        batches: any; those of a log that is not there any more too.
        epochs: number of each kept epoch → its `Metadata.inputs`.
        left: agent → the lowest epoch that it had left before.
        turns: number of each kept epoch → its `Metadata.durable_turns`; None: none has ended anywhere.
    """
    if not epochs:
        return []
    inputs = _Floors(epochs, left)
    ended = _Floors(turns if turns is not None else {epoch: {} for epoch in epochs}, left)
    is_settled = min(epochs) >= settled.epoch

    def may_go(batch: BatchNumbers) -> bool:
        are_old = is_settled and batch.log.plan < settled.plan
        return inputs.cover(batch.highest) and (are_old or ended.cover(batch.turns))

    return [(batch.log, batch.number) for batch in batches if may_go(batch)]


class _Floors:
    """Agent → the highest number that every epoch covers."""

    def __init__(self, epochs: Mapping[int, Mapping[str, int]], left: Mapping[str, int]) -> None:
        self._epochs = epochs
        self._left = left
        self._known: dict[str, float] = {}

    def cover(self, highest: Mapping[str, int]) -> bool:
        """Return whether the kept epochs cover all of these."""
        return all(number <= self._of(agent) for agent, number in highest.items())

    def _of(self, agent: str) -> float:
        if agent not in self._known:
            self._known[agent] = _floor(agent, self._epochs, self._left.get(agent))
        return self._known[agent]


def _floor(agent: str, epochs: Mapping[int, Mapping[str, int]], left: int | None) -> float:
    """Return the highest number that every epoch covers.

    If an epoch knows an agent that is listed as having left before it, the agent was made again (duty 2), and has not left.
    """
    if left is not None and any(agent in inputs for epoch, inputs in epochs.items() if epoch >= left):
        left = None
    asking = [inputs.get(agent, 0) for epoch, inputs in epochs.items() if left is None or epoch < left]
    return min(asking, default=_ALL)
