"""Keep the calls of one service as part of a cut, and make and check the stamps that keep the cut consistent. This module does no I/O.

Theory of operation
-------------------
Model: services crash and recover; the network loses, repeats and reorders messages. A cut of the fleet records each service between two
atomic *pieces* of the service's work. After a crash the whole fleet rolls back to a cut.

The caller stores the channel state of a call. The call is *pending* at the caller from the piece that makes the call until the piece that
takes the answer. The receiver stores the answer under the call's id until the caller reports that the answer is no longer needed. So a cut
contains, for each service, the state, the pending calls with their requests, and the answers. After a recovery each pending call is made
again under its id, and a service that has already handled the call answers from its table. No channel has to drain, and messages are not
counted; compare Johnson and Zwaenepoel 1987 (sender-based message logging).

Stamps in the metadata of calls and answers make the cut consistent. A request carries the plan and the recorded epoch of the caller; a
response carries those of the responder. These are Lai and Yang's stamps, applied to calls: a process that receives a message sent after the
sender recorded an epoch records that epoch first. So a cut never contains an answer that, within the cut, was not given, or a request that
was not made.

A handler that has not ended is rerun after a recovery under the id of its request, and makes its calls again. A call gets the same id as
before from its ordinal within the handler. `RUN` finds the handler's run through the context of the task or thread. The ledger stores only
a digest of such a call (`HandlerExecution.journal`), and no request. A handler that changes state before its last call declares the change
(`changed`). From then on the handler is not rerun, and its calls are treated like calls outside of handlers.

Invariants (`validate`): a pending call was made by this service, and no journal contains the call; a running handler has no answer unless
the handler has declared a change.

The caller's duties:
1. The work between two calls of these methods, with the related change of the service's state, is one piece: no epoch is recorded within
   it.
2. Call `begin` after the record required by the request's stamp, and `answered` after the record required by the response's stamp.
3. Take `image` and the service's own state in one piece; `restore` both before anything else happens.
"""

import hashlib
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from snapline.errors import DivergenceError

DIGEST_BYTES = 8
"""Size of a request's digest, which detects that a rerun handler makes a different request. The probability of a collision is 2**-64."""

PARENT_LENGTH_MAX = 64
"""Longest parent id that a nested call's id contains unchanged. A longer parent id is replaced by a digest of 128 bits."""

FINISHED_IDS_PER_REQUEST_MAX = 64
"""Largest number of ids of finished calls that one request carries, about 20 bytes each."""

FINISHED_IDS_KEPT = 8192
"""Number of ids of finished calls that are remembered, so that a late attempt of such a call, from an abandoned connection, runs no handler.
Such an attempt is late only by data that this process has not yet read, so by milliseconds. Attempts of older plans are rejected anyway, so cuts
do not contain these ids."""

ABORTED, FAILED_PRECONDITION = 10, 9
"""Status codes of gRPC."""


class DivergedCallError(DivergenceError):
    """A rerun handler has made a different call than before, or fewer calls. The message names the method and the id."""


class ServiceCall(msgspec.Struct, frozen=True):
    """A call that waits for its answer.

    Attributes:
        id: `agent:ordinal`, followed by `/ordinal` for each handler in which the call is nested (`nested_id`).
        target: the channel's name.
        method: full name of the method, such as /greeter.Greeter/SayHello.
        request: serialized request; for a stream all messages (`member_call.pack`).
        is_listed: the receiver is not in the cut, so the call is never repeated but only reported.
        digest: digest of method and request, if a handler makes the call.
        asks_stream, answers_stream: whether the requests and the responses are streams.
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
    """Outcome of a call: gRPC's status code (0: success), its details, and the serialized response.

    `digest`: digest of the request, if it was sent.
    """

    code: int = 0
    details: str = ""
    response: bytes = b""
    digest: bytes = b""


LOST_ANSWER = CallAnswer(ABORTED, "the call was accepted before the fleet went back, and its answer is lost with that")
"""Answer to a repeated request whose handler had declared a change and had not ended."""

CALL_FINISHED = CallAnswer(ABORTED, "the call is over: its caller has had its answer, or has given up")


class JournaledCall(msgspec.Struct, frozen=True):
    """A call made by a handler. If the handler is rerun, it makes the call again."""

    digest: bytes
    target: str


class LedgerImage(msgspec.Struct):
    """The content of a ledger in a cut.

    Attributes:
        ordinal: ordinal of the last call outside of handlers.
        pending: calls without an answer.
        answers: id → answer, for calls handled by this service.
        journals: id of an unanswered request → calls made by its handler.
        over: channel's name → ids of calls whose answers are no longer needed; the receiver has yet to be informed.
        unsettled: listed calls made before a recovery, whose answers are unknown.
    """

    ordinal: int = 0
    pending: list[ServiceCall] = []
    answers: dict[str, CallAnswer] = {}
    journals: dict[str, list[JournaledCall]] = {}
    over: dict[str, list[str]] = {}
    unsettled: list[ServiceCall] = []


class HandlerExecution:
    """One run of a handler.

    Attributes:
        id: id of the request.
        digest: digest of the request, or empty.
        journal: calls made by the handler, in this run or before.
        made: number of calls made in this run.
        open: calls without an answer, by id.
        is_changed: the handler has declared a change and is not rerun.
        is_forgotten: the caller has given up.
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
    """The ledger of one service's calls (see the module).

    Attributes:
        agent: the service's agent in the fleet.
        pending: id → call that is made again after a recovery.
        unsettled: id → listed call made before a recovery.
        answers: id → answer of a call handled by this service.
        running: id → run of the handler of that call.
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
        """Register a call, which is a copy of `wanted` with id and request. From now on every cut contains the call.

        Raises:
            DivergedCallError: the handler was rerun and makes a different call than before.
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
        """Close a call whose caller has the answer or has given up. Valid only under the plan in which the call was made."""
        if handling is not None and handling.open.pop(call.id, None) is not None:
            return
        if self.pending.pop(call.id, None) is not None and not call.is_listed:
            self._is_over(call.target, call.id)

    def _is_over(self, target: str, call_id: str) -> None:
        self._over.setdefault(target, {})[call_id] = None
        self._unreported.setdefault(target, []).append(call_id)

    def finished_calls_for(self, target: str) -> Sequence[str]:
        """Return the ids of finished calls that the next request to this target should carry.

        Only one request at a time carries them; afterwards call `confirm_finished` or `requeue_finished`.
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
        """Remove these ids, since a request that carried them was answered."""
        over = self._over[target]
        for call_id in ids:
            over.pop(call_id, None)

    def requeue_finished(self, target: str, ids: Sequence[str]) -> None:
        """Queue these ids again, since the request that carried them was not answered."""
        self._unreported.setdefault(target, []).extend(ids)

    def settle(self, call_id: str) -> None:
        """Remove a listed call whose outcome the service has determined. Raise KeyError if there is no such call."""
        del self.unsettled[call_id]

    # ---- calls to this service --------------------------------------------------------------------------------------

    def begin(self, call_id: str, digest: bytes = b"") -> HandlerExecution | CallAnswer:
        """Return the run of a request's handler, which may be running already, or the stored answer to the request.

        Raises:
            DivergedCallError: a different request had this id.
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
        """Return the run if it has not ended, else None. Tasks that outlive their handler belong to no handler."""
        return handling if self.running.get(handling.id) is handling else None

    def changed(self, handling: HandlerExecution, answer: CallAnswer = LOST_ANSWER) -> None:
        """Declare that the handler changes the service's state in this piece and continues, so it is not rerun.

        `answer`: answer after a recovery.

        Raises:
            DivergedCallError: the handler was rerun, and has made fewer calls than before.
        """
        if handling.is_changed:
            return
        self._check_whole(handling)
        handling.is_changed = True
        self._end_journal(handling.id, handling.open)
        if not handling.is_forgotten:
            self.answers[handling.id] = CallAnswer(answer.code, answer.details, answer.response, handling.digest)

    def finish(self, handling: HandlerExecution, answer: CallAnswer) -> None:
        """End the handler, in the same piece as its last change.

        Raises:
            DivergedCallError: the handler was rerun, and has made fewer calls than before.
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
        """Handle the cancellation of a handler.

        Unless the handler has declared a change, it is rerun when the caller repeats the request.
        """
        if self.running.pop(handling.id, None) is handling and handling.is_forgotten:
            self._end_journal(handling.id, {})

    def begun(self) -> Sequence[str]:
        """Return the ids of requests whose handlers have made calls and have not ended. After a recovery these handlers are rerun."""
        return [call_id for call_id, journal in self._journals.items() if journal]

    def forget(self, ids: Iterable[str]) -> None:
        """Forget calls whose callers no longer need the answer."""
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
        """End the journal of a handler that is not rerun. The handler's unanswered calls become pending; the others are finished."""
        for ordinal, made in enumerate(self._journals.pop(call_id, ()), 1):
            nested = nested_id(call_id, ordinal)
            if nested in still_open:
                self.pending[nested] = still_open[nested]
            else:
                self._is_over(made.target, nested)
        still_open.clear()

    # ---- cuts -------------------------------------------------------------------------------------------------------

    def image(self) -> LedgerImage:
        """Return the ledger's current content. The image shares no mutable data with the ledger."""
        return LedgerImage(
            self._ordinal,
            list(self.pending.values()),
            dict(self.answers),
            {call_id: list(journal) for call_id, journal in self._journals.items() if journal},
            {target: list(over) for target, over in self._over.items() if over},
            list(self.unsettled.values()),
        )

    def restore(self, image: LedgerImage) -> None:
        """Continue from a cut. All running and waiting work belongs to another history and is dropped."""
        self._ordinal = image.ordinal
        self.pending = {call.id: call for call in image.pending if not call.is_listed}
        self.unsettled = {call.id: call for call in [*image.unsettled, *image.pending] if call.is_listed}
        self.answers = dict(image.answers)
        self._journals = {call_id: list(journal) for call_id, journal in image.journals.items()}
        self._over = {target: dict.fromkeys(over) for target, over in image.over.items()}
        self._unreported = {target: list(over) for target, over in image.over.items()}
        self.running, self._finished_ids = {}, {}

    def validate(self) -> None:
        """Check the invariants; raise AssertionError if one is violated."""
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
    """Return the id of a call made by the handler of the call `parent`. Ids stay short even in long chains of handlers."""
    if len(parent) > PARENT_LENGTH_MAX:
        parent = f"{parent.partition(':')[0]}:{hashlib.blake2b(parent.encode(), digest_size=16).hexdigest()}"
    return f"{parent}/{ordinal}"


def digest_of(method: str, request: bytes) -> bytes:
    """Return the digest of a call made by a handler."""
    return hashlib.blake2b(request, digest_size=DIGEST_BYTES, key=method.encode()[-64:]).digest()


CALL_KEY, ANSWER_KEY = "snapline-call-bin", "snapline-answer-bin"
"""Keys in the metadata of requests, and in the trailing metadata of responses. gRPC transmits values of -bin keys unchanged."""


class CallStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Stamp of a request.

    Attributes:
        plan, epoch: the caller's incarnation, and its newest recorded epoch.
        id: id of the call.
        digest: digest of the request, if a handler makes it.
        over: ids of calls whose answers are no longer needed.
        wants_stamp: the response needs a stamp in any case, since the caller does not know yet whether the receiver is a member.
    """

    plan: int
    epoch: int
    id: str
    digest: bytes = b""
    over: Sequence[str] = ()
    wants_stamp: bool = True


class AnswerStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Stamp of a response. A responder omits the stamp if it equals the request's stamp and the caller knows that a member answers.

    `is_refused`: the request belonged to an older plan and was not handled.
    """

    plan: int
    epoch: int
    is_refused: bool = False


Verdict = Literal["take", "record", "wait", "refuse"]
"""Accept the request; record the request's epoch first; wait for the request's plan first; or refuse the request."""

_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(CallStamp).decode
_decode_answer = msgspec.msgpack.Decoder(AnswerStamp).decode


def judge(stamp: CallStamp, *, plan: int, is_loaded: bool, recorded: int) -> Verdict:
    """Decide whether a service under this plan, with this recorded epoch, may accept a request. Guarantees G9, and G1 for calls."""
    if stamp.plan < plan:
        return "refuse"
    if stamp.plan > plan or not is_loaded:
        return "wait"
    return "record" if stamp.epoch > recorded else "take"


def encode_stamp(stamp: CallStamp | AnswerStamp) -> bytes:
    """Return a stamp as a metadata value."""
    return _encode(stamp)


def call_stamp(metadata: "Iterable[tuple[str, str | bytes]] | None") -> CallStamp | None:
    """Return the stamp of a request; None if the caller is not in a fleet.

    Raises:
        msgspec.MsgspecError: the stamp is invalid.
    """
    for key, value in metadata or ():
        if key == CALL_KEY:
            return _decode_call(bytes_of(value))
    return None


def answer_stamp(metadata: Any) -> AnswerStamp | None:
    """Return the stamp of a response from grpc.aio's Metadata; None if the responder is not in a fleet.

    Raises:
        msgspec.MsgspecError: the stamp is invalid.
    """
    value = metadata.get(ANSWER_KEY)
    return None if value is None else _decode_answer(bytes_of(value))


def bytes_of(value: str | bytes) -> bytes:
    """Return a value as bytes, the type that gRPC uses for -bin keys."""
    return value if isinstance(value, bytes) else value.encode()


class Serialize(Protocol):
    """Serializer of a response."""

    def __call__(self, response: Any, /) -> bytes: ...


class HandlerRun(NamedTuple):
    """A running handler. `handling` is None if the caller is not in the fleet. `plan`: plan under which the handler began."""

    handling: HandlerExecution | None
    plan: int
    serialize: Serialize


RUN: ContextVar[HandlerRun | None] = ContextVar("RUN", default=None)
