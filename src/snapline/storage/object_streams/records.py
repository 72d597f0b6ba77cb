"""Segment files of an object stream: a header, then commits in sequence; each commit is whole or absent.

    shelves/<stream>/<n>     segment n = 1, 2, 3 …: header | commit | commit | …
    shelves/<stream>/lock    held by the one process that has the stream open

Header and commits are records (`storage/disk/record.py`) of the kinds `SHSG` and `SHCO`. The bytes of a commit's objects follow its record, in
the order of its contents; the record holds their total length.

An **object** is bytes and the digests of other objects that it refers to. Its digest is its name, so equal objects are stored
once. The digest covers references and bytes, keyed where the store is encrypted. Its last bit shows whether there are references, so
plain bytes cannot pass for bytes with references. An **entry** names an object by a path of words and a last word.

A header lists which earlier segments are alive, and the length of each (`alive`). Bytes beyond that length were never acknowledged; segments that
are not listed are garbage. So a missing byte in the middle of a stream is damage, and only the end of the newest segment may be torn.
A segment replaces others at the moment its file gets its name.

Where the store is encrypted, each segment has its own key, derived from its random id, as for packs. Objects, and the contents of commits with
their names, are sealed under this key. Each is numbered by its offset and bound to its place.
"""

import lz4.block
import msgspec

from snapline.ids import check_id
from snapline.storage.disk.guard import CIPHER_OVERHEAD_BYTES, Cipher, Guard, open_data
from snapline.storage.disk.layout import OBJECT_STREAMS
from snapline.storage.disk.record import DIGEST_BYTES, Buffer, canonical, check_place, damaged, digest_of, seal, unseal
from snapline.storage.packs.blob import CODEC_LZ4, CODEC_PLAIN, LZ4_BYTES_MAX, LZ4_RATIO_MAX, compress
from snapline.storage.store import files

HEADER_KIND = b"SHSG"
COMMIT_KIND = b"SHCO"

LOCK_NAME = "lock"
"""Name of the lock file, next to the segments. Empty; locked while a process on this file system has the stream open."""

COMPRESSED_BYTES_MIN = 128
"""Smaller objects are not compressed: lz4 would save next to nothing."""

OBJECT_BYTES_MAX = 2**31 - 1 - CIPHER_OVERHEAD_BYTES
"""Largest object: the most that one call can encrypt."""

_NUMBER_DIGITS_MAX = 18


class SegmentHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a segment's first record; `key` is the id of the key, empty if the store is not encrypted."""

    alive: list[tuple[int, int]]
    key: str
    number: int
    segment: str
    object_stream: str = msgspec.field(name="shelf")
    store: str

    @property
    def path(self) -> str:
        """Path of the segment."""
        return segment_path(self.object_stream, self.number)

    def context(self, purpose: str, offset: int, *more: object) -> bytes:
        """Return the context to which encryption binds the bytes at `offset`."""
        return canonical.encode(
            (f"snapline shelf {purpose} 1", self.store, self.object_stream, self.segment, offset, *more)
        )


class ObjectLine(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An object as a commit lists it; `references` are digests, one after the other."""

    digest: bytes
    codec: int
    stored_bytes: int
    size_bytes: int
    references: bytes


class EntryLine(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Assignment of a name: `name` in `path` now refers to the object `digest`; None removes the name."""

    path: tuple[str, ...]
    name: str
    digest: bytes | None


class Contents(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Contents of one commit; entries apply in their order."""

    objects: list[ObjectLine]
    entries: list[EntryLine]


class CommitBody(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Body of a commit's record: `Contents`, sealed where there is a key, and the length of the object data after the record."""

    data_bytes: int
    contents: bytes


_header_decoder = msgspec.msgpack.Decoder(SegmentHeader)
_commit_decoder = msgspec.msgpack.Decoder(CommitBody)
_contents_decoder = msgspec.msgpack.Decoder(Contents)


def check_object_stream(object_stream: str) -> str:
    """Return `object_stream` if it is an id; UsageError otherwise."""
    return check_id(object_stream, "shelf")


def segment_path(object_stream: str, number: int) -> str:
    """Return the path of a segment."""
    return f"{OBJECT_STREAMS}/{object_stream}/{number}"


def parse_segment_name(name: str) -> int | None:
    """Return the number of the segment with this file name; None if it is not a segment's name."""
    is_number = name.isascii() and name.isdigit() and len(name) <= _NUMBER_DIGITS_MAX and not name.startswith("0")
    return int(name) if is_number else None


def digest_of_object(data: Buffer, references: bytes, guard: Guard | None) -> bytes:
    """Return the name of an object."""
    if references:
        data = (len(references) // DIGEST_BYTES).to_bytes(8, "little") + references + bytes(data)
    digest = guard.digest(data) if guard is not None and guard.encrypts else digest_of(data)
    return digest[:-1] + bytes((digest[-1] & 0xFE | bool(references),))


def has_references(digest: bytes) -> bool:
    """Return whether the object of this name refers to others."""
    return bool(digest[-1] & 1)


def references_of(joined: bytes) -> list[bytes]:
    """Return the digests in `joined`."""
    return [joined[place : place + DIGEST_BYTES] for place in range(0, len(joined), DIGEST_BYTES)]


def encode_header(header: SegmentHeader) -> bytes:
    """Return the record that a segment begins with."""
    return seal(HEADER_KIND, canonical.encode(header))


def decode_header(record: bytes, *, path: str, store_id: str | None) -> SegmentHeader:
    """Return the header in a segment's first record.

    Raises:
        DamagedDataError: the header is damaged, or belongs to another path or store.
        StoreError: a later version of snapline wrote the header.
    """
    body = unseal(HEADER_KIND, record, path=path, epoch=None)
    with files.decoding(path):
        header = _header_decoder.decode(body)
    check_place(header, path, store_id)
    return header


def encode_commit(
    header: SegmentHeader,
    cipher: Cipher | None,
    offset: int,
    objects: list[tuple[bytes, bytes, Buffer]],
    entries: list[EntryLine],
) -> tuple[Contents, list[Buffer]]:
    """Return the contents of a commit at `offset`, and its bytes. An object is given as digest, references and plain bytes."""
    lines, compressed = [], []
    for digest, references, data in objects:
        codec, stored = compress(data, None) if len(data) >= COMPRESSED_BYTES_MIN else (CODEC_PLAIN, data)
        stored_bytes = len(stored) + (CIPHER_OVERHEAD_BYTES if cipher is not None else 0)
        lines.append(ObjectLine(digest, codec, stored_bytes, len(data), references))
        compressed.append(stored)
    contents = Contents(lines, entries)
    plain = canonical.encode(contents)
    if cipher is not None:
        plain = cipher.seal(offset, header.context("commit", offset), plain)
    record = seal(COMMIT_KIND, canonical.encode(CommitBody(sum(line.stored_bytes for line in lines), plain)))
    pieces: list[Buffer] = [record]
    offset += len(record)
    for line, stored in zip(lines, compressed, strict=True):
        if cipher is not None:
            stored = cipher.seal(offset, object_context(header, offset, line), stored)
        pieces.append(stored)
        offset += line.stored_bytes
    return contents, pieces


def decode_commit(record: bytes, header: SegmentHeader, guard: Guard | None, *, offset: int) -> tuple[Contents, int]:
    """Return the contents of the commit record at `offset`, and the number of bytes that follow it; errors as `decode_header`."""
    path = header.path
    raw = unseal(COMMIT_KIND, record, path=path, epoch=None)
    with files.decoding(path):
        body = _commit_decoder.decode(raw)
    context = header.context("commit", offset)
    plain = open_data(
        body.contents, guard, key=header.key, nonce=header.segment, index=offset, context=context, path=path
    )
    with files.decoding(path):
        contents = _contents_decoder.decode(plain)
    reason = _contradiction(contents, body.data_bytes, is_sealed=bool(header.key))
    if reason:
        raise damaged(path, f"the commit at {offset}: {reason}")
    return contents, body.data_bytes


def object_context(header: SegmentHeader, offset: int, line: ObjectLine) -> bytes:
    """Return the context to which encryption binds an object."""
    return header.context("object", offset, line.codec, line.size_bytes, line.digest, line.references)


def open_object(stored: bytes, header: SegmentHeader, guard: Guard | None, *, offset: int, line: ObjectLine) -> bytes:
    """Return an object's plain bytes after every check (G11).

    Raises:
        DamagedDataError: the bytes differ from those written.
        StoreError: the bytes are encrypted and there is no key, or the reverse.
    """
    path = header.path
    if len(stored) != line.stored_bytes:
        raise damaged(path, f"truncated: {len(stored)} of {line.stored_bytes} bytes at {offset}")
    context = object_context(header, offset, line) if header.key else b""
    plain = open_data(stored, guard, key=header.key, nonce=header.segment, index=offset, context=context, path=path)
    if line.codec == CODEC_LZ4:
        try:
            plain = lz4.block.decompress(plain, uncompressed_size=line.size_bytes)
        except lz4.block.LZ4BlockError as error:
            raise damaged(path, f"lz4 refuses the object at {offset}: {error}") from error
    if len(plain) != line.size_bytes or digest_of_object(plain, line.references, guard) != line.digest:
        raise damaged(path, f"the object at {offset} does not match its digest")
    return plain


def _contradiction(contents: Contents, data_bytes: int, *, is_sealed: bool) -> str:
    """Return what is inconsistent in a commit; empty if nothing is. Checked before anything is allocated."""
    for line in contents.objects:
        stored_bytes = line.stored_bytes - (CIPHER_OVERHEAD_BYTES if is_sealed else 0)
        if len(line.digest) != DIGEST_BYTES or len(line.references) % DIGEST_BYTES:
            return "a digest has the wrong length"
        if line.codec not in (CODEC_PLAIN, CODEC_LZ4) or stored_bytes < 0:
            return f"codec {line.codec} is unknown to this snapline: use a newer one"
        if line.codec == CODEC_PLAIN and stored_bytes != line.size_bytes:
            return "plain and stored bytes differ"
        if line.codec == CODEC_LZ4 and not stored_bytes < line.size_bytes <= min(
            LZ4_BYTES_MAX, stored_bytes * LZ4_RATIO_MAX
        ):
            return f"{stored_bytes} bytes cannot hold {line.size_bytes} in lz4"
    if sum(line.stored_bytes for line in contents.objects) != data_bytes:
        return "its objects do not fill its bytes"
    if any(not entry.path for entry in contents.entries):
        return "an entry has no path"
    return ""
