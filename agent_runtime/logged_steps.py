"""Identity of turns, and the entries that a repeated turn may take from the host log. No I/O.

A completed step is in the host log before its turn continues. After a recovery the handler runs again, perhaps with another history: other messages
came first, or the state differed. The logged result would then be one that this history never had (G3). So each log entry names its conditions, and a
turn takes the entry only if all of them are met:

- the *seed* of its turn, which follows from the fleet, the agent, the turn's number among the durable turns of its history, the message that began
  it, and the state that it began with (`turn_seed`);
- the *place* of the entry, and the digest of all entries before it (`rolled`): everything received, answered or drawn until then;
- the request at that place, and the digest of the request's arguments.

Random draws of a turn follow from its seed, so a repeated turn draws the same.
"""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from snapline.storage.log.record import EFFECT, LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry

LOGGED_KINDS = ("step", EFFECT, "now")
"""Kinds of journal entries that are in the host log. Replies and received messages come from channels and checkpoints alone: in a log they could
belong to a discarded history. The digests of later entries include them."""

SEED_BYTES = PREFIX_BYTES = 16

_encoder = msgspec.msgpack.Encoder()


def turn_seed(cluster: str, agent: str, number: int, *, sender: str, payload: bytes, state: bytes) -> bytes:
    """Name one durable turn: another turn, or the same turn with another history, has another seed.

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
    """Entries of host logs for one turn that runs again, and the digest of where it is. Without entries it costs nothing."""

    __slots__ = ("_by_place", "_last", "_prefix")

    def __init__(self, seed: bytes, logged: Iterable[LoggedEntry]) -> None:
        self._prefix = b""
        self._by_place: dict[int, list[LoggedEntry]] = {}
        for entry in logged:
            if entry.seed == seed:
                self._by_place.setdefault(entry.place, []).append(entry)
        self._last = max(self._by_place, default=-1)

    def find(self, place: int, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        """Return the logged result of this entry if the same turn reached it before; None if it did not, or if that is unknown.

        The core looks up results of effects (`host/host_effects.py`): they do not belong to one turn alone.
        """
        if kind == EFFECT:
            return None
        for logged_entry in reversed(self._by_place.get(place, ())):  # the last entry is that of the newest attempt
            request = logged_entry.entry.kind, logged_entry.entry.name, logged_entry.entry.digest
            if logged_entry.prefix == self._prefix and request == (kind, name, digest):
                return logged_entry.entry
        return None

    def passed(self, place: int, entry: JournalEntry) -> None:
        """Note the entry in that place, with its result in this run."""
        if place < self._last:
            self._prefix = rolled(self._prefix, (entry,))
