"""Determines the current state of each effect from the fleet's ledger of effects. The ledger consists of the outputs under the topic
`@effects`, either in a running fleet or in a store.

Each ledger record is released together with a complete snapshot, so no failure reverts it. Because the ledger contains only released
records, an effect that has just ended still appears as "open". Hosts report the current states of open effects, and `with_standing` merges
the reports into the ledger's states.
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
    RECORDED,
    EffectRecord,
    UnfinishedEffect,
)
from snapline.storage.packs.checkpoint import MadeEffect

Fate = Literal[
    "waiting", "open", "in doubt", "needs people", "done", "failed", "compensated", "left", "undone", "recorded"
]

UNSETTLED: tuple[Fate, ...] = ("needs people", "in doubt", "failed", "left", "open", "waiting")
"""Fates that may need an operator's attention, with the most urgent first."""

_Key = tuple[str, str, int]
"""An effect's agent, key and generation."""


class Effect(msgspec.Struct, frozen=True):
    """An external action that an agent has requested with `ctx.effect`, whether it has been performed or not.

    Attributes:
        key: id of the effect within its agent. The runtime generated the key if it begins with `@`, otherwise the handler chose it.
        generation: initially 1, and increased by one each time the effect is requested again after its compensation.
        name: name that the handler gave the effect.
        outside_key: key that is passed to the external service.
        fate: state of the effect. The state is "open" (requested, and possibly called), "done", "failed" (the function raised an error, but
            the effect may have been performed), "compensated", "left" (certainly or possibly performed in a turn that failed permanently,
            and not undone), "undone" (the fleet was rolled back to a time before the request, and the effect was not called) or "recorded" (the
            fleet has taken the outcome from recorded answers, and has called nobody). A running
            fleet also reports "waiting" (not called yet, because the intent is not released), "in doubt" (an earlier incarnation of the
            agent may have called the effect, and the current incarnation probes or calls it again) and "needs people" (the agent waits
            until an operator reports whether the effect was performed).
        arguments, result: arguments and result as text to display. If the effect failed, `result` is its error.
        compensation: compensation as `module:function`, or "" if there is none.
        undoes: key of the effect that this effect compensates, or "" if this effect is not a compensation.
        saga: name of the saga block that requested the effect, or "" outside of sagas.
        asked_ns: wall-clock time of the request, in nanoseconds since 1970.
        epoch: number of the snapshot with which the newest ledger record of the effect was released.
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
    """Return every effect in the ledger with its state, in the order of the requests."""
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
    """Return the effects, updated with the hosts' latest reports. The reports contain the states of all unfinished effects, including
    effects that are not yet in the ledger."""
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
    """Return the effects that were open at a given epoch, each with its current state. An effect was open at the epoch if the records
    released up to that epoch leave it open."""
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
    """Return the initial state of a newly requested effect. If the effect is requested again after a failure or a rollback, `known` is the
    earlier request."""
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
    if stage == RECORDED:
        return "recorded"
    assert stage in (FAILED, LEFT), stage
    return "failed" if stage == FAILED else "left"


# ---- the message of a turn that undoes effects ------------------------------------------------------------------------

UNDO = b"\x05@undo"
"""First bytes of the message that starts an undo turn. The encoded effects follow. No message type can have this name."""

UNDO_NAME = "@undo"

_undo_decoder = msgspec.msgpack.Decoder(list[MadeEffect])


def undo_payload(made: Sequence[MadeEffect]) -> bytes:
    """Return the message that starts a turn in which the given effects are undone in the given order."""
    return UNDO + msgspec.msgpack.encode(list(made))


def read_undo(body: bytes | memoryview) -> list[MadeEffect]:
    """Decode the effects to undo from the bytes that follow the message's name. Raise msgspec.MsgspecError if `body` cannot be decoded."""
    return _undo_decoder.decode(body)
