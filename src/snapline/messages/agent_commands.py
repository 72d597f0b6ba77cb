"""Operator commands to an agent about its dead letters and external effects. Each command is sent to the agent as an input. Only the
payload shows that the input is a command.

Like every input, a command is logged, numbered, consumed by a turn, and recovered after a failure. A command's payload begins with an empty
type name, which no message type has, so a message cannot be mistaken for a command.

If the agent is waiting for an effect, the command contains the effect's result or states that the effect was not executed. The waiting turn
consumes this command. If the effect has ended, the command requests that the effect be retried or undone. The agent handles this command in
a separate turn, like a command about a dead letter.
"""

import msgspec

from snapline.errors import ProtocolError

RETRY, DROP = "retry", "drop"

COMMAND_PREFIX = b"\x00"
"""First byte of an operator command's payload."""

TARGET_GONE = b"\x00gone"
"""Answer to a command whose dead letter no longer existed when the command's turn began."""


class DeadLetterCommand(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Operator command about a dead letter.

    Attributes:
        verb: "retry" or "drop".
        number: number of the dead letter, unique among the agent's current dead letters.
        identity: digest of the dead letter's sender and payload. The digest is needed because a recovery may undo a dead letter, and its
            number may then be reused for another.
    """

    verb: str
    number: int
    identity: bytes


_dead_letter_command_decoder = msgspec.msgpack.Decoder(DeadLetterCommand)


def dead_letter_command_payload(word: DeadLetterCommand) -> bytes:
    """Encode the command as the payload of an input."""
    return COMMAND_PREFIX + msgspec.msgpack.encode(word)


def read_dead_letter_command(payload: bytes) -> DeadLetterCommand:
    """Decode an operator command about a dead letter.

    Raises:
        ProtocolError: the payload is not a command about a dead letter.
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
"""Prefix of the payload of an EffectResolution. In a command about a dead letter, an array follows the first byte instead."""


EFFECT_REQUEST_PREFIX = COMMAND_PREFIX + b"wish"

UNDO = "undo"


class EffectResolution(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Operator command that states the outcome of an effect.

    Attributes:
        key, generation: together, the id of the effect within its agent.
        number: number of the agent's output that permitted the call of the effect. Each command that permits another call produces a new
            output. So a command applies only to the call whose outcome is unknown, and never to a later call.
        is_done: whether the effect was executed. If `is_done` is true, `result` is the encoded result of the effect. If `is_done` is false,
            the effect is called again.
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
        key, generation: together, the id of the effect within its agent.
    """

    verb: str
    key: str
    generation: int


_resolution_decoder = msgspec.msgpack.Decoder(EffectResolution)
_read_request = msgspec.msgpack.Decoder(EffectRetry)


def is_effect_resolution(payload: bytes) -> bool:
    """Return whether the payload is an encoded `EffectResolution`."""
    return payload.startswith(EFFECT_RESOLUTION_PREFIX)


def effect_resolution_payload(word: EffectResolution) -> bytes:
    """Encode the resolution as the payload of an input."""
    return EFFECT_RESOLUTION_PREFIX + msgspec.msgpack.encode(word)


def read_effect_resolution(payload: bytes) -> EffectResolution:
    """Decode the resolution of an effect.

    Raises:
        ProtocolError: the payload is not the resolution of an effect.
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
    """Return whether the payload is an encoded `EffectRetry`."""
    return payload.startswith(EFFECT_REQUEST_PREFIX)


def effect_request_payload(request: EffectRetry) -> bytes:
    """Encode the request as the payload of an input."""
    return EFFECT_REQUEST_PREFIX + msgspec.msgpack.encode(request)


def read_effect_request(payload: bytes) -> EffectRetry:
    """Decode an `EffectRetry` request.

    Raises:
        ProtocolError: the payload is not an `EffectRetry` request.
    """
    try:
        request = _read_request.decode(payload[len(EFFECT_REQUEST_PREFIX) :]) if is_effect_request(payload) else None
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a wish about an effect that cannot be read: {error}") from error
    if request is None or request.verb not in (RETRY, UNDO):
        raise ProtocolError(f"a wish about an effect says {RETRY} or {UNDO}, and names the effect")
    return request


def parse_effect_key(shown: str) -> tuple[str, int]:
    """Split an effect key in the notation of `snapline effect list` into key and generation. `refund-17` denotes generation 1, and
    `refund-17#2` denotes generation 2."""
    key, separator, generation = shown.rpartition("#")
    return (key, int(generation)) if separator and generation.isdecimal() else (shown, 1)
