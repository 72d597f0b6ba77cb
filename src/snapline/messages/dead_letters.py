"""Operator commands to an agent about its dead letters. Each command is one input, recognized only by its payload.

A command is logged, numbered, consumed in its turn and recovered like every input. No message type has an empty name, so a
message cannot be mistaken for a command.
"""

import msgspec

from snapline.errors import ProtocolError

RETRY, DROP = "retry", "drop"

COMMAND_PREFIX = b"\x00"
"""First byte of an operator command's payload."""

TARGET_GONE = b"\x00gone"
"""Answer if the dead letter did not exist any more when the command's turn came."""


class DeadLetterCommand(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Operator command about a dead letter.

    Attributes:
        verb: "retry" or "drop".
        number: number of the dead letter, among those of its agent.
        identity: digest of its sender and payload. A recovery may undo a dead letter, and its number may be reused for another one.
    """

    verb: str
    number: int
    identity: bytes


_read = msgspec.msgpack.Decoder(DeadLetterCommand)


def dead_letter_command_payload(word: DeadLetterCommand) -> bytes:
    """Return the command as the payload of an input."""
    return COMMAND_PREFIX + msgspec.msgpack.encode(word)


def read_dead_letter_command(payload: bytes) -> DeadLetterCommand:
    """Decode an operator command.

    Raises:
        ProtocolError: the payload is no operator command.
    """
    try:
        command = (
            _read.decode(payload[len(COMMAND_PREFIX) :]) if payload[: len(COMMAND_PREFIX)] == COMMAND_PREFIX else None
        )
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an operator command that cannot be read: {error}") from error
    if command is None or command.verb not in (RETRY, DROP):
        raise ProtocolError(f"an operator command needs {RETRY} or {DROP}, and a number")
    return command
