"""Turns during which processes died, and how often: the counts keep a message that kills its process from being delivered for ever.

A host leaves a mark outside of its memory while a turn runs (`agent_runtime/host/turn_marks.py`). When its process has died, the next process of the
host, or the launcher, reads the mark, and the turn is counted here. Plans carry the counts to hosts; a message
that was counted more often than its limit has no turn, and becomes a dead letter. A run of a host is counted once, whatever process reports it.

The count of a turn is forgotten when the turn has ended well, and those of all agents of a host when its process has ended between turns: it
may run other code from then on.

Where several turns were under way, all of them are counted, unless one of them ran on the event loop and was counted before: those in threads
last long, and are there mostly by chance.
"""

from msgspec.structs import replace

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import APPLIED, UNCHANGED, FleetImage, HostRecord, OperationResult
from snapline.messages.turn_deaths import TurnDeath

DEATHS_KEPT = 256
"""Turns that are counted; some 200 bytes each in the image and in each plan. The one that was counted longest ago is forgotten first."""


def note_end(image: FleetImage, host: str, record: HostRecord, died_in: tuple[TurnDeath, ...]) -> None:
    """The process of the run in `record` has ended in the middle of these turns; () is between turns, as far as is known."""
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
    on_loop = tuple([x for x in died_in if not x.is_beside and any(is_same(x, known) for known in image.deaths)])
    return on_loop or died_in


def is_same(one: TurnDeath, other: TurnDeath) -> bool:
    """Return whether both are about the same message for the same agent."""
    return one.agent == other.agent and one.digest == other.digest


def forgive(image: FleetImage, kind: op.ForgiveTurn) -> OperationResult:
    """Forget what is counted of a turn."""
    others = [x for x in image.deaths if x.agent != kind.agent or x.digest != kind.digest]
    is_changed = len(others) < len(image.deaths)
    image.deaths = others
    return OperationResult(APPLIED if is_changed else UNCHANGED)
