"""Stores lists of records, and records with names, in an object stream. The adapters for session stores build on this module.

    path (kind, owner)      name: a number, ascending       one record of a list
    path (kind, owner)      name: any name                  a record of fields: small fields inline, each other field a referenced object

If a field has not changed since the previous record, or another record contains the same field, only a reference to the field is stored.
Each adapter encodes the fields itself, and this module treats the bytes as opaque.

Every change is atomic, and it is durable when the method returns. Several threads may share one object, but only one process at a time can
have a stream open. Coroutines use `in_thread` to run the blocking disk operations.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import ClassVar, ParamSpec, Self, TypeVar

import msgspec

from snapline.storage.keys.key_files import Keys
from snapline.storage.store.object_stream import ObjectStream, Path
from snapline.storage.store.store import Store

INLINE_BYTES_MAX = 96
"""Largest size in bytes of a field that is stored inline. It is about the overhead of a separate object."""

_NUMBER_DIGITS = 16
"""Number of digits in the name of a list record. It is fixed, so that sorting by name yields the order of the records."""

_LOCKS = 64
"""Number of locks. Operations on one path are serialized. Operations on different paths run concurrently and share commits, unless the
paths' hashes collide."""


class FieldsRecord(msgspec.Struct, frozen=True, array_like=True):
    """A stored record of fields. The record contains the bytes of each small field. For every other field, the record contains the field's
    index in its list of references."""

    inline: dict[str, bytes]
    referred: dict[str, int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FieldsRecord)


class StoredRecords:
    """All records in one object stream."""

    def __init__(self, objects: ObjectStream) -> None:
        self._objects = objects
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def close(self) -> None:
        """Close the store. Closing the store again has no effect."""
        self._objects.close()

    # -- lists -------------------------------------------------------------------------------------------------------

    def append(self, path: Path, records: Sequence[bytes]) -> None:
        """Append records to the list at the given path, in one atomic operation."""
        with self._lock_of(path):
            number = 1 + max(map(int, self._objects.entries(path)), default=-1)
            change = self._objects.change()
            for place, record in enumerate(records, number):
                change.name(path, f"{place:0{_NUMBER_DIGITS}}", change.add(record))
            if change.entries:
                self._objects.commit(change)

    def last(self, path: Path, count: int | None = None) -> list[bytes]:
        """Return the last `count` records of the list, oldest first. If `count` is None, return all records."""
        with self._lock_of(path):
            digests = [digest for _, digest in sorted(self._objects.entries(path).items())]
            selected = digests if count is None else digests[max(0, len(digests) - count) :]
            objects = self._objects.read(selected)
        return [objects[digest] for digest in selected]

    def pop(self, path: Path) -> bytes | None:
        """Remove and return the last record of the list, or return None if the list is empty."""
        with self._lock_of(path):
            name, digest = max(self._objects.entries(path).items(), default=("", b""))
            if not name:
                return None
            record = self._objects.read([digest])[digest]
            self._forget(path, [name])
            return record

    def clear(self, path: Path) -> None:
        """Delete all records at the given path."""
        with self._lock_of(path):
            self._forget(path, list(self._objects.entries(path)))

    # -- records by name ---------------------------------------------------------------------------------------------

    def put(self, path: Path, records: Mapping[str, Mapping[str, bytes]]) -> None:
        """Save records, given as name → fields, in one atomic operation. Each record replaces an existing record with the same name."""
        change = self._objects.change()
        for name, fields in records.items():
            inline = {field: data for field, data in fields.items() if len(data) <= INLINE_BYTES_MAX}
            objects = {field: change.add(data) for field, data in fields.items() if field not in inline}
            places = {digest: place for place, digest in enumerate(dict.fromkeys(objects.values()))}
            record = FieldsRecord(inline, {field: places[digest] for field, digest in objects.items()})
            change.name(path, name, change.add(_encoder.encode(record), places))
        with self._lock_of(path):
            self._objects.commit(change)

    def get(self, path: Path, name: str) -> dict[str, bytes] | None:
        """Return the fields of a record, or None if the record does not exist."""
        with self._lock_of(path):
            digest = self._objects.find(path, name)
            return None if digest is None else self._read(digest)

    def all(self, path: Path) -> dict[str, dict[str, bytes]]:
        """Return a map from name to fields, sorted by name, for all records at the given path."""
        with self._lock_of(path):
            return {name: self._read(digest) for name, digest in sorted(self._objects.entries(path).items())}

    def delete(self, path: Path, name: str) -> bool:
        """Delete a record. Return True if the record existed."""
        with self._lock_of(path):
            is_there = self._objects.find(path, name) is not None
            self._forget(path, [name] if is_there else [])
        return is_there

    def names(self, path: Path) -> list[str]:
        """Return the names of the records at the given path, in sorted order."""
        return sorted(self._objects.entries(path))

    def owner_of(self, kind: str, name: str) -> Path | None:
        """Return a path of the given kind that has a record with this name, or None if no such path exists."""
        paths = (path for path in self._objects.paths(kind) if self._objects.find(path, name) is not None)
        return next(paths, None)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _lock_of(self, path: Path) -> threading.Lock:
        return self._locks[hash(path) % _LOCKS]

    def _read(self, digest: bytes) -> dict[str, bytes]:
        references = self._objects.references(digest)
        objects = self._objects.read([digest, *references])
        record = _decoder.decode(objects[digest])
        return record.inline | {field: objects[references[place]] for field, place in record.referred.items()}

    def _forget(self, path: Path, names: Sequence[str]) -> None:
        change = self._objects.change()
        for name in names:
            change.name(path, name, None)
        if names:
            self._objects.commit(change)


class RecordStoreBase:
    """Base class of the session store adapters. An object of this class owns an open object stream, and it is both a synchronous and an
    asynchronous context manager.

    Every change is atomic, and it is durable when the method returns. Several threads and event loops may share one object. Only one object
    in one process may have a folder open. Opening the folder a second time raises `ObjectStreamInUseError`.
    """

    SHELF: ClassVar[str]
    """Name of the object stream in the store that the class uses."""

    def __init__(self, records: StoredRecords) -> None:
        """Create the object from open records. Applications should use `open` instead."""
        self._records = records

    @classmethod
    def open(cls, location: str | os.PathLike[str], *, keys: Keys | None = None, must_exist: bool = False) -> Self:
        """Open the store at a folder or a URL (`s3://bucket/prefix`). If the store does not exist, it is created.

        If `keys` is None, the keys in the environment variables are used (docs/protection.md). If `must_exist` is set, a missing store is
        an error and is not created. Set `must_exist` for an existing store, so that a missing mount is reported as an error.

        Raises:
            StoreMissingError: the store does not exist, and `must_exist` is set.
            ObjectStreamInUseError: another process, or another object of this process, has the object stream open.
            StoreError: the store is encrypted and the key is missing, or the disk has failed.
            DamagedDataError: a file is damaged.
        """
        store = (Store.open if must_exist else Store.open_or_create)(location, keys=keys)
        return cls(StoredRecords(ObjectStream.open(store, cls.SHELF)))

    @property
    def records(self) -> StoredRecords:
        """Return the records in the given object stream."""
        return self._records

    def close(self) -> None:
        """Close the store. Closing the store again has no effect."""
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `function` in the event loop's thread pool, and return the function's result.

    A running thread cannot be stopped. If the caller is cancelled, the cancellation therefore takes effect only when the function has
    ended. This delay ensures that a cancelled write cannot take effect after a later write.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while (
            not running.done()
        ):  # the caller may be cancelled more than once, and the loop ends when the disk operation has ended
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:
                continue
        if not running.cancelled():
            running.exception()  # marks the error as retrieved, since the cancelled caller does not need it
        raise
