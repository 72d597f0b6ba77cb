"""Service of `Inputs` on a host's port: reads clients' requests, checks them, and passes them to the host.

The host core, not the service, decides about inputs. A valid input is accepted even if the client has disconnected: the client does not know the
outcome, and retries with the same key.

Bounds. One request is bounded by its codec (`messages/client_wire.py`). Requests being read or waiting for the host's log are bounded together: above
`UNDER_WAY_BYTES_MAX` clients must retry.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.ask_service import AnswerSource, AskService
from snapline.agent_runtime.host.input_checks import look_at, placed
from snapline.channels.options import RECEIVE_BYTES_MAX
from snapline.errors import ProtocolError, UsageError
from snapline.ids import check_id
from snapline.messages.agent_commands import (
    is_effect_request,
    is_effect_resolution,
    read_dead_letter_command,
    read_effect_request,
    read_effect_resolution,
)
from snapline.messages.client_wire import OFFER, SETTLE, OfferReader, encode_outcomes
from snapline.messages.inputs import REFUSED, GivenInput, InputOutcome
from snapline.security.rpc_authorization import Context, RpcGuard, read_first

UNDER_WAY_BYTES_MAX = 64 * 1024 * 1024
"""Largest total size of requests being read or waiting for the host's log: four of the largest. More would only take memory."""

REQUEST_COST_BYTES = 4096
"""Size counted for a request in addition to its payloads, so that empty requests are bounded too."""

READING_S_MAX = 30.0
"""Longest wait for each further message of a request: 16 MiB over 5 Mbit/s."""

ANSWER_S_MAX = 60.0
"""Longest time for the host's answer. It ends calls of clients that have no shorter limit."""


TakeInput = Callable[[str, bytes], bytes]
"""Takes an agent and a message for it; returns the message to store."""


def unchanged_payload(_agent: str, payload: bytes) -> bytes:
    """Return the payload unchanged, where inputs are not traced."""
    return payload


_Look = Callable[[GivenInput], ev.OfferedInput | InputOutcome]


class Agents(AnswerSource, Protocol):
    """Interface that the service needs of its host."""

    def offer(
        self, client: str, inputs: Sequence[ev.OfferedInput], then: Callable[[tuple[InputOutcome, ...]], None]
    ) -> None:
        """Offer inputs; `then` gets one answer for each, if there is one."""

    def type_of(self, agent: str) -> AgentType | None:
        """Return the type of an agent's class; None if the agent is not here."""


class InputService:
    """The service of one host. All calls come on its event loop."""

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
        """Return the handlers of its calls."""
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
                await self._guard.record(context, SETTLE, _about(reading))
            client = await self._client_of(reading, context)
            outcomes = await self._outcomes(client, [look(item) for item in reading.inputs], context)
            await context.write(encode_outcomes(outcomes))

    # ---- reading ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[Callable[[int], bool]]:
        """Reserve room for one request until it ends. The yielded function returns whether that many bytes still fit."""
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
        """Read the whole request; a call with an invalid request ends here, and none of its inputs are taken."""
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
        """Return the client's name: from its certificate, or as the request names it. Handlers get it as their sender."""
        identity = self._guard.identity(context)
        try:
            return check_id(reading.client if identity is None else identity.name, "client")
        except UsageError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("abort raises") from error

    # ---- deciding ---------------------------------------------------------------------------------------------------

    async def _outcomes(
        self, client: str, found: Sequence[ev.OfferedInput | InputOutcome], context: Context
    ) -> list[InputOutcome]:
        """Return one outcome for each, in order. There is no wait between the check of an agent and the offer."""
        offered = [checked for checked in found if isinstance(checked, ev.OfferedInput)]
        answers = iter(await self._answers(client, offered, context) if offered else ())
        place_of = self._agents.place_of
        return [
            checked if isinstance(checked, InputOutcome) else placed(checked.agent, next(answers), place_of)
            for checked in found
        ]

    def _check_command(self, given: GivenInput) -> ev.OfferedInput | InputOutcome:
        """Check an operator command. The core knows whether the dead letter or effect exists."""
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
            if not answered.done():  # the client may have gone
                answered.set_result(answers)

        self._agents.offer(client, offered, then)
        await asyncio.wait({answered}, timeout=ANSWER_S_MAX)
        if not answered.done():
            reason = f"host {self._host} has not answered; the inputs may be taken all the same"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
        return answered.result()


def _command_in(payload: bytes) -> msgspec.Struct:
    """Decode an operator command, about a dead letter or an effect.

    Raises:
        ProtocolError: the command is unknown.
    """
    if is_effect_resolution(payload):
        return read_effect_resolution(payload)
    return read_effect_request(payload) if is_effect_request(payload) else read_dead_letter_command(payload)


def _about(reading: OfferReader) -> str:
    """Describe operator commands: their agents and contents."""
    return "; ".join(f"{item.agent}: {_in_words(item.payload)}" for item in reading.inputs)


def _in_words(payload: bytes) -> str:
    try:
        fields = msgspec.structs.asdict(_command_in(payload))
    except ProtocolError as error:
        return str(error)
    return ", ".join(f"{name} {value}" for name, value in fields.items() if not isinstance(value, bytes))
