"""The journal of a durable turn in checkpoints: sealed runs of entries as chunks, and the open rest in the checkpoint itself.

The problem: a turn of thousands of entries is checkpointed hundreds of times, and its journal only grows. So finished entries are
*sealed* in runs, beginning with the oldest. A run becomes a chunk: written once, and named by later checkpoints, like an unchanged chunk of a
state. Code that stores, copies, checks or deletes chunks needs no change. The rest, less than a run, is in the turn itself.

Invariant: the end of a run is a function of the entries alone. So a restored journal is cut in the same places
again, and its chunks are those in the store. Another release may cut differently, which only stores them once more.
"""

from collections.abc import Sequence

import msgspec

from snapline.errors import DamagedDataError
from snapline.storage.capture.image import PART_JOURNAL, Buffer, CapturedPart, SourceChunk, StateImage
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, SavedTurn, StatePart

RUN_ENTRIES = 1000
"""Largest number of entries in a run. Each checkpoint encodes up to as many open entries again, which takes about a tenth of a millisecond."""

RUN_BYTES = 64 * 1024
"""Size of the results at which a run is full, for any number of entries. Each checkpoint writes up to as much again."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[JournalEntry])


class SealedRuns(msgspec.Struct, frozen=True):
    """The beginning of a journal: its encoded runs, in order, and the number of entries in them."""

    count: int
    runs: tuple[bytes, ...]


class SealedJournal:
    """Sealed runs of one turn's journal.

    Attributes:
        count: number of sealed entries.
    """

    __slots__ = ("_measured", "_open_bytes", "_runs", "count")

    def __init__(self) -> None:
        self._runs: list[bytes] = []
        self.count = 0
        self._measured = 0  # number of measured entries
        self._open_bytes = 0  # size of the measured entries that are not sealed

    def seal(self, journal: Sequence[JournalEntry]) -> SealedRuns | None:
        """Seal full runs; return all sealed runs, or None. `journal` must extend that of the previous call."""
        for place in range(self._measured, len(journal)):
            self._open_bytes += len(journal[place].result)
            if self._open_bytes >= RUN_BYTES or place + 1 - self.count >= RUN_ENTRIES:
                self._runs.append(_encoder.encode(journal[self.count : place + 1]))
                self.count, self._open_bytes = place + 1, 0
        self._measured = len(journal)
        return SealedRuns(self.count, tuple(self._runs)) if self._runs else None


def with_journal(image: StateImage, sealed: SealedRuns | None) -> StateImage:
    """Return the same image with the runs as its last part; chunking keeps the part's position."""
    if sealed is None:
        return image
    chunks = [SourceChunk(0, run, len(run)) for run in sealed.runs]
    head = msgspec.msgpack.encode((sealed.count,))
    part = CapturedPart(PART_JOURNAL, head, sum(map(len, sealed.runs)), 0, chunks)
    return msgspec.structs.replace(image, parts=[*image.parts, part])


def split_journal(parts: list[StatePart]) -> tuple[list[StatePart], StatePart | None]:
    """Split the parts into those of the state, and the journal's."""
    if parts and parts[-1].kind == PART_JOURNAL:
        return parts[:-1], parts[-1]
    return parts, None


def joined_turn(turn: SavedTurn, part: StatePart, content: Buffer) -> SavedTurn:
    """Return the turn with its complete journal.

    Args:
        part: the journal's part from the checkpoint.
        content: its checked bytes.

    Raises:
        DamagedDataError: the bytes are not a journal.
    """
    entries: list[JournalEntry] = []
    view, start = memoryview(content), 0
    try:
        for chunk in part.chunks():
            entries += _decoder.decode(view[start : start + chunk.size_bytes])
            start += chunk.size_bytes
    except msgspec.DecodeError as error:
        raise DamagedDataError(f"the sealed journal of a durable turn does not decode: {error}") from error
    return msgspec.structs.replace(turn, journal=[*entries, *turn.journal])


def whole_turn(checkpoint: AgentCheckpoint, content: Buffer) -> AgentCheckpoint:
    """Return the checkpoint with the complete journal in its turn; `content` is that of the journal's part.

    Raises:
        DamagedDataError: the part is not a journal, or belongs to no turn.
    """
    turn, part = checkpoint.turn, checkpoint.journal_part
    if part is None:
        return checkpoint
    if turn is None:
        raise DamagedDataError(f"the checkpoint of agent {checkpoint.agent!r} has a journal and no turn")
    turn_with_journal = joined_turn(turn, part, content)
    return msgspec.structs.replace(checkpoint, saved_turn=turn_with_journal, saved_journal=msgspec.UNSET)
