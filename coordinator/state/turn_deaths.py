"""Counts of turns during which processes died, so that a message that kills its process is not delivered forever.

While a turn runs, its host keeps a mark outside the process's memory (`agent_runtime/host/turn_marks.py`). After the process has died, the host's
next process or the launcher reads the mark, and the turn is counted here. Plans carry the counts to hosts. A message whose count exceeds
its limit gets no turn and becomes a dead letter. A run of a host is counted once, even if several processes report it.

The count of a turn is reset when the turn has ended successfully. The counts of all agents of a host are reset when its process has ended
between turns: the new process may run other code.

If several turns were running, all of them are counted. But if one that ran on the event loop was counted before, only such turns are:
turns in threads last long and were probably not the cause.
"""

from msgspec.structs import replace

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import APPLIED, UNCHANGED, FleetImage, HostRecord, OperationResult
from snapline.messages.turn_deaths import TurnDeath

DEATHS_KEPT = 256
"""Number of turns that are counted; some 200 bytes each in the image and in each plan. The least recently counted is forgotten first."""


def count_process_end(image: FleetImage, host: str, record: HostRecord, died_in: tuple[TurnDeath, ...]) -> None:
    """Note that the process of the run in `record` ended during these turns; (): between turns, as far as known."""
    if record.died == record.instance:
        return
    if not died_in:
        agents = image.agents
        image.deaths = [x for x in image.deaths if x.agent not in agents or agents[x.agent].host != host]
        return
    record.died = record.instance
    for death in _counted(image, died_in):
        times = 1 + max([x.times for x in image.deaths if is_same(x, death)], default=0)
        others = [x for x in image.deaths if not is_same(x, death)]
        image.deaths = [*others, replace(death, times=times)][-DEATHS_KEPT:]


def _counted(image: FleetImage, died_in: tuple[TurnDeath, ...]) -> tuple[TurnDeath, ...]:
    on_loop = tuple([x for x in died_in if not x.is_beside and any(is_same(x, counted) for counted in image.deaths)])
    return on_loop or died_in


def is_same(one: TurnDeath, other: TurnDeath) -> bool:
    """Return whether both are about the same message for the same agent."""
    return one.agent == other.agent and one.digest == other.digest


def forgive(image: FleetImage, kind: op.ForgiveTurn) -> OperationResult:
    """Reset the count of a turn."""
    others = [x for x in image.deaths if x.agent != kind.agent or x.digest != kind.digest]
    is_changed = len(others) < len(image.deaths)
    image.deaths = others
    return OperationResult(APPLIED if is_changed else UNCHANGED)
