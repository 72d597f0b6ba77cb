"""What people say to an agent that stands at an effect: what came of it, or that it was not done. One input, which only its payload tells from others.

It is logged, numbered and found again by recoveries as every input is; but the agent stands in the middle of a turn, so the turn itself takes it.
"""

import msgspec

from snapline.conversation.letters import WORD
from snapline.errors import ProtocolError

EFFECT_WORD = WORD + b"effect"
"""How the payload of such a word begins. A word about a dead letter goes on with an array."""


class EffectWord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What came of an effect.

    Attributes:
        key, generation: of the effect, within its agent.
        number: of the agent's output that let it be called. Each word that lets it be called again emits another one: so a word is about one doubt, and
            never about a later one.
        is_done: with `result`, encoded; else it was not done, and is to be called.
    """

    key: str
    generation: int
    number: int
    is_done: bool
    result: bytes = b""


_read = msgspec.msgpack.Decoder(EffectWord)


def is_effect_word(payload: bytes) -> bool:
    """Is it about an effect?"""
    return payload.startswith(EFFECT_WORD)


def effect_word_payload(word: EffectWord) -> bytes:
    """The payload of the input."""
    return EFFECT_WORD + msgspec.msgpack.encode(word)


def read_effect_word(payload: bytes) -> EffectWord:
    """What is said.

    Raises:
        ProtocolError: it is no word about an effect.
    """
    try:
        word = _read.decode(payload[len(EFFECT_WORD) :]) if is_effect_word(payload) else None
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a word about an effect that cannot be read: {error}") from error
    if word is None:
        raise ProtocolError("a word about an effect names the effect and says what came of it")
    return word
