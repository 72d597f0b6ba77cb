"""Decryption of data with a key of its own: batches of host logs, and parts of output files."""

from snapline.errors import StoreError, StoreKeyError
from snapline.storage.disk.record import damaged
from snapline.storage.store.guard import Guard


def open_data(
    data: bytes, guard: Guard | None, *, key: str, nonce: str, index: int, context: bytes, path: str
) -> bytes:
    """Return the plain bytes. `key` is empty if they are not encrypted, and `path` names the file in errors.

    Raises:
        DamagedDataError: the bytes cannot be decrypted.
        StoreError: the bytes are not encrypted and there is a key, or the reverse.
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
