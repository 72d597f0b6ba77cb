"""Server side for `grpc.server`: the loop decides as in `member_interceptor.py`, and the handler runs in gRPC's thread for the request.

That thread waits for the loop, which admits the request and passes it the handler to run once the gate lets it enter, and then the response to send.
"""

import asyncio
import contextvars
import queue
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NoReturn

import grpc

from snapline.adapters.grpc.ledger import RUN, HandlerRun, call_stamp
from snapline.adapters.grpc.member_call import CODES, pack, unpack
from snapline.adapters.grpc.member_interceptor import METADATA, UNKNOWN, AbortedHandlerError, UnaryHandler
from snapline.adapters.grpc.member_threads import HistoryOverError, MemberThreads, RegisteredThread, Work
from snapline.adapters.grpc.service_agent import MemberInterface

Behavior = Callable[[Any, Any], Any]

GOES_BACK = grpc.StatusCode.UNAVAILABLE, "the fleet goes back to a cut, or ends"
"""Status that is no answer for a member's call: the call is repeated, or belongs to an older history."""


class ThreadedInterceptor(grpc.ServerInterceptor):
    """See the module; available as `ThreadedMember.interceptor`."""

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
    """One method of the service. gRPC calls its methods in threads."""

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
        """Return one response for one request."""
        return self._whole(request, context)

    def one(self, requests: Iterator[Any], context: Any) -> bytes:
        """Return one response for a request stream, which is read completely first."""
        if call_stamp(context.invocation_metadata()) is None:
            [response] = self._serve_external_stream(requests, context, lambda given: [self._function(given, context)])
        else:
            [response] = unpack(self._whole(list(requests), context))
        return response

    def many(self, request: Any, context: Any) -> Iterator[bytes]:
        """Yield the responses, which are available when the handler has ended."""
        if call_stamp(context.invocation_metadata()) is None:
            yield from self._serve_external_stream(request, context, lambda given: self._function(given, context))
            return
        yield from unpack(self._whole(list(request) if self._asks_stream else request, context))

    def _whole(self, request: Any, context: Any) -> bytes:
        """Serve the request, in its thread."""
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
        """Return a coroutine that has the function run by the thread that waits for the loop."""

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
        """Serve a stream for a caller that is no member. It streams as usual, but no cut is taken between two messages while the handler runs."""
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
    """A gRPC thread that waits for the loop; also the context of its request: attributes not defined here are gRPC's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._task: asyncio.Task[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def context(self) -> contextvars.Context:
        """Return the context for the thread's work in the loop."""
        made = contextvars.Context()
        made.run(METADATA.set, self._inner.invocation_metadata())
        return made

    def carry(self, work: Work) -> None:
        """Pass work to the thread."""
        self._inbox.put(work)

    def ended(self, task: "asyncio.Task[Any]") -> None:
        """Called in the loop when the request is served: no more work follows."""
        self._task = task
        self._inbox.put(None)

    def cancel(self) -> None:
        """Stop waiting: the loop is closed."""
        self._inbox.put(None)

    def work(self) -> Any:
        """Called in the thread: do the work until there is no more; return the result of the loop's task."""
        while (work := self._inbox.get()) is not None:
            work()
        if self._task is None or self._task.cancelled():
            raise HistoryOverError
        return self._task.result()

    async def abort(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...]) -> NoReturn:
        """End the request, in the loop; the thread reports it to gRPC."""
        self._inner.set_trailing_metadata(trailing)
        raise AbortedHandlerError(code.value[0], details)


class HandlerContext:
    """gRPC's context, as handlers see it."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Abort as gRPC does."""
        raise AbortedHandlerError(code.value[0] or UNKNOWN, details)

    def abort_with_status(self, status: Any) -> NoReturn:
        """Abort as gRPC does."""
        self._inner.set_trailing_metadata(status.trailing_metadata or ())
        self.abort(status.code, status.details)


class ExternalStream:
    """Handler of a stream for a caller outside of the fleet: each of its pieces is treated like a handler of its own."""

    def __init__(self, member: MemberInterface, threads: MemberThreads, serialize: Callable[[Any], bytes]) -> None:
        self._member, self._threads, self._serialize = member, threads, serialize
        self._thread: RegisteredThread | None = None

    def begin(self) -> None:
        """Wait until a piece may begin."""
        self._thread = self._threads.register_thread(self._admitted)

    async def _admitted(self) -> RegisteredThread:
        await self._member.admit(None)
        thread = RegisteredThread(self._member.plan)
        thread.context.run(RUN.set, HandlerRun(None, thread.plan, self._serialize))
        return thread

    def end(self) -> None:
        """End the piece, if one has begun."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._threads.left(thread)

    def each(self, requests: Iterator[Any]) -> Iterator[Any]:
        """Yield requests; each is awaited between two pieces."""
        while True:
            self.end()
            request = next(requests, self)
            self.begin()
            if request is self:
                return
            yield request
