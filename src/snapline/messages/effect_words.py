"""Operator commands to an agent about its effects. One input each, which only its payload tells from others: it is logged, numbered and found again
by recoveries as every input is.

For an effect at which the agent waits, a command gives its result, or says that it was not done: the turn itself takes that command. For one that
has ended, a command requests a retry or an undo: that has a turn of its own, as a command about a dead letter has.
"""

import msgspec

from snapline.errors import ProtocolError
from snapline.messages.dead_letters import RETRY, WORD

EFFECT_WORD = WORD + b"effect"
"""Prefix of such a command's payload. A command about a dead letter goes on with an array."""


EFFECT_WISH = WORD + b"wish"

UNDO = "undo"


class EffectResolution(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Operator command that resolves an effect.

    Attributes:
        key, generation: of the effect, within its agent.
        number: of the agent's output that let it be called. Each command that lets it be called again emits another one: so a command is about
            one doubt, and never about a later one.
        is_done: with `result`, encoded; else it was not done, and is to be called.
    """

    key: str
    generation: int
    number: int
    is_done: bool
    result: bytes = b""


class EffectRetry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Request to retry or undo an effect that has ended.

    Attributes:
        verb: "retry" or "undo".
        key, generation: of the effect, within its agent.
    """

    verb: str
    key: str
    generation: int


_read = msgspec.msgpack.Decoder(EffectResolution)
_read_wish = msgspec.msgpack.Decoder(EffectRetry)


def is_effect_word(payload: bytes) -> bool:
    """Return whether the payload is an effect's resolution."""
    return payload.startswith(EFFECT_WORD)


def effect_word_payload(word: EffectResolution) -> bytes:
    """The payload of the input."""
    return EFFECT_WORD + msgspec.msgpack.encode(word)


def read_effect_word(payload: bytes) -> EffectResolution:
    """Decode an effect's resolution.

    Raises:
        ProtocolError: it is no such command.
    """
    try:
        word = _read.decode(payload[len(EFFECT_WORD) :]) if is_effect_word(payload) else None
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a word about an effect that cannot be read: {error}") from error
    if word is None:
        raise ProtocolError("a word about an effect names the effect and says what came of it")
    return word


def is_effect_request(payload: bytes) -> bool:
    """Return whether the payload is a retry or undo request."""
    return payload.startswith(EFFECT_WISH)


def effect_request_payload(wish: EffectRetry) -> bytes:
    """The payload of the input."""
    return EFFECT_WISH + msgspec.msgpack.encode(wish)


def read_effect_request(payload: bytes) -> EffectRetry:
    """Decode a retry or undo request.

    Raises:
        ProtocolError: it is no such request.
    """
    try:
        wish = _read_wish.decode(payload[len(EFFECT_WISH) :]) if is_effect_request(payload) else None
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a wish about an effect that cannot be read: {error}") from error
    if wish is None or wish.verb not in (RETRY, UNDO):
        raise ProtocolError(f"a wish about an effect says {RETRY} or {UNDO}, and names the effect")
    return wish


def key_of(shown: str) -> tuple[str, int]:
    """Key and generation of an effect as `snapline effect list` shows them: `refund-17`, or `refund-17#2`."""
    key, mark, generation = shown.rpartition("#")
    return (key, int(generation)) if mark and generation.isdecimal() else (shown, 1)
