"""Backlog of a host in a logged fleet: data kept in memory because the store has not taken it yet, and its limits.

Two things grow while the store is slow or unavailable: sender logs in the agents, since basic checkpoints are deferred, and forced checkpoints in the
writer's queue. In koo-toueg fleets the logs of agents that no round asks grow too.

Agents run as long as there is room. When there is none they *pause*: they take no turn and send nothing, until the store takes checkpoints again, or
a round has saved them. Heartbeats report the pause.
"""

LOGS_BYTES_MAX = 256 * 1024 * 1024
"""Largest size of sender logs in the agents of one host, in addition to the writer's queue (`checkpoint_writer.py`). A host without this much memory
could not hold its agents' states twice either, as every checkpoint requires."""


class Backlog:
    """Backlog of one host under one plan. All parts of the host core may change it.

    Attributes:
        log_bytes: size of all sender logs in the agents.
        is_busy, problem: last report on the store (`StoreStatusChanged`); at the start of a plan the store is presumed healthy.
        is_full: the writer's queue is full.
        is_standing: the agents are paused.
        save_ns: time when all agents take checkpoints because their logs are too large although the store is healthy, or None.
    """

    __slots__ = ("is_busy", "is_full", "is_standing", "log_bytes", "problem", "save_ns")

    def __init__(self) -> None:
        self.log_bytes = 0
        self.save_ns: int | None = None
        self.is_busy = self.is_full = self.is_standing = False
        self.problem = ""

    @property
    def has_too_many_logs(self) -> bool:
        return self.log_bytes > LOGS_BYTES_MAX

    def watched(self, *, is_busy: bool, is_full: bool, problem: str) -> None:
        """Record the state of the store."""
        self.is_busy, self.is_full, self.problem = is_busy, is_full, problem

    def save_at(self, time_ns: int | None) -> None:
        """Set when all agents take checkpoints, or None."""
        self.save_ns = time_ns

    def stand(self, *, is_standing: bool) -> None:
        """Record whether the agents are paused."""
        self.is_standing = is_standing

    def must_pause(self, *, is_autonomous: bool) -> bool:
        """Return whether the agents must pause; once they are paused, whether they must stay so."""
        if self.is_full:
            return True
        if is_autonomous:
            return self.is_busy and (self.is_standing or self.log_bytes > LOGS_BYTES_MAX)
        return self.log_bytes > (LOGS_BYTES_MAX // 2 if self.is_standing else LOGS_BYTES_MAX)
