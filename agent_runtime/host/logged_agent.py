"""State that a host core keeps of one agent whose messages are logged: its protocol, its log, and when it saves itself.

Used by every protocol but chandy-lamport. The *sender log* holds the messages sent since the agent's last checkpoint and goes into the store with the
next one (docs/protocols.md): so it never has to be kept longer in memory.
"""

from snapline.agent_runtime.host.backlog import Backlog
from snapline.agent_runtime.host.events import Log
from snapline.protocols.koo_toueg import KooTouegCore
from snapline.protocols.policy import PolicyClock
from snapline.protocols.rule import CheckpointRule
from snapline.storage.packs.checkpoint import InTransitMessage


class Tentative:
    """A checkpoint of an undecided round: the last one if the round commits."""

    __slots__ = ("number", "received", "sent")

    def __init__(self, number: int, sent: dict[str, int], received: dict[str, int]) -> None:
        self.number = number
        self.sent = sent
        self.received = received


class LoggedAgent:
    """The part of a `LocalAgent` that chandy-lamport does not need.

    Attributes:
        admitted: the rule has seen the message whose turn is next, or is retried.
        rule: the protocol, where agents checkpoint by themselves; else None.
        rounds: the protocol, where rounds ask for checkpoints (koo-toueg); else None.
        backlog: its host's, where logs count too.
        clock: says when a basic checkpoint is due.
        log, log_messages, log_bytes: sent since the last checkpoint.
        turns: taken since the last checkpoint.
        has_moved: something has happened since the last checkpoint: the next one would differ.
        owed: basis of a checkpoint to be taken before the next turn; "" = none.
        timer_ns: when the host core looks at the clock again, or None.
        sent, received: by channel, the numbers of the last checkpoint.
        tentative: None outside an undecided round.
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
        """Return the protocol's own state, as a checkpoint holds it."""
        core = self.rule or self.rounds
        return core.freeze() if core is not None else b""

    def keep(self, receiver: str, number: int, payload: bytes, piggyback: bytes) -> None:
        """Log a message that leaves: it is kept until a cut has it."""
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
        """Drop the log for this receiver: no line that is still to be found holds it, so nothing sent to it is needed."""
        messages = self.log.pop(receiver, ())
        size = sum(len(message.payload) + len(message.piggyback) for message in messages)
        self.log_messages -= len(messages)
        self.log_bytes -= size
        self.backlog.log_bytes -= size
        # A new table: the one before stands in a checkpoint that may still wait to be written.
        self.sent = {other: number for other, number in self.sent.items() if other != receiver}

    def owe(self, basis: str) -> None:
        """Request a checkpoint before the next turn. In rounds the agent does not decide."""
        if self.rule is not None:
            self.owed = self.owed or basis

    def settle(self, sent: dict[str, int], received: dict[str, int]) -> None:
        """Make a checkpoint with these numbers the agent's last one; the log went with it."""
        self.sent, self.received = sent, received
        self.drop_log()
        self.turns = 0
        self.has_moved = False
        self.owed = ""

    def drop_log(self) -> None:
        """Drop the log: it has gone with a checkpoint, or with the agent."""
        self.backlog.log_bytes -= self.log_bytes
        self.log, self.log_messages, self.log_bytes = {}, 0, 0
