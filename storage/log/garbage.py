"""Which batches of host logs may go.

The problem. After a failure an agent goes back to an epoch, and gets the inputs beyond its number there once more, out of the logs. Which
epoch it will be is not known: the newest may yet be condemned. So an input must stay as long as one of the kept epochs could ask
for it.

The model. A cut says for each agent in it the number of the last input that it had consumed. An epoch *covers* an input if that number
is not below the input's, or if the agent had left before it: then nobody is there to consume it. An epoch before the
agent's birth covers none of its inputs: the agent is made again on the way, and wants them all. A batch may go when each kept epoch
covers each of its inputs. A batch is one file, so one input keeps the others.

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
from snapline.storage.log.records import LogBatch

_ALL = float("inf")


class BatchNumbers(msgspec.Struct, frozen=True, gc=False):
    """What garbage asks of a batch.

    Attributes:
        log, number: which one.
        highest: agent → the highest number of its inputs in there.
    """

    log: LogName
    number: int
    highest: dict[str, int]


def numbers_of(log: LogName, number: int, batch: LogBatch) -> BatchNumbers:
    """Return what garbage asks of this batch: small enough to be kept for each."""
    highest: dict[str, int] = {}
    for each in batch.inputs:
        highest[each.agent] = max(each.number, highest.get(each.agent, 0))
    return BatchNumbers(log, number, highest)


def find_garbage(
    batches: Iterable[BatchNumbers], epochs: Mapping[int, Mapping[str, int]], left: Mapping[str, int]
) -> list[tuple[LogName, int]]:
    """Return the batches that may go, in the order given; see the module's text for the duties.

    Args:
        batches: any; those of a log that is not there any more too.
        epochs: number of each kept epoch → its `Metadata.inputs`.
        left: agent → the lowest epoch that it had left before.
    """
    if not epochs:
        return []
    floors: dict[str, float] = {}

    def is_covered(agent: str, number: int) -> bool:
        if agent not in floors:
            floors[agent] = _floor(agent, epochs, left.get(agent))
        return number <= floors[agent]

    return [(x.log, x.number) for x in batches if all(is_covered(*each) for each in x.highest.items())]


def _floor(agent: str, epochs: Mapping[int, Mapping[str, int]], left: int | None) -> float:
    """Return the highest number that every epoch covers.

    An epoch that knows an agent which is said to have left before it: it was made again (duty 2), and has not left.
    """
    if left is not None and any(agent in inputs for epoch, inputs in epochs.items() if epoch >= left):
        left = None
    asking = [inputs.get(agent, 0) for epoch, inputs in epochs.items() if left is None or epoch < left]
    return min(asking, default=_ALL)
