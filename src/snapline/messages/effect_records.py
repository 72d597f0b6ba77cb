"""Records of the topic `@effects`, the ledger of a fleet's external effects. This module does no I/O.

Each record is an output of the agent that owns the effect (`host/host_effects.py`). So a record is released with its epoch, exactly once
and in order. A restore reverts a record like any other output.
"""

from typing import Any, Literal

import msgspec

EFFECTS_TOPIC = "@effects"
"""Topic of the ledger. Agents cannot emit outputs under this topic, since their own topics must not contain "@"."""

INTENT, DONE, FAILED, LEFT = "intent", "done", "failed", "left"
"""Stages of an effect. "intent" means that the effect may be called as soon as this record is released. "done" means that it succeeded, and
"failed" that it failed. "left" means that its turn failed later, and that the effect remains in place without being undone."""

NOT_DONE = "not-done"
"""Stage in which an operator has declared that an effect in doubt was not executed. The effect may be called again as soon as this record
is released."""

RECORDED = "recorded"
"""Stage of an effect that a fleet has not called, because it runs on the recorded answers of another fleet."""

UNDO = "/undo"
"""Suffix of the key of a compensation."""

TEXT_CHARACTERS_MAX = 400
"""Largest length of arguments and results as readable text, in characters. Longer texts are truncated, because the ledger is not an
archive."""


class EffectRecord(msgspec.Struct, frozen=True):
    """A record in the ledger, emitted by the agent that owns the effect.

    Attributes:
        stage: "intent", "done", "failed", "left", "not-done" or "recorded".
        key: key of the effect, unique within the agent. A key that begins with `@` was generated from the turn that started the effect.
        generation: generation of the effect, which starts at 1 and increases by 1 after each compensation.
        name: name of the effect.
        outside_key: idempotency key that is sent to the external service.
        arguments: the effect's arguments as readable text.
        result: the effect's result as readable text, or the error if `stage` is "failed".
        undo: function that undoes the effect (its compensation), in the form `"module:function"`, or "" if there is none.
        undo_arguments: encoded arguments for the compensation.
        undoes, undoes_generation: for a compensation, the key and generation of the effect that it undoes.
        saga: the saga that contains the effect, or "" if no saga contains it.
        timeout_s: time limit of each call in seconds.
        has_probe, is_repeatable: whether a probe can determine after a crash if the effect was executed, and whether it is safe to repeat
            the effect.
    """

    stage: str
    key: str
    generation: int
    name: str
    outside_key: str
    arguments: str = ""
    result: str = ""
    undo: str = ""
    undo_arguments: list[bytes] = []
    undoes: str = ""
    undoes_generation: int = 0
    saga: str = ""
    timeout_s: float = 0.0
    has_probe: bool = False
    is_repeatable: bool = True


EffectState = Literal["waiting", "in doubt", "needs people", "open"]
"""State of an unfinished effect. "waiting" means that the record of its intent has not been released. "in doubt" means that an earlier
incarnation of the agent may have called the effect. "needs people" means that the effect is not called until an operator resolves it.
"open" means that it is being called."""

NEEDS_PEOPLE: Literal["needs people"] = "needs people"


class UnfinishedEffect(msgspec.Struct, frozen=True):
    """An effect for which an agent is waiting, as reported by the agent's host.

    Attributes:
        intent: record of the effect's intent. `intent` is set only if the record has not been released yet, and so is missing from the
            ledger.
        asked_ns: wall-clock time of the intent in nanoseconds since 1970.
    """

    agent: str
    key: str
    generation: int
    stands: EffectState
    intent: EffectRecord | None = None
    asked_ns: int = 0


_decoder = msgspec.msgpack.Decoder(EffectRecord)


def read_record(payload: bytes) -> EffectRecord:
    """Decode the payload of an output of the topic `@effects`. The payload consists of the name of the type and the encoded record."""
    return _decoder.decode(memoryview(payload)[1 + payload[0] :])


def readable(value: Any) -> str:
    """Return a value as a single line of readable text. Text longer than `TEXT_CHARACTERS_MAX` is truncated."""
    try:
        text = msgspec.json.encode(value, enc_hook=repr).decode()
    except Exception:  # A key that is not text, or code of the value's class, may raise anything.
        text = repr(type(value))
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"


def undo_key(key: str, generation: int) -> str:
    """Return the key of the compensation for this generation of the effect. A compensation is itself an effect with its own key."""
    return key + UNDO if generation == 1 else f"{key}#{generation}{UNDO}"


def effect_undone_by(key: str) -> tuple[str, int] | None:
    """Return the key and generation of the effect that is undone by the compensation with this key. Return None if the key does not belong
    to a compensation."""
    if not key.endswith(UNDO):
        return None
    undone, _, generation = key.removesuffix(UNDO).partition("#")
    return undone, int(generation or 1)


def outside_key(cluster: str, agent: str, key: str, generation: int) -> str:
    """Return the idempotency key that is sent to the external service. All calls of an effect send the same key, even after crashes."""
    return f"{cluster}/{agent}/{key}" if generation == 1 else f"{cluster}/{agent}/{key}#{generation}"
