"""The periodic trigger: when the next regular epoch is due.

Due times are one period apart, starting when the fleet begins to run. Missed due times are not made up for. A trigger is skipped if
the store fails or is still storing an epoch, so the interval stretches to a multiple of the period.
"""

from snapline.coordinator.leader.leader_state import LeaderState


class Period:
    """Timer of the periods.

    Attributes:
        next_ns: time when the next epoch is due; None: not known.
    """

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self.next_ns: int | None = None

    def stop(self) -> None:
        """Stop, as the fleet does not run; the period restarts when the fleet does."""
        self.next_ns = None

    def is_over(self) -> bool:
        """Return whether an epoch is due; true once per period."""
        now, period_ns = self._shared.now, self._shared.state.image.period_ns
        if not period_ns:
            return False
        if self.next_ns is None:
            self.next_ns = now + period_ns
        if now < self.next_ns:
            return False
        self.next_ns += period_ns
        if self.next_ns <= now:
            self.next_ns = now + period_ns
        return True

    def first_from(self, time_ns: int) -> int | None:
        """Return the first due time at or after `time_ns`; None: not known."""
        period_ns = self._shared.state.image.period_ns
        if not period_ns or self.next_ns is None or self.next_ns >= time_ns:
            return self.next_ns
        return self.next_ns - (self.next_ns - time_ns) // period_ns * period_ns
