"""A pack: the checkpoints of one host for one epoch, or those taken between epochs, in one file.

    header record (kind `PACK`) | blob | blob | … | index record (kind `INDX`) | footer

    footer: index offset (u64) | index length (u64) | index digest (32) | check (16) | magic "SNAPFOOT" (8)

The header's body is the map `{epoch, store, writer, pack}`, and the index's body begins with the same, so each binds the
file to its store, epoch and name. (In a checkpoint pack `epoch` is the plan.) A checkpoint's blob is named after its agent. In a
checkpoint pack, where an agent may have several, the name is number and id (`layout.checkpoint_name`). Chunks have no name. The blobs
fill the space between header and index without a gap. So the digests of header, blobs, index and footer cover every byte of the
file. The index digest (the last 32 bytes of the index record) goes to the coordinator, which reads it back
before it commits the epoch.

The index also lists what the checkpoints in the pack need from elsewhere: chunks of the base epoch (`base`, `reused`), and
other packs of the same writer and epoch (`others`), written because one pack would be too large. The manifest is built from these lists
(`gathering.py`).
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from snapline.errors import UsageError
from snapline.ids import check_id
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import DIGEST_BYTES, Buffer, canonical, damaged, digest_of, seal, unseal
from snapline.storage.packs.blob import _CHECK_BYTES
from snapline.storage.packs.blob import (
    KIND_CHECKPOINT,
    KIND_CHUNK,
    PLAIN_KEYRING,
    BlobEntry,
    Keyring,
    PackBlob,
    contradiction_of,
    encode_blob,
    end_of,
)

INDEX_VERSION = 2
"""Version 1 had no chunks and no references to other packs."""

INDEX_BYTES_MAX = 2**28
"""Largest index (256 MiB): a million blobs of one host. Checked before reading."""

_HEADER_KIND = b"PACK"
_INDEX_KIND = b"INDX"
_FOOTER_MAGIC = b"SNAPFOOT"
_FOOTER = struct.Struct("<QQ32s16s8s")
_CHECKED = struct.Struct("<QQ32s")
_TAIL_BYTES = 2**16
"""Bytes of a first read at the end: enough for footer and index of a pack of about 500 blobs."""


class PackReference(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Report of a host on a pack it wrote: enough to recognize the same file later.

    `key_id` names the key that encrypts its blobs; empty if they are not encrypted, or if the key was not looked up yet.
    """

    path: str
    size_bytes: int
    index_digest: bytes
    key_id: str = ""


class PackHeader(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of the header record. `epoch` of a checkpoint pack is the plan."""

    epoch: int
    pack: str
    store: str
    writer: str


class PackNeeds(msgspec.Struct, frozen=True, gc=False):
    """Chunks and packs that the checkpoints of a pack need from elsewhere.

    Attributes:
        base: the epoch that holds the chunks `reused`; 0 for none.
        reused: digests of chunks in the base.
        others: packs of the same writer and epoch.
    """

    base: int = 0
    reused: Sequence[bytes] = ()
    others: Sequence[PackReference] = ()


class PackIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of the index record. `reused` is the concatenated digests; see `PackNeeds`. `key` is the key's id."""

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
        """Return the header record with which the file must begin."""
        return encode_pack_header(PackHeader(epoch=self.epoch, pack=self.pack, store=self.store, writer=self.writer))

    def checkpoints(self) -> list[BlobEntry]:
        """Return the entries of checkpoints, in order."""
        return [entry for entry in self.entries if entry.kind == KIND_CHECKPOINT]

    def chunks(self) -> list[BlobEntry]:
        """Return the entries of chunks, in order."""
        return [entry for entry in self.entries if entry.kind == KIND_CHUNK]

    def reused_digests(self) -> list[bytes]:
        """Return the digests of the chunks in the base epoch."""
        return [self.reused[i : i + DIGEST_BYTES] for i in range(0, len(self.reused), DIGEST_BYTES)]


_index_decoder = msgspec.msgpack.Decoder(PackIndex)


def encode_pack_header(header: PackHeader) -> bytes:
    """Return the header record."""
    return seal(_HEADER_KIND, canonical.encode(header))


class PackWriter:
    """Turns blobs into the bytes of one pack, a piece at a time.

    Attributes:
        size_bytes: total size of all pieces returned so far.
        index_digest: known after `pieces` has ended.
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
        """Id of the key that encrypts the pack's blobs; empty if they are not encrypted."""
        return self._keyring.cipher.key_id if self._keyring.cipher is not None else ""

    def pieces(self, blobs: Iterable[PackBlob]) -> Iterator[Buffer]:
        """Yield the file's bytes in order.

        Raises:
            UsageError: a name is invalid (in a checkpoint pack: not number and id), or a name or chunk is a duplicate.
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
    """Read and check footer and index of the pack at `path`, which is `size_bytes` long.

    The blobs are not read, but they must fill the file without a gap. `store_id` None skips the comparison of the store.

    Raises:
        DamagedDataError: some bytes differ from those written.
        StoreError: the pack has another version, or `path` is not a valid path of a pack.
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
