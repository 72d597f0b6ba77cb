"""Records of the topic `@effects`: a fleet's ledger of its external effects. No I/O.

Each record is an output of the agent whose effect it is (`host/effects.py`): so it is released with its epoch, once, in order, and a restore
reverts it as any other.
"""

from typing import Any, Literal

import msgspec

EFFECTS_TOPIC = "@effects"
"""Topic that no agent can emit under: a topic of theirs has no "@"."""

INTENT, DONE, FAILED, LEFT = "intent", "done", "failed", "left"
"""Stages: it may be called as soon as this is released; how it has ended; and that its turn has failed since, and it is not undone."""

NOT_DONE = "not-done"
"""A stage: people say of an effect in doubt that it was not done; it may be called as soon as this is released."""

UNDO = "/undo"
"""Suffix of a compensation's key."""

TEXT_CHARACTERS_MAX = 400
"""Largest length of arguments and results for people: a ledger is no archive."""


class EffectRecord(msgspec.Struct, frozen=True):
    """Record of the ledger, by the agent that emits it.

    Attributes:
        stage: "intent", "done", "failed", "left" or "not-done".
        key: within the agent; one that begins with `@` was made up for its turn.
        generation: 1, and one more after each compensation.
        name: of the effect.
        outside_key: what the service was, or will be, given.
        arguments: for people.
        result: for people; of "failed" the error.
        undo: its compensation, `"module:function"`, or "".
        undo_arguments: of that, each encoded.
        undoes, undoes_generation: of a compensation: what it undoes.
        saga: the block that contains it, or "".
        timeout_s: how long each call of it may take.
        has_probe, is_repeatable: how to find out after a crash whether it was done.
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


Stands = Literal["waiting", "in doubt", "needs people", "open"]
"""State of an effect that has not ended: its intent is not released; an earlier life may have called it; nobody calls it until people have
said what came of that; or it is being called."""

NEEDS_PEOPLE: Literal["needs people"] = "needs people"


class StandingEffect(msgspec.Struct, frozen=True):
    """An effect at which an agent waits, as its host sees it.

    Attributes:
        intent: if it is not released yet, so that no ledger has it.
        asked_ns: of that: wall-clock time since 1970.
    """

    agent: str
    key: str
    generation: int
    stands: Stands
    intent: EffectRecord | None = None
    asked_ns: int = 0


_decoder = msgspec.msgpack.Decoder(EffectRecord)


def read_record(payload: bytes) -> EffectRecord:
    """Return the word that an output under `@effects` is, from its payload: the name of its type, and its body."""
    return _decoder.decode(memoryview(payload)[1 + payload[0] :])


def readable(value: Any) -> str:
    """A value for people, in one line, cut off where it is long."""
    try:
        text = msgspec.json.encode(value, enc_hook=repr).decode()
    except Exception:  # of a key that is no text, or the value's own class
        text = repr(type(value))
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"


def undo_key(key: str, generation: int) -> str:
    """Return the key of this generation's compensation: each is an effect of its own."""
    return key + UNDO if generation == 1 else f"{key}#{generation}{UNDO}"


def undone_of(key: str) -> tuple[str, int] | None:
    """Return the effect, and its generation, that the compensation with this key undoes; None: it is none."""
    if not key.endswith(UNDO):
        return None
    undone, _, generation = key.removesuffix(UNDO).partition("#")
    return undone, int(generation or 1)


def outside_key(cluster: str, agent: str, key: str, generation: int) -> str:
    """Return the key given to the service: the same for every call of one effect, whatever dies."""
    return f"{cluster}/{agent}/{key}" if generation == 1 else f"{cluster}/{agent}/{key}#{generation}"
