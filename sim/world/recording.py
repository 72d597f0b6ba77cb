"""Recording of a run for diagrams, reports and exports: its events with their times. Made only on request.

Events are those of a trace (`recovery/trace.py`), each with its virtual time `t_ns`. A recording also has epochs, hosts and
orphans, which traces do not have.
"""

from typing import Literal

import msgspec

from snapline.recovery.trace import Event, Recovery

EVENTS_MAX = 2_000_000
"""Largest number of recorded events: about half a gigabyte; larger traces are not useful."""


class TimedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a trace. Messages have the name "sender/plan>receiver:number", unique in a run."""

    t_ns: int
    event: Event | Recovery


class EpochSpan(msgspec.Struct):
    """One epoch, from its begin to its outcome.

    `cut`: agent → number of its checkpoint, for a complete epoch. `plan`: plan under which the epoch began.
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
    """A message of a violation, with its name in the events."""

    message: str
    text: str


class Recording:
    """Recording of one run, filled by the world.

    Attributes:
        agents: initial agents, in order. placed: agent → its host at the start.
        events: events in order. is_cut: the run had more than `EVENTS_MAX` events.
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
        """Record one event."""
        if len(self.events) < EVENTS_MAX:
            self.events.append(TimedEvent(t_ns, event))
        else:
            self.is_cut = True
