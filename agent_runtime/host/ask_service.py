"""Service of `Inputs.Ask` on a host's port: clients wait here for an agent's answer to an input.

The service decides nothing; the host core decides the answer, and when it may be sent. The service asks the core once for each input and kind of
answer, however many clients wait and retry. So its memory is bounded by the keys that the agents know, and a departed client leaves nothing behind
that the next one would not use.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import grpc
import grpc.aio

from snapline.agent_runtime.host import host_events as ev
from snapline.errors import ProtocolError, UsageError
from snapline.ids import check_id
from snapline.messages.client_wire import ASK, answer_messages, decode_ask
from snapline.messages.inputs import KEY_CHARACTERS_MAX, RETRY, AskOutcome
from snapline.messages.payloads import split_message
from snapline.security.rpc_authorization import Context

ASKS_MAX = 10_000
"""Largest number of clients that wait at one time: each is a separate call, and takes some KiB."""

ASK_S_MAX = 60.0
"""Longest time of one call: after it, a client that still waits asks again."""

_Question = tuple[str, str, bool]
"""Agent, key, and whether an early answer will do."""


class AnswerSource(Protocol):
    """Interface that the service needs of its host."""

    def ask(self, agent: str, key: str, then: Callable[[ev.AskAnswer], None], *, is_early: bool) -> None:
        """Wait for the answer to an input; `then` gets it, if there ever is one."""

    def place_of(self, agent: str) -> tuple[str, str]:
        """Return another host where the agent lives, and that one's address; empty if that is not known."""


class AskService:
    """The service of one host. All calls come on its event loop."""

    def __init__(self, agents: AnswerSource, *, host: str) -> None:
        self._agents = agents
        self._host = host
        self._calls = 0
        self._open: dict[_Question, asyncio.Future[ev.AskAnswer]] = {}
        """Questions that the core has not answered yet."""

    def handlers(self) -> Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]:
        """Return the handlers of its calls."""
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
        await asyncio.wait({waiting}, timeout=ASK_S_MAX)  # a cancelled call leaves the future to other waiters
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
