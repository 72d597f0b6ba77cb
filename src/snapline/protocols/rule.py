"""Base class of the uncoordinated and communication-induced protocols, in which agents take checkpoints independently.

Theory of operation
-------------------
Agents take *basic* checkpoints according to their policy. A rule adds *forced* checkpoints. A rule attaches data (a piggyback) to each
message, and decides before each turn whether the turn's message requires a checkpoint first. The protocols use no control messages, and
agents never wait. A rule holds the protocol's state for one agent. A rule identifies agents by ordinals instead of ids, and reads only
piggybacks, not the messages themselves.

A rule is part of the agent's state: every checkpoint contains the rule's encoded state, and a rollback restores it. Survivors keep their
rules. So on a consistent cut, the rules of all agents are in a state that an execution without failures could have reached. No protocol
needs special code for recoveries. The state saved in a checkpoint includes the effect of this checkpoint on the rule. The constructor
records the initial checkpoint. The rule counts a checkpoint immediately, but a recovery uses it only after it is durable. So a rollback may
go further back than the rule assumes, but the cut remains consistent.

The caller has the following duties for each message that is about to be consumed.

1. Call `forces(sender, piggyback)`. If `forces` returns True, call `checkpoint(piggyback)`, and save the agent's state together with the
   result of `freeze()`. *Safety depends on this order:* call `forces`, then `checkpoint`, then `receive`. If `receive` merged the piggyback
   first, `forces` could no longer detect the change. If `receive` preceded `checkpoint`, the change would belong to the wrong interval.
2. Call `receive(sender, piggyback)`, then run the turn.
3. Call `send(to)` once for every message, in the order of each channel. The message keeps its piggyback permanently, even when it is logged
   and delivered again.
4. Call `checkpoint()` for a basic checkpoint between turns.
5. If `checkpoints_after_sends` is True, take a checkpoint after all sends of a turn. In a trace, which does not show turns, take a
   checkpoint after each send.
6. After a recovery, call `restore` for the agents that were rolled back. Treat messages that are delivered again like new messages.

All protocols that force checkpoints ensure guarantee G6: no checkpoint is useless. The RDT protocols also ensure that there are no
untracked dependencies.

Uncoordinated checkpointing
---------------------------
`UncoordinatedRule` never forces a checkpoint. The protocol does no work while the fleet runs. A recovery needs only the *dependency
record*, which every checkpoint holds under any protocol. The record contains the number of the last message sent on each outgoing channel
and received on each incoming channel. A set of checkpoints, one per agent, is a consistent cut if and only if on every channel the last
number received is not higher than the last number sent. The messages with numbers between the last received and the last sent number are in
transit (`recovery.dependency_records`). The coordinator computes the recovery line from these records, and senders resend messages in
transit from their logs.

The disadvantage of uncoordinated checkpointing is that checkpoints may be *useless*, which means that they are part of no consistent cut. A
rollback may force further rollbacks, in the worst case to the initial states (the domino effect; B. Randell, "System Structure for Software
Fault Tolerance", 1975). Rules that force checkpoints prevent the domino effect. `UncoordinatedRule` does not ensure G6.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from snapline.errors import ProtocolError, UsageError
from snapline.protocols.piggyback import ORDINALS_MAX, ImageReader


class CheckpointRule(ABC):
    """State that a protocol with independent checkpoints keeps for one agent. The object is not thread-safe and does no I/O.

    Attributes:
        checkpoints_after_sends: whether the caller must also take a checkpoint after the sends of a turn.
        agent: this agent's ordinal.
    """

    __slots__ = ("agent",)

    name: ClassVar[str]
    checkpoints_after_sends: ClassVar[bool] = False

    def __init__(self, agent: int, agents: int = 1) -> None:
        """Create the rule in its state immediately after the agent's initial checkpoint.

        Args:
            agent: the agent's ordinal.
            agents: number of agents, if known. More agents may join. The number does not affect the rule's decisions.

        Raises:
            UsageError: the ordinal is out of range.
        """
        if not 0 <= agent < max(agents, agent + 1) <= ORDINALS_MAX:
            raise UsageError(f"agent {agent} of {agents}: ordinals lie between 0 and {ORDINALS_MAX - 1}")
        self.agent = agent

    @abstractmethod
    def checkpoint(self, cause: bytes | None = None) -> None:
        """Record that the agent is taking a checkpoint now.

        Args:
            cause: piggyback of the message that forces the checkpoint, or None for a basic checkpoint.
        """

    @abstractmethod
    def send(self, to: int) -> bytes:
        """Return the piggyback for the next message to the agent `to`. The caller must call this method once per message, in the order of
        the channel."""

    def send_full(self, to: int) -> bytes:
        """Return a piggyback with all entries, so that the channel need not be FIFO.

        The piggyback is longer than the result of `send`, and receivers read it in the same way.
        """
        return self.send(to)

    @abstractmethod
    def forces(self, sender: int, piggyback: bytes) -> bool:
        """Return whether a checkpoint must be taken before the turn that handles this message. The method does not change the rule.

        Raises:
            ProtocolError: the piggyback is not valid for this protocol.
        """

    @abstractmethod
    def receive(self, sender: int, piggyback: bytes) -> None:
        """Merge the message's piggyback into the rule's state, immediately before the turn that handles the message.

        Raises:
            ProtocolError: the piggyback is not valid for this protocol.
        """

    @abstractmethod
    def freeze(self) -> bytes:
        """Return an encoding of the complete state, to be stored with the checkpoint."""

    @classmethod
    def restore(cls, agent: int, image: bytes) -> Self:
        """Return the rule of the given agent, in the state that the image encodes.

        Raises:
            DamagedDataError: the image is not valid for this protocol.
        """
        rule = cls(agent)
        rule._thaw(ImageReader(image))
        return rule

    @abstractmethod
    def _thaw(self, image: ImageReader) -> None:
        """Replace the complete state with the state that `image` encodes."""


class SilentRule(CheckpointRule):
    """Base class of rules whose piggybacks are empty. The class itself has no state, but subclasses may add some."""

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
    """Rule that never forces a checkpoint. The rule's piggybacks are empty, and it has no state."""

    __slots__ = ()

    name: ClassVar[str] = "uncoordinated"
