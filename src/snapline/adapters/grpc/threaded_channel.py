"""A channel for stubs in threads: as `MemberChannel`, whose calls it makes in the event loop of the member.

A call is in the ledger from the step of the loop in which it is made, in one piece with what its thread has changed before; its thread is outside from then on, and inside
again from the step in which the answer leaves the ledger. Streams are one call each, as ever (`streams.py`): requests are taken from their iterator first, within the piece.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self

import grpc

from snapline.adapters.grpc.ledger import CallAnswer, ServiceCall
from snapline.adapters.grpc.member_call import CODES, MemberCall, rpc_error
from snapline.adapters.grpc.member_channel import ALL, MemberChannel, MemberMethod
from snapline.adapters.grpc.member_threads import ComeIn, MemberThreads
from snapline.adapters.grpc.streams import unpack
from snapline.errors import UsageError


class ThreadedChannel(grpc.Channel):
    """See the module; of `ThreadedMember.channel`. `make`: the channel in the loop, made when it is first wanted."""

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
        """Nobody has subscribed."""

    def close(self) -> None:
        """Nothing: it ends with its member, since calls of a cut are made again over it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ThreadedMethod:
    """A stub's method, as gRPC's multi-callables. `timeout`, `metadata` and the other options are gRPC's."""

    __slots__ = ("_answers_stream", "_asks_stream", "_made", "_make", "_threads")

    def __init__(self, threads: MemberThreads, make: Callable[[], MemberMethod], kind: str) -> None:
        self._threads, self._make = threads, make
        self._asks_stream, self._answers_stream = kind.startswith("stream"), kind.endswith("stream")
        self._made: MemberMethod | None = None

    def __call__(self, request: Any, timeout: float | None = None, **options: Any) -> Any:
        """Return the response. Where responses are a stream, their iterator, and the call is made when this returns.

        Raises:
            grpc.RpcError: as gRPC's, with code() and details().
            DivergedCallError: the handler that makes it was run again, and called something else before.
            UsageError: nothing is known of this thread.
            HistoryOverError: the fleet goes back. It is no Exception: let it pass.
        """
        if self._answers_stream:
            return ResponseStream(self.future(request, timeout, **options))
        made = self._making(request, timeout, options)
        return self.decoded(self._threads.wait(lambda: made().answer))

    def with_call(self, request: Any, timeout: float | None = None, **options: Any) -> "tuple[Any, AnsweredCall]":
        """Return the response, and what has come with it."""
        made = self._making(request, timeout, options)
        answered: AnsweredCall = self._threads.wait(lambda: partial(_answered, made()))
        return self.decoded(answered.answer), answered

    def future(self, request: Any, timeout: float | None = None, **options: Any) -> "CallFuture":
        """The call is made when this returns; `result` waits for its answer, in the thread that acts by it."""
        return CallFuture(self._threads, self, self._threads.step(self._making(request, timeout, options)))

    def send(self, request: Any) -> ServiceCall:
        """Send as `MemberMethod.send`: nobody awaits it, and `answered` of the service gets its answer, in a thread of its own."""
        given = list(request) if self._asks_stream else request
        sent: ServiceCall = self._threads.step(lambda: self._method().send(given))
        return sent

    def decoded(self, answer: CallAnswer) -> Any:
        """Return the response, or all responses. Raises grpc.RpcError."""
        if answer.code:
            raise rpc_error(CODES.get(answer.code, grpc.StatusCode.UNKNOWN), answer.details)
        decoded = self._method().decoded
        if self._answers_stream:
            return [decoded(each) for each in unpack(answer.response)]
        return decoded(answer.response)

    def _making(self, request: Any, timeout: float | None, options: dict[str, Any]) -> Callable[[], MemberCall]:
        """Requests are taken from their iterator here, in the thread; the call is made in the loop."""
        given = list(request) if self._asks_stream else request
        return lambda: self._method().make(given, {**options, "timeout": timeout})

    def _method(self) -> MemberMethod:
        if self._made is None:
            self._made = self._make()
        return self._made


class AnsweredCall(NamedTuple):
    """Outcome of a call that is over."""

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


async def _answered(call: MemberCall, come_in: ComeIn) -> AnsweredCall:
    """Wait for the answer. The thread is inside when it is there, so that the rest may take its time."""
    answer = await call.answer(come_in)
    return AnsweredCall(answer, await call.initial_metadata(), await call.trailing_metadata())


class CallFuture(grpc.Future):  # type: ignore[type-arg]  # where it runs, gRPC's takes none
    """A call that was made, and goes on by itself; its answer is in the ledger until `result`, or `exception`, has taken it."""

    def __init__(self, threads: MemberThreads, method: ThreadedMethod, call: MemberCall) -> None:
        self._threads, self._method, self._call = threads, method, call
        self._answer: CallAnswer | None = None
        self._error: grpc.RpcError | None = None
        self._is_taken = self._is_cancelled = False

    def result(self, timeout: float | None = None) -> Any:
        """Return the response; of a stream of responses all of them. In one piece with what follows.

        Raises:
            grpc.RpcError: as gRPC's, with code() and details().
            grpc.FutureCancelledError: by `cancel`.
            UsageError: another thread waits for it already; or a time is given, which belongs into the call.
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
        """Give up, in one piece with what follows: the call was handled, or not. False: its answer was taken, or is waited for."""
        if self.done() or self._is_taken:
            return self._is_cancelled
        self._threads.step(self._call.give_up)
        self._is_cancelled = True
        return True

    def cancelled(self) -> bool:
        """Return whether `cancel` has given the call up."""
        return self._is_cancelled

    def done(self) -> bool:
        """Return whether its answer was taken, or the call cancelled."""
        return self._is_cancelled or self._answer is not None or self._error is not None

    def running(self) -> bool:
        """Return the opposite."""
        return not self.done()

    def add_done_callback(self, fn: Callable[[Any], None]) -> NoReturn:
        """Raise: not supported."""
        raise UsageError(
            "nobody is called when a member's call is done: its answer is taken by result(), in the thread that acts by it"
        )


class ResponseStream:
    """The responses of a call, all there when the first one is."""

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
