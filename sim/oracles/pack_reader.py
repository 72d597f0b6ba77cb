"""Reader of checkpoint packs on the virtual disk, for the judge; written independently from `docs/snapshot-format.md`.

The judge compares the checkpoints in a pack with the captured images. So it needs the bytes, but not the product's checks. A
damaged pack is not judged here, since its users must detect the damage (G11).
"""

import struct
from collections.abc import Mapping

import lz4.block
import msgspec
from blake3 import blake3
from msgspec.structs import replace

from snapline.errors import SnaplineError
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, decode_checkpoint

_FOOTER = struct.Struct("<QQ32s16s8s")
_MAGIC = b"SNAPFOOT"
_RECORD_HEAD_BYTES, _RECORD_DIGEST_BYTES = 24, 32
_BLOB_HEAD_BYTES = 96 + 16
"""Size of a blob's header without the name."""

_LZ4 = 1
_CHECKPOINT, _CHUNK = 1, 2

_decode_index = msgspec.msgpack.Decoder().decode
_decode_run = msgspec.msgpack.Decoder(list[JournalEntry]).decode

_Entry = tuple[str, int, int, int, int, int, bytes, bytes]


def read_pack(data: bytes) -> list[AgentCheckpoint]:
    """Return the checkpoints of a pack, in order; empty if the pack is damaged."""
    if data[-len(_MAGIC) :] != _MAGIC:
        return []
    start, size = _FOOTER.unpack(data[-_FOOTER.size :])[:2]
    body = data[start + _RECORD_HEAD_BYTES : start + size - _RECORD_DIGEST_BYTES]
    try:
        entries = _decode_index(body)["entries"]
        checkpoints = [decode_checkpoint(_read_blob(data, entry)) for entry in entries if entry[1] == _CHECKPOINT]
        if any(each.journal_part is not None for each in checkpoints):
            chunks = {entry[6]: _read_blob(data, entry) for entry in entries if entry[1] == _CHUNK}
            checkpoints = [_with_journal(each, chunks) for each in checkpoints]
        return checkpoints
    except (msgspec.DecodeError, lz4.block.LZ4BlockError, SnaplineError, _NotWholeError):
        return []


class _NotWholeError(Exception):
    """Error for a blob that does not match the index."""


def _read_blob(data: bytes, entry: _Entry) -> bytes:
    name, _kind, codec, offset, stored_bytes, size_bytes, _digest, stored_digest = entry
    start = offset + _BLOB_HEAD_BYTES + len(name)
    stored = data[start : start + stored_bytes]
    if blake3(stored).digest() != stored_digest:
        raise _NotWholeError(name)
    return lz4.block.decompress(stored, uncompressed_size=size_bytes) if codec == _LZ4 else stored


def _with_journal(checkpoint: AgentCheckpoint, chunks: Mapping[bytes, bytes]) -> AgentCheckpoint:
    """Return the checkpoint with the whole journal of its durable turn in the turn."""
    turn, part = checkpoint.turn, checkpoint.journal_part
    if turn is None or part is None:
        return checkpoint
    digests = [part.digests[start : start + 32] for start in range(0, len(part.digests), 32)]
    sealed = [entry for digest in digests for entry in _decode_run(chunks[digest])]
    return replace(checkpoint, saved_turn=replace(turn, journal=sealed + turn.journal), saved_journal=msgspec.UNSET)
