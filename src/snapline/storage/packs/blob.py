"""One blob in a pack: a self-contained header, and the stored bytes.

    magic "SNAPBLOB" (8) | kind (u8) | codec (u8) | name length (u16) | 0 (u32) | stored size (u64) | plain size (u64)
    | digest of the plain bytes (32) | BLAKE3 of the stored bytes (32) | name | check (16) | stored bytes

Integers are little-endian; the check is the front of BLAKE3 over the preceding header. So a scan for the magic finds every
blob of a pack that lost its footer, and can distinguish a whole blob from a damaged one. There are two digests because a flipped bit in
compressed bytes may still decompress to the right plain bytes. For plain storage both are the same digest, computed once.

The digest of the plain bytes is BLAKE3, keyed where the blob is encrypted. Encryption binds a blob to its place
(`Keyring.context`): a blob that was moved within its pack, or to another pack, cannot be decrypted.

No bytes are used before their digest is compared, and no length before the check over it (G11).
"""

import struct
from collections.abc import Iterable, Iterator

import lz4.block
import msgspec

from snapline.errors import StoreError, StoreKeyError, UsageError
from snapline.storage.disk.guard import CIPHER_OVERHEAD_BYTES, Cipher, Guard
from snapline.storage.disk.record import DIGEST_BYTES, Buffer, canonical, damaged, digest_of

KIND_CHECKPOINT = 1
"""An `AgentCheckpoint`."""
KIND_CHUNK = 2
"""A chunk of a part of a state. It has no name; it is found by its digest."""

CODEC_PLAIN = 0
CODEC_LZ4 = 1
CODEC_ENCRYPTED = 2
"""Added to one of the others: the bytes were compressed, then encrypted."""

KINDS = frozenset({KIND_CHECKPOINT, KIND_CHUNK})
CODECS = frozenset({CODEC_PLAIN, CODEC_LZ4, CODEC_ENCRYPTED, CODEC_ENCRYPTED | CODEC_LZ4})

BLOB_BYTES_MAX = 2**33
"""Largest blob (8 GiB): a checkpoint is held in memory as a whole, and a larger length is damaged or hostile."""

LZ4_BYTES_MAX = 2**28
"""Largest blob to compress (256 MiB): lz4's block format ends below 2 GiB, and states that large consist of arrays, which do not shrink."""

LZ4_RATIO_MAX = 255
"""lz4 encodes at most 255 bytes of output in one byte of input: a larger claim is a bomb."""

_PROBE_BYTES = 2**16
_PROBE_PARTS = 4
_SAVED_PERCENT_MIN = 3
"""Below this, decompression at restore costs more than the bytes saved."""

_BLOB_MAGIC = b"SNAPBLOB"
_BLOB_HEADER = struct.Struct("<8sBBHIQQ32s32s")
_CHECK_BYTES = 16


class BlobEntry(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A blob as a pack's index lists it.

    Attributes:
        name: the agent; in a checkpoint pack `<number>.<agent>`; empty for a chunk.
        kind: `KIND_…`.
        codec: `CODEC_…`.
        offset: offset of its header in the pack.
        stored_bytes: length without header, as stored.
        size_bytes: length of the plain bytes.
        digest: digest of the plain bytes.
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

    @property
    def label(self) -> str:
        """Label for messages, unique among the blobs of the pack."""
        return self.name or f"chunk {self.digest.hex()[:12]}"


class PackBlob(msgspec.Struct, gc=False):
    """A blob to be written. `digest` is that of the plain bytes, if known; with `compress` None, a probe decides."""

    name: str
    kind: int
    data: Buffer
    digest: bytes = b""
    compress: bool | None = None


def group_blobs(blobs: Iterable[PackBlob], size_bytes: int) -> Iterator[list[PackBlob]]:
    """Yield the blobs in groups, one per pack; each but the last has at least `size_bytes` bytes."""
    group: list[PackBlob] = []
    found_bytes = 0
    for blob in blobs:
        group.append(blob)
        found_bytes += len(blob.data)
        if found_bytes >= size_bytes:
            yield group
            group, found_bytes = [], 0
    if group:
        yield group


class Keyring(msgspec.Struct, frozen=True):
    """Keys that open or seal the blobs of one pack; `cipher` is None if they are not encrypted."""

    store_id: str
    pack_id: str
    guard: Guard | None = None
    cipher: Cipher | None = None

    def context(self, kind: int, codec: int, *, offset: int, size_bytes: int, digest: bytes) -> bytes:
        """Return the context that encryption binds a blob to: store, pack, place in it, and its whole header."""
        return canonical.encode(
            ("snapline blob 2", self.store_id, self.pack_id, offset, kind, codec, size_bytes, digest)
        )

    def digest(self, plain: Buffer) -> bytes:
        """Return the digest of plain bytes: keyed if there is a guard that encrypts."""
        guard = self.guard
        return guard.digest(plain) if guard is not None and guard.encrypts else digest_of(plain)


PLAIN_KEYRING = Keyring("", "")
"""Keyring for unencrypted packs of a store without keys."""


def header_bytes(name: str) -> int:
    """Return the length of the header of a blob called `name`, which is ASCII."""
    return _BLOB_HEADER.size + len(name) + _CHECK_BYTES


def end_of(entry: BlobEntry) -> int:
    """Return the offset of the first byte after the blob."""
    return entry.offset + header_bytes(entry.name) + entry.stored_bytes


def encode_blob(blob: PackBlob, *, offset: int, keyring: Keyring = PLAIN_KEYRING) -> tuple[BlobEntry, bytes, Buffer]:
    """Return entry, header and stored bytes of a blob for the place `offset`."""
    size_bytes = len(blob.data)
    if size_bytes > BLOB_BYTES_MAX:
        raise UsageError(f"the blob {blob.name!r} has {size_bytes} bytes, at most {BLOB_BYTES_MAX} fit a pack")
    digest = blob.digest or keyring.digest(blob.data)
    codec, stored = compress(blob.data, blob.compress)
    if keyring.cipher is not None:
        codec |= CODEC_ENCRYPTED
        context = keyring.context(blob.kind, codec, offset=offset, size_bytes=size_bytes, digest=digest)
        stored = keyring.cipher.seal(offset, context, stored)
    stored_digest = digest if codec == CODEC_PLAIN else digest_of(stored)
    entry = BlobEntry(blob.name, blob.kind, codec, offset, len(stored), size_bytes, digest, stored_digest)
    return entry, encode_header(entry), stored


def encode_header(entry: BlobEntry) -> bytes:
    """Return the header of the blob `entry`. The header does not contain the offset."""
    name = entry.name.encode("ascii")
    head = (
        _BLOB_HEADER.pack(
            _BLOB_MAGIC,
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
    """Return what is invalid in `entry`; empty if nothing is. Checked before anything is allocated."""
    if entry.kind not in KINDS or entry.codec not in CODECS:
        return f"kind {entry.kind} or codec {entry.codec} is unknown to this snapline: use a newer one"
    if not entry.name.isascii() or min(entry.offset, entry.stored_bytes, entry.size_bytes) < 0:
        return "a length, offset or name is impossible"
    if len(entry.digest) != DIGEST_BYTES or len(entry.stored_digest) != DIGEST_BYTES:
        return "a digest has the wrong length"
    if entry.kind == KIND_CHUNK and entry.name:
        return "a chunk has a name"
    if entry.codec == CODEC_PLAIN and entry.digest != entry.stored_digest:
        return "plain and stored bytes differ"
    stored_bytes = entry.stored_bytes - (CIPHER_OVERHEAD_BYTES if entry.codec & CODEC_ENCRYPTED else 0)
    if not entry.codec & CODEC_LZ4:
        return "" if stored_bytes == entry.size_bytes <= BLOB_BYTES_MAX else "plain and stored bytes differ"
    is_possible = 0 <= stored_bytes < entry.size_bytes <= min(LZ4_BYTES_MAX, stored_bytes * LZ4_RATIO_MAX)
    return "" if is_possible else f"{stored_bytes} bytes cannot hold {entry.size_bytes} in lz4"


def decode_blob(
    data: Buffer, entry: BlobEntry, *, path: str, epoch: int | None, keyring: Keyring = PLAIN_KEYRING
) -> Buffer:
    """Return the plain bytes of the blob whose header and stored bytes are `data`, after every check.

    Plain blobs are not copied. `entry` comes from a manifest or an index, whose digest has been checked.

    Raises:
        DamagedDataError: names `path`, `epoch` and the agent.
        StoreError: the blob is not encrypted and there is a key, or the reverse.
    """
    reason = contradiction_of(entry) or _find_damage(data, entry)
    if reason:
        raise damaged(path, reason, epoch=epoch, blob=entry.name)
    return open_stored(memoryview(data)[header_bytes(entry.name) :], entry, path=path, epoch=epoch, keyring=keyring)


def open_stored(
    stored: memoryview, entry: BlobEntry, *, path: str, epoch: int | None, keyring: Keyring = PLAIN_KEYRING
) -> Buffer:
    """Return the plain bytes of a blob whose stored bytes match their digest; see `decode_blob`."""
    check_encryption(entry, keyring, path)
    if entry.codec == CODEC_PLAIN:
        return stored
    try:
        plain = _decrypt(stored, entry, keyring)
        if entry.codec & CODEC_LZ4:
            plain = lz4.block.decompress(plain, uncompressed_size=entry.size_bytes)
    except lz4.block.LZ4BlockError as error:
        raise damaged(path, f"lz4 refuses it: {error}", epoch=epoch, blob=entry.name) from error
    except ValueError as error:
        reason = "it does not open under its key: it was moved, or changed"
        raise damaged(path, reason, epoch=epoch, blob=entry.name) from error
    if len(plain) != entry.size_bytes or keyring.digest(plain) != entry.digest:
        raise damaged(path, "the plain bytes do not match their digest", epoch=epoch, blob=entry.name)
    return plain


def check_encryption(entry: BlobEntry, keyring: Keyring, path: str) -> None:
    """Refuse a plain blob where there is a key, and an encrypted one where there is none."""
    if entry.codec & CODEC_ENCRYPTED:
        if keyring.cipher is None:
            raise StoreKeyError(f"{path} is encrypted: give the key file of the store in SNAPLINE_STORE_KEY")
    elif keyring.guard is not None and keyring.guard.encrypts:
        raise StoreError(
            f"{path} holds bytes that are not encrypted, and there is a key: they were not written by its owner"
        )


def _decrypt(stored: memoryview, entry: BlobEntry, keyring: Keyring) -> Buffer:
    if keyring.cipher is None:
        return stored
    context = keyring.context(
        entry.kind, entry.codec, offset=entry.offset, size_bytes=entry.size_bytes, digest=entry.digest
    )
    return keyring.cipher.open(entry.offset, context, stored)


def _find_damage(data: Buffer, entry: BlobEntry) -> str:
    header = encode_header(entry)
    if len(data) < len(header) + entry.stored_bytes:
        return f"truncated: {len(data)} of {len(header) + entry.stored_bytes} bytes at offset {entry.offset}"
    if data[: len(header)] != header:
        return f"the blob's header at offset {entry.offset} is not what the index says"
    if digest_of(memoryview(data)[len(header) :]) != entry.stored_digest:
        return f"the blob at offset {entry.offset} does not match its digest"
    return ""


def compress(plain: Buffer, wanted: bool | None) -> tuple[int, Buffer]:
    """Return codec and stored bytes: lz4 where a probe shows that it pays; `wanted` False: never."""
    if not plain or wanted is False or len(plain) > LZ4_BYTES_MAX:
        return CODEC_PLAIN, plain
    if wanted is None and not compresses(plain):
        return CODEC_PLAIN, plain
    stored: bytes = lz4.block.compress(plain, store_size=False)
    return (CODEC_LZ4, stored) if _pays(len(stored), len(plain)) else (CODEC_PLAIN, plain)


def compresses(plain: Buffer) -> bool:
    """Return whether lz4 saves anything on a sample of `plain`."""
    if len(plain) <= _PROBE_BYTES:
        return True  # The sample would be the whole blob.
    sample = _sample(plain)
    return _pays(len(lz4.block.compress(sample, store_size=False)), len(sample))


def _pays(stored_bytes: int, plain_bytes: int) -> bool:
    return stored_bytes * 100 <= plain_bytes * (100 - _SAVED_PERCENT_MIN)


def _sample(plain: Buffer) -> bytes:
    """Return 64 KiB from four places: a state often begins with text and continues with arrays."""
    part = _PROBE_BYTES // _PROBE_PARTS
    step = (len(plain) - part) // (_PROBE_PARTS - 1)
    return b"".join(plain[i * step : i * step + part] for i in range(_PROBE_PARTS))
