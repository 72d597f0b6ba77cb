"""One agent's effects in a host core: the effect in progress, the effects of the current turn, and a limited window of ended effects.

An explicit key identifies an effect within its agent. If a request has the same key as an effect in the window, the request gets the known
outcome, and the effect is not performed again.
"""

from collections.abc import Mapping, Sequence

import msgspec

from snapline.agent_runtime.durable import ADOPTED, DONE, FAILED, REFUSED, EffectIntent
from snapline.messages.effect_records import UNDO, effect_undone_by, undo_key
from snapline.storage.log.log_record import EFFECT
from snapline.storage.packs.checkpoint import JournalEntry, KnownEffect, MadeEffect, OpenEffect, SavedEffects
from snapline.storage.timestamps import ages_ns

KEYS_KEPT = 1000
"""Largest number of ended effects that an agent remembers. Without results, they take some 100 KB in each of its checkpoints."""

KEYS_KEPT_NS = 7 * 86_400 * 1_000_000_000
"""Largest age of a remembered effect, relative to the newest ended effect: one week, during which operators can inspect and retry dead
letters."""

STEP_NS = 3600 * 1_000_000_000
"""Largest time that counts between two consecutive ended effects (`storage/timestamps.py`). So after a clock jump at least the last 168
effects are kept."""

RESULTS_BYTES_MAX = 1024 * 1024
"""Largest total size of the results and compensation arguments that an agent remembers, since each of its checkpoints contains them. Above
it, the oldest effects are forgotten."""

COMPENSATED = "compensated"

GENERATED_KEY_PREFIX = "@"
"""Prefix of the key that is generated for an effect without an explicit key. Such a key belongs to one turn, and is forgotten when the turn
ends."""

NOTHING = b"\xc0"
"""Encoded None, which is the result of a compensation that does not need to be called."""

TIME_UNKNOWN = 0
"""End time of an effect whose end is known only from a host log. Such an effect is forgotten only when there is no room."""

_NO_EFFECTS = SavedEffects()
_NO_GROUP: Mapping[int, OpenEffect] = {}


class AwaitedEffect:
    """An effect that the agent's turn waits for.

    Attributes:
        opened: the effect as checkpoints contain it.
        is_in_doubt: whether the effect may have been called before. The effect may come from a checkpoint, so that an earlier
            incarnation may have called it (unless a mark in the log is required before a call). Alternatively, an earlier call with the
            same key may have failed or may belong to a discarded history.
        is_ready: whether the handler has reached the effect, so that it may be called as soon as its intent is released.
        is_called: whether this incarnation is currently calling the effect, or is logging its mark.
        needs_people: whether an operator must report the outcome of the effect. Until the operator has reported the outcome, the
            effect is not called.
    """

    __slots__ = ("is_called", "is_in_doubt", "is_ready", "needs_people", "opened")

    def __init__(self, opened: OpenEffect, *, is_in_doubt: bool) -> None:
        self.opened = opened
        self.is_in_doubt = is_in_doubt
        self.is_ready = self.is_called = self.needs_people = False

    def begun(self) -> None:
        """Record that the effect may have been called, because the host log now contains its mark."""
        self.opened = msgspec.structs.replace(self.opened, is_begun=True)

    def not_done(self, number: int) -> None:
        """Record that an operator has resolved the effect as not done. The effect may be called again when the agent's output `number`,
        which contains the resolution, has been released. A later incarnation can therefore not use the resolution again without knowing of
        the later call."""
        self.opened = msgspec.structs.replace(self.opened, number=number, is_begun=False, is_repeated=False)
        self.is_in_doubt, self.is_ready, self.needs_people = False, True, False


class AgentEffects:
    """One agent's effects.

    Attributes:
        keys: ended effects by key, oldest first.
        made: effects of the agent's current turn. Those of a group are in the order of their places, and all others in the order in which
            they ended.
        open: effects that the turn waits for, by their places in the turn's journal, in ascending order: one, or those of a group.
    """

    __slots__ = ("keys", "made", "open")

    def __init__(
        self, saved: SavedEffects = _NO_EFFECTS, place: int = 0, group: Mapping[int, OpenEffect] = _NO_GROUP
    ) -> None:
        """Load the effects that a checkpoint contains: `saved`, whose open effect has this `place`, or the open effects of a `group`."""
        self.keys = {known.key: known for known in saved.keys}
        self.made = list(saved.made)
        opened = {place: saved.open} if saved.open is not None else group
        self.open = {each: AwaitedEffect(opened[each], is_in_doubt=True) for each in sorted(opened)}

    def saved(self, *, is_grouped: bool) -> SavedEffects | None:
        """Return the effects to be saved in a checkpoint, or None if there are none. Open effects of a group are saved apart."""
        single = next((each.opened for each in self.open.values()), None) if not is_grouped else None
        if not self.keys and not self.made and single is None:
            return None
        return SavedEffects(list(self.keys.values()), list(self.made), single)

    def find_open(self, key: str, generation: int) -> AwaitedEffect | None:
        """Return the open effect with this key and generation, or None."""
        found = (x for x in self.open.values() if (x.opened.key, x.opened.generation) == (key, generation))
        return next(found, None)

    def in_doubt(self) -> AwaitedEffect | None:
        """Return an open effect that needs people, or else one that is in doubt, or None."""
        doubtful = [each for each in self.open.values() if each.is_in_doubt]
        return next((each for each in doubtful if each.needs_people), doubtful[0] if doubtful else None)

    @property
    def is_called(self) -> bool:
        """Return whether this incarnation is calling an open effect, or is logging its mark."""
        return any(each.is_called for each in self.open.values())

    # ---- keys -----------------------------------------------------------------------------------------------------

    def identity(self, intent: EffectIntent) -> tuple[str, int]:
        """Return the key and generation of the effect that an intent requests. A compensation's key is derived from the key and generation
        of the effect that it undoes."""
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
        """Return the known outcome and result of an effect for the journal, or None if the effect must be called. The outcome is DONE if
        this turn takes the effect over, and ADOPTED if a turn that succeeded has performed it."""
        if intent.is_undo and self._is_in_effect(intent):
            return ADOPTED, NOTHING
        known = self.keys.get(self.identity(intent)[0])
        if known is None or known.outcome == COMPENSATED:
            return None
        if known.digest != digest and not intent.is_undo:  # the compensation may have been replaced since it failed
            reason = f"key {known.key!r} was used for an effect with the arguments {known.arguments}, and now for {name!r} with {intent.arguments}"
            return REFUSED, f"{reason}: give each effect a key of its own".encode()
        if known.outcome != DONE:
            return None
        return (self._take_over(intent, known, name), known.result) if known.is_orphan else (ADOPTED, known.result)

    def _is_in_effect(self, intent: EffectIntent) -> bool:
        """Return whether this compensation must not be called, because its effect was already undone or belongs to a turn that
        succeeded."""
        known = self.keys.get(intent.key)
        if known is None or intent.generation not in (0, known.generation):
            return False
        return not known.is_orphan and all(effect.key != intent.key for effect in self.made)

    def _take_over(self, intent: EffectIntent, known: KnownEffect, name: str) -> str:
        """Add an orphaned effect to this turn, as if this turn had performed the effect. An effect is orphaned if the turn that performed
        it has failed or belongs to a discarded history, and the effect was not undone."""
        self.keys[known.key] = msgspec.structs.replace(
            known, is_orphan=False, ended_ns=known.ended_ns or intent.asked_ns
        )
        self._add_made(MadeEffect(known.key, known.generation, name, intent.undo, intent.undo_arguments))
        return DONE

    def _add_made(self, made: MadeEffect) -> None:
        """Add an effect as the newest effect of the turn. Effects are undone in the reverse order of the turn's requests."""
        self.made = [*[other for other in self.made if other.key != made.key], made]

    def begin(self, place: int, intent: EffectIntent, digest: bytes, number: int, name: str) -> OpenEffect:
        """Open a new effect, which the turn then waits for. `number` is the number of the agent's output that contains the effect's
        intent."""
        key, generation = self.identity(intent)
        undoes, undone = (intent.key, self._undone_by(intent)) if intent.is_undo else ("", 0)
        knows_no_keys, known = intent.has_probe or not intent.is_repeatable, self.keys.get(key)
        was_called = known is not None and (known.generation, known.outcome) == (generation, FAILED)
        is_in_doubt = knows_no_keys and was_called
        opened = OpenEffect(
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
            is_repeated=is_in_doubt,
            timeout_s=intent.timeout_s,
        )
        self.open[place] = AwaitedEffect(opened, is_in_doubt=is_in_doubt)
        return opened

    def late_s(self, undoing: OpenEffect) -> float:
        """Return for how many seconds a failed call of the effect that this compensation undoes may still run, or 0 if there is none."""
        known = self.keys.get(undoing.undoes)
        is_it = known is not None and known.generation == undoing.undoes_generation and known.outcome == FAILED
        return known.late_s if known is not None and is_it else 0.0

    def end(self, place: int, *, is_done: bool, result: bytes, ended_ns: int, late_s: float = 0.0) -> None:
        """Record the end of an open effect. If the effect failed, `late_s` is the time in seconds for which its last call may still
        run."""
        opened = self.open.pop(place).opened
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
        self._forget(ended_ns)

    def group_ended(self, identities: Sequence[str]) -> None:
        """Put the effects of a group that has ended into the order of their places, in which compensations run backwards. `identities` are
        key and generation of each effect, in that order."""
        of_group = {f"{effect.key}#{effect.generation}": effect for effect in self.made}
        last = [of_group[identity] for identity in identities if identity in of_group]
        self.made = [*[effect for effect in self.made if effect not in last], *last]

    def record(self, intent: EffectIntent, digest: bytes, result: bytes) -> None:
        """Remember an effect that another fleet has performed. A generated key belongs to its turn, and is not remembered."""
        key, generation = self.identity(intent)
        if not key.startswith(GENERATED_KEY_PREFIX):
            self.keys.pop(key, None)
            self.keys[key] = KnownEffect(key, generation, digest, DONE, result, intent.arguments, intent.asked_ns)
            self._forget(intent.asked_ns)

    def _undone(self, opened: OpenEffect) -> None:
        key = opened.undoes
        known = self.keys.get(key)
        if known is not None and known.generation == opened.undoes_generation:
            self.keys[key] = _compensated(known)
        self.made = [effect for effect in self.made if effect.key != key]

    def note_earlier_undo(self, key: str, generation: int) -> None:
        """Record a compensation that an earlier incarnation performed and that was found in a host log. Unless the open effect is this
        compensation, the fleet was rolled back to a time before the compensation. The effect no longer exists outside the fleet, so a new
        request with its key is a new effect."""
        if any((x.opened.undoes, x.opened.undoes_generation) == (key, generation) for x in self.open.values()):
            return
        self.made = [effect for effect in self.made if (effect.key, effect.generation) != (key, generation)]
        known = self.keys.get(key)
        if known is None or known.generation < generation:
            self.keys.pop(key, None)
            self.keys[key] = KnownEffect(key, generation, b"", COMPENSATED, b"", "", TIME_UNKNOWN)
        elif known.generation == generation:
            self.keys[key] = _compensated(known)

    def note_earlier_call(self, entry: JournalEntry) -> None:
        """Record an effect's call that was found in a host log and belongs to a discarded history. The effect was or may have been
        performed outside the fleet, regardless of which turn requests it again."""
        key, _, text = entry.sender.rpartition("#")
        if not key or key.endswith(UNDO):
            return
        generation, known = int(text), self.keys.get(key)
        if self.find_open(key, generation) is not None:
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

    def resumes_undone_effect(self, place: int) -> bool:
        """Return whether the open effect was done and then undone in a discarded history. If the result is True, the current history has
        not requested the effect again yet."""
        opened = self.open[place].opened
        known = self.keys.get(opened.key)
        if known is None:
            return False
        is_it = known.generation == opened.generation and known.outcome == COMPENSATED
        # a later generation exists only if the earlier generation was undone
        return is_it or known.generation > opened.generation

    def _forget(self, newest_ns: int) -> None:
        """Forget the oldest effects above the limits. Effects are forgotten in their order and not by time, so that a replay forgets the
        same effects. Effects of the current turn are kept until the turn ends."""
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

    def turn_ended(self, dead_letter: int | None = None) -> list[MadeEffect]:
        """End the turn, and return the turn's effects, oldest first. Effects with generated keys are forgotten, except compensations. If
        the turn failed permanently, `dead_letter` is the number of its dead letter, or 0 if it begins again instead."""
        effects, self.made = self.made, []
        for key, known in list(self.keys.items()):
            if key.startswith(GENERATED_KEY_PREFIX) and not key.endswith(UNDO) and known.ended_ns != TIME_UNKNOWN:
                del self.keys[key]
        for key in [effect.key for effect in effects if dead_letter is not None and effect.key in self.keys]:
            self.keys[key] = msgspec.structs.replace(self.keys[key], is_orphan=True, dead_letter=dead_letter)
        return effects

    def give_up(self, key: str) -> None:
        """Mark an effect as an orphan, because an operator requests its compensation although the effect's turn succeeded."""
        self.keys[key] = msgspec.structs.replace(self.keys[key], is_orphan=True)


def _compensated(known: KnownEffect) -> KnownEffect:
    return msgspec.structs.replace(
        known, outcome=COMPENSATED, result=b"", is_orphan=False, name="", undo="", undo_arguments=[]
    )


def _size_of(known: KnownEffect) -> int:
    return len(known.result) + sum([len(argument) for argument in known.undo_arguments])


def undone_by(entry: JournalEntry) -> tuple[str, int] | None:
    """Return the key and generation of the effect that a logged compensation undid. If the entry is not a completed compensation, return
    None."""
    key, _, _ = entry.sender.rpartition("#")
    return effect_undone_by(key) if (entry.kind, entry.outcome) == (EFFECT, DONE) else None
