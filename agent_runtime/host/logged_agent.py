"""Defines the additional state of each agent in fleets with sender logs, and the host's backlog.

All protocols except chandy-lamport use the module's state. The *sender log* contains the messages that the agent has sent since its last
checkpoint. The next checkpoint writes the sender log to the store (docs/protocols.md), so the log is kept in memory only until then.

The *backlog* is data that has not been written to the store yet. While the store is slow or unavailable, basic checkpoints are deferred, so
sender logs grow. Forced checkpoints accumulate in the writer's queue. In koo-toueg fleets, the sender logs of agents that take part in no
checkpoint round grow too. Agents run as long as the backlog is within its limits. Above the limits the agents *pause*: they start no turn
and send no message until the store accepts checkpoints again, or until a checkpoint round has stored the logs. Heartbeats report the pause.
"""

from snapline.agent_runtime.host.host_events import Log
from snapline.protocols.koo_toueg import KooTouegCore
from snapline.protocols.policy import PolicyClock
from snapline.protocols.rule import CheckpointRule
from snapline.storage.packs.checkpoint import InTransitMessage

LOGS_BYTES_MAX = 256 * 1024 * 1024
"""Largest total size of the sender logs in one host's agents, not counting the writer's queue (`checkpoint_writer.py`). A host needs at
least this much spare memory anyway, since each checkpoint needs a second copy of a state."""


class Backlog:
    """Backlog of one host under one plan: data that is not in the store yet. All parts of the host core may change the backlog.

    Attributes:
        log_bytes: total size of the sender logs of all agents.
        is_busy, problem: last reported status of the store (`StoreStatusChanged`). At the start of a plan, the store is assumed to work.
        is_full: whether the writer's queue is full.
        is_standing: whether the agents are paused.
        save_ns: time at which all agents must take checkpoints because their logs are too large although the store works, or None if no
            such checkpoints are due.
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
        """Record the reported status of the store."""
        self.is_busy, self.is_full, self.problem = is_busy, is_full, problem

    def save_at(self, time_ns: int | None) -> None:
        """Set or clear the time at which all agents must take checkpoints."""
        self.save_ns = time_ns

    def stand(self, *, is_standing: bool) -> None:
        """Record whether the agents are paused."""
        self.is_standing = is_standing

    def must_pause(self, *, is_autonomous: bool) -> bool:
        """Return whether the agents must pause or, if they are already paused, must stay paused."""
        if self.is_full:
            return True
        if is_autonomous:
            return self.is_busy and (self.is_standing or self.log_bytes > LOGS_BYTES_MAX)
        return self.log_bytes > (LOGS_BYTES_MAX // 2 if self.is_standing else LOGS_BYTES_MAX)


class Tentative:
    """A checkpoint taken in a round that has neither committed nor aborted. If the round commits, this checkpoint becomes the agent's last
    checkpoint."""

    __slots__ = ("number", "received", "sent")

    def __init__(self, number: int, sent: dict[str, int], received: dict[str, int]) -> None:
        self.number = number
        self.sent = sent
        self.received = received


class LoggedAgent:
    """Additional state of one agent in fleets with sender logs.

    Attributes:
        admitted: whether the protocol rule has already processed the message of the next turn, which may be a retry.
        rule: protocol rule if the agent checkpoints independently, otherwise None.
        rounds: protocol core if the agent checkpoints in rounds (koo-toueg), otherwise None.
        backlog: backlog of the host, which includes this agent's log.
        clock: determines when a basic checkpoint is due.
        log, log_messages, log_bytes: messages sent since the last checkpoint, with their number and total size.
        turns: number of turns since the last checkpoint.
        has_moved: whether the agent has changed since the last checkpoint.
        owed: reason for the checkpoint that must precede the next turn, or "" if no checkpoint is due.
        timer_ns: time at which the host core will query `clock` again, or None.
        sent, received: sequence numbers in the last checkpoint, by channel.
        tentative: tentative checkpoint of an undecided round, or None.
    """

    __slots__ = (
        *(
            "admitted",
            "backlog",
            "clock",
            "has_moved",
            "log",
            "log_bytes",
            "log_messages",
            "owed",
            "received",
            "rounds",
            "rule",
            "sent",
        ),
        *("tentative", "timer_ns", "turns"),
    )

    def __init__(
        self, backlog: Backlog, clock: PolicyClock, rule: CheckpointRule | None, rounds: KooTouegCore | None
    ) -> None:
        self.admitted = False
        self.backlog = backlog
        self.clock = clock
        self.rule = rule
        self.rounds = rounds
        self.log: Log = {}
        self.log_messages = 0
        self.log_bytes = 0
        self.turns = 0
        self.has_moved = False
        self.owed = ""
        self.timer_ns: int | None = None
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.tentative: Tentative | None = None

    def image(self) -> bytes:
        """Return the protocol's encoded state for a checkpoint."""
        core = self.rule or self.rounds
        return core.freeze() if core is not None else b""

    def keep(self, receiver: str, number: int, payload: bytes, piggyback: bytes) -> None:
        """Add a sent message to the sender log, which keeps the message until a checkpoint stores it."""
        messages = self.log.get(receiver)
        if messages is None:
            messages = self.log[receiver] = []
        messages.append(InTransitMessage(number, 0, payload, piggyback))
        size = len(payload) + len(piggyback)
        self.log_messages += 1
        self.log_bytes += size
        self.backlog.log_bytes += size
        self.has_moved = True

    def forget(self, receiver: str) -> None:
        """Drop the logged messages to a receiver that has left. These messages are not needed, because no future recovery line contains the
        receiver."""
        messages = self.log.pop(receiver, ())
        size = sum(len(message.payload) + len(message.piggyback) for message in messages)
        self.log_messages -= len(messages)
        self.log_bytes -= size
        self.backlog.log_bytes -= size
        # a new table, since a checkpoint that is not written yet may refer to the previous table
        self.sent = {other: number for other, number in self.sent.items() if other != receiver}

    def owe(self, basis: str) -> None:
        """Request a checkpoint before the agent's next turn. If the agent checkpoints in rounds, the request has no effect, because the
        coordinator decides when the agent checkpoints."""
        if self.rule is not None:
            self.owed = self.owed or basis

    def settle(self, sent: dict[str, int], received: dict[str, int]) -> None:
        """Record that the agent's last checkpoint contains these sequence numbers and the sender log."""
        self.sent, self.received = sent, received
        self.drop_log()
        self.turns = 0
        self.has_moved = False
        self.owed = ""

    def drop_log(self) -> None:
        """Drop the sender log because a checkpoint contains it or because the agent has left."""
        self.backlog.log_bytes -= self.log_bytes
        self.log, self.log_messages, self.log_bytes = {}, 0, 0
