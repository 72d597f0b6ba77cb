"""Counters of a run."""


class RunCounters:
    """Counters of one run.

    Attributes:
        turns, last_turn_ns: ended so far, and when. handled: those that were for a message, a timer or an input.
        busy_ns: what hosts spent.
        counts: all others, by name.
    """

    def __init__(self) -> None:
        self.turns = self.handled = self.last_turn_ns = self.busy_ns = 0
        self.counts: dict[str, float] = {}

    def count(self, name: str, amount: float = 1) -> None:
        """Add."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def raise_to(self, name: str, value: float) -> None:
        """Keep the largest value."""
        self.counts[name] = max(self.counts.get(name, 0), value)

    def on_turn(self, now_ns: int, what: str) -> None:
        """A turn has ended well."""
        self.turns += 1
        self.handled += what in ("message", "timer", "input")
        self.last_turn_ns = now_ns

    def on_saved(self, took_ns: int) -> None:
        """A checkpoint is durable: of all agents together, or where they checkpoint on their own, of one."""
        self.count("checkpoints_saved")
        self.count("saving_s", took_ns / 1e9)
