"""Packs. A pack is a single file that contains blobs. A pack contains the checkpoints of one host for one epoch, or checkpoints that agents
took between epochs (a checkpoint pack).

    header record (kind `PACK`) | blob | blob | … | index record (kind `INDX`) | footer

    footer: index offset (u64) | index length (u64) | index digest (32) | check (16) | magic "SNAPFOOT" (8)

The header's body is the map `{epoch, store, writer, pack}`. The index's body contains the same fields as the header's, so both bind the
file to its store, epoch and name. In a checkpoint pack, `epoch` is the plan. A checkpoint's blob is named after the agent. A checkpoint
pack may contain several checkpoints of one agent, so the name of each blob contains number and agent id (`layout.checkpoint_name`). Chunks
have no name. The blobs fill the space between header and index without gaps. So the digests of header, blobs, index and footer cover every
byte of the file. The host reports the index digest (the last 32 bytes of the index record) to the coordinator, which rereads the index
before it commits the epoch.

The index also lists the data that the pack's checkpoints need from other files. The data from other files are chunks of the base epoch
(`base`, `reused`), and packs that were written together with this pack (`others`) because one pack would be too large. The coordinator
builds the manifest from these lists (`checkpoint_packs.gather`).

**A blob** is a self-contained header followed by the stored bytes.

    magic "SNAPBLOB" (8) | kind (u8) | codec (u8) | name length (u16) | 0 (u32) | stored size (u64) | plaintext size (u64)
    | digest of the plaintext (32) | BLAKE3 of the stored bytes (32) | name | check (16) | stored bytes

Integers are little-endian. The check consists of the first 16 bytes of BLAKE3 over the preceding part of the header. So a scan for the
magic finds every blob of a pack that has lost its footer, and can tell intact blobs from damaged ones. There are two digests, because
compressed bytes with a flipped bit may still decompress to the right plaintext. For uncompressed, unencrypted blobs, both digests are equal
and computed only once.

The plaintext digest uses BLAKE3, which is keyed if the blob is encrypted. Encryption binds each blob to its location (`Keyring.context`),
so a blob that was moved within its pack or to another pack cannot be decrypted.

Bytes are used only after their digest has been verified, and a length only after the check of the header that contains it has been verified
(G11).
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

import lz4.block
import msgspec

from snapline.errors import StoreError, StoreKeyError, UsageError
from snapline.ids import check_id
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import (
    CIPHER_OVERHEAD_BYTES,
    DIGEST_BYTES,
    Buffer,
    Cipher,
    Guard,
    canonical,
    damaged,
    digest_of,
    seal,
    unseal,
)

KIND_CHECKPOINT = 1
"""Kind of a blob that is an `AgentCheckpoint`."""
KIND_CHUNK = 2
"""Kind of a blob that is a chunk of a state part. A chunk has no name and is identified by its digest."""

CODEC_PLAIN = 0
CODEC_LZ4 = 1
CODEC_ENCRYPTED = 2
"""Flag that is added to another codec if the bytes were encrypted after compression."""

KINDS = frozenset({KIND_CHECKPOINT, KIND_CHUNK})
CODECS = frozenset({CODEC_PLAIN, CODEC_LZ4, CODEC_ENCRYPTED, CODEC_ENCRYPTED | CODEC_LZ4})

BLOB_BYTES_MAX = 2**33
"""Largest blob (8 GiB). A checkpoint is held in memory as a whole, and a larger length must be damaged or malicious."""

LZ4_BYTES_MAX = 2**28
"""Largest blob to compress (256 MiB). lz4's block format ends below 2 GiB, and larger states consist of arrays, which hardly compress."""

LZ4_RATIO_MAX = 255
"""Highest possible compression ratio, because lz4 encodes at most 255 output bytes in one input byte. A higher claimed ratio indicates a
decompression bomb."""

PROBE_BYTES, PROBE_PARTS = 2**16, 4
"""Size in bytes of the sample that decides on compression, and the number of places from which it is taken. Testing a sample takes well
below 1 ms."""

_SAVED_PERCENT_MIN = 3
"""Smallest saving in percent for which blobs are compressed. With a smaller saving, decompression costs more than the saved bytes."""

_BLOB_MAGIC = b"SNAPBLOB"
_BLOB_HEADER = struct.Struct("<8sBBHIQQ32s32s")
_CHECK_BYTES = 16


class BlobEntry(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A blob as listed in a pack's index.

    Attributes:
        name: id of the agent, `<number>.<agent>` in a checkpoint pack, or "" for a chunk.
        kind: `KIND_…`.
        codec: `CODEC_…`.
        offset: offset of the blob's header in the pack.
        stored_bytes: length of the stored bytes, excluding the header.
        size_bytes: length of the plaintext.
        digest: digest of the plaintext.
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
        """Label of the blob in error messages, unique within the pack."""
        return self.name or f"chunk {self.digest.hex()[:12]}"


class PackBlob(msgspec.Struct, gc=False):
    """Blob to be written. `digest` is the digest of the plaintext, or b"" if it is not known yet. `compress` says whether to compress, or
    is None to decide by a sample."""

    name: str
    kind: int
    data: Buffer
    digest: bytes = b""
    compress: bool | None = None


def group_blobs(blobs: Iterable[PackBlob], size_bytes: int) -> Iterator[list[PackBlob]]:
    """Group the blobs by the pack into which they will be written. Every group except the last contains at least `size_bytes` bytes."""
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
    """Keys that encrypt or decrypt the blobs of one pack. `cipher` is None if the blobs are not encrypted."""

    store_id: str
    pack_id: str
    guard: Guard | None = None
    cipher: Cipher | None = None

    def context(self, kind: int, codec: int, *, offset: int, size_bytes: int, digest: bytes) -> bytes:
        """Return the encryption context, which binds a blob to its store, pack, offset, kind, codec, size and digest."""
        return canonical.encode(
            ("snapline blob 2", self.store_id, self.pack_id, offset, kind, codec, size_bytes, digest)
        )

    def digest(self, plain: Buffer) -> bytes:
        """Return the digest of `plain`, keyed if the store is encrypted."""
        guard = self.guard
        return guard.digest(plain) if guard is not None and guard.encrypts else digest_of(plain)


PLAIN_KEYRING = Keyring("", "")
"""Keyring for unencrypted packs of a store without keys."""


def header_bytes(name: str) -> int:
    """Return the length of a blob's header, which contains this ASCII name."""
    return _BLOB_HEADER.size + len(name) + _CHECK_BYTES


def end_of(entry: BlobEntry) -> int:
    """Return the offset directly after the blob `entry`."""
    return entry.offset + header_bytes(entry.name) + entry.stored_bytes


def encode_blob(blob: PackBlob, *, offset: int, keyring: Keyring = PLAIN_KEYRING) -> tuple[BlobEntry, bytes, Buffer]:
    """Encode a blob to be written at `offset`. Return its index entry, its header and its stored bytes."""
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
    """Return the header of the blob that `entry` describes. The header does not contain the blob's offset."""
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
    """Return why `entry` is invalid, or "" if it is valid. Entries are checked before anything is allocated."""
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
    """Check a blob and return its plaintext. `data` contains the blob's header and its stored bytes.

    Uncompressed, unencrypted contents are not copied. `entry` must come from a manifest or an index whose digest has been checked.

    Raises:
        DamagedDataError: If the blob is damaged. The message names the path, the epoch and the agent.
        StoreError: If the blob is unencrypted although there is a key, or encrypted although there is none.
    """
    reason = contradiction_of(entry) or _find_damage(data, entry)
    if reason:
        raise damaged(path, reason, epoch=epoch, blob=entry.name)
    return open_stored(memoryview(data)[header_bytes(entry.name) :], entry, path=path, epoch=epoch, keyring=keyring)


def open_stored(
    stored: memoryview, entry: BlobEntry, *, path: str, epoch: int | None, keyring: Keyring = PLAIN_KEYRING
) -> Buffer:
    """Return the plaintext of a blob. The digest of its stored bytes has already been verified. See `decode_blob`."""
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
    """Reject an unencrypted blob if there is a key, and an encrypted blob if there is none."""
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
    """Choose the codec for a blob. Return the codec and the stored bytes. If `wanted` is None, lz4 is used if a sample shows that it saves
    enough. If `wanted` is False, lz4 is not used."""
    if not plain or wanted is False or len(plain) > LZ4_BYTES_MAX:
        return CODEC_PLAIN, plain
    if wanted is None and not compresses(plain):
        return CODEC_PLAIN, plain
    stored: bytes = lz4.block.compress(plain, store_size=False)
    return (CODEC_LZ4, stored) if _pays(len(stored), len(plain)) else (CODEC_PLAIN, plain)


def compresses(plain: Buffer) -> bool:
    """Return whether lz4 compresses a sample of `plain` enough. For a blob that is no larger than a sample, return True."""
    if len(plain) <= PROBE_BYTES:
        return True  # The sample would be the whole blob.
    return sample_compresses(_sample(plain))


def sample_compresses(sample: bytes) -> bool:
    """Return whether lz4 compresses this sample enough."""
    return _pays(len(lz4.block.compress(sample, store_size=False)), len(sample))


def _pays(stored_bytes: int, plain_bytes: int) -> bool:
    return stored_bytes * 100 <= plain_bytes * (100 - _SAVED_PERCENT_MIN)


def _sample(plain: Buffer) -> bytes:
    """Return 64 KiB sampled from four places of `plain`, because a state often begins with text and continues with arrays."""
    part = PROBE_BYTES // PROBE_PARTS
    step = (len(plain) - part) // (PROBE_PARTS - 1)
    return b"".join(plain[i * step : i * step + part] for i in range(PROBE_PARTS))


INDEX_VERSION = 2
"""Version of the index. Version 1 had no chunks and no references to other packs."""

INDEX_BYTES_MAX = 2**28
"""Largest index (256 MiB), enough for a million blobs of one host. The size is checked before reading."""

_HEADER_KIND = b"PACK"
_INDEX_KIND = b"INDX"
_FOOTER_MAGIC = b"SNAPFOOT"
_FOOTER = struct.Struct("<QQ32s16s8s")
_CHECKED = struct.Struct("<QQ32s")
_TAIL_BYTES = 2**16
"""Size of the first read at the end of a pack, in bytes. Such a read contains the footer and index of a pack with about 500 blobs."""


class PackReference(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Reference to a pack, reported by the host that wrote it. The reference contains enough data to recognize the file later.

    `key_id` is the id of the key that encrypts the pack's blobs, or "" if they are not encrypted or the key has not been looked up yet.
    """

    path: str
    size_bytes: int
    index_digest: bytes
    key_id: str = ""


class PackHeader(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of the header record. In a checkpoint pack, `epoch` is the plan."""

    epoch: int
    pack: str
    store: str
    writer: str


class PackNeeds(msgspec.Struct, frozen=True, gc=False):
    """Data in other files that a pack's checkpoints need.

    Attributes:
        base: epoch that contains the chunks in `reused`, or 0 if no chunk is reused.
        reused: digests of the reused chunks of the base epoch.
        others: other packs of the same writer and epoch.
    """

    base: int = 0
    reused: Sequence[bytes] = ()
    others: Sequence[PackReference] = ()


class PackIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of the index record. `reused` contains the digests in `PackNeeds.reused`, concatenated. `key` is the id of the encryption
    key."""

    entries: list[BlobEntry]
    epoch: int
    pack: str
    store: str
    writer: str
    key: str = ""
    base: int = 0
    reused: bytes = b""
    others: list[PackReference] = []

    def header(self) -> bytes:
        """Return the expected header record of the file."""
        return encode_pack_header(PackHeader(epoch=self.epoch, pack=self.pack, store=self.store, writer=self.writer))

    def checkpoints(self) -> list[BlobEntry]:
        """Return the index entries of the pack's checkpoints, in order."""
        return [entry for entry in self.entries if entry.kind == KIND_CHECKPOINT]

    def chunks(self) -> list[BlobEntry]:
        """Return the index entries of the pack's chunks, in order."""
        return [entry for entry in self.entries if entry.kind == KIND_CHUNK]

    def reused_digests(self) -> list[bytes]:
        """Return the digests of the chunks that the pack reuses from the base epoch."""
        return [self.reused[i : i + DIGEST_BYTES] for i in range(0, len(self.reused), DIGEST_BYTES)]


_index_decoder = msgspec.msgpack.Decoder(PackIndex)


def encode_pack_header(header: PackHeader) -> bytes:
    """Return the header record."""
    return seal(_HEADER_KIND, canonical.encode(header))


class PackWriter:
    """Encoder of one pack, which yields the file piece by piece.

    Attributes:
        size_bytes: total size of the pack, known once `pieces` has finished.
        index_digest: digest of the index, known once `pieces` has finished.
    """

    def __init__(
        self, name: layout.PackName, *, store_id: str, needs: PackNeeds | None = None, keyring: Keyring = PLAIN_KEYRING
    ) -> None:
        self._path = layout.pack_path(name)
        self._is_of_epoch = name.folder == layout.PACKS
        self._header = PackHeader(epoch=name.number, pack=name.pack_id, store=store_id, writer=name.writer)
        self._needs = needs or PackNeeds()
        self._keyring = keyring
        self.size_bytes = 0
        self.index_digest = b""

    @property
    def key_id(self) -> str:
        """Id of the key that encrypts the pack's blobs, or "" if they are not encrypted."""
        return self._keyring.cipher.key_id if self._keyring.cipher is not None else ""

    def pieces(self, blobs: Iterable[PackBlob]) -> Iterator[Buffer]:
        """Yield the file's bytes in order.

        Raises:
            UsageError: If a name is invalid, or a name or chunk occurs twice. In a checkpoint pack, a valid name contains number and agent
                id.
        """
        header = encode_pack_header(self._header)
        yield header
        offset = len(header)
        entries: list[BlobEntry] = []
        known: set[str | bytes] = set()
        for blob in blobs:
            self._check_name(blob)
            entry, blob_header, stored = encode_blob(blob, offset=offset, keyring=self._keyring)
            key = entry.name or entry.digest
            if key in known:
                raise UsageError(f"{self._describe_blob(entry)} comes twice in the pack {self._path}")
            known.add(key)
            entries.append(entry)
            yield blob_header
            yield stored
            offset += len(blob_header) + len(stored)
        yield from self._trailer(entries, offset)

    def _describe_blob(self, entry: BlobEntry) -> str:
        if entry.kind == KIND_CHUNK:
            return entry.label
        return f"agent {entry.name!r}" if self._is_of_epoch else f"checkpoint {entry.name!r}"

    def _check_name(self, blob: PackBlob) -> None:
        if blob.kind == KIND_CHUNK:
            if blob.name:
                raise UsageError(f"the chunk {blob.name!r} has a name: its digest finds it")
        elif self._is_of_epoch:
            check_id(blob.name)
        elif layout.parse_checkpoint_name(blob.name) is None:
            raise UsageError(
                f"{blob.name!r} names no checkpoint: in the pack {self._path} they look like <number>.<agent>"
            )

    def _trailer(self, entries: list[BlobEntry], offset: int) -> Iterator[bytes]:
        header, needs = self._header, self._needs
        index = PackIndex(
            entries,
            epoch=header.epoch,
            pack=header.pack,
            store=header.store,
            writer=header.writer,
            key=self.key_id,
            base=needs.base,
            reused=b"".join(needs.reused),
            others=list(needs.others),
        )
        record = seal(_INDEX_KIND, canonical.encode(index), version=INDEX_VERSION)
        self.index_digest = record[-DIGEST_BYTES:]
        checked = _CHECKED.pack(offset, len(record), self.index_digest)
        yield record
        yield checked + digest_of(checked)[:_CHECK_BYTES] + _FOOTER_MAGIC
        self.size_bytes = offset + len(record) + _FOOTER.size


def read_index(disk: Disk, path: str, *, size_bytes: int, store_id: str | None) -> tuple[PackIndex, PackReference]:
    """Read and check the footer and index of the pack at `path`, which is `size_bytes` bytes long.

    The blobs themselves are not read, but the index must show that they fill the file without gaps. If `store_id` is None, the store's id
    is not checked.

    Raises:
        DamagedDataError: If any bytes differ from those originally written.
        StoreError: If the pack has an unsupported version.
    """
    name = layout.parse_any_pack_path(path)
    epoch = None if name is None else name.epoch
    tail_offset = max(0, size_bytes - _TAIL_BYTES)
    tail = disk.read(path, tail_offset, size_bytes - tail_offset)
    index_offset, index_bytes, digest = _read_footer(tail, path=path, size_bytes=size_bytes, epoch=epoch)
    if index_offset >= tail_offset:
        record = tail[index_offset - tail_offset : index_offset - tail_offset + index_bytes]
    else:
        record = disk.read(path, index_offset, index_bytes)
    body = unseal(_INDEX_KIND, record, path=path, epoch=epoch, versions=(1, INDEX_VERSION))
    if record[-DIGEST_BYTES:] != digest:
        raise damaged(path, "the footer names another index", epoch=epoch)
    try:
        index = _index_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, f"its index cannot be read: {error}", epoch=epoch) from error
    reason = _contradiction(index, name, index_offset, store_id)
    if reason:
        raise damaged(path, reason, epoch=epoch)
    return index, PackReference(path, size_bytes, digest, index.key)


def _read_footer(tail: bytes, *, path: str, size_bytes: int, epoch: int | None) -> tuple[int, int, bytes]:
    if len(tail) < _FOOTER.size:
        raise damaged(path, f"truncated: {size_bytes} bytes, too short for a pack", epoch=epoch)
    footer = tail[-_FOOTER.size :]
    offset, length, digest, check, magic = _FOOTER.unpack(footer)
    if magic != _FOOTER_MAGIC or digest_of(footer[: _CHECKED.size])[:_CHECK_BYTES] != check:
        raise damaged(path, "no footer at its end: truncated, or bytes were changed or added", epoch=epoch)
    if offset + length + _FOOTER.size != size_bytes or length > INDEX_BYTES_MAX:
        raise damaged(path, "the footer's offsets do not fit the file's length", epoch=epoch)
    return offset, length, digest


def _contradiction(index: PackIndex, name: layout.PackName | None, index_offset: int, store_id: str | None) -> str:
    if name is None or (name.writer, name.number, name.pack_id) != (index.writer, index.epoch, index.pack):
        return f"it is the pack {index.pack} of writer {index.writer!r}, number {index.epoch}, under another name"
    if store_id is not None and index.store != store_id:
        return f"it belongs to store {index.store}, this is {store_id}"
    if len({entry.name or entry.digest for entry in index.entries}) != len(index.entries):
        return "a blob is listed twice"
    if len(index.reused) % DIGEST_BYTES or not 0 <= index.base <= layout.EPOCH_MAX:
        return "what it needs from its base is impossible"
    offset = len(index.header())
    for entry in index.entries:
        reason = contradiction_of(entry)
        if entry.kind == KIND_CHECKPOINT and name.folder == layout.CHECKPOINTS:
            if layout.parse_checkpoint_name(entry.name) is None:
                reason = "it names no checkpoint: they look like <number>.<agent>"
        elif entry.kind == KIND_CHECKPOINT and not entry.name:
            reason = "a checkpoint has no name"
        if reason:
            return f"blob {entry.label!r}: {reason}"
        if entry.offset != offset:
            return f"blob {entry.label!r} does not follow the one before it"
        offset = end_of(entry)
    return "" if offset == index_offset else "the blobs do not fill the space before the index"
