"""Ciphers and signatures of a store. Both use the optional package `cryptography`, which is imported when first needed.

The cipher is always AES-256-GCM. The cipher has two uses, each with its own keys:

- *Wrapping* (`wrap`, `unwrap`): a key-encryption key encrypts the 32 bytes of another key, with 12 random bytes as nonce. Each
  key-encryption key wraps only one key per writer, far fewer than the 2³² at which random nonces might collide.
- *Packs* (`PackCipher`): each pack has its own key, derived by HKDF-SHA256 from the writer's data key and the pack's id. So the blob's
  index, which is unique within the pack, can serve as the nonce. All secrecy depends on one rule: **two blobs must never share both key and
  nonce.** Each pack id is random and used only once. Within a pack, a cipher encrypts blobs only in ascending order of their indexes, and
  refuses any other order. A cipher that decrypts a pack never encrypts.

A 16-byte tag authenticates the ciphertext together with its *context*. The context is not stored in the ciphertext. The caller computes the
context from everything to which the blob or key is bound. If the context, the index, the key or any byte differs, the tag does not match.

GCM alone does not commit to its key: an attacker could create ciphertext that decrypts under two keys. So `key_check_value` computes a
value that identifies a key. The value is compared after a key is unwrapped.

**Signatures** of refs and host logs use Ed25519. An epoch counts as a snapshot if a ref points to it, and the ref's root covers the whole
epoch. So one signature that covers store, epoch and root authenticates the whole snapshot. Without the private key, nobody can create or
alter a snapshot, or move it to another store or epoch number. Ed25519 signatures are deterministic, so leaders with the same key write
identical refs, which concurrent leaders must do (`Store.publish`).

Hosts do not have the private key. Each host generates its own signing key. Whenever a host opens a log, the coordinator signs the key's
public half (`log_message`). The coordinator's signature is the log's certificate, and every batch of the log contains the certificate.

Limit: signatures cannot reveal that the newest epoch was deleted. Only the coordinator's log knows which epochs must exist.
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
    """Create the error that reports the missing package."""
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
    """Return 16 bytes that identify the key without revealing anything about it."""
    return blake3(key, derive_key_context=_CHECK_CONTEXT).digest(CHECK_BYTES)


def wrap(wrapping: bytes, key: bytes, *, nonce: bytes, context: bytes) -> bytes:
    """Encrypt `key` with a key-encryption key. Return the nonce followed by the ciphertext, `WRAPPED_BYTES` bytes in total. `nonce` must be
    random."""
    return nonce + _aead(wrapping).encrypt(nonce, key, context)


def unwrap(wrapping: bytes, wrapped: bytes, *, context: bytes) -> bytes:
    """Return the unwrapped key. Raise ValueError if the key or context is wrong, or the bytes were modified."""
    if len(wrapped) != WRAPPED_BYTES:
        raise ValueError(f"{len(wrapped)} bytes are no wrapped key")
    return _decrypt(_aead(wrapping), wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)


class PackCipher:
    """Encrypts or decrypts the blobs of one pack. Several threads may decrypt concurrently.

    Attributes:
        key_id: id of the data key that the pack's index records.
    """

    OVERHEAD_BYTES = OVERHEAD_BYTES

    def __init__(self, key_id: str, data_key: bytes, pack_id: str, *, seals: bool) -> None:
        self.key_id = key_id
        self._aead = _aead(derive_pack_key(data_key, pack_id))
        self._seals = seals
        self._next_index = 0

    def seal(self, index: int, context: bytes, data: Buffer) -> bytes:
        """Return the ciphertext of `data`, which is 16 bytes longer. Each call must pass a larger `index` than the previous call.

        Raises:
            UsageError: If the index is not larger than the previous one, the cipher can only decrypt, or `data` exceeds 2 GiB.
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
        """Return the plaintext. Raise ValueError if the key, the index or the context is wrong, or the bytes were modified."""
        return _decrypt(self._aead, _nonce(index), data, context)


def derive_pack_key(data_key: bytes, pack_id: str) -> bytes:
    """Derive the 32-byte key of one pack by HKDF-SHA256 without salt."""
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
    """Return a one-dimensional byte view, which the package `cryptography` requires."""
    if isinstance(data, memoryview) and (data.format != "B" or data.ndim != 1):
        return data.cast("B")
    return data


_PURPOSE = "snapline epoch 1"
_LOG_PURPOSE = "snapline host log 1"


def epoch_message(store_id: str, epoch: int, root: str) -> bytes:
    """Return the message to sign for a ref. The message is the canonical MessagePack encoding of purpose, store id, epoch and root."""
    return canonical.encode((_PURPOSE, store_id, epoch, root))


def log_message(store_id: str, plan: int, host: str, start: int, public: bytes) -> bytes:
    """Return the message to sign for a host log. By signing the message, the coordinator certifies that the public key `public` verifies
    the batches of this log."""
    return canonical.encode((_LOG_PURPOSE, store_id, plan, host, start, public))


def public_key_of(secret: bytes) -> bytes:
    """Return the 32-byte public key that belongs to a private key."""
    return load_private(secret).public_key().public_bytes_raw()


def sign(private: "Ed25519PrivateKey", message: bytes) -> bytes:
    """Return the 64-byte signature of `message`. Signatures are deterministic."""
    return private.sign(message)


def is_signed(public: "Ed25519PublicKey", message: bytes, signature: bytes) -> bool:
    """Return whether `signature` is valid for `message` under the public key `public`."""
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def load_private(secret: bytes) -> "Ed25519PrivateKey":
    """Decode a 32-byte private key. Raise UsageError if the package `cryptography` is missing."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise missing_package_error() from error
    return Ed25519PrivateKey.from_private_bytes(secret)


def load_public(public: bytes) -> "Ed25519PublicKey":
    """Decode a 32-byte public key. Raise UsageError if the bytes are invalid or the package `cryptography` is missing."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise missing_package_error() from error
    try:
        return Ed25519PublicKey.from_public_bytes(public)
    except ValueError as error:
        raise UsageError("the verify key is no Ed25519 public key: give the file that ends in .pub") from error
