"""Recording of a run for pictures, reports and exports: its events with their times. Kept only on request.

Events are those of a trace (`recovery/trace.py`), each with the virtual time `t_ns`; next to them are epochs, hosts
and faults, which traces do not have.
"""

from typing import Literal

import msgspec

from snapline.recovery.trace import Event, Recovery

EVENTS_MAX = 2_000_000
"""Largest number of events kept: a trace of half a gigabyte serves nobody."""


class TimedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a trace. Messages are named "sender/plan>receiver:number", unique in a run."""

    t_ns: int
    event: Event | Recovery


class EpochSpan(msgspec.Struct):
    """One epoch, from its begin to its one outcome.

    `cut`: agent → number of its checkpoint, of a complete one. `plan`: the plan under which it began.
    """

    epoch: int
    plan: int
    begun_ns: int
    ended_ns: int = 0
    outcome: Literal["open", "complete", "aborted"] = "open"
    cut: dict[str, int] = {}


class HostSpan(msgspec.Struct):
    """One run of a host; `until_ns` is 0 while it lives."""

    host: str
    from_ns: int
    until_ns: int = 0


class Orphan(msgspec.Struct, frozen=True):
    """A message that a violation is about, by the name it has in the events."""

    message: str
    text: str


class Recording:
    """Filled by the world.

    Attributes:
        agents: those of the start, in order. placed: agent → its host at the start.
        events: in the order in which they happened. is_cut: there were more than `EVENTS_MAX`.
    """

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.placed: dict[str, str] = {}
        self.events: list[TimedEvent] = []
        self.is_cut = False
        self.epochs: dict[int, EpochSpan] = {}
        self.hosts: list[HostSpan] = []
        self.orphans: list[Orphan] = []

    def add(self, t_ns: int, event: Event | Recovery) -> None:
        """Keep one event."""
        if len(self.events) < EVENTS_MAX:
            self.events.append(TimedEvent(t_ns, event))
        else:
            self.is_cut = True
