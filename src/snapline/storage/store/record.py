"""The envelope of every small file, and of a pack's header and index, with a BLAKE3 digest over all preceding bytes.

    magic "SNAPLINE" (8) | kind (4) | version (u32) | body length (u64) | body (MessagePack) | BLAKE3 of all before (32)

Integers are little-endian. This outer layout never changes. So a reader can distinguish a damaged file (wrong digest) from
an intact file of a later version (right digest, unknown version), and reject the latter with a clear error.
"""

import struct

import msgspec
from blake3 import blake3

from snapline.errors import StoreError
from snapline.storage.store.damage import damaged

RECORD_VERSION = 1
"""Default version of a record."""

DIGEST_BYTES = 32

MAGIC = b"SNAPLINE"
_HEAD = struct.Struct("<8s4sIQ")
HEAD_BYTES = _HEAD.size
OVERHEAD_BYTES = HEAD_BYTES + DIGEST_BYTES

canonical = msgspec.msgpack.Encoder(order="sorted")
"""Canonical MessagePack: shortest forms, map keys sorted, no other freedom. The same values give the same bytes."""


Buffer = bytes | bytearray | memoryview


def digest_of(data: Buffer) -> bytes:
    """Return the BLAKE3 digest of `data`, 32 bytes."""
    return blake3(data).digest()


def seal(kind: bytes, body: bytes, *, version: int = RECORD_VERSION) -> bytes:
    """Return the record of `kind` (4 bytes) around `body`."""
    head = _HEAD.pack(MAGIC, kind, version, len(body)) + body
    return head + digest_of(head)


def unseal(
    kind: bytes, data: bytes, *, path: str, epoch: int | None, versions: tuple[int, ...] = (RECORD_VERSION,)
) -> bytes:
    """Return the body of the record `data`, which must contain nothing else.

    `path` and `epoch` are used in errors; `versions` are those that the caller can read.

    Raises:
        DamagedDataError: wrong magic, kind, length or digest; missing or surplus bytes.
        StoreError: the record is intact, but of another version.
    """
    if len(data) < OVERHEAD_BYTES:
        raise damaged(path, f"truncated: {len(data)} bytes left, a record has at least {OVERHEAD_BYTES}", epoch=epoch)
    magic, found_kind, version, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise damaged(path, "it does not begin with SNAPLINE", epoch=epoch)
    _check_length(len(data), length + OVERHEAD_BYTES, path=path, epoch=epoch)
    if digest_of(memoryview(data)[:-DIGEST_BYTES]) != data[-DIGEST_BYTES:]:
        raise damaged(path, "its digest does not match its bytes", epoch=epoch)
    if found_kind != kind:
        raise damaged(path, f"it holds a record of kind {found_kind!r}, not {kind!r}", epoch=epoch)
    if version not in versions:
        raise StoreError(
            f"{path} has format version {version}, this snapline reads up to {versions[-1]}: use a newer snapline"
        )
    return data[HEAD_BYTES:-DIGEST_BYTES]


def version_of(data: bytes) -> int:
    """Return the version of a record that `unseal` has accepted."""
    return int(_HEAD.unpack_from(data)[2])


def record_bytes(head: bytes) -> int | None:
    """Return the length of the record that begins with these `HEAD_BYTES`; None if they are not the beginning of a record."""
    if len(head) < HEAD_BYTES:
        return None
    magic, _, _, length = _HEAD.unpack_from(head)
    return int(length) + OVERHEAD_BYTES if magic == MAGIC else None


def _check_length(found: int, expected: int, *, path: str, epoch: int | None) -> None:
    if found < expected:
        raise damaged(path, f"truncated: {found} of {expected} bytes", epoch=epoch)
    if found > expected:
        raise damaged(path, f"{found - expected} surplus bytes after the end", epoch=epoch)
