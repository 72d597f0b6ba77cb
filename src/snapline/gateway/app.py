"""HTTP gateway of a fleet, which accepts inputs to agents and returns answers and outputs. The gateway is only an adapter. All decisions
are made by its client of the fleet.

    POST /agents/{agent}/{message}     JSON by the message's type; `Idempotency-Key`; ?answer=none|early|final&timeout_s=
    GET  /outputs, /outputs/{topic}    server-sent events, from ?after= or `Last-Event-ID` on
    GET  /approvals                    what agents ask people, if the gateway is to serve that
    POST /approvals/{id}               `{"is_granted": true, "note": ""}`
    GET  /openapi.json                 OpenAPI document, generic or with the message types of one fleet's classes
    GET  /health                       200 while the coordinator answers

Anyone who can reach the gateway may send inputs to public handlers and to additional handlers that the gateway is configured to serve
(`Served`). Hosts check that a handler is public (`GivenInput.public_only`). So the gateway either listens only on a loopback address or
requires a token (`check_exposure`). Without a token, the gateway rejects requests from web pages of other sites (`http_server.py`). With a
token, such pages are rejected because they do not know the token. A request's body must be declared as JSON. A page of another site can
send a JSON body only after a CORS preflight request, which the gateway does not grant.

Approvals are for people of the fleet, and not for everybody whose requests agents take. In a fleet with certificates, each of these requests
therefore carries a token of the fleet (`Snapline-Token`) whose role may answer approvals, and the answer counts as that person's.

`RequestLimits` limits the number and size of requests, for each agent and in total. Requests that exceed a limit are rejected immediately.
If a request fails, the response has an error status and a body with problem details as specified in RFC 9457. The process has a single
client of the fleet and a single HTTP server.
"""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import snapline
from snapline import errors
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.message_encoding import MessageReader, Output, OutputsReverted, read_header
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.client.client import TIMEOUT_S, Client, open_client
from snapline.client.sends_and_asks import CALLER_TRACE, ExternalMessage
from snapline.errors import MessageTooLargeError, SnaplineError, UsageError
from snapline.gateway.http_server import is_from_other_site, is_this_machine, serve_app
from snapline.messages.json_text import NESTED, read_json
from snapline.security.tokens import is_token
from snapline.security.transport import Security


class NotJsonError(errors.UsageError):
    """The request's body is not declared as JSON."""


class NotIdentifiedError(errors.UsageError):
    """The request carries no token of a person."""


class BusyError(errors.ExternalFailureError):
    """Too many requests or output streams are open, so the request was rejected without any effect."""


STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (NotIdentifiedError, 401),
    (errors.AgentMissingError, 404),
    (errors.HandlerNotPublicError, 403),
    (errors.InputRefusedError, 422),
    (errors.MessageTooLargeError, 413),
    (errors.FleetEndedError, 410),
    (errors.InputDeadLetteredError, 500),
    (errors.AnswerMissingError, 504),
    (errors.InputUnknownError, 504),
    (errors.InputRejectedError, 503),
    (errors.CoordinatorUnavailableError, 503),
    (errors.UnknownOutcomeError, 504),
    (errors.NotFoundError, 404),
    (errors.StoreError, 503),
    (BusyError, 503),
    (NotJsonError, 415),
    (errors.UsageError, 400),
)
"""HTTP status for each error class. The first match counts. 504 means that the request may have had an effect, and should be repeated with
the same key."""

OTHERWISE = 500


def problem_of(error: Exception) -> JSONResponse:
    """Return the response to a request that failed with this error. The response contains the error message and, if known, the agent, key
    and number of the input."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), OTHERWISE)
    about = {name: value for name in ("agent", "key", "number") if (value := getattr(error, name, None))}
    return problem(status, str(error), {"error": type(error).__name__, **about})


def problem(status: int, detail: str, more: Mapping[str, object] | None = None) -> JSONResponse:
    """Return an error response that contains a sentence for people and fields for programs."""
    headers = {"Retry-After": "1"} if status == 503 else {}
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    body = {"type": "about:blank", "status": status, "detail": detail, **(more or {})}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


AGENT_REQUESTS_MAX = 100
"""Largest number of concurrent requests to one agent. The agent handles that many, one after another, in a few seconds. Requests to other
agents are not affected."""

REQUESTS_MAX = 600
"""Largest total number of concurrent requests. It is less than the number of connections, so that there is room for incomplete requests."""

AGENT_BYTES_MAX = MESSAGE_BYTES_MAX
"""Largest total size in bytes of the concurrent requests to one agent. It equals the largest size of a message."""

BYTES_MAX = 2 * MESSAGE_BYTES_MAX
"""Largest total size in bytes of all concurrent requests. The gateway's client holds up to twice that amount before it makes sends wait."""

STREAMS_MAX = 64
"""Largest number of concurrent output streams. Each may hold two pages of outputs, which take a few MiB."""


class RequestLimits:
    """Counts the open requests and output streams of a gateway, and enforces their limits."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._streams = 0

    @contextmanager
    def request(self, agent: str) -> Iterator[Callable[[int], None]]:
        """Count a request to an agent until the block ends. The context manager yields a function that counts the bytes of the request's
        body.

        Raises:
            BusyError: a limit is exceeded. The yielded function also raises this error.
        """
        if self._requests[agent] >= AGENT_REQUESTS_MAX:
            raise BusyError(f"agent {agent} has {AGENT_REQUESTS_MAX} requests of this gateway under way")
        if self._requests.total() >= REQUESTS_MAX:
            raise BusyError(f"this gateway has {REQUESTS_MAX} requests under way")
        taken = 0

        def take(size_bytes: int) -> None:
            nonlocal taken
            taken += size_bytes
            self._bytes[agent] += size_bytes
            if self._bytes[agent] > AGENT_BYTES_MAX:
                raise BusyError(f"agent {agent} has {AGENT_BYTES_MAX:,} bytes of requests of this gateway under way")
            if self._bytes.total() > BYTES_MAX:
                raise BusyError(f"this gateway has {BYTES_MAX:,} bytes of requests under way")

        self._requests[agent] += 1
        try:
            yield take
        finally:
            self._give_back(agent, taken)

    def _give_back(self, agent: str, size_bytes: int) -> None:
        self._requests[agent] -= 1
        self._bytes[agent] -= size_bytes
        for counts in (self._requests, self._bytes):
            if not counts[agent]:
                del counts[agent]

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count an open output stream until the block ends.

        Raises:
            BusyError: too many output streams are open.
        """
        if self._streams >= STREAMS_MAX:
            raise BusyError(f"this gateway has {STREAMS_MAX} readers of outputs")
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


class Served:
    """Messages that the gateway accepts in addition to the messages of public handlers. `patterns` have the form AGENT/TYPE, where `*`
    matches any sequence of characters, as in `desk-*/Order`.

    Raises:
        UsageError: a pattern is invalid.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = [tuple(pattern.rpartition("/")[::2]) for pattern in patterns]
        for pattern, (agent, name) in zip(patterns, self._patterns, strict=True):
            if not agent or not name:
                raise UsageError(f"--serve {pattern}: use AGENT/TYPE, such as 'desk-*/Order'")

    def has(self, agent: str, message_type: str) -> bool:
        """Return whether a pattern allows messages of this type to this agent."""
        return any(fnmatchcase(agent, of) and fnmatchcase(message_type, name) for of, name in self._patterns)


NOTHING = Served()


ANSWERS = ("none", "early", "final")
KEY = "Idempotency-Key"

TIMEOUT_S_MAX = 600.0
KEEP_ALIVE_S = 15.0
"""Time in seconds between two keep-alives on an output stream without outputs. They are needed because proxies close idle connections."""

PART_BYTES = 64 * 1024
"""Size in bytes of the chunks in which an output is sent. A chunk is sent only when the reader has received most of the previous one."""

HEALTH_S = 2.0

HEALTH_PERIOD_S = 1.0
"""Shortest time in seconds between two status calls to the coordinator, for any number of health requests. The limit is needed because
health requests require no token."""

JSON = "application/json"

TOKEN = "Snapline-Token"

PEOPLE_MAX = 8
"""Largest number of concurrent requests about approvals. Each may open connections to all hosts."""

People = Callable[[str], AbstractAsyncContextManager[Client]]
"""Function that opens a client of the fleet with a person's token."""

Handler = Callable[[Request], Awaitable[Response]]
_Found = TypeVar("_Found")
_PLAIN = MessageReader(None, "message_type", "the output")


class _GivenAnswer(msgspec.Struct, forbid_unknown_fields=True):
    is_granted: bool
    note: str = ""


class Gateway:
    """Handles HTTP requests with one client of the fleet.

    `token` is the token that requests must contain, or "" if no token is required. `openapi` is the gateway's OpenAPI document. `served`
    are the messages that are accepted in addition to the messages of public handlers. `people` opens clients for people who answer
    approvals, or is None if the gateway serves no approvals.
    """

    def __init__(
        self,
        client: Client,
        *,
        token: str,
        openapi: dict[str, Any],
        served: Served = NOTHING,
        people: People | None = None,
    ) -> None:
        self._client = client
        self._people, self._people_count = people, 0
        self._token = token.encode()
        self._openapi = openapi
        self._served = served
        self._limits = RequestLimits()
        self._health_lock, self._health_s, self._phase = asyncio.Lock(), float("-inf"), ""

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/agents/{agent}/{message}", self._guarded(self._give), methods=["POST"]),
            Route("/outputs", self._guarded(self._outputs)),
            Route("/outputs/{topic}", self._guarded(self._outputs)),
            *(self._routes_of_people() if self._people is not None else ()),
            Route("/openapi.json", self._guarded(self._describe)),
            Route("/health", self._restricted_to_own_site(self._health)),
        ]
        return Starlette(routes=routes)

    def _routes_of_people(self) -> list[Route]:
        return [
            Route("/approvals", self._guarded(self._list_approvals)),
            Route("/approvals/{id}", self._guarded(self._answer_approval), methods=["POST"]),
        ]

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
        """Return the handler with an additional check of the request's origin. Without a token, a request is rejected if it is addressed to
        a different host name or comes from a page of another site."""
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

    # ---- approvals ------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _person(self, request: Request) -> AsyncIterator[Client]:
        """Open a client for the person who makes the request."""
        assert self._people is not None, "only then there are routes"
        if self._people_count >= PEOPLE_MAX:
            raise BusyError(f"this gateway has {PEOPLE_MAX} requests about approvals under way")
        self._people_count += 1
        try:
            async with self._people(request.headers.get(TOKEN, "")) as client:
                yield client
        finally:
            self._people_count -= 1

    async def _list_approvals(self, request: Request) -> Response:
        async with self._person(request) as client:
            return JSONResponse({"approvals": msgspec.to_builtins(await client.approvals())})

    async def _answer_approval(self, request: Request) -> Response:
        timeout_s = _timeout_of(request)
        with self._limits.request("@approvals") as take:
            body = await _body_of(request, take)
        try:
            given = msgspec.json.decode(body, type=_GivenAnswer)
        except msgspec.MsgspecError as error:
            raise UsageError(f'an answer is {{"is_granted": true or false, "note": text}}: {error}') from error
        async with self._person(request) as client:
            asked = next((each for each in await client.approvals() if each.id == request.path_params["id"]), None)
            if asked is None:
                raise errors.NotFoundError(f"no agent waits for approval {request.path_params['id']!r}")
            status = await client.answer_approval(
                asked.agent, asked.id, is_granted=given.is_granted, note=given.note, timeout_s=timeout_s
            )
        return JSONResponse({"id": asked.id, "agent": asked.agent, "status": status})

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
            ):  # an invalid cursor fails immediately, so that the response is an error instead of a stream
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
            return (await asyncio.wait_for(self._client.status(), HEALTH_S)).phase
        except (SnaplineError, TimeoutError):
            return ""


class _Reader:
    """Reads the fleet's outputs for one stream. `coming` is a future that yields the next output."""

    def __init__(self, found: AsyncGenerator[Output | OutputsReverted, None]) -> None:
        self._found = found
        self.coming = asyncio.ensure_future(anext(found, None))

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the outputs as server-sent events.

        The id of an event is the output's cursor, so a browser that reconnects continues with the next output. The next output is requested
        only after the current one has been sent.
        """
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
        """Stop reading outputs."""
        self.coming.cancel()
        await asyncio.wait([self.coming])
        await self._found.aclose()


class _OutputStream(StreamingResponse):
    """A response that streams outputs. The response closes `opened` when it ends, even if streaming never started."""

    def __init__(self, reader: _Reader, opened: AsyncExitStack) -> None:
        headers = {"Cache-Control": "no-store"}
        super().__init__(reader.events(), media_type="text/event-stream", headers=headers)
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the response; this is the ASGI entry point."""
        async with self._opened:
            await super().__call__(scope, receive, send)


def _event(each: Output | OutputsReverted | None) -> tuple[bytes, bytes, bytes]:
    """Return the start, the data and the end of an event. Only this function holds the decoded message, which may take 30 times its encoded
    size."""
    assert each is not None, "that is the end"
    kind = "undone" if isinstance(each, OutputsReverted) else "output"
    if isinstance(each, Output):
        message = _PLAIN.read(each.message["type"], each.message["fields"])
        each = msgspec.structs.replace(each, message=message)
    data = bytes(memoryview(msgspec.json.encode(each)))  # copied, since the encoder's own buffer is 50 % larger
    return f"id: {each.cursor}\nevent: {kind}\ndata: ".encode(), data, b"\n\n"


async def _result_unless_disconnected(request: Request, asked: Coroutine[Any, Any, _Found]) -> _Found:
    """Return the result of the awaitable `asked`. If the HTTP client disconnects first, raise UsageError, so that the request no longer
    counts towards the limits."""
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
    """Wait until the HTTP client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body_of(request: Request, take: Callable[[int], None]) -> msgspec.Raw:
    """Return the message's fields as JSON. An empty body means that there are no fields. `take` is called with the number of bytes of the
    body."""
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
        return msgspec.Raw(text)  # only the bytes are kept, since decoded values take up to 30 times as much memory
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


REFERENCE = "#/components/schemas/{name}"

_Json = dict[str, Any]
"""A JSON object."""

_KEY: _Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "maxLength": 128},
    "description": "The same key, for the same agent, is the same request. Without one a random key is drawn, and returned.",
}
_ANSWER: _Json = {
    "name": "answer",
    "in": "query",
    "schema": {"type": "string", "enum": ["none", "early", "final"], "default": "none"},
    "description": "Wait for what the agent answers; an early answer may be taken back by a recovery.",
}
_TIMEOUT: _Json = {"name": "timeout_s", "in": "query", "schema": {"type": "number", "default": 30}}


def openapi_of(fleet: Fleet | None, served: Served = NOTHING, *, has_approvals: bool = False) -> _Json:
    """Return the gateway's OpenAPI document. If `fleet` is given, the document describes the message types of its public handlers and
    the message types in `served`. Otherwise it describes no message types."""
    paths: _Json = {"/outputs/{topic}": {"get": _outputs()}}
    schemas: _Json = {}
    if has_approvals:
        paths |= _approvals()
    if fleet is None:
        message = {"name": "message", "in": "path", "required": True, "schema": {"type": "string"}}
        paths["/agents/{agent}/{message}"] = {"post": _post({"type": "object"}, [message])}
    else:
        types = _types_of(fleet, served)
        found, schemas = msgspec.json.schema_components(list(types.values()), ref_template=REFERENCE)
        for name, schema in zip(types, found, strict=True):
            paths[f"/agents/{{agent}}/{name}"] = {"post": _post(schema, [], name)}
    return {
        "openapi": "3.1.0",
        "info": {"title": fleet.name if fleet is not None else "snapline", "version": snapline.__version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _types_of(fleet: Fleet, served: Served) -> Mapping[str, type]:
    """Return all message types that the gateway may send to the fleet's agents, by name."""
    found: dict[str, type] = {}
    for agent in fleet.agents:
        for name, handler in agent_type(type(fleet.make(agent))).handlers.items():
            if name not in found and (handler.is_public or served.has(agent, name)):
                found[name] = handler.message_type
    return dict(sorted(found.items()))


def _post(schema: _Json, parameters: list[_Json], name: str = "") -> _Json:
    agent = {"name": "agent", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "operationId": f"give{name}" if name else "give",
        "parameters": [agent, *parameters, _KEY, _ANSWER, _TIMEOUT],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {"description": "Taken, and answered."},
            "202": {"description": "Taken: it takes effect exactly once."},
            "403": {"description": "No public handler takes it."},
            "404": {"description": "There is no such agent."},
            "415": {"description": "The body has another Content-Type than application/json."},
            "422": {"description": "Its agent will never take it; the detail says why."},
            "503": {"description": "Not taken in time: nothing has happened."},
            "504": {"description": "It may have been taken: give it again with the same key."},
        },
    }


def _approvals() -> _Json:
    token = {"name": TOKEN, "in": "header", "schema": {"type": "string"}, "description": "A token of the fleet."}
    approval = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    properties = {"is_granted": {"type": "boolean"}, "note": {"type": "string", "default": ""}}
    schema = {"type": "object", "required": ["is_granted"], "properties": properties}
    listed = {
        "operationId": "approvals",
        "parameters": [token],
        "responses": {"200": {"description": "What agents ask."}},
    }
    answer = {
        "operationId": "answerApproval",
        "parameters": [approval, token, _TIMEOUT],
        "requestBody": {"required": True, "content": {JSON: {"schema": schema}}},
        "responses": {
            "200": {"description": "The agent goes on with it, or will when it asks again after a recovery."},
            "400": {"description": "It was decided before, or the token's role may not answer."},
            "404": {"description": "No agent waits for that."},
            "504": {"description": "It may have been taken: give it again."},
        },
    }
    return {"/approvals": {"get": listed}, "/approvals/{id}": {"post": answer}}


def _outputs() -> _Json:
    after = {"name": "after", "in": "query", "schema": {"type": "string"}, "description": "A cursor."}
    topic = {"name": "topic", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "operationId": "outputs",
        "parameters": [topic, after],
        "responses": {"200": {"description": "Server-sent events.", "content": {"text/event-stream": {}}}},
    }


CLIENT_NAME = "gateway"


def clients_of_people(address: str, security: Security) -> People:
    """Return a function that opens clients of the fleet with people's tokens. If the fleet uses no certificates, it needs no tokens."""

    @contextlib.asynccontextmanager
    async def open_for(token: str) -> AsyncIterator[Client]:
        if security.is_tls and not is_token(token):
            raise NotIdentifiedError(
                f"send your token of the fleet in the header {TOKEN} (`snapline auth token create`)"
            )
        own = security.bearing(token) if security.is_tls else security
        async with await open_client(address, own, CLIENT_NAME) as client:
            yield client

    return open_for


async def serve(
    address: str,
    security: Security,
    listen: tuple[str, int],
    *,
    token: str,
    fleet: Fleet | None,
    served: Served,
    has_approvals: bool = False,
) -> None:
    """Serve the gateway until SIGINT or SIGTERM arrives, after printing the server's address. `has_approvals` is set if people may list and
    answer approvals.

    Raises:
        UsageError: the server cannot listen at the address.
        CoordinatorUnavailableError: no coordinator replies at the address.
    """
    async with await open_client(address, security, CLIENT_NAME) as client:
        people = clients_of_people(address, security) if has_approvals else None
        document = openapi_of(fleet, served, has_approvals=has_approvals)
        gateway = Gateway(client, token=token, openapi=document, served=served, people=people)
        await serve_app(gateway.app(), listen)
