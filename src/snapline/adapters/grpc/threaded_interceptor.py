"""The server's side for `grpc.server`: what `member_interceptor.py` decides in the loop, and the handler in the thread that gRPC has given to its request.

That thread waits for the loop, which admits the request, and gives it the handler to run when the gate lets it in; and again for what is to be sent.
"""

import asyncio
import contextvars
import queue
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NoReturn

import grpc

from snapline.adapters.grpc.handler_runs import RUN, HandlerRun
from snapline.adapters.grpc.member_call import CODES
from snapline.adapters.grpc.member_interceptor import METADATA, UNKNOWN, AbortedHandlerError, UnaryHandler
from snapline.adapters.grpc.member_threads import HistoryOverError, MemberThreads, StretchThread, Work
from snapline.adapters.grpc.service_interfaces import OwnMember
from snapline.adapters.grpc.stamps import call_stamp
from snapline.adapters.grpc.streams import pack, unpack

Behavior = Callable[[Any, Any], Any]

GOES_BACK = grpc.StatusCode.UNAVAILABLE, "the fleet goes back to a cut, or ends"
"""Status that is no answer for a member's call: it is made again, or is of before as well."""


class ThreadedInterceptor(grpc.ServerInterceptor):
    """See the module; of `ThreadedMember.interceptor`."""

    def __init__(self, member: OwnMember, threads: MemberThreads) -> None:
        self._member, self._threads = member, threads
        self._made: dict[str, tuple[Any, Any]] = {}

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        known = self._made.get(method)
        if known is None or known[0] is not handler:
            known = self._made[method] = (handler, self._wrapped(handler, method))
        return known[1]

    def _wrapped(self, handler: Any, method: str) -> Any:
        served = ServedMethod(self._member, self._threads, handler, method)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(served.one_for_one, handler.request_deserializer, None)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(served.one, handler.request_deserializer, None)
        made = grpc.unary_stream_rpc_method_handler if handler.unary_stream else grpc.stream_stream_rpc_method_handler
        return made(served.many, handler.request_deserializer, None)


class ServedMethod:
    """One method of the service. Its own methods are called by gRPC, in threads."""

    def __init__(self, member: OwnMember, threads: MemberThreads, handler: Any, method: str) -> None:
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
        """One response for one request."""
        return self._whole(request, context)

    def one(self, requests: Iterator[Any], context: Any) -> bytes:
        """One response for a stream: all of it is there before anything is done."""
        if call_stamp(context.invocation_metadata()) is None:
            [response] = self._strange(requests, context, lambda given: [self._function(given, context)])
        else:
            [response] = unpack(self._whole(list(requests), context))
        return response

    def many(self, request: Any, context: Any) -> Iterator[bytes]:
        """A stream of responses, which are there when the handler has ended."""
        if call_stamp(context.invocation_metadata()) is None:
            yield from self._strange(request, context, lambda given: self._function(given, context))
            return
        yield from unpack(self._whole(list(request) if self._asks_stream else request, context))

    def _whole(self, request: Any, context: Any) -> bytes:
        """Serve the request, in its thread."""
        asking = AskingThread(context)
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
        """Return a coroutine in which a thread that waits for the loop runs the function."""

        async def served(request: Any, context: Any) -> Any:
            run = RUN.get()
            assert run is not None
            given = iter(request) if self._asks_stream else request
            work = partial(function, given, HandlersContext(context))
            return await self._threads.run(StretchThread(run.plan), work, context.carry)

        return served

    def _strange(self, request: Any, context: Any, function: Callable[[Any], Iterable[Any]]) -> Iterator[bytes]:
        """A stream of who is no member: as ever, but no cut falls between two of its messages while the handler is at work."""
        visit = ForeignRequest(self._member, self._threads, self._serialize)
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


class AskingThread:
    """A thread of gRPC's that waits for the loop, as the context of its request: what is asked of a context that is not here is asked of gRPC's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._task: asyncio.Task[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def context(self) -> contextvars.Context:
        """Return the context of what the loop does for it."""
        made = contextvars.Context()
        made.run(METADATA.set, self._inner.invocation_metadata())
        return made

    def carry(self, work: Work) -> None:
        """The thread does this."""
        self._inbox.put(work)

    def ended(self, task: "asyncio.Task[Any]") -> None:
        """End the work of the request, in the loop: nothing more follows."""
        self._task = task
        self._inbox.put(None)

    def cancel(self) -> None:
        """The loop is closed."""
        self._inbox.put(None)

    def work(self) -> Any:
        """Do the work that comes, in the thread, until all is done; return what the loop has made of it."""
        while (work := self._inbox.get()) is not None:
            work()
        if self._task is None or self._task.cancelled():
            raise HistoryOverError
        return self._task.result()

    async def abort(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...]) -> NoReturn:
        """End the request, in the loop; gRPC hears of it from the thread."""
        self._inner.set_trailing_metadata(trailing)
        raise AbortedHandlerError(code.value[0], details)


class HandlersContext:
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


class ForeignRequest:
    """A handler of a stream that nobody of the fleet asks for: each of its pieces is as a handler of its own."""

    def __init__(self, member: OwnMember, threads: MemberThreads, serialize: Callable[[Any], bytes]) -> None:
        self._member, self._threads, self._serialize = member, threads, serialize
        self._thread: StretchThread | None = None

    def begin(self) -> None:
        """Wait until a piece may begin."""
        self._thread = self._threads.visited(self._admitted)

    async def _admitted(self) -> StretchThread:
        await self._member.admit(None)
        thread = StretchThread(self._member.plan)
        thread.context.run(RUN.set, HandlerRun(None, thread.plan, self._serialize))
        return thread

    def end(self) -> None:
        """End the piece, if one has begun."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._threads.left(thread)

    def each(self, requests: Iterator[Any]) -> Iterator[Any]:
        """Yield requests, each awaited between two pieces."""
        while True:
            self.end()
            request = next(requests, self)
            self.begin()
            if request is self:
                return
            yield request
