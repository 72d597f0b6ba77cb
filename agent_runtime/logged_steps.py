"""Which turn is which, and what a repetition of one may take from the host log. No I/O.

A step that has ended is in the host log before its turn goes on. After a recovery the handler runs again, perhaps with another past:
other messages came first, another state stood there. Then a result of the log would be one that this history never had (G3). So each
entry there says what it hangs on, and is taken only where all of it is met:

- the *seed* of its turn, which follows from the fleet, the agent, how manieth durable turn of its history it is, what it was begun for, and
  the state that it began with (`turn_seed`);
- its *place*, and the digest of all entries before it (`rolled`): what was received, answered or drawn until then;
- what is asked for there, and the digest of the arguments.

What is drawn in a turn follows from its seed, so a turn that repeats itself draws the same.
"""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from snapline.storage.log.record import EFFECT, LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry

LOGGED_KINDS = ("step", EFFECT, "now")
"""What of a journal is in the host log. Replies, and messages that are received, come from channels and checkpoints alone: taken from a log
they could be those of a history that was undone. They count for the digest of what is behind them."""

SEED_BYTES = PREFIX_BYTES = 16

_encoder = msgspec.msgpack.Encoder()


def turn_seed(cluster: str, agent: str, number: int, *, sender: str, payload: bytes, state: bytes) -> bytes:
    """Names one durable turn: another one, or the same with another past, has another seed.

    Args:
        cluster: id of the fleet's run.
        number: how manieth durable turn of the agent's history it is, from 1.
        sender, payload: of what it was begun for; with a call's wrapper.
        state: that it begins with, encoded.
    """
    begun = blake2b(state, digest_size=32).digest()
    parts = _encoder.encode((cluster, agent, number, sender, payload, begun))
    return blake2b(parts, person=b"turn", digest_size=SEED_BYTES).digest()


def rolled(prefix: bytes, entries: Iterable[JournalEntry]) -> bytes:
    """The digest of a journal with these entries at its end; `prefix`: of what was before them, b"" of nothing."""
    for entry in entries:
        prefix = blake2b(prefix + _encoder.encode(entry), person=b"journal", digest_size=PREFIX_BYTES).digest()
    return prefix


class LoggedSteps:
    """What host logs hold of one turn that runs again, and the digest of where it is. Without anything it costs nothing."""

    __slots__ = ("_by_place", "_last", "_prefix")

    def __init__(self, seed: bytes, logged: Iterable[LoggedEntry]) -> None:
        self._prefix = b""
        self._by_place: dict[int, list[LoggedEntry]] = {}
        for each in logged:
            if each.seed == seed:
                self._by_place.setdefault(each.place, []).append(each)
        self._last = max(self._by_place, default=-1)

    def find(self, place: int, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        """What came of this entry when the very same turn was there before; None: it was not, or nobody knows.

        What came of an effect is more than an entry of its turn: the core asks for it (`host/effects.py`).
        """
        if kind == EFFECT:
            return None
        for each in reversed(self._by_place.get(place, ())):  # a turn that was tried again has had the last one
            asked = each.entry.kind, each.entry.name, each.entry.digest
            if each.prefix == self._prefix and asked == (kind, name, digest):
                return each.entry
        return None

    def passed(self, place: int, entry: JournalEntry) -> None:
        """This is what came of the entry in that place, in this run."""
        if place < self._last:
            self._prefix = rolled(self._prefix, (entry,))
