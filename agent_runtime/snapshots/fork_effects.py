"""Open effects in a fork's snapshot: they belong to the parent fleet, and the fork does not touch them.

The parent waits for these effects, calls them, and undoes them if the turn fails. A fork that did the same would do each effect a second time, under
other outside keys. So the fork's checkpoints differ from the parent's:

- The entry at which a turn waits for an effect is refused.
- Effects of that turn are not undone. Turns that undo effects are removed, with the dead letters of failed ones.
- Completed effects stay known by their keys: they are part of the history that both fleets share.
- An effect left by a failed turn is no orphan. A later turn that requests it gets the result, and does not undo it. Users cannot undo it in the fork.
"""

import msgspec

from snapline.agent_runtime.durable import REFUSED
from snapline.agent_runtime.sagas import UNDO
from snapline.storage.log.record import EFFECT
from snapline.storage.packs.checkpoint import AgentCheckpoint, DeadLetterNumbers, SavedEffects, SavedTurn

REFUSAL = "effect {name} was open in the snapshot that this fork was made of: it is its parent's, whatever came of it, and not done here"


def without_open_effects(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    """Return the checkpoint as a fork begins with it; one that is equal if nothing of its effects is open."""
    return _without_turn(_without_letters(_without_undoing(_without_window(checkpoint))), checkpoint.effects)


def has_open_effect(checkpoint: AgentCheckpoint) -> bool:
    """Return whether the agent waits for an effect. Only a later checkpoint may hold the intent: it is made after the segment that requests the
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
    stash = [stashed for stashed in checkpoint.stash if not stashed.payload.startswith(UNDO)]
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
    reason = REFUSAL.format(name=repr(waits.name) if opened is None else f"{waits.name!r} (key {opened.key})")
    entry = msgspec.structs.replace(waits, outcome=REFUSED, result=reason.encode())
    return msgspec.structs.replace(turn, journal=[*turn.journal, entry], waits=None)
