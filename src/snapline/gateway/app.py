"""HTTP requests to the gateway: inputs to agents, their answers, and outputs. An adapter: the client decides.

    POST /agents/{agent}/{message}     JSON by the message's type; `Idempotency-Key`; ?answer=none|early|final&timeout_s=
    GET  /outputs, /outputs/{topic}    server-sent events, from ?after= or `Last-Event-ID` on
    GET  /openapi.json                 OpenAPI document
    GET  /health                       200 while the coordinator answers

Everyone who can reach the gateway may send inputs to public handlers, which hosts check (`GivenInput.public_only`), and to the handlers that it is
configured to serve. So it listens on loopback, or requires a token (`check_exposure`). Without a token it rejects pages of other sites
(`browser_headers.py`); with a token no such page can send it. A body must be declared as JSON: a page of another site can send such a body only after
a CORS preflight, which the gateway does not answer.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from snapline.agent_runtime.message_encoding import MessageReader, Output, OutputsReverted, read_header
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.client.client import TIMEOUT_S, Client
from snapline.client.input_outcomes import CALLER_TRACE, ExternalMessage
from snapline.errors import MessageTooLargeError, SnaplineError, UsageError
from snapline.gateway.browser_headers import is_from_other_site, is_this_machine
from snapline.gateway.limits import RequestLimits
from snapline.gateway.problems import NotJsonError, problem, problem_of
from snapline.gateway.served_handlers import NOTHING, Served
from snapline.messages.json_text import NESTED, read_json

ANSWERS = ("none", "early", "final")
KEY = "Idempotency-Key"

TIMEOUT_S_MAX = 600.0
KEEP_ALIVE_S = 15.0
"""Time between keep-alives of an output stream: proxies close silent connections."""

PART_BYTES = 64 * 1024
"""Size of the chunks in which an output is sent; the next chunk waits until the reader has received most of the current one."""

HEALTH_S = 2.0

HEALTH_PERIOD_S = 1.0
"""Shortest time between two checks of the coordinator, for any number of requests: health checks need no token."""

JSON = "application/json"

Handler = Callable[[Request], Awaitable[Response]]
_Found = TypeVar("_Found")
_PLAIN = MessageReader(None, "message_type", "the output")


class Gateway:
    """Serves requests with one client. `token`: required token, or ""; `openapi`: the document; `served`: handlers to serve besides public ones."""

    def __init__(self, client: Client, *, token: str, openapi: dict[str, Any], served: Served = NOTHING) -> None:
        self._client = client
        self._token = token.encode()
        self._openapi = openapi
        self._served = served
        self._limits = RequestLimits()
        self._health_lock, self._health_s, self._phase = asyncio.Lock(), float("-inf"), ""

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/agents/{agent}/{message}", self._guarded(self._give), methods=["POST"]),
            Route("/outputs", self._guarded(self._outputs)),
            Route("/outputs/{topic}", self._guarded(self._outputs)),
            Route("/openapi.json", self._guarded(self._describe)),
            Route("/health", self._restricted_to_own_site(self._health)),
        ]
        return Starlette(routes=routes)

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if not self._is_authorized(request):
                return problem(401, "this gateway asks for a token: send the header `Authorization: Bearer TOKEN`")
            try:
                return await handler(request)
            except SnaplineError as error:
                return problem_of(error)
            except RecursionError:
                return problem_of(UsageError(NESTED))

        return self._restricted_to_own_site(guarded)

    def _restricted_to_own_site(self, handler: Handler) -> Handler:
        """Return a handler that, without a token, answers only this machine, and no page of another site."""
        if self._token:
            return handler

        async def checked(request: Request) -> Response:
            if not is_this_machine(request.url.hostname or ""):
                return problem(421, "without --token-file this gateway answers as 127.0.0.1 or localhost only")
            if is_from_other_site(request):
                return problem(403, "without --token-file this gateway answers no page of another site")
            return await handler(request)

        return checked

    def _is_authorized(self, request: Request) -> bool:
        scheme, _, given_token = request.headers.get("Authorization", "").partition(" ")
        is_right = secrets.compare_digest(given_token.encode(), self._token)
        return not self._token or (is_right and scheme.lower() == "bearer")

    # ---- inputs ---------------------------------------------------------------------------------------------------

    async def _give(self, request: Request) -> Response:
        answer, timeout_s = _answer_of(request), _timeout_of(request)
        traceparent = read_header(request.headers.get("traceparent", ""))
        CALLER_TRACE.set(b"" if traceparent is None else traceparent.tail())  # safe: each request runs in its own task
        key = request.headers.get(KEY) or f"http-{secrets.token_hex(16)}"
        agent, name = request.path_params["agent"], request.path_params["message"]
        with self._limits.request(agent) as take:
            fields = await _body_of(request, take)
            message = ExternalMessage(name, fields, public_only=not self._served.has(agent, name))
            if answer == "none":
                receipt = await _result_unless_disconnected(request, self._client.send(agent, message, key, timeout_s))
                result = {"agent": agent, "number": receipt.number, "key": key, "is_repeated": receipt.is_repeated}
                return JSONResponse(result, 202, {KEY: key})
            asking = self._client.ask(agent, message, key, answer == "early", timeout_s)
            reply = await _result_unless_disconnected(request, asking)
        result = {"agent": agent, "number": reply.number, "key": key, "is_early": answer == "early"}
        return JSONResponse({**result, "message": msgspec.to_builtins(reply.message)}, 200, {KEY: key})

    # ---- outputs --------------------------------------------------------------------------------------------------

    async def _outputs(self, request: Request) -> Response:
        after = request.headers.get("Last-Event-ID") or request.query_params.get("after", "")
        async with AsyncExitStack() as opened:
            opened.enter_context(self._limits.stream())
            topic = request.path_params.get("topic", "")
            reader = _Reader(self._client.outputs(topic, after=after, message_type=msgspec.Raw))
            opened.push_async_callback(reader.close)
            with contextlib.suppress(
                TimeoutError
            ):  # an invalid cursor fails at once, so it gets an error response, not a stream
                await asyncio.wait_for(asyncio.shield(reader.coming), HEALTH_S)
            return _OutputStream(reader, opened.pop_all())

    # ---- the gateway itself ---------------------------------------------------------------------------------------

    async def _describe(self, request: Request) -> Response:
        return JSONResponse(self._openapi)

    async def _health(self, request: Request) -> Response:
        async with self._health_lock:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._health_s >= HEALTH_PERIOD_S:
                self._phase, self._health_s = await self._fetch_phase(), now_s
        if not self._phase:
            return problem(503, "the coordinator does not answer")
        return JSONResponse({"phase": self._phase})

    async def _fetch_phase(self) -> str:
        try:
            return str((await asyncio.wait_for(self._client.status(), HEALTH_S)).get("phase"))
        except (SnaplineError, TimeoutError):
            return ""


class _Reader:
    """Reader of outputs. `coming`: future of the next one."""

    def __init__(self, found: AsyncGenerator[Output | OutputsReverted, None]) -> None:
        self._found = found
        self.coming = asyncio.ensure_future(anext(found, None))

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events. The cursor is the id, so a browser that reconnects continues after it. The next output is requested on demand."""
        try:
            while True:
                done, _ = await asyncio.wait([self.coming], timeout=KEEP_ALIVE_S)
                if not done:
                    yield b": nothing yet\n\n"
                    continue
                if self.coming.result() is None:
                    yield b"event: end\ndata: {}\n\n"
                    return
                for part in _event(self.coming.result()):
                    for start in range(0, len(part), PART_BYTES):
                        yield part[start : start + PART_BYTES]
                self.coming = asyncio.ensure_future(anext(self._found, None))
        except SnaplineError as error:
            yield b"event: failure\ndata: %b\n\n" % msgspec.json.encode({"detail": str(error)})

    async def close(self) -> None:
        """Stop reading."""
        self.coming.cancel()
        await asyncio.wait([self.coming])
        await self._found.aclose()


class _OutputStream(StreamingResponse):
    """Response to a reader; closes `opened` when it ends, even if it never begins."""

    def __init__(self, reader: _Reader, opened: AsyncExitStack) -> None:
        headers = {"Cache-Control": "no-store"}
        super().__init__(reader.events(), media_type="text/event-stream", headers=headers)
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the response; called by the server."""
        async with self._opened:
            await super().__call__(scope, receive, send)


def _event(each: Output | OutputsReverted | None) -> tuple[bytes, bytes, bytes]:
    """Return head, data and end of an event. The decoded message, which may take 30 times its bytes, exists only in this function."""
    assert each is not None, "that is the end"
    kind = "undone" if isinstance(each, OutputsReverted) else "output"
    if isinstance(each, Output):
        message = _PLAIN.read(each.message["type"], each.message["fields"])
        each = msgspec.structs.replace(each, message=message)
    data = bytes(memoryview(msgspec.json.encode(each)))  # copied, since the encoder's own buffer is half as large again
    return f"id: {each.cursor}\nevent: {kind}\ndata: ".encode(), data, b"\n\n"


async def _result_unless_disconnected(request: Request, asked: Coroutine[Any, Any, _Found]) -> _Found:
    """Return the result; stop when the requester has disconnected, to free its slot."""
    result_task, disconnect_task = asyncio.ensure_future(asked), asyncio.ensure_future(_end_of(request))
    try:
        await asyncio.wait([result_task, disconnect_task], return_when=asyncio.FIRST_COMPLETED)
        if not result_task.done():
            raise UsageError("the request ended before there was an answer")
        return result_task.result()
    finally:
        result_task.cancel()
        disconnect_task.cancel()


async def _end_of(request: Request) -> None:
    """Wait until the requester has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body_of(request: Request, take: Callable[[int], None]) -> msgspec.Raw:
    """Return the message's fields; an empty body has none. `take` counts its bytes."""
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    body = bytearray()
    try:
        async for part in request.stream():
            if part and kind != JSON:
                raise NotJsonError(
                    f"send the body as JSON, with the header `Content-Type: {JSON}`, not {kind or 'without one'}"
                )
            body += part
            if len(body) > MESSAGE_BYTES_MAX:
                raise MessageTooLargeError(f"a message has {MESSAGE_BYTES_MAX:,} bytes at most")
            take(len(part))
    except ClientDisconnect as error:
        raise UsageError("the request ended before its body was whole") from error
    try:
        text = bytes(body) or b"{}"
        read_json(text)
        return msgspec.Raw(text)  # only the bytes are stored: decoded values take up to 30 times the space
    except UsageError as error:
        raise UsageError(f"the body is no JSON: {error}") from error


def _answer_of(request: Request) -> str:
    answer = request.query_params.get("answer", ANSWERS[0])
    if answer not in ANSWERS:
        raise UsageError(f"answer={answer} is none of {', '.join(ANSWERS)}")
    return answer


def _timeout_of(request: Request) -> float:
    text = request.query_params.get("timeout_s", str(TIMEOUT_S))
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise UsageError(f"timeout_s={text} is no number of seconds up to {TIMEOUT_S_MAX:g}")
    return timeout_s
