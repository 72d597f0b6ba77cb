"""Signatures over refs and host logs: Ed25519, from the optional package `cryptography`, imported when first needed.

A ref makes an epoch a snapshot, and its root covers everything under it. So one signature over store,
epoch and root authenticates the whole snapshot: without the private key nobody can create or change one, or move one to another store
or another number. Ed25519 draws no random number, so every leader with the same key writes the same ref,
as racing leaders must (`Store.publish`).

Hosts do not have the private key. Each makes its own key, and the coordinator signs the public half for each log that the host
opens (`log_message`): the log's certificate, which every batch contains.

Limit: a signature cannot show that the newest epoch was not deleted. Only the coordinator's log knows which epochs must exist.
"""

from typing import TYPE_CHECKING

from snapline.errors import UsageError
from snapline.storage.disk.record import canonical
from snapline.storage.keys.encryption import missing_package_error

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PURPOSE = "snapline epoch 1"
_LOG_PURPOSE = "snapline host log 1"


def epoch_message(store_id: str, epoch: int, root: str) -> bytes:
    """Return the message to sign for a ref: canonical MessagePack of purpose, store id, epoch and root."""
    return canonical.encode((_PURPOSE, store_id, epoch, root))


def log_message(store_id: str, plan: int, host: str, start: int, public: bytes) -> bytes:
    """Return the message to sign for a host log: its batches are signed with the private half of `public`."""
    return canonical.encode((_LOG_PURPOSE, store_id, plan, host, start, public))


def public_key_of(secret: bytes) -> bytes:
    """Return the 32 bytes of the public half."""
    return load_private(secret).public_key().public_bytes_raw()


def sign(private: "Ed25519PrivateKey", message: bytes) -> bytes:
    """Return the signature of `message`, 64 bytes; the same each time."""
    return private.sign(message)


def is_signed(public: "Ed25519PublicKey", message: bytes, signature: bytes) -> bool:
    """Return whether the private half of `public` signed `message`; False for invalid signatures."""
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def load_private(secret: bytes) -> "Ed25519PrivateKey":
    """Return the private key of 32 bytes; UsageError without the package."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise missing_package_error() from error
    return Ed25519PrivateKey.from_private_bytes(secret)


def load_public(public: bytes) -> "Ed25519PublicKey":
    """Return the public key of 32 bytes; UsageError if the bytes are invalid, or the package is missing."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise missing_package_error() from error
    try:
        return Ed25519PublicKey.from_public_bytes(public)
    except ValueError as error:
        raise UsageError("the verify key is no Ed25519 public key: give the file that ends in .pub") from error
