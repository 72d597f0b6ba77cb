"""The `Inputs` service on a host's port reads and checks clients' requests, passes them to the host, and waits for the host's answers.

The host core, not the service, decides whether inputs are accepted, and when replies may be sent. A valid input is accepted even if the
client has disconnected. The disconnected client does not know the outcome and retries with the same key.

*Checks.* Before an input is numbered, the service checks that the agent can handle the message. So the client learns at once if its message
is invalid. A later version of the agent's class may still reject an accepted input, which then becomes a dead letter.

*Bounds.* The codec limits the size of one request (`messages/client_wire.py`). All requests that are being read or that wait for the host
log share the limit `UNDER_WAY_BYTES_MAX`. Above this limit, clients must retry. For each input and kind of reply (early or final),
`Inputs.Ask` queries the core only once, however many clients wait and retry. So the service's memory is limited by the number of keys that
the agents know. If a client disconnects, the query to the core stays open and serves the next client that asks for the same input.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec

from snapline.agent_runtime.agent import AgentType, Handler
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.message_encoding import encode_body, encode_message, with_tail
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.channels.servers import RECEIVE_BYTES_MAX
from snapline.errors import EncodingError, HandlerNotPublicError, MessageTooLargeError, ProtocolError, UsageError
from snapline.ids import check_id
from snapline.messages.agent_commands import (
    is_effect_request,
    is_effect_resolution,
    read_dead_letter_command,
    read_effect_request,
    read_effect_resolution,
)
from snapline.messages.approvals import is_approval_answer, read_approval_answer
from snapline.messages.client_requests import (
    KEY_CHARACTERS_MAX,
    NOT_PUBLIC,
    REFUSED,
    RETRY,
    AskOutcome,
    GivenInput,
    InputOutcome,
)
from snapline.messages.client_wire import ASK, OFFER, SETTLE, OfferReader, answer_messages, decode_ask, encode_outcomes
from snapline.messages.payloads import plain_name, split_message
from snapline.security.rpc_authorization import APPROVER, Context, RpcGuard, read_first, refuse
from snapline.security.tokens import FAILED
from snapline.storage.capture.declared_values import survives_round_trip
from snapline.storage.capture.values import decode_declared

ASKS_MAX = 10_000
"""Largest number of clients that wait for replies at the same time. Each client's call takes some KiB of memory."""

ASK_S_MAX = 60.0
"""Time limit of one call, after which a client that still waits must call again."""

_Question = tuple[str, str, bool]
"""Agent, input key, and whether an early reply is accepted."""


class AnswerSource(Protocol):
    """Interface that `AskService` requires from its host."""

    def ask(self, agent: str, key: str, then: Callable[[ev.AskAnswer], None], *, is_early: bool) -> None:
        """Request the outcome of an input. The callback `then` receives the outcome when it is known, or is never called if the host ends
        first."""

    def place_of(self, agent: str) -> tuple[str, str]:
        """Return the id and address of the other host on which the agent runs, or two empty strings if they are unknown."""


class AskService:
    """Handles calls of `Inputs.Ask` on one host, all on the host's event loop."""

    def __init__(self, agents: AnswerSource, *, host: str) -> None:
        self._agents = agents
        self._host = host
        self._calls = 0
        self._open: dict[_Question, asyncio.Future[ev.AskAnswer]] = {}
        """Questions that the core has not answered yet."""

    def handlers(self) -> Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]:
        """Return the handlers of the service's calls."""
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(self._ask, bytes)
        return {ASK: handler}

    async def _ask(self, request: bytes, context: Context) -> None:
        if self._calls >= ASKS_MAX:
            reason = f"{ASKS_MAX:,} clients wait for answers of host {self._host}"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        self._calls += 1
        try:
            question = await self._question(request, context)
            for message in answer_messages(await self._answer(question, context)):
                await context.write(message)
        finally:
            self._calls -= 1

    async def _question(self, request: bytes, context: Context) -> _Question:
        try:
            agent, key, is_early = decode_ask(request)
            if not 0 < len(key) <= KEY_CHARACTERS_MAX:
                raise ProtocolError(f"a key has 1 to {KEY_CHARACTERS_MAX} characters, not {len(key)}")
            return check_id(agent), key, is_early
        except (ProtocolError, UsageError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("abort raises") from error

    async def _answer(self, question: _Question, context: Context) -> AskOutcome:
        waiting = self._open.get(question) or self._begin(question)
        await asyncio.wait({waiting}, timeout=ASK_S_MAX)  # if this call is cancelled, others may still wait
        if not waiting.done():
            reason = f"agent {question[0]} on host {self._host} has not answered yet"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
        answer = waiting.result()
        kind, body = split_message(answer.reply) if answer.reply else ("", b"")
        place = self._agents.place_of(question[0]) if answer.status == RETRY else ("", "")
        return AskOutcome(answer.status, answer.number, kind, bytes(body), answer.reason, *place)

    def _begin(self, question: _Question) -> "asyncio.Future[ev.AskAnswer]":
        waiting: asyncio.Future[ev.AskAnswer] = asyncio.get_running_loop().create_future()
        self._open[question] = waiting

        def then(answer: ev.AskAnswer) -> None:
            del self._open[question]
            waiting.set_result(answer)

        agent, key, is_early = question
        self._agents.ask(agent, key, then, is_early=is_early)
        return waiting


PlaceOf = Callable[[str], tuple[str, str]]
"""Function that returns the other host on which an agent runs, and that host's address, or two empty strings if they are unknown."""


def look_at(given: GivenInput, known: AgentType | None, host: str, place_of: PlaceOf) -> bytes | InputOutcome:
    """Return the message in the encoding that the agent's turn requires, or an outcome with the reason if the input is rejected.

    `known` is None if the agent is not on this host, otherwise it describes the agent's class.
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
    """Return the outcome. If its status is "retry", add the host on which the agent runs and that host's address."""
    if outcome.status != RETRY:
        return outcome
    host, address = place_of(agent)
    return msgspec.structs.replace(outcome, host=host, address=address)


def _message_in(given: GivenInput, known: AgentType) -> bytes:
    """Return the message in the encoding that the agent's turn requires. Raise UsageError if the agent cannot handle the message. As in all
    other messages, a trace reference may follow the type of a JSON message."""
    if not given.type:
        check_message(given.agent, known, given.payload, public_only=given.public_only)
        return given.payload
    name = plain_name(given.type)
    message = message_of_json(given.agent, known, name, given.payload, public_only=given.public_only)
    return with_tail(message, given.type[len(name) :].encode())


def check_message(agent: str, known: AgentType, payload: bytes, *, public_only: bool = False) -> None:
    """Check that an agent of this class can handle a message. If `public_only` is set, the handler must also be public.

    Raises:
        HandlerNotPublicError: If the agent has no public handler for the message.
        EncodingError: If the agent has no handler for the message, or the body does not match the type.
        MessageTooLargeError: If the message exceeds the maximum message size.
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
    """Decode JSON as a message of type `name`, and encode the message for an agent of this class. Datetimes with a UTC offset are converted
    to UTC.

    Raises:
        HandlerNotPublicError: If `public_only` is set, and the agent has no public handler for the message.
        EncodingError: If the agent has no handler for the message, or the text is not JSON of this type. The error message names the
            invalid field.
        MessageTooLargeError: If the message exceeds the maximum message size.
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


UNDER_WAY_BYTES_MAX = 64 * 1024 * 1024
"""Largest total size of requests that are being read or wait for the host log. It corresponds to four requests of the largest size. A
higher limit would only use more memory."""

REQUEST_COST_BYTES = 4096
"""Size that each request counts in addition to its payloads, so that the number of empty requests is limited too."""

READING_S_MAX = 30.0
"""Longest wait for each further message of a request. At 5 Mbit/s, 16 MiB take about this long."""

ANSWER_S_MAX = 60.0
"""Longest wait for the host's answer. After this time a client's call ends, unless the client has set a shorter limit."""


TakeInput = Callable[[str, bytes], bytes]
"""Function that gets an agent and a message for it, and returns the message to log."""


def unchanged_payload(_agent: str, payload: bytes) -> bytes:
    """Return the payload unchanged. This function is used if inputs are not traced."""
    return payload


_Look = Callable[[GivenInput], ev.OfferedInput | InputOutcome]


class Agents(AnswerSource, Protocol):
    """Interface that `InputService` requires from its host."""

    def offer(
        self, client: str, inputs: Sequence[ev.OfferedInput], then: Callable[[tuple[InputOutcome, ...]], None]
    ) -> None:
        """Offer inputs to the host. The callback `then` receives one outcome for each input, or is never called if the host ends first."""

    def type_of(self, agent: str) -> AgentType | None:
        """Return the description of an agent's class, or None if the agent is not on this host."""


class InputService:
    """Handles calls that offer inputs to one host, all on the host's event loop."""

    def __init__(
        self, agents: Agents, guard: RpcGuard, *, host: str, take_input: TakeInput = unchanged_payload
    ) -> None:
        self._agents = agents
        self._take_input = take_input
        self._guard = guard
        self._host = host
        self._bytes = 0
        self._asks = AskService(agents, host=host)

    def handlers(self) -> Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]:
        """Return the handlers of the service's calls."""
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._offer)
        settle: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._settle)
        return {OFFER: handler, SETTLE: settle, **self._asks.handlers()}

    async def _offer(self, _requests: object, context: Context) -> None:
        await self._serve(self._look, context)

    async def _settle(self, _requests: object, context: Context) -> None:
        await self._serve(self._check_command, context, is_operator_command=True)

    async def _serve(self, look: _Look, context: Context, *, is_operator_command: bool = False) -> None:
        async with self._room() as taking:
            reading = await self._read(context, taking)
            if is_operator_command:
                await self._check_role(reading, context)
                await self._guard.record(context, SETTLE, _about(reading))
            client = await self._client_of(reading, context)
            outcomes = await self._outcomes(client, [look(item) for item in reading.inputs], context)
            await context.write(encode_outcomes(outcomes))

    # ---- reading ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[Callable[[int], bool]]:
        """Count the bytes of one request towards the total limit until the request ends. The yielded function counts further bytes, and
        returns whether all requests together are still within the limit."""
        taken = 0

        def take(size_bytes: int) -> bool:
            nonlocal taken
            taken += size_bytes
            self._bytes += size_bytes
            return self._bytes <= UNDER_WAY_BYTES_MAX

        try:
            yield take
        finally:
            self._bytes -= taken

    async def _read(self, context: Context, take: Callable[[int], bool]) -> OfferReader:
        """Read the whole request. If the request is invalid, abort the call, so that none of its inputs is accepted."""
        reading, goes_on = OfferReader(), True
        is_room = take(REQUEST_COST_BYTES)
        try:
            data = await self._guard.first_message(context, RECEIVE_BYTES_MAX)
            while data is not None and is_room:
                is_room = take(len(data))
                goes_on = reading.take(data)
                if not goes_on:
                    break
                data = await read_first(context, READING_S_MAX)
        except ProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if not is_room:
            size = f"{UNDER_WAY_BYTES_MAX:,} bytes"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"host {self._host} has {size} of inputs under way")
        if goes_on:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a request that has not come to its end")
        return reading

    async def _client_of(self, reading: OfferReader, context: Context) -> str:
        """Return the client's name, which handlers get as the sender. The name comes from the client's certificate, or from the request if
        there is no certificate."""
        identity = self._guard.identity(context)
        try:
            return check_id(reading.client if identity is None else identity.name, "client")
        except UsageError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("abort raises") from error

    async def _check_role(self, reading: OfferReader, context: Context) -> None:
        """Abort the call if an approver gives other commands than answers to approvals."""
        identity = self._guard.identity(context)
        is_approver = identity is not None and identity.role == APPROVER
        if is_approver and not all(is_approval_answer(item.payload) for item in reading.inputs):
            refusal = f"an approver answers approvals, and gives no other commands: {_about(reading)}"
            await self._guard.record(context, SETTLE, refusal, FAILED)
            await refuse(context, refusal)

    # ---- deciding ---------------------------------------------------------------------------------------------------

    async def _outcomes(
        self, client: str, found: Sequence[ev.OfferedInput | InputOutcome], context: Context
    ) -> list[InputOutcome]:
        """Return one outcome for each input, in order. There is no pause between checking and offering the inputs, so no agent moves in
        between."""
        offered = [checked for checked in found if isinstance(checked, ev.OfferedInput)]
        answers = iter(await self._answers(client, offered, context) if offered else ())
        place_of = self._agents.place_of
        return [
            checked if isinstance(checked, InputOutcome) else placed(checked.agent, next(answers), place_of)
            for checked in found
        ]

    def _check_command(self, given: GivenInput) -> ev.OfferedInput | InputOutcome:
        """Check that an operator command is valid. Only the core knows whether the dead letter or effect that the command names exists."""
        try:
            _command_in(given.payload)
        except ProtocolError as error:
            return InputOutcome(REFUSED, reason=str(error))
        return ev.OfferedInput(given.agent, given.key, given.payload, is_operator_command=True)

    def _look(self, given: GivenInput) -> ev.OfferedInput | InputOutcome:
        outcome = look_at(given, self._agents.type_of(given.agent), self._host, self._agents.place_of)
        if isinstance(outcome, InputOutcome):
            return outcome
        return ev.OfferedInput(given.agent, given.key, self._take_input(given.agent, outcome))

    async def _answers(
        self, client: str, offered: Sequence[ev.OfferedInput], context: Context
    ) -> tuple[InputOutcome, ...]:
        answered: asyncio.Future[tuple[InputOutcome, ...]] = asyncio.get_running_loop().create_future()

        def then(answers: tuple[InputOutcome, ...]) -> None:
            if not answered.done():  # the client may have disconnected
                answered.set_result(answers)

        self._agents.offer(client, offered, then)
        await asyncio.wait({answered}, timeout=ANSWER_S_MAX)
        if not answered.done():
            reason = f"host {self._host} has not answered; the inputs may be taken all the same"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
        return answered.result()


def _command_in(payload: bytes) -> msgspec.Struct:
    """Decode an operator's command that concerns a dead letter, an effect or an approval.

    Raises:
        ProtocolError: If the command is unknown.
    """
    if is_approval_answer(payload):
        return read_approval_answer(payload)
    if is_effect_resolution(payload):
        return read_effect_resolution(payload)
    return read_effect_request(payload) if is_effect_request(payload) else read_dead_letter_command(payload)


def _about(reading: OfferReader) -> str:
    """Describe the operator commands in a request for the audit log, with each command's agent and content."""
    return "; ".join(f"{item.agent}: {_in_words(item.payload)}" for item in reading.inputs)


def _in_words(payload: bytes) -> str:
    try:
        fields = msgspec.structs.asdict(_command_in(payload))
    except ProtocolError as error:
        return str(error)
    return ", ".join(f"{name} {value}" for name, value in fields.items() if not isinstance(value, bytes))
