"""Defines `ThreadedMember`, which includes a gRPC service that uses the threaded `grpc.server` and blocking stubs in a fleet.

    member = ThreadedMember(service, agent="a", fleet=fleet, coordinator="127.0.0.1:7700", store="/shared/store")
    server = grpc.server(ThreadPoolExecutor(10), interceptors=[member.interceptor])
    stub = GreeterStub(member.channel("127.0.0.1:50052"))
    server.start()
    code = member.run()

A `ThreadedMember` contains a `Member` whose event loop runs in the thread that calls `run`. The loop carries out the handlers' requests
(`member_threads.py`). Cuts, calls and recoveries work as in `Member`.

Server side: the loop decides whether to accept a request, as in `member_channel.py`. The handler runs in the thread that gRPC has assigned
to the request. While the handler is not running, the request's thread waits for work from the loop. The loop admits the request, and passes
the handler to the thread as soon as the thread may enter the gate. Finally, the loop passes the response to the thread, which sends it.

Client side: the channel for blocking stubs makes its calls in the loop, over a `MemberChannel`. A call enters the ledger in the loop
iteration in which it is made, atomically with the thread's earlier state changes. From then on, the thread is outside the gate until the
call's answer leaves the ledger. A stream is treated as one call (`member_call.py`). The requests of a stream are first taken from the
iterator within the thread's atomic piece of work.
"""

import asyncio
import contextlib
import contextvars
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self

import grpc
import grpc.aio

from snapline.adapters.grpc.ledger import RUN, CallAnswer, HandlerRun, ServiceCall, call_stamp
from snapline.adapters.grpc.member import Member
from snapline.adapters.grpc.member_call import CODES, MemberCall, pack, rpc_error, unpack
from snapline.adapters.grpc.member_channel import (
    ALL,
    METADATA,
    UNKNOWN,
    AbortedHandlerError,
    MemberChannel,
    MemberMethod,
    UnaryHandler,
)
from snapline.adapters.grpc.member_threads import (
    HistoryOverError,
    MemberThreads,
    QuiescentService,
    Reenter,
    RegisteredThread,
    Work,
)
from snapline.adapters.grpc.service_agent import CutService, MemberInterface
from snapline.agent_runtime.fleet import Fleet
from snapline.errors import UsageError
from snapline.security.transport import Security

Behavior = Callable[[Any, Any], Any]

GOES_BACK = grpc.StatusCode.UNAVAILABLE, "the fleet goes back to a cut, or ends"
"""Status that a calling member does not treat as an answer. The caller repeats the call, unless the call belongs to an older history."""


class ThreadedInterceptor(grpc.ServerInterceptor):
    """Server interceptor of a threaded member, available as `ThreadedMember.interceptor`."""

    def __init__(self, member: MemberInterface, threads: MemberThreads) -> None:
        self._member, self._threads = member, threads
        self._made: dict[str, tuple[Any, Any]] = {}

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        cached = self._made.get(method)
        if cached is None or cached[0] is not handler:
            cached = self._made[method] = (handler, self._wrapped(handler, method))
        return cached[1]

    def _wrapped(self, handler: Any, method: str) -> Any:
        served = ServedMethod(self._member, self._threads, handler, method)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(served.one_for_one, handler.request_deserializer, None)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(served.one, handler.request_deserializer, None)
        made = grpc.unary_stream_rpc_method_handler if handler.unary_stream else grpc.stream_stream_rpc_method_handler
        return made(served.many, handler.request_deserializer, None)


class ServedMethod:
    """One RPC method of the service. gRPC calls this class's public methods in its own threads."""

    def __init__(self, member: MemberInterface, threads: MemberThreads, handler: Any, method: str) -> None:
        self._member, self._threads = member, threads
        self._asks_stream = handler.stream_unary is not None or handler.stream_stream is not None
        self._serialize: Callable[[Any], bytes] = handler.response_serializer or bytes
        self._function: Behavior = next(
            filter(None, (handler.unary_unary, handler.stream_unary, handler.unary_stream, handler.stream_stream))
        )
        if handler.unary_unary is not None:
            self._handler = UnaryHandler(member, self._in_thread(self._function), self._serialize)
            return
        given = self._each if handler.stream_unary is None else self._only
        self._handler = UnaryHandler(member, self._in_thread(lambda *asked: pack(given(*asked), method)), None)

    def one_for_one(self, request: Any, context: Any) -> bytes:
        """Return the response to one request."""
        return self._whole(request, context)

    def one(self, requests: Iterator[Any], context: Any) -> bytes:
        """Return the single response to a request stream. If the caller is a member, the whole stream is read first."""
        if call_stamp(context.invocation_metadata()) is None:
            [response] = self._serve_external_stream(requests, context, lambda given: [self._function(given, context)])
        else:
            [response] = unpack(self._whole(list(requests), context))
        return response

    def many(self, request: Any, context: Any) -> Iterator[bytes]:
        """Yield the responses to one request or to a request stream. If the caller is a member, the responses become available when the
        handler has ended."""
        if call_stamp(context.invocation_metadata()) is None:
            yield from self._serve_external_stream(request, context, lambda given: self._function(given, context))
            return
        yield from unpack(self._whole(list(request) if self._asks_stream else request, context))

    def _whole(self, request: Any, context: Any) -> bytes:
        """Serve the request as a single call, and run the handler in the calling thread."""
        asking = RequestThread(context)
        try:
            sent: bytes = self._threads.served(asking, partial(self._handler.serve, request, asking))
            return sent
        except AbortedHandlerError as error:
            context.abort(CODES.get(error.code, grpc.StatusCode.UNKNOWN), error.details)
        except HistoryOverError:
            context.abort(*GOES_BACK)
        raise AssertionError("abort raises")

    def _only(self, request: Any, context: Any) -> list[bytes]:
        return [self._serialize(self._function(request, context))]

    def _each(self, request: Any, context: Any) -> list[bytes]:
        return [self._serialize(response) for response in self._function(request, context)]

    def _in_thread(self, function: Behavior) -> Behavior:
        """Return a coroutine function that runs `function` in the request's thread, while that thread waits for the loop."""

        async def served(request: Any, context: Any) -> Any:
            run = RUN.get()
            assert run is not None
            requests = iter(request) if self._asks_stream else request
            work = partial(function, requests, HandlerContext(context))
            return await self._threads.run(RegisteredThread(run.plan), work, context.carry)

        return served

    def _serve_external_stream(
        self, request: Any, context: Any, function: Callable[[Any], Iterable[Any]]
    ) -> Iterator[bytes]:
        """Serve a stream to a caller that is not a member.

        The call streams as usual, but while the handler runs between two messages, no cut is taken.
        """
        visit = ExternalStream(self._member, self._threads, self._serialize)
        try:
            visit.begin()
            for response in function(visit.each(request) if self._asks_stream else request):
                message = self._serialize(response)
                visit.end()
                yield message
                visit.begin()
        except HistoryOverError:
            context.abort(*GOES_BACK)
        finally:
            visit.end()


class RequestThread:
    """A gRPC thread that serves a request and waits for work from the loop.

    The object also serves as the request's context. Attributes that the object does not define are taken from gRPC's context.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._task: asyncio.Task[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def context(self) -> contextvars.Context:
        """Return the context variables for the work that the loop does for this thread."""
        made = contextvars.Context()
        made.run(METADATA.set, self._inner.invocation_metadata())
        return made

    def carry(self, work: Work) -> None:
        """Pass a function to the thread, which then runs it."""
        self._inbox.put(work)

    def ended(self, task: "asyncio.Task[Any]") -> None:
        """End the thread's wait. The loop calls this method when the request has been served and no more work will follow."""
        self._task = task
        self._inbox.put(None)

    def cancel(self) -> None:
        """End the thread's wait without a result, because the loop has been closed."""
        self._inbox.put(None)

    def work(self) -> Any:
        """Run the work that the loop passes to this thread, until no more work follows. Return the result of the loop's task. This method
        must be called in the request's thread."""
        while (work := self._inbox.get()) is not None:
            work()
        if self._task is None or self._task.cancelled():
            raise HistoryOverError
        return self._task.result()

    async def abort(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...]) -> NoReturn:
        """End the request with an error. This method is called in the loop. The request's thread then reports the error to gRPC."""
        self._inner.set_trailing_metadata(trailing)
        raise AbortedHandlerError(code.value[0], details)


class HandlerContext:
    """Wrapper of gRPC's context object that is passed to handlers."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Abort the call, as gRPC's own method does."""
        raise AbortedHandlerError(code.value[0] or UNKNOWN, details)

    def abort_with_status(self, status: Any) -> NoReturn:
        """Abort the call, as gRPC's own method does."""
        self._inner.set_trailing_metadata(status.trailing_metadata or ())
        self.abort(status.code, status.details)


class ExternalStream:
    """A handler that serves a stream to a caller outside the fleet. Each atomic piece of the handler's work is treated like a separate
    handler."""

    def __init__(self, member: MemberInterface, threads: MemberThreads, serialize: Callable[[Any], bytes]) -> None:
        self._member, self._threads, self._serialize = member, threads, serialize
        self._thread: RegisteredThread | None = None

    def begin(self) -> None:
        """Wait until an atomic piece of work may begin."""
        self._thread = self._threads.register_thread(self._admitted)

    async def _admitted(self) -> RegisteredThread:
        await self._member.admit(None)
        thread = RegisteredThread(self._member.plan)
        thread.context.run(RUN.set, HandlerRun(None, thread.plan, self._serialize))
        return thread

    def end(self) -> None:
        """End the current atomic piece of work, if there is one."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._threads.left(thread)

    def each(self, requests: Iterator[Any]) -> Iterator[Any]:
        """Yield the requests. While the handler waits for the next request, a cut may be taken."""
        while True:
            self.end()
            request = next(requests, self)
            self.begin()
            if request is self:
                return
            yield request


class ThreadedChannel(grpc.Channel):
    """A channel for blocking stubs, created by `ThreadedMember.channel`.

    `make` creates the underlying `MemberChannel`. The function `make` is called in the loop when the channel is first used.
    """

    def __init__(self, threads: MemberThreads, make: Callable[[], MemberChannel], listed: frozenset[str]) -> None:
        self._threads, self._make, self._listed = threads, make, listed
        self._made: MemberChannel | None = None

    def inner(self) -> MemberChannel:
        """Return the underlying `MemberChannel`. This method must be called in the loop."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def unary_unary(self, method: str, *given: Any, **options: Any) -> Any:
        return self._stub_method("unary_unary", method, given, options)

    def unary_stream(self, method: str, *given: Any, **options: Any) -> Any:
        return self._stub_method("unary_stream", method, given, options)

    def stream_unary(self, method: str, *given: Any, **options: Any) -> Any:
        return self._stub_method("stream_unary", method, given, options)

    def stream_stream(self, method: str, *given: Any, **options: Any) -> Any:
        return self._stub_method("stream_stream", method, given, options)

    def _stub_method(self, kind: str, method: str, given: tuple[Any, ...], options: dict[str, Any]) -> "ThreadedMethod":
        def make() -> MemberMethod:
            if "stream" in kind and not self._listed.isdisjoint({method, ALL}):
                raise UsageError(
                    f"{method} is listed and has streams, so it is in no cut: call it over a channel of gRPC's own, within member.outside()"
                )
            made: MemberMethod = getattr(self.inner(), kind)(method, *given, **options)
            return made

        return ThreadedMethod(self._threads, make, kind)

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> NoReturn:
        """Raise UsageError, because a member's channel does not report its connectivity."""
        raise UsageError("a member's channel tells of no connection: its calls wait for one, and are tried again")

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """Do nothing, because `subscribe` is not supported."""

    def close(self) -> None:
        """Do nothing. The channel is closed only together with its member, because calls may be repeated over it after a recovery."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ThreadedMethod:
    """A stub method that behaves like gRPC's multi-callables. `timeout`, `metadata` and all other options have the same meaning as in
    gRPC."""

    __slots__ = ("_answers_stream", "_asks_stream", "_made", "_make", "_threads")

    def __init__(self, threads: MemberThreads, make: Callable[[], MemberMethod], kind: str) -> None:
        self._threads, self._make = threads, make
        self._asks_stream, self._answers_stream = kind.startswith("stream"), kind.endswith("stream")
        self._made: MemberMethod | None = None

    def __call__(self, request: Any, timeout: float | None = None, **options: Any) -> Any:
        """Make a call and return its response. If the response is a stream, return a response iterator as soon as the call has been made.

        Raises:
            grpc.RpcError: same error as gRPC's own, with code() and details().
            DivergedCallError: the rerun handler makes a different call than in its first run.
            UsageError: the calling thread is not registered.
            HistoryOverError: the fleet is rolling back. Do not catch this error, which is a BaseException.
        """
        if self._answers_stream:
            return ResponseStream(self.future(request, timeout, **options))
        made = self._making(request, timeout, options)
        return self.decoded(self._threads.wait(lambda: made().answer))

    def with_call(self, request: Any, timeout: float | None = None, **options: Any) -> "tuple[Any, AnsweredCall]":
        """Make a call. Return the response, and an object that holds the call's status and metadata."""
        made = self._making(request, timeout, options)
        answered: AnsweredCall = self._threads.wait(lambda: partial(_answered, made()))
        return self.decoded(answered.answer), answered

    def future(self, request: Any, timeout: float | None = None, **options: Any) -> "CallFuture":
        """Make a call and return its future. The thread that acts on the answer must call the future's `result`."""
        return CallFuture(self._threads, self, self._threads.step(self._making(request, timeout, options)))

    def send(self, request: Any) -> ServiceCall:
        """Make a call without waiting for the answer, like `MemberMethod.send`.

        The answer is passed to the service's method `answered` in a separate thread.
        """
        requests = list(request) if self._asks_stream else request
        sent: ServiceCall = self._threads.step(lambda: self._method().send(requests))
        return sent

    def decoded(self, answer: CallAnswer) -> Any:
        """Return the response in an answer, or a list of all responses if the response is a stream. Raise grpc.RpcError if the call
        failed."""
        if answer.code:
            raise rpc_error(CODES.get(answer.code, grpc.StatusCode.UNKNOWN), answer.details)
        decoded = self._method().decoded
        if self._answers_stream:
            return [decoded(response) for response in unpack(answer.response)]
        return decoded(answer.response)

    def _making(self, request: Any, timeout: float | None, options: dict[str, Any]) -> Callable[[], MemberCall]:
        """Read all requests from the iterator in the calling thread. Return a function that makes the call in the loop."""
        given = list(request) if self._asks_stream else request
        return lambda: self._method().make(given, {**options, "timeout": timeout})

    def _method(self) -> MemberMethod:
        if self._made is None:
            self._made = self._make()
        return self._made


class AnsweredCall(NamedTuple):
    """Outcome of a call, including its metadata."""

    answer: CallAnswer
    initial: Any
    trailing: Any

    def code(self) -> grpc.StatusCode:
        """Return gRPC's status code."""
        return CODES.get(self.answer.code, grpc.StatusCode.UNKNOWN)

    def details(self) -> str:
        """Return the details of gRPC's status."""
        return self.answer.details

    def initial_metadata(self) -> Any:
        """Return the initial metadata."""
        return self.initial

    def trailing_metadata(self) -> Any:
        """Return the trailing metadata."""
        return self.trailing


async def _answered(call: MemberCall, reenter: Reenter) -> AnsweredCall:
    """Wait for a call's answer and metadata. The answer is decoded later, in the caller's thread, because decoding may take long."""
    answer = await call.answer(reenter)
    return AnsweredCall(answer, await call.initial_metadata(), await call.trailing_metadata())


class CallFuture(grpc.Future):  # type: ignore[type-arg]  # where it runs, gRPC's takes none
    """The future of a call. The call remains in the ledger until `result` or `exception` has taken its answer."""

    def __init__(self, threads: MemberThreads, method: ThreadedMethod, call: MemberCall) -> None:
        self._threads, self._method, self._call = threads, method, call
        self._answer: CallAnswer | None = None
        self._error: grpc.RpcError | None = None
        self._is_taken = self._is_cancelled = False

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer. Return the response, or a list of all responses if the response is a stream. The answer is taken in the same
        atomic piece as the caller's next work.

        Raises:
            grpc.RpcError: same error as gRPC's own, with code() and details().
            grpc.FutureCancelledError: the call was cancelled.
            UsageError: another thread already waits for the result, or a timeout was passed. Set the timeout when making the call instead.
        """
        if timeout is not None:
            raise UsageError(
                "result() of a member's call has no time-out of its own: give it to the call, future(request, timeout=…)"
            )
        if self._is_cancelled:
            raise grpc.FutureCancelledError
        self._take()
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._method.decoded(self._answer)

    def _take(self) -> None:
        if self.done():
            return
        if self._is_taken:
            raise UsageError("another thread waits for the answer to this call already: one takes it, and acts by it")
        self._is_taken = True
        try:
            self._answer = self._threads.wait(lambda: self._call.answer)
        except grpc.RpcError as error:
            self._error = error

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for the answer. Return the gRPC error that `result` would raise, or None if the call succeeded."""
        try:
            self.result(timeout)
        except grpc.RpcError as error:
            return error
        return None

    def traceback(self, timeout: float | None = None) -> Any:
        """Return the traceback of the error that `exception` returns, or None if there is no error."""
        error = self.exception(timeout)
        return None if error is None else error.__traceback__

    def cancel(self) -> bool:
        """Cancel the call, in the same atomic piece as the caller's next work.

        The receiver may have handled the call nevertheless. Return True if the call is cancelled. Return False if the call's answer was
        already taken or a thread waits for the answer.
        """
        if self.done() or self._is_taken:
            return self._is_cancelled
        self._threads.step(self._call.give_up)
        self._is_cancelled = True
        return True

    def cancelled(self) -> bool:
        """Return whether the call was cancelled with `cancel`."""
        return self._is_cancelled

    def done(self) -> bool:
        """Return whether the answer has been taken or the call has been cancelled."""
        return self._is_cancelled or self._answer is not None or self._error is not None

    def running(self) -> bool:
        """Return whether the call is still in progress."""
        return not self.done()

    def add_done_callback(self, fn: Callable[[Any], None]) -> NoReturn:
        """Raise UsageError, because callbacks are not supported. The thread that acts on the answer must call `result` instead."""
        raise UsageError(
            "nobody is called when a member's call is done: its answer is taken by result(), in the thread that acts by it"
        )


class ResponseStream:
    """Iterator over the responses of a call. All responses become available at the same time."""

    def __init__(self, call: CallFuture) -> None:
        self._call = call
        self._responses: Iterator[Any] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._responses is None:
            self._responses = iter(self._call.result())
        return next(self._responses)

    def cancel(self) -> bool:
        """Cancel the call in the same way as `CallFuture.cancel`."""
        return self._call.cancel()


class ThreadedMember:
    """Includes a gRPC service that uses threads as a member of a fleet.

    Attributes:
        interceptor: interceptor for `grpc.server(…, interceptors=[…])`. Put the interceptor before all other interceptors that change
            state.
    """

    def __init__(
        self,
        service: CutService,
        *,
        agent: str,
        fleet: Fleet,
        coordinator: str,
        store: str,
        host: str = "",
        listen: str = "127.0.0.1:0",
        advertise: str = "",
        security: Security | None = None,
    ) -> None:
        """Create a member for a service that uses threads. The constructor takes the same arguments as `Member`. `capture`, `restore`,
        `on_cut` and `ready` are called in the loop's thread. `capture` and `restore` are called only while no thread of the service is
        inside the gate.

        Raises:
            UsageError: the fleet has no agent with this id.
        """
        self._loop = asyncio.new_event_loop()
        self._threads = MemberThreads(self._loop)
        with contextlib.ExitStack() as unless_made:
            unless_made.callback(self._loop.close)
            self._member = self._threads.member = Member(
                service,
                agent=agent,
                fleet=fleet,
                coordinator=coordinator,
                store=store,
                host=host,
                listen=listen,
                advertise=advertise,
                security=security,
                front=QuiescentService(service, self._threads),
            )
            unless_made.pop_all()
        self._member.reenter = self._threads.passed
        self.interceptor = ThreadedInterceptor(self._member, self._threads)

    def run(self) -> int:
        """Run as a member of the fleet until the fleet ends, SIGTERM arrives (in the main thread), or another process replaces this
        process.

        Return the process's exit code.

        Raises:
            UsageError: the fleet permanently rejects this process, or the port is in use.
        """
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                return runner.run(self._run())
        finally:
            self._threads.close()

    async def _run(self) -> int:
        try:
            return await self._member.run()
        finally:
            self._threads.is_ending = True

    def channel(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        options: Sequence[tuple[str, Any]] = (),
        listed: Iterable[str] = (),
    ) -> ThreadedChannel:
        """Return a channel for blocking gRPC stubs. Calls over this channel are part of cuts. Only threads that run handlers or that were
        started with `start` may use the channel.

        Args:
            target: name that identifies the receiver in cuts. After a recovery, calls are repeated over the channel with the same target
                name.
            credentials, options: as for `grpc.secure_channel`. Without credentials, the channel is unencrypted. Do not configure retries,
                because the member itself retries calls.
            listed: as for `Member.channel`.
        """
        names = frozenset(listed)

        def inner() -> grpc.aio.Channel:
            if credentials is None:
                return grpc.aio.insecure_channel(target, options)
            return grpc.aio.secure_channel(target, credentials, options)

        made = ThreadedChannel(self._threads, lambda: self._member.channel(target, inner(), listed=names), names)
        self._loop.call_soon_threadsafe(made.inner)  # calls made before a recovery wait for it
        return made

    def start(self, function: Callable[[], object]) -> None:
        """Run the function in a new thread that is registered with the member. When the fleet recovers, `HistoryOverError` ends the
        function, so `restore` must start it again.

        Raises:
            UsageError: the caller is neither the service's `restore` nor a registered thread of the service.
        """
        self._threads.step(lambda: self._threads.start(function))

    def sleep(self, seconds: float) -> None:
        """Sleep like `time.sleep`, but mark the thread as outside the gate, as in `outside`. If the fleet rolls back, the sleep ends
        early."""

        async def slept(reenter: Reenter) -> None:
            await asyncio.sleep(seconds)
            await reenter()

        self._threads.wait(lambda: slept)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Allow the calling thread to wait within this block for something other than a call through the member.

        Within the block, the thread must not use the service's state, because a cut may be taken at any time.
        """
        self._threads.outside()
        try:
            yield
        finally:
            self._threads.wait(lambda: _reenter)

    def changed(self, response: Any = None) -> None:
        """Same as `Member.changed`, for threads."""
        self._threads.step(lambda: self._member.changed(response))

    def tell(self, agent: str, message: object) -> None:
        """Same as `Member.tell`, for threads."""
        self._threads.step(lambda: self._member.tell(agent, message))

    @property
    def unsettled(self) -> Sequence[ServiceCall]:
        """Same as `Member.unsettled`, for threads."""
        calls: Sequence[ServiceCall] = self._threads.step(lambda: self._member.unsettled)
        return calls

    def settle(self, call: ServiceCall) -> None:
        """Same as `Member.settle`, for threads."""
        self._threads.step(lambda: self._member.settle(call))


async def _reenter(reenter: Reenter) -> None:
    await reenter()
