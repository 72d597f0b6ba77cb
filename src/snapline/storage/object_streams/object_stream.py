"""A shelf: entries by name and objects by digest, in a store, for programs that save much of the same again and again.

The problem. A program saves its state after every step, and most of it is what it was. It must pay for what is new only, to have each
step whole or not at all after a crash, to save from many threads, and to get rid of old steps.

A **commit** adds objects and names some, all of it or nothing: it is one record at the end of a log (`segments.py`), durable when
`commit` returns. An object that is there costs a reference; one that is no longer named, or referred to, is forgotten (`index.py`).
What waits while another commit is written goes with the next one: many threads share one `fdatasync`.

**One process at a time.** On a file system a lock ensures this; the second is refused. On an object store nothing prevents it beforehand: of two
that begin the same segment one succeeds, and the other is refused from then on. A process made by `fork` may not write.

**Writing again.** Segments of which half is dead, and many small ones, are written again into a new one, whose header replaces them: that is the
moment it counts, and they are removed. A name that was taken away stays taken away as long as an older segment is there.

The callers' duties: an object refers to what is on the shelf, or in the same change; and a caller that finds it gone (`StaleReferenceError`: its
last name was taken away meanwhile) adds it again.

Carries G11 (every byte is compared with a digest before it is used).
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.storage.object_streams.index import ObjectStreamIndex, ObjectStreamReplay, Path, StoredObject
from snapline.storage.object_streams.records import (
    LOCK_NAME,
    OBJECT_BYTES_MAX,
    Contents,
    EntryLine,
    check_object_stream,
    digest_of_object,
    references_of,
)
from snapline.storage.object_streams.segments import (
    SEGMENT_BYTES_MAX,
    NewObject,
    ObjectStreamInUseError,
    ObjectStreamSegments,
)
from snapline.storage.store import files
from snapline.storage.store.disk import creates_only
from snapline.storage.store.guard import Guard
from snapline.storage.store.layout import SHELVES
from snapline.storage.store.locks import LockHeldError
from snapline.storage.store.record import Buffer
from snapline.storage.store.store import Store

SMALL_BYTES = 2**20
SMALL_SEGMENTS_MAX = 32
"""Number of segments below 1 MiB that are written again as one: each costs a read at opening, and on an object store each commit makes one."""

GAP_BYTES_MAX = 2**14
"""Largest gap between two objects that is read along with them: cheaper than a second call."""

_READ_BYTES_MAX = 2**23
_MOVES_MAX = 10
"""An object that is written again while it is read is looked up again, so often at most."""


class StaleReferenceError(NotFoundError):
    """A change refers to an object that is not on the shelf (any more)."""


class Change:
    """Objects and names of one commit, gathered by one thread."""

    def __init__(self, guard: Guard | None) -> None:
        self._guard = guard
        self.objects: dict[bytes, NewObject] = {}
        self.entries: list[EntryLine] = []

    def add(self, data: Buffer, references: Iterable[bytes] = ()) -> bytes:
        """Add an object; return its digest. UsageError: it is too large."""
        if len(data) > OBJECT_BYTES_MAX:
            raise UsageError(f"an object of {len(data)} bytes is too large for a shelf: at most {OBJECT_BYTES_MAX}")
        joined = b"".join(references)
        digest = digest_of_object(data, joined, self._guard)
        self.objects[digest] = (digest, joined, data)
        return digest

    def name(self, path: Path, name: str, digest: bytes | None) -> None:
        """Call an object so; None: nothing is called so any more. UsageError: UTF-8 cannot say the name."""
        try:
            "".join((*path, name)).encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{error.object!r} cannot be a name: UTF-8 cannot say it") from error
        self.entries.append(EntryLine(path, name, digest))


class _Waiting:
    """A change that waits for its commit."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self.is_done = False
        self.error: Callable[[], Exception] | None = None


class ObjectStream:
    """One shelf. Threads may share it."""

    def __init__(
        self, segments: ObjectStreamSegments, *, guard: Guard | None, location: str, lock: int | None = None
    ) -> None:
        """Use `open`."""
        self._segments = segments
        self._guard = guard
        self._location = location
        self._lock_descriptor = lock
        self._pid = os.getpid()
        self._index = ObjectStreamIndex()
        self._index_lock = threading.Lock()
        """Guards index and queue; held for moments only."""
        self._writing = threading.Lock()
        """Held by the one thread that writes; it takes the other lock inside."""
        self._queue: list[_Waiting] = []
        self._is_closed = False
        self._may_write_again = True

    @staticmethod
    def open(store: Store, name: str, *, random_bytes: Callable[[int], bytes] = os.urandom) -> "ObjectStream":
        """Open the shelf called so, and make it if there is none.

        Raises:
            ObjectStreamInUseError: another process has it, or another object of this one.
            DamagedDataError: something in it is not what was written.
            UsageError: the store is an object store that overwrites.
        """
        disk = store.disk
        if not creates_only(disk):
            raise UsageError(f"the store {disk.location} overwrites objects: a shelf needs another one")
        segments = ObjectStreamSegments(
            disk, store.store_id, check_object_stream(name), guard=store.guard, random_bytes=random_bytes
        )
        with files.writing(disk, f"the shelf {name!r}"):
            segments.prepare()
            lock = getattr(disk, "lock", None)
            try:
                descriptor = None if lock is None else lock(f"{SHELVES}/{name}/{LOCK_NAME}")
            except LockHeldError as error:
                raise ObjectStreamInUseError(
                    f"the shelf {name!r} of the store {disk.location} is in use: one process, and one object in it, may have it open, and "
                    f"{error} has; wait for its end or close it there, or give this one another folder"
                ) from None
        object_stream = ObjectStream(segments, guard=store.guard, location=disk.location, lock=descriptor)
        try:
            object_stream._replay()
        except BaseException:
            object_stream.close()
            raise
        return object_stream

    def close(self) -> None:
        """Let go of the shelf. May be called twice."""
        with self._writing:
            self._is_closed = True
            self._segments.close()
            if self._lock_descriptor is not None:
                os.close(self._lock_descriptor)
                self._lock_descriptor = None

    def change(self) -> Change:
        """Return an empty change, for `commit`."""
        return Change(self._guard)

    # -- reading -----------------------------------------------------------------------------------------------------

    def first_words(self) -> list[str]:
        """Return what paths begin with."""
        with self._index_lock:
            return list(self._index.entries)

    def paths(self, first_word: str) -> list[Path]:
        """Return the paths that begin so and have entries."""
        with self._index_lock:
            return list(self._index.entries.get(first_word, ()))

    def entries(self, path: Path) -> dict[str, bytes]:
        """Return the names there and the objects they call."""
        with self._index_lock:
            return dict(self._index.entries.get(path[0], {}).get(path, {}))

    def find(self, path: Path, name: str) -> bytes | None:
        """Return the digest of the object that is called so."""
        with self._index_lock:
            return self._index.find(path, name)

    def holds(self, digest: bytes) -> bool:
        """Return whether the object is there."""
        with self._index_lock:
            return digest in self._index.objects

    def references(self, digest: bytes) -> list[bytes]:
        """Return what an object refers to; NotFoundError: it is gone."""
        return references_of(self._look_up([digest])[digest].line.references)

    def read(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return objects, each checked.

        Raises:
            NotFoundError: one of them is not named any more.
            DamagedDataError: one is not what was written.
        """
        found: dict[bytes, bytes] = {}
        wanted = set(digests)
        for _ in range(_MOVES_MAX):
            places = self._look_up(wanted - found.keys())
            for run in _runs(places):
                with contextlib.suppress(FileNotFoundError):  # Its segment was written again: it is elsewhere.
                    found |= self._read_run(run)
            if len(found) == len(wanted):
                return found
        raise DamagedDataError(f"a segment of {SHELVES} in the store {self._location} is missing: bring it back")

    # -- writing -----------------------------------------------------------------------------------------------------

    def commit(self, change: Change) -> None:
        """Make a change, durable when this returns; whole or not at all, whatever crashes.

        Raises:
            StaleReferenceError: it refers to what is not there; nothing was changed.
            StoreError: the disk refused; whether it is there will be seen when the shelf is opened again.
            ObjectStreamInUseError: another process has written.
            UsageError: the shelf is closed, or was opened by the process that this one was forked from.
        """
        waiting = _Waiting(change)
        with self._index_lock:
            self._queue.append(waiting)
        with self._writing:
            if not waiting.is_done:
                with self._index_lock:
                    batch, self._queue = self._queue, []
                self._commit_all(batch)
        if waiting.error is not None:
            raise waiting.error()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _replay(self) -> None:
        numbers = self._segments.list_segments()
        if not numbers:
            return
        newest = self._segments.open_newest(numbers[-1])
        replay = ObjectStreamReplay()
        for number, end in [*newest.alive, (numbers[-1], None)]:
            replay.grow(number, 0)
            for start, contents, commit_end in self._segments.commits(number, end):
                replay.add(number, start, contents)
                replay.grow(number, commit_end)
        self._index, missing = replay.finish()
        if missing:
            raise DamagedDataError(
                f"{len(missing)} objects of {SHELVES} in the store {self._location} are missing: bring its files back"
            )
        self._remove([number for number in numbers if number not in self._index.segments])

    def _commit_all(self, batch: list[_Waiting]) -> None:
        """Make the changes of a batch as one commit; each change that cannot be made gets an error."""
        try:
            self._check_open()
            objects, entries = self._fit(batch)
            if entries:
                self._write(list(objects.values()), entries)
        except OSError as error:
            _fail(batch, StoreError, f"cannot write to the store {self._location}: {error.strerror or error}")
        except (UsageError, StoreError) as error:
            _fail(batch, type(error), str(error))
        except BaseException:
            self._give_up(batch)
            raise
        finally:
            for waiting in batch:
                waiting.is_done = True
        try:
            if self._may_write_again:
                self._write_again()
        except (OSError, UsageError, StoreError):
            self._may_write_again = False  # What was asked for is done. It costs space until the next opening.
        except BaseException:
            self._give_up([])
            raise

    def _give_up(self, batch: list[_Waiting]) -> None:
        """Close after an interrupt in the middle: what is on the disk is whole, what is in memory may not be."""
        self._is_closed = True
        _fail(batch, StoreError, "the commit was interrupted, and may be there or not: open the shelf again")

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the shelf is closed: open it again")
        if os.getpid() != self._pid:
            raise UsageError("the shelf was opened before this process was forked: open it in the process that writes")

    def _fit(self, batch: list[_Waiting]) -> tuple[dict[bytes, NewObject], list[EntryLine]]:
        """Return what is new in a batch; a change whose references are gone is left out, and gets an error."""
        objects: dict[bytes, NewObject] = {}
        entries: list[EntryLine] = []
        known = self._index.objects  # Only the writing thread changes it.
        for waiting in batch:
            change = waiting.change
            new = {digest: found for digest, found in change.objects.items() if digest not in known}
            needed = [digest for _, joined, _ in new.values() for digest in references_of(joined)]
            needed += [entry.digest for entry in change.entries if entry.digest is not None]
            if all(digest in known or digest in new or digest in objects for digest in needed):
                objects |= {digest: found for digest, found in new.items() if digest not in objects}
                entries += change.entries
            else:
                _fail([waiting], StaleReferenceError, "what the change refers to was removed meanwhile: bring it again")
        return objects, entries

    def _write(self, objects: list[NewObject], entries: list[EntryLine]) -> None:
        if self._segments.is_full():
            written = self._segments.begin(self._alive(), objects, entries)
        else:
            written = self._segments.append(objects, entries)
        start, contents, end = written
        with self._index_lock:
            self._index.grow(self._segments.newest, end)
            self._index.apply(self._segments.newest, start, contents)

    def _alive(self, without: Iterable[int] = ()) -> list[tuple[int, int]]:
        left_out = set(without)
        return [
            (number, size.size_bytes) for number, size in sorted(self._index.segments.items()) if number not in left_out
        ]

    def _write_again(self) -> None:
        """Write segments again that are mostly dead, or many and small."""
        chosen = _choose(self._index)
        if not chosen:
            return
        objects, entries = self._living(chosen)
        alive = self._alive(without=chosen)
        start, contents, end = self._segments.begin(alive, objects, entries)
        with self._index_lock:
            self._index.grow(self._segments.newest, end)
            for line in contents.objects:
                self._index.move(line.digest, self._segments.newest, start, line)
                start += line.stored_bytes
            for number in chosen:
                del self._index.segments[number]
        self._remove(chosen)

    def _living(self, chosen: list[int]) -> tuple[list[NewObject], list[EntryLine]]:
        """Return what is needed of these segments."""
        others = self._index.segments.keys() - set(chosen)
        objects: list[NewObject] = []
        entries: dict[tuple[Path, str], EntryLine] = {}
        for number in chosen:
            for start, contents, _ in self._segments.commits(number, self._index.segments[number].size_bytes):
                objects += self._living_objects(number, start, contents)
                for entry in contents.entries:
                    if self._index.find(entry.path, entry.name) != entry.digest:
                        continue
                    if entry.digest is not None or any(other < number for other in others):
                        entries[entry.path, entry.name] = entry
        return objects, list(entries.values())

    def _living_objects(self, number: int, start: int, contents: Contents) -> Iterator[NewObject]:
        for line in contents.objects:
            found = self._index.objects.get(line.digest)
            if found is not None and (found.segment, found.offset) == (number, start):
                stored = self._segments.read_stored(number, start, line.stored_bytes)
                yield line.digest, line.references, self._segments.read_object(number, start, line, stored)
            start += line.stored_bytes

    def _remove(self, numbers: Iterable[int]) -> None:
        """Remove segments. What cannot be removed now is removed at the next opening: it does not count any more."""
        for number in numbers:
            with contextlib.suppress(OSError):
                self._segments.remove(number)

    def _look_up(self, digests: Iterable[bytes]) -> dict[bytes, StoredObject]:
        with self._index_lock:
            found = {digest: self._index.objects.get(digest) for digest in digests}
            if None in found.values():
                raise NotFoundError("nothing on the shelf is called so any more: it was deleted")
            return {digest: msgspec.structs.replace(each) for digest, each in found.items() if each is not None}

    def _read_run(self, run: list[StoredObject]) -> dict[bytes, bytes]:
        """Read objects that lie near each other, at once."""
        first, last = run[0], run[-1]
        length = last.offset + last.line.stored_bytes - first.offset
        data = self._segments.read_stored(first.segment, first.offset, length)
        found = {}
        for each in run:
            place = each.offset - first.offset
            stored = data[place : place + each.line.stored_bytes] if len(run) > 1 else data
            found[each.line.digest] = self._segments.read_object(each.segment, each.offset, each.line, stored)
        return found


def _runs(places: Mapping[bytes, StoredObject]) -> Iterator[list[StoredObject]]:
    """Yield the places in lists of what can be read at once."""
    run: list[StoredObject] = []
    # An empty object lies where the next one begins, and must come before it: a run ends with its last object.
    for each in sorted(places.values(), key=lambda found: (found.segment, found.offset, found.line.stored_bytes)):
        if run and not _are_near(run[0], run[-1], each):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _are_near(first: StoredObject, last: StoredObject, each: StoredObject) -> bool:
    gap = each.offset - last.offset - last.line.stored_bytes
    length = each.offset + each.line.stored_bytes - first.offset
    return each.segment == last.segment and gap <= GAP_BYTES_MAX and length <= _READ_BYTES_MAX


def _choose(index: ObjectStreamIndex) -> list[int]:
    """Return the segments to be written again: at most about one segment's worth of what lives."""
    found = sorted(index.segments.items())
    small = [number for number, size in found if size.size_bytes < SMALL_BYTES]
    if len(small) >= SMALL_SEGMENTS_MAX:
        return small
    chosen, living = [], 0
    for number, size in found:
        is_large = size.size_bytes >= SMALL_BYTES
        if is_large and size.dead_bytes * 2 >= size.size_bytes:
            living += size.size_bytes - size.dead_bytes
            chosen.append(number)
            if living >= SEGMENT_BYTES_MAX:
                break
    return chosen


def _fail(batch: Iterable[_Waiting], kind: type[Exception], words: str) -> None:
    for waiting in batch:
        if waiting.error is None:
            waiting.error = lambda: kind(words)
