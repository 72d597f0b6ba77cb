"""Vector clocks, and logs of events for ShiViz.

The clocks are Fidge and Mattern's (1988): an event raises its lane's own entry by one, and takes over the greatest entries of what it
*takes*: a receive takes the clock that its send *left*. Events that are not counted carry clocks on and raise nothing, so events
left out of a picture still join the shown ones; the entries of the others are then 1, 2, 3 … without gaps, as ShiViz requires.

A log has two lines for each event: its lane with the clock as JSON, and the event in words. The first line of the file is the expression
that takes events apart, the second would separate several executions and is empty.
"""

import json
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence

import msgspec

from snapline.diagrams.style import clean

SHIVIZ_PARSER = r"(?<host>\S*) (?<clock>\{.*\})\n(?<event>.*)"

Clock = dict[str, int]


class ClockStep(msgspec.Struct, frozen=True):
    """One event of one lane.

    Attributes:
        leaves: its clock can be taken under this name from now on.
        takes: names of clocks that it takes over, if they were left.
        is_counted: False: it carries clocks on and is no event of its own.
    """

    lane: str
    words: str = ""
    leaves: Hashable = None
    takes: tuple[Hashable, ...] = ()
    is_counted: bool = True


def clocked(steps: Iterable[ClockStep]) -> Iterator[tuple[ClockStep, Clock]]:
    """Each step that counts, with its clock."""
    clocks: dict[str, Clock] = {}
    left: dict[Hashable, Clock] = {}
    for step in steps:
        clock = clocks.setdefault(step.lane, {})
        for name in step.takes:
            for other, entry in left.get(name, {}).items():
                clock[other] = max(clock.get(other, 0), entry)
        if step.is_counted:
            clock[step.lane] = clock.get(step.lane, 0) + 1
        if step.leaves is not None:
            left[step.leaves] = dict(clock)
        if step.is_counted:
            yield step, clock


def known_to_last(steps: Sequence[ClockStep]) -> list[int]:
    """Return the indices of the steps in the past of the last one, and itself: those that its clock would count. Costs one walk, not a clock each."""
    latest: dict[str, int] = {}
    left: dict[Hashable, int] = {}
    causes: list[list[int]] = []
    for index, step in enumerate(steps):
        causes.append([left[name] for name in step.takes if name in left])
        if step.lane in latest:
            causes[-1].append(latest[step.lane])
        latest[step.lane] = index
        if step.leaves is not None:
            left[step.leaves] = index
    known: set[int] = set()
    waiting = [len(steps) - 1] if steps else []
    while waiting:
        index = waiting.pop()
        if index not in known:
            known.add(index)
            waiting += causes[index]
    return sorted(known)


def shiviz_log(steps: Iterable[ClockStep]) -> str:
    """The steps that count as a log of ShiViz."""
    names = _Names()
    lines = [SHIVIZ_PARSER, ""]
    for step, clock in clocked(steps):
        named = {names.of(lane): entry for lane, entry in clock.items()}
        lines += [f"{names.of(step.lane)} {json.dumps(named)}", clean(step.words)]
    return "\n".join(lines) + "\n"


class _Names:
    """Lanes by names without blanks, each its own."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: dict[str, None] = {}

    def of(self, lane: str) -> str:
        """The name of a lane; the same one every time."""
        found = self._names.get(lane)
        if found is None:
            plain = re.sub(r"[\s{}\"\\]", "_", clean(lane)) or "_"
            found = plain
            while found in self._taken:
                found = f"{found}_"
            self._names[lane] = found
            self._taken[found] = None
        return found
