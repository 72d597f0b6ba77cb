"""Records of the topic `@effects`: a fleet's ledger of its external effects. No I/O.

Each record is an output of the agent that owns the effect (`host/host_effects.py`). So each record is released with its epoch, once and in
order, and a restore reverts it like any other output.
"""

from typing import Any, Literal

import msgspec

EFFECTS_TOPIC = "@effects"
"""Topic of the ledger. Agents cannot emit outputs under this topic: their topics contain no "@"."""

INTENT, DONE, FAILED, LEFT = "intent", "done", "failed", "left"
"""Stages: the effect may be called once this record is released; it succeeded; it failed; its turn failed later and the effect is not
undone."""

NOT_DONE = "not-done"
"""Stage in which an operator has declared that an effect in doubt was not executed. It may be called once this record is released."""

UNDO = "/undo"
"""Suffix of a compensation's key."""

TEXT_CHARACTERS_MAX = 400
"""Largest length of readable arguments and results in characters, because the ledger is not an archive."""


class EffectRecord(msgspec.Struct, frozen=True):
    """One record of the ledger, emitted by the agent that owns the effect.

    Attributes:
        stage: "intent", "done", "failed", "left" or "not-done".
        key: key of the effect within the agent; a key that begins with `@` was generated for the effect's turn.
        generation: generation of the effect: 1, and one more after each compensation.
        name: name of the effect.
        outside_key: idempotency key given to the external service.
        arguments: arguments as readable text.
        result: result as readable text; for "failed", the error.
        undo: compensation of the effect, `"module:function"`, or "".
        undo_arguments: arguments of the compensation, each encoded.
        undoes, undoes_generation: for a compensation, the effect that it undoes.
        saga: the saga that contains the effect, or "".
        timeout_s: time limit of one call in seconds.
        has_probe, is_repeatable: how to find out after a crash whether the effect was done.
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
"""State of an effect that has not ended. Waiting: its intent is not released. In doubt: an earlier incarnation may have called it. Needs
people: it is not called until an operator resolves it. Open: it is being called."""

NEEDS_PEOPLE: Literal["needs people"] = "needs people"


class UnfinishedEffect(msgspec.Struct, frozen=True):
    """An effect that an agent waits for, as the agent's host sees it.

    Attributes:
        intent: the effect's intent, if it is not released yet and so not in the ledger.
        asked_ns: wall-clock time of that intent in nanoseconds since 1970.
    """

    agent: str
    key: str
    generation: int
    stands: EffectState
    intent: EffectRecord | None = None
    asked_ns: int = 0


_decoder = msgspec.msgpack.Decoder(EffectRecord)


def read_record(payload: bytes) -> EffectRecord:
    """Decode the record from the payload of an output under `@effects`: the name of its type, and its body."""
    return _decoder.decode(memoryview(payload)[1 + payload[0] :])


def readable(value: Any) -> str:
    """Return a value as one line of readable text, truncated if long."""
    try:
        text = msgspec.json.encode(value, enc_hook=repr).decode()
    except Exception:  # A key that is not text, or the value's own class, may raise anything.
        text = repr(type(value))
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"


def undo_key(key: str, generation: int) -> str:
    """Return the key of the compensation of this generation. Each compensation is an effect of its own."""
    return key + UNDO if generation == 1 else f"{key}#{generation}{UNDO}"


def effect_undone_by(key: str) -> tuple[str, int] | None:
    """Return key and generation of the effect that the compensation with this key undoes; None if the key belongs to no compensation."""
    if not key.endswith(UNDO):
        return None
    undone, _, generation = key.removesuffix(UNDO).partition("#")
    return undone, int(generation or 1)


def outside_key(cluster: str, agent: str, key: str, generation: int) -> str:
    """Return the idempotency key given to the external service. Every call of one effect uses the same key, across all crashes."""
    return f"{cluster}/{agent}/{key}" if generation == 1 else f"{cluster}/{agent}/{key}#{generation}"
