"""Commits of hosts, from which agents recover if the fleet has `recovery="local"`.

A commit contains the checkpoints of a host's agents that have changed since the host's previous commit, all at one instant. In a commit's
checkpoint, `outbox` begins with the messages that have left the agent and may still be needed, because the receiver may not have committed
their consumption. `sent` therefore contains, for each receiver, the number before the first message in the outbox.

A commit is durable as a whole: its bytes are split into parts, which are in consecutive batches of the host's log, and a reader ignores a
commit without its last part. Checkpoints of an agent are numbered across all its incarnations, and also across the checkpoints in epochs.
Of an agent's commits, the one with the highest number is the newest.
"""

from collections.abc import Iterable, Sequence

import msgspec

from snapline.errors import DamagedDataError
from snapline.storage.log.log_record import CommitPart, LogBatch
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint, encode_checkpoint

PART_BYTES = 4 * 1024 * 1024
"""Size of a commit's parts in bytes. Several parts and inputs fit into one batch."""

COMMIT = "commit"
"""Basis of the checkpoints in commits."""


class CommittedCheckpoint(AgentCheckpoint, frozen=True, kw_only=True, omit_defaults=True):
    """An agent's checkpoint in a commit. It is written without the fields that have their default values."""

    basis: str = COMMIT


Entry = tuple[str, int, bytes]
"""An agent in a commit: its id, the number of its checkpoint, and the encoded checkpoint. Only the newest checkpoints are decoded."""

_decode_entries = msgspec.msgpack.Decoder(list[Entry]).decode


def encode_commit(number: int, checkpoints: Iterable[AgentCheckpoint]) -> list[CommitPart]:
    """Encode a commit as the parts to be appended to the log.

    Raises:
        EncodingError: If a checkpoint cannot be encoded.
    """
    data = msgspec.msgpack.encode([(each.agent, each.number, encode_checkpoint(each)) for each in checkpoints])
    pieces = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
    return [CommitPart(number, place, place == len(pieces) - 1, piece) for place, piece in enumerate(pieces)]


def note_newest(batches: Iterable[LogBatch], newest: dict[str, Entry]) -> None:
    """Add the newest entry of each agent in the commits of one log to `newest`, unless `newest` has a newer one.

    `batches` are the log's batches in order. Some may have been deleted.

    Raises:
        DamagedDataError: If the bytes of a whole commit are no commit.
    """
    parts: list[CommitPart] = []
    for batch in batches:
        for part in batch.commits:
            if part.part == 0:
                parts = []
            parts.append(part)
            if part.is_last and _is_whole(parts):
                for entry in _decode(parts):
                    known = newest.get(entry[0])
                    if known is None or entry[1] > known[1]:
                        newest[entry[0]] = entry


def checkpoint_of(entry: Entry) -> AgentCheckpoint:
    """Decode an agent's checkpoint. Raise DamagedDataError if it is not the checkpoint that the entry names."""
    agent, number, blob = entry
    checkpoint = decode_checkpoint(blob)
    if (checkpoint.agent, checkpoint.number) != (agent, number):
        raise DamagedDataError(f"a commit names checkpoint {number} of {agent}, and holds another one")
    return msgspec.structs.replace(checkpoint, basis=COMMIT)


def _is_whole(parts: Sequence[CommitPart]) -> bool:
    return [(part.commit, part.part) for part in parts] == [(parts[-1].commit, place) for place in range(len(parts))]


def _decode(parts: Sequence[CommitPart]) -> list[Entry]:
    try:
        return _decode_entries(b"".join([part.data for part in parts]))
    except msgspec.DecodeError as error:
        raise DamagedDataError(f"commit {parts[0].commit} of a host log does not decode: {error}") from error
