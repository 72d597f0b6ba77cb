"""Seeded bugs of dead letters and operator commands."""

from typing import Any

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host import host_operator_commands
from snapline.agent_runtime.host.inputs import Inputs
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.messages.agent_commands import DROP, DeadLetterCommand, read_dead_letter_command
from snapline.messages.client_requests import ACCEPTED, InputOutcome
from snapline.sim.world.product_patches import Patch


def handled_letter_stays() -> list[Patch]:
    """Keep a dead letter whose retry has succeeded."""

    def handled(agent: LocalAgent, payload: bytes) -> None:
        """Do nothing."""

    return [(host_operator_commands, "handled", handled)]


def numbers_not_saved() -> list[Patch]:
    """Save no numbers of dead letters in checkpoints."""

    def saved(self: LocalAgent) -> None:
        return None

    return [(LocalAgent, "_saved_numbers", saved)]


def dropped_counts_as_handled() -> list[Patch]:
    """Count a dropped dead letter as handled."""
    original = host_operator_commands.settled

    def settled(agent: LocalAgent, entry: Any) -> bytes | None:
        payload = original(agent, entry)
        agent.dead_letter_count -= payload == b""
        return payload

    return [(host_operator_commands, "settled", settled)]


def known_by_number_alone() -> list[Patch]:
    """Apply a command to any dead letter that has its number at that time."""

    def place_of(agent: LocalAgent, word: DeadLetterCommand) -> int | None:
        return agent.dead_letter_numbers.index(word.number) if word.number in agent.dead_letter_numbers else None

    return [(host_operator_commands, "_place_of", place_of)]


def command_not_logged() -> list[Patch]:
    """Drop a dead letter at once when a command arrives, without logging the command."""
    original = Inputs._take

    def take(self: Inputs, event: ev.InputsOffered, place: int, offered: ev.OfferedInput) -> InputOutcome | None:
        agent = self._shared.agents.get(offered.agent)
        if agent is None or not offered.is_operator_command or read_dead_letter_command(offered.payload).verb != DROP:
            return original(self, event, place, offered)
        host_operator_commands.settled(agent, (None, "", offered.payload))
        return InputOutcome(ACCEPTED)

    return [(Inputs, "_take", take)]
