"""The one place where a fleet's concerns come together: each part says what it waits for, and here is noted since when, and what helps."""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from snapline.conversation.concerns import Concern, remedy_of
from snapline.coordinator.leader.desk import SECOND_NS, Desk

LOOK_NS = SECOND_NS // 2
"""Between two looks at all parts: heartbeats come as often, and this core handles thousands of events."""


class Speaker(Protocol):
    """A part that knows of concerns."""

    def concerns(self) -> list[Concern]:
        """Those of now; `since_ns` is 0 where the part does not keep since when."""


class Concerns:
    """Volatile: a new leader sees them anew."""

    def __init__(self, desk: Desk, speakers: Sequence[Speaker]) -> None:
        self._desk = desk
        self._speakers = speakers
        self._since_ns: dict[tuple[str, tuple[str, ...], tuple[str, ...]], int] = {}
        self._look_ns = 0

    def evaluate(self) -> None:
        """See which have come and which are over."""
        if self._desk.now >= self._look_ns:
            self._look_ns = self._desk.now + LOOK_NS
            self.current()

    def current(self) -> tuple[Concern, ...]:
        """All of now; a fleet that has ended has none."""
        now, known = self._desk.now, self._since_ns
        told = () if self._desk.state.image.outcome else [x for part in self._speakers for x in part.concerns()]
        found = []
        self._since_ns = {}
        for concern in told:
            key = concern.kind, concern.hosts, concern.agents
            since_ns = self._since_ns[key] = min(now - concern.since_ns, known.get(key, now))
            found.append(replace(concern, since_ns=now - since_ns, remedy=remedy_of(concern)))
        return tuple(found)
