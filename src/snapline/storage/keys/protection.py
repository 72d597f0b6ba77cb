"""Encryption and signatures of one store: only its owner can read it, and he accepts only what he wrote.

Model: others may read the store, and may change it as they like; they have no key file. Then

- they learn names, sizes and times (headers, indices, manifests are plain), and which blobs are equal; no content.
  Digests of plain bytes are keyed with a key of the store, so a guess cannot be compared with them;
- whatever they put in place of a blob, key or ref is refused: blobs are authenticated together with their place, size
  and digest, refs are signed over store, epoch and root, and plain blobs and unsigned refs are refused outright by a process that has a key for
  them (a downgrade would otherwise be the simplest attack);
- they can delete, and no key helps against that.

Keys, from the outside in (`key_files.py`, `key_records.py`, `encryption.py`):

    key-encryption key (a file of the operator)  wraps
      digest key (one a store)                   keys the digests of plain bytes
      data key (one a writer, that is, one run of a host; made at its first pack)
        pack key = HKDF(data key, pack id)       seals the blobs of one pack

A key's record is durable before `begin_pack` returns, so no pack becomes visible whose key a crash can take. Which keys
there are is read when they are needed; nothing is created by opening a store, or by reading.

The kinds of stores are kept apart when one is opened. With keys in it, and no key file: refused. With a key file, and
packs but no keys in it: refused, since it is either a plain store, or its keys were taken away.

Carries: G11, also against changes on purpose.
"""

import hmac
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from blake3 import blake3

from snapline.errors import StoreError, StoreKeyError, UsageError
from snapline.storage.keys import key_records, signing
from snapline.storage.keys.encryption import KEY_BYTES, PackCipher, require_package
from snapline.storage.keys.key_files import SIGNING_KEY_VARIABLE, STORE_KEY_VARIABLE, Keys, keys_from_environment
from snapline.storage.keys.key_records import DIGEST_KEY, KeyRecord, is_data_key_id, list_keys, make_record, open_key
from snapline.storage.log.reader import holds_batches
from snapline.storage.object_streams.segments import list_segments, list_shelves
from snapline.storage.outputs.reader import holds_outputs
from snapline.storage.store import files, layout
from snapline.storage.store.disk import DirectoryEntry, Disk
from snapline.storage.store.record import Buffer, digest_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DATA_KEYS_MAX = 256
"""Data keys kept in memory: a restore reads packs of few writers. One that was dropped is read again, 1 ms."""

PACK_CIPHERS_MAX = 1024
"""Ciphers of packs kept for reading: an epoch of a large fleet. One that was dropped costs 0.1 ms."""

WRITERS_MAX = 64
"""Writers that one process writes for: one, but for tests. One that was dropped gets another data key."""

BEGUN_PACKS_MAX = 4096
"""Ids of packs begun that are remembered, to refuse a second use: a caller that repeats one does it soon."""

VERIFIED_MAX = 64
"""Signatures that are remembered as right: all batches of a host log bear the same certificate."""

_KEY_ID_BYTES = 16

_VOUCH_CONTEXT = "snapline 1 key of what is vouched for"

_Value = TypeVar("_Value")


class Protection:
    """Encryption and signatures of one store. Threads may share it."""

    def __init__(
        self,
        disk: Disk,
        store_id: str,
        keys: Keys,
        *,
        digest_key: bytes | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Use `load_protection`, which checks that keys and store belong together. `digest_key` None: not read yet."""
        self._disk = disk
        self._store_id = store_id
        self._keys = keys
        self._random_bytes = random_bytes
        self._lock = threading.RLock()
        self._digest_key = digest_key
        self._data_keys = _Recent[bytes](DATA_KEYS_MAX)
        self._ciphers = _Recent[PackCipher](PACK_CIPHERS_MAX)
        self._writers = _Recent[str](WRITERS_MAX)
        self._begun = _Recent[None](BEGUN_PACKS_MAX)
        self._verified = _Recent[bool](VERIFIED_MAX)
        self._log_signer: tuple[Ed25519PrivateKey, bytes] | None = None
        self._signer = None if keys.signing is None else signing.load_private(keys.signing.secret)
        self._verifiers = [signing.load_public(key.public) for key in keys.verify_keys()]

    # -- encryption ----------------------------------------------------------------------------------------------------

    @property
    def encrypts(self) -> bool:
        """New blobs are encrypted, plain ones are refused."""
        return bool(self._keys.wrapping)

    def prepare(self) -> None:
        """Make the key of digests now, if the store has none and is to be encrypted; otherwise it is made when needed.

        Racing processes agree on one only where the disk can create without replacing. On an object store that cannot,
        the coordinator calls this before it lets any host write.
        """
        if self.encrypts:
            self._load_digest_key()

    def digest(self, data: Buffer) -> bytes:
        """Return the digest of a blob's plain bytes, 32 bytes: BLAKE3, keyed if this store is encrypted.

        Raises:
            StoreError: the store's first digest, and its key could not be written.
        """
        if not self.encrypts:
            return digest_of(data)
        return blake3(data, key=self._digest_key or self._load_digest_key()).digest()

    def begin_pack(self, writer: str, pack_id: str) -> PackCipher:
        """Return the cipher for the blobs of a new pack. The key it needs is durable when this returns.

        Args:
            writer: gets a data key of its own at its first pack.
            pack_id: random, and never used before: the key is derived from it, and a second pack would share it.

        Raises:
            UsageError: there is no key, or the pack was begun before.
            StoreError: the key could not be written.
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
        """Return what opens the blobs of a pack whose header names `key_id`.

        Raises:
            StoreError: no key file was given that opens that key; names the one that does.
            DamagedDataError: the key is missing or damaged.
        """
        if not is_data_key_id(key_id):
            raise StoreError(
                f"the pack {pack_id} names the key {key_id!r}, and no key is called so: restore another epoch"
            )
        with self._lock:
            name = f"{key_id} {pack_id}"
            found = self._ciphers.get(name)
            if found is None:
                found = PackCipher(key_id, self._data_key(key_id), pack_id, seals=False)
                self._ciphers.put(name, found)
            return found

    def check_key_file(self, path: str) -> KeyRecord:
        """Return the record of a key after every check that our keys allow; DamagedDataError names what is wrong."""
        return key_records.check_key_file(self._disk, path, store_id=self._store_id, keys=self._keys)

    # -- signatures ----------------------------------------------------------------------------------------------------

    @property
    def signs(self) -> bool:
        """Refs written by this process are signed."""
        return self._signer is not None

    @property
    def verifies(self) -> bool:
        """Refs without a right signature are refused."""
        return bool(self._verifiers)

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message` (`signing.epoch_message`), 64 bytes, the same each time."""
        if self._signer is None:
            raise UsageError(f"there is no key to sign with: give a private key in {SIGNING_KEY_VARIABLE}")
        return signing.sign(self._signer, message)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Did one of the keys we trust sign `message`? False for anything else, such as no bytes at all."""
        known = blake3(len(message).to_bytes(8, "big") + message + signature).hexdigest()
        with self._lock:
            if self._verified.get(known):
                return True
        is_signed = any(signing.is_signed(public, message, signature) for public in self._verifiers)
        if is_signed:
            with self._lock:
                self._verified.put(known, True)
        return is_signed

    def log_key(self) -> bytes:
        """Return the public half of the key with which this process signs batches of host logs. No other process knows the private half."""
        return self._own_log_key()[1]

    def sign_batch(self, message: bytes) -> bytes:
        """Return the signature of `message` by that key."""
        return signing.sign(self._own_log_key()[0], message)

    def verify_batch(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Did the private half of `public` sign `message`? False, too, for bytes that are no key."""
        try:
            return signing.is_signed(signing.load_public(public), message, signature)
        except UsageError:
            return False

    def vouch(self, message: bytes) -> bytes:
        """Return a signature of `message` where refs are signed, else its digest under a key that follows from the key of digests.

        Raises:
            UsageError: refs are signed, and there is only the public key.
            StoreError: the key of digests could not be written.
        """
        return self.sign(message) if self.verifies else self._tag(message)

    def is_vouched(self, message: bytes, tag: bytes) -> bool:
        """Did somebody with a key make this tag?"""
        return self.verify(message, tag) if self.verifies else hmac.compare_digest(self._tag(message), tag)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _own_log_key(self) -> "tuple[Ed25519PrivateKey, bytes]":
        with self._lock:
            if self._log_signer is None:
                secret = self._random_bytes(KEY_BYTES)
                self._log_signer = signing.load_private(secret), signing.public_key_of(secret)
            return self._log_signer

    def _tag(self, message: bytes) -> bytes:
        key = blake3(self._digest_key or self._load_digest_key(), derive_key_context=_VOUCH_CONTEXT).digest()
        return blake3(message, key=key).digest()

    def _load_digest_key(self) -> bytes:
        """Return the digest key. Of racing processes one makes the key; all get that one."""
        with self._lock:
            if self._digest_key is None:
                is_ours = DIGEST_KEY not in list_keys(self._disk) and self._write_key(DIGEST_KEY, writer="")
                opened = open_key(self._disk, self._store_id, DIGEST_KEY, self._keys)
                if is_ours and opened.record.generation > 0:
                    # A rotation had replaced another first generation, when we made this one: ours is a stray.
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
        """Make a new key; False if another process made it first."""
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
        found = self._data_keys.get(key_id)
        if found is None:
            found = open_key(self._disk, self._store_id, key_id, self._keys).secret
            self._data_keys.put(key_id, found)
        return found


def load_protection(
    disk: Disk, store_id: str, keys: Keys, *, random_bytes: Callable[[int], bytes] = os.urandom
) -> Protection:
    """Return what guards the store, after checking that it and `keys` belong together. Changes nothing.

    Raises:
        StoreKeyError: the store is encrypted, and its key file is not among `keys`; or it is not, and there is a key.
        DamagedDataError: its key of digests is missing or damaged.
        UsageError: the package `cryptography` is needed and missing.
    """
    if keys.wrapping:
        require_package()
    listed = _list_keys(disk, is_key_given=bool(keys.wrapping))
    digest_key = open_key(disk, store_id, DIGEST_KEY, keys, listed=listed).secret if listed else None
    return Protection(disk, store_id, keys, digest_key=digest_key, random_bytes=random_bytes)


def chosen_keys(keys: Keys | None, disk: Disk | None) -> Keys | None:
    """Return `keys`, or those of the environment. Whoever brings a disk brings the keys as well."""
    return keys_from_environment() if keys is None and disk is None else keys


def guard_of(
    disk: Disk, store_id: str, keys: Keys | None, *, random_bytes: Callable[[int], bytes] = os.urandom
) -> Protection | None:
    """Return what guards the store; None if there is nothing to guard it with. Errors as `load_protection`."""
    if keys is None:
        return None
    guard = load_protection(disk, store_id, keys, random_bytes=random_bytes)
    return guard if guard.encrypts or guard.signs or guard.verifies else None


def _list_keys(disk: Disk, *, is_key_given: bool) -> dict[str, list[int]]:
    """Return the store's keys; StoreKeyError if it cannot have any, and there is a key file."""
    listed = list_keys(disk)
    if listed or not is_key_given or not _holds_packs(disk):
        return listed
    listed = list_keys(disk)
    if listed:  # Someone made the first key just now, and then the first pack.
        return listed
    raise StoreKeyError(
        f"the store {disk.location} holds packs, batches, outputs or a shelf, but no keys: it was made without encryption, or its folder "
        f"{layout.KEYS} is lost; unset {STORE_KEY_VARIABLE} to use it as it is, or make a new store"
    )


def _holds_packs(disk: Disk) -> bool:
    """Return whether there is a file in a writer's folder, a batch, an output, or a segment. A folder without any may be left by a writer that died
    early."""
    for folder in (layout.PACKS, layout.CHECKPOINTS):
        for entry in _list(disk, folder):
            if entry.is_directory and any(not found.is_directory for found in _list(disk, f"{folder}/{entry.name}")):
                return True
    return (
        holds_batches(disk)
        or holds_outputs(disk)
        or any(list_segments(disk, object_stream) for object_stream in list_shelves(disk))
    )


def _list(disk: Disk, directory: str) -> list[DirectoryEntry]:
    with files.reading(disk, directory):
        try:
            return disk.list_directory(directory)
        except FileNotFoundError:
            return []


class _Recent(Generic[_Value]):
    """A dict of the `size_max` entries used last."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._entries: OrderedDict[str, _Value] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def get(self, name: str) -> _Value | None:
        """Return the entry, which counts as used now."""
        if name not in self._entries:
            return None
        self._entries.move_to_end(name)
        return self._entries[name]

    def put(self, name: str, value: _Value) -> None:
        """Add an entry; the one that was not used for longest goes."""
        self._entries[name] = value
        if len(self._entries) > self._size_max:
            self._entries.popitem(last=False)
