"""The ciphers of a store: AES-256-GCM throughout, from the optional package `cryptography`, imported when first needed.

Two uses, with separate keys:

- *Wrapping* (`wrap`, `unwrap`): a key-encryption key encrypts the 32 bytes of another key under 12 random bytes as
  nonce. Few keys are wrapped with one key-encryption key (one per writer), far below the 2³² where random nonces might
  collide.
- *Packs* (`PackCipher`): each pack has its own key, HKDF-SHA256 of the writer's data key with the pack's id. So
  the nonce may simply be the blob's index in the pack. All secrecy depends on one rule: **never two blobs
  under one key and one nonce.** Pack ids are random and used once. Within a pack a cipher seals indices only in ascending
  order, and refuses others. A cipher that opens a pack never seals.

A tag of 16 bytes authenticates the encrypted bytes together with their *context*. The context is not stored; the
caller computes it from everything to which the blob or key is bound. With another context, index or key, or a changed byte, the tag does
not match.

GCM alone does not commit to its key: an attacker could make bytes that decrypt under two keys. So `key_check_value` identifies a key, and is
compared after unwrapping.
"""

from typing import TYPE_CHECKING

from blake3 import blake3

from snapline.errors import UsageError
from snapline.storage.disk.record import Buffer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
OVERHEAD_BYTES = 16
"""Bytes added by sealing: the tag."""

WRAPPED_BYTES = NONCE_BYTES + KEY_BYTES + OVERHEAD_BYTES

SEAL_BYTES_MAX = 2**31 - 1 - OVERHEAD_BYTES
"""Largest input that the package takes in one call."""

CHECK_BYTES = 16

_PACK_PURPOSE = b"snapline pack 1\0"
_CHECK_CONTEXT = "snapline 1 check of a key"


def missing_package_error() -> UsageError:
    """Return (not raise) the error for a missing package."""
    return UsageError(
        "encryption and signatures need the package cryptography, which is not installed: "
        "install snapline[crypto], or unset SNAPLINE_STORE_KEY, SNAPLINE_SIGNING_KEY and SNAPLINE_VERIFY_KEY"
    )


def require_package() -> None:
    """Raise UsageError if the package `cryptography` is missing."""
    try:
        import cryptography  # noqa: F401  looked for, not used
    except ImportError as error:
        raise missing_package_error() from error


def key_check_value(key: bytes) -> bytes:
    """Return 16 bytes that identify this key without revealing anything about it."""
    return blake3(key, derive_key_context=_CHECK_CONTEXT).digest(CHECK_BYTES)


def wrap(wrapping: bytes, key: bytes, *, nonce: bytes, context: bytes) -> bytes:
    """Return nonce and encrypted `key`, `WRAPPED_BYTES` long. `nonce` is random."""
    return nonce + _aead(wrapping).encrypt(nonce, key, context)


def unwrap(wrapping: bytes, wrapped: bytes, *, context: bytes) -> bytes:
    """Return the unwrapped key; ValueError if another key or context was used, or if the bytes were changed."""
    if len(wrapped) != WRAPPED_BYTES:
        raise ValueError(f"{len(wrapped)} bytes are no wrapped key")
    return _decrypt(_aead(wrapping), wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)


class PackCipher:
    """Seals or opens the blobs of one pack. Several threads may open at once.

    Attributes:
        key_id: id of the data key, for the pack's header.
    """

    OVERHEAD_BYTES = OVERHEAD_BYTES

    def __init__(self, key_id: str, data_key: bytes, pack_id: str, *, seals: bool) -> None:
        self.key_id = key_id
        self._aead = _aead(derive_pack_key(data_key, pack_id))
        self._seals = seals
        self._next_index = 0

    def seal(self, index: int, context: bytes, data: Buffer) -> bytes:
        """Return `data` encrypted, 16 bytes longer. `index` is the blob's; it must ascend from call to call.

        Raises:
            UsageError: the index does not ascend, the pack was opened for reading, or `data` is above 2 GiB.
        """
        if not self._seals:
            raise UsageError("this pack was opened to be read: begin another pack to write")
        if index < self._next_index:
            raise UsageError(
                f"blob {index} comes after blob {self._next_index - 1}: each index is sealed once, in order"
            )
        if memoryview(data).nbytes > SEAL_BYTES_MAX:
            raise UsageError(f"a blob of {memoryview(data).nbytes} bytes cannot be encrypted: at most {SEAL_BYTES_MAX}")
        nonce = _nonce(index)
        self._next_index = index + 1
        return self._aead.encrypt(nonce, _flat(data), context)

    def open(self, index: int, context: bytes, data: Buffer) -> bytes:
        """Return the plain bytes; ValueError if key, index or context differ, or if the bytes were changed."""
        return _decrypt(self._aead, _nonce(index), data, context)


def derive_pack_key(data_key: bytes, pack_id: str) -> bytes:
    """Return the key of one pack: HKDF-SHA256 without salt, 32 bytes."""
    try:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise missing_package_error() from error
    info = _PACK_PURPOSE + pack_id.encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(data_key)


def _aead(key: bytes) -> "AESGCM":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise missing_package_error() from error
    if len(key) != KEY_BYTES:
        raise UsageError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return AESGCM(key)


def _decrypt(aead: "AESGCM", nonce: bytes, data: Buffer, context: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return aead.decrypt(nonce, _flat(data), context)
    except (InvalidTag, OverflowError) as error:
        raise ValueError("not sealed under this key, index and context") from error


def _nonce(index: int) -> bytes:
    if not 0 <= index < 2**63:
        raise ValueError(f"{index} is no index of a blob")
    return index.to_bytes(NONCE_BYTES, "big")


def _flat(data: Buffer) -> Buffer:
    """Return a flat view of bytes, as the package requires."""
    if isinstance(data, memoryview) and (data.format != "B" or data.ndim != 1):
        return data.cast("B")
    return data
