"""Authorizes RPCs, with a table of all RPCs that snapline serves and a guard that checks every call against it.

With mutual TLS, a caller's certificate contains its role (`transport.py`). The guard checks the role before any data of the request is
read. An RPC that is not in the table is denied to all callers. The RPC's handler enforces rules between callers with the same role, for
example that a host may act only on its own behalf.

By default, gRPC would parse a complete request before any check. Parsing 16 MiB with eight million empty names would create 300 MiB of
objects. So every RPC is served as a stream of raw bytes, which makes no difference on the wire. The guard first checks the caller, then
reads one request, compares its size with the limit in the table, and only then parses it. While a stream's handler does not read, gRPC
accepts at most one flow-control window of data. The handlers for hosts and replicas limit the size of their streams. The first message of a
host's or replica's stream is small (`FIRST_BYTES_MAX`). Each caller can have at most one stream whose first message is still missing
(`RpcGuard.first_message`).

The guard limits the total size of each caller's unread responses (`ResponseLimits`), because gRPC buffers every response until the caller
reads it. If a caller never reads its responses, each call occupies memory while the connection is open. A call with an unread response
occupies 16 KB (measured) plus the size of the response.

A user may send a token together with a certificate of the role `bearer`, which has no permissions of its own. A token alone is not
sufficient, because gRPC's Python server requires a certificate either from all clients or from none. If a call contains a token, only the
token identifies the caller. An invalid token identifies no caller. Calls of operators and admins that change state are logged before they
run (`People.record`).

Without TLS, the server does not know the callers' roles, so anyone who can reach the port may call every RPC. Sizes are bounded
nevertheless.
"""

import asyncio
import contextlib
import inspect
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from snapline.errors import ProtocolError, SnaplineError, UsageError
from snapline.security.tokens import ALLOWED, FAILED, REFUSED, USER_ROLES, clipped, token_digest_in
from snapline.security.transport import Identity, Security
from snapline.telemetry.log_lines import LogScope

CALLS_MAX = 4_096
"""Largest number of concurrent calls of one caller. It equals the calls on 64 fully used connections. All programs that share a certificate
count as one caller, and each waiting program has a call in progress."""

UNREAD_BYTES_MAX = 64 * 1024 * 1024
"""Largest total size in bytes of a caller's unread responses. It equals the size of four responses of the largest size. Beyond this limit,
new requests are refused. Calls in progress still get their responses, which are counted too."""


class ResponseLimits:
    """Counts each caller's calls and unread responses on one server, and enforces the limits."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def refusal(self, caller: str) -> str:
        """Return the reason why this caller is not permitted another call now, or "" if a call is permitted."""
        if self._calls.get(caller, 0) >= CALLS_MAX:
            return f"{CALLS_MAX} calls of this caller are under way: wait for their answers"
        if self._bytes.get(caller, 0) >= UNREAD_BYTES_MAX:
            return f"{UNREAD_BYTES_MAX >> 20} MiB of answers to this caller have not been taken: read them first"
        return ""

    def begun(self, caller: str) -> "CallUnderWay":
        """Count a new call. The caller must notify the returned object when the response is ready and when the call ends."""
        self._calls[caller] = self._calls.get(caller, 0) + 1
        return CallUnderWay(self, caller)

    def _change(self, caller: str, *, calls: int, size: int) -> None:
        for table, change in ((self._calls, calls), (self._bytes, size)):
            table[caller] = table.get(caller, 0) + change
            if not table[caller]:
                del table[caller]


class CallUnderWay:
    """A call in progress, which `ResponseLimits` counts."""

    def __init__(self, unread: ResponseLimits, caller: str) -> None:
        self._limits = unread
        self._caller = caller
        self._size = 0
        self._is_over = False

    def answered(self, size: int) -> None:
        """Count the call's response of `size` bytes, which is about to be sent."""
        if not self._is_over:
            self._size = size
            self._limits._change(self._caller, calls=0, size=size)

    def over(self, _context: object = None) -> None:
        """Record that the call has ended, so that neither the call nor its response counts any longer. Further invocations have no
        effect."""
        if not self._is_over:
            self._is_over = True
            self._limits._change(self._caller, calls=-1, size=-self._size)


VIEWER, APPROVER, OPERATOR, ADMIN = USER_ROLES

BEARER = "bearer"
HOST, LAUNCHER, COORDINATOR, CLIENT = "host", "launcher", "coordinator", "client"

ROLES = {
    VIEWER: "reads: how the fleet stands, its snapshots and what its agents hold, its recovery lines, its outputs",
    APPROVER: "reads, and answers the approvals for which agents wait",
    OPERATOR: "reads, answers approvals, and acts on the fleet: takes snapshots, takes the fleet back to one, retries and drops dead letters, says what came of effects in doubt, has others tried again and undone, moves the lead and agents, ends hosts and replicas, forgets hosts and consumers of outputs",
    ADMIN: "what an operator may, takes the coordinator's whole state away as a backup, makes and revokes tokens, and reads who has asked for what",
    BEARER: "nothing but to bear a token, whose role counts: many people may have one such certificate",
    HOST: "runs agents; speaks for the host that its certificate names, and for the agents that are placed there",
    LAUNCHER: "starts and watches host processes; reports their ends, and reads the fleet's status",
    COORDINATOR: "is a replica of the coordinator; speaks to the other replicas, and hands on its own lead, and what ends them",
    CLIENT: "speaks to agents from outside: gives them inputs, hears their answers, takes their outputs, and reads where they live and how the fleet stands",
}
"""Role → description. A certificate with any other role identifies no caller."""

REFUSALS_LOGGED_MAX, REFUSAL_S = 256, 60.0
"""Largest number of recent refusals that are remembered, and shortest time in seconds between two log entries about the same caller and
RPC. These limits prevent unauthorized callers from filling the log."""

_READING = (VIEWER, APPROVER, OPERATOR, ADMIN)
_ACTING = (OPERATOR, ADMIN)
_ANSWERING = (APPROVER, *_ACTING)
_ALL = tuple(ROLES)

REQUEST_BYTES_MAX = 256 * 1024
"""Largest size in bytes of a request that lists names. It is enough for 2,000 agents with ids of the maximum length."""

RECORD_BYTES_MAX = 32 * 1024
"""Largest size in bytes of the record of a call that a host logs. The record contains the user's certificate chain."""

FIRST_BYTES_MAX = 64 * 1024
"""Largest size in bytes of the first message of a stream. It identifies the caller, and usually has a few hundred bytes."""

FIRST_S_MAX = 10.0
"""Longest wait in seconds for the request or the first message of a call."""

REFUSED_PAUSE_S = 0.1
"""Pause in seconds after a refused message. It is needed because gRPC frees the message on a different thread after the call has ended."""

ERROR_KEY = "snapline-error"
"""Key of the trailing metadata that contains the error's class name, so that the client can raise the same error."""

Context = grpc.aio.ServicerContext[Any, Any]


class RpcRule(NamedTuple):
    """The authorization rule for one RPC.

    Attributes:
        request_bytes_max: largest permitted size of a request in bytes. 0 means a stream, whose size the handler limits.
        is_self_only: whether a host or replica may use this RPC only on its own behalf. The handler checks this.
        changes_state: whether the RPC changes state. If so, calls by operators and admins are logged.
        action: what a user does by this RPC, for the error if the user may not; "" if users never call it.
    """

    roles: tuple[str, ...]
    request_bytes_max: int = REQUEST_BYTES_MAX
    note: str = ""
    is_self_only: bool = False
    changes_state: bool = False
    action: str = ""


_HEALTH, _REFLECTION = "/grpc.health.v1.Health", "/grpc.reflection.v1alpha.ServerReflection"
_COORDINATOR = "/snapline.protos.v1.Coordinator"

RPC_RULES = {
    f"{_COORDINATOR}/Attend": RpcRule((HOST,), 0, is_self_only=True),
    f"{_COORDINATOR}/Status": RpcRule((*_READING, LAUNCHER, CLIENT), action="reading the status"),
    f"{_COORDINATOR}/CreateSnapshot": RpcRule(_ACTING, changes_state=True, action="taking a snapshot"),
    f"{_COORDINATOR}/ReadSnapshots": RpcRule(_READING, action="listing snapshots"),
    f"{_COORDINATOR}/RecoveryLine": RpcRule(_READING, action="computing the recovery line"),
    f"{_COORDINATOR}/RecoveryHistory": RpcRule(_READING, action="reading past recoveries"),
    f"{_COORDINATOR}/PreviewRestore": RpcRule(_READING, action="previewing a restore"),
    f"{_COORDINATOR}/Restore": RpcRule(_ACTING, changes_state=True, action="restoring a snapshot"),
    f"{_COORDINATOR}/ReportHostExit": RpcRule(
        (*_ACTING, LAUNCHER, HOST), is_self_only=True, changes_state=True, action="reporting the end of a host"
    ),
    f"{_COORDINATOR}/ReportHostBusy": RpcRule((HOST,), 4096, is_self_only=True),
    f"{_COORDINATOR}/ReadReplica": RpcRule(_READING, action="reading the status of a replica"),
    f"{_COORDINATOR}/TransferLeader": RpcRule(
        (*_ACTING, COORDINATOR), is_self_only=True, changes_state=True, action="transferring the lead"
    ),
    f"{_COORDINATOR}/Backup": RpcRule((ADMIN,), changes_state=True, action="taking a backup"),
    f"{_COORDINATOR}/ForgetHost": RpcRule(_ACTING, changes_state=True, action="removing a host"),
    f"{_COORDINATOR}/MoveAgents": RpcRule(_ACTING, changes_state=True, action="moving agents"),
    f"{_COORDINATOR}/EndHost": RpcRule(_ACTING, changes_state=True, action="ending a host"),
    f"{_COORDINATOR}/EndReplica": RpcRule((*_ACTING, COORDINATOR), changes_state=True, action="ending a replica"),
    f"{_COORDINATOR}/Locate": RpcRule((*_READING, CLIENT), action="reading where agents run"),
    f"{_COORDINATOR}/ReadOutputs": RpcRule((*_READING, CLIENT), 4096, action="reading outputs"),
    f"{_COORDINATOR}/ReadConsumers": RpcRule((*_READING, CLIENT), 1024, action="listing consumers of outputs"),
    f"{_COORDINATOR}/MoveConsumer": RpcRule((*_ACTING, CLIENT), 4096, action="moving a consumer of outputs"),
    f"{_COORDINATOR}/ForgetConsumer": RpcRule(
        _ACTING, 4096, changes_state=True, action="removing a consumer of outputs"
    ),
    "/snapline.protos.v1.People/MakeToken": RpcRule((ADMIN,), 4096, changes_state=True, action="creating a token"),
    "/snapline.protos.v1.People/RevokeToken": RpcRule((ADMIN,), 1024, changes_state=True, action="revoking a token"),
    "/snapline.protos.v1.People/ReadTokens": RpcRule((ADMIN,), 1024, action="listing tokens"),
    "/snapline.protos.v1.People/CheckToken": RpcRule((HOST,), 1024, "a user has called the host"),
    "/snapline.protos.v1.People/RecordCall": RpcRule((HOST,), RECORD_BYTES_MAX, "a user has called the host"),
    "/snapline.protos.v1.People/ReadAudit": RpcRule((ADMIN,), 1024, action="reading the audit log"),
    "/snapline.protos.v1.Inputs/Offer": RpcRule((CLIENT,), 0, action="sending an input"),
    "/snapline.protos.v1.Inputs/Settle": RpcRule(
        _ANSWERING,
        0,
        "an approver only answers approvals",
        changes_state=True,
        action="settling approvals, effects and dead letters",
    ),
    "/snapline.protos.v1.Inputs/Ask": RpcRule((CLIENT, *_ANSWERING), 4096, action="waiting for the answer to an input"),
    "/snapline.protos.v1.Agents/Show": RpcRule(_READING, 4096, action="looking into an agent"),
    "/snapline.protos.v1.Raft/Replicate": RpcRule((COORDINATOR,), 0, is_self_only=True),
    "/snapline.protos.v1.Raft/Confirm": RpcRule((COORDINATOR,), 2048, "asked only where there are no certificates"),
    "/snapline.protos.v1.Link/Open": RpcRule((HOST,), 0, is_self_only=True),
    "/snapline.protos.v1.Link/Confirm": RpcRule((HOST,), 2048, "asked only where there are no certificates"),
    f"{_HEALTH}/Check": RpcRule(_ALL, 1024),
    f"{_HEALTH}/Watch": RpcRule(_ALL, 1024),
    f"{_REFLECTION}/ServerReflectionInfo": RpcRule(_READING, 4096, action="listing the calls of a server"),
}
"""Full name of each RPC → its rule. docs/security.md shows the table, and tests check it against a running fleet."""


class Caller(NamedTuple):
    """A caller of an RPC. `identity` is None if the caller is not a member of this fleet, or if TLS is not used.

    Attributes:
        digest: digest of the token that proves the identity, or empty if the call has no token.
        certificate: certificate chain in PEM format that proves the identity of a caller without a token. The certificate is set only for
            calls that are logged.
    """

    identity: Identity | None
    digest: bytes = b""
    certificate: bytes = b""


CALLER: ContextVar[Caller] = ContextVar("CALLER")
"""Caller of the current RPC."""


class People(Protocol):
    """Interface that `RpcGuard` uses to look up tokens and to write calls to the audit log."""

    async def holder(self, digest: bytes) -> Identity | None:
        """Return the identity of the user whose token has this digest, or None if the token is invalid.

        Raises:
            SnaplineError: If the store of tokens is currently unavailable.
        """
        ...

    async def record(self, caller: Caller, call: str, about: str, outcome: str) -> None:
        """Write a call to the permanent audit log.

        Raises:
            UsageError: If the caller's token has been revoked since the call was authorized.
            SnaplineError: If the audit log is currently not writable.
        """
        ...

    def redirect_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the trailing metadata that redirects a caller to another replica."""
        ...


class RpcGuard(grpc.aio.ServerInterceptor):
    """Server interceptor that authorizes every RPC and limits the size of requests and responses."""

    def __init__(self, security: Security, people: People | None = None) -> None:
        """Create the guard. `people` is used to look up tokens and to write the audit log. If `people` is None, every token is invalid, and
        no call is logged."""
        self._security = security
        self._people = people
        self._refusals_logged: dict[tuple[str, str], float] = {}
        self._gates: dict[str, tuple[asyncio.Lock, int]] = {}
        self._limits = ResponseLimits()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Return the handler that serves a call. gRPC invokes this method for every call, before it reads any data of the call."""
        rule, handler = RPC_RULES.get(details.method), await continuation(details)
        if handler is None or rule is None:
            return _as_stream(_refuse_unknown, None)
        call = _Call(self, rule, details.method, handler)
        if not handler.request_streaming:
            return _as_stream(call.answer, handler)
        if rule.request_bytes_max:
            return _as_stream(call.stream, handler)
        return grpc.stream_stream_rpc_method_handler(call.serve_stream)

    async def admit(self, context: Context, rule: RpcRule, method: str) -> None:
        """Authorize the caller. Abort the call if the caller is not permitted to make it."""
        try:
            caller = await self._caller_of(context)
        except SnaplineError as error:
            await self._redirect(context, error)
            raise AssertionError("it raises") from error
        CALLER.set(caller)
        refusal = self._refusal(caller, rule, method)
        if refusal is None:
            return
        identity = caller.identity
        if (
            rule.changes_state
            and identity is not None
            and identity.role in USER_ROLES
            and self._is_new_refusal(identity.name, method)
        ):
            await self.record(context, method, refusal, REFUSED)
        await refuse(context, refusal, "token" if caller.digest else "certificate")

    async def _caller_of(self, context: Context) -> Caller:
        identity = self._security.identity(context)
        digest = token_digest_in(context.invocation_metadata() or ()) if identity is not None else None
        if identity is None or digest is None:
            return Caller(identity)
        return Caller(await self._people.holder(digest) if self._people is not None else None, digest)

    def _refusal(self, caller: Caller, rule: RpcRule, method: str) -> str | None:
        """Return the reason why the caller is not permitted to make the call, or None if the call is permitted. Without TLS, every call is
        permitted."""
        if not self._security.is_tls:
            return None
        identity = caller.identity
        if identity is None and caller.digest:
            return "it was revoked, its time is over, or it never was one of this fleet"
        if identity is None or identity.role not in ROLES:
            return "it names nobody of this fleet"
        if identity.role in rule.roles:
            return None
        action, roles = rule.action or f"the call {method.rpartition('/')[2]}", " or ".join(rule.roles)
        remedy = "`snapline auth token create` makes tokens" if caller.digest else "`snapline auth issue` makes others"
        return f"{action} needs the role {roles}, and this one is for {identity.role} {identity.name}; {remedy}"

    def _is_new_refusal(self, name: str, method: str) -> bool:
        now_s, key = time.monotonic(), (name, method)
        if now_s < self._refusals_logged.get(key, float("-inf")) + REFUSAL_S:
            return False
        self._refusals_logged.pop(key, None)
        while len(self._refusals_logged) >= REFUSALS_LOGGED_MAX:
            del self._refusals_logged[next(iter(self._refusals_logged))]
        self._refusals_logged[key] = now_s
        return True

    async def record(self, context: Context, method: str, about: str, outcome: str = ALLOWED) -> None:
        """Write a user's call that changes state to the audit log. If the call cannot be logged, abort it.

        Calls by hosts, launchers and clients are not logged, because these callers change state all the time.
        """
        caller = CALLER.get(Caller(None))
        if self._people is None or caller.identity is None or caller.identity.role not in USER_ROLES:
            return
        if not caller.digest:
            caller = caller._replace(certificate=self._security.certificate_of(context))
        try:
            await self._people.record(caller, method.rpartition("/")[2], clipped(about), outcome)
        except UsageError as error:
            await refuse(context, str(error), "token" if caller.digest else "certificate")
        except SnaplineError as error:
            await self._redirect(context, error)

    async def _redirect(self, context: Context, error: SnaplineError) -> None:
        """Abort a call that this process currently cannot authorize or log. The metadata of the error names the replica to which the caller
        should turn instead."""
        assert self._people is not None
        context.set_trailing_metadata(self._people.redirect_metadata())
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def first_message(self, context: Context, bytes_max: int, limit_s: float = FIRST_S_MAX) -> bytes | None:
        """Return the first message of a call. Return None if no message arrives in time, or if gRPC has rejected the message as too large.

        If several calls have callers with the same identity, their first messages are read one at a time. After a message is refused, the
        next message is not read until the memory of the refused message has been freed. Without TLS, callers cannot be distinguished, so no
        call waits for another.

        Raises:
            ProtocolError: the message is larger than `bytes_max`.
        """
        async with self._place(context) as is_alone:
            data = await read_first(context, limit_s)
            if data is not None and len(data) <= bytes_max:
                return data
            size, data = 0 if data is None else len(data), None
            if is_alone:
                await asyncio.sleep(REFUSED_PAUSE_S)
        if size:
            raise ProtocolError(f"a first message of {size} bytes; {bytes_max} are allowed")
        return None

    def identity(self, context: Context) -> Identity | None:
        """Return the identity that the caller's token or certificate proves. Return None if neither proves an identity, or if TLS is not
        used."""
        return CALLER.get(Caller(self._security.identity(context))).identity

    async def begin(self, context: Context) -> CallUnderWay:
        """Count a new call. Abort the call if its caller has too many calls in progress or too many unread responses."""
        identity = self.identity(context)
        caller = f"{identity.role}/{identity.name}" if identity is not None else ""
        refusal = self._limits.refusal(caller)
        if refusal:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        call = self._limits.begun(caller)
        context.add_done_callback(call.over)  # type: ignore[arg-type]  # any function will do; the stubs want a class of theirs
        if context.done():  # the caller has disconnected, so gRPC will not invoke the callback
            call.over()
        return call

    @contextlib.asynccontextmanager
    async def _place(self, context: Context) -> AsyncIterator[bool]:
        identity = self.identity(context)
        if identity is None:
            yield False
            return
        caller = f"{identity.role}/{identity.name}"
        lock, users = self._gates.get(caller, (asyncio.Lock(), 0))
        self._gates[caller] = (lock, users + 1)
        try:
            async with lock:
                yield True
        finally:
            users = self._gates[caller][1] - 1
            if users:
                self._gates[caller] = (lock, users)
            else:
                del self._gates[caller]


class _Call:
    """Checks one call and then passes it to its handler. A request is parsed only after its size has been checked."""

    def __init__(self, guard: RpcGuard, rule: RpcRule, method: str, handler: Any) -> None:
        self._guard = guard
        self._rule = rule
        self._method = method
        self._handler = handler

    async def serve_stream(self, requests: Any, context: Context) -> Any:
        """Serve a call whose handler itself reads the stream of requests and limits its size."""
        await self._check(context)
        await self._guard.begin(context)
        return await (self._handler.stream_stream or self._handler.stream_unary)(requests, context)

    async def answer(self, requests: Any, context: Context) -> Any:
        """Serve a call with a single request. If the call has a single response, all log lines written during the call contain a random
        request id."""
        if self._handler.response_streaming:
            return await self._answer(requests, context)
        scope = LogScope(request=secrets.token_hex(4), call=self._method.rpartition("/")[2])
        scope.enter()
        try:
            return await self._answer(requests, context)
        finally:
            scope.close()

    async def _answer(self, _requests: Any, context: Context) -> Any:
        await self._check(context)
        call = await self._guard.begin(context)
        request = await self._read(context)
        if self._handler.response_streaming:
            return await self._handler.unary_stream(request, context)
        answer = await self._answer_one(request, context)
        call.answered(len(answer) if isinstance(answer, bytes) else answer.ByteSize())
        return answer

    async def _answer_one(self, request: Any, context: Context) -> Any:
        if not self._rule.changes_state:
            return await self._handler.unary_unary(request, context)
        await self._guard.record(context, self._method, about(request))
        try:
            return await self._handler.unary_unary(request, context)
        except BaseException:
            await self._tell_failure(context)
            raise

    async def _tell_failure(self, context: Context) -> None:
        """Write the failure of an authorized call to the audit log. Do nothing if the caller was redirected to another replica, because
        that replica logs the call."""
        code: Any = context.code()  # a number, although the type stubs say otherwise
        if code not in (grpc.StatusCode.UNAVAILABLE.value[0], grpc.StatusCode.UNAVAILABLE) and context.details():
            with contextlib.suppress(SnaplineError, grpc.aio.AbortError, grpc.aio.UsageError):
                await self._guard.record(context, self._method, str(context.details()), FAILED)

    async def stream(self, requests: Any, context: Context) -> None:
        """Serve a stream of small requests, such as those of the gRPC reflection service."""
        await self._check(context)
        await self._guard.begin(context)

        async def parsed() -> AsyncIterator[Any]:
            async for data in requests:
                yield await self._parsed(data, context)

        assert inspect.isasyncgenfunction(self._handler.stream_stream), "the only one of its kind"
        async for reply in self._handler.stream_stream(parsed(), context):
            await context.write(reply)

    async def _check(self, context: Context) -> None:
        await self._guard.admit(context, self._rule, self._method)

    async def _read(self, context: Context) -> Any:
        try:
            data = await self._guard.first_message(context, self._rule.request_bytes_max)
        except ProtocolError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            raise AssertionError("abort raises") from error
        if data is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no request came within {FIRST_S_MAX:g} s")
        assert data is not None, "abort raises"
        return await self._parsed(data, context)

    async def _parsed(self, data: bytes, context: Context) -> Any:
        if len(data) > self._rule.request_bytes_max:  # possible only for requests of a stream
            size = f"a request of {len(data)} bytes; {self._rule.request_bytes_max} are allowed"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, size)
        try:
            return self._handler.request_deserializer(data)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{len(data)} bytes that are no request: {error}")


async def read_first(context: Context, limit_s: float = FIRST_S_MAX) -> bytes | None:
    """Return the first message of a call. Return None if the stream ends without a message, or if no message arrives in time."""
    # `wait_for` cannot be used, because its timeout would cancel the call without giving the caller a reason.
    reading = asyncio.ensure_future(context.read())
    try:
        await asyncio.wait({reading}, timeout=limit_s)
    finally:
        if not reading.done():
            reading.cancel()
    data = reading.result() if reading.done() and not reading.cancelled() else None
    return data if isinstance(data, bytes) else None


async def refuse(context: Context, reason: str, what: str = "certificate") -> None:
    """Abort a call that the caller is not permitted to make."""
    context.set_trailing_metadata(((ERROR_KEY, UsageError.__name__),))
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"this {what} may not do that: {reason}")


def about(request: Any) -> str:
    """Return a request's fields as text, omitting binary fields."""
    return ", ".join(f"{field.name} {value}" for field, value in request.ListFields() if not isinstance(value, bytes))


async def _refuse_unknown(_requests: Any, context: Context) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such call")


def _as_stream(serve: Callable[[Any, Context], Awaitable[Any]], handler: Any) -> "grpc.RpcMethodHandler[Any, Any]":
    """Return a gRPC streaming handler that passes on raw bytes, and reads them only when `serve` requests them."""
    serialize = None if handler is None else handler.response_serializer
    if handler is not None and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(serve, None, serialize)
    return grpc.stream_unary_rpc_method_handler(serve, None, serialize)
