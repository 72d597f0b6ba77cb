"""The part of a host core that handles operators' undo and retry commands for effects that have ended (`messages/agent_commands.py`).

*Undo*: a turn of the agent runs the compensation, as after a failed turn. *Retry*: the failed turn is retried as its dead letter, or a failed
compensation is called again. Completed work is not repeated, so the commands are idempotent.
"""

from snapline.agent_runtime.durable import DONE
from snapline.agent_runtime.host.agent_effects import COMPENSATED
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.sagas import undo_payload
from snapline.messages.agent_commands import TARGET_GONE, UNDO, EffectRetry
from snapline.messages.effect_records import effect_undone_by
from snapline.storage.packs.checkpoint import KnownEffect, MadeEffect

_FINISHED = b""
"""Answer to a command that has already been fulfilled."""


def refusal_of_effect_request(agent: LocalAgent, wish: EffectRetry) -> str:
    """Return why the command is refused; "" if it may have its turn."""
    description = f"effect {_shown(wish)} of agent {agent.id!r}"
    known, opened = _known(agent, wish), agent.effects.open if agent.effects is not None else None
    if opened is not None and (opened.key, opened.generation) == (wish.key, wish.generation):
        return f"{description} has not ended: see `snapline agent describe {agent.id}`"
    if known is None:
        return f"{description} is not known to it, or not any more: see `snapline effect list --agent {agent.id}`"
    if wish.verb == UNDO and effect_undone_by(wish.key) is not None:
        return f"{description} undoes another one, and is not undone itself: have the agent ask anew for what is to be done"
    if wish.verb == UNDO:
        return (
            "" if _is_compensated(known, wish) or known.undo else f"{description} was asked for without a compensation"
        )
    return _why_no_retry(agent, known, wish, description)


def _why_no_retry(agent: LocalAgent, known: KnownEffect, wish: EffectRetry, shown: str) -> str:
    if effect_undone_by(wish.key) is not None:
        return f"{shown} is done: there is nothing to try again" if _is_compensated(known, wish) else ""
    if _is_compensated(known, wish):
        return f"{shown} was undone: it is done anew when its agent asks for it again"
    if known.outcome == DONE:
        return f"{shown} is done: there is nothing to try again"
    if not known.is_orphan:
        return f"{shown} failed, and its turn went on without it: it is tried again when its agent asks for it again"
    if known.letter not in agent.dead_letter_numbers:
        return f"{shown} failed with its turn, and the dead letter of that is gone"
    return ""


def is_compensation_request(wish: EffectRetry) -> bool:
    """Return whether the command is about a compensation, to be called, or called again."""
    return wish.verb == UNDO or effect_undone_by(wish.key) is not None


def dead_letter_number_of(agent: LocalAgent, wish: EffectRetry) -> int:
    """Return the number of the dead letter that is to have its turn; 0: there is none."""
    known = _known(agent, wish)
    return known.letter if known is not None and known.is_orphan and known.outcome != DONE else 0


def settled_compensation(agent: LocalAgent, wish: EffectRetry) -> bytes | None:
    """Return the answer for a compensation that needs no turn, or cannot have one; None if it gets a turn."""
    known = _known(agent, wish)
    if known is not None and _is_compensated(known, wish):
        return _FINISHED
    return None if known is not None and known.undo else TARGET_GONE


def compensation_message_of(agent: LocalAgent, wish: EffectRetry) -> bytes:
    """Return the message of the turn that undoes the effect."""
    known = _known(agent, wish)
    assert known is not None, "it was there when the turn was chosen"
    return undo_payload([MadeEffect(known.key, known.generation, known.name, known.undo, known.undo_arguments)])


def begin_compensation(agent: LocalAgent, wish: EffectRetry) -> None:
    """Detach the effect, since the command's turn has begun: no other turn may rely on it."""
    known = _known(agent, wish)
    if known is not None and agent.effects is not None:
        agent.effects.give_up(known.key)


def _known(agent: LocalAgent, wish: EffectRetry) -> KnownEffect | None:
    """Return what the agent knows of the effect, or of the one that this compensation undoes."""
    undone = effect_undone_by(wish.key)
    if agent.effects is None or (undone is not None and wish.key not in agent.effects.keys):
        return None
    key, generation = undone or (wish.key, wish.generation)
    known = agent.effects.keys.get(key)
    return known if known is not None and 1 <= generation <= known.generation else None


def _is_compensated(known: KnownEffect, wish: EffectRetry) -> bool:
    """Return whether the effect is undone. An earlier generation is: else there were no later one."""
    _, generation = effect_undone_by(wish.key) or (wish.key, wish.generation)
    return known.outcome == COMPENSATED or generation < known.generation


def _shown(wish: EffectRetry) -> str:
    return repr(wish.key if wish.generation == 1 else f"{wish.key}#{wish.generation}")
