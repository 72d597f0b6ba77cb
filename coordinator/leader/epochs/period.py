"""The periodic trigger: when the next regular epoch is due.

Due times lie one period apart, from when the fleet began to run. A time that was missed by more than a period is not made up
for. A trigger is skipped if the store fails or is still busy with an epoch: so the period
stretches to a multiple of itself.
"""

from snapline.coordinator.leader.leader_state import LeaderState


class Period:
    """Timer of the periods.

    Attributes:
        next_ns: when the next epoch is due; None: not known.
    """

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self.next_ns: int | None = None

    def stop(self) -> None:
        """Stop, as the fleet does not run: the period begins anew when it does."""
        self.next_ns = None

    def is_over(self) -> bool:
        """Return whether an epoch is due: true once for each period."""
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
        """Return the first due time that is not before `time_ns`; None: not known."""
        period_ns = self._shared.state.image.period_ns
        if not period_ns or self.next_ns is None or self.next_ns >= time_ns:
            return self.next_ns
        return self.next_ns - (self.next_ns - time_ns) // period_ns * period_ns
