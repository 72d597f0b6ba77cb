"""Key rotation: every key of a store is wrapped by another key-encryption key. Packs are not rewritten.

Rotation works in rounds, until a round finds nothing to do:

1. open every key with the old or the new keys. If a key needs another key file, stop: nothing has been changed;
2. write each key that the new key does not wrap yet as the next generation, durably;
3. only then remove older generations.

So at each moment, and after a crash at any, every key has a generation that the old or the new key unwraps.
Running the rotation again completes an interrupted one. A writer that still has the old key may make new keys meanwhile:
the next round finds them. Hence the order for operators (docs/protection.md): first give every process both files,
the new one first; then rotate; then remove the old file.

A record that is damaged in all its generations cannot be rewrapped. It is left as it is, the others are rotated, and
then it is reported.

An attacker who copied both the old key file and `keys/` can still read what was written before the rotation: rotation only
protects later data."""

import os
from collections.abc import Callable

from snapline.errors import DamagedDataError, StoreError, UsageError
from snapline.storage.disk.layout import KEYS
from snapline.storage.disk.local_disk import Disk
from snapline.storage.keys.key_files import Keys
from snapline.storage.keys.key_records import (
    GENERATION_MAX,
    OpenedKey,
    key_path,
    list_keys,
    make_record,
    open_key,
    remove_generations,
    write_record,
)
from snapline.storage.store import files

ROUNDS_MAX = 8
"""Limit on rounds: one does the work, one verifies it; more are needed only while others write keys under the old key."""


def rotate(
    disk: Disk, store_id: str, old: Keys, new: Keys, *, random_bytes: Callable[[int], bytes] = os.urandom
) -> int:
    """Wrap every key of the store with the first key of `new`; return the number of records written. May be repeated.

    Raises:
        UsageError: `new` has no key.
        StoreError: a key needs another key file, or the disk failed. Keys that were already rotated stay so.
        DamagedDataError: a key is lost; all others were rotated.
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
    """One pass over `keys/`. `keys.wrapping[0]` wraps the keys."""

    def __init__(self, disk: Disk, store_id: str, keys: Keys, random_bytes: Callable[[int], bytes]) -> None:
        self._disk = disk
        self._store_id = store_id
        self._keys = keys
        self._random_bytes = random_bytes
        self._listed = list_keys(disk)
        self._opened: dict[str, OpenedKey] = {}
        self._newest: dict[str, int] = {}
        """Key id → the generation that replaces older ones."""
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
        """Remove replaced generations. Sync first: those of an interrupted rotation may not be durable yet."""
        old = [
            key_path(key_id, generation)
            for key_id, newest in self._newest.items()
            for generation in self._listed[key_id]
            if generation < newest
        ]
        if not old:
            return []
        with files.writing(self._disk, "rotated keys"):
            self._disk.sync_directory(KEYS)
        return remove_generations(self._disk, old)
