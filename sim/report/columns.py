"""Columns of a run's space-time diagram.

Every event has its own column, and so has every start and end of a host, an epoch or a fault. The axis shows times but is not
linear, so that a burst of messages stays readable and a pause of seconds takes no space.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from snapline.diagrams.scene import Place
from snapline.sim.report.formatting import seconds
from snapline.sim.result import Result
from snapline.sim.world.recording import Recording


class Columns:
    """Mapping of positions and times to columns.

    Attributes:
        times: times of the window's events, never decreasing.
        window: start and end time of the window; extends to the start or end of the run if the window reaches it.
        bounds: other times in the window that have a column, ascending and unique.
    """

    def __init__(self, recording: Recording, result: Result, first: int, last: int) -> None:
        self._first = first
        self.times: list[int] = []
        for timed in recording.events[first : last + 1]:
            self.times.append(max(timed.t_ns, self.times[-1] if self.times else 0))
        start_ns, end_ns = (self.times[0] if first else 0), (self.times[-1] if self.times else 0)
        if last == len(recording.events) - 1:
            end_ns = max(end_ns, result.virtual_ns, *(violation.t_ns for violation in result.violations[:1]))
        self.window = (start_ns, end_ns)
        times = [time_ns for time_ns in _bounds(recording, result) if start_ns <= time_ns <= end_ns]
        self.bounds = sorted(dict.fromkeys([start_ns, *times, end_ns]))

    @property
    def count(self) -> int:
        return len(self.times) + len(self.bounds)

    def of_time(self, time_ns: int) -> int:
        """Return the column of a time, before all events at this time."""
        return bisect_left(self.times, time_ns) + bisect_left(self.bounds, time_ns)

    def of_position(self, position: Place) -> Place:
        """Return the column of a position; positions outside the window map to columns outside."""
        index = int(position) - self._first
        if index < 0:
            return -1
        if index >= len(self.times):
            return self.count + 1
        return index + bisect_right(self.bounds, self.times[index])

    def ticks(self, least: float) -> Iterator[tuple[Place, str]]:
        """Yield columns and their times, at least `least` columns apart; two columns of one time get one tick."""
        reached = -1 - least
        for time_ns in sorted(dict.fromkeys([*self.bounds, *self.times])):
            place = self.of_time(time_ns)
            if place - reached >= least:
                reached = place
                yield place, seconds(time_ns)


def _bounds(recording: Recording, result: Result) -> Iterator[int]:
    for host in recording.hosts:
        yield from (host.from_ns, host.until_ns)
    for epoch in recording.epochs.values():
        yield from (epoch.begun_ns, epoch.ended_ns)
    for fault in result.faults:
        yield from (fault.at_ns, fault.until_ns)
    for violation in result.violations[:1]:
        yield violation.t_ns
