"""Interface through which the store uses encryption and signatures; `protection.py` implements it. A store without keys has no guard.

Digests of plain bytes are keyed where blobs are encrypted, so that they reveal no content. Digests of stored bytes are not keyed.

`open_data` decrypts data with its own key: batches of host logs, and parts of output files.
"""

from typing import Protocol

from snapline.errors import StoreError, StoreKeyError
from snapline.storage.disk.record import Buffer, damaged


class Cipher(Protocol):
    """Cipher with the key of one pack."""

    @property
    def key_id(self) -> str:
        """Id of the store's key from which the pack's key is derived."""

    def seal(self, index: int, context: bytes, data: Buffer) -> bytes:
        """Return `data` encrypted, `CIPHER_OVERHEAD_BYTES` longer. `index` is the blob's index in its pack."""

    def open(self, index: int, context: bytes, data: Buffer) -> bytes:
        """Return the plain bytes. Raises ValueError if they were not encrypted under this key, index and context."""


class Guard(Protocol):
    """Keys of one store, and the operations that need them."""

    @property
    def encrypts(self) -> bool:
        """Whether blobs are encrypted, and plain blobs rejected."""

    @property
    def signs(self) -> bool:
        """Whether refs are signed."""

    @property
    def verifies(self) -> bool:
        """Whether refs without a valid signature are rejected."""

    def digest(self, data: Buffer) -> bytes:
        """Return the keyed digest of a blob's plain bytes."""

    def begin_pack(self, writer: str, pack_id: str) -> Cipher:
        """Return the cipher for a new pack."""

    def open_pack(self, key_id: str, pack_id: str) -> Cipher:
        """Return the cipher for a pack that was written under `key_id`."""

    def check_key_file(self, path: str) -> object:
        """Check the record of a key as far as the available keys allow. A DamagedDataError names the problem."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`."""

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether `signature` is a valid signature of `message`."""

    def log_key(self) -> bytes:
        """Return the public half of the key with which this process signs batches of host logs."""

    def sign_batch(self, message: bytes) -> bytes:
        """Return the signature of `message` with the key of `log_key`."""

    def verify_batch(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Return whether the private half of `public` has signed `message`."""

    def authenticate(self, message: bytes) -> bytes:
        """Return a tag that only the holder of a key can make: a signature where refs are signed, otherwise a keyed digest."""

    def is_authentic(self, message: bytes, tag: bytes) -> bool:
        """Return whether `tag` is a valid tag of `message`."""


def authenticates(guard: Guard | None) -> bool:
    """Return whether only holders of a key can write data that is accepted."""
    return guard is not None and (guard.verifies or guard.encrypts)


CIPHER_OVERHEAD_BYTES = 16
"""Size of the authentication tag of AES-256-GCM."""


def open_data(
    data: bytes, guard: Guard | None, *, key: str, nonce: str, index: int, context: bytes, path: str
) -> bytes:
    """Return the plain bytes of `data`. `key` is empty if they are not encrypted; `path` names the file in errors.

    Raises:
        DamagedDataError: the bytes cannot be decrypted.
        StoreError: the bytes are not encrypted although there is a key, or are encrypted although there is none.
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
