"""Counters of a run."""


class RunCounters:
    """Counters of one run.

    Attributes:
        turns: number of turns ended so far. last_turn_ns: time of the last end. handled: turns for a message, a timer or an input.
        busy_ns: CPU time that hosts spent.
        counts: other counters, by name.
    """

    def __init__(self) -> None:
        self.turns = self.handled = self.last_turn_ns = self.busy_ns = 0
        self.counts: dict[str, float] = {}

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def raise_to(self, name: str, value: float) -> None:
        """Raise a counter to a value, if it is lower."""
        self.counts[name] = max(self.counts.get(name, 0), value)

    def on_turn(self, now_ns: int, what: str) -> None:
        """Count a successful turn."""
        self.turns += 1
        self.handled += what in ("message", "timer", "input")
        self.last_turn_ns = now_ns

    def on_saved(self, took_ns: int) -> None:
        """Count a durable checkpoint: of all agents together, or of one agent under an autonomous protocol."""
        self.count("checkpoints_saved")
        self.count("saving_s", took_ns / 1e9)
