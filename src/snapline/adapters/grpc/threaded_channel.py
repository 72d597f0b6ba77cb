"""A channel for stubs in threads: it makes the calls of a `MemberChannel` in the event loop of the member.

A call is in the ledger from the step of the loop in which it is made, in one piece with its thread's earlier state changes. The thread is outside
from then on, and inside again from the step in which the answer leaves the ledger. A stream is one call (`streams.py`): its requests are taken from
the iterator first, within the piece.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self

import grpc

from snapline.adapters.grpc.ledger import CallAnswer, ServiceCall
from snapline.adapters.grpc.member_call import CODES, MemberCall, rpc_error, unpack
from snapline.adapters.grpc.member_channel import ALL, MemberChannel, MemberMethod
from snapline.adapters.grpc.member_threads import MemberThreads, Reenter
from snapline.errors import UsageError


class ThreadedChannel(grpc.Channel):
    """See the module; created by `ThreadedMember.channel`. `make`: creates the channel in the loop, at its first use."""

    def __init__(self, threads: MemberThreads, make: Callable[[], MemberChannel], listed: frozenset[str]) -> None:
        self._threads, self._make, self._listed = threads, make, listed
        self._made: MemberChannel | None = None

    def inner(self) -> MemberChannel:
        """Return the channel; called in the loop."""
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
        """Raise: not supported."""
        raise UsageError("a member's channel tells of no connection: its calls wait for one, and are tried again")

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """Do nothing: `subscribe` is not supported."""

    def close(self) -> None:
        """Do nothing: the channel ends with its member, since a recovery repeats calls over it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ThreadedMethod:
    """A stub's method, like gRPC's multi-callables. `timeout`, `metadata` and the other options are gRPC's."""

    __slots__ = ("_answers_stream", "_asks_stream", "_made", "_make", "_threads")

    def __init__(self, threads: MemberThreads, make: Callable[[], MemberMethod], kind: str) -> None:
        self._threads, self._make = threads, make
        self._asks_stream, self._answers_stream = kind.startswith("stream"), kind.endswith("stream")
        self._made: MemberMethod | None = None

    def __call__(self, request: Any, timeout: float | None = None, **options: Any) -> Any:
        """Return the response. For a response stream, return its iterator; the call is made when this returns.

        Raises:
            grpc.RpcError: as gRPC's, with code() and details().
            DivergedCallError: the handler was rerun and makes a different call than before.
            UsageError: this thread is not registered.
            HistoryOverError: the fleet rolls back. It is a BaseException: do not catch it.
        """
        if self._answers_stream:
            return ResponseStream(self.future(request, timeout, **options))
        made = self._making(request, timeout, options)
        return self.decoded(self._threads.wait(lambda: made().answer))

    def with_call(self, request: Any, timeout: float | None = None, **options: Any) -> "tuple[Any, AnsweredCall]":
        """Return the response, and the call with its status and metadata."""
        made = self._making(request, timeout, options)
        answered: AnsweredCall = self._threads.wait(lambda: partial(_answered, made()))
        return self.decoded(answered.answer), answered

    def future(self, request: Any, timeout: float | None = None, **options: Any) -> "CallFuture":
        """Make the call and return its future; `result` waits for the answer, in the thread that acts on it."""
        return CallFuture(self._threads, self, self._threads.step(self._making(request, timeout, options)))

    def send(self, request: Any) -> ServiceCall:
        """Send as `MemberMethod.send`: no caller awaits the answer, and the service's `answered` gets it in a thread of its own."""
        requests = list(request) if self._asks_stream else request
        sent: ServiceCall = self._threads.step(lambda: self._method().send(requests))
        return sent

    def decoded(self, answer: CallAnswer) -> Any:
        """Return the response, or all responses. Raise grpc.RpcError if the call failed."""
        if answer.code:
            raise rpc_error(CODES.get(answer.code, grpc.StatusCode.UNKNOWN), answer.details)
        decoded = self._method().decoded
        if self._answers_stream:
            return [decoded(response) for response in unpack(answer.response)]
        return decoded(answer.response)

    def _making(self, request: Any, timeout: float | None, options: dict[str, Any]) -> Callable[[], MemberCall]:
        """Take the requests from their iterator in this thread; return a function that makes the call in the loop."""
        given = list(request) if self._asks_stream else request
        return lambda: self._method().make(given, {**options, "timeout": timeout})

    def _method(self) -> MemberMethod:
        if self._made is None:
            self._made = self._make()
        return self._made


class AnsweredCall(NamedTuple):
    """Outcome of a call."""

    answer: CallAnswer
    initial: Any
    trailing: Any

    def code(self) -> grpc.StatusCode:
        """Return gRPC's status code."""
        return CODES.get(self.answer.code, grpc.StatusCode.UNKNOWN)

    def details(self) -> str:
        """Return gRPC's details."""
        return self.answer.details

    def initial_metadata(self) -> Any:
        """Return gRPC's initial metadata."""
        return self.initial

    def trailing_metadata(self) -> Any:
        """Return gRPC's trailing metadata."""
        return self.trailing


async def _answered(call: MemberCall, reenter: Reenter) -> AnsweredCall:
    """Wait for the answer. Decoding may take long, so it is done later, when the thread is inside."""
    answer = await call.answer(reenter)
    return AnsweredCall(answer, await call.initial_metadata(), await call.trailing_metadata())


class CallFuture(grpc.Future):  # type: ignore[type-arg]  # where it runs, gRPC's takes none
    """Future of a call that was made; its answer stays in the ledger until `result` or `exception` has taken it."""

    def __init__(self, threads: MemberThreads, method: ThreadedMethod, call: MemberCall) -> None:
        self._threads, self._method, self._call = threads, method, call
        self._answer: CallAnswer | None = None
        self._error: grpc.RpcError | None = None
        self._is_taken = self._is_cancelled = False

    def result(self, timeout: float | None = None) -> Any:
        """Return the response; for a response stream, all responses. The answer is taken in one piece with what follows.

        Raises:
            grpc.RpcError: as gRPC's, with code() and details().
            grpc.FutureCancelledError: after `cancel`.
            UsageError: another thread waits for it already; or a time-out is given, which belongs in the call.
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
        """Return the gRPC error that `result` raises, or None."""
        try:
            self.result(timeout)
        except grpc.RpcError as error:
            return error
        return None

    def traceback(self, timeout: float | None = None) -> Any:
        """Return the traceback of that error, or None."""
        error = self.exception(timeout)
        return None if error is None else error.__traceback__

    def cancel(self) -> bool:
        """Give up, in one piece with what follows; the call may have been handled. False: its answer was taken, or a thread waits for it."""
        if self.done() or self._is_taken:
            return self._is_cancelled
        self._threads.step(self._call.give_up)
        self._is_cancelled = True
        return True

    def cancelled(self) -> bool:
        """Return whether the call was given up with `cancel`."""
        return self._is_cancelled

    def done(self) -> bool:
        """Return whether its answer was taken, or the call cancelled."""
        return self._is_cancelled or self._answer is not None or self._error is not None

    def running(self) -> bool:
        """Return whether the call is not done."""
        return not self.done()

    def add_done_callback(self, fn: Callable[[Any], None]) -> NoReturn:
        """Raise: not supported."""
        raise UsageError(
            "nobody is called when a member's call is done: its answer is taken by result(), in the thread that acts by it"
        )


class ResponseStream:
    """Responses of a call; all are available when the first one is."""

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
        """Cancel the call, as `CallFuture.cancel`."""
        return self._call.cancel()
