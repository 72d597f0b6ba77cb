"""Commits of hosts, from which agents recover if the fleet has `recovery="local"`.

A commit contains the checkpoints of a host's agents that have changed since the host's previous commit, all at one instant. In a commit's
checkpoint, `outbox` begins with the messages that have left the agent and may still be needed, because the receiver may not have committed
their consumption. `sent` therefore contains, for each receiver, the number before the first message in the outbox.

Checkpoints of an agent are numbered across all its incarnations, and also across the checkpoints in epochs. Of an agent's commits, the one
with the highest number is the newest.

A commit is durable as a whole: its bytes are split into parts, which are in consecutive batches of the host's log, and a reader ignores a
commit without its last part.

*Changes.* A large checkpoint is written as the changes since the agent's previous checkpoint in a commit of the same log. It is written
whole in the agent's first commit in a log, in its first commit after it has recorded its state for an epoch, and after `CHAIN_MAX` changes.
Batches are deleted, or are not read, only if an epoch covers all their commits. So if an agent's newest commit is newer than its checkpoint
in the epoch, all commits back to its last whole checkpoint are there. Otherwise some of them may be missing, but they are not needed.
"""

from collections.abc import Iterable, Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from snapline.errors import DamagedDataError
from snapline.storage.log.changes import Replacement, apply, changes_between
from snapline.storage.log.log_record import CommitPart, LogBatch
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint, encode_checkpoint

PART_BYTES = 4 * 1024 * 1024
"""Size of a commit's parts in bytes. Several parts and inputs fit into one batch."""

COMMIT = "commit"
"""Basis of the checkpoints in commits."""

CHANGES_BYTES_MIN = 4096
"""Size in bytes from which encoded checkpoints are written as changes."""

CHAIN_MAX = 64
"""Largest number of changes after a whole checkpoint of an agent. A recovery makes them one after another."""

PREVIOUS_BYTES_MAX = 64 * 1024 * 1024
"""Total size of the previous checkpoints that a host keeps to find changes. Without it, the next checkpoint is written whole."""


class CommittedCheckpoint(AgentCheckpoint, frozen=True, kw_only=True, omit_defaults=True):
    """An agent's checkpoint in a commit. It is written without the fields that have their default values."""

    basis: str = COMMIT


class CommitEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An agent in a commit.

    Attributes:
        number: number of the agent's checkpoint.
        checkpoint: the encoded checkpoint, or the encoded `Changes` since checkpoint `base`.
        base: number of the agent's previous checkpoint in the log, or 0 if the checkpoint is whole.
    """

    agent: str
    number: int
    checkpoint: bytes
    base: int = 0


class Changes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Changes of an encoded checkpoint, and the hash of the result (xxh3-64), which shows that they were made to the right one."""

    changes: list[Replacement]
    result_hash: int


class NewestCommit(msgspec.Struct, frozen=True):
    """An agent's newest commit in the logs.

    Attributes:
        entries: the last whole checkpoint and the changes since then, or () if some of them were deleted or not read.
    """

    agent: str
    number: int
    entries: tuple[CommitEntry, ...]


_decode_entries = msgspec.msgpack.Decoder(list[CommitEntry]).decode
_decode_changes = msgspec.msgpack.Decoder(Changes).decode


class _Previous(msgspec.Struct, gc=False):
    """An agent's previous checkpoint in the log, and the number of changes since its last whole one."""

    number: int
    checkpoint: bytes
    count: int


class CommitEncoder:
    """Encodes the commits of a host."""

    def __init__(self) -> None:
        self._plan = 0
        self._previous: dict[str, _Previous] = {}
        """Large checkpoints by agent. The one that was used last is the last one."""
        self._previous_bytes = 0

    def recorded(self, agent: str) -> None:
        """Write the agent's next checkpoint whole, because the agent has recorded its state for an epoch."""
        self._forget(agent)

    def encode(self, plan: int, number: int, checkpoints: Iterable[AgentCheckpoint]) -> list[CommitPart]:
        """Encode a commit as the parts to be appended to the log of this plan.

        Raises:
            EncodingError: If a checkpoint cannot be encoded.
        """
        if plan != self._plan:
            self._plan, self._previous_bytes = plan, 0
            self._previous.clear()
        encoded = [(each.agent, each.number, encode_checkpoint(each)) for each in checkpoints]
        data = msgspec.msgpack.encode([self._entry(*each) for each in encoded])
        pieces = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
        return [CommitPart(number, place, place == len(pieces) - 1, piece) for place, piece in enumerate(pieces)]

    def _forget(self, agent: str) -> None:
        previous = self._previous.pop(agent, None)
        if previous is not None:
            self._previous_bytes -= len(previous.checkpoint)

    def _entry(self, agent: str, number: int, checkpoint: bytes) -> CommitEntry:
        previous = self._previous.get(agent)
        self._forget(agent)
        entry, count = CommitEntry(agent, number, checkpoint), 0
        if previous is not None and previous.count < CHAIN_MAX:
            changes = changes_between(previous.checkpoint, checkpoint)
            blob = msgspec.msgpack.encode(Changes(changes, xxh3_64_intdigest(checkpoint)))
            if len(blob) < len(checkpoint) // 2:
                entry, count = CommitEntry(agent, number, blob, previous.number), previous.count + 1
        if len(checkpoint) >= CHANGES_BYTES_MIN:
            self._previous[agent] = _Previous(number, checkpoint, count)
            self._previous_bytes += len(checkpoint)
            while self._previous_bytes > PREVIOUS_BYTES_MAX:
                self._forget(next(iter(self._previous)))
        return entry


def note_newest(batches: Iterable[LogBatch], newest: dict[str, NewestCommit]) -> None:
    """Add the newest commit of each agent in one log to `newest`, unless `newest` has a newer one.

    `batches` are the log's batches in order. Some may have been deleted.

    Raises:
        DamagedDataError: If the bytes of a whole commit are no commit.
    """
    found: dict[str, list[CommitEntry]] = {}
    for entry in _entries_in(batches):
        entries = found.get(entry.agent)
        if entry.base and entries and not entries[0].base and entries[-1].number == entry.base:
            entries.append(entry)
        else:
            found[entry.agent] = [entry]
    for agent, entries in found.items():
        number, known = entries[-1].number, newest.get(agent)
        if known is None or number > known.number:
            newest[agent] = NewestCommit(agent, number, () if entries[0].base else tuple(entries))


def _entries_in(batches: Iterable[LogBatch]) -> Iterable[CommitEntry]:
    parts: list[CommitPart] = []
    for batch in batches:
        for part in batch.commits:
            if part.part == 0:
                parts = []
            parts.append(part)
            if part.is_last and _is_whole(parts):
                yield from _decode(parts)


def checkpoint_of(commit: NewestCommit) -> AgentCheckpoint:
    """Decode an agent's checkpoint. Raise DamagedDataError if it is not the checkpoint that the commit names, or if a checkpoint before it
    is missing."""
    agent, number = commit.agent, commit.number
    if not commit.entries:
        raise DamagedDataError(f"checkpoint {number} of {agent} in a commit refers to one that is missing")
    blob = commit.entries[0].checkpoint
    for entry in commit.entries[1:]:
        blob = _changed(blob, entry)
    checkpoint = decode_checkpoint(blob)
    if (checkpoint.agent, checkpoint.number) != (agent, number):
        raise DamagedDataError(f"a commit names checkpoint {number} of {agent}, and holds another one")
    return msgspec.structs.replace(checkpoint, basis=COMMIT)


def _changed(blob: bytes, entry: CommitEntry) -> bytes:
    reason = f"the changes of checkpoint {entry.number} of {entry.agent} in a commit"
    try:
        changes = _decode_changes(entry.checkpoint)
        blob = apply(blob, changes.changes)
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedDataError(f"{reason} are damaged: {error}") from error
    if xxh3_64_intdigest(blob) != changes.result_hash:
        raise DamagedDataError(f"{reason} do not fit checkpoint {entry.base}")
    return blob


def _is_whole(parts: Sequence[CommitPart]) -> bool:
    return [(part.commit, part.part) for part in parts] == [(parts[-1].commit, place) for place in range(len(parts))]


def _decode(parts: Sequence[CommitPart]) -> list[CommitEntry]:
    try:
        return _decode_entries(b"".join([part.data for part in parts]))
    except msgspec.DecodeError as error:
        raise DamagedDataError(f"commit {parts[0].commit} of a host log does not decode: {error}") from error
