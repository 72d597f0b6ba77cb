"""One blob in a pack: a header that stands for itself, and the stored bytes.

    magic "SNAPBLOB" (8) | kind (u8) | codec (u8) | name length (u16) | 0 (u32) | stored size (u64) | plain size (u64)
    | BLAKE3 of the plain bytes (32) | BLAKE3 of the stored bytes (32) | name | check (16) | stored bytes

Integers are little-endian; the check is the front of BLAKE3 over the header before it. So a scan for the magic finds every
blob of a pack that lost its footer, and can tell a whole blob from a damaged one. Two digests, because a flipped bit in
compressed bytes may decompress to the right plain bytes; stored plain, they are the same digest, computed once.

Nothing is used before its digest was compared, and no length is believed before the check over it (G11).
"""

import struct

import lz4.block
import msgspec

from snapline.errors import MisuseError
from snapline.storage.damage import damaged
from snapline.storage.record import DIGEST_BYTES, digest_of

KIND_CHECKPOINT = 1
"""An `AgentCheckpoint`. Later versions add kinds, such as chunks of arrays."""
CODEC_PLAIN = 0
CODEC_LZ4 = 1
KINDS = frozenset({KIND_CHECKPOINT})
CODECS = frozenset({CODEC_PLAIN, CODEC_LZ4})

BLOB_BYTES_MAX = 2**33
"""8 GiB: a checkpoint is held in memory as a whole; more is surely a damaged or hostile length."""

LZ4_BYTES_MAX = 2**28
"""256 MiB: lz4's block format ends below 2 GiB, and what is that large consists of arrays, which do not shrink."""

LZ4_RATIO_MAX = 255
"""lz4 encodes at most 255 bytes of output in one byte of input: a larger claim is a bomb."""

_PROBE_BYTES = 2**16
_PROBE_PARTS = 4
_SAVED_PERCENT_MIN = 3
"""Below this, decompression at restore costs more than the bytes saved."""

_MAGIC = b"SNAPBLOB"
_FIXED = struct.Struct("<8sBBHIQQ32s32s")
_CHECK_BYTES = 16


class BlobEntry(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A blob as a pack's index lists it.

    Attributes:
        name: the agent; in a checkpoint pack `<number>.<agent>`.
        kind: `KIND_…`.
        codec: `CODEC_…`.
        offset: of its header in the pack.
        stored_bytes: length without header, as stored.
        size_bytes: length of the plain bytes.
        digest: BLAKE3 of the plain bytes.
        stored_digest: BLAKE3 of the stored bytes.
    """

    name: str
    kind: int
    codec: int
    offset: int
    stored_bytes: int
    size_bytes: int
    digest: bytes
    stored_digest: bytes


def header_bytes(name: str) -> int:
    """Return the length of the header of a blob called `name`, which is ASCII."""
    return _FIXED.size + len(name) + _CHECK_BYTES


def end_of(entry: BlobEntry) -> int:
    """Return the offset of the first byte after the blob."""
    return entry.offset + header_bytes(entry.name) + entry.stored_bytes


def encode_blob(name: str, plain: bytes, *, offset: int) -> tuple[BlobEntry, bytes, bytes]:
    """Return entry, header and stored bytes of a checkpoint that will stand at `offset`."""
    if len(plain) > BLOB_BYTES_MAX:
        raise MisuseError(f"the checkpoint {name!r} has {len(plain)} bytes, at most {BLOB_BYTES_MAX} fit a blob")
    digest = digest_of(plain)
    codec, stored = _compress(plain)
    stored_digest = digest if codec == CODEC_PLAIN else digest_of(stored)
    entry = BlobEntry(name, KIND_CHECKPOINT, codec, offset, len(stored), len(plain), digest, stored_digest)
    return entry, encode_header(entry), stored


def encode_header(entry: BlobEntry) -> bytes:
    """Return the header of the blob `entry`. It does not hold the offset."""
    name = entry.name.encode("ascii")
    head = (
        _FIXED.pack(
            _MAGIC,
            entry.kind,
            entry.codec,
            len(name),
            0,
            entry.stored_bytes,
            entry.size_bytes,
            entry.digest,
            entry.stored_digest,
        )
        + name
    )
    return head + digest_of(head)[:_CHECK_BYTES]


def contradiction_of(entry: BlobEntry) -> str:
    """Return what is impossible about `entry`; empty if nothing is. Asked before anything is allocated."""
    if entry.kind not in KINDS or entry.codec not in CODECS:
        return f"kind {entry.kind} or codec {entry.codec} is unknown to this snapline: use a newer one"
    if not entry.name.isascii() or min(entry.offset, entry.stored_bytes, entry.size_bytes) < 0:
        return "a length, offset or name is impossible"
    if len(entry.digest) != DIGEST_BYTES or len(entry.stored_digest) != DIGEST_BYTES:
        return "a digest has the wrong length"
    if entry.codec == CODEC_PLAIN:
        is_possible = entry.stored_bytes == entry.size_bytes <= BLOB_BYTES_MAX
        return "" if is_possible and entry.digest == entry.stored_digest else "plain and stored bytes differ"
    is_possible = entry.stored_bytes < entry.size_bytes <= min(LZ4_BYTES_MAX, entry.stored_bytes * LZ4_RATIO_MAX)
    return "" if is_possible else f"{entry.stored_bytes} bytes cannot hold {entry.size_bytes} in lz4"


def decode_blob(data: bytes, entry: BlobEntry, *, path: str, epoch: int | None) -> bytes | memoryview:
    """Return the plain bytes of the blob whose header and stored bytes are `data`, after every check.

    What is stored plain is not copied.

    `entry` comes from a manifest or an index, whose digest has been checked.

    Raises:
        DamagedDataError: names `path`, `epoch` and the agent.
    """
    reason = contradiction_of(entry) or _find_damage(data, entry)
    if reason:
        raise damaged(path, reason, epoch=epoch, blob=entry.name)
    stored = memoryview(data)[header_bytes(entry.name) :]
    if entry.codec == CODEC_PLAIN:
        return stored
    try:
        plain: bytes = lz4.block.decompress(stored, uncompressed_size=entry.size_bytes)
    except lz4.block.LZ4BlockError as error:
        raise damaged(path, f"lz4 refuses it: {error}", epoch=epoch, blob=entry.name) from error
    if len(plain) != entry.size_bytes or digest_of(plain) != entry.digest:
        raise damaged(path, "the plain bytes do not match their digest", epoch=epoch, blob=entry.name)
    return plain


def _find_damage(data: bytes, entry: BlobEntry) -> str:
    header = encode_header(entry)
    if len(data) < len(header) + entry.stored_bytes:
        return f"truncated: {len(data)} of {len(header) + entry.stored_bytes} bytes at offset {entry.offset}"
    if data[: len(header)] != header:
        return f"the blob's header at offset {entry.offset} is not what the index says"
    if digest_of(memoryview(data)[len(header) :]) != entry.stored_digest:
        return f"the blob at offset {entry.offset} does not match its digest"
    return ""


def _compress(plain: bytes) -> tuple[int, bytes]:
    """Return codec and stored bytes: lz4 where a probe shows that it pays."""
    if not plain or len(plain) > LZ4_BYTES_MAX:
        return CODEC_PLAIN, plain
    if len(plain) > _PROBE_BYTES:
        sample = _sample(plain)
        if not _pays(len(lz4.block.compress(sample, store_size=False)), len(sample)):
            return CODEC_PLAIN, plain
    stored: bytes = lz4.block.compress(plain, store_size=False)
    return (CODEC_LZ4, stored) if _pays(len(stored), len(plain)) else (CODEC_PLAIN, plain)


def _pays(stored_bytes: int, plain_bytes: int) -> bool:
    return stored_bytes * 100 <= plain_bytes * (100 - _SAVED_PERCENT_MIN)


def _sample(plain: bytes) -> bytes:
    """Return 64 KiB from four places: a state often begins with text and goes on with arrays."""
    part = _PROBE_BYTES // _PROBE_PARTS
    step = (len(plain) - part) // (_PROBE_PARTS - 1)
    return b"".join(plain[i * step : i * step + part] for i in range(_PROBE_PARTS))
