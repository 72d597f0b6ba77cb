"""Operator commands to an agent about its dead letters and effects. Each command is one input, recognized by its payload alone.

A command is logged, numbered, consumed in a turn and recovered like every input. No message type has an empty name, so a
message cannot be mistaken for a command.

If the agent waits for an effect, a command gives the effect's result or declares that the effect was not executed; the waiting turn
consumes the command. If the effect has ended, a command requests a retry or an undo. Such a command has its own turn, like a command
about a dead letter.
"""

import msgspec

from snapline.errors import ProtocolError

RETRY, DROP = "retry", "drop"

COMMAND_PREFIX = b"\x00"
"""First byte of an operator command's payload."""

TARGET_GONE = b"\x00gone"
"""Answer of a command whose dead letter did not exist any more when the command's turn came."""


class DeadLetterCommand(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Operator command about a dead letter.

    Attributes:
        verb: "retry" or "drop".
        number: number of the dead letter among those of its agent.
        identity: digest of the dead letter's sender and payload. A recovery may undo a dead letter and reuse its number for another one.
    """

    verb: str
    number: int
    identity: bytes


_dead_letter_command_decoder = msgspec.msgpack.Decoder(DeadLetterCommand)


def dead_letter_command_payload(word: DeadLetterCommand) -> bytes:
    """Return the command as the payload of an input."""
    return COMMAND_PREFIX + msgspec.msgpack.encode(word)


def read_dead_letter_command(payload: bytes) -> DeadLetterCommand:
    """Decode an operator command.

    Raises:
        ProtocolError: the payload is not an operator command.
    """
    try:
        command = (
            _dead_letter_command_decoder.decode(payload[len(COMMAND_PREFIX) :])
            if payload[: len(COMMAND_PREFIX)] == COMMAND_PREFIX
            else None
        )
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an operator command that cannot be read: {error}") from error
    if command is None or command.verb not in (RETRY, DROP):
        raise ProtocolError(f"an operator command needs {RETRY} or {DROP}, and a number")
    return command


EFFECT_RESOLUTION_PREFIX = COMMAND_PREFIX + b"effect"
"""Prefix of a resolution's payload. In a command about a dead letter, an array follows the first byte instead."""


EFFECT_REQUEST_PREFIX = COMMAND_PREFIX + b"wish"

UNDO = "undo"


class EffectResolution(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Operator command that resolves an effect.

    Attributes:
        key, generation: key and generation that identify the effect within its agent.
        number: number of the agent's output that permitted the call. Each command that permits another call emits a new output, so a
            command applies to one call in doubt and never to a later one.
        is_done: the effect was executed, with `result` (encoded). If False, the effect was not executed and is to be called.
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
        key, generation: key and generation that identify the effect within its agent.
    """

    verb: str
    key: str
    generation: int


_resolution_decoder = msgspec.msgpack.Decoder(EffectResolution)
_read_request = msgspec.msgpack.Decoder(EffectRetry)


def is_effect_resolution(payload: bytes) -> bool:
    """Return whether the payload is the resolution of an effect."""
    return payload.startswith(EFFECT_RESOLUTION_PREFIX)


def effect_resolution_payload(word: EffectResolution) -> bytes:
    """Return the resolution as the payload of an input."""
    return EFFECT_RESOLUTION_PREFIX + msgspec.msgpack.encode(word)


def read_effect_resolution(payload: bytes) -> EffectResolution:
    """Decode the resolution of an effect.

    Raises:
        ProtocolError: the payload is not a resolution.
    """
    try:
        command = (
            _resolution_decoder.decode(payload[len(EFFECT_RESOLUTION_PREFIX) :])
            if is_effect_resolution(payload)
            else None
        )
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a word about an effect that cannot be read: {error}") from error
    if command is None:
        raise ProtocolError("a word about an effect names the effect and says what came of it")
    return command


def is_effect_request(payload: bytes) -> bool:
    """Return whether the payload is a retry or undo request."""
    return payload.startswith(EFFECT_REQUEST_PREFIX)


def effect_request_payload(request: EffectRetry) -> bytes:
    """Return the request as the payload of an input."""
    return EFFECT_REQUEST_PREFIX + msgspec.msgpack.encode(request)


def read_effect_request(payload: bytes) -> EffectRetry:
    """Decode a retry or undo request.

    Raises:
        ProtocolError: the payload is not such a request.
    """
    try:
        request = _read_request.decode(payload[len(EFFECT_REQUEST_PREFIX) :]) if is_effect_request(payload) else None
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a wish about an effect that cannot be read: {error}") from error
    if request is None or request.verb not in (RETRY, UNDO):
        raise ProtocolError(f"a wish about an effect says {RETRY} or {UNDO}, and names the effect")
    return request


def parse_effect_key(shown: str) -> tuple[str, int]:
    """Return key and generation of an effect in the form that `snapline effect list` shows: `refund-17`, or `refund-17#2`."""
    key, separator, generation = shown.rpartition("#")
    return (key, int(generation)) if separator and generation.isdecimal() else (shown, 1)
