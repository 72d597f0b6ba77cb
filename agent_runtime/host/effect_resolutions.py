"""The part of a host core that matches operators' resolutions to the effect that an agent waits for (`messages/agent_commands.py`).

The waiting turn takes one resolution (`durable_turns.py`). Later resolutions have no turn: their senders learn that they came too late.
"""

from itertools import islice

from snapline.agent_runtime.host.local_agent import Entry, LocalAgent
from snapline.messages import inputs as input_messages
from snapline.messages.agent_commands import EffectResolution, is_effect_resolution, read_effect_resolution
from snapline.messages.inputs import REFUSED, InputOutcome
from snapline.storage.log.record import LoggedInput
from snapline.storage.packs.checkpoint import OpenEffect


def find_resolution(agent: LocalAgent, seen: int) -> int | None:
    """Return the place in the mailbox of a resolution of the effect at which the agent waits; the first `seen` were looked at."""
    effects = agent.effects
    if effects is None or effects.open is None or not effects.needs_people:
        return None
    fresh = list(islice(reversed(agent.mailbox), len(agent.mailbox) - seen))
    for place, entry in enumerate(reversed(fresh), seen):
        if _is_resolution(entry) and _is_about(read_effect_resolution(entry[2]), effects.open):
            return place
    return None


def refusal_of_resolution(agent: LocalAgent, payload: bytes) -> InputOutcome | None:
    """Return why the agent does not accept the resolution, or not yet; None if it does."""
    command, effects, turn = read_effect_resolution(payload), agent.effects, agent.turn
    if turn is None or effects is None or effects.open is None or not _is_about(command, effects.open):
        return InputOutcome(
            REFUSED,
            reason=f"agent {agent.id!r} does not stand at effect {command.key!r} any more: see `snapline agent describe {agent.id}`",
        )
    if effects.needs_people:
        return None
    if effects.is_in_doubt and not turn.is_live and not turn.problem:
        return InputOutcome(input_messages.RETRY, reason=f"agent {agent.id} runs again up to effect {command.key!r}")
    return InputOutcome(
        REFUSED,
        reason=f"effect {command.key!r} of agent {agent.id!r} needs nobody's word: it is not in doubt, or can be asked after or repeated",
    )


def _is_resolution(entry: Entry) -> bool:
    return entry[0] is None and isinstance(entry[1], LoggedInput) and is_effect_resolution(entry[2])


def _is_about(word: EffectResolution, opened: OpenEffect) -> bool:
    return (word.key, word.generation, word.number) == (opened.key, opened.generation, opened.number)
