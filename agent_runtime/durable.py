"""Durable turns from the handler's side: replays and continues the journal. This module does no I/O.

A handler with `durable=True` runs in *segments*. A segment ends where the handler requests an operation that takes time: a step, a call, a
sleep, a message. Messages that the segment sends leave at its end. The agent is then between two turns, with a journal of all requests and
their results.

After a recovery the handler runs again, with the state that its turn began with. Results in the journal are returned at once, and messages
that have already left are not sent again. So a handler must make the same requests in the same order in every run. Values that could differ
between runs (time, random numbers, results from outside) come from the journal.

The runtime drives the handler's coroutine: the coroutine yields a `SegmentEnd`, and the runtime sends the finished entry into it (`host/turns.py`).

*Logged entries.* A completed step is in the host log before its turn continues, so the host log may contain results beyond the journal's
end. A turn *adopts* these results as if the steps had ended at once; messages sent in between leave with the next segment. But the handler
may run again with another history: other messages came first, or the state differed. The logged result would then not belong to this
history (G3). So each log entry names its conditions, and a turn adopts the entry only if all of them are met:

- the *seed* of its turn, which is derived from the fleet, the agent, the turn's number among the durable turns of its history, the message
  that began it, and the state that it began with (`turn_seed`);
- the *place* of the entry, and the digest of all entries before it (`rolled`), which covers everything received, answered or drawn until
  then;
- the request at that place, and the digest of the request's arguments.

Random draws of a turn are derived from its seed, so a repeated turn draws the same numbers.
"""

import contextlib
import functools
import sys
import types
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from snapline.agent_runtime.message_encoding import (
    describe_failure,
    encode_body,
    encode_ordered,
    message_decoder,
    message_name,
    result_decoder,
)
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.errors import DivergenceError, EncodingError, MessageTooLargeError, StepFailedError, UsageError
from snapline.messages.effect_records import TEXT_CHARACTERS_MAX, readable
from snapline.messages.payloads import CALL, CALL_ID_BYTES, REPLY, split_message
from snapline.storage.capture.declared_values import check_declared
from snapline.storage.log.log_record import EFFECT, LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn

LOGGED_KINDS = ("step", EFFECT, "now")
"""Kinds of journal entries that are in the host log. Replies and received messages come only from channels and checkpoints, since logged
ones could belong to a discarded history. The digests of later entries cover replies and received messages."""

SEED_BYTES = PREFIX_BYTES = 16

_encoder = msgspec.msgpack.Encoder()


def turn_seed(cluster: str, agent: str, number: int, *, sender: str, payload: bytes, state: bytes) -> bytes:
    """Return the seed that identifies one durable turn. Another turn, or the same turn with another history, has another seed.

    Args:
        cluster: id of the fleet's run.
        number: number of the turn among the durable turns of the agent's history, from 1.
        sender, payload: sender and payload of the message that began the turn; a call includes its wrapper.
        state: encoded state at the start of the turn.
    """
    state_digest = blake2b(state, digest_size=32).digest()
    parts = _encoder.encode((cluster, agent, number, sender, payload, state_digest))
    return blake2b(parts, person=b"turn", digest_size=SEED_BYTES).digest()


def rolled(prefix: bytes, entries: Iterable[JournalEntry]) -> bytes:
    """Return the digest of a journal that ends with these entries; `prefix`: digest of the earlier entries, or b""."""
    for entry in entries:
        prefix = blake2b(prefix + _encoder.encode(entry), person=b"journal", digest_size=PREFIX_BYTES).digest()
    return prefix


class LoggedSteps:
    """Entries of host logs for one turn that runs again, and the digest of the journal up to the turn's current place. Without entries, no
    digest is computed."""

    __slots__ = ("_by_place", "_last", "_prefix")

    def __init__(self, seed: bytes, logged: Iterable[LoggedEntry]) -> None:
        self._prefix = b""
        self._by_place: dict[int, list[LoggedEntry]] = {}
        for entry in logged:
            if entry.seed == seed:
                self._by_place.setdefault(entry.place, []).append(entry)
        self._last = max(self._by_place, default=-1)

    def find(self, place: int, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        """Return the logged result of this entry if the same turn reached the entry before. None: the turn did not reach it, or this is
        unknown.

        The core looks up results of effects (`host/host_effects.py`), since these results do not belong to one turn alone.
        """
        if kind == EFFECT:
            return None
        for logged_entry in reversed(self._by_place.get(place, ())):  # the last entry is from the newest attempt
            request = logged_entry.entry.kind, logged_entry.entry.name, logged_entry.entry.digest
            if logged_entry.prefix == self._prefix and request == (kind, name, digest):
                return logged_entry.entry
        return None

    def passed(self, place: int, entry: JournalEntry) -> None:
        """Record the entry at that place, with its result in this run."""
        if place < self._last:
            self._prefix = rolled(self._prefix, (entry,))


DONE, FAILED, LATE = "done", "failed", "late"
"""Outcomes of an entry. "": the turn still waits for the outcome."""

ADOPTED, REFUSED = "adopted", "refused"
"""Further outcomes of an effect: an earlier turn has done the effect, with the same arguments or with others."""

JOURNAL_BYTES_MAX = 64 * 2**20
"""Largest size of the results in one turn's journal. The journal is held in memory, twice if it is sealed, and a recovery reads the journal
before the turn continues."""

JOURNAL_ENTRIES_MAX = 100_000
"""Largest number of entries in one turn's journal: a recovery replays all of them without a pause, which blocks the host for almost a second."""

_HERE = __name__.partition(".")[0] + "."


class StepWork(msgspec.Struct, frozen=True):
    """Work of a step: call `function` for at most `timeout_s`, expecting a heartbeat every `heartbeat_s`. Retry after each of `waits_s` if it raises.
    `is_logged`: the turn continues only when the host log contains the result."""

    function: Callable[[], Any]
    timeout_s: float | None = None
    waits_s: tuple[float, ...] = ()
    is_logged: bool = False
    heartbeat_s: float | None = None


class EffectIntent(msgspec.Struct, frozen=True, gc=False):
    """An effect requested by a turn, in the form that the core gets.

    Attributes:
        key: key of the effect within the agent; for a compensation, the key of the effect to undo.
        arguments: arguments as text, for display.
        asked_ns: wall-clock time of the request, since 1970.
        undo, undo_arguments: compensation as `"module:function"` ("" if there is none), and its encoded arguments.
        is_undo: the intent is a compensation of the effect with this key and generation; generation 0 means the newest.
        saga: saga block of the effect, or "".
        timeout_s: how long each call may take.
        has_probe, is_repeatable: determine what is done after a crash during the call.
    """

    key: str
    arguments: str
    asked_ns: int
    undo: str = ""
    undo_arguments: list[bytes] = []
    is_undo: bool = False
    generation: int = 0
    saga: str = ""
    timeout_s: float = 0.0
    has_probe: bool = False
    is_repeatable: bool = True


class EffectWork(msgspec.Struct, frozen=True):
    """Work of an effect: call `function` with its outside key, like a step, for at most `timeout_s`. Retry after each of `waits_s` if it raises.

    `probe` finds out whether an earlier call has done the effect; it returns None if no call has.
    """

    function: Callable[..., Any]
    digest: bytes
    intent: EffectIntent
    probe: Callable[..., Any] | None
    timeout_s: float
    waits_s: tuple[float, ...]


class SegmentEnd(msgspec.Struct, frozen=True):
    """The end of a segment.

    Attributes:
        waits: the request whose result the handler waits for.
        timeout_ns: time until the wait times out or the sleep ends; None: no limit.
        work: work of a step or an effect.
        entries: requests since the previous segment whose results were known at once.
        is_repeated: the turn waited here before, so this segment's sends have already left.
    """

    waits: JournalEntry
    timeout_ns: int | None
    work: StepWork | EffectWork | None
    entries: list[JournalEntry]
    is_repeated: bool

    def pause(self, seed: bytes) -> "Pause":
        """Return this segment end as a `Pause` for the core; `seed` is the seed of the turn."""
        if isinstance(self.work, EffectWork):
            return Pause(seed, self.waits, self.timeout_ns, self.entries, True, self.work.intent)
        is_logged = self.work is not None and self.work.is_logged
        return Pause(seed, self.waits, self.timeout_ns, self.entries, is_logged)


class Pause(msgspec.Struct, frozen=True, gc=False):
    """End of a segment of an unfinished turn, in the form that the core gets.

    Attributes:
        seed: seed of the turn.
        waits, timeout_ns, entries: see `SegmentEnd`.
        is_logged: the turn continues only when the host log holds the result.
        intent: intent of the effect, if the turn waits for one.
    """

    seed: bytes
    waits: JournalEntry
    timeout_ns: int | None
    entries: list[JournalEntry]
    is_logged: bool = False
    intent: EffectIntent | None = None


class TurnJournal:
    """Journal of one run of a durable turn.

    Attributes:
        seed: seed of the turn's random draws.
        received_from: sender of the last received message.
        divergence: the handler's request differed from the journal. The handler may have caught the resulting error and continued.
        has_left: messages sent before the last wait have left, since the turn has waited there.
        takes_effects: the store can release intents, so effects are possible.
        own_modules: modules in which compensations are looked up (`sagas.py`).
    """

    def __init__(
        self,
        seed: bytes,
        begun: SavedTurn | None = None,
        logged: Iterable[LoggedEntry] = (),
        *,
        takes_effects: bool = True,
        own_modules: Sequence[str] = (),
    ) -> None:
        """`begun`: saved turn to run again; `logged`: log entries of turns with the same number."""
        self.takes_effects = takes_effects
        self.own_modules = own_modules
        self.seed = begun.seed if begun is not None else seed
        self.received_from = ""
        self.divergence: DivergenceError | None = None
        self._draws = self._size_bytes = 0
        self._known: list[JournalEntry] = []
        if begun is not None:
            self._known = [*begun.journal, begun.waits] if begun.waits is not None else list(begun.journal)
        self._place = 0
        self._fresh: list[JournalEntry] = []
        self._logged = LoggedSteps(self.seed, logged)
        self.has_left = True

    @property
    def is_beyond(self) -> bool:
        """Return whether the handler has made more requests than were known when this run started."""
        return self._place > len(self._known)

    def draw(self) -> bytes:
        """Return the next 32 random bytes."""
        self._draws += 1
        return blake2b(self._draws.to_bytes(8, "big"), key=self.seed, person=b"draw", digest_size=32).digest()

    def now(self, now_ns: Callable[[], int]) -> int:
        """Return the time at which the handler first made this request."""
        place = self._place
        entry = self._reach("now", "", b"")
        if entry is None:
            self._check_room(place)
            entry = self._logged.find(place, "now", "", b"")
            entry = entry or JournalEntry("now", "", b"", DONE, now_ns().to_bytes(8, "big"))
            self._fresh.append(entry)
        self._passed(place, entry)
        return int.from_bytes(entry.result, "big")

    def call_id(self) -> bytes:
        """Return the id of the next call, which is unique among this agent's calls."""
        return call_id(self.seed, self._place)

    def effect_id(self, digest: bytes) -> bytes:
        """Return the id of the next effect. `digest` covers its name and arguments, since the turn may request another effect at this place
        in another history."""
        return call_id(self.seed, self._place, digest)

    async def wait(
        self,
        kind: str,
        name: str,
        digest: bytes,
        *,
        timeout_ns: int | None = None,
        work: StepWork | EffectWork | None = None,
    ) -> JournalEntry:
        """End the segment, unless the journal or the host log already has the result."""
        place = self._place
        entry = known = self._reach(kind, name, digest)
        # Compensations, one for each effect, must not fail on this limit.
        is_undo = isinstance(work, EffectWork) and work.intent.is_undo
        if known is None and not is_undo:
            self._check_room(place)
        if known is None or not known.outcome:
            entry = self._logged.find(place, kind, name, digest)
            if entry is not None:
                self._fresh.append(entry)
        self.has_left = entry is None or known is not None
        if entry is None:
            entries, self._fresh = self._fresh, []
            entry = await _await_segment(
                SegmentEnd(JournalEntry(kind, name, digest), timeout_ns, work, entries, is_repeated=known is not None)
            )
        self._passed(place, entry)
        return entry

    def _passed(self, place: int, found: JournalEntry) -> None:
        self._size_bytes += len(found.result)
        self._logged.passed(place, found)

    def _reach(self, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        """Return the journal's entry at the next place; None if the turn has not reached this place before."""
        place = self._place
        self._place += 1
        if place >= len(self._known):
            return None
        known = self._known[place]
        if (known.kind, known.name, known.digest) != (kind, name, digest):
            request = f"asks for {_described(kind, name)}{_difference(known, kind, name)}, at {_line_of_handler()}"
            raise self._diverged(place, request)
        return known

    def _check_room(self, place: int) -> None:
        """Check that the journal has room for one more entry."""
        if place >= JOURNAL_ENTRIES_MAX or self._size_bytes >= JOURNAL_BYTES_MAX:
            raise UsageError(
                f"the turn's journal is full: {place:,} entries with {self._size_bytes:,} bytes of results, and a turn may have "
                f"{JOURNAL_ENTRIES_MAX:,} and {JOURNAL_BYTES_MAX:,}. Put large results into shared storage and return their names, and let "
                "a long plan go on in another turn: end this one with a message that says where it is"
            )

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turn an error in reading a recorded result into a divergence. The result had its declared type when it was recorded, so code that
        cannot read it differs from the code that began the turn.

        Raises:
            DivergenceError: raised in place of EncodingError.
        """
        try:
            yield
        except EncodingError as error:
            message = (
                f"entry {self._place} of the turn's journal cannot be read: {error}. Run the code that began the turn"
            )
            self.divergence = self.divergence or DivergenceError(message)
            raise self.divergence from error

    def end(self) -> None:
        """End the journal, since the handler has returned."""
        if self.divergence is None and self._place < len(self._known):
            self._diverged(self._place, "has ended")

    def _diverged(self, place: int, what: str) -> DivergenceError:
        known = self._known[place]
        error = self.divergence = self.divergence or DivergenceError(
            f"entry {place + 1} of the turn's journal is {_described(known.kind, known.name)}, and now the handler {what}: "
            "a durable handler must ask for the same things in the same order whenever it runs. Run the code that began the turn, "
            "or take values that differ from ctx.now, ctx.random or a step"
        )
        return error


@types.coroutine
def _await_segment(stand: SegmentEnd) -> Generator[SegmentEnd, JournalEntry, JournalEntry]:
    entry = yield stand
    return entry


def _described(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else f"a {kind}"


def _difference(known: JournalEntry, kind: str, name: str) -> str:
    return " with other arguments" if (known.kind, known.name) == (kind, name) else ""


def _line_of_handler() -> str:
    """Return the innermost source line that is not in the runtime."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# ---- calls: messages that ask for a reply ---------------------------------------------------------------------------

LATE_REPLY = "@reply"
"""Type name of a late reply, for a call that has timed out."""


def call_id(seed: bytes, place: int, digest: bytes = b"") -> bytes:
    """Return the id of the call, or of the effect with this digest, at this place of a turn's journal; places count from 0."""
    return blake2b(place.to_bytes(8, "big") + digest, key=seed, digest_size=CALL_ID_BYTES).digest()


def call_payload(call: bytes, payload: bytes) -> bytes:
    """Return a message that asks for a reply."""
    return CALL + call + payload


def reply_payload(call: bytes, payload: bytes) -> bytes:
    """Return the encoded reply; an empty one if the turn gives no answer."""
    return REPLY + call + payload


def read_call(payload: bytes) -> tuple[bytes, bytes]:
    """Return the call's id, or b"" if no reply is requested, and the message."""
    if not payload.startswith(CALL):
        return b"", payload
    end = len(CALL) + CALL_ID_BYTES
    return payload[len(CALL) : end], payload[end:]


def refusal_of(payload: bytes) -> bytes:
    """Return the empty reply of a turn that failed permanently; b"" if the message requests no reply."""
    call, _ = read_call(payload)
    return reply_payload(call, b"") if call else b""


def reply_to(call: bytes) -> bytes:
    """Return the first bytes of a payload that is the reply to this call."""
    return REPLY + call


_T = TypeVar("_T")

REASON_CHARACTERS_MAX = 1000
"""Largest number of characters of an error's text. The text is in the journal, and so in checkpoints."""

_CANNOT = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError)


ARGUMENT_DIGEST_BYTES = 8


def argument_digest(step: str, arguments: object) -> bytes:
    """Return a digest of the arguments, independent of the order of sets; "" for no arguments.

    Raises:
        EncodingError: If the arguments cannot be encoded.
    """
    try:
        return blake2b(encode_ordered(arguments), digest_size=ARGUMENT_DIGEST_BYTES).digest() if arguments else b""
    except _CANNOT as error:
        reason = describe_failure(arguments, error)
        raise EncodingError(
            f"the arguments of step {step!r} cannot be kept in the journal ({reason}): give it plain values, and make of them "
            "what it needs inside"
        ) from error


def encode_argument(effect: str, value: object, declared: Any = Any) -> bytes:
    """Encode an argument of a compensation for storage; the argument will be decoded as the type `declared`.

    Raises:
        EncodingError: If the argument cannot be encoded, or would decode to another value.
    """
    try:
        encoded = encode_ordered(value)
    except _CANNOT as error:
        raise EncodingError(
            f"an argument of the compensation of effect {effect!r} cannot be kept ({describe_failure(value, error)}): give it plain values"
        ) from error
    check_declared(value, declared, f"an argument of the compensation of effect {effect!r}")
    return encoded


def describe_result(result: bytes, *, is_done: bool) -> str:
    """Describe the result of an effect, for display."""
    try:
        value = message_decoder(Any).decode(result)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return f"<{len(result)} bytes>"
    return readable(value) if is_done else ": ".join([str(part) for part in value])[:TEXT_CHARACTERS_MAX]


def encode_result(
    step: str, value: object, function: Callable[..., Any] | None = None, *, is_effect: bool = False
) -> bytes:
    """Encode a step's result for the journal; `function` declares the result's type. An effect's result may lose its type if the function
    declares none.

    Raises:
        EncodingError: If the result cannot be encoded, or would decode to another value.
        MessageTooLargeError: If the result is larger than 16 MiB.
    """
    try:
        result = encode_body(value)
    except _CANNOT as error:
        reason = describe_failure(value, error)
        raise EncodingError(
            f"step {step!r} returned what the journal cannot keep ({reason}): return plain values"
        ) from error
    declared = returned_by(function)
    # The effect itself has succeeded, and the handler gets only the journal's copy of a result without a declared type.
    if not is_effect or declared is not Any:
        check_declared(value, declared, f"the result of step {step!r}")
    if len(result) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"step {step!r} returned {len(result):,} bytes, the limit is {MESSAGE_BYTES_MAX:,}: put it into shared storage and "
            "return its name"
        )
    return result


def encode_error(error: BaseException) -> bytes:
    """Encode the error that a step has raised."""
    try:
        reason = str(error)
    except Exception:  # the error's own class may raise anything
        reason = "it does not say why"
    return encode_body([type(error).__name__, reason[:REASON_CHARACTERS_MAX].encode(errors="replace").decode()])


def read_result(step: str, entry: JournalEntry, function: Callable[..., Any]) -> Any:  # the function's own result
    """Return the step's result from the journal.

    Raises:
        StepFailedError: If the step raised.
        EncodingError: If the result is not what the function declares to return.
    """
    if entry.outcome == FAILED:
        name, reason = msgspec.msgpack.decode(entry.result, type=tuple[str, str])
        raise StepFailedError(f"step {step!r} failed: {name}: {reason}", step=step, error=name, reason=reason)
    try:
        return result_decoder(returned_by(function)).decode(entry.result)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise EncodingError(
            f"the result of step {step!r} is not what {function!r} declares to return: {error}"
        ) from error


def returned_by(function: Callable[..., Any] | None) -> Any:  # any annotation
    """Return the declared return type of a function; Any without a declaration."""
    inner = function.func if isinstance(function, functools.partial) else function
    if inner is None:
        return Any
    try:
        return _hint_of(inner)
    except TypeError:  # not hashable
        return Any


@functools.lru_cache(maxsize=1024)
def _hint_of(function: Callable[..., Any]) -> Any:  # any annotation
    try:
        declared = typing.get_type_hints(function).get("return", Any)
    except Exception:  # evaluating an annotation may raise anything
        return Any
    return Any if isinstance(declared, TypeVar) else declared


@functools.lru_cache(maxsize=1024)
def _decoder_of(kind: Any) -> Any:  # msgspec's decoder of that type
    return message_decoder(kind)


def read_message(payload: bytes, kind: type[_T], what: str) -> _T:
    """Decode a message.

    Raises:
        EncodingError: If the message is of another type, or does not decode.
    """
    hashed: Any = kind  # mypy assumes that some classes are not hashable
    name, body = split_message(payload)
    if name != message_name(kind):
        raise EncodingError(f"{what} is a {name!r}, not a {message_name(kind)!r}")
    try:
        message: _T = _decoder_of(hashed).decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise EncodingError(f"{what} is no {name!r} as it is declared here: {error}") from error
    return message
