"""Interface of a protocol to the host of a script: its cores, its words, and its hooks, empty by default."""

from abc import ABC, abstractmethod

from snapline.sim.script.agent import Image, ScriptedAgent
from snapline.sim.script.book import ScriptedMessage
from snapline.sim.script.text import ScriptCommand
from snapline.sim.script.verbs import Verb


class ScriptedProtocol(ABC):
    """Called by `ScriptedFleet` at the places that the duties of the cores name.

    Attributes:
        keeps_survivors: agents that have not failed keep their live state where the line allows it.
        has_mailboxes: messages arrive, and wait there for a turn; else their arrival is their turn.
    """

    keeps_survivors = True
    has_mailboxes = True

    @abstractmethod
    def verbs(self) -> dict[str, Verb]:
        """Return the additional commands of its fleets."""

    @abstractmethod
    def make_core(self, name: str) -> Image:
        """Make the core of an agent that starts now; returns its initial checkpoint."""

    @abstractmethod
    def restore_core(self, agent: ScriptedAgent, image: Image) -> None:
        """The agent has been set back to `image`: so must its core be."""

    @abstractmethod
    def recover(self, failed: list[str]) -> None:
        """Recover the fleet after these agents have crashed."""

    @abstractmethod
    def show_core(self, agent: ScriptedAgent) -> list[str]:
        """The core's state in words."""

    @abstractmethod
    def mark(self, agent: ScriptedAgent, receiver: str) -> tuple[int, bytes, dict[str, object]]:
        """Stamp and piggyback of a message that leaves now, and both in words."""

    def check_send(self, command: ScriptCommand) -> None:  # noqa: B027  # a hook
        """Refuse a `send` that cannot be here."""

    def check_take(self, command: ScriptCommand, channel: tuple[str, str]) -> None:  # noqa: B027  # a hook
        """Refuse to take a message from that channel now."""

    def arrive(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        """A message comes out of its channel and goes into the mailbox."""
        agent.mailbox.append(message)

    def admit(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:  # noqa: B027  # a hook
        """The message's turn is about to start."""

    def note_consumed(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:  # noqa: B027  # a hook
        """A turn has consumed the message."""

    def note_sends(self, agent: ScriptedAgent) -> None:  # noqa: B027  # a hook
        """A turn that sent has ended."""

    def between_turns(self, agent: ScriptedAgent) -> None:  # noqa: B027  # a hook
        """Carry out what is owed while no turn runs."""

    def is_blocked(self, agent: ScriptedAgent) -> bool:
        """Return whether it may neither take a turn nor send."""
        return False

    def validate(self) -> None:  # noqa: B027  # a hook
        """Call `validate` of every core that has it."""
