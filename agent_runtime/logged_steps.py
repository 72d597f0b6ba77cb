"""Identity of turns, and the entries that a repetition of one may take from the host log. No I/O.

A step that has ended is in the host log before its turn goes on. After a recovery the handler runs again, perhaps with another past: other messages
came first, the state was another. Then a result of the log would be one that this history never had (G3). So each entry there names its conditions,
and is taken only where all of them are met:

- the *seed* of its turn, which follows from the fleet, the agent, the turn's number among the durable turns of its history, the message that began
  it, and the state that it began with (`turn_seed`);
- its *place*, and the digest of all entries before it (`rolled`): all that was received, answered or drawn until then;
- the request there, and the digest of its arguments.

Random draws of a turn follow from its seed, so a repeated turn draws the same.
"""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from snapline.storage.log.record import EFFECT, LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry

LOGGED_KINDS = ("step", EFFECT, "now")
"""Kinds of journal entries that are in the host log. Replies, and messages that are received, come from channels and checkpoints alone: taken from
a log they could be those of a history that was undone. They count for the digest of later entries."""

SEED_BYTES = PREFIX_BYTES = 16

_encoder = msgspec.msgpack.Encoder()


def turn_seed(cluster: str, agent: str, number: int, *, sender: str, payload: bytes, state: bytes) -> bytes:
    """Name one durable turn: another one, or the same with another past, has another seed.

    Args:
        cluster: id of the fleet's run.
        number: its number among the durable turns of the agent's history, from 1.
        sender, payload: of the message that began it; with a call's wrapper.
        state: the one that it begins with, encoded.
    """
    begun = blake2b(state, digest_size=32).digest()
    parts = _encoder.encode((cluster, agent, number, sender, payload, begun))
    return blake2b(parts, person=b"turn", digest_size=SEED_BYTES).digest()


def rolled(prefix: bytes, entries: Iterable[JournalEntry]) -> bytes:
    """Return the digest of a journal with these entries at its end; `prefix`: digest of those before them, b"" of none."""
    for entry in entries:
        prefix = blake2b(prefix + _encoder.encode(entry), person=b"journal", digest_size=PREFIX_BYTES).digest()
    return prefix


class LoggedSteps:
    """Entries of host logs for one turn that runs again, and the digest of where it is. Without entries it costs nothing."""

    __slots__ = ("_by_place", "_last", "_prefix")

    def __init__(self, seed: bytes, logged: Iterable[LoggedEntry]) -> None:
        self._prefix = b""
        self._by_place: dict[int, list[LoggedEntry]] = {}
        for each in logged:
            if each.seed == seed:
                self._by_place.setdefault(each.place, []).append(each)
        self._last = max(self._by_place, default=-1)

    def find(self, place: int, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        """Return this entry's result when the very same turn was there before; None: it was not, or that is unknown.

        The result of an effect is more than an entry of its turn: the core looks it up (`host/effects.py`).
        """
        if kind == EFFECT:
            return None
        for each in reversed(self._by_place.get(place, ())):  # a turn that was tried again has had the last one
            asked = each.entry.kind, each.entry.name, each.entry.digest
            if each.prefix == self._prefix and asked == (kind, name, digest):
                return each.entry
        return None

    def passed(self, place: int, entry: JournalEntry) -> None:
        """Note the entry in that place, with its result in this run."""
        if place < self._last:
            self._prefix = rolled(self._prefix, (entry,))
