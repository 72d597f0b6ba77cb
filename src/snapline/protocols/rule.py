"""Base class of all protocols in which agents take checkpoints on their own: uncoordinated and communication-induced.

Theory of operation
-------------------
Agents take *basic* checkpoints by their policy. A rule adds *forced* checkpoints: it stamps each message with a piggyback and, before a
message's turn, decides whether a checkpoint must be taken first. There are no control messages, and agents do not wait. A rule holds the
protocol's state of one agent; it works with ordinals, not ids, and reads piggyback bytes, not messages.

A rule is part of the agent's state: every checkpoint holds its image, and a rollback restores it. Survivors keep their rules. On a
consistent cut the rules are then in a state that an execution without failures could have, so no protocol needs to handle recoveries. The
image of a checkpoint is the rule *after* the checkpoint action, and the constructor takes the action of the initial checkpoint. A
checkpoint counts for the rule at once, but for recovery only when it is durable: rollbacks may go further, but stay consistent.

The caller's duties, per message that waits for its turn:

1. Call `forces(sender, piggyback)`. If it returns True, call `checkpoint(piggyback)`, and save the agent's state together with `freeze()`.
   *This is the rule that safety depends on:* test, checkpoint, then merge. A merge before the test hides the change
   that the test looks for; a merge before the checkpoint puts it into the wrong interval.
2. Call `receive(sender, piggyback)`, then run the turn.
3. Call `send(to)` once for every message, in the order of each channel. The message keeps that piggyback permanently: it is logged and
   delivered again with it.
4. Call `checkpoint()` for a basic checkpoint between turns.
5. If `checkpoints_after_sends`, take a checkpoint after all sends of a turn (in a trace, where turns are not known: after each
   send).
6. After a recovery, call `restore` for the agents rolled back, and `forces` and `receive` for the messages delivered again.

Carries G6: no useless checkpoint; for the RDT protocols also no untracked dependency.

Uncoordinated checkpointing
---------------------------
`UncoordinatedRule` never forces a checkpoint. The protocol does nothing while the fleet runs. A recovery needs only the *dependency record*
that every checkpoint holds under any protocol: per outgoing channel the last number sent, per incoming channel the last number received. A
set of checkpoints, one per agent, is a consistent cut iff no channel has more received than sent. The numbers in between are in transit
(`recovery.dependency_records`). The coordinator computes the recovery line from these records, and senders deliver messages in transit
again from their logs.

The disadvantage: checkpoints may be *useless* (members of no consistent cut), and a rollback may force further rollbacks, at worst to the
initial states (the domino effect; B. Randell, "System Structure for Software Fault Tolerance", 1975). Rules that force checkpoints prevent
this. `UncoordinatedRule` does not ensure G6.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from snapline.errors import ProtocolError, UsageError
from snapline.protocols.piggyback import ORDINALS_MAX, ImageReader


class CheckpointRule(ABC):
    """State of one agent in a protocol in which agents take checkpoints on their own. Not thread-safe; does no I/O.

    Attributes:
        name: the protocol's name in configuration.
        checkpoints_after_sends: the caller also takes a checkpoint after the sends of a turn.
        agent: this agent's ordinal.
    """

    __slots__ = ("agent",)

    name: ClassVar[str]
    checkpoints_after_sends: ClassVar[bool] = False

    def __init__(self, agent: int, agents: int = 1) -> None:
        """Create the rule in its state after the initial checkpoint.

        Args:
            agent: the agent's ordinal.
            agents: number of agents, if known; more may join. No decision depends on it.

        Raises:
            UsageError: the ordinal is out of range.
        """
        if not 0 <= agent < max(agents, agent + 1) <= ORDINALS_MAX:
            raise UsageError(f"agent {agent} of {agents}: ordinals lie between 0 and {ORDINALS_MAX - 1}")
        self.agent = agent

    @abstractmethod
    def checkpoint(self, cause: bytes | None = None) -> None:
        """Update the rule for a checkpoint that is taken now.

        Args:
            cause: received piggyback of the message that forces it; None for a basic checkpoint.
        """

    @abstractmethod
    def send(self, to: int) -> bytes:
        """Return the piggyback of the next message to `to`. Call it once per message, in the order of the channel."""

    def send_full(self, to: int) -> bytes:
        """Return a piggyback with all entries, so that the channel need not be FIFO.

        It is longer than the piggyback of `send` and is read in the same way.
        """
        return self.send(to)

    @abstractmethod
    def forces(self, sender: int, piggyback: bytes) -> bool:
        """Return whether a checkpoint must be taken before this message's turn. The call changes nothing.

        Raises:
            ProtocolError: the piggyback is not one of this protocol.
        """

    @abstractmethod
    def receive(self, sender: int, piggyback: bytes) -> None:
        """Merge the message's piggyback into the rule, right before the message's turn.

        Raises:
            ProtocolError: the piggyback is not one of this protocol.
        """

    @abstractmethod
    def freeze(self) -> bytes:
        """Return an image of the whole state, to be stored with the checkpoint."""

    @classmethod
    def restore(cls, agent: int, image: bytes) -> Self:
        """Return the rule of `agent` in the frozen state.

        Raises:
            DamagedDataError: the image is not one of this protocol.
        """
        rule = cls(agent)
        rule._thaw(ImageReader(image))
        return rule

    @abstractmethod
    def _thaw(self, image: ImageReader) -> None:
        """Replace the whole state by the state in `image`."""


class SilentRule(CheckpointRule):
    """Base class of rules with empty piggybacks, and without state unless a subclass adds it."""

    __slots__ = ()

    def checkpoint(self, cause: bytes | None = None) -> None:
        pass

    def send(self, to: int) -> bytes:
        return b""

    def forces(self, sender: int, piggyback: bytes) -> bool:
        self._check_silence(sender, piggyback)
        return False

    def receive(self, sender: int, piggyback: bytes) -> None:
        self._check_silence(sender, piggyback)

    def freeze(self) -> bytes:
        return b""

    def _thaw(self, image: ImageReader) -> None:
        image.end()

    def _check_silence(self, sender: int, piggyback: bytes) -> None:
        if piggyback:
            raise ProtocolError(
                f"{self.name} has no piggybacks, but agent {sender} sent one of {len(piggyback)} bytes; "
                "do both run the same protocol?"
            )


class UncoordinatedRule(SilentRule):
    """Rule that never forces a checkpoint; its piggybacks are empty, and it has no state."""

    __slots__ = ()

    name: ClassVar[str] = "uncoordinated"
