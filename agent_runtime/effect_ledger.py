"""The fleet's ledger of effects, folded: the fate of each. From the outputs under `@effects`, of a fleet that runs or of a store at rest.

A ledger record is released with a complete snapshot, so no failure takes one back. Records not released yet are not in it: an effect that has just
ended is still "open" here. Hosts report the state of those that have not ended (`with_standing`).
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from snapline.agent_runtime.reading import Output, OutputsReverted
from snapline.messages.effect_records import (
    DONE,
    EFFECTS_TOPIC,
    FAILED,
    INTENT,
    LEFT,
    NOT_DONE,
    EffectRecord,
    StandingEffect,
)

Fate = Literal["waiting", "open", "in doubt", "needs people", "done", "failed", "compensated", "left", "undone"]

UNSETTLED: tuple[Fate, ...] = ("needs people", "in doubt", "failed", "left", "open", "waiting")
"""Fates that somebody may have to look at, the most urgent first."""

_Key = tuple[str, str, int]
"""Agent, key, generation."""


class Effect(msgspec.Struct, frozen=True):
    """Something that an agent has done outside, or was to do (`ctx.effect`).

    Attributes:
        key: its id within its agent; one that begins with `@` was generated for its turn.
        generation: 1, and one more each time that it was done again after it was compensated.
        name: as its handler has named it.
        outside_key: key that its service was given.
        fate: "open": it was requested, and may have been called; "done"; "failed": its function raised, and it may have been done; "compensated";
            "left": done, or perhaps, in a turn that failed permanently, and not undone; "undone": the fleet has gone back to before it on purpose,
            and nothing was called. Of a fleet that runs also "waiting": until its intent is released; nobody has called it. "in doubt": a life of its
            agent that is over may have called it; the present one probes, or calls it again. "needs people": it does not, until they say whether it
            was done.
        arguments, result: for people; of a failed one the error.
        compensation: `module:function`, or "".
        undoes: of a compensation: the key of the effect that it undoes.
        saga: the block in which it is, or "".
        asked_ns: when it was requested: wall-clock time since 1970.
        epoch: the snapshot that its newest record was released with.
    """

    agent: str
    key: str
    generation: int
    name: str
    outside_key: str
    fate: Fate
    arguments: str = ""
    result: str = ""
    compensation: str = ""
    undoes: str = ""
    saga: str = ""
    asked_ns: int = 0
    epoch: int = 0


def fold(words: Iterable[Output | OutputsReverted]) -> list[Effect]:
    """Return each effect with its fate, in the order in which they were requested."""
    standing: list[Output] = []
    undone: dict[_Key, Effect] = {}
    for word in words:
        if isinstance(word, Output):
            standing.append(word)
            continue
        before, standing = _folded(standing), [each for each in standing if each.epoch <= word.after]
        undone |= {place: msgspec.structs.replace(effect, fate="undone") for place, effect in before.items()}
    return sorted((undone | _folded(standing)).values(), key=lambda effect: effect.asked_ns)


def with_standing(effects: Iterable[Effect], standing: Iterable[StandingEffect]) -> list[Effect]:
    """Return the effects updated by hosts' latest reports: the states of those that have not ended, and those that the ledger does not have yet."""
    found = {(each.agent, each.key, each.generation): each for each in effects}
    for each in standing:
        place = each.agent, each.key, each.generation
        known = found.get(place)
        if each.intent is not None and (known is None or known.fate in ("open", "failed", "left", "undone")):
            word = Output(each.agent, 0, EFFECTS_TOPIC, each.intent, "", 0, each.asked_ns)
            known = _asked(word, each.intent, known)
        if known is not None and known.fate == "open":
            found[place] = msgspec.structs.replace(known, fate=each.stands)
    return sorted(found.values(), key=lambda effect: effect.asked_ns)


def open_at(words: Iterable[Output | OutputsReverted], epoch: int) -> list[Effect]:
    """Return the effects that were open in the cut of an epoch, by the records released with it and before, each with its fate now."""
    every = list(words)
    later = (place for place, word in enumerate(every) if isinstance(word, Output) and word.epoch > epoch)
    before = fold(every[: next(later, len(every))])
    now = {(each.agent, each.key, each.generation): each for each in fold(every)}
    return [now[each.agent, each.key, each.generation] for each in before if each.fate == "open"]


def _folded(words: Iterable[Output]) -> dict[_Key, Effect]:
    found: dict[_Key, Effect] = {}
    for word in words:
        _take(found, word)
    return found


def _take(found: dict[_Key, Effect], word: Output) -> None:
    record = word.message
    assert isinstance(record, EffectRecord)
    place = word.agent, record.key, record.generation
    known = found.get(place)
    if record.stage == INTENT or known is None:
        known = _asked(word, record, known)
    fate: Fate = "open" if record.stage in (INTENT, NOT_DONE) else _fate_of(record.stage)
    found[place] = msgspec.structs.replace(known, fate=fate, result=record.result or known.result, epoch=word.epoch)
    undone = found.get((word.agent, record.undoes, record.undoes_generation))
    if record.stage == DONE and undone is not None:
        place = undone.agent, undone.key, undone.generation
        found[place] = msgspec.structs.replace(undone, fate="compensated", epoch=word.epoch)


def _asked(word: Output, record: EffectRecord, known: Effect | None) -> Effect:
    """Return an effect that was requested, perhaps again: after it failed, or after the fleet went back."""
    return Effect(
        word.agent,
        record.key,
        record.generation,
        record.name,
        record.outside_key,
        "open",
        record.arguments,
        compensation=record.undo,
        undoes=record.undoes,
        saga=record.saga,
        asked_ns=word.emitted_ns if known is None else known.asked_ns,
    )


def _fate_of(stage: str) -> Fate:
    if stage == DONE:
        return "done"
    assert stage in (FAILED, LEFT), stage
    return "failed" if stage == FAILED else "left"
