"""Ciphers and signatures of a store. Both use the optional package `cryptography`, which is imported when first needed.

The cipher is always AES-256-GCM. The cipher has two uses, with separate keys:

- *Wrapping* (`wrap`, `unwrap`): a key-encryption key encrypts the 32 bytes of another key, with 12 random bytes as
  nonce. One key-encryption key wraps few keys (one per writer), far below the number of 2³² at which random nonces might
  collide.
- *Packs* (`PackCipher`): each pack has its own key, derived by HKDF-SHA256 from the writer's data key and the pack's id. So the nonce may
  simply be the blob's index, which is different for each blob of the pack. All secrecy depends on one rule: **two blobs must never share
  both key and nonce.** Pack ids are random and used once. Within a pack, a cipher encrypts only in ascending order of indexes, and refuses
  any other order. A cipher that decrypts a pack never encrypts.

A 16-byte tag authenticates the ciphertext together with its *context*. The context is not stored. The caller computes it from
everything to which the blob or key is bound. If context, index, key or any byte differs, the tag does not match.

GCM alone does not commit to its key: an attacker could create ciphertext that decrypts under two keys. So `key_check_value` identifies a
key, and is compared after unwrapping.

**Signatures** over refs and host logs are Ed25519 signatures. An epoch counts as a snapshot if a ref points to it, and the ref's root
covers the whole epoch. So one signature over store, epoch and root authenticates the whole snapshot. Without the private key, nobody can
create or change a snapshot, or move it to another store or another number. Ed25519 signatures are deterministic, so every leader with the
same key writes the same ref, as racing leaders must (`Store.publish`).

Hosts do not have the private key. Each host creates its own key, and the coordinator signs the key's public half for each log that the host
opens (`log_message`). This signature is the log's certificate, which every batch contains.

Limit: a signature cannot show that the newest epoch was not deleted. Only the coordinator's log knows which epochs must exist.
"""

from typing import TYPE_CHECKING

from blake3 import blake3

from snapline.errors import UsageError
from snapline.storage.disk.record import Buffer, canonical

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


KEY_BYTES = 32
NONCE_BYTES = 12
OVERHEAD_BYTES = 16
"""Number of bytes that encryption adds, which is the size of the tag."""

WRAPPED_BYTES = NONCE_BYTES + KEY_BYTES + OVERHEAD_BYTES

SEAL_BYTES_MAX = 2**31 - 1 - OVERHEAD_BYTES
"""Largest input in bytes that the package accepts in one call."""

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
        import cryptography  # noqa: F401  only checks that the package is installed
    except ImportError as error:
        raise missing_package_error() from error


def key_check_value(key: bytes) -> bytes:
    """Return 16 bytes that identify this key but reveal nothing about it."""
    return blake3(key, derive_key_context=_CHECK_CONTEXT).digest(CHECK_BYTES)


def wrap(wrapping: bytes, key: bytes, *, nonce: bytes, context: bytes) -> bytes:
    """Return the nonce followed by the encrypted `key`, `WRAPPED_BYTES` bytes in total. `nonce` must be random."""
    return nonce + _aead(wrapping).encrypt(nonce, key, context)


def unwrap(wrapping: bytes, wrapped: bytes, *, context: bytes) -> bytes:
    """Return the unwrapped key. Raise ValueError if another key or context was used, or if the bytes were changed."""
    if len(wrapped) != WRAPPED_BYTES:
        raise ValueError(f"{len(wrapped)} bytes are no wrapped key")
    return _decrypt(_aead(wrapping), wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)


class PackCipher:
    """Encrypts or decrypts the blobs of one pack. Several threads may decrypt at the same time.

    Attributes:
        key_id: id of the data key, for the pack's index.
    """

    OVERHEAD_BYTES = OVERHEAD_BYTES

    def __init__(self, key_id: str, data_key: bytes, pack_id: str, *, seals: bool) -> None:
        self.key_id = key_id
        self._aead = _aead(derive_pack_key(data_key, pack_id))
        self._seals = seals
        self._next_index = 0

    def seal(self, index: int, context: bytes, data: Buffer) -> bytes:
        """Return the ciphertext of `data`, which is 16 bytes longer. `index` must ascend from call to call.

        Raises:
            UsageError: If the index does not ascend, the cipher only decrypts, or `data` is larger than 2 GiB.
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
        """Return the plaintext. Raise ValueError if key, index or context differ, or if the bytes were changed."""
        return _decrypt(self._aead, _nonce(index), data, context)


def derive_pack_key(data_key: bytes, pack_id: str) -> bytes:
    """Return the 32-byte key of one pack, derived by HKDF-SHA256 without salt."""
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
    """Return a flat view of the bytes, as the package requires."""
    if isinstance(data, memoryview) and (data.format != "B" or data.ndim != 1):
        return data.cast("B")
    return data


_PURPOSE = "snapline epoch 1"
_LOG_PURPOSE = "snapline host log 1"


def epoch_message(store_id: str, epoch: int, root: str) -> bytes:
    """Return the message to sign for a ref. The message is canonical MessagePack of purpose, store id, epoch and root."""
    return canonical.encode((_PURPOSE, store_id, epoch, root))


def log_message(store_id: str, plan: int, host: str, start: int, public: bytes) -> bytes:
    """Return the message to sign for a host log. The message states that the private half of `public` signs the log's batches."""
    return canonical.encode((_LOG_PURPOSE, store_id, plan, host, start, public))


def public_key_of(secret: bytes) -> bytes:
    """Return the 32 bytes of a private key's public half."""
    return load_private(secret).public_key().public_bytes_raw()


def sign(private: "Ed25519PrivateKey", message: bytes) -> bytes:
    """Return the 64-byte signature of `message`. The same message always gets the same signature."""
    return private.sign(message)


def is_signed(public: "Ed25519PublicKey", message: bytes, signature: bytes) -> bool:
    """Return whether the private half of `public` signed `message`. Return False for an invalid signature."""
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def load_private(secret: bytes) -> "Ed25519PrivateKey":
    """Return the private key encoded by these 32 bytes. Raise UsageError if the package is missing."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise missing_package_error() from error
    return Ed25519PrivateKey.from_private_bytes(secret)


def load_public(public: bytes) -> "Ed25519PublicKey":
    """Return the public key encoded by these 32 bytes. Raise UsageError if the bytes are invalid, or the package is missing."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise missing_package_error() from error
    try:
        return Ed25519PublicKey.from_public_bytes(public)
    except ValueError as error:
        raise UsageError("the verify key is no Ed25519 public key: give the file that ends in .pub") from error
