"""What a host of a logged fleet keeps in memory because the store has not taken it yet, and when it can keep no more.

Two things grow while the store is slow or dead: sender logs in the agents, since basic checkpoints are put off, and
checkpoints that are taken all the same (forced ones), in the writer's queue. In koo-toueg fleets the logs of agents that no round
asks grow too. Agents go on as long as there is room. When there is none they *stand still*: they take no turn and nothing leaves
them, until the store takes checkpoints again, or a round has saved them. That is never silent: heartbeats say so.
"""

LOGS_BYTES_MAX = 256 * 1024 * 1024
"""Of sender logs in the agents of one host; what the writer's queue may hold comes on top (`checkpoint_writer.py`). A host that has
no room for as much is one that cannot hold its agents' states twice, as every checkpoint needs."""


class Backlog:
    """Of one host under one plan. The parts of the host core change it.

    Attributes:
        log_bytes: of all sender logs in the agents.
        is_busy, problem: as last told (`StoreWatched`); a plan begins with a good opinion.
        is_full: the writer's queue can take no more either.
        is_standing: the agents stand still.
        save_ns: when all agents save themselves, for their logs are too many although the store would take them, or None.
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
        """How it goes with the store."""
        self.is_busy, self.is_full, self.problem = is_busy, is_full, problem

    def save_at(self, time_ns: int | None) -> None:
        """All agents save themselves then."""
        self.save_ns = time_ns

    def stand(self, *, is_standing: bool) -> None:
        """The agents stand still, or go on."""
        self.is_standing = is_standing

    def must_stand(self, *, is_autonomous: bool) -> bool:
        """Whether the agents may go on no longer; once they stand, whether they may not yet."""
        if self.is_full:
            return True
        if is_autonomous:
            return self.is_busy and (self.is_standing or self.log_bytes > LOGS_BYTES_MAX)
        return self.log_bytes > (LOGS_BYTES_MAX // 2 if self.is_standing else LOGS_BYTES_MAX)
