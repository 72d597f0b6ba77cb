"""Interface of the format to encryption and signatures; `protection.py` implements it. Without keys there is no guard at all.

Digests of plain bytes are keyed where blobs are encrypted, so that they reveal no content. Digests of stored bytes are not.
"""

from typing import Protocol

from snapline.storage.store.record import Buffer


class Cipher(Protocol):
    """The key of one pack."""

    @property
    def key_id(self) -> str:
        """Names the key that the pack's key is derived from."""

    def seal(self, index: int, context: bytes, data: Buffer) -> bytes:
        """Return `data` encrypted, `CIPHER_OVERHEAD_BYTES` longer; `index` is that of the blob in its pack."""

    def open(self, index: int, context: bytes, data: Buffer) -> bytes:
        """Return what was sealed. ValueError: it was not sealed under this key, index and context."""


class Guard(Protocol):
    """The keys of one store."""

    @property
    def encrypts(self) -> bool:
        """Blobs are encrypted, and plain ones refused."""

    @property
    def signs(self) -> bool:
        """Refs are signed."""

    @property
    def verifies(self) -> bool:
        """Refs without a valid signature are refused."""

    def digest(self, data: Buffer) -> bytes:
        """Return the keyed digest of a blob's plain bytes."""

    def begin_pack(self, writer: str, pack_id: str) -> Cipher:
        """Return the key for a new pack."""

    def open_pack(self, key_id: str, pack_id: str) -> Cipher:
        """Return the key of a pack that was written under `key_id`."""

    def check_key_file(self, path: str) -> object:
        """Check the record of a key as far as our keys allow; DamagedDataError names what is wrong."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`."""

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether this is its signature."""

    def log_key(self) -> bytes:
        """Return the public half of the key with which this process signs batches of host logs."""

    def sign_batch(self, message: bytes) -> bytes:
        """Return the signature of `message` by that key."""

    def verify_batch(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Did the private half of `public` sign `message`?"""

    def vouch(self, message: bytes) -> bytes:
        """Return a tag that only who has a key can make: a signature where refs are signed, else a keyed digest."""

    def is_vouched(self, message: bytes, tag: bytes) -> bool:
        """Return whether this is its tag."""


def authenticates(guard: Guard | None) -> bool:
    """Return whether what is read must have been written by somebody with a key."""
    return guard is not None and (guard.verifies or guard.encrypts)


CIPHER_OVERHEAD_BYTES = 16
"""The authentication tag of AES-256-GCM."""
