"""What a protocol may add to the host of a script: by default nothing."""

from snapline.sim.script.agent import ScriptedAgent
from snapline.sim.script.book import ScriptedMessage


class Hooks:
    """Called by `ScriptedFleet` at the places that the duties of the cores name."""

    def _arrive(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        """A message comes out of its channel and goes into the mailbox."""
        agent.mailbox.append(message)

    def _admit(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        """The message's turn is about to start."""

    def _note_consumed(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        """A turn has consumed the message."""

    def _note_sends(self, agent: ScriptedAgent) -> None:
        """A turn that sent has ended."""

    def _between_turns(self, agent: ScriptedAgent) -> None:
        """No turn runs: carry out what is owed."""

    def _is_blocked(self, agent: ScriptedAgent) -> bool:
        """May it neither take a turn nor send?"""
        return False

    def _keeps_survivors(self) -> bool:
        """Do agents that have not failed keep their live state where the line allows it?"""
        return True

    def _validate(self) -> None:
        """Call `validate` of every core that has it."""
