"""Journals of durable turns: replay the recorded results to a handler, and record further ones. This module does no I/O.

A handler with `durable=True` runs in *segments*. A segment ends where the handler requests an operation that it must wait for: a step, a
call, a sleep or a message. Messages that the handler sends during a segment leave at the segment's end. While it waits, the agent can be
checkpointed, together with a journal of all requests and their results.

After a recovery the handler runs again from the state at the start of its turn. Results that are in the journal are returned immediately,
and messages that have already left are not sent again. So a handler must make the same requests in the same order in every run. Values that
could differ between runs (time, random numbers, external results) come from the journal.

The runtime drives the handler's coroutine. The coroutine yields a `SegmentEnd`, and the runtime sends the finished entry to the coroutine
(`host/turns.py`).

*Logged entries.* A completed step is written to the host log before its turn continues, so after a recovery the host log may contain
results that the restored journal lacks. A repeated turn *adopts* these results as if the steps had ended immediately. Messages sent between
adopted steps leave with the next segment. But the handler may run again with a different history, in which other messages arrived earlier
or the state differed. The logged result would then not belong to the current history (G3). So each log entry identifies its history, and a
turn adopts an entry only if all of these match:

- the *seed* of the turn, which is derived from the fleet, the agent, the turn's number among the agent's durable turns, the message that
  started the turn, and the state at its start (`turn_seed`);
- the *place* of the entry in the journal, and the digest of all earlier entries (`rolled`), which covers everything that the turn received
  or drew before this entry;
- the request at that place, and the digest of its arguments.

A turn's random numbers are derived from its seed, so a repeated turn draws the same numbers.
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
"""Kinds of journal entries that are also written to the host log. Replies and received messages are restored only from channels and
checkpoints, since a logged reply or message could belong to a discarded history. The digests of later entries cover replies and received
messages."""

SEED_BYTES = PREFIX_BYTES = 16

_encoder = msgspec.msgpack.Encoder()


def turn_seed(cluster: str, agent: str, number: int, *, sender: str, payload: bytes, state: bytes) -> bytes:
    """Return the seed that identifies one durable turn. A different turn, or the same turn after a different history, has a different seed.

    Args:
        cluster: id of the run of the fleet.
        number: number of the turn among the agent's durable turns, counted from 1.
        sender, payload: sender and payload of the message that started the turn. The payload of a call includes the call's wrapper.
        state: encoded state at the start of the turn.
    """
    state_digest = blake2b(state, digest_size=32).digest()
    parts = _encoder.encode((cluster, agent, number, sender, payload, state_digest))
    return blake2b(parts, person=b"turn", digest_size=SEED_BYTES).digest()


def rolled(prefix: bytes, entries: Iterable[JournalEntry]) -> bytes:
    """Return the digest of a journal that ends with `entries`. `prefix` is the digest of the earlier entries, or b"" if there are none."""
    for entry in entries:
        prefix = blake2b(prefix + _encoder.encode(entry), person=b"journal", digest_size=PREFIX_BYTES).digest()
    return prefix


class LoggedSteps:
    """The host-log entries of one repeated turn, and the digest of the journal up to the turn's current place. The digest is computed only
    if there are entries."""

    __slots__ = ("_by_place", "_last", "_prefix")

    def __init__(self, seed: bytes, logged: Iterable[LoggedEntry]) -> None:
        self._prefix = b""
        self._by_place: dict[int, list[LoggedEntry]] = {}
        for entry in logged:
            if entry.seed == seed:
                self._by_place.setdefault(entry.place, []).append(entry)
        self._last = max(self._by_place, default=-1)

    def find(self, place: int, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        """Return the logged entry if an earlier run of the same turn made this request at this place, otherwise None.

        For effects the result is always None: the core looks up their results (`host/host_effects.py`), since several turns may share one
        effect.
        """
        if kind == EFFECT:
            return None
        for logged_entry in reversed(self._by_place.get(place, ())):  # the last entry comes from the newest run
            request = logged_entry.entry.kind, logged_entry.entry.name, logged_entry.entry.digest
            if logged_entry.prefix == self._prefix and request == (kind, name, digest):
                return logged_entry.entry
        return None

    def passed(self, place: int, entry: JournalEntry) -> None:
        """Add the entry at this place, with its result in this run, to the digest."""
        if place < self._last:
            self._prefix = rolled(self._prefix, (entry,))


DONE, FAILED, LATE = "done", "failed", "late"
"""Outcomes of a journal entry. While the turn waits for the result, the outcome is ""."""

ADOPTED, REFUSED = "adopted", "refused"
"""Two outcomes that only effects have: an earlier turn performed an effect with this key and the same arguments (adopted) or with other
arguments (refused)."""

JOURNAL_BYTES_MAX = 64 * 2**20
"""Largest total size of the results in one turn's journal. The journal is kept in memory, twice if it is sealed, and a recovery reads all
of it before the turn continues."""

JOURNAL_ENTRIES_MAX = 100_000
"""Largest number of entries in one turn's journal. A recovery replays all entries without a pause, which blocks the host for almost a
second at this limit."""

_HERE = __name__.partition(".")[0] + "."


class StepWork(msgspec.Struct, frozen=True):
    """Instructions to run a step: call `function` for at most `timeout_s`, and expect a heartbeat every `heartbeat_s`. If the call raises,
    wait for the next time in `waits_s` and retry. If `is_logged`, the turn continues only when the host log contains the result."""

    function: Callable[[], Any]
    timeout_s: float | None = None
    waits_s: tuple[float, ...] = ()
    is_logged: bool = False
    heartbeat_s: float | None = None


class EffectIntent(msgspec.Struct, frozen=True, gc=False):
    """The core's description of an effect that a turn requests.

    Attributes:
        key: key of the effect within the agent. For a compensation it is the key of the effect to undo.
        arguments: the effect's arguments as text for display.
        asked_ns: wall-clock time of the request, since 1970.
        undo, undo_arguments: compensation as `"module:function"` ("" if there is none), and its encoded arguments.
        is_undo: whether this is a compensation of the effect with this key and generation. Generation 0 means the newest generation.
        saga: name of the saga block that requested the effect, or "".
        timeout_s: time limit of each call.
        has_probe, is_repeatable: whether the effect has a probe, and whether it may be called again. Both decide what happens after a crash
        during the call.
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
    """Instructions to perform an effect: call `function` with its outside key for at most `timeout_s`. If the call raises, wait for the
    next time in `waits_s` and retry.

    `probe` returns the effect's result if an earlier call performed the effect, otherwise None.
    """

    function: Callable[..., Any]
    digest: bytes
    intent: EffectIntent
    probe: Callable[..., Any] | None
    timeout_s: float
    waits_s: tuple[float, ...]


class SegmentEnd(msgspec.Struct, frozen=True):
    """The end of a segment: what the handler's coroutine yields to the runtime.

    Attributes:
        waits: the request whose result the handler waits for.
        timeout_ns: nanoseconds until the wait times out or the sleep ends, or None for an unlimited wait.
        work: the step or effect to run, or None for all other requests.
        entries: requests since the end of the previous segment whose results were available immediately.
        is_repeated: whether an earlier run of the turn waited here, so that this segment's messages have already left.
    """

    waits: JournalEntry
    timeout_ns: int | None
    work: StepWork | EffectWork | None
    entries: list[JournalEntry]
    is_repeated: bool

    def pause(self, seed: bytes) -> "Pause":
        """Convert this segment end to a `Pause` for the core. `seed` is the turn's seed."""
        if isinstance(self.work, EffectWork):
            return Pause(seed, self.waits, self.timeout_ns, self.entries, True, self.work.intent)
        is_logged = self.work is not None and self.work.is_logged
        return Pause(seed, self.waits, self.timeout_ns, self.entries, is_logged)


class Pause(msgspec.Struct, frozen=True, gc=False):
    """The core's description of the end of a segment of an unfinished turn.

    Attributes:
        seed: seed of the turn.
        waits, timeout_ns, entries: same as in `SegmentEnd`.
        is_logged: whether the turn continues only when the host log contains the result.
        intent: intent of the effect that the turn waits for, or None if the turn waits for something else.
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
        divergence: the error raised because the handler's request differed from the journal, or None. The handler may have caught the error
            and continued.
        has_left: whether the messages sent before the last wait have left, because the turn really waited there.
        takes_effects: whether the store can release intents, which effects require.
        own_modules: modules in which the functions of compensations are looked up (`sagas.py`).
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
        """Start a journal. `begun` is the saved turn to run again, if any. `logged` are the log entries of turns with the same number."""
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
        """Return whether the handler has made more requests than the journal contained when this run started."""
        return self._place > len(self._known)

    def draw(self) -> bytes:
        """Return the next 32 random bytes."""
        self._draws += 1
        return blake2b(self._draws.to_bytes(8, "big"), key=self.seed, person=b"draw", digest_size=32).digest()

    def now(self, now_ns: Callable[[], int]) -> int:
        """Return the time at which the handler made this request in its first run."""
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
        """Return the id for the next call, which is unique among this agent's calls."""
        return call_id(self.seed, self._place)

    def effect_id(self, digest: bytes) -> bytes:
        """Return the id for the next effect. `digest` covers the effect's name and arguments, since in a different history the turn may
        request a different effect at this place."""
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
        """Return the entry with the result of this request. If neither the journal nor the host log contains it, end the segment and
        wait."""
        place = self._place
        entry = known = self._reach(kind, name, digest)
        # The limit does not apply to compensations, since they must not fail. There is at most one for each effect.
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
        """Return the journal's entry at the next place, or None if no earlier run of the turn reached this place."""
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
        """Raise UsageError if the journal has no room for another entry."""
        if place >= JOURNAL_ENTRIES_MAX or self._size_bytes >= JOURNAL_BYTES_MAX:
            raise UsageError(
                f"the turn's journal is full: {place:,} entries with {self._size_bytes:,} bytes of results, and a turn may have "
                f"{JOURNAL_ENTRIES_MAX:,} and {JOURNAL_BYTES_MAX:,}. Put large results into shared storage and return their names, and let "
                "a long plan go on in another turn: end this one with a message that says where it is"
            )

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Convert an error in reading a recorded result to a divergence. The result had its declared type when it was recorded, so code
        that cannot read the result differs from the code that started the turn.

        Raises:
            DivergenceError: If the block raises EncodingError.
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
        """End the journal after the handler has returned, and record a divergence if the journal contains further entries."""
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
    """Return the file and line of the innermost frame that is not in the runtime."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# ---- calls: messages that ask for a reply ---------------------------------------------------------------------------

LATE_REPLY = "@reply"
"""Type name of a reply that arrives after its call has timed out."""


def call_id(seed: bytes, place: int, digest: bytes = b"") -> bytes:
    """Return the id of the call at this place in a turn's journal, or with a digest, the id of the effect there. Places are counted from
    0."""
    return blake2b(place.to_bytes(8, "big") + digest, key=seed, digest_size=CALL_ID_BYTES).digest()


def call_payload(call: bytes, payload: bytes) -> bytes:
    """Wrap a message's payload as a call, that is, a message that requests a reply."""
    return CALL + call + payload


def reply_payload(call: bytes, payload: bytes) -> bytes:
    """Return the encoded reply to a call. An empty `payload` means that the turn gave no reply."""
    return REPLY + call + payload


def read_call(payload: bytes) -> tuple[bytes, bytes]:
    """Return the id of the call and the message without its wrapper. If the payload is not a call, the id is b""."""
    if not payload.startswith(CALL):
        return b"", payload
    end = len(CALL) + CALL_ID_BYTES
    return payload[len(CALL) : end], payload[end:]


def refusal_of(payload: bytes) -> bytes:
    """Return the empty reply to a message whose turn failed permanently, or b"" if the message requests no reply."""
    call, _ = read_call(payload)
    return reply_payload(call, b"") if call else b""


def reply_to(call: bytes) -> bytes:
    """Return the bytes with which the payload of each reply to this call starts."""
    return REPLY + call


_T = TypeVar("_T")

REASON_CHARACTERS_MAX = 1000
"""Largest number of characters kept of an error's text. Journals, and therefore checkpoints, contain the text."""

_CANNOT = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError)


ARGUMENT_DIGEST_BYTES = 8


def argument_digest(step: str, arguments: object) -> bytes:
    """Return a digest of a step's arguments, which does not depend on the order of sets. Without arguments return b"".

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
    """Encode an argument of a compensation for storage. The argument will be decoded as the type `declared`.

    Raises:
        EncodingError: If the argument cannot be encoded, or would decode to a different value.
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
    """Return the result of an effect, or the error if it is not done, as text for display."""
    try:
        value = message_decoder(Any).decode(result)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return f"<{len(result)} bytes>"
    return readable(value) if is_done else ": ".join([str(part) for part in value])[:TEXT_CHARACTERS_MAX]


def encode_result(
    step: str, value: object, function: Callable[..., Any] | None = None, *, is_effect: bool = False
) -> bytes:
    """Encode the result of a step or effect for the journal. `function` declares the result's type. If it declares none, an effect's result
    may decode to plain values.

    Raises:
        EncodingError: If the result cannot be encoded, or would decode to a different value.
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
    # An effect that has succeeded must not fail here, so without a declared type the handler gets the journal's copy of the result.
    if not is_effect or declared is not Any:
        check_declared(value, declared, f"the result of step {step!r}")
    if len(result) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"step {step!r} returned {len(result):,} bytes, the limit is {MESSAGE_BYTES_MAX:,}: put it into shared storage and "
            "return its name"
        )
    return result


def encode_error(error: BaseException) -> bytes:
    """Encode the error that a step raised."""
    try:
        reason = str(error)
    except Exception:  # the error's own class may raise anything
        reason = "it does not say why"
    return encode_body([type(error).__name__, reason[:REASON_CHARACTERS_MAX].encode(errors="replace").decode()])


def read_result(step: str, entry: JournalEntry, function: Callable[..., Any]) -> Any:  # the function's own result
    """Return the step's result from the journal.

    Raises:
        StepFailedError: If the step raised.
        EncodingError: If the result does not have the type that the function declares.
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
    """Return the declared return type of a function, or Any if the function declares none."""
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
    """Decode a message as type `kind`. Error messages call the message `what`.

    Raises:
        EncodingError: If the message has a different type, or does not decode.
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
