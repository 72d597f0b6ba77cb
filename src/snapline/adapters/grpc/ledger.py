"""The calls of one service, as its part of a cut holds them. No I/O.

Theory of operation
-------------------
Model: services crash and come back; a network that loses, repeats and reorders; a fleet whose cuts record each service between two of its pieces of
work, and that goes back to a cut as a whole after a crash.

A call's channel state is kept by its caller: the call is *pending* there from the piece that makes it until the piece that gets its answer. The
other end keeps the answer by the call's id until the caller has said that it needs it no more. So a cut is, for each service: its state, its pending
calls with their requests, and its answers. After a recovery each pending call is made again under its id, and a service answers one that it has had
from its table. Nothing waits for a channel to drain, and nothing is counted: compare Johnson and Zwaenepoel 1987 (sender-based message logging). What
makes the cut consistent are stamps (`stamps.py`): nobody takes in what was said behind the caller's record before having recorded that epoch too.

A call within a handler is made again by its handler, which runs again under its id as long as it has not ended; the ordinal within the handler makes the
same id. Its caller keeps a digest of it (`Handling.journal`), no request. A handler that changes state before its last call says so (`changed`): from
there it is not run again, and its calls are like those of nobody's handler.

Invariants (`validate`): a pending call is of this service, and no journal names it; a handler that runs has no answer unless it has changed something.

The caller's duties:
1. What is done between two calls of these methods, and the change of the service's state that belongs to it, is one piece: nothing is recorded within.
2. `begin` comes behind the record that the request's stamp asks for, `answered` behind the one that the response's asks for.
3. `image` and the service's own state are taken in one piece; `restore` puts both back before anything else happens.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from snapline.errors import DivergenceError

DIGEST_BYTES = 8
"""Bytes of a request's digest, which shows that a handler that runs again makes another one: by accident, one time in 2**64 unseen."""

PARENT_LENGTH_MAX = 64
"""Longest id that nested calls' ids begin with, as it is: longer ones by a digest, of 128 bits."""

OVER_TOLD_MAX = 64
"""Ids of finished calls that one request carries along, some 20 bytes each."""

GONE_KEPT = 8192
"""Ids of finished calls that are remembered, so that an attempt of theirs that comes late, over a connection that was given up, runs nothing. It is late
by what this process has not read yet: milliseconds. Of older plans nothing is taken anyway, so these are in no cut."""

ABORTED, FAILED_PRECONDITION = 10, 9
"""Status codes of gRPC."""


class DivergedCallError(DivergenceError):
    """A handler that was run again has made another call than before, or fewer. Names method and id."""


class ServiceCall(msgspec.Struct, frozen=True):
    """A call that waits for its answer.

    Attributes:
        id: agent:ordinal, and for each handler that it was made in /ordinal (`nested_id`).
        target: the channel's name.
        method: full name, such as /greeter.Greeter/SayHello.
        request: serialized; of a stream all messages (`streams.pack`).
        is_listed: its receiver is not in the cut: it is never made again, only shown.
        digest: of method and request, if it was made in a handler.
        asks_stream, answers_stream: requests, or responses, are streams.
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
    """Outcome of a call: gRPC's status code (0: success), its details, the response as sent. `digest`: of its request, if its caller sent it."""

    code: int = 0
    details: str = ""
    response: bytes = b""
    digest: bytes = b""


LOST_ANSWER = CallAnswer(ABORTED, "the call was accepted before the fleet went back, and its answer is lost with that")
"""Answer to a repeated request for a call whose handler had changed something and not ended."""

GONE = CallAnswer(ABORTED, "the call is over: its caller has had its answer, or has given up")


class JournaledCall(msgspec.Struct, frozen=True):
    """A call that a handler has made, and will make again if it is run again."""

    digest: bytes
    target: str


class LedgerImage(msgspec.Struct):
    """A ledger in a cut.

    Attributes:
        ordinal: of the last call of no handler.
        pending: calls without an answer.
        answers: id → answer of calls that were handled here.
        journals: id of a request that has no answer yet → the calls that its handler has made.
        over: channel's name → ids of calls that need no answer any more, still to be said there.
        unsettled: listed calls of before a recovery, whose answers nobody knows.
    """

    ordinal: int = 0
    pending: list[ServiceCall] = []
    answers: dict[str, CallAnswer] = {}
    journals: dict[str, list[JournaledCall]] = {}
    over: dict[str, list[str]] = {}
    unsettled: list[ServiceCall] = []


class Handling:
    """One run of a handler.

    Attributes:
        id: of the request.
        digest: of it, or empty.
        journal: the calls made in it, this time or before.
        made: how many this time.
        open: those that have no answer, by id.
        is_changed: it is not run again.
        is_forgotten: its caller has given up.
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
    """See the module.

    Attributes:
        agent: the service's agent in the fleet.
        pending: id → call, of those that a recovery makes again.
        unsettled: id → listed call of before a recovery.
        answers: id → answer of what was handled here.
        running: id → the run of its handler.
    """

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.pending: dict[str, ServiceCall] = {}
        self.unsettled: dict[str, ServiceCall] = {}
        self.answers: dict[str, CallAnswer] = {}
        self.running: dict[str, Handling] = {}
        self._ordinal = 0
        self._journals: dict[str, list[JournaledCall]] = {}
        self._over: dict[str, dict[str, None]] = {}
        self._untold: dict[str, list[str]] = {}
        self._gone: dict[str, None] = {}

    # ---- calls of this service --------------------------------------------------------------------------------------

    def call(self, handling: Handling | None, wanted: ServiceCall, request: bytes) -> ServiceCall:
        """A call is being made, as `wanted` but for its id and request; from here on it is in every cut.

        Raises:
            DivergedCallError: the handler was run before, and has called something else then.
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

    def answered(self, call: ServiceCall, handling: Handling | None = None) -> None:
        """Close a call: its caller has the answer, or has given up. Valid only in the plan in which it was made."""
        if handling is not None and handling.open.pop(call.id, None) is not None:
            return
        if self.pending.pop(call.id, None) is not None and not call.is_listed:
            self._is_over(call.target, call.id)

    def _is_over(self, target: str, call_id: str) -> None:
        self._over.setdefault(target, {})[call_id] = None
        self._untold.setdefault(target, []).append(call_id)

    def over_for(self, target: str) -> Sequence[str]:
        """Return what the next request to this target should carry. One request at a time carries it, so `over_told` or `over_again` must follow."""
        untold = self._untold.get(target)
        if not untold:
            return ()
        if len(untold) <= OVER_TOLD_MAX:
            del self._untold[target]
            return untold
        self._untold[target] = untold[OVER_TOLD_MAX:]
        return untold[:OVER_TOLD_MAX]

    def over_told(self, target: str, ids: Iterable[str]) -> None:
        """Remove these: a request that carried them was answered."""
        over = self._over[target]
        for call_id in ids:
            over.pop(call_id, None)

    def over_again(self, target: str, ids: Sequence[str]) -> None:
        """Queue these again: the request that carried them was not answered."""
        self._untold.setdefault(target, []).extend(ids)

    def settle(self, call_id: str) -> None:
        """Remove a listed call that the service has found out about. Raises KeyError: there is none."""
        del self.unsettled[call_id]

    # ---- calls to this service --------------------------------------------------------------------------------------

    def begin(self, call_id: str, digest: bytes = b"") -> Handling | CallAnswer:
        """Return the run of a request's handler (one that goes on already, perhaps), or its answer.

        Raises:
            DivergedCallError: another request had this id.
        """
        if call_id in self._gone:
            return GONE
        running = self.running.get(call_id)
        known = running or self.answers.get(call_id)
        if known is not None:
            if known.digest != digest:
                raise DivergedCallError(
                    f"another request had come as call {call_id}: its caller's handler was run again, and calls something else"
                )
            return known
        made = self.running[call_id] = Handling(call_id, digest, self._journals.setdefault(call_id, []))
        return made

    def running_of(self, handling: Handling) -> Handling | None:
        """Return the same run while it goes on: what its tasks do after its end belongs to no handler."""
        return handling if self.running.get(handling.id) is handling else None

    def changed(self, handling: Handling, answer: CallAnswer = LOST_ANSWER) -> None:
        """The handler changes the service's state in this piece and goes on: it is not run again. `answer`: for requests after a recovery.

        Raises:
            DivergedCallError: it was run before, and has made more calls then.
        """
        if handling.is_changed:
            return
        self._check_whole(handling)
        handling.is_changed = True
        self._end_journal(handling.id, handling.open)
        if not handling.is_forgotten:
            self.answers[handling.id] = CallAnswer(answer.code, answer.details, answer.response, handling.digest)

    def finish(self, handling: Handling, answer: CallAnswer) -> None:
        """End the handler, in the same piece as its last change.

        Raises:
            DivergedCallError: it was run before, and has made more calls then.
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

    def abandon(self, handling: Handling) -> None:
        """The handler was cancelled: if it has changed nothing, it is run again when its caller asks again."""
        if self.running.pop(handling.id, None) is handling and handling.is_forgotten:
            self._end_journal(handling.id, {})

    def begun(self) -> Sequence[str]:
        """Return requests whose handlers have made calls and not ended: after a recovery they are run again."""
        return [call_id for call_id, journal in self._journals.items() if journal]

    def forget(self, ids: Iterable[str]) -> None:
        """Forget calls whose callers need no answer any more."""
        for call_id in ids:
            self._gone[call_id] = None
            running = self.running.get(call_id)
            if running is not None:
                running.is_forgotten = True
            if self.answers.pop(call_id, None) is None and running is None:
                self._end_journal(call_id, {})
        while len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]

    def _check_whole(self, handling: Handling) -> None:
        if handling.made < len(handling.journal):
            raise DivergedCallError(
                f"the handler of call {handling.id} was run again and has made {handling.made} calls; before it had made "
                f"{len(handling.journal)}. What it asks of others may depend on its request and their answers only"
            )

    def _end_journal(self, call_id: str, still_open: dict[str, ServiceCall]) -> None:
        """End a journal whose handler is not run again: its calls without an answer are pending, the others are over."""
        for ordinal, made in enumerate(self._journals.pop(call_id, ()), 1):
            nested = nested_id(call_id, ordinal)
            if nested in still_open:
                self.pending[nested] = still_open[nested]
            else:
                self._is_over(made.target, nested)
        still_open.clear()

    # ---- cuts -------------------------------------------------------------------------------------------------------

    def image(self) -> LedgerImage:
        """Return the present image; it shares nothing that changes."""
        return LedgerImage(
            self._ordinal,
            list(self.pending.values()),
            dict(self.answers),
            {call_id: list(journal) for call_id, journal in self._journals.items() if journal},
            {target: list(over) for target, over in self._over.items() if over},
            list(self.unsettled.values()),
        )

    def restore(self, image: LedgerImage) -> None:
        """Go on from a cut. What runs, or waits, is of another history."""
        self._ordinal = image.ordinal
        self.pending = {call.id: call for call in image.pending if not call.is_listed}
        self.unsettled = {call.id: call for call in [*image.unsettled, *image.pending] if call.is_listed}
        self.answers = dict(image.answers)
        self._journals = {call_id: list(journal) for call_id, journal in image.journals.items()}
        self._over = {target: dict.fromkeys(over) for target, over in image.over.items()}
        self._untold = {target: list(over) for target, over in image.over.items()}
        self.running, self._gone = {}, {}

    def validate(self) -> None:
        """Cross-check the invariants. Raises AssertionError."""
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
    """Return the id of a call that the handler of this call makes. Where handlers pass work on to each other for ever, ids stay short."""
    if len(parent) > PARENT_LENGTH_MAX:
        parent = f"{parent.partition(':')[0]}:{hashlib.blake2b(parent.encode(), digest_size=16).hexdigest()}"
    return f"{parent}/{ordinal}"


def digest_of(method: str, request: bytes) -> bytes:
    """Return the digest of a call that a handler makes."""
    return hashlib.blake2b(request, digest_size=DIGEST_BYTES, key=method.encode()[-64:]).digest()
