"""Defines the journal of a durable turn, which returns recorded results to a rerun handler and records new results. This module does no
I/O.

A handler with `durable=True` runs in *segments*. A segment ends when the handler requests an operation that it must wait for, such as a
step, a call, a sleep or a message. Messages that the handler sends during a segment are passed on when the segment ends. While a durable
turn waits, its agent can be checkpointed. The checkpoint contains a journal of the turn's requests and their results.

After a recovery, the handler is rerun from the state at the start of its turn. If a request's result is in the journal, it is returned
immediately. Messages that were already passed on are not sent again. A handler must therefore make the same requests in the same order in
every run. Values that could differ between runs (time, random numbers, external results) are read from the journal.

The runtime drives the coroutine of the handler. When the coroutine yields a `SegmentEnd`, the runtime performs the request and sends the
finished journal entry to the coroutine (`host/turns.py`).

*Logged entries.* A completed step is written to the host log before its turn continues. After a recovery, the host log may therefore
contain results that the restored journal lacks. A rerun turn *adopts* logged results as if their steps had ended immediately. Messages sent
between adopted steps are passed on at the end of the next segment. However, the rerun may have a different history, in which other messages
arrived earlier or the state was different. The logged result would then not belong to the current history (G3). Each log entry therefore
identifies its history, and a turn adopts an entry only if all of the following match:

- the *seed* of the turn, which is derived from the fleet, the agent, the turn's number among the agent's durable turns, the message that
  started the turn, and the state at its start (`turn_seed`);
- the *place* of the entry in the journal, and the digest of all earlier entries (`rolled`), which covers everything that the turn received
  or drew before this entry;
- the request at that place, and the digest of the request's arguments.

A turn's random numbers are derived from its seed, so a rerun turn draws the same numbers.
"""

import contextlib
import functools
import sys
import types
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Literal, TypeVar

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
from snapline.messages.past_rollbacks import PastRollback
from snapline.messages.payloads import CALL, CALL_ID_BYTES, REPLY, split_message
from snapline.storage.capture.declared_values import check_declared
from snapline.storage.log.log_record import EFFECT, LoggedEntry
from snapline.storage.packs.checkpoint import AbandonedTurn, JournalEntry, SavedTurn

LOGGED_KINDS = ("step", EFFECT, "now")
"""Kinds of journal entries that are also written to the host log. Replies and received messages are restored only from channels and
checkpoints, since a logged reply or message could belong to a discarded history. The digests of later entries cover replies and received
messages."""

GUARD = "guard"
"""Kind of the journal entry that contains why a handler's guard has rejected the turn's output. The reason is the entry's name."""

GroupEnd = Literal["all", "first", "failure"]
"""When a group ends: with its last member, with its first one, or with the first one that fails."""

DECISION = "group"
"""Kind of the log entry that contains how a group ended early. The entry is not part of the journal."""

SEED_BYTES = PREFIX_BYTES = 16

_encoder = msgspec.msgpack.Encoder()


def turn_seed(cluster: str, agent: str, number: int, *, sender: str, payload: bytes, state: bytes) -> bytes:
    """Return the seed that identifies one durable turn. A different turn, or the same turn after a different history, has a different seed.

    Args:
        cluster: id that identifies one run of the fleet.
        number: number of the turn among the agent's durable turns, starting at 1.
        sender, payload: sender and payload of the message that started the turn. If the message is a call, the payload includes the wrapper
            that marks it as a call.
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
    """The host-log entries of a rerun turn, and the digest of the turn's journal up to its current place. The digest is computed only if
    the turn has host-log entries."""

    __slots__ = ("_by_place", "_last", "_prefix")

    def __init__(self, seed: bytes, logged: Iterable[LoggedEntry]) -> None:
        self._prefix = b""
        self._by_place: dict[int, list[LoggedEntry]] = {}
        for entry in logged:
            if entry.seed == seed:
                self._by_place.setdefault(entry.place, []).append(entry)
        self._last = max(self._by_place, default=-1)

    def find(
        self, place: int, kind: str, name: str, digest: bytes, earlier: Sequence[JournalEntry] = ()
    ) -> JournalEntry | None:
        """Return the logged entry if an earlier run of the same turn made this request at this place. Otherwise return None. For a step of a
        group, `earlier` contains the requests of the group's steps before it.

        For effects, the result is always None. The core looks up the results of effects itself, because several turns may share one effect
        (`host/host_effects.py`). A logged answer to an approval is not adopted either, since it comes again as an input.
        """
        if kind in (EFFECT, "approval"):
            return None
        prefix = rolled(self._prefix, earlier) if place in self._by_place else b""
        for logged_entry in reversed(self._by_place.get(place, ())):  # the last entry comes from the newest run
            request = logged_entry.entry.kind, logged_entry.entry.name, logged_entry.entry.digest
            if logged_entry.prefix == prefix and request == (kind, name, digest):
                return logged_entry.entry
        return None

    def passed(self, place: int, entry: JournalEntry) -> None:
        """Add the entry at this place, including its result in this run, to the digest."""
        if place < self._last:
            self._prefix = rolled(self._prefix, (entry,))

    def find_decision(
        self, place: int, ends_at: GroupEnd, requests: Sequence[JournalEntry]
    ) -> list[JournalEntry] | None:
        """Return the entries of a group that ended early in an earlier run of the same turn, or None. `requests` are those of all members."""
        prefix = rolled(self._prefix, requests) if place in self._by_place else b""
        for logged_entry in reversed(self._by_place.get(place, ())):
            entry = logged_entry.entry
            if logged_entry.prefix == prefix and (entry.kind, entry.name) == (DECISION, ends_at):
                found = self._decided(place, requests, _read_decision(entry))
                if found is not None:
                    return found
        return None

    def _decided(
        self, first: int, requests: Sequence[JournalEntry], outcomes: Sequence[tuple[str, bytes]]
    ) -> list[JournalEntry] | None:
        """Return the members' entries with these outcomes and digests of results, or None if the log lacks one."""
        found: list[JournalEntry] = []
        for index, (request, (outcome, digest)) in enumerate(zip(requests, outcomes, strict=True)):
            prefix = rolled(self._prefix, requests[:index])
            entries = [x.entry for x in self._by_place.get(first + index, ()) if x.prefix == prefix]
            entries += [msgspec.structs.replace(request, outcome=LOST)]
            wanted = request.kind, request.name, request.digest, outcome, digest
            entry = next(
                (x for x in entries if (x.kind, x.name, x.digest, x.outcome, _result_digest(x)) == wanted), None
            )
            if entry is None:
                return None
            found.append(entry)
        return found


DONE, FAILED, LATE, LOST = "done", "failed", "late", "lost"
"""Outcomes of a journal entry. While the turn waits for the result, the outcome is "". A member is lost if its group ended before it."""


def decision_of(members: Sequence[JournalEntry], ends_at: GroupEnd) -> JournalEntry | None:
    """Return the log entry for a group that ended early. Return None if some result is not that of a step, because a recovery may have
    another history, in which other replies and messages come."""
    if any(member.kind != "step" and member.outcome != LOST for member in members):
        return None
    outcomes = [(member.outcome, _result_digest(member)) for member in members]
    outcome = FAILED if any(member.outcome == FAILED for member in members) else DONE
    return JournalEntry(DECISION, ends_at, b"", outcome, _encoder.encode(outcomes))


def _read_decision(entry: JournalEntry) -> list[tuple[str, bytes]]:
    return msgspec.msgpack.decode(entry.result, type=list[tuple[str, bytes]])


def _result_digest(entry: JournalEntry) -> bytes:
    return blake2b(entry.result, person=b"member", digest_size=8).digest()


def has_failed(entry: JournalEntry) -> bool:
    """Return whether this end of a member ends a group that ends with the first failure. An approval that expires is no failure."""
    is_unanswered = entry.kind == "call" and entry.outcome == DONE and not entry.result
    return is_unanswered or entry.outcome == FAILED or (entry.outcome == LATE and entry.kind in ("call", "receive"))


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
    """Instructions to run a step: call `function` for at most `timeout_s` seconds, and expect a heartbeat every `heartbeat_s` seconds. If
    the call raises an error, or `guard` returns why its result must not be used, wait for the next delay in `waits_s` and retry. When all
    attempts have failed, call `fallback`. If `is_logged` is set, the turn continues only when the host log contains the result."""

    function: Callable[[], Any]
    timeout_s: float | None = None
    waits_s: tuple[float, ...] = ()
    is_logged: bool = False
    heartbeat_s: float | None = None
    guard: Callable[[Any], str | None] | None = None
    fallback: Callable[[], Any] | None = None


class EffectIntent(msgspec.Struct, frozen=True, gc=False):
    """The information that a host core needs about an effect requested by a turn.

    Attributes:
        key: key of the effect within the agent. For a compensation, `key` is the key of the effect to undo.
        arguments: the effect's arguments as text to display.
        asked_ns: wall-clock time of the request, in nanoseconds since 1970.
        undo, undo_arguments: the compensation as `"module:function"` ("" if there is none), and its encoded arguments.
        is_undo: whether this is the compensation of the effect with this key and generation. Generation 0 means the newest generation.
        saga: name of the saga block that requested the effect, or "" outside of sagas.
        timeout_s: time limit in seconds for each call.
        has_probe, is_repeatable: whether the effect has a probe, and whether it may be called again. `has_probe` and `is_repeatable` decide
            what happens after a crash during the call.
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
    """Instructions to perform an effect: call `function` with the effect's outside key for at most `timeout_s` seconds. If the call raises
    an error, wait for the next delay in `waits_s` and retry.

    If an earlier call performed the effect, `probe` returns the effect's result, otherwise None.
    """

    function: Callable[..., Any]
    digest: bytes
    intent: EffectIntent
    probe: Callable[..., Any] | None
    timeout_s: float
    waits_s: tuple[float, ...]


class MemberRequest(msgspec.Struct, frozen=True):
    """A request that a handler makes as a member of a group (`Context.gather`), and whose coroutine yields it to the group. `work` is the
    step or effect to run, or None if the request is of another kind."""

    request: JournalEntry
    timeout_ns: int | None
    work: StepWork | EffectWork | None


GROUP_MAX = 64
"""Largest number of members of a group."""


class SegmentEnd(msgspec.Struct, frozen=True):
    """The end of a segment, which the handler's coroutine yields to the runtime.

    Attributes:
        waits: the request for whose result the handler waits. If the handler waits for a group, the request of its first member.
        timeout_ns: nanoseconds until the wait times out or the sleep ends, or None if the wait is unlimited.
        work: the step or effect to run, or None if the request is of another kind.
        entries: requests made since the previous segment ended whose results were available immediately.
        is_repeated: whether an earlier run of the turn already waited here. In a repeated segment, the messages have already been passed
            on.
        members, timeouts_ns: requests of a group, some of which may have results already, and their `timeout_ns`. Both are empty if the
            handler waits for a single request.
        works: the steps and effects of the group that must run, by their places in the journal.
        ends_at: when the group ends.
    """

    waits: JournalEntry
    timeout_ns: int | None
    work: StepWork | EffectWork | None
    entries: list[JournalEntry]
    is_repeated: bool
    members: list[JournalEntry] = []
    timeouts_ns: list[int | None] = []
    works: dict[int, StepWork | EffectWork] = {}
    ends_at: GroupEnd = "all"

    def pause(self, seed: bytes, place: int) -> "Pause":
        """Convert this segment end to a `Pause` for the core. `seed` is the turn's seed, and `place` that of a single request."""
        works = self.works or ({place: self.work} if self.work is not None else {})
        intents = {each: work.intent for each, work in works.items() if isinstance(work, EffectWork)}
        is_logged = bool(self.members or intents) or (isinstance(self.work, StepWork) and self.work.is_logged)
        return Pause(
            *(seed, self.waits, self.timeout_ns, self.entries, is_logged, intents),
            *(self.members, self.timeouts_ns, self.ends_at),
        )


class Pause(msgspec.Struct, frozen=True, gc=False):
    """The information that a host core needs about the end of a segment of an unfinished turn.

    Attributes:
        waits, timeout_ns, entries, members, timeouts_ns, ends_at: same as in `SegmentEnd`.
        is_logged: whether the turn continues only when the host log contains the result.
        intents: descriptions of the effects that the turn waits for, by their places in the journal.
    """

    seed: bytes
    waits: JournalEntry
    timeout_ns: int | None
    entries: list[JournalEntry]
    is_logged: bool = False
    intents: dict[int, EffectIntent] = {}
    members: list[JournalEntry] = []
    timeouts_ns: list[int | None] = []
    ends_at: GroupEnd = "all"


class TurnJournal:
    """Journal of a single run of a durable turn.

    Attributes:
        seed: seed of the turn, from which its random numbers are derived.
        received_from: sender of the message that the turn received last.
        divergence: the error raised because a request of the handler differed from the journal, or None. The handler may have caught this
            error and continued.
        grouped: number of members of a group that the handler has requested, or None if the handler does not request a group.
        has_left: whether the messages sent before the last wait have been passed on, because the turn really waited there.
        takes_effects: whether the store can release effect intents, without which no effect can be performed.
        own_modules: modules in which the functions of compensations are looked up (`sagas.py`).
        abandoned: earlier attempts at the turn, oldest first.
    """

    def __init__(
        self,
        seed: bytes,
        begun: SavedTurn | None = None,
        logged: Iterable[LoggedEntry] = (),
        *,
        takes_effects: bool = True,
        own_modules: Sequence[str] = (),
        abandoned: Iterable[AbandonedTurn] = (),
    ) -> None:
        """Start a journal. `begun` is the saved turn that is to be rerun, or None for a new turn. `logged` contains the host-log entries of
        turns with the same number. `abandoned` are the earlier attempts at a new turn."""
        self.takes_effects = takes_effects
        self.own_modules = own_modules
        self.seed = begun.seed if begun is not None else seed
        self.abandoned = tuple(begun.abandoned if begun is not None else abandoned)
        self.received_from = ""
        self.divergence: DivergenceError | None = None
        self._draws = self._size_bytes = 0
        self._known: list[JournalEntry] = []
        if begun is not None:
            self._known = [*begun.journal, *begun.members, *([begun.waits] if begun.waits is not None else [])]
        self._open_group = range(0)
        if begun is not None and begun.members:
            self._open_group = range(len(begun.journal), len(self._known))
        self._place = 0
        self.grouped: int | None = None
        self._fresh: list[JournalEntry] = []
        self._logged = LoggedSteps(self.seed, logged)
        self.has_left = True

    @property
    def is_beyond(self) -> bool:
        """Return whether the handler has made more requests than the journal contained at the start of this run."""
        return self._place > len(self._known)

    @property
    def is_complete(self) -> bool:
        """Return whether the handler has made all requests that the journal contained at the start of this run."""
        return self._place >= len(self._known)

    def draw(self) -> bytes:
        """Return the next 32 random bytes."""
        self._draws += 1
        return blake2b(self._draws.to_bytes(8, "big"), key=self.seed, person=b"draw", digest_size=32).digest()

    def now(self, now_ns: Callable[[], int]) -> int:
        """Return the time at which the handler made this request in its first run."""
        if self.grouped is not None:
            raise UsageError("a member of a group reads the clock: read it before the group, and use ctx.sleep in it")
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
        return call_id(self.seed, self._place + (self.grouped or 0))

    def effect_id(self, digest: bytes) -> bytes:
        """Return the id for the next effect. `digest` covers the effect's name and arguments, because with a different history, the turn
        may request a different effect at this place."""
        return call_id(self.seed, self._place + (self.grouped or 0), digest)

    async def wait(
        self,
        kind: str,
        name: str,
        digest: bytes,
        *,
        timeout_ns: int | None = None,
        work: StepWork | EffectWork | None = None,
        details: bytes = b"",
    ) -> JournalEntry:
        """Return the journal entry that contains the result of this request. If neither the journal nor the host log contains the entry,
        end the segment and wait. `details` are those of an approval, which its open entry contains."""
        request = JournalEntry(kind, name, digest, "", details)
        if self.grouped is not None:
            member: JournalEntry = await _suspend(MemberRequest(request, timeout_ns, work))
            return member
        place = self._place
        if place in self._open_group:
            raise self._diverged_from_group(f"asks for {_described(kind, name)} alone")
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
            entry = await _suspend(SegmentEnd(request, timeout_ns, work, entries, is_repeated=known is not None))
        self._passed(place, entry)
        return entry

    async def wait_for_group(self, members: Sequence[MemberRequest], ends_at: GroupEnd = "all") -> list[JournalEntry]:
        """Return the journal entries that contain the results of these requests, in order. If the journal and the host log do not contain
        all of them, end the segment and wait for the rest at the same time. If the group ends early, the outcome of the rest is "lost".

        The members of a group have consecutive places. A logged result of a member is recognized by the entries before the group and the
        requests of earlier members, but not by their results, because members may end in any order. Which member came first, or failed
        first, is known only from the logged decision.
        """
        first, requests = self._place, [member.request for member in members]
        places = range(first, first + len(members))
        if first in self._open_group and places != self._open_group:
            raise self._diverged_from_group(f"asks for a group of {len(members)}")
        known = [self._reach(request.kind, request.name, request.digest) for request in requests]
        if first >= len(self._known):
            self._check_room(places[-1])
        found = [x if x is not None and x.outcome else y for x, y in zip(known, requests, strict=True)]
        if any(not entry.outcome for entry in found):
            found = self._find_group(first, found, ends_at)
        self.has_left = known[0] is not None or any(not entry.outcome for entry in found)
        if any(not entry.outcome for entry in found):
            entries, self._fresh = self._fresh, []
            left = {first + index: member for index, member in enumerate(members) if not found[index].outcome}
            works = {place: member.work for place, member in left.items() if member.work is not None}
            timeouts_ns = [member.timeout_ns for member in members]
            is_repeated = known[0] is not None
            end = SegmentEnd(requests[0], None, None, entries, is_repeated, found, timeouts_ns, works, ends_at)
            found = await _suspend(end)
        elif known[0] is None or places == self._open_group:
            self._fresh += found
        for index, entry in enumerate(found):
            self._passed(first + index, entry)
        return found

    def _find_group(self, first: int, members: Sequence[JournalEntry], ends_at: GroupEnd) -> list[JournalEntry]:
        """Return the members of a group with the results that the host log contains."""
        requests = [JournalEntry(each.kind, each.name, each.digest) for each in members]
        if ends_at != "all":
            decided = self._logged.find_decision(first, ends_at, requests)
            if decided is not None and all(not x.outcome or x == y for x, y in zip(members, decided, strict=True)):
                return decided
        if ends_at == "first":
            return list(members)
        found = list(members)
        for index, entry in enumerate(members):
            if not entry.outcome:
                request = entry.kind, entry.name, entry.digest
                found[index] = self._logged.find(first + index, *request, requests[:index]) or entry
        if ends_at == "failure" and any(map(has_failed, found)):
            # It ended with this failure, although no decision is known.
            found = [
                x if x.outcome else msgspec.structs.replace(y, outcome=LOST)
                for x, y in zip(found, requests, strict=True)
            ]
        return found

    def violation(self, rejects: Callable[[], str]) -> str:
        """Return why the handler's guard rejects what the turn would pass on at the next wait, or "". Call `rejects` only if no earlier run
        of the turn has passed this point. Violations are entries of the journal, so that a rerun turn goes the same way."""
        place = self._place
        if place < len(self._known) and self._known[place].kind != GUARD:
            return ""  # it has been passed on
        if place < len(self._known):
            entry = self._known[place]
        else:
            reason = rejects()
            if not reason:
                return ""
            self._check_room(place)
            entry = JournalEntry(GUARD, reason, b"", DONE)
            self._fresh.append(entry)
        self._place += 1
        self._passed(place, entry)
        return entry.name

    def _passed(self, place: int, found: JournalEntry) -> None:
        self._size_bytes += len(found.result)
        self._logged.passed(place, found)

    def _reach(self, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        """Return the journal's entry at the next place, or None if no earlier run of the turn made a request there."""
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
        """Convert an error in decoding a recorded result to a divergence error. When the result was recorded, it had its declared type. If
        the result cannot be decoded now, the code has changed since the turn started.

        Raises:
            DivergenceError: If the guarded block raises EncodingError.
        """
        try:
            yield
        except EncodingError as error:
            message = (
                f"entry {self._place} of the turn's journal cannot be read: {error}. Run the code that began the turn"
            )
            self.divergence = self.divergence or DivergenceError(message)
            raise self.divergence from error

    @property
    def place(self) -> int:
        """Place of the newest request in the journal."""
        return self._place - 1

    @property
    def entries(self) -> list[JournalEntry]:
        """Requests since the last wait, whose results were available immediately."""
        return self._fresh

    def end(self) -> None:
        """End the journal after the handler has returned. If the journal contains further entries, record a divergence."""
        if self.divergence is None and self._place < len(self._known):
            self._diverged(self._place, "has ended")

    def _diverged_from_group(self, what: str) -> DivergenceError:
        group = self._open_group
        return self._diverged(group.start, f"{what}, at {_line_of_handler()}", f"begins a group of {len(group)}")

    def _diverged(self, place: int, what: str, found: str = "") -> DivergenceError:
        known = self._known[place]
        found = found or f"is {_described(known.kind, known.name)}"
        error = self.divergence = self.divergence or DivergenceError(
            f"entry {place + 1} of the turn's journal {found}, and now the handler {what}: "
            "a durable handler must ask for the same things in the same order whenever it runs. Run the code that began the turn, "
            "or take values that differ from ctx.now, ctx.random or a step"
        )
        return error


@types.coroutine
def _suspend(request: SegmentEnd | MemberRequest) -> Generator[SegmentEnd | MemberRequest, Any, Any]:
    """Suspend the handler, or a member of a group, with this request. Return the journal entry with its result, or the entries of a group."""
    found = yield request
    return found


def _described(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else f"a {kind}"


def _difference(known: JournalEntry, kind: str, name: str) -> str:
    return " with other arguments" if (known.kind, known.name) == (kind, name) else ""


def _line_of_handler() -> str:
    """Return the file and line of the innermost stack frame outside the runtime."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# ---- calls: messages that ask for a reply ---------------------------------------------------------------------------

LATE_REPLY = "@reply"
"""Type name of a reply that arrives after its call has timed out."""


def call_id(seed: bytes, place: int, digest: bytes = b"") -> bytes:
    """Return the id of the call at this place in a turn's journal. With a `digest`, return the id of the effect at this place. Places are
    numbered from 0."""
    return blake2b(place.to_bytes(8, "big") + digest, key=seed, digest_size=CALL_ID_BYTES).digest()


APPROVAL_BYTES = 16


def approval_digest(title: str, details: bytes) -> bytes:
    """Return the digest of what people see of an approval."""
    return blake2b(details, key=blake2b(title.encode()).digest()[:APPROVAL_BYTES], digest_size=APPROVAL_BYTES).digest()


def approval_id(seed: bytes, place: int, digest: bytes) -> str:
    """Return the id of the approval at this place in a turn's journal. `digest` is that of what people see."""
    return blake2b(
        place.to_bytes(8, "big") + digest, key=seed, person=b"approval", digest_size=APPROVAL_BYTES
    ).hexdigest()


def call_payload(call: bytes, payload: bytes) -> bytes:
    """Wrap a message's payload as a call, which is a message that requests a reply."""
    return CALL + call + payload


def reply_payload(call: bytes, payload: bytes) -> bytes:
    """Return the encoded reply to a call. An empty `payload` means that the turn did not reply."""
    return REPLY + call + payload


def read_call(payload: bytes) -> tuple[bytes, bytes]:
    """Return the id of the call, and the message without the wrapper that marks it as a call. If the payload is not a call, the id is
    b""."""
    if not payload.startswith(CALL):
        return b"", payload
    end = len(CALL) + CALL_ID_BYTES
    return payload[len(CALL) : end], payload[end:]


def refusal_of(payload: bytes) -> bytes:
    """Return an empty reply to a message whose turn failed permanently. If the message requests no reply, return b""."""
    call, _ = read_call(payload)
    return reply_payload(call, b"") if call else b""


def reply_to(call: bytes) -> bytes:
    """Return the byte prefix with which the payload of every reply to this call starts."""
    return REPLY + call


DETAILS_BYTES_MAX = 64 * 1024
"""Largest size of the encoded details of an approval. People read all of them, and checkpoints contain them."""


class Approval(msgspec.Struct, frozen=True):
    """People's answer to `Context.approval`.

    Attributes:
        by: name of the person, or "" if the approval expired.
        note: the person's note, or "".
    """

    is_granted: bool
    by: str = ""
    note: str = ""


ROLLED_BACK = "rolled_back"
"""Kind of the journal entry with the fleet's returns to earlier snapshots. It is never adopted from a host log: after a rollback, a turn
that asks again must get another answer. Seeds of turns do not cover it, so that turns which do not ask keep their logged steps."""

_rollbacks_decoder = msgspec.msgpack.Decoder(tuple[PastRollback, ...])


def encode_rollbacks(rollbacks: Sequence[PastRollback]) -> bytes:
    """Encode the fleet's returns to earlier snapshots for the journal."""
    return _encoder.encode(rollbacks)


def read_rollbacks(entry: JournalEntry) -> tuple[PastRollback, ...]:
    """Return the fleet's returns to earlier snapshots from their journal entry."""
    return _rollbacks_decoder.decode(entry.result)


def encode_details(title: str, details: object) -> bytes:
    """Encode the details of an approval.

    Raises:
        EncodingError: If the details cannot be encoded.
        MessageTooLargeError: If they are larger than 64 KiB.
    """
    try:
        encoded = encode_ordered(details)
    except _CANNOT as error:
        raise EncodingError(
            f"the details of approval {title!r} cannot be shown ({describe_failure(details, error)}): give it plain values"
        ) from error
    if len(encoded) > DETAILS_BYTES_MAX:
        raise MessageTooLargeError(
            f"the details of approval {title!r} have {len(encoded):,} bytes, the limit is {DETAILS_BYTES_MAX:,}: "
            "give it what people need to decide"
        )
    return encoded


def read_approval(entry: JournalEntry) -> Approval:
    """Return the answer in the journal entry of an approval that has not expired."""
    is_granted, note = msgspec.msgpack.decode(entry.result, type=tuple[bool, str])
    return Approval(is_granted, entry.sender.removeprefix("@"), note)


_T = TypeVar("_T")

REASON_CHARACTERS_MAX = 1000
"""Largest number of characters kept of an error's text. Journals, and therefore checkpoints, contain the text."""

_CANNOT = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError)


ARGUMENT_DIGEST_BYTES = 8


def argument_digest(step: str, arguments: object) -> bytes:
    """Return a digest of a step's arguments that does not depend on the iteration order of sets. Without arguments, return b"".

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
    """Encode an argument of a compensation for storage. The argument will later be decoded as the type `declared`.

    Raises:
        EncodingError: If the argument cannot be encoded, or if decoding it yields a different value.
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
    """Return the result of an effect as text to display. If the effect is not done, return its error."""
    try:
        value = message_decoder(Any).decode(result)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return f"<{len(result)} bytes>"
    return readable(value) if is_done else ": ".join([str(part) for part in value])[:TEXT_CHARACTERS_MAX]


def encode_result(
    step: str, value: object, function: Callable[..., Any] | None = None, *, is_effect: bool = False
) -> bytes:
    """Encode the result of a step or effect for the turn's journal. The return annotation of `function` declares the result's type. Without
    an annotation, an effect's result may be decoded as plain values.

    Raises:
        EncodingError: If the result cannot be encoded, or if decoding it yields a different value.
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
    return encode_failure(type(error).__name__, reason)


def encode_failure(name: str, reason: str) -> bytes:
    """Encode the failure of a step: the name of the error's class, and its text."""
    return encode_body([name, reason[:REASON_CHARACTERS_MAX].encode(errors="replace").decode()])


def read_result(step: str, entry: JournalEntry, function: Callable[..., Any]) -> Any:  # the function's own result
    """Return a step's result, decoded from the journal.

    Raises:
        StepFailedError: If the step raised an error.
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
    """Decode a message as type `kind`. `what` is the name of the message in error texts.

    Raises:
        EncodingError: If the message has a different type or cannot be decoded.
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
