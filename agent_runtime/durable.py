"""Durable turns as their handlers meet them: the journal, replayed and gone on with. No I/O.

A handler with `durable=True` runs in *segments*. Each ends where the handler asks for something that takes time: a step, a call, a sleep,
a message. Its sends leave then, and the agent stands between two turns, with a journal of all that was asked for and what came of
it. After a recovery the handler runs again, with the state that its turn began with: whatever the journal knows is returned at
once, and what has left already is not done again. So a handler must ask for the same things in the same order whenever it runs:
what would make it differ (time, chance, the outside) comes from the journal.

The runtime drives a handler by hand: it yields a `Stand`, and is sent the finished entry when there is one (`host/turns.py`).
"""

import sys
import types
from collections.abc import Callable, Generator
from hashlib import blake2b
from typing import Any

import msgspec

from snapline.errors import DivergenceError
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn

DONE, FAILED, LATE = "done", "failed", "late"
"""How an entry can end. "" is one for which the turn still waits."""

DIGEST_BYTES = 8
SEED_BYTES = 16

_HERE = __name__.partition(".")[0] + "."


class StepWork(msgspec.Struct, frozen=True):
    """What a step does: call `function`, for `timeout_s` at most, and again after each of `waits_s` if it raises."""

    function: Callable[[], Any]
    timeout_s: float | None = None
    waits_s: tuple[float, ...] = ()


class Stand(msgspec.Struct, frozen=True):
    """The end of a segment.

    Attributes:
        waits: what the handler asks for.
        timeout_ns: then it is late, or a sleep done; None: it is waited for without end.
        work: of a step.
        entries: asked for and had at once, since the segment before.
        is_repeated: the turn stood here before: what it asked for in this segment has left already.
    """

    waits: JournalEntry
    timeout_ns: int | None
    work: StepWork | None
    entries: list[JournalEntry]
    is_repeated: bool


class Pause(msgspec.Struct, frozen=True, gc=False):
    """How a turn ends that is not over: the end of a segment, as the core hears of it.

    Attributes:
        seed: of the turn.
        waits, timeout_ns, entries: as of `Stand`.
    """

    seed: bytes
    waits: JournalEntry
    timeout_ns: int | None
    entries: list[JournalEntry]


class TurnJournal:
    """Of one run of a durable turn.

    Attributes:
        seed: what it draws follows from that.
        received_from: who sent the message that was received last.
        divergence: the handler has asked for something else than the journal says. It may have caught that, and gone on.
    """

    def __init__(self, seed: bytes, begun: SavedTurn | None = None) -> None:
        """`begun`: the turn as it was saved, to be run again."""
        self.seed = begun.seed if begun is not None else seed
        self.received_from = ""
        self.divergence: DivergenceError | None = None
        self._draws = 0
        self._known: list[JournalEntry] = []
        if begun is not None:
            self._known = [*begun.journal, begun.waits] if begun.waits is not None else list(begun.journal)
        self._place = 0
        self._fresh: list[JournalEntry] = []

    def draw(self) -> bytes:
        """The next 32 random bytes."""
        self._draws += 1
        return blake2b(self._draws.to_bytes(8, "big"), key=self.seed, person=b"draw", digest_size=32).digest()

    def now(self, now_ns: Callable[[], int]) -> int:
        """The time when the handler first asked here."""
        known = self._reach("now", "", b"")
        if known is None:
            known = JournalEntry("now", "", b"", DONE, now_ns().to_bytes(8, "big"))
            self._fresh.append(known)
        return int.from_bytes(known.result, "big")

    def call_id(self) -> bytes:
        """Names the call that is asked for next: no other one of this agent has it."""
        return call_id(self.seed, self._place)

    async def wait(
        self, kind: str, name: str, digest: bytes, *, timeout_ns: int | None = None, work: StepWork | None = None
    ) -> JournalEntry:
        """End the segment, unless the journal knows already what came of it."""
        known = self._reach(kind, name, digest)
        if known is not None and known.outcome:
            return known
        entries, self._fresh = self._fresh, []
        return await _stand(
            Stand(JournalEntry(kind, name, digest), timeout_ns, work, entries, is_repeated=known is not None)
        )

    def _reach(self, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        """What the journal has in the next place; None: the turn has not been there."""
        place = self._place
        self._place += 1
        if place >= len(self._known):
            return None
        known = self._known[place]
        if (known.kind, known.name, known.digest) != (kind, name, digest):
            asked = f"asks for {_described(kind, name)}{_difference(known, kind, name)}, at {_line_of_handler()}"
            raise self._diverged(place, asked)
        return known

    def end(self) -> None:
        """The handler has returned."""
        if self.divergence is None and self._place < len(self._known):
            self._diverged(self._place, "has ended")

    def _diverged(self, place: int, what: str) -> DivergenceError:
        known = self._known[place]
        found = self.divergence = self.divergence or DivergenceError(
            f"entry {place + 1} of the turn's journal is {_described(known.kind, known.name)}, and now the handler {what}: "
            "a durable handler must ask for the same things in the same order whenever it runs. Run the code that began the turn, "
            "or draw what differs from ctx.now, ctx.random or a step"
        )
        return found


@types.coroutine
def _stand(stand: Stand) -> Generator[Stand, JournalEntry, JournalEntry]:
    found = yield stand
    return found


def _described(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else f"a {kind}"


def _difference(known: JournalEntry, kind: str, name: str) -> str:
    return " with other arguments" if (known.kind, known.name) == (kind, name) else ""


def _line_of_handler() -> str:
    """The innermost line that is not the runtime's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# ---- calls: messages that ask for a reply ---------------------------------------------------------------------------

CALL, REPLY = b"\x05@call", b"\x06@reply"
"""Before the id of a call, and the message: no type has such a name."""


STALE = "@reply"
"""The name under which a reply comes to an agent that waits for it no more."""


def call_id(seed: bytes, place: int) -> bytes:
    """Names the call in this place of a turn's journal, from 0."""
    return blake2b(place.to_bytes(8, "big"), key=seed, digest_size=DIGEST_BYTES).digest()


def call_payload(call: bytes, payload: bytes) -> bytes:
    """A message that asks for a reply."""
    return CALL + call + payload


def reply_payload(call: bytes, payload: bytes) -> bytes:
    """The reply; an empty one if there is nothing to say."""
    return REPLY + call + payload


def read_call(payload: bytes) -> tuple[bytes, bytes]:
    """The call's id, b"" if it asks for no reply, and the message."""
    if not payload.startswith(CALL):
        return b"", payload
    end = len(CALL) + DIGEST_BYTES
    return payload[len(CALL) : end], payload[end:]


def unwrapped(payload: bytes) -> bytes:
    """The message in a call or a reply; any other one as it is. Of a reply that says nothing the whole."""
    for prefix in (CALL, REPLY):
        if payload.startswith(prefix):
            return payload[len(prefix) + DIGEST_BYTES :] or payload
    return payload


def refusal_of(payload: bytes) -> bytes:
    """The reply of a turn that failed for good: an empty one; b"" if this message asks for none."""
    call, _ = read_call(payload)
    return reply_payload(call, b"") if call else b""


def reply_to(call: bytes) -> bytes:
    """How a payload begins that is the reply to this call."""
    return REPLY + call
