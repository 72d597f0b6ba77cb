"""Counters of a replica: proposals, reads, ticks and how long commits take."""

from snapline.coordinator.raft.outcomes import Committed, Outcome, Rejected, Unknown
from snapline.telemetry.metrics import Distribution

LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets of commit latency; the last bucket has none."""


class Counters:
    """Counts so far. `commits_s`: durations of commits."""

    def __init__(self) -> None:
        self.proposals = self.committed = self.rejected = self.unknown = 0
        self.barriers = self.reads = 0
        self.ticks = self.tick_errors = 0
        self.tick_s_max = 0.0
        """Duration of the longest tick, usually because of a dump or a slow disk. It must stay below the election time-out."""
        self.leader_changes = 0
        self.commits_s = Distribution(LATENCY_BUCKETS_S)

    def count_outcome(self, outcome: Outcome, took_s: float) -> None:
        match outcome:
            case Committed():
                self.committed += 1
                self.commits_s.observe(took_s)
            case Rejected():
                self.rejected += 1
            case Unknown():
                self.unknown += 1
