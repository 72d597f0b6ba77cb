"""Reads a checkpoint pack off the virtual disk, for the judge: a second reader, after `docs/snapshot-format.md` alone.

The judge compares what lies in a pack with the images that it saw taken. So it needs the bytes, and none of the product's
checks: a pack that is not whole is not judged here, since whoever uses it has to find that out (G11).
"""

import struct

import lz4.block
import msgspec
from blake3 import blake3

from snapline.errors import SnaplineError
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint

_FOOTER = struct.Struct("<QQ32s16s8s")
_MAGIC = b"SNAPFOOT"
_RECORD_HEAD_BYTES, _RECORD_DIGEST_BYTES = 24, 32
_BLOB_HEAD_BYTES = 96 + 16
"""Of a blob's header without the name."""

_LZ4 = 1
_CHECKPOINT = 1

_decode_index = msgspec.msgpack.Decoder().decode


def read_pack(data: bytes) -> list[AgentCheckpoint]:
    """The checkpoints of a pack, in order; empty if it is not whole."""
    if data[-len(_MAGIC) :] != _MAGIC:
        return []
    start, size = _FOOTER.unpack(data[-_FOOTER.size :])[:2]
    body = data[start + _RECORD_HEAD_BYTES : start + size - _RECORD_DIGEST_BYTES]
    try:
        return [_read_blob(data, entry) for entry in _decode_index(body)["entries"] if entry[1] == _CHECKPOINT]
    except (msgspec.DecodeError, lz4.block.LZ4BlockError, SnaplineError, _NotWholeError):
        return []


class _NotWholeError(Exception):
    """A blob is not what the index says."""


def _read_blob(data: bytes, entry: tuple[str, int, int, int, int, int, bytes, bytes]) -> AgentCheckpoint:
    name, _kind, codec, offset, stored_bytes, size_bytes, _digest, stored_digest = entry
    start = offset + _BLOB_HEAD_BYTES + len(name)
    stored = data[start : start + stored_bytes]
    if blake3(stored).digest() != stored_digest:
        raise _NotWholeError(name)
    return decode_checkpoint(lz4.block.decompress(stored, uncompressed_size=size_bytes) if codec == _LZ4 else stored)
