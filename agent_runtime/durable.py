"""Durable turns from the handler's side: the journal is replayed and continued. No I/O.

A handler with `durable=True` runs in *segments*. Each ends where the handler asks for something that takes time: a step, a call, a sleep, a message.
Sends of the segment leave at its end. The agent is then between two turns, with a journal of all requests and their results.

After a recovery the handler runs again, with the state that its turn began with. Results in the journal are returned at once, and sends that have
left are not repeated. But the host log may hold results beyond the journal's end (`logged_steps.py`). The turn *adopts* these as if they had ended at
once; sends requested there leave with the next segment.

So a handler must make the same requests in the same order whenever it runs. Inputs that would make runs differ (time, random numbers, the outside)
come from the journal.

The runtime drives the handler's coroutine: the coroutine yields a `SegmentEnd`, and the runtime sends the finished entry into it (`host/turns.py`).
"""

import contextlib
import sys
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from snapline.agent_runtime.logged_steps import LoggedSteps
from snapline.errors import DivergenceError, EncodingError, UsageError
from snapline.messages.payloads import CALL, CALL_ID_BYTES, REPLY
from snapline.storage.log.record import LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn

DONE, FAILED, LATE = "done", "failed", "late"
"""Outcomes of an entry. "": the turn still waits for the outcome."""

ADOPTED, REFUSED = "adopted", "refused"
"""Further outcomes of an effect: an earlier turn has done the effect, with the same arguments or with others."""

JOURNAL_BYTES_MAX = 64 * 2**20
"""Largest size of the results in one turn's journal. The journal is in memory, twice if sealed, and a recovery reads it before the turn continues."""

JOURNAL_ENTRIES_MAX = 100_000
"""Largest number of entries in one turn's journal: a recovery replays all of them without a pause, which blocks the host for almost a second."""

_HERE = __name__.partition(".")[0] + "."


class StepWork(msgspec.Struct, frozen=True):
    """Work of a step: call `function` for at most `timeout_s`, expecting a heartbeat every `heartbeat_s`. Retry after each of `waits_s` if it raises.
    `is_logged`: the turn continues only when the host log holds the result."""

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
        asked_ns: wall-clock time since 1970.
        undo, undo_arguments: compensation as `"module:function"`, "" if there is none, and each of its arguments, encoded.
        is_undo: the intent is a compensation of the effect with this key and generation; generation 0 means the newest.
        saga: saga block of the effect, or "".
        timeout_s: how long each call may take.
        has_probe, is_repeatable: how a crash in its middle is resolved.
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

    `probe` finds out whether an earlier call has done the effect: None means that no call has.
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
        waits: the handler's request.
        timeout_ns: time until the wait times out, or until a sleep is done; None: no limit.
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
        """Return the pause for the core, of the turn with this seed."""
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
        divergence: the handler's request differed from the journal. The handler may have caught the error and continued.
        has_left: sends before the last wait have left, since the turn has waited there.
        takes_effects: this store can release intents.
        own_modules: modules in which compensations are looked up (`compensations.py`).
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
        """`begun`: saved turn to run again; `logged`: logged entries of turns with its number."""
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
        """Return whether the handler has made more requests than were known when it was run."""
        return self._place > len(self._known)

    def draw(self) -> bytes:
        """Return the next 32 random bytes."""
        self._draws += 1
        return blake2b(self._draws.to_bytes(8, "big"), key=self.seed, person=b"draw", digest_size=32).digest()

    def now(self, now_ns: Callable[[], int]) -> int:
        """Return the time when the handler first asked here."""
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
        """Name the next call: no other one of this agent has this id."""
        return call_id(self.seed, self._place)

    def effect_id(self, digest: bytes) -> bytes:
        """Name the next effect, `digest`: of its name and arguments. With another past its turn may request another one in its place."""
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
        """End the segment, unless the journal, or the host log, has the result already."""
        place = self._place
        entry = known = self._reach(kind, name, digest)
        is_undo = (
            isinstance(work, EffectWork) and work.intent.is_undo
        )  # one for each effect: compensations must not fail on this limit
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
        """Return the journal's entry in the next place; None: the turn has not been there."""
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
        """Check the room for one more entry."""
        if place >= JOURNAL_ENTRIES_MAX or self._size_bytes >= JOURNAL_BYTES_MAX:
            raise UsageError(
                f"the turn's journal is full: {place:,} entries with {self._size_bytes:,} bytes of results, and a turn may have "
                f"{JOURNAL_ENTRIES_MAX:,} and {JOURNAL_BYTES_MAX:,}. Put large results into shared storage and return their names, and let "
                "a long plan go on in another turn: end this one with a message that says where it is"
            )

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Guard the reading of a recorded result. It was readable as declared when recorded, so code that cannot read it is not the code that began
        the turn.

        Raises:
            DivergenceError: in place of EncodingError.
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
        """End the journal: the handler has returned."""
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
    """Return the innermost line that is not the runtime's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# ---- calls: messages that ask for a reply ---------------------------------------------------------------------------

LATE_REPLY = "@reply"
"""Type name of a late reply, for a call that has given up."""


def call_id(seed: bytes, place: int, digest: bytes = b"") -> bytes:
    """Name the call, or the effect with this digest, in this place of a turn's journal, from 0."""
    return blake2b(place.to_bytes(8, "big") + digest, key=seed, digest_size=CALL_ID_BYTES).digest()


def call_payload(call: bytes, payload: bytes) -> bytes:
    """Return a message that asks for a reply."""
    return CALL + call + payload


def reply_payload(call: bytes, payload: bytes) -> bytes:
    """Return the reply; an empty one if there is nothing to say."""
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
