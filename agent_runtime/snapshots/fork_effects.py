"""Effects that are open in a fork's snapshot: the fork does nothing with them. They are its parent's.

The parent waits at them too, calls them, and undoes them if its turn fails; a fork that did so would do it a second time, under other outside keys.
So in the fork's checkpoints the entry at which a turn waits is refused, effects of its turn are not to be undone, and turns that undo are gone, and
the dead letters of those that could not. Effects that had ended stay known by their keys: they are part of the history that both have. An effect left
by a failed turn is no orphan here: a later turn that requests it gets the result, and does not undo it. Nor can people undo it here.
"""

import msgspec

from snapline.agent_runtime.durable import REFUSED
from snapline.agent_runtime.undoing import UNDO
from snapline.storage.log.record import EFFECT
from snapline.storage.packs.checkpoint import AgentCheckpoint, DeadLetterNumbers, SavedTurn
from snapline.storage.packs.saved_effects import SavedEffects

REFUSAL = "effect {name} was open in the snapshot that this fork was made of: it is its parent's, whatever came of it, and not done here"


def without_open_effects(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    """Return the checkpoint as a fork begins with it; one that is equal if nothing of its effects is open."""
    return _without_turn(_without_letters(_without_undoing(_without_window(checkpoint))), checkpoint.effects)


def has_open_effect(checkpoint: AgentCheckpoint) -> bool:
    """Return whether the agent waits at an effect. The intent may be in a later checkpoint only: that is made after the segment that requests the
    effect."""
    turn = checkpoint.turn
    return turn is not None and turn.waits is not None and turn.waits.kind == EFFECT


def _without_window(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    effects = checkpoint.effects
    if effects is None:
        return checkpoint
    nothing = {"is_orphan": False, "name": "", "undo": "", "undo_arguments": [], "letter": 0}
    keys = [msgspec.structs.replace(known, **nothing) for known in effects.keys]
    return msgspec.structs.replace(checkpoint, saved_effects=SavedEffects(keys) if keys else msgspec.UNSET)


def _without_undoing(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    """Remove turns that undo. Effects without keys are forgotten with their turn: such turns may be all that a checkpoint has of effects."""
    stash = [each for each in checkpoint.stash if not each.payload.startswith(UNDO)]
    return msgspec.structs.replace(checkpoint, saved_stash=stash or msgspec.UNSET)


def _without_letters(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    letters, numbers = checkpoint.dead_letters, checkpoint.dead_letter_numbers
    kept = [place for place, letter in enumerate(letters) if not letter.payload.startswith(UNDO)]
    if len(kept) == len(letters):
        return checkpoint
    return msgspec.structs.replace(
        checkpoint,
        dead_letters=[letters[place] for place in kept],
        saved_numbers=DeadLetterNumbers(numbers.last, [numbers.numbers[place] for place in kept]),
    )


def _without_turn(checkpoint: AgentCheckpoint, effects: SavedEffects | None) -> AgentCheckpoint:
    turn = checkpoint.turn
    if turn is not None and turn.payload.startswith(UNDO):
        return msgspec.structs.replace(
            checkpoint, saved_turn=msgspec.UNSET, saved_journal=msgspec.UNSET, timers=checkpoint.own_timers
        )
    if turn is not None and has_open_effect(checkpoint):
        return msgspec.structs.replace(checkpoint, saved_turn=_refused(turn, effects), timers=checkpoint.own_timers)
    return checkpoint


def _refused(turn: SavedTurn, effects: SavedEffects | None) -> SavedTurn:
    waits = turn.waits
    assert waits is not None
    opened = effects.open if effects is not None else None
    said = REFUSAL.format(name=repr(waits.name) if opened is None else f"{waits.name!r} (key {opened.key})")
    entry = msgspec.structs.replace(waits, outcome=REFUSED, result=said.encode())
    return msgspec.structs.replace(turn, journal=[*turn.journal, entry], waits=None)
