"""One agent's effects in a host core: the open effect, the effects of the current turn, and a window of ended effects.

An explicit key identifies an effect within its agent. While the window contains the effect, a request for the same effect gets the known
outcome, and the effect is not done again.
"""

import msgspec

from snapline.agent_runtime.durable import ADOPTED, DONE, FAILED, REFUSED, EffectIntent
from snapline.messages.effect_records import UNDO, effect_undone_by, undo_key
from snapline.storage.log.log_record import EFFECT
from snapline.storage.packs.checkpoint import JournalEntry, KnownEffect, MadeEffect, OpenEffect, SavedEffects
from snapline.storage.timestamps import ages_ns

KEYS_KEPT = 1000
"""Largest number of ended effects that an agent remembers: some 100 KB in each of its checkpoints, without results."""

KEYS_KEPT_NS = 7 * 86_400 * 1_000_000_000
"""Largest age of an ended effect, relative to the newest one: a week, in which operators inspect and retry dead letters."""

STEP_NS = 3600 * 1_000_000_000
"""Largest counted step from one ended effect to the next (`storage/timestamps.py`): after a clock jump at least the last 168 effects are
kept."""

RESULTS_BYTES_MAX = 1024 * 1024
"""Largest size of results and compensation arguments in each of an agent's checkpoints. The oldest are dropped with their keys."""

COMPENSATED = "compensated"

GENERATED_KEY_PREFIX = "@"
"""Prefix of the key that is generated for an effect without one. Such a key belongs to a turn and is dropped with the turn."""

NOTHING = b"\xc0"
"""Encoded None: the result of a compensation that need not be called."""

TIME_UNKNOWN = 0
"""End time of an effect whose end is only in a host log. Such an effect is dropped when there is no room."""

_NO_EFFECTS = SavedEffects()


class AgentEffects:
    """One agent's effects.

    Attributes:
        keys: ended effects, oldest first.
        made: effects of the agent's current turn, oldest first.
        open: effect that the turn waits for.
        is_in_doubt: the open effect may have been called. Either it comes from a checkpoint whose epoch released its intent, so an earlier
            incarnation may have called it (unless it had to log a mark first). Or a call under the same key failed, or belongs to a discarded
            history.
        is_ready: the handler waits for the open effect, which may be called as soon as its intent is released.
        is_called: this incarnation is calling the open effect, or is logging its mark.
        needs_people: the open effect is not called: an operator has to report its outcome.
    """

    __slots__ = ("is_called", "is_in_doubt", "is_ready", "keys", "made", "needs_people", "open")

    def __init__(self, saved: SavedEffects = _NO_EFFECTS) -> None:
        self.keys = {known.key: known for known in saved.keys}
        self.made = list(saved.made)
        self.open: OpenEffect | None = saved.open
        self.is_in_doubt = saved.open is not None
        self.is_ready = self.is_called = self.needs_people = False

    def saved(self) -> SavedEffects | None:
        """Return the effects in the form for a checkpoint; None if there are none."""
        if not self.keys and not self.made and self.open is None:
            return None
        return SavedEffects(list(self.keys.values()), list(self.made), self.open)

    # ---- keys -----------------------------------------------------------------------------------------------------

    def identity(self, intent: EffectIntent) -> tuple[str, int]:
        """Return the key and generation of an intent; for a compensation, those of the effect that it undoes."""
        if intent.is_undo:
            return undo_key(intent.key, self._undone_by(intent)), 1
        known = self.keys.get(intent.key)
        if known is None:
            return intent.key, 1
        return intent.key, known.generation + (known.outcome == COMPENSATED)

    def _undone_by(self, intent: EffectIntent) -> int:
        """Return the generation of the effect that this compensation undoes."""
        known = self.keys.get(intent.key)
        return intent.generation or (known.generation if known is not None else 1)

    def settled(self, intent: EffectIntent, digest: bytes, name: str) -> tuple[str, bytes] | None:
        """Return the known outcome of an effect in the journal's form; None if it has to be called."""
        if intent.is_undo and self._is_in_effect(intent):
            return ADOPTED, NOTHING
        known = self.keys.get(self.identity(intent)[0])
        if known is None or known.outcome == COMPENSATED:
            return None
        if known.digest != digest and not intent.is_undo:  # the failed compensation may have been replaced since then
            reason = f"key {known.key!r} was used for an effect with the arguments {known.arguments}, and now for {name!r} with {intent.arguments}"
            return REFUSED, f"{reason}: give each effect a key of its own".encode()
        if known.outcome != DONE:
            return None
        return (self._take_over(intent, known, name), known.result) if known.is_orphan else (ADOPTED, known.result)

    def _is_in_effect(self, intent: EffectIntent) -> bool:
        """Return whether the effect that this would undo belongs to a turn that succeeded: a later turn took it over, or it was already
        undone."""
        known = self.keys.get(intent.key)
        if known is None or intent.generation not in (0, known.generation):
            return False
        return not known.is_orphan and all(effect.key != intent.key for effect in self.made)

    def _take_over(self, intent: EffectIntent, known: KnownEffect, name: str) -> str:
        """Make the effect part of this turn, as if the turn had done it now. The turn that did the effect has failed, or belongs to a discarded history,
        and the effect was not undone."""
        self.keys[known.key] = msgspec.structs.replace(
            known, is_orphan=False, ended_ns=known.ended_ns or intent.asked_ns
        )
        self._add_made(MadeEffect(known.key, known.generation, name, intent.undo, intent.undo_arguments))
        return DONE

    def _add_made(self, made: MadeEffect) -> None:
        """Add the newest effect of the turn: effects are undone in the reverse of the order in which the turn requested them."""
        self.made = [*[other for other in self.made if other.key != made.key], made]

    def begin(self, intent: EffectIntent, digest: bytes, number: int, name: str) -> OpenEffect:
        """Open a new effect, whose intent is the agent's output of this number."""
        key, generation = self.identity(intent)
        undoes, undone = (intent.key, self._undone_by(intent)) if intent.is_undo else ("", 0)
        knows_no_keys, known = intent.has_probe or not intent.is_repeatable, self.keys.get(key)
        was_called = known is not None and (known.generation, known.outcome) == (generation, FAILED)
        self.is_in_doubt = knows_no_keys and was_called
        self.open = OpenEffect(
            key,
            generation,
            digest,
            intent.arguments,
            number,
            name,
            intent.undo,
            intent.undo_arguments,
            undoes,
            undone,
            is_marked=knows_no_keys,
            is_repeated=self.is_in_doubt,
            timeout_s=intent.timeout_s,
        )
        return self.open

    def begun(self) -> None:
        """Record that the open effect may have been called, as the host log says."""
        assert self.open is not None
        self.open = msgspec.structs.replace(self.open, is_begun=True)

    def late_s(self) -> float:
        """Return how long a call of the effect that the open compensation undoes may still run."""
        assert self.open is not None
        known = self.keys.get(self.open.undoes)
        is_it = known is not None and known.generation == self.open.undoes_generation and known.outcome == FAILED
        return known.late_s if known is not None and is_it else 0.0

    def end(self, *, is_done: bool, result: bytes, ended_ns: int, late_s: float = 0.0) -> None:
        """End the open effect. `late_s`: for a failed effect, how long its last call may still run."""
        opened = self.open
        assert opened is not None
        outcome, kept = (DONE, result) if is_done else (FAILED, b"")
        known = KnownEffect(opened.key, opened.generation, opened.digest, outcome, kept, opened.arguments, ended_ns)
        if not is_done:
            known = msgspec.structs.replace(known, late_s=late_s)
        if opened.undo:
            undo = {"name": opened.name, "undo": opened.undo, "undo_arguments": opened.undo_arguments}
            known = msgspec.structs.replace(known, **undo)
        self.keys.pop(opened.key, None)
        self.keys[opened.key] = known
        if not opened.undoes:
            effect = MadeEffect(opened.key, opened.generation, opened.name, opened.undo, opened.undo_arguments)
            self._add_made(effect)
        elif is_done:
            self._undone(opened)
        self.drop_open_effect()
        self._forget(ended_ns)

    def _undone(self, opened: OpenEffect) -> None:
        key = opened.undoes
        known = self.keys.get(key)
        if known is not None and known.generation == opened.undoes_generation:
            self.keys[key] = _compensated(known)
        self.made = [effect for effect in self.made if effect.key != key]

    def note_earlier_undo(self, key: str, generation: int) -> None:
        """Record a compensation of an earlier incarnation, found in a host log. If this history does not reach the compensation by itself, the fleet
        was rolled back past it. The effect no longer exists outside, so a new request for it is another effect."""
        if self.open is not None and (self.open.undoes, self.open.undoes_generation) == (key, generation):
            return
        self.made = [effect for effect in self.made if (effect.key, effect.generation) != (key, generation)]
        known = self.keys.get(key)
        if known is None or known.generation < generation:
            self.keys.pop(key, None)
            self.keys[key] = KnownEffect(key, generation, b"", COMPENSATED, b"", "", TIME_UNKNOWN)
        elif known.generation == generation:
            self.keys[key] = _compensated(known)

    def note_earlier_call(self, entry: JournalEntry) -> None:
        """Record a call of an effect of a discarded history, found in a host log. The effect was done outside, or possibly done, whichever
        turn requests it again."""
        key, _, text = entry.sender.rpartition("#")
        if not key or key.endswith(UNDO):
            return
        generation, known = int(text), self.keys.get(key)
        if self.open is not None and (self.open.key, self.open.generation) == (key, generation):
            return
        is_done = entry.outcome == DONE
        if known is not None and known.generation >= generation:
            is_news = known.generation == generation and known.outcome == FAILED and is_done
            if not is_news:
                return
        outcome, result = (DONE, entry.result) if is_done else (FAILED, b"")
        self.keys.pop(key, None)
        self.keys[key] = KnownEffect(
            key, generation, entry.digest, outcome, result, "", TIME_UNKNOWN, is_orphan=True, name=entry.name
        )

    def knows_unrecorded_effect(self, intent: EffectIntent) -> bool:
        """Return whether the effect is done according to a host log alone."""
        known = self.keys.get(intent.key)
        return known is not None and (known.ended_ns, known.outcome) == (TIME_UNKNOWN, DONE)

    def resumes_undone_effect(self) -> bool:
        """Return whether the open effect was done and undone in a discarded history. If so, this history has not requested its
        repetition."""
        known = self.keys.get(self.open.key) if self.open is not None else None
        if self.open is None or known is None:
            return False
        is_it = known.generation == self.open.generation and known.outcome == COMPENSATED
        # A later generation exists only if the earlier one was undone.
        return is_it or known.generation > self.open.generation

    def drop_open_effect(self) -> None:
        """Drop the open effect, which will not be called."""
        self.open, self.is_in_doubt, self.is_ready, self.needs_people = None, False, False, False
        self.is_called = False

    def not_done(self, number: int) -> None:
        """Record the operator's resolution that the open effect was not done: it may be called once the agent's output of this number is released. So
        a later incarnation that does not know of the call cannot take the resolution again."""
        assert self.open is not None
        self.open = msgspec.structs.replace(self.open, number=number, is_begun=False, is_repeated=False)
        self.is_in_doubt, self.is_ready, self.needs_people = False, True, False

    def _forget(self, newest_ns: int) -> None:
        """Drop the oldest effects, by order rather than time, so that a replay drops the same ones. Effects of the current turn are kept until its
        end."""
        held = {effect.key for effect in self.made}
        size_bytes = sum([_size_of(known) for known in self.keys.values()])
        times = {key: known.ended_ns for key, known in self.keys.items() if known.ended_ns != TIME_UNKNOWN}
        ages = dict(zip(times, ages_ns([*times.values(), newest_ns], STEP_NS), strict=False))
        for known in list(self.keys.values())[:-1]:
            is_old = ages.get(known.key, 0) > KEYS_KEPT_NS
            if not (is_old or len(self.keys) > KEYS_KEPT or size_bytes > RESULTS_BYTES_MAX):
                return
            if known.key not in held:
                del self.keys[known.key]
                size_bytes -= _size_of(known)

    # ---- turns ----------------------------------------------------------------------------------------------------

    def turn_ended(self, dead_letter: int = 0) -> list[MadeEffect]:
        """End the turn; return its effects, oldest first. Its generated keys are dropped, except those of undone effects. `dead_letter`: number of its
        dead letter, if it has failed."""
        effects, self.made = self.made, []
        for key, known in list(self.keys.items()):
            if key.startswith(GENERATED_KEY_PREFIX) and not key.endswith(UNDO) and known.ended_ns != TIME_UNKNOWN:
                del self.keys[key]
        for key in [effect.key for effect in effects if dead_letter and effect.key in self.keys]:
            self.keys[key] = msgspec.structs.replace(self.keys[key], is_orphan=True, dead_letter=dead_letter)
        return effects

    def give_up(self, key: str) -> None:
        """Detach the effect from its turn, since an operator requests its compensation although the turn succeeded."""
        self.keys[key] = msgspec.structs.replace(self.keys[key], is_orphan=True)


def _compensated(known: KnownEffect) -> KnownEffect:
    return msgspec.structs.replace(
        known, outcome=COMPENSATED, result=b"", is_orphan=False, name="", undo="", undo_arguments=[]
    )


def _size_of(known: KnownEffect) -> int:
    return len(known.result) + sum([len(argument) for argument in known.undo_arguments])


def undone_by(entry: JournalEntry) -> tuple[str, int] | None:
    """Return the effect that was undone here, and its generation; None if none was undone."""
    key, _, _ = entry.sender.rpartition("#")
    return effect_undone_by(key) if (entry.kind, entry.outcome) == (EFFECT, DONE) else None
