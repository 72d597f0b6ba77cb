"""The gateway's requests: what goes to agents, and what comes from them. An adapter: the client decides.

    POST /agents/{agent}/{message}     JSON by the message's type; `Idempotency-Key`; ?answer=none|early|final&timeout_s=
    GET  /outputs, /outputs/{topic}    server-sent events, from ?after= or `Last-Event-ID` on
    GET  /openapi.json                 what it takes
    GET  /health                       200 while the coordinator answers

Whoever may reach it may do what the gateway's own client may. So it listens on loopback, or asks for a token (`check_exposure`).
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from snapline.agent_runtime.reading import Output, Undone
from snapline.agent_runtime.traceparents import read_header
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.client.client import TIMEOUT_S, Client
from snapline.client.giving import TOLD
from snapline.conversation.json_text import NESTED, read_json
from snapline.errors import MessageTooLargeError, MisuseError, SnaplineError
from snapline.gateway.problems import problem, problem_of

ANSWERS = ("none", "early", "final")
KEY = "Idempotency-Key"

TIMEOUT_S_MAX = 600.0
QUIET_S = 15.0
"""A stream of outputs says something so often: proxies close what is silent."""

HEALTH_S = 2.0

Handler = Callable[[Request], Awaitable[Response]]


class Gateway:
    """Answers requests with one client. `token`: what they have to bear, or ""; `openapi`: the document."""

    def __init__(self, client: Client, *, token: str, openapi: dict[str, Any]) -> None:
        self._client = client
        self._token = token.encode()
        self._openapi = openapi

    def app(self) -> Starlette:
        """The application."""
        routes = [
            Route("/agents/{agent}/{message}", self._guarded(self._give), methods=["POST"]),
            Route("/outputs", self._guarded(self._outputs)),
            Route("/outputs/{topic}", self._guarded(self._outputs)),
            Route("/openapi.json", self._guarded(self._describe)),
            Route("/health", self._health),
        ]
        return Starlette(routes=routes)

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if not self._may(request):
                return problem(401, "this gateway asks for a token: send the header `Authorization: Bearer TOKEN`")
            try:
                return await handler(request)
            except SnaplineError as error:
                return problem_of(error)
            except RecursionError:
                return problem_of(MisuseError(NESTED))

        return guarded

    def _may(self, request: Request) -> bool:
        scheme, _, told = request.headers.get("Authorization", "").partition(" ")
        is_right = secrets.compare_digest(told.encode(), self._token)
        return not self._token or (is_right and scheme.lower() == "bearer")

    # ---- in -------------------------------------------------------------------------------------------------------

    async def _give(self, request: Request) -> Response:
        answer, timeout_s = _answer_of(request), _timeout_of(request)
        traceparent = read_header(request.headers.get("traceparent", ""))
        TOLD.set(b"" if traceparent is None else traceparent.tail())  # each request has a task of its own
        key = request.headers.get(KEY) or f"http-{secrets.token_hex(16)}"
        agent, message = request.path_params["agent"], (request.path_params["message"], await _body_of(request))
        if answer == "none":
            receipt = await self._client.send(agent, message, key, timeout_s)
            told = {"agent": agent, "number": receipt.number, "key": key, "is_repeated": receipt.is_repeated}
            return JSONResponse(told, 202, {KEY: key})
        reply = await self._client.ask(agent, message, key, answer == "early", timeout_s)
        told = {"agent": agent, "number": reply.number, "key": key, "is_early": answer == "early"}
        return JSONResponse({**told, "message": msgspec.to_builtins(reply.message)}, 200, {KEY: key})

    # ---- out ------------------------------------------------------------------------------------------------------

    async def _outputs(self, request: Request) -> Response:
        after = request.headers.get("Last-Event-ID") or request.query_params.get("after", "")
        found = self._client.outputs(request.path_params.get("topic", ""), after=after)
        first = asyncio.ensure_future(anext(found, None))
        try:  # what is wrong with the cursor is known at once, and is no stream
            await asyncio.wait_for(asyncio.shield(first), HEALTH_S)
        except TimeoutError:
            pass
        except BaseException:  # whoever asked may have gone, too
            await _close(found, first)
            raise
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(_events(found, first), media_type="text/event-stream", headers=headers)

    # ---- about itself ---------------------------------------------------------------------------------------------

    async def _describe(self, request: Request) -> Response:
        return JSONResponse(self._openapi)

    async def _health(self, request: Request) -> Response:
        try:
            status = await asyncio.wait_for(self._client.status(), HEALTH_S)
        except (SnaplineError, TimeoutError):
            return problem(503, "the coordinator does not answer")
        return JSONResponse({"phase": status.get("phase")})


async def _events(
    found: AsyncGenerator[Output | Undone, None], first: "asyncio.Future[Output | Undone | None]"
) -> AsyncIterator[str]:
    """Server-sent events: the cursor is the id, so a browser that comes back goes on behind it."""
    coming = first
    try:
        while True:
            done, _ = await asyncio.wait([coming], timeout=QUIET_S)
            if not done:
                yield ": nothing yet\n\n"
                continue
            each = coming.result()
            if each is None:
                yield "event: end\ndata: {}\n\n"
                return
            yield _event(each)
            coming = asyncio.ensure_future(anext(found, None))
    except SnaplineError as error:
        yield f"event: failure\ndata: {msgspec.json.encode({'detail': str(error)}).decode()}\n\n"
    finally:
        await _close(found, coming)


async def _close(
    found: AsyncGenerator[Output | Undone, None], coming: "asyncio.Future[Output | Undone | None]"
) -> None:
    """Ask for no more."""
    coming.cancel()
    await asyncio.wait([coming])
    await found.aclose()


def _event(each: Output | Undone) -> str:
    kind = "output" if isinstance(each, Output) else "undone"
    return f"id: {each.cursor}\nevent: {kind}\ndata: {msgspec.json.encode(each).decode()}\n\n"


async def _body_of(request: Request) -> Any:  # whatever JSON it is
    """The message's fields; an empty body has none."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MESSAGE_BYTES_MAX:
                raise MessageTooLargeError(f"a message has {MESSAGE_BYTES_MAX:,} bytes at most")
    except ClientDisconnect as error:
        raise MisuseError("the request ended before its body was whole") from error
    try:
        return read_json(bytes(body) or b"{}")
    except MisuseError as error:
        raise MisuseError(f"the body is no JSON: {error}") from error


def _answer_of(request: Request) -> str:
    answer = request.query_params.get("answer", ANSWERS[0])
    if answer not in ANSWERS:
        raise MisuseError(f"answer={answer} is none of {', '.join(ANSWERS)}")
    return answer


def _timeout_of(request: Request) -> float:
    given = request.query_params.get("timeout_s", str(TIMEOUT_S))
    try:
        timeout_s = float(given)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise MisuseError(f"timeout_s={given} is no number of seconds up to {TIMEOUT_S_MAX:g}")
    return timeout_s
