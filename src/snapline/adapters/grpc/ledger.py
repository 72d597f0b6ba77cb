"""Ledger of one service's calls, which is part of every cut. This module also defines the stamps that keep cuts consistent. This module
does no I/O.

Theory of operation
-------------------
Model: services crash and recover, and the network may lose, duplicate and reorder messages. A cut of the fleet records each service's state
between two atomic *pieces* of the service's work. After a crash, the whole fleet rolls back to a cut.

The caller stores the requests of unanswered calls, which are the channel state of a cut. A call is *pending* at the caller from the atomic
piece of work that makes the call until the piece that takes the answer. The receiver stores the answer under the call's id until the caller
reports that the answer is no longer needed. So, for each service, a cut contains the service's state, its pending calls with their
requests, and its stored answers. After a recovery, the caller repeats each pending call under the same id. A service that has already
handled the call returns the stored answer. Channels need not be drained, and messages need not be counted (compare the sender-based message
logging of Johnson and Zwaenepoel 1987).

Stamps in the metadata of requests and responses keep cuts consistent. A request carries the caller's plan and newest recorded epoch, and a
response carries the responder's. The stamps apply the method of Lai and Yang to calls. If a message's sender had already recorded an epoch,
the receiver records that epoch before it accepts the message. So a cut contains neither an answer sent after the cut nor the handling of a
request sent after the cut.

If a handler had not finished when the cut was taken, it is rerun after a recovery under the same request id, and repeats its calls. A
call's id is derived from its ordinal within the handler, so the call gets the same id as before. `RUN` contains the handler's run in the
context of the task or thread. For a call made by a handler, the ledger stores only a digest (`HandlerExecution.journal`) instead of the
request. A handler that changes state before its last call must declare the change (`changed`). After the declaration, the handler is not
rerun, and its calls are treated like calls made outside of handlers.

Invariants (`validate`): each pending call was made by this service, and no pending call is in a journal. A running handler has no stored
answer unless it has declared a state change.

The caller's duties:
1. Between two calls of these methods, do all work as one atomic piece, including the related change of the service's state. No epoch may be
   recorded during an atomic piece of work.
2. Call `begin` only after recording the epoch that the request's stamp requires. Call `answered` only after recording the epoch that the
   response's stamp requires.
3. Capture `image` and the service's own state in one atomic piece of work. After a recovery, restore the ledger and the service's state
   before any other event.
"""

import hashlib
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from snapline.errors import DivergenceError

DIGEST_BYTES = 8
"""Size in bytes of a request's digest, which reveals that a rerun handler makes a different request than before. The probability of a
collision is 2**-64."""

PARENT_LENGTH_MAX = 64
"""Largest length of a parent id that is used unchanged in the id of a nested call. A longer parent id is replaced by a digest of 128
bits."""

FINISHED_IDS_PER_REQUEST_MAX = 64
"""Largest number of ids of finished calls that one request carries. Each takes about 20 bytes."""

FINISHED_IDS_KEPT = 8192
"""Number of ids of finished calls that are remembered. If an attempt of a finished call arrives late from an abandoned connection, its id
prevents a handler from being run. Such an attempt can be late only by the data that this process has not read yet, which amounts to
milliseconds. Attempts from older plans are rejected anyway, so cuts need not contain these ids."""

ABORTED, FAILED_PRECONDITION = 10, 9
"""Numbers of gRPC status codes."""


class DivergedCallError(DivergenceError):
    """A rerun handler made different calls, or fewer calls, than its first run."""


class ServiceCall(msgspec.Struct, frozen=True):
    """A call that a service makes.

    Attributes:
        id: `agent:ordinal`, followed by `/ordinal` for each handler in which the call is nested (`nested_id`).
        target: name of the channel over which the call is made.
        method: full name of the method, such as /greeter.Greeter/SayHello.
        request: serialized request, or for a stream all its messages in one payload (`member_call.pack`).
        is_listed: whether the receiver is not part of cuts. Such a call is never repeated. If its outcome is unknown after a recovery, it
            is only reported.
        digest: digest of method and request if a handler makes the call, otherwise empty.
        asks_stream, answers_stream: whether the request is a stream, and whether the response is a stream.
    """

    id: str
    target: str
    method: str
    request: bytes
    is_listed: bool = False
    digest: bytes = b""
    asks_stream: bool = False
    answers_stream: bool = False


class CallAnswer(msgspec.Struct, frozen=True):
    """Outcome of a call: the numeric gRPC status code (0 means success), the status details, and the serialized response.

    `digest` is the digest of the request, if the request's stamp contained one.
    """

    code: int = 0
    details: str = ""
    response: bytes = b""
    digest: bytes = b""


LOST_ANSWER = CallAnswer(ABORTED, "the call was accepted before the fleet went back, and its answer is lost with that")
"""Answer to a repeated request if its handler had declared a change but had not ended in the cut."""

CALL_FINISHED = CallAnswer(ABORTED, "the call is over: its caller has had its answer, or has given up")


class JournaledCall(msgspec.Struct, frozen=True):
    """A call that a handler has made. If the handler is rerun, it must make the call again."""

    digest: bytes
    target: str


class LedgerImage(msgspec.Struct):
    """The content of a ledger as recorded in a cut.

    Attributes:
        ordinal: ordinal of the last call that was made outside of handlers.
        pending: calls without an answer.
        answers: id → stored answer to a call that this service has handled.
        journals: id of an unanswered request → calls that the request's handler has made.
        over: channel name → ids of finished calls that have not yet been reported to the receiver.
        unsettled: listed calls that were made before a recovery and whose outcomes are unknown.
    """

    ordinal: int = 0
    pending: list[ServiceCall] = []
    answers: dict[str, CallAnswer] = {}
    journals: dict[str, list[JournaledCall]] = {}
    over: dict[str, list[str]] = {}
    unsettled: list[ServiceCall] = []


class HandlerExecution:
    """One execution of a handler.

    Attributes:
        digest: digest of the request. Empty if the request's stamp contained no digest.
        journal: calls that the handler has made, in this run or in earlier runs.
        made: number of calls that the handler has made in this execution.
        open: id → call that has no answer yet.
        is_changed: whether the handler has declared a state change. If the handler has declared a change, it is not rerun.
        is_forgotten: whether the caller no longer needs the answer.
    """

    __slots__ = ("digest", "id", "is_changed", "is_forgotten", "journal", "made", "open")

    def __init__(self, call_id: str, digest: bytes, journal: list[JournaledCall]) -> None:
        self.id = call_id
        self.digest = digest
        self.journal = journal
        self.made = 0
        self.open: dict[str, ServiceCall] = {}
        self.is_changed = self.is_forgotten = False


class CallLedger:
    """The ledger of one service's calls (see the module docstring).

    Attributes:
        pending: id → call that is repeated after a recovery if its receiver is part of cuts.
        unsettled: id → listed call that was made before a recovery, and whose outcome is unknown.
        answers: id → stored answer to a call that this service has handled.
        running: id of a call → execution of the handler for this call.
    """

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.pending: dict[str, ServiceCall] = {}
        self.unsettled: dict[str, ServiceCall] = {}
        self.answers: dict[str, CallAnswer] = {}
        self.running: dict[str, HandlerExecution] = {}
        self._ordinal = 0
        self._journals: dict[str, list[JournaledCall]] = {}
        self._over: dict[str, dict[str, None]] = {}
        self._unreported: dict[str, list[str]] = {}
        self._finished_ids: dict[str, None] = {}

    # ---- calls of this service --------------------------------------------------------------------------------------

    def call(self, handling: HandlerExecution | None, wanted: ServiceCall, request: bytes) -> ServiceCall:
        """Register a call and return it. The returned call is a copy of `wanted`, completed with an id and the request. From now on, every
        cut contains the call until the call is answered.

        Raises:
            DivergedCallError: the rerun handler makes a different call than in its first run.
        """
        if handling is None or wanted.is_listed:
            self._ordinal += 1
            made = _made(wanted, request, f"{self.agent}:{self._ordinal}")
            self.pending[made.id] = made
            return made
        handling.made += 1
        call_id = nested_id(handling.id, handling.made)
        if handling.is_changed:
            made = self.pending[call_id] = _made(wanted, request, call_id)
            return made
        digest = digest_of(wanted.method, request)
        if handling.made > len(handling.journal):
            handling.journal.append(JournaledCall(digest, wanted.target))
        elif handling.journal[handling.made - 1] != JournaledCall(digest, wanted.target):
            raise DivergedCallError(
                f"the handler of call {handling.id} was run again and makes another call than before: {wanted.method}, as {call_id}. "
                "What it asks of others may depend on its request and their answers only, or else comes behind changed()"
            )
        made = handling.open[call_id] = _made(wanted, request, call_id, digest)
        return made

    def answered(self, call: ServiceCall, handling: HandlerExecution | None = None) -> None:
        """Close a call because its caller has received the answer or has given up. Call this method only under the plan under which the
        call was made."""
        if handling is not None and handling.open.pop(call.id, None) is not None:
            return
        if self.pending.pop(call.id, None) is not None and not call.is_listed:
            self._is_over(call.target, call.id)

    def _is_over(self, target: str, call_id: str) -> None:
        self._over.setdefault(target, {})[call_id] = None
        self._unreported.setdefault(target, []).append(call_id)

    def finished_calls_for(self, target: str) -> Sequence[str]:
        """Return the ids of finished calls that the next request to this target must carry.

        While an open request carries an id, no other request carries that id. When the request ends, call `confirm_finished` or
        `requeue_finished`.
        """
        unreported = self._unreported.get(target)
        if not unreported:
            return ()
        if len(unreported) <= FINISHED_IDS_PER_REQUEST_MAX:
            del self._unreported[target]
            return unreported
        self._unreported[target] = unreported[FINISHED_IDS_PER_REQUEST_MAX:]
        return unreported[:FINISHED_IDS_PER_REQUEST_MAX]

    def confirm_finished(self, target: str, ids: Iterable[str]) -> None:
        """Remove the given ids, because a request that carried them was answered."""
        over = self._over[target]
        for call_id in ids:
            over.pop(call_id, None)

    def requeue_finished(self, target: str, ids: Sequence[str]) -> None:
        """Queue the given ids again, because the request that carried them was not answered."""
        self._unreported.setdefault(target, []).extend(ids)

    def settle(self, call_id: str) -> None:
        """Remove a listed call, because the service has found out the call's outcome. Raise KeyError if there is no such call."""
        del self.unsettled[call_id]

    # ---- calls to this service --------------------------------------------------------------------------------------

    def begin(self, call_id: str, digest: bytes = b"") -> HandlerExecution | CallAnswer:
        """Return the stored answer to a request, or else the execution of the request's handler. The handler may already be running.

        Raises:
            DivergedCallError: an earlier, different request had the same id.
        """
        if call_id in self._finished_ids:
            return CALL_FINISHED
        running = self.running.get(call_id)
        handled = running or self.answers.get(call_id)
        if handled is not None:
            if handled.digest != digest:
                raise DivergedCallError(
                    f"another request had come as call {call_id}: its caller's handler was run again, and calls something else"
                )
            return handled
        handling = self.running[call_id] = HandlerExecution(call_id, digest, self._journals.setdefault(call_id, []))
        return handling

    def running_of(self, handling: HandlerExecution) -> HandlerExecution | None:
        """Return the handler execution if it has not ended, otherwise None. If a task continues to run after its handler has ended, its
        calls no longer count as the handler's."""
        return handling if self.running.get(handling.id) is handling else None

    def changed(self, handling: HandlerExecution, answer: CallAnswer = LOST_ANSWER) -> None:
        """Declare that the handler changes the service's state in this atomic piece of work and makes further calls afterwards. A handler
        that has declared a change must not be rerun.

        `answer` is the answer that the caller receives if the fleet recovers from a cut taken before the handler ends.

        Raises:
            DivergedCallError: the rerun handler made fewer calls than its first run.
        """
        if handling.is_changed:
            return
        self._check_whole(handling)
        handling.is_changed = True
        self._end_journal(handling.id, handling.open)
        if not handling.is_forgotten:
            self.answers[handling.id] = CallAnswer(answer.code, answer.details, answer.response, handling.digest)

    def finish(self, handling: HandlerExecution, answer: CallAnswer) -> None:
        """End the handler's execution and store its answer, in the same atomic piece of work as the handler's last state change.

        Raises:
            DivergedCallError: the rerun handler made fewer calls than its first run.
        """
        if self.running.pop(handling.id, None) is not handling:
            return
        whole = handling.is_changed or handling.made >= len(handling.journal)
        if not handling.is_changed:
            self._end_journal(handling.id, handling.open)
        if not handling.is_forgotten:
            self.answers[handling.id] = CallAnswer(answer.code, answer.details, answer.response, handling.digest)
        if not whole:
            self._check_whole(handling)

    def abandon(self, handling: HandlerExecution) -> None:
        """Handle the cancellation of a handler. If the handler has already ended, do nothing.

        If the handler has not declared a change, it is rerun when the caller repeats the request.
        """
        if self.running.pop(handling.id, None) is handling and handling.is_forgotten:
            self._end_journal(handling.id, {})

    def begun(self) -> Sequence[str]:
        """Return the ids of the requests whose handlers have made calls and are still running. After a recovery, these handlers are
        rerun."""
        return [call_id for call_id, journal in self._journals.items() if journal]

    def forget(self, ids: Iterable[str]) -> None:
        """Delete the answers and journals of calls whose callers no longer need the answers."""
        for call_id in ids:
            self._finished_ids[call_id] = None
            running = self.running.get(call_id)
            if running is not None:
                running.is_forgotten = True
            if self.answers.pop(call_id, None) is None and running is None:
                self._end_journal(call_id, {})
        while len(self._finished_ids) > FINISHED_IDS_KEPT:
            del self._finished_ids[next(iter(self._finished_ids))]

    def _check_whole(self, handling: HandlerExecution) -> None:
        if handling.made < len(handling.journal):
            raise DivergedCallError(
                f"the handler of call {handling.id} was run again and has made {handling.made} calls; before it had made "
                f"{len(handling.journal)}. What it asks of others may depend on its request and their answers only"
            )

    def _end_journal(self, call_id: str, still_open: dict[str, ServiceCall]) -> None:
        """Delete the journal of a handler that will not be rerun. The handler's unanswered calls become pending calls of the service. The
        handler's answered calls become finished calls."""
        for ordinal, made in enumerate(self._journals.pop(call_id, ()), 1):
            nested = nested_id(call_id, ordinal)
            if nested in still_open:
                self.pending[nested] = still_open[nested]
            else:
                self._is_over(made.target, nested)
        still_open.clear()

    # ---- cuts -------------------------------------------------------------------------------------------------------

    def image(self) -> LedgerImage:
        """Return a copy of the ledger's current content, which shares no mutable data with the ledger."""
        return LedgerImage(
            self._ordinal,
            list(self.pending.values()),
            dict(self.answers),
            {call_id: list(journal) for call_id, journal in self._journals.items() if journal},
            {target: list(over) for target, over in self._over.items() if over},
            list(self.unsettled.values()),
        )

    def restore(self, image: LedgerImage) -> None:
        """Restore the ledger's content from a cut. All running handlers and pending work belong to the discarded history and are
        dropped."""
        self._ordinal = image.ordinal
        self.pending = {call.id: call for call in image.pending if not call.is_listed}
        self.unsettled = {call.id: call for call in [*image.unsettled, *image.pending] if call.is_listed}
        self.answers = dict(image.answers)
        self._journals = {call_id: list(journal) for call_id, journal in image.journals.items()}
        self._over = {target: dict.fromkeys(over) for target, over in image.over.items()}
        self._unreported = {target: list(over) for target, over in image.over.items()}
        self.running, self._finished_ids = {}, {}

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated."""
        for call_id, call in self.pending.items():
            assert call_id == call.id and call_id.split("/")[0], call_id
            parent, _, ordinal = call_id.rpartition("/")
            assert not parent or len(self._journals.get(parent, ())) < int(ordinal), f"{call_id} is journaled"
        for call_id, handling in self.running.items():
            assert handling.is_changed or call_id not in self.answers, f"{call_id} runs, and has an answer"
            assert handling.is_changed or self._journals.get(call_id) is handling.journal, call_id


def _made(wanted: ServiceCall, request: bytes, call_id: str, digest: bytes = b"") -> ServiceCall:
    return ServiceCall(
        call_id,
        wanted.target,
        wanted.method,
        request,
        wanted.is_listed,
        digest,
        wanted.asks_stream,
        wanted.answers_stream,
    )


def nested_id(parent: str, ordinal: int) -> str:
    """Return the id of a call that the handler of the call `parent` makes. The id remains short even if handlers call each other in long
    chains."""
    if len(parent) > PARENT_LENGTH_MAX:
        parent = f"{parent.partition(':')[0]}:{hashlib.blake2b(parent.encode(), digest_size=16).hexdigest()}"
    return f"{parent}/{ordinal}"


def digest_of(method: str, request: bytes) -> bytes:
    """Return the digest of a call that a handler makes."""
    return hashlib.blake2b(request, digest_size=DIGEST_BYTES, key=method.encode()[-64:]).digest()


CALL_KEY, ANSWER_KEY = "snapline-call-bin", "snapline-answer-bin"
"""Keys of the stamps in the metadata of requests, and in the trailing metadata of responses. gRPC transmits the values of -bin keys
unchanged."""


class CallStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The stamp of a request.

    Attributes:
        plan, epoch: plan under which the caller runs, and newest epoch that the caller has recorded.
        digest: digest of the request if a handler makes the call, otherwise empty.
        over: ids of earlier calls to this receiver whose stored answers are no longer needed.
        wants_stamp: whether the response must always have a stamp, because the caller does not yet know whether the receiver is a member.
    """

    plan: int
    epoch: int
    id: str
    digest: bytes = b""
    over: Sequence[str] = ()
    wants_stamp: bool = True


class AnswerStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The stamp of a response. The stamp is omitted if its epoch equals the epoch in the request's stamp and the caller already knows that
    the receiver is a member.

    `is_refused` means that the request belonged to an older plan and was therefore not handled.
    """

    plan: int
    epoch: int
    is_refused: bool = False


Verdict = Literal["take", "record", "wait", "refuse"]
"""Decision about a request. "take" means to accept it. "record" means that the request's epoch must be recorded before the request is
accepted. "wait" means to wait for the request's plan. "refuse" means to refuse the request."""

_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(CallStamp).decode
_decode_answer = msgspec.msgpack.Decoder(AnswerStamp).decode


def judge(stamp: CallStamp, *, plan: int, is_loaded: bool, recorded: int) -> Verdict:
    """Decide whether a service that runs under this plan and has recorded this epoch may accept a request with the given stamp. Guarantees
    G9, and guarantees G1 for calls."""
    if stamp.plan < plan:
        return "refuse"
    if stamp.plan > plan or not is_loaded:
        return "wait"
    return "record" if stamp.epoch > recorded else "take"


def encode_stamp(stamp: CallStamp | AnswerStamp) -> bytes:
    """Encode a stamp as a metadata value."""
    return _encode(stamp)


def call_stamp(metadata: "Iterable[tuple[str, str | bytes]] | None") -> CallStamp | None:
    """Return the stamp in a request's metadata, or None if the metadata contains no stamp because the caller is not a member of a fleet.

    Raises:
        msgspec.MsgspecError: the stamp is invalid.
    """
    for key, value in metadata or ():
        if key == CALL_KEY:
            return _decode_call(bytes_of(value))
    return None


def answer_stamp(metadata: Any) -> AnswerStamp | None:
    """Return the stamp in a response's metadata, or None if the metadata contains no stamp. The metadata must be a grpc.aio Metadata.

    Raises:
        msgspec.MsgspecError: the stamp is invalid.
    """
    value = metadata.get(ANSWER_KEY)
    return None if value is None else _decode_answer(bytes_of(value))


def bytes_of(value: str | bytes) -> bytes:
    """Return a metadata value as bytes, which is the type that gRPC uses for -bin keys."""
    return value if isinstance(value, bytes) else value.encode()


class Serialize(Protocol):
    """Function that serializes a response."""

    def __call__(self, response: Any, /) -> bytes: ...


class HandlerRun(NamedTuple):
    """A running handler. `handling` is None if the caller is not a member of the fleet. `plan` is the plan under which the handler
    began."""

    handling: HandlerExecution | None
    plan: int
    serialize: Serialize


RUN: ContextVar[HandlerRun | None] = ContextVar("RUN", default=None)
