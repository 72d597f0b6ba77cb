"""The base of every protocol in which agents checkpoint by themselves: uncoordinated and communication-induced.

Theory of operation
-------------------
Agents take *basic* checkpoints by their policy. A rule adds *forced* ones: it stamps each message with a
piggyback and, before a message's turn, decides whether a checkpoint must be taken first. No control messages, no
waiting. A rule is the protocol's state of one agent; it knows ordinals, not ids, and reads bytes, not messages.

A rule is part of the agent's state: every checkpoint holds its image, and a rollback restores it. Survivors keep theirs.
On a consistent cut the rules are then in a state that an execution without failures could have, so no protocol needs to handle recoveries. The
image of a checkpoint is the rule *after* the checkpoint action, and the constructor takes the action of the initial checkpoint. A checkpoint
counts for the rule at once, but for recovery only when it is durable: rollbacks may go further, but stay consistent.

The caller's duties, per message that waits for its turn:

1. `forces(sender, piggyback)`. If so, `checkpoint(piggyback)`, and save the agent's state together with `freeze()`.
   *This is the rule that safety depends on:* test, checkpoint, then merge. A merge before the test hides the change
   that the test looks for; a merge before the checkpoint puts it into the wrong interval.
2. `receive(sender, piggyback)`, then the turn.
3. `send(to)` once for every message, in the order of each channel. The message keeps that piggyback for life: it is
   logged and delivered again with it.
4. A basic checkpoint between turns is `checkpoint()`.
5. If `checkpoints_after_sends`, a checkpoint after all sends of a turn (in a trace, where turns are not known: after each
   send).
6. After a recovery: `restore` of those rolled back, `forces` and `receive` for the messages delivered again.

Carries G6: no useless checkpoint; for the RDT protocols also no untracked dependency.

Uncoordinated checkpointing
---------------------------
`UncoordinatedRule` never forces a checkpoint. The protocol does nothing while the fleet runs. A recovery needs only the *dependency record*
that every checkpoint holds under any protocol: per outgoing channel the last number sent, per incoming channel the last number received. A
set of checkpoints, one per agent, is a consistent cut iff no channel has more received than sent. The numbers in between are in transit
(`recovery.dependency_records`). The coordinator computes the recovery line from these records, and senders deliver messages in transit
again from their logs.

The price: checkpoints may be *useless*, members of no consistent cut, and a rollback may force further ones, at worst
to the initial states (the domino effect; B. Randell, "System Structure for Software Fault Tolerance", 1975). Rules that force
checkpoints prevent that. This one does not ensure G6.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from snapline.errors import ProtocolError, UsageError
from snapline.protocols.piggyback import ORDINALS_MAX, ImageReader


class CheckpointRule(ABC):
    """One agent's part of a protocol in which agents checkpoint by themselves. Not thread-safe; no I/O.

    Attributes:
        name: the protocol's name in configuration.
        checkpoints_after_sends: the caller also takes a checkpoint after the sends of a turn.
        agent: this agent's ordinal.
    """

    __slots__ = ("agent",)

    name: ClassVar[str]
    checkpoints_after_sends: ClassVar[bool] = False

    def __init__(self, agent: int, agents: int = 1) -> None:
        """Start as after the initial checkpoint.

        Args:
            agent: the own ordinal.
            agents: number of agents, if known; more may join. No decision depends on it.

        Raises:
            UsageError: the ordinal is out of range.
        """
        if not 0 <= agent < max(agents, agent + 1) <= ORDINALS_MAX:
            raise UsageError(f"agent {agent} of {agents}: ordinals lie between 0 and {ORDINALS_MAX - 1}")
        self.agent = agent

    @abstractmethod
    def checkpoint(self, cause: bytes | None = None) -> None:
        """The checkpoint action.

        Args:
            cause: received piggyback of the message that forces it; None for a basic checkpoint.
        """

    @abstractmethod
    def send(self, to: int) -> bytes:
        """Return the piggyback of the next message to `to`. Call it once per message, in the order of the channel."""

    def send_full(self, to: int) -> bytes:
        """Return a piggyback with all entries, so that the channel need not be FIFO. Longer than that of `send`, read in the same way."""
        return self.send(to)

    @abstractmethod
    def forces(self, sender: int, piggyback: bytes) -> bool:
        """Return whether a checkpoint must be taken before this message's turn. Changes nothing.

        Raises:
            ProtocolError: the piggyback is not one of this protocol.
        """

    @abstractmethod
    def receive(self, sender: int, piggyback: bytes) -> None:
        """Merge what the message brings, right before its turn.

        Raises:
            ProtocolError: the piggyback is not one of this protocol.
        """

    @abstractmethod
    def freeze(self) -> bytes:
        """An image of the whole state, to be kept with the checkpoint."""

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
        """Replace the whole state by what was frozen."""


class SilentRule(CheckpointRule):
    """A rule that sends its peers nothing: no piggyback, and no state unless a subclass adds it."""

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
    """Never forces a checkpoint; empty piggybacks, no state."""

    __slots__ = ()

    name: ClassVar[str] = "uncoordinated"
