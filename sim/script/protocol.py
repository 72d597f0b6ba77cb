"""Interface of a protocol to the host of a script: its cores, its commands, and hooks that do nothing by default."""

from abc import ABC, abstractmethod

from snapline.sim.script.agent import Image, ScriptedAgent
from snapline.sim.script.message_history import ScriptedMessage
from snapline.sim.script.script_text import ScriptCommand, Verb


class ScriptedProtocol(ABC):
    """Protocol part of a script. `ScriptedFleet` calls it as the duties of the cores require.

    Attributes:
        keeps_survivors: agents that have not failed keep their live state if the line allows it.
        has_mailboxes: messages wait in a mailbox for a turn; otherwise they are consumed on arrival.
    """

    keeps_survivors = True
    has_mailboxes = True

    @abstractmethod
    def verbs(self) -> dict[str, Verb]:
        """Return the protocol's additional commands."""

    @abstractmethod
    def make_core(self, name: str) -> Image:
        """Make the core of a new agent and return the agent's initial checkpoint."""

    @abstractmethod
    def restore_core(self, agent: ScriptedAgent, image: Image) -> None:
        """Restore the core of an agent that was rolled back to `image`."""

    @abstractmethod
    def recover(self, failed: list[str]) -> None:
        """Recover the fleet after these agents have crashed."""

    @abstractmethod
    def show_core(self, agent: ScriptedAgent) -> list[str]:
        """Return a description of the core's state."""

    @abstractmethod
    def mark(self, agent: ScriptedAgent, receiver: str) -> tuple[int, bytes, dict[str, object]]:
        """Return stamp and piggyback of a message that is being sent, and both as fields for the trace."""

    def check_send(self, command: ScriptCommand) -> None:  # noqa: B027  # a hook
        """Raise an error for a `send` that the protocol does not allow."""

    def check_take(self, command: ScriptCommand, channel: tuple[str, str]) -> None:  # noqa: B027  # a hook
        """Raise an error if no message may be taken from the channel now."""

    def arrive(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        """Move a message from its channel to the mailbox."""
        agent.mailbox.append(message)

    def admit(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:  # noqa: B027  # a hook
        """Handle the start of the message's turn."""

    def note_consumed(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:  # noqa: B027  # a hook
        """Handle the consumption of the message by a turn."""

    def note_sends(self, agent: ScriptedAgent) -> None:  # noqa: B027  # a hook
        """Handle the end of a turn that has sent messages."""

    def between_turns(self, agent: ScriptedAgent) -> None:  # noqa: B027  # a hook
        """Carry out duties while no turn is running."""

    def is_blocked(self, agent: ScriptedAgent) -> bool:
        """Return whether the agent may neither take a turn nor send."""
        return False

    def validate(self) -> None:  # noqa: B027  # a hook
        """Call `validate` of every core that has it."""
