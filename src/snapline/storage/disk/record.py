"""Record format: the envelope of every small file, and of a pack's header and index. The module also defines the error that reports damage
to any file.

    magic "SNAPLINE" (8) | kind (4) | version (u32) | body length (u64) | body (MessagePack) | BLAKE3 of everything before (32)

Integers are little-endian. The envelope's layout never changes. So a reader can tell a damaged file (wrong digest) from an intact file of a
later version (correct digest, unknown version), and can report the later version clearly.

A damage report names the damaged file, its epoch and its agent (G11).

*Guard*: the interface through which the store uses encryption and signatures. `protection.py` implements the interface. A store without
keys has no guard.

Where blobs are encrypted, plaintext digests are keyed, so that they reveal nothing about the content. Digests of the stored bytes are not
keyed.

`open_data` decrypts data that has its own key, such as batches of host logs and parts of output files.
"""

import struct
from typing import Protocol

import msgspec
from blake3 import blake3

from snapline.errors import DamagedDataError, StoreError, StoreKeyError
from snapline.storage.disk.layout import CHECKPOINTS, parse_checkpoint_name, parse_pack_path


class Finding(msgspec.Struct, frozen=True):
    """A damaged, missing or unexpected file in the store.

    Attributes:
        path: path of the file in the store, such as `packs/h1.3/7.ab12…`.
        epoch: epoch of the file, or None if the file belongs to no known epoch.
        reason: description of the problem.
        agent: agent whose checkpoint is damaged, or "" if the damage is not limited to one checkpoint.
        number: number of the damaged checkpoint if it is in a checkpoint pack, otherwise None.
    """

    path: str
    epoch: int | None
    reason: str
    agent: str = ""
    number: int | None = None

    @property
    def plan(self) -> int | None:
        """Plan of a checkpoint pack, or None for any other file."""
        name = parse_pack_path(self.path, CHECKPOINTS)
        return None if name is None else name.number


def damaged(path: str, reason: str, *, epoch: int | None = None, blob: str = "") -> DamagedDataError:
    """Create the error that reports damage to a file. The caller raises it. `finding_of` returns the `Finding` that the error contains.

    `blob` names the damaged blob, and thereby the agent. `blob` is "" if more than one blob may be damaged.
    """
    agent, number = owner_of(path, blob)
    finding = Finding(path=path, epoch=epoch, reason=reason, agent=agent, number=number)
    owner = f", agent {agent!r}" if agent else ""
    owner += "" if number is None else f", checkpoint {number}"
    if epoch is not None:
        context, step = f" (epoch {epoch})", "restore an earlier epoch"
    elif finding.plan is not None:
        context, step = f" (plan {finding.plan})", "a recovery goes back to a checkpoint before it"
    else:
        context, step = "", "check the store's disk"
    error = DamagedDataError(f"{path}{context}{owner} is damaged: {reason}; {step}")
    error.__dict__["finding"] = finding
    return error


class PlacedRecord(Protocol):
    """A record that names its store and path."""

    @property
    def store(self) -> str: ...

    @property
    def path(self) -> str: ...


def check_place(record: PlacedRecord, path: str, store_id: str | None) -> None:
    """Raise DamagedDataError if the record at `path` belongs to another path or store. If `store_id` is None, the store's id is not
    checked."""
    if record.path != path:
        raise damaged(path, f"it is the file {record.path}")
    check_store(record.store, path, store_id)


def check_store(store: str, path: str, store_id: str | None, *, epoch: int | None = None) -> None:
    """Raise DamagedDataError if the data at `path` belongs to another store. If `store_id` is None, any store is accepted."""
    if store_id is not None and store != store_id:
        raise damaged(path, f"it belongs to store {store}, this is {store_id}", epoch=epoch)


def owner_of(path: str, blob: str) -> tuple[str, int | None]:
    """Return the agent and the number of the checkpoint in this blob. The number is None unless the pack is a checkpoint pack."""
    known = parse_checkpoint_name(blob) if parse_pack_path(path, CHECKPOINTS) is not None else None
    return known or (blob, None)


def finding_of(error: DamagedDataError) -> Finding | None:
    """Return the finding in an error created by `damaged`, or None for any other error."""
    finding = error.__dict__.get("finding")
    return finding if isinstance(finding, Finding) else None


RECORD_VERSION = 1
"""Default version of a record."""

DIGEST_BYTES = 32

MAGIC = b"SNAPLINE"
_HEAD = struct.Struct("<8s4sIQ")
HEAD_BYTES = _HEAD.size
OVERHEAD_BYTES = HEAD_BYTES + DIGEST_BYTES

canonical = msgspec.msgpack.Encoder(order="sorted")
"""Encoder of canonical MessagePack: shortest forms, and sorted map keys. Equal values always encode to equal bytes."""


Buffer = bytes | bytearray | memoryview


def digest_of(data: Buffer) -> bytes:
    """Return the 32-byte BLAKE3 digest of `data`."""
    return blake3(data).digest()


def seal(kind: bytes, body: bytes, *, version: int = RECORD_VERSION) -> bytes:
    """Encode `body` as a record of the given kind (4 bytes)."""
    head = _HEAD.pack(MAGIC, kind, version, len(body)) + body
    return head + digest_of(head)


def unseal(
    kind: bytes, data: bytes, *, path: str, epoch: int | None, versions: tuple[int, ...] = (RECORD_VERSION,)
) -> bytes:
    """Check the record in `data`, and return its body. `data` must contain exactly one record.

    `path` and `epoch` appear in error messages. `versions` lists the record versions that the caller can read.

    Raises:
        DamagedDataError: If the magic, kind, length or digest is wrong, or there are too few or too many bytes.
        StoreError: If the record is intact but has an unsupported version.
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
    """Return the version of a record that has passed `unseal`."""
    return int(_HEAD.unpack_from(data)[2])


def record_bytes(head: bytes) -> int | None:
    """Return the total length of a record, given its first `HEAD_BYTES` bytes. Return None if the bytes are not the beginning of a
    record."""
    if len(head) < HEAD_BYTES:
        return None
    magic, _, _, length = _HEAD.unpack_from(head)
    return int(length) + OVERHEAD_BYTES if magic == MAGIC else None


def _check_length(found: int, expected: int, *, path: str, epoch: int | None) -> None:
    if found < expected:
        raise damaged(path, f"truncated: {found} of {expected} bytes", epoch=epoch)
    if found > expected:
        raise damaged(path, f"{found - expected} surplus bytes after the end", epoch=epoch)


class Cipher(Protocol):
    """Cipher for the blobs of one pack, which has its own key."""

    @property
    def key_id(self) -> str:
        """Id of the store key from which the pack's key is derived."""

    def seal(self, index: int, context: bytes, data: Buffer) -> bytes:
        """Return the ciphertext of `data`, which is `CIPHER_OVERHEAD_BYTES` longer. `index` must differ for each blob of a pack."""

    def open(self, index: int, context: bytes, data: Buffer) -> bytes:
        """Return the plaintext. Raise ValueError if `data` was not encrypted under this key, index and context."""


class Guard(Protocol):
    """The encryption and signing operations of a store that has keys."""

    @property
    def encrypts(self) -> bool:
        """True if blobs are encrypted, and unencrypted blobs are rejected."""

    @property
    def signs(self) -> bool:
        """True if refs are signed."""

    @property
    def requires_signatures(self) -> bool:
        """True if refs without a valid signature are rejected."""

    def digest(self, data: Buffer) -> bytes:
        """Return the keyed digest of a blob's plaintext."""

    def begin_pack(self, writer: str, pack_id: str) -> Cipher:
        """Return the cipher for a new pack."""

    def open_pack(self, key_id: str, pack_id: str) -> Cipher:
        """Return the cipher for a pack that was written under `key_id`."""

    def check_key_file(self, path: str) -> object:
        """Check a key record as thoroughly as the available keys allow. Raise DamagedDataError if the record is invalid."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`."""

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether `signature` is a valid signature of `message`."""

    def log_key(self) -> bytes:
        """Return the public key with which others verify the host-log batches of this process."""

    def sign_batch(self, message: bytes) -> bytes:
        """Sign `message` with the private key that belongs to `log_key`, and return the signature."""

    def verify_batch(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Return whether `signature` is valid for `message` under the public key `public`."""

    def authenticate(self, message: bytes) -> bytes:
        """Return an authentication tag for `message`, which only the holder of a key can create. The tag is a signature if refs are signed,
        otherwise a keyed digest."""

    def is_authentic(self, message: bytes, tag: bytes) -> bool:
        """Return whether `tag` is a valid tag of `message`."""


def authenticates(guard: Guard | None) -> bool:
    """Return whether the store rejects all data from writers without its keys."""
    return guard is not None and (guard.requires_signatures or guard.encrypts)


CIPHER_OVERHEAD_BYTES = 16
"""Size of the authentication tag of AES-256-GCM."""


def open_data(
    data: bytes, guard: Guard | None, *, key: str, nonce: str, index: int, context: bytes, path: str
) -> bytes:
    """Decrypt `data` if it is encrypted, and return the plaintext. `key` is "" if `data` is not encrypted. `path` is the file named in
    error messages.

    Raises:
        DamagedDataError: If the bytes cannot be decrypted.
        StoreError: If the data is unencrypted although there is a key, or encrypted although there is none.
    """
    if not key:
        if guard is not None and guard.encrypts:
            raise StoreError(
                f"{path} holds bytes that are not encrypted, and there is a key: they were not written by its owner"
            )
        return data
    if guard is None or not guard.encrypts:
        raise StoreKeyError(f"{path} is encrypted: give the key file of the store in SNAPLINE_STORE_KEY")
    try:
        return guard.open_pack(key, nonce).open(index, context, data)
    except ValueError as error:
        raise damaged(path, "it does not open under its key: it was moved, or changed") from error
