"""Store lists of records and named records in an object stream. The adapters for session stores share this module.

    path (kind, owner)      name: a number, ascending       one record of a list
    path (kind, owner)      name: any name                  a record of fields: small fields inline, each other field a referenced object

A field that is unchanged since the previous record, or that another record also contains, costs only a reference. The adapter encodes the
fields; this module treats the bytes as opaque.

Every change is atomic, and durable when the method returns. Threads may share the object; only one process at a time can have a stream
open. Coroutines run the blocking disk operations with `in_thread`.
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
"""Largest size of a field that is stored inline: about the overhead of a separate object."""

_NUMBER_DIGITS = 16
"""Number of digits in the name of a list record, so that names sort in the order of the records."""

_LOCKS = 64
"""Number of locks. Work on one path is serialized; different paths, apart from hash collisions, run concurrently and share commits."""


class FieldsRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record of fields: the bytes of each small field, and for each other field its index among the references."""

    inline: dict[str, bytes]
    referred: dict[str, int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FieldsRecord)


class StoredRecords:
    """Records in one object stream."""

    def __init__(self, objects: ObjectStream) -> None:
        self._objects = objects
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def close(self) -> None:
        """Close the store. May be called twice."""
        self._objects.close()

    # -- lists -------------------------------------------------------------------------------------------------------

    def append(self, path: Path, records: Sequence[bytes]) -> None:
        """Add records at the end, atomically."""
        with self._lock_of(path):
            number = 1 + max(map(int, self._objects.entries(path)), default=-1)
            change = self._objects.change()
            for place, record in enumerate(records, number):
                change.name(path, f"{place:0{_NUMBER_DIGITS}}", change.add(record))
            if change.entries:
                self._objects.commit(change)

    def last(self, path: Path, count: int | None = None) -> list[bytes]:
        """Return the last `count` records, oldest first; all records if `count` is None."""
        with self._lock_of(path):
            digests = [digest for _, digest in sorted(self._objects.entries(path).items())]
            selected = digests if count is None else digests[max(0, len(digests) - count) :]
            objects = self._objects.read(selected)
        return [objects[digest] for digest in selected]

    def pop(self, path: Path) -> bytes | None:
        """Remove and return the last record; None if there is none."""
        with self._lock_of(path):
            name, digest = max(self._objects.entries(path).items(), default=("", b""))
            if not name:
                return None
            record = self._objects.read([digest])[digest]
            self._forget(path, [name])
            return record

    def clear(self, path: Path) -> None:
        """Delete all records at the path."""
        with self._lock_of(path):
            self._forget(path, list(self._objects.entries(path)))

    # -- records by name ---------------------------------------------------------------------------------------------

    def put(self, path: Path, records: Mapping[str, Mapping[str, bytes]]) -> None:
        """Save records (name → fields) atomically. Each record replaces the record of the same name."""
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
        """Return a record; None if it does not exist."""
        with self._lock_of(path):
            digest = self._objects.find(path, name)
            return None if digest is None else self._read(digest)

    def all(self, path: Path) -> dict[str, dict[str, bytes]]:
        """Return all records at the path by name, sorted."""
        with self._lock_of(path):
            return {name: self._read(digest) for name, digest in sorted(self._objects.entries(path).items())}

    def delete(self, path: Path, name: str) -> bool:
        """Delete a record; return whether it existed."""
        with self._lock_of(path):
            is_there = self._objects.find(path, name) is not None
            self._forget(path, [name] if is_there else [])
        return is_there

    def names(self, path: Path) -> list[str]:
        """Return the names of the records at the path, sorted."""
        return sorted(self._objects.entries(path))

    def owner_of(self, kind: str, name: str) -> Path | None:
        """Return the path of this kind that contains a record of this name; None if there is no such path."""
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
    """Base class of the adapters' public classes. It owns an open object stream and is a context manager, synchronous and asynchronous.

    Every change is atomic, and durable when the method returns. Threads and event loops may share the object. Only one object in one
    process may have a folder open; opening it again raises `ObjectStreamInUseError`.
    """

    SHELF: ClassVar[str]
    """Name of the class's object stream in the store."""

    def __init__(self, records: StoredRecords) -> None:
        """Wrap open records. Internal; use `open`."""
        self._records = records

    @classmethod
    def open(cls, location: str | os.PathLike[str], *, keys: Keys | None = None, must_exist: bool = False) -> Self:
        """Open the store at a folder or a URL (`s3://bucket/prefix`); create it if it does not exist.

        `keys` None: use the keys that environment variables name (docs/protection.md). `must_exist`: do not create the store; use this
        option if the store must already exist, so that a missing mount is an error.

        Raises:
            StoreMissingError: the store does not exist, and `must_exist` is set.
            ObjectStreamInUseError: another process, or another object of this process, has the object stream open.
            StoreError: the store is encrypted and the key is missing, or the disk failed.
            DamagedDataError: a file is damaged.
        """
        store = (Store.open if must_exist else Store.open_or_create)(location, keys=keys)
        return cls(StoredRecords(ObjectStream.open(store, cls.SHELF)))

    @property
    def records(self) -> StoredRecords:
        """Return the records of this object stream."""
        return self._records

    def close(self) -> None:
        """Close the store. May be called twice."""
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
    """Run `function` in a thread of the event loop's pool.

    A thread cannot be stopped. So a cancelled caller waits until the function has ended before the cancellation takes effect. This way a
    write never happens after a later one.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while (
            not running.done()
        ):  # the caller may be cancelled more than once; the loop ends when the disk has answered
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:
                continue
        if not running.cancelled():
            running.exception()  # marks it as retrieved: the cancelled caller does not need it
        raise
