"""Lists of records, and records by name, on a shelf of their own: what thin adapters have in common.

    path (kind, owner)      name: a number, ascending       one record of a list
    path (kind, owner)      name: whatever it is called     a record of fields: small ones in it, each other one an object that it refers to

So a field that has not changed since the record before, or is in another one, costs a reference. Bytes come from the adapter, and mean nothing here.

Whatever a method changes is durable when it returns, whole or not at all. Threads may share it; one process at a time has a shelf open.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Self

import msgspec

from snapline.storage.keys.key_files import Keys
from snapline.storage.object_streams.index import Path
from snapline.storage.object_streams.object_stream import ObjectStream
from snapline.storage.store.store import Store

INLINE_BYTES_MAX = 96
"""Approximate cost of an object, besides its bytes."""

_NUMBER_DIGITS = 16
"""Number of digits, so that the order of the names is the order of the records."""

_LOCKS = 64
"""Number of locks. Work on a path waits for other work there, and only for that, but by chance: commits of several paths go to the disk together."""


class FieldsRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record of fields: the bytes of small ones, and of each other one its place among the references."""

    inline: dict[str, bytes]
    referred: dict[str, int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FieldsRecord)


class StoredRecords:
    """Records on one shelf."""

    def __init__(self, shelf: ObjectStream) -> None:
        self._objects = shelf
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def close(self) -> None:
        """Let go of the store. May be called twice."""
        self._objects.close()

    # -- lists -------------------------------------------------------------------------------------------------------

    def append(self, path: Path, records: Sequence[bytes]) -> None:
        """Add records at the end, all of them or none."""
        with self._lock_of(path):
            number = 1 + max(map(int, self._objects.entries(path)), default=-1)
            change = self._objects.change()
            for place, record in enumerate(records, number):
                change.name(path, f"{place:0{_NUMBER_DIGITS}}", change.add(record))
            if change.entries:
                self._objects.commit(change)

    def last(self, path: Path, count: int | None = None) -> list[bytes]:
        """Return the last records, in their order; None: all."""
        with self._lock_of(path):
            digests = [digest for _, digest in sorted(self._objects.entries(path).items())]
            wanted = digests if count is None else digests[max(0, len(digests) - count) :]
            found = self._objects.read(wanted)
        return [found[digest] for digest in wanted]

    def pop(self, path: Path) -> bytes | None:
        """Take the last record away, and return it; None: there is none."""
        with self._lock_of(path):
            name, digest = max(self._objects.entries(path).items(), default=("", b""))
            if not name:
                return None
            record = self._objects.read([digest])[digest]
            self._forget(path, [name])
            return record

    def clear(self, path: Path) -> None:
        """Delete everything there."""
        with self._lock_of(path):
            self._forget(path, list(self._objects.entries(path)))

    # -- records by name ---------------------------------------------------------------------------------------------

    def put(self, path: Path, records: Mapping[str, Mapping[str, bytes]]) -> None:
        """Save records, name → fields, all of them or none; each takes the place of the one of its name."""
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
        """Return a record; None: there is none."""
        with self._lock_of(path):
            digest = self._objects.find(path, name)
            return None if digest is None else self._read(digest)

    def all(self, path: Path) -> dict[str, dict[str, bytes]]:
        """Return all records there by name, sorted."""
        with self._lock_of(path):
            return {name: self._read(digest) for name, digest in sorted(self._objects.entries(path).items())}

    def delete(self, path: Path, name: str) -> bool:
        """Delete a record; return whether there was one."""
        with self._lock_of(path):
            is_there = self._objects.find(path, name) is not None
            self._forget(path, [name] if is_there else [])
        return is_there

    def names(self, path: Path) -> list[str]:
        """Return what records there are called, sorted."""
        return sorted(self._objects.entries(path))

    def owner_of(self, kind: str, name: str) -> Path | None:
        """Return the path of this kind that has a record of this name."""
        found = (path for path in self._objects.paths(kind) if self._objects.find(path, name) is not None)
        return next(found, None)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _lock_of(self, path: Path) -> threading.Lock:
        return self._locks[hash(path) % _LOCKS]

    def _read(self, digest: bytes) -> dict[str, bytes]:
        references = self._objects.references(digest)
        found = self._objects.read([digest, *references])
        record = _decoder.decode(found[digest])
        return record.inline | {field: found[references[place]] for field, place in record.referred.items()}

    def _forget(self, path: Path, names: Sequence[str]) -> None:
        change = self._objects.change()
        for name in names:
            change.name(path, name, None)
        if names:
            self._objects.commit(change)


class RecordsOwner:
    """Base of what an adapter gives its users: it has a shelf open, and is a context manager, and an async one.

    What its methods change is durable when they return, whole or not at all. Threads and event loops may share it. One process at a time may have a
    folder open, with one of these; another is refused (`ObjectStreamInUseError`).
    """

    SHELF: ClassVar[str]
    """Name of the shelf in its store."""

    def __init__(self, records: StoredRecords) -> None:
        """Use `open`."""
        self._records = records

    @classmethod
    def open(cls, location: str | os.PathLike[str], *, keys: Keys | None = None, must_exist: bool = False) -> Self:
        """Open the store at a folder or a URL (`s3://bucket/prefix`), and make it if there is none.

        `keys` None: those that the environment names (docs/protection.md). `must_exist`: make none. For a program that has a store: its
        mount may be away.

        Raises:
            StoreMissingError: there is none, and it must exist.
            ObjectStreamInUseError: another process has it open, or another object of this one.
            StoreError: it is encrypted, and its key is not there; or the disk refused.
            DamagedDataError: something in it is not what was written.
        """
        store = (Store.open if must_exist else Store.open_or_create)(location, keys=keys)
        return cls(StoredRecords(ObjectStream.open(store, cls.SHELF)))

    @property
    def records(self) -> StoredRecords:
        """Records on the shelf."""
        return self._records

    def close(self) -> None:
        """Let go of the store. May be called twice."""
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
