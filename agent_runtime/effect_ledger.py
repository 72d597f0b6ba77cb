"""The fleet's ledger of effects, from which the fate of each effect is computed. The ledger is read from the outputs under `@effects`, of a
running fleet or a store.

A ledger record is released with a complete snapshot, so no failure reverts it. The ledger contains only released records, so an effect that
has just ended is still "open" here. Hosts report the state of open effects (`with_standing`).
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from snapline.agent_runtime.message_encoding import Output, OutputsReverted
from snapline.messages.effect_records import (
    DONE,
    EFFECTS_TOPIC,
    FAILED,
    INTENT,
    LEFT,
    NOT_DONE,
    EffectRecord,
    UnfinishedEffect,
)
from snapline.storage.packs.checkpoint import MadeEffect

Fate = Literal["waiting", "open", "in doubt", "needs people", "done", "failed", "compensated", "left", "undone"]

UNSETTLED: tuple[Fate, ...] = ("needs people", "in doubt", "failed", "left", "open", "waiting")
"""Fates that may need an operator's attention, the most urgent first."""

_Key = tuple[str, str, int]
"""Agent, key, generation."""


class Effect(msgspec.Struct, frozen=True):
    """An action of an agent on the outside, done or requested (`ctx.effect`).

    Attributes:
        key: id of the effect within its agent; a key that begins with `@` was generated for its turn.
        generation: 1, plus one for each repetition after a compensation.
        name: name given by the handler.
        outside_key: key that the service received.
        fate: "open": requested, and may have been called; "done"; "failed": the function raised, and the effect may have been done;
            "compensated"; "left": done, or possibly done, in a turn that failed permanently, and not undone; "undone": the fleet was rolled
            back past the request, and the effect was not called. A running fleet also has "waiting": not called, since the intent is not
            released; "in doubt": an earlier incarnation of the agent may have called it, and the present one probes or calls it again;
            "needs people": the agent waits until an operator says whether the effect was done.
        arguments, result: text for display; for a failed effect, the error.
        compensation: `module:function`, or "".
        undoes: for a compensation, the key of the effect that it undoes.
        saga: saga block of the effect, or "".
        asked_ns: wall-clock time of the request, since 1970.
        epoch: snapshot with which the newest record was released.
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
    for record in words:
        if isinstance(record, Output):
            standing.append(record)
            continue
        before, standing = _folded(standing), [output for output in standing if output.epoch <= record.after]
        undone |= {place: msgspec.structs.replace(effect, fate="undone") for place, effect in before.items()}
    return sorted((undone | _folded(standing)).values(), key=lambda effect: effect.asked_ns)


def with_standing(effects: Iterable[Effect], standing: Iterable[UnfinishedEffect]) -> list[Effect]:
    """Return the effects updated by hosts' latest reports: the states of effects that have not ended, and effects that the ledger does not
    contain yet."""
    by_key = {(effect.agent, effect.key, effect.generation): effect for effect in effects}
    for standing_effect in standing:
        place = standing_effect.agent, standing_effect.key, standing_effect.generation
        known = by_key.get(place)
        if standing_effect.intent is not None and (known is None or known.fate in ("open", "failed", "left", "undone")):
            output = Output(
                standing_effect.agent, 0, EFFECTS_TOPIC, standing_effect.intent, "", 0, standing_effect.asked_ns
            )
            known = _requested_effect(output, standing_effect.intent, known)
        if known is not None and known.fate == "open":
            by_key[place] = msgspec.structs.replace(known, fate=standing_effect.stands)
    return sorted(by_key.values(), key=lambda effect: effect.asked_ns)


def open_at(words: Iterable[Output | OutputsReverted], epoch: int) -> list[Effect]:
    """Return the effects that were open in the cut of an epoch, each with its present fate. The records released with that epoch and before
    determine which were open."""
    every = list(words)
    later = (place for place, record in enumerate(every) if isinstance(record, Output) and record.epoch > epoch)
    before = fold(every[: next(later, len(every))])
    now = {(effect.agent, effect.key, effect.generation): effect for effect in fold(every)}
    return [now[effect.agent, effect.key, effect.generation] for effect in before if effect.fate == "open"]


def _folded(words: Iterable[Output]) -> dict[_Key, Effect]:
    effects: dict[_Key, Effect] = {}
    for output in words:
        _apply_record(effects, output)
    return effects


def _apply_record(found: dict[_Key, Effect], word: Output) -> None:
    record = word.message
    assert isinstance(record, EffectRecord)
    place = word.agent, record.key, record.generation
    known = found.get(place)
    if record.stage == INTENT or known is None:
        known = _requested_effect(word, record, known)
    fate: Fate = "open" if record.stage in (INTENT, NOT_DONE) else _fate_of(record.stage)
    found[place] = msgspec.structs.replace(known, fate=fate, result=record.result or known.result, epoch=word.epoch)
    compensated = found.get((word.agent, record.undoes, record.undoes_generation))
    if record.stage == DONE and compensated is not None:
        place = compensated.agent, compensated.key, compensated.generation
        found[place] = msgspec.structs.replace(compensated, fate="compensated", epoch=word.epoch)


def _requested_effect(word: Output, record: EffectRecord, known: Effect | None) -> Effect:
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


# ---- the message of a turn that undoes effects ------------------------------------------------------------------------

UNDO = b"\x05@undo"
"""Head of the message, which precedes the effects. No message type can have this name."""

UNDO_NAME = "@undo"

_undo_decoder = msgspec.msgpack.Decoder(list[MadeEffect])


def undo_payload(made: Sequence[MadeEffect]) -> bytes:
    """Return the message of the turn that undoes these effects, in this order."""
    return UNDO + msgspec.msgpack.encode(list(made))


def read_undo(body: bytes | memoryview) -> list[MadeEffect]:
    """Decode the effects to undo; `body`: the bytes behind the name. Raises msgspec.MsgspecError."""
    return _undo_decoder.decode(body)
