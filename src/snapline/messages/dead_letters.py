"""Operator commands to an agent about its dead letters: one input each, which only its payload tells from others.

A command is logged, numbered, consumed in its turn and found again by recoveries as every input is. No message has an empty type name, so no
message is taken for one.
"""

import msgspec

from snapline.errors import ProtocolError

RETRY, DROP = "retry", "drop"

WORD = b"\x00"
"""First byte of a word's payload."""

GONE = b"\x00gone"
"""Answer if there was no such letter any more when the command's turn came."""


class DeadLetterCommand(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Operator command about a dead letter.

    Attributes:
        verb: "retry" or "drop".
        number: of the letter, among those of its agent.
        identity: of its sender and payload. A recovery may undo a letter, and another one may have its number then.
    """

    verb: str
    number: int
    identity: bytes


_read = msgspec.msgpack.Decoder(DeadLetterCommand)


def word_payload(word: DeadLetterCommand) -> bytes:
    """The payload of the input."""
    return WORD + msgspec.msgpack.encode(word)


def read_word(payload: bytes) -> DeadLetterCommand:
    """Decode an operator command.

    Raises:
        ProtocolError: it is no operator command.
    """
    try:
        word = _read.decode(payload[len(WORD) :]) if payload[: len(WORD)] == WORD else None
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an operator's word that cannot be read: {error}") from error
    if word is None or word.verb not in (RETRY, DROP):
        raise ProtocolError(f"an operator's word says {RETRY} or {DROP}, and a number")
    return word
