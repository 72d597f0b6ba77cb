"""Base class of all protocols in which agents take checkpoints independently. These are the uncoordinated and the communication-induced
ones.

Theory of operation
-------------------
Agents take *basic* checkpoints according to their policy. A rule adds *forced* checkpoints: it attaches a piggyback to each message, and
before the turn that handles a message, it decides whether a checkpoint must be taken first. There are no control messages, and agents do
not wait. A rule holds the protocol's state for one agent. It uses ordinals instead of ids, and reads only piggybacks, not messages.

A rule is part of the agent's state. Every checkpoint holds the rule's image, and a rollback restores it. Survivors keep their rules. So on
a consistent cut, the rules are in a state that an execution without failures could have reached, and no protocol needs to handle
recoveries. The image in a checkpoint contains the rule *after* the checkpoint was recorded in it, and the constructor records the initial
checkpoint. The rule counts a checkpoint immediately, but a recovery counts it only when it is durable. So rollbacks may go further back,
but remain consistent.

The caller's duties, per message that waits for its turn:

1. Call `forces(sender, piggyback)`. If it returns True, call `checkpoint(piggyback)`, and save the agent's state together with the result
   of `freeze()`. *Safety depends on this order:* test, then checkpoint, then merge. Merging before the test would hide the change that the
   test must detect. Merging before the checkpoint would assign the change to the wrong interval.
2. Call `receive(sender, piggyback)`, then run the turn.
3. Call `send(to)` once for every message, in the order of each channel. The message keeps that piggyback permanently, even when it is
   logged and delivered again.
4. Call `checkpoint()` for a basic checkpoint between turns.
5. If `checkpoints_after_sends` is True, take a checkpoint after all sends of a turn. In a trace, where turns are not known, take one after
   each send.
6. After a recovery, call `restore` for the agents that were rolled back. Call `forces` and `receive` for the messages that are delivered
   again.

Carries G6: no checkpoint is useless. Under the RDT protocols, there are no untracked dependencies either.

Uncoordinated checkpointing
---------------------------
`UncoordinatedRule` never forces a checkpoint. The protocol does nothing while the fleet runs. A recovery needs only the *dependency
record*, which every checkpoint holds under any protocol. It contains the last number sent on each outgoing channel and the last number
received on each incoming channel. A set of checkpoints, one per agent, is a consistent cut if and only if no channel has a received number
that is higher than its sent number. The messages with numbers between the two are in transit (`recovery.dependency_records`). The
coordinator computes the recovery line from these records, and senders resend messages in transit from their logs.

The disadvantage is that checkpoints may be *useless*, which means that they are part of no consistent cut. A rollback may force further
rollbacks, in the worst case to the initial states (the domino effect; B. Randell, "System Structure for Software Fault Tolerance", 1975).
Rules that force checkpoints prevent this. `UncoordinatedRule` does not ensure G6.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from snapline.errors import ProtocolError, UsageError
from snapline.protocols.piggyback import ORDINALS_MAX, ImageReader


class CheckpointRule(ABC):
    """State of one agent under a protocol in which agents take checkpoints independently. It is not thread-safe and does no I/O.

    Attributes:
        name: the protocol's name in configuration.
        checkpoints_after_sends: whether the caller must also take a checkpoint after the sends of a turn.
        agent: this agent's ordinal.
    """

    __slots__ = ("agent",)

    name: ClassVar[str]
    checkpoints_after_sends: ClassVar[bool] = False

    def __init__(self, agent: int, agents: int = 1) -> None:
        """Create the rule in its state after the initial checkpoint.

        Args:
            agent: the agent's ordinal.
            agents: number of agents, if known. More agents may join. No decision depends on this number.

        Raises:
            UsageError: the ordinal is out of range.
        """
        if not 0 <= agent < max(agents, agent + 1) <= ORDINALS_MAX:
            raise UsageError(f"agent {agent} of {agents}: ordinals lie between 0 and {ORDINALS_MAX - 1}")
        self.agent = agent

    @abstractmethod
    def checkpoint(self, cause: bytes | None = None) -> None:
        """Record in the rule that a checkpoint is being taken now.

        Args:
            cause: piggyback of the received message that forces the checkpoint. None for a basic checkpoint.
        """

    @abstractmethod
    def send(self, to: int) -> bytes:
        """Return the piggyback for the next message to `to`. The caller must call this once per message, in the order of the channel."""

    def send_full(self, to: int) -> bytes:
        """Return a piggyback with all entries, so that the channel need not be FIFO.

        It is longer than the result of `send`, and receivers read it in the same way.
        """
        return self.send(to)

    @abstractmethod
    def forces(self, sender: int, piggyback: bytes) -> bool:
        """Return whether a checkpoint must be taken before the turn that handles this message. The call does not change the rule.

        Raises:
            ProtocolError: the piggyback is not valid for this protocol.
        """

    @abstractmethod
    def receive(self, sender: int, piggyback: bytes) -> None:
        """Merge the message's piggyback into the rule, immediately before the turn that handles the message.

        Raises:
            ProtocolError: the piggyback is not valid for this protocol.
        """

    @abstractmethod
    def freeze(self) -> bytes:
        """Return an image of the complete state, to be stored with the checkpoint."""

    @classmethod
    def restore(cls, agent: int, image: bytes) -> Self:
        """Return the rule of `agent` in the state of the image.

        Raises:
            DamagedDataError: the image is not valid for this protocol.
        """
        rule = cls(agent)
        rule._thaw(ImageReader(image))
        return rule

    @abstractmethod
    def _thaw(self, image: ImageReader) -> None:
        """Replace the complete state by the state in `image`."""


class SilentRule(CheckpointRule):
    """Base class of rules whose piggybacks are empty. It has no state, but subclasses may add some."""

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
    """Rule that never forces a checkpoint. Its piggybacks are empty, and it has no state."""

    __slots__ = ()

    name: ClassVar[str] = "uncoordinated"
