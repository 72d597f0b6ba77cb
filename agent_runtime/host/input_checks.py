"""Checks that an agent could take a message from outside, before the input is numbered, so that a client learns of its mistake.

A message that does not decode here would fail in its turn every time. A later version of the agent's class may still reject an accepted input, which
then becomes a dead letter.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from snapline.agent_runtime.agent import AgentType, Handler
from snapline.agent_runtime.message_encoding import encode_body, encode_message, with_tail
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.errors import EncodingError, HandlerNotPublicError, MessageTooLargeError, UsageError
from snapline.messages.inputs import NOT_PUBLIC, REFUSED, RETRY, GivenInput, InputOutcome
from snapline.messages.payloads import plain_name, split_message
from snapline.storage.capture.declared_values import survives_round_trip
from snapline.storage.capture.values import decode_declared

PlaceOf = Callable[[str], tuple[str, str]]
"""Returns the other host of an agent, and that host's address; both empty if unknown."""


def look_at(given: GivenInput, known: AgentType | None, host: str, place_of: PlaceOf) -> bytes | InputOutcome:
    """Return the message in the form for the agent's turn, or the outcome of an input that `host` rejects.

    `known`: type of the agent's class; None if the agent is not on this host.
    """
    if known is None:
        return InputOutcome(RETRY, 0, f"agent {given.agent!r} is not on host {host} just now", *place_of(given.agent))
    try:
        return _message_in(given, known)
    except HandlerNotPublicError as error:
        return InputOutcome(NOT_PUBLIC, reason=str(error))
    except UsageError as error:
        return InputOutcome(REFUSED, reason=str(error))


def placed(agent: str, outcome: InputOutcome, place_of: PlaceOf) -> InputOutcome:
    """Return the outcome with where the agent lives, if the input was not taken here."""
    if outcome.status != RETRY:
        return outcome
    host, address = place_of(agent)
    return msgspec.structs.replace(outcome, host=host, address=address)


def _message_in(given: GivenInput, known: AgentType) -> bytes:
    """Return the message as the agent's turn takes it; UsageError if it could not. JSON may have its trace behind the type, as other messages do."""
    if not given.type:
        check_message(given.agent, known, given.payload, public_only=given.public_only)
        return given.payload
    name = plain_name(given.type)
    message = message_of_json(given.agent, known, name, given.payload, public_only=given.public_only)
    return with_tail(message, given.type[len(name) :].encode())


def check_message(agent: str, known: AgentType, payload: bytes, *, public_only: bool = False) -> None:
    """Check that an agent of this class can take a message; `public_only`: with a public handler.

    Raises:
        HandlerNotPublicError: it has no public handler for it.
        EncodingError: the agent has no handler for the message, or the body does not match the type.
        MessageTooLargeError: it is larger than a message may be.
    """
    if len(payload) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(f"an input of {len(payload):,} bytes; the limit is {MESSAGE_BYTES_MAX:,}")
    if not payload or len(payload) < 1 + payload[0]:
        raise EncodingError(f"an input of {len(payload)} bytes that is no message: make it with snapline.Client")
    try:
        name, body = split_message(payload)
    except UnicodeDecodeError as error:
        raise EncodingError("an input whose type has no name: make it with snapline.Client") from error
    _decoded(agent, name, _handler_of(agent, known, name, public_only=public_only).decoder, body)


def message_of_json(agent: str, known: AgentType, name: str, text: bytes, *, public_only: bool = False) -> bytes:
    """Return the message of type `name` that JSON describes, as an agent of this class takes it. Datetimes with an offset become UTC.

    Raises:
        HandlerNotPublicError: the agent has no public handler for the message, and `public_only` requires one.
        EncodingError: the agent has no handler for the message, or the text is not JSON of this type; the error says where.
        MessageTooLargeError: it is larger than a message may be.
    """
    handler = _handler_of(agent, known, name, public_only=public_only)
    message = _decoded(agent, name, _json_decoder(handler.message_type), text)
    if not survives_round_trip(message, handler.message_type):
        message = _decoded(agent, name, handler.decoder, encode_body(message))
    return encode_message(message)


def _handler_of(agent: str, known: AgentType, name: str, *, public_only: bool) -> Handler:
    handler = known.handlers.get(name)
    if public_only and (
        handler is None or not handler.is_public
    ):  # outsiders must not learn which other handlers exist
        names = ", ".join(sorted([name for name, candidate in known.handlers.items() if candidate.is_public])) or "none"
        raise HandlerNotPublicError(
            f"agent {agent!r} has no public handler for messages of type {name!r} (public are: {names}); to serve it, "
            f"mark it @snapline.handler(public=True), or start the gateway with --serve {agent}/{name}"
        )
    if handler is None:
        names = ", ".join(sorted(known.handlers)) or "none"
        raise EncodingError(
            f"agent {agent!r} ({known.agent_class.__qualname__}) has no handler for messages of type {name!r}; "
            f"those it has are for: {names}"
        )
    return handler


def _decoded(agent: str, name: str, decoder: Any, body: Any) -> object:
    try:
        message: object = decoder.decode(body)
    except Exception as error:  # the message's own classes may raise anything
        raise EncodingError(f"a message of type {name!r} for agent {agent!r} is not as declared: {error}") from error
    return message


@cache
def _json_decoder(kind: type) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind, dec_hook=decode_declared)
