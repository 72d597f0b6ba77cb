"""Ledger of one service's calls, which is part of every cut, and the stamps that keep cuts consistent. This module does no I/O.

Theory of operation
-------------------
Model: services crash and recover, and the network may lose, duplicate and reorder messages. A cut of the fleet records each service between
two atomic *pieces* of the service's work. After a crash, the whole fleet rolls back to a cut.

The caller stores the channel state of a call. From the piece that makes the call until the piece that takes the answer, the call is
*pending* at the caller. The receiver stores the answer under the call's id until the caller reports that the answer is no longer needed. So
for each service, a cut contains the service's state, its pending calls with their requests, and its stored answers. After a recovery, each
pending call is repeated under the same id, and a service that has already handled the call returns the stored answer. No channel has to be
drained, and messages need not be counted (compare the sender-based message logging of Johnson and Zwaenepoel 1987).

Stamps in the metadata of requests and responses make cuts consistent. A request carries the plan and the recorded epoch of the caller, and
a response carries those of the responder. These are the stamps of Lai and Yang, applied to calls. Before a process accepts a message that
was sent after its sender had recorded an epoch, it records that epoch too. So a cut never contains an answer that was given after the cut,
or the handling of a request that was made after the cut.

If a handler has not ended in the cut, it is rerun after a recovery under the id of its request, and makes its calls again. A call's id is
derived from its ordinal within the handler, so the call gets the same id as before. `RUN` contains the handler's run in the context of the
task or thread. For such a call, the ledger stores only a digest (`HandlerExecution.journal`) instead of the request. A handler that changes
state before its last call must declare the change (`changed`). From then on, the handler is not rerun, and its calls are treated like calls
outside of handlers.

Invariants (`validate`): every pending call was made by this service and is not in a journal. A running handler has no stored answer unless
it has declared a change.

The caller's duties:
1. Treat the work between two calls of these methods, including the related change of the service's state, as one piece. No epoch may be
   recorded within a piece.
2. Call `begin` only after the epoch required by the request's stamp was recorded, and `answered` only after the epoch required by the
   response's stamp was recorded.
3. Take `image` and the service's own state in one piece. After a recovery, restore both before any other event.
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
    """A rerun handler has made a different call than before, or fewer calls than before."""


class ServiceCall(msgspec.Struct, frozen=True):
    """A call that a service makes.

    Attributes:
        id: `agent:ordinal`, followed by `/ordinal` for each handler in which the call is nested (`nested_id`).
        target: name of the channel over which the call is made.
        method: full name of the method, such as /greeter.Greeter/SayHello.
        request: serialized request. If the request is a stream, all its messages (`member_call.pack`).
        is_listed: whether the receiver is not part of cuts, so that the call is never repeated, but only reported after a recovery.
        digest: digest of method and request if a handler makes the call. Otherwise empty.
        asks_stream, answers_stream: whether the request is a stream, and whether the response is.
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
    """Outcome of a call: the number of gRPC's status code (0 means success), its details, and the serialized response.

    `digest` is the digest of the request, if the request contained one.
    """

    code: int = 0
    details: str = ""
    response: bytes = b""
    digest: bytes = b""


LOST_ANSWER = CallAnswer(ABORTED, "the call was accepted before the fleet went back, and its answer is lost with that")
"""Answer to a repeated request if its handler had declared a change but had not ended in the cut."""

CALL_FINISHED = CallAnswer(ABORTED, "the call is over: its caller has had its answer, or has given up")


class JournaledCall(msgspec.Struct, frozen=True):
    """A call that a handler has made. If the handler is rerun, it makes the call again."""

    digest: bytes
    target: str


class LedgerImage(msgspec.Struct):
    """The content of a ledger in a cut.

    Attributes:
        ordinal: ordinal of the last call that was made outside of handlers.
        pending: calls without an answer.
        answers: id → answer, for calls that this service has handled.
        journals: id of an unanswered request → calls that its handler has made.
        over: channel's name → ids of calls whose answers are no longer needed, of which the receiver must still be informed.
        unsettled: listed calls that were made before a recovery, and whose outcomes are unknown.
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
        digest: digest of the request. Empty if the request contained none.
        journal: calls that the handler has made, in this run or in earlier runs.
        made: number of calls that the handler has made in this run.
        open: id → call that has no answer yet.
        is_changed: whether the handler has declared a change, so that it is not rerun.
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
    """The ledger of one service's calls, as described in the module docstring.

    Attributes:
        agent: the service's agent in the fleet.
        pending: id → call that is repeated after a recovery if its receiver is part of cuts.
        unsettled: id → listed call that was made before a recovery, and whose outcome is unknown.
        answers: id → answer to a call that this service has handled.
        running: id → run of the handler for the call with that id.
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
        """Register a call and return it. The call is a copy of `wanted` with an id and the request. From now on, every cut contains the
        call.

        Raises:
            DivergedCallError: the handler was rerun, and makes a different call than before.
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
        """Close a call whose caller has the answer or has given up. This method may be called only under the plan under which the call was
        made."""
        if handling is not None and handling.open.pop(call.id, None) is not None:
            return
        if self.pending.pop(call.id, None) is not None and not call.is_listed:
            self._is_over(call.target, call.id)

    def _is_over(self, target: str, call_id: str) -> None:
        self._over.setdefault(target, {})[call_id] = None
        self._unreported.setdefault(target, []).append(call_id)

    def finished_calls_for(self, target: str) -> Sequence[str]:
        """Return the ids of finished calls that the next request to this target must carry.

        Only one request carries a given id at a time. When the request has ended, call `confirm_finished` or `requeue_finished`.
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
        """Remove these ids, because a request that carried them was answered."""
        over = self._over[target]
        for call_id in ids:
            over.pop(call_id, None)

    def requeue_finished(self, target: str, ids: Sequence[str]) -> None:
        """Queue these ids again, because the request that carried them was not answered."""
        self._unreported.setdefault(target, []).extend(ids)

    def settle(self, call_id: str) -> None:
        """Remove a listed call whose outcome the service has found out. Raise KeyError if there is no such call."""
        del self.unsettled[call_id]

    # ---- calls to this service --------------------------------------------------------------------------------------

    def begin(self, call_id: str, digest: bytes = b"") -> HandlerExecution | CallAnswer:
        """Return the stored answer to a request, or the run of its handler. The handler may be running already.

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
        """Return the run if it has not ended, otherwise None. A task that outlives its handler does not belong to a handler anymore."""
        return handling if self.running.get(handling.id) is handling else None

    def changed(self, handling: HandlerExecution, answer: CallAnswer = LOST_ANSWER) -> None:
        """Declare that the handler changes the service's state in this piece and then continues, so that it must not be rerun.

        `answer` is the answer that the caller gets after a recovery.

        Raises:
            DivergedCallError: the handler was rerun, but has made fewer calls than before.
        """
        if handling.is_changed:
            return
        self._check_whole(handling)
        handling.is_changed = True
        self._end_journal(handling.id, handling.open)
        if not handling.is_forgotten:
            self.answers[handling.id] = CallAnswer(answer.code, answer.details, answer.response, handling.digest)

    def finish(self, handling: HandlerExecution, answer: CallAnswer) -> None:
        """End the handler's run and store the answer, in the same piece as the handler's last change.

        Raises:
            DivergedCallError: the handler was rerun, but has made fewer calls than before.
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
        """Handle the cancellation of a handler. It has no effect if the handler has already ended.

        If the handler has not declared a change, it is rerun when the caller repeats the request.
        """
        if self.running.pop(handling.id, None) is handling and handling.is_forgotten:
            self._end_journal(handling.id, {})

    def begun(self) -> Sequence[str]:
        """Return the ids of the requests whose handlers have made calls and have not ended. After a recovery, these handlers are rerun."""
        return [call_id for call_id, journal in self._journals.items() if journal]

    def forget(self, ids: Iterable[str]) -> None:
        """Delete the answers and journals of calls whose callers no longer need the answer."""
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
        """End the journal of a handler that will not be rerun. The handler's unanswered calls become pending. All its other calls are
        finished."""
        for ordinal, made in enumerate(self._journals.pop(call_id, ()), 1):
            nested = nested_id(call_id, ordinal)
            if nested in still_open:
                self.pending[nested] = still_open[nested]
            else:
                self._is_over(made.target, nested)
        still_open.clear()

    # ---- cuts -------------------------------------------------------------------------------------------------------

    def image(self) -> LedgerImage:
        """Return a copy of the ledger's current content. It shares no mutable data with the ledger."""
        return LedgerImage(
            self._ordinal,
            list(self.pending.values()),
            dict(self.answers),
            {call_id: list(journal) for call_id, journal in self._journals.items() if journal},
            {target: list(over) for target, over in self._over.items() if over},
            list(self.unsettled.values()),
        )

    def restore(self, image: LedgerImage) -> None:
        """Restore the ledger's content from a cut. All running and waiting work belongs to the discarded history and is dropped."""
        self._ordinal = image.ordinal
        self.pending = {call.id: call for call in image.pending if not call.is_listed}
        self.unsettled = {call.id: call for call in [*image.unsettled, *image.pending] if call.is_listed}
        self.answers = dict(image.answers)
        self._journals = {call_id: list(journal) for call_id, journal in image.journals.items()}
        self._over = {target: dict.fromkeys(over) for target, over in image.over.items()}
        self._unreported = {target: list(over) for target, over in image.over.items()}
        self.running, self._finished_ids = {}, {}

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if one is violated."""
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
    """Return the id of a call that the handler of the call `parent` makes. Ids remain short even if handlers form long chains."""
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
        plan, epoch: plan under which the caller runs, and the newest epoch that the caller has recorded.
        id: id of the call.
        digest: digest of the request, if a handler makes the call.
        over: ids of earlier calls to this receiver whose answers are no longer needed.
        wants_stamp: whether the response must have a stamp in any case, because the caller does not know yet whether the receiver is a
            member.
    """

    plan: int
    epoch: int
    id: str
    digest: bytes = b""
    over: Sequence[str] = ()
    wants_stamp: bool = True


class AnswerStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The stamp of a response. It is omitted if its epoch equals the request's and the caller already knows that the receiver is a member.

    `is_refused` means that the request belonged to an older plan and was not handled.
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
    """Decide whether a service that runs under this plan and has recorded this epoch may accept a request. Carries G9, and G1 for calls."""
    if stamp.plan < plan:
        return "refuse"
    if stamp.plan > plan or not is_loaded:
        return "wait"
    return "record" if stamp.epoch > recorded else "take"


def encode_stamp(stamp: CallStamp | AnswerStamp) -> bytes:
    """Encode a stamp as a metadata value."""
    return _encode(stamp)


def call_stamp(metadata: "Iterable[tuple[str, str | bytes]] | None") -> CallStamp | None:
    """Return the stamp in a request's metadata, or None if the caller is not a member of a fleet.

    Raises:
        msgspec.MsgspecError: the stamp is invalid.
    """
    for key, value in metadata or ():
        if key == CALL_KEY:
            return _decode_call(bytes_of(value))
    return None


def answer_stamp(metadata: Any) -> AnswerStamp | None:
    """Return the stamp in a response's metadata, or None if there is none. The metadata must be a grpc.aio Metadata.

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
