"""Vector clocks, and logs of events for ShiViz.

The clocks are Fidge and Mattern's (1988): an event raises its lane's own entry by one, and takes the entrywise maximum with the clocks that it
*takes*: a receive takes the clock that its send *left*. Events that are not counted pass clocks on without raising them. So events
omitted from a picture still connect the shown ones, whose entries are 1, 2, 3 … without gaps, as ShiViz requires.

A log has two lines for each event: its lane with the clock as JSON, and the description of the event. The first line of the file is
the regular expression that parses events; the second could separate several executions and is empty.
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
        leaves: name under which later steps can take its clock.
        takes: names of the clocks that it takes, if they were left.
        is_counted: False: it passes clocks on and is not an event of its own.
    """

    lane: str
    words: str = ""
    leaves: Hashable = None
    takes: tuple[Hashable, ...] = ()
    is_counted: bool = True


def with_clocks(steps: Iterable[ClockStep]) -> Iterator[tuple[ClockStep, Clock]]:
    """Yield each counted step with its clock."""
    clocks: dict[str, Clock] = {}
    left: dict[Hashable, Clock] = {}
    for step in steps:
        clock = clocks.setdefault(step.lane, {})
        for name in step.takes:
            for lane, entry in left.get(name, {}).items():
                clock[lane] = max(clock.get(lane, 0), entry)
        if step.is_counted:
            clock[step.lane] = clock.get(step.lane, 0) + 1
        if step.leaves is not None:
            left[step.leaves] = dict(clock)
        if step.is_counted:
            yield step, clock


def past_of_last(steps: Sequence[ClockStep]) -> list[int]:
    """Return the indices of the last step and of the steps in its past, which its clock would count. One pass, without clocks for each step."""
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
    """Return the counted steps as a log for ShiViz."""
    names = _Names()
    lines = [SHIVIZ_PARSER, ""]
    for step, clock in with_clocks(steps):
        named = {names.of(lane): entry for lane, entry in clock.items()}
        lines += [f"{names.of(step.lane)} {json.dumps(named)}", clean(step.words)]
    return "\n".join(lines) + "\n"


class _Names:
    """Unique names without blanks for lanes."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: dict[str, None] = {}

    def of(self, lane: str) -> str:
        """Return the name of a lane, always the same one."""
        unique = self._names.get(lane)
        if unique is None:
            plain = re.sub(r"[\s{}\"\\]", "_", clean(lane)) or "_"
            unique = plain
            while unique in self._taken:
                unique = f"{unique}_"
            self._names[lane] = unique
            self._taken[unique] = None
        return unique
