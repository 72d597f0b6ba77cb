"""Records in the directory `keys/`. Each record contains one of the store's keys, wrapped by a key-encryption key that is not in the store.

    keys/digest.<generation>     the one key of all digests of plaintext
    keys/<key id>.<generation>   a writer's data key, whose id is 32 random hexadecimal digits

A record (kind `KEYS`) is written once and never changed. Key rotation wraps the same key again, writes the result as the next generation,
and removes the old generation (`rotate`). So a key may temporarily have several generations, and readers follow two rules:

1. Readers use the newest generation that they can unwrap. Readers use an older generation only if its check value equals that of the newest
   intact generation. An older generation with another check value is ignored: a process created `digest.0` after a rotation had replaced
   another `digest.0`.
2. Listing a directory is not atomic. During a rotation, a listing may contain neither the new generation nor the old one. So after a
   failure, readers list the directory again and retry until the listing no longer changes.

The authentication tag of a wrapped key covers store, key id, generation, writer, wrapping key and check value. So a record that was renamed
or copied to another store cannot be unwrapped. The digest of the record (`record.py`) detects damage even without a key.

**Rotation** wraps every key of a store with another key-encryption key. Packs are not rewritten. Rotation repeats three steps until no key
needs wrapping:

1. unwrap every key with the old or the new keys. If a key needs another key file, stop before changing anything;
2. wrap each key that is not wrapped by the new key yet, and write it durably as the next generation;
3. only then remove older generations.

So at every moment, even after a crash, each key has a generation that the old or the new key can unwrap. Running an interrupted rotation
again completes it. Writers that still have the old key may create new keys during a rotation, and the next repetition rotates them.
Operators therefore proceed as follows (docs/protection.md): first give every process both key files, the new one first, then rotate, and
finally remove the old file.

If all generations of a key are damaged, the key cannot be rotated. The rotation leaves the records of a damaged key unchanged, rotates all
other keys, and then reports the damage.

Rotation protects only later data: an attacker who copied both the old key file and `keys/` can still read everything written before the
rotation.
"""

import contextlib
import os
import re
from collections.abc import Callable, Collection

import msgspec

from snapline.errors import DamagedDataError, StoreError, StoreKeyError, UsageError
from snapline.storage.disk import store_files
from snapline.storage.disk.layout import KEYS
from snapline.storage.disk.local_disk import Disk, make_durable_directory, write_once
from snapline.storage.disk.record import canonical, check_place, damaged, seal, unseal
from snapline.storage.keys.ciphers import CHECK_BYTES, NONCE_BYTES, WRAPPED_BYTES, key_check_value, unwrap, wrap
from snapline.storage.keys.key_files import STORE_KEY_VARIABLE, Keys, WrappingKey

KEYS_KIND = b"KEYS"

DIGEST_KEY = "digest"
"""Id of the digest key. Data keys cannot have this id."""

GENERATION_MAX = 999_999
"""Largest number of a generation, which is enough for several rotations a day for a thousand years."""

RECORD_BYTES_MAX = 1024
"""Largest record in bytes. A record has about 350 bytes, or 500 with the longest writer id. The size is checked before reading."""

LISTINGS_MAX = 8
"""Limit on repetitions by rule 2. Each repetition means that a rotation changed the listing during the reading."""

_KEY_ID = re.compile(r"[0-9a-f]{32}")
_PATH = re.compile(r"keys/(digest|[0-9a-f]{32})\.(0|[1-9][0-9]{0,5})")
_ID_BYTES = 16
_PURPOSE = "snapline key 1"


class KeyRecord(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a key record.

    Attributes:
        check: check value of the wrapped key, which is the same in all generations.
        generation: generation in the file name.
        key: key id in the file name: `digest`, or the id of a data key.
        store: the store's id.
        wrapped: nonce, encrypted key and authentication tag.
        wrapper: id of the key-encryption key that wraps this key.
        writer: owner of the data key, or "" for `digest`.
    """

    check: bytes
    generation: int
    key: str
    store: str
    wrapped: bytes
    wrapper: str
    writer: str

    @property
    def path(self) -> str:
        """Path of the record."""
        return key_path(self.key, self.generation)

    def context(self) -> bytes:
        """Return the encryption context, which binds the wrapped key to its record."""
        return canonical.encode(
            (_PURPOSE, self.store, self.key, self.generation, self.writer, self.wrapper, self.check)
        )


class OpenedKey(msgspec.Struct, frozen=True, gc=False):
    """An unwrapped key and its record."""

    record: KeyRecord
    secret: bytes

    def __repr__(self) -> str:
        return f"OpenedKey({self.record.path})"


_decoder = msgspec.msgpack.Decoder(KeyRecord)


def key_path(key_id: str, generation: int) -> str:
    return f"{KEYS}/{key_id}.{generation}"


def parse_key_path(path: str) -> tuple[str, int] | None:
    """Parse the path of a key record into key id and generation. Return None if the path is invalid."""
    match = _PATH.fullmatch(path)
    return None if match is None else (match[1], int(match[2]))


def is_data_key_id(key_id: str) -> bool:
    return _KEY_ID.fullmatch(key_id) is not None


# -- reading -----------------------------------------------------------------------------------------------------------


def list_keys(disk: Disk) -> dict[str, list[int]]:
    """List the stored keys as a map from key id to generations. Ids are sorted, and the newest generation comes first. The map is empty if
    the store has never encrypted anything."""
    with store_files.reading(disk, KEYS):
        try:
            entries = disk.list_directory(KEYS)
        except FileNotFoundError:
            return {}
    generations: dict[str, list[int]] = {}
    for name in (parse_key_path(f"{KEYS}/{entry.name}") for entry in entries if not entry.is_directory):
        if name is not None:
            generations.setdefault(name[0], []).append(name[1])
    return {key_id: sorted(generations[key_id], reverse=True) for key_id in sorted(generations)}


def read_record(disk: Disk, path: str, store_id: str | None) -> KeyRecord:
    """Read a key record and make every check that needs no key. If `store_id` is None, the store's id is not checked.

    Raises:
        DamagedDataError: If the record is missing or damaged, or was written under another name or in another store.
        StoreError: If the record was written by a later version of Snapline.
    """
    data = store_files.read_file(disk, path, epoch=None, size_bytes_max=RECORD_BYTES_MAX)
    body = unseal(KEYS_KIND, data, path=path, epoch=None)
    with store_files.decoding(path):
        record = _decoder.decode(body)
    check_place(record, path, store_id)
    if len(record.wrapped) != WRAPPED_BYTES or len(record.check) != CHECK_BYTES:
        raise damaged(path, "its key has the wrong length")
    return record


def open_record(record: KeyRecord, keys: Keys) -> bytes | None:
    """Unwrap the key in a record. Return None if the necessary key-encryption key is not among `keys`. Raise DamagedDataError if the key
    cannot be unwrapped."""
    wrapping = keys.find(record.wrapper)
    if wrapping is None:
        return None
    try:
        secret = unwrap(wrapping.secret, record.wrapped, context=record.context())
    except ValueError as error:
        reason = f"it does not open with the key {record.wrapper} it names: it was moved, or changed"
        raise damaged(record.path, reason) from error
    if key_check_value(secret) != record.check:
        raise damaged(record.path, "the key inside is not the one it names")
    return secret


def check_key_file(disk: Disk, path: str, *, store_id: str | None, keys: Keys) -> KeyRecord:
    """Read a key record and make every check that `keys` permit. Raise the errors of `read_record` and `open_record`."""
    record = read_record(disk, path, store_id)
    open_record(record, keys)
    return record


def open_key(
    disk: Disk, store_id: str, key_id: str, keys: Keys, *, listed: dict[str, list[int]] | None = None
) -> OpenedKey:
    """Unwrap the key `key_id`, using the newest generation that can be unwrapped.

    `listed` may contain a recent result of `list_keys`, which avoids listing the directory for each key.

    Raises:
        StoreKeyError: If the necessary key-encryption key is not among `keys`. The message names the necessary key.
        DamagedDataError: If the key has no generation, or all its generations are damaged.
    """
    generations = (list_keys(disk) if listed is None else listed).get(key_id, [])
    for _ in range(LISTINGS_MAX):
        try:
            return _open_newest(disk, store_id, key_id, generations, keys)
        except StoreError:
            relisted = list_keys(disk).get(key_id, [])
            if relisted == generations:
                raise
            generations = relisted
    raise StoreError(
        f"the key {key_id} in the store {disk.location} changes all the time: let rotations end, try again"
    )


def _open_newest(disk: Disk, store_id: str, key_id: str, generations: list[int], keys: Keys) -> OpenedKey:
    newest: KeyRecord | None = None
    errors: list[DamagedDataError] = []
    for generation in generations:
        try:
            record = read_record(disk, key_path(key_id, generation), store_id)
            newest = newest or record
            if record.check != newest.check:
                raise damaged(record.path, f"it holds another key than {newest.path}")
            secret = open_record(record, keys)
        except DamagedDataError as error:
            errors.append(error)
            continue
        if secret is not None:
            return OpenedKey(record, secret)
    if errors and (newest is None or keys.find(newest.wrapper)):
        raise errors[0]
    if newest is None:
        raise damaged(key_path(key_id, 0), "it is missing: what was encrypted with it cannot be read")
    raise _missing(disk, newest, keys)


def _missing(disk: Disk, record: KeyRecord, keys: Keys) -> StoreKeyError:
    given_keys = (
        f"{STORE_KEY_VARIABLE} names {', '.join([key.key_id for key in keys.wrapping])}" if keys.wrapping else ""
    )
    return StoreKeyError(
        f"the store {disk.location} is encrypted with key {record.wrapper}, and {given_keys or 'no key is given'}; "
        f"give its key file in {STORE_KEY_VARIABLE} ({record.path})"
    )


# -- writing -----------------------------------------------------------------------------------------------------------


def make_record(
    store_id: str,
    key_id: str,
    secret: bytes,
    wrapping: WrappingKey,
    *,
    generation: int,
    writer: str,
    random_bytes: Callable[[int], bytes],
) -> KeyRecord:
    empty = KeyRecord(key_check_value(secret), generation, key_id, store_id, b"", wrapping.key_id, writer)
    nonce = random_bytes(NONCE_BYTES)
    wrapped = wrap(wrapping.secret, secret, nonce=nonce, context=empty.context())
    return msgspec.structs.replace(empty, wrapped=wrapped)


def write_record(disk: Disk, record: KeyRecord, *, random_bytes: Callable[[int], bytes], point: str) -> bool:
    """Write a record durably, and return True. Return False if a record with this name already exists.
    An existing record may not be durable yet.

    After a successful write, every name listed earlier in `keys/` is durable too, even if its writer died before syncing the directory.
    """
    data = seal(KEYS_KIND, canonical.encode(record))
    with store_files.writing(disk, f"the key {record.path}"):
        make_durable_directory(disk, KEYS)
        name = f"0-{random_bytes(_ID_BYTES).hex()}"
        try:
            write_once(disk, record.path, (data,), temporary_name=name, point=point)
        except FileExistsError:
            return False
    return True


def remove_generations(disk: Disk, paths: Collection[str]) -> list[str]:
    """Remove the given key records, and return the paths of the records that existed. The replacement records must already be durable."""
    with store_files.writing(disk, "the removal of old keys"):
        removed = store_files.unlink(disk, paths)
        if removed:
            disk.sync_directory(KEYS)
    return removed


def remove_unneeded(disk: Disk, store_id: str, *, needed: Collection[str], open_writers: Collection[str]) -> list[str]:
    """Remove data keys that are no longer needed, and return the removed paths.

    `needed` lists the key ids that packs name. The caller must determine `open_writers` before `needed`. An open writer's key is kept,
    because its next pack may need a key that no pack names yet. The digest key and unreadable records are also kept.
    """
    paths = []
    for key_id, generations in list_keys(disk).items():
        if key_id == DIGEST_KEY or key_id in needed:
            continue
        with contextlib.suppress(DamagedDataError):
            records = [read_record(disk, key_path(key_id, generation), store_id) for generation in generations]
            if all(record.writer not in open_writers for record in records):
                paths += [record.path for record in records]
    return remove_generations(disk, paths)


ROUNDS_MAX = 8
"""Limit on rounds. One round does the work and another verifies it. More rounds are needed only if other processes write keys meanwhile."""


def rotate(
    disk: Disk, store_id: str, old: Keys, new: Keys, *, random_bytes: Callable[[int], bytes] = os.urandom
) -> int:
    """Wrap every key of the store with the first key in `new`, and return the number of records written. Calling `rotate` again is safe.

    Raises:
        UsageError: If `new` has no key.
        StoreError: If a key needs another key file, or the disk failed. Keys rotated before the error remain rotated.
        DamagedDataError: If all records of a key are damaged. In that case, all other keys have been rotated.
    """
    if not new.wrapping:
        raise UsageError("there is no new key to rotate to: `snapline keys generate FILE` makes one")
    all_keys = Keys((*new.wrapping, *old.wrapping))
    written = 0
    for _ in range(ROUNDS_MAX):
        rotation = _Round(disk, store_id, all_keys, random_bytes)
        rotation.open_all()
        rotation.rewrap()
        removed = rotation.remove_old()
        written += rotation.written
        if not rotation.written and not removed:
            if rotation.damage:
                raise rotation.damage[0]
            return written
    raise StoreError(
        f"new keys appear in the store {disk.location} all the time: give the new key file to every process that "
        "writes there, in front of the old one, then rotate again"
    )


class _Round:
    """One pass over `keys/`. The first key in `keys.wrapping` wraps all keys of the store."""

    def __init__(self, disk: Disk, store_id: str, keys: Keys, random_bytes: Callable[[int], bytes]) -> None:
        self._disk = disk
        self._store_id = store_id
        self._keys = keys
        self._random_bytes = random_bytes
        self._listed = list_keys(disk)
        self._opened: dict[str, OpenedKey] = {}
        self._newest: dict[str, int] = {}
        """Map from key id to the generation that replaces older generations."""
        self.damage: list[DamagedDataError] = []
        self.written = 0

    def open_all(self) -> None:
        for key_id in self._listed:
            try:
                self._opened[key_id] = open_key(self._disk, self._store_id, key_id, self._keys, listed=self._listed)
            except DamagedDataError as error:
                self.damage.append(error)

    def rewrap(self) -> None:
        wrapping = self._keys.wrapping[0]
        for key_id, opened in self._opened.items():
            top = max(self._listed[key_id][0], opened.record.generation)
            if opened.record.wrapper == wrapping.key_id and opened.record.generation == top:
                self._newest[key_id] = top
                continue
            if top >= GENERATION_MAX:
                raise StoreError(f"the key {key_id} was rotated {GENERATION_MAX} times: make a new store")
            record = make_record(
                self._store_id,
                key_id,
                opened.secret,
                wrapping,
                generation=top + 1,
                writer=opened.record.writer,
                random_bytes=self._random_bytes,
            )
            if write_record(self._disk, record, random_bytes=self._random_bytes, point="store.keys.rotate"):
                self._newest[key_id] = top + 1
                self.written += 1

    def remove_old(self) -> list[str]:
        """Remove replaced generations. The directory is synced before the removal, because generations from an interrupted rotation may not
        be durable yet."""
        old = [
            key_path(key_id, generation)
            for key_id, newest in self._newest.items()
            for generation in self._listed[key_id]
            if generation < newest
        ]
        if not old:
            return []
        with store_files.writing(self._disk, "rotated keys"):
            self._disk.sync_directory(KEYS)
        return remove_generations(self._disk, old)
