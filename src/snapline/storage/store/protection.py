"""Encryption and signatures of a store. Keys ensure that only the owner can read the store, and that only data written by the owner is
accepted.

The model: attackers may read the store and change it arbitrarily, but do not have a key file. The store limits attackers as follows:

- Attackers learn names, sizes and times, because headers, indexes and manifests are not encrypted. They also learn which blobs are equal,
  but no content. Plaintext digests use a key of the store, so attackers cannot use them to verify a guess.
- Replacing a blob, key or ref is detected. Blobs are authenticated together with their location, size and digest. Refs are signed over
  store, epoch and root. A process that has a key rejects unencrypted blobs and unsigned refs, which prevents downgrade attacks.
- Attackers can delete files, which keys cannot prevent.

Key hierarchy (`key_files.py`, `key_records.py`, `ciphers.py`):

    key-encryption key (a file of the operator)  wraps
      digest key (one per store)                 keys the digests of plaintext
      data key (one per writer and so per host start, created at the writer's first pack)
        pack key = HKDF(data key, pack id)       encrypts the blobs of one pack

A key's record is durable before `begin_pack` returns, so a pack that is visible after a crash always has its key. Keys are read only when
they are needed. Opening or reading a store never creates anything.

When a store is opened, the given key files must match the store. A store with keys is refused if no key file is given. A store with packs
but without keys is refused if a key file is given, because the store is unprotected or its keys were removed.

Encryption and signatures preserve G11 even if somebody tampers with the store.
"""

import hmac
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from blake3 import blake3

from snapline.errors import StoreError, StoreKeyError, UsageError
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import DirectoryEntry, Disk
from snapline.storage.disk.record import Buffer, digest_of
from snapline.storage.keys import ciphers, key_records
from snapline.storage.keys.ciphers import KEY_BYTES, PackCipher, require_package
from snapline.storage.keys.key_files import SIGNING_KEY_VARIABLE, STORE_KEY_VARIABLE, Keys, keys_from_environment
from snapline.storage.keys.key_records import DIGEST_KEY, KeyRecord, is_data_key_id, list_keys, make_record, open_key
from snapline.storage.log.log_files import holds_batches
from snapline.storage.outputs.output_files import holds_outputs
from snapline.storage.store.object_segments import list_object_streams, list_segments

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


DATA_KEYS_MAX = 256
"""Number of data keys kept in memory. A restore reads packs of few writers. Reading a dropped key again takes 1 ms."""

PACK_CIPHERS_MAX = 1024
"""Number of pack ciphers kept for reading, enough for an epoch of a large fleet. Creating a dropped cipher again takes 0.1 ms."""

WRITERS_MAX = 64
"""Number of writers whose key ids are kept. A process has one writer, except in tests. A dropped writer gets another data key."""

BEGUN_PACKS_MAX = 4096
"""Number of remembered pack ids. A second use of a remembered id is refused. A caller that repeats an id does so soon."""

VERIFIED_MAX = 64
"""Number of valid signatures that are remembered. All batches of a host log contain the same certificate, which need not be verified
again."""

_KEY_ID_BYTES = 16

_AUTHENTICATION_CONTEXT = "snapline 1 key of what is vouched for"

_Value = TypeVar("_Value")


class Protection:
    """Encryption and signatures of one store. Threads may share the instance."""

    def __init__(
        self,
        disk: Disk,
        store_id: str,
        keys: Keys,
        *,
        digest_key: bytes | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Private constructor. Use `load_protection` instead, which checks that the keys match the store. `digest_key` is None if the key
        has not been read yet."""
        self._disk = disk
        self._store_id = store_id
        self._keys = keys
        self._random_bytes = random_bytes
        self._lock = threading.RLock()
        self._digest_key = digest_key
        self._data_keys = _LruCache[bytes](DATA_KEYS_MAX)
        self._ciphers = _LruCache[PackCipher](PACK_CIPHERS_MAX)
        self._writers = _LruCache[str](WRITERS_MAX)
        self._begun = _LruCache[None](BEGUN_PACKS_MAX)
        self._verified = _LruCache[bool](VERIFIED_MAX)
        self._log_signer: tuple[Ed25519PrivateKey, bytes] | None = None
        self._signer = None if keys.signing is None else ciphers.load_private(keys.signing.secret)
        self._verifiers = [ciphers.load_public(key.public) for key in keys.verify_keys()]

    # -- encryption ----------------------------------------------------------------------------------------------------

    @property
    def encrypts(self) -> bool:
        """True if new blobs are encrypted and unencrypted blobs are rejected."""
        return bool(self._keys.wrapping)

    def prepare(self) -> None:
        """Create the digest key now if it is needed but does not exist. If this method is not called, the first use of the key creates it.

        Concurrent processes agree on one digest key only if the disk supports conditional creation. On an object store without conditional
        creation, the coordinator must call this method before any host writes.
        """
        if self.encrypts:
            self._load_digest_key()

    def digest(self, data: Buffer) -> bytes:
        """Return the 32-byte BLAKE3 digest of a blob's plaintext, keyed if the store is encrypted.

        Raises:
            StoreError: If the digest key does not exist yet and cannot be written.
        """
        if not self.encrypts:
            return digest_of(data)
        return blake3(data, key=self._digest_key or self._load_digest_key()).digest()

    def begin_pack(self, writer: str, pack_id: str) -> PackCipher:
        """Return the cipher for the blobs of a new pack. The function returns only after the cipher's key is durable.

        Args:
            writer: id of the writer, which gets a data key at its first pack.
            pack_id: random id that was never used before, from which the pack's key is derived.

        Raises:
            UsageError: If there is no key, or `pack_id` has been used before.
            StoreError: If the key cannot be written.
        """
        if not self.encrypts:
            raise UsageError(f"there is no key to encrypt with: give a key file in {STORE_KEY_VARIABLE}")
        with self._lock:
            if pack_id in self._begun:
                raise UsageError(f"the pack {pack_id} was begun before: what is written again needs another id")
            self._load_digest_key()
            key_id = self._writers.get(writer) or self._make_data_key(writer)
            self._begun.put(pack_id, None)
            return PackCipher(key_id, self._data_key(key_id), pack_id, seals=True)

    def open_pack(self, key_id: str, pack_id: str) -> PackCipher:
        """Return the cipher that decrypts the blobs of a pack. `key_id` is the key id in the pack's index.

        Raises:
            StoreError: If none of the given key files unwraps this key. The message names the required file.
            DamagedDataError: If the key is missing or damaged.
        """
        if not is_data_key_id(key_id):
            raise StoreError(
                f"the pack {pack_id} names the key {key_id!r}, and no key is called so: restore another epoch"
            )
        with self._lock:
            name = f"{key_id} {pack_id}"
            cipher = self._ciphers.get(name)
            if cipher is None:
                cipher = PackCipher(key_id, self._data_key(key_id), pack_id, seals=False)
                self._ciphers.put(name, cipher)
            return cipher

    def check_key_file(self, path: str) -> KeyRecord:
        """Read a key record and make every check that the given keys permit. Raise DamagedDataError if the record is invalid."""
        return key_records.check_key_file(self._disk, path, store_id=self._store_id, keys=self._keys)

    # -- signatures ----------------------------------------------------------------------------------------------------

    @property
    def signs(self) -> bool:
        """True if this process signs the refs that it writes."""
        return self._signer is not None

    @property
    def requires_signatures(self) -> bool:
        """True if refs without a valid signature are rejected."""
        return bool(self._verifiers)

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a message such as `ciphers.epoch_message`. Signatures are deterministic."""
        if self._signer is None:
            raise UsageError(f"there is no key to sign with: give a private key in {SIGNING_KEY_VARIABLE}")
        return ciphers.sign(self._signer, message)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether `signature` is valid for `message` under a trusted key. An empty signature is never valid."""
        known = blake3(len(message).to_bytes(8, "big") + message + signature).hexdigest()
        with self._lock:
            if self._verified.get(known):
                return True
        is_signed = any(ciphers.is_signed(public, message, signature) for public in self._verifiers)
        if is_signed:
            with self._lock:
                self._verified.put(known, True)
        return is_signed

    def log_key(self) -> bytes:
        """Return the public key with which others verify the host-log batches of this process. The private key never leaves the process."""
        return self._own_log_key()[1]

    def sign_batch(self, message: bytes) -> bytes:
        """Sign `message` with the private key that belongs to `log_key`, and return the signature."""
        return ciphers.sign(self._own_log_key()[0], message)

    def verify_batch(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Return whether `signature` is valid for `message` under the public key `public`. Return False if the public key is invalid."""
        try:
            return ciphers.is_signed(ciphers.load_public(public), message, signature)
        except UsageError:
            return False

    def authenticate(self, message: bytes) -> bytes:
        """Return an authentication tag for `message`. The tag is a signature if refs are signed, otherwise a keyed digest. The digest's key
        is derived from the digest key.

        Raises:
            UsageError: If signatures are required, but no private key is given.
            StoreError: If the digest key does not exist yet and cannot be written.
        """
        return self.sign(message) if self.requires_signatures else self._tag(message)

    def is_authentic(self, message: bytes, tag: bytes) -> bool:
        """Return whether a holder of the key created this tag for `message`."""
        return self.verify(message, tag) if self.requires_signatures else hmac.compare_digest(self._tag(message), tag)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _own_log_key(self) -> "tuple[Ed25519PrivateKey, bytes]":
        with self._lock:
            if self._log_signer is None:
                secret = self._random_bytes(KEY_BYTES)
                self._log_signer = ciphers.load_private(secret), ciphers.public_key_of(secret)
            return self._log_signer

    def _tag(self, message: bytes) -> bytes:
        key = blake3(self._digest_key or self._load_digest_key(), derive_key_context=_AUTHENTICATION_CONTEXT).digest()
        return blake3(message, key=key).digest()

    def _load_digest_key(self) -> bytes:
        """Return the digest key. If several processes create the key concurrently, only one succeeds, and all return the same key."""
        with self._lock:
            if self._digest_key is None:
                is_ours = DIGEST_KEY not in list_keys(self._disk) and self._write_key(DIGEST_KEY, writer="")
                opened = open_key(self._disk, self._store_id, DIGEST_KEY, self._keys)
                if is_ours and opened.record.generation > 0:
                    # A rotation had already replaced an earlier record with generation 0, so this record is an unused leftover.
                    key_records.remove_generations(self._disk, [key_records.key_path(DIGEST_KEY, 0)])
                self._digest_key = opened.secret
            return self._digest_key

    def _make_data_key(self, writer: str) -> str:
        key_id = self._random_bytes(_KEY_ID_BYTES).hex()
        if not self._write_key(key_id, writer=writer):
            raise StoreError(f"the new key {key_id} exists in the store {self._disk.location}: its random ids repeat")
        self._writers.put(writer, key_id)
        return key_id

    def _write_key(self, key_id: str, *, writer: str) -> bool:
        """Create a key and return True, or return False if another process has already created it."""
        secret = self._random_bytes(KEY_BYTES)
        record = make_record(
            self._store_id,
            key_id,
            secret,
            self._keys.wrapping[0],
            generation=0,
            writer=writer,
            random_bytes=self._random_bytes,
        )
        return key_records.write_record(self._disk, record, random_bytes=self._random_bytes, point="store.keys.create")

    def _data_key(self, key_id: str) -> bytes:
        data_key = self._data_keys.get(key_id)
        if data_key is None:
            data_key = open_key(self._disk, self._store_id, key_id, self._keys).secret
            self._data_keys.put(key_id, data_key)
        return data_key


def load_protection(
    disk: Disk, store_id: str, keys: Keys, *, random_bytes: Callable[[int], bytes] = os.urandom
) -> Protection:
    """Load the protection of a store, after checking that `keys` match the store. Nothing is changed.

    Raises:
        StoreKeyError: If the store is encrypted but `keys` lack its key, or the store is not encrypted but a key file is given.
        DamagedDataError: If the store's digest key is missing or damaged.
        UsageError: If the package `cryptography` is required but missing.
    """
    if keys.wrapping:
        require_package()
    listed = _list_keys(disk, is_key_given=bool(keys.wrapping))
    digest_key = open_key(disk, store_id, DIGEST_KEY, keys, listed=listed).secret if listed else None
    return Protection(disk, store_id, keys, digest_key=digest_key, random_bytes=random_bytes)


def resolve_keys(keys: Keys | None, disk: Disk | None) -> Keys | None:
    """Return `keys` if given. If neither `keys` nor `disk` is given, read the keys from the environment. Otherwise return None."""
    return keys_from_environment() if keys is None and disk is None else keys


def make_guard(
    disk: Disk, store_id: str, keys: Keys | None, *, random_bytes: Callable[[int], bytes] = os.urandom
) -> Protection | None:
    """Return the store's protection, or None if there are no keys. Raise the errors of `load_protection`."""
    if keys is None:
        return None
    guard = load_protection(disk, store_id, keys, random_bytes=random_bytes)
    return guard if guard.encrypts or guard.signs or guard.requires_signatures else None


def _list_keys(disk: Disk, *, is_key_given: bool) -> dict[str, list[int]]:
    """Return the store's keys. Raise StoreKeyError if a key file is given for a store that has contents but no keys."""
    listed = list_keys(disk)
    if listed or not is_key_given or not _holds_packs(disk):
        return listed
    listed = list_keys(disk)
    if listed:  # Another process has just created the first key and then the first pack.
        return listed
    raise StoreKeyError(
        f"the store {disk.location} holds packs, batches, outputs or a shelf, but no keys: it was made without encryption, or its folder "
        f"{layout.KEYS} is lost; unset {STORE_KEY_VARIABLE} to use it as it is, or make a new store"
    )


def _holds_packs(disk: Disk) -> bool:
    """Return whether the store contains a pack, a batch, an output or an object stream segment. Empty directories, which a writer may leave
    behind when it dies, do not count."""
    for folder in (layout.PACKS, layout.CHECKPOINTS):
        for entry in _list(disk, folder):
            if entry.is_directory and any(
                not entry_in_folder.is_directory for entry_in_folder in _list(disk, f"{folder}/{entry.name}")
            ):
                return True
    return (
        holds_batches(disk)
        or holds_outputs(disk)
        or any(list_segments(disk, object_stream) for object_stream in list_object_streams(disk))
    )


def _list(disk: Disk, directory: str) -> list[DirectoryEntry]:
    with store_files.reading(disk, directory):
        try:
            return disk.list_directory(directory)
        except FileNotFoundError:
            return []


class _LruCache(Generic[_Value]):
    """Cache that keeps only the `size_max` most recently used entries."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._entries: OrderedDict[str, _Value] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def get(self, name: str) -> _Value | None:
        """Return an entry and mark it as recently used. Return None if the entry is absent."""
        if name not in self._entries:
            return None
        self._entries.move_to_end(name)
        return self._entries[name]

    def put(self, name: str, value: _Value) -> None:
        """Add an entry. If the cache is full, drop the least recently used entry."""
        self._entries[name] = value
        if len(self._entries) > self._size_max:
            self._entries.popitem(last=False)
