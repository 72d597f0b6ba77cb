"""Object streams. An object stream stores named objects for programs that repeatedly save nearly the same state.

The problem: a program saves its state after every step, although most of the state has not changed since the previous step. The program
should store only the changes. After a crash, each step must be stored completely or not at all. Many threads may save concurrently, and old
steps are deleted.

A **commit** atomically adds objects and names. A commit is a single record at the end of a log (`object_segments.py`), and is durable when
`commit` returns. Committing an object that is already stored costs only a reference. An object is forgotten when it has no name and no
other object refers to it (see the index below). Changes that arrive while a commit is being written go into the next commit together, so
many threads share one `fdatasync`.

**One process at a time.** On a file system, a lock ensures that only one process writes to the stream, and a second process is refused. An
object store has no locks. If two processes begin the same segment, one succeeds, and the other is refused from then on. A forked child
process must not write to the stream.

**Compaction.** Segments that are at least half dead are rewritten into a new segment. Small segments are rewritten too if there are many.
The new segment's header declares that it replaces the old segments, which are then removed. An entry that removes a name is kept as long as
an older segment exists.

The caller's duties:

1. An object may refer only to objects in the stream or in the same change.
2. If the last name of a referenced object was removed meanwhile, `commit` raises `StaleReferenceError`, and the caller must add the object
   again.

The stream preserves G11 (every byte is checked against a digest before it is used).

**The index** is kept in memory. The index contains the entries by path and name, the objects by digest, and the references between objects.
The index performs no I/O and takes no lock. An object is *live* as long as an entry or a live object refers to it. Objects refer only to
older objects, whose digests they contain. So there are no cycles, and reference counts are exact. An object that is no longer live is
removed from the index at once. The bytes of a removed object stay on disk until compaction rewrites the segment.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from snapline.errors import DamagedDataError, NotFoundError, StoreError, UsageError
from snapline.storage.disk import store_files
from snapline.storage.disk.layout import OBJECT_STREAMS
from snapline.storage.disk.local_disk import LockHeldError, creates_only
from snapline.storage.disk.record import Buffer, Guard
from snapline.storage.store.object_segments import (
    LOCK_NAME,
    OBJECT_BYTES_MAX,
    SEGMENT_BYTES_MAX,
    Contents,
    EntryLine,
    NewObject,
    ObjectLine,
    ObjectStreamInUseError,
    ObjectStreamSegments,
    check_object_stream,
    digest_of_object,
    references_of,
)
from snapline.storage.store.store import Store

LINE_BYTES = 64
"""Approximate storage cost of an object's line in the commit, in bytes, in addition to the object's own bytes."""

Path = tuple[str, ...]


class StoredObject(msgspec.Struct, gc=False):
    """Location of a stored object. `count` is the number of entries and live objects that refer to the object."""

    segment: int
    offset: int
    line: ObjectLine
    count: int = 0


class SegmentSize(msgspec.Struct, gc=False):
    """Length of a segment, and the number of dead bytes in it."""

    size_bytes: int
    dead_bytes: int = 0


class ObjectStreamIndex:
    """The in-memory index of an object stream.

    Attributes:
        objects: stored objects by digest.
        entries: map from the first word of a path to a nested map, which lists the names in each path with their digests.
        segments: all existing segments by number.
    """

    def __init__(self) -> None:
        self.objects: dict[bytes, StoredObject] = {}
        self.entries: dict[str, dict[Path, dict[str, bytes]]] = {}
        self.segments: dict[int, SegmentSize] = {}

    def find(self, path: Path, name: str) -> bytes | None:
        """Return the digest of the object with this name, or None if the name does not exist."""
        return self.entries.get(path[0], {}).get(path, {}).get(name)

    def apply(self, segment: int, offset: int, contents: Contents) -> None:
        """Apply a durable commit whose objects begin at `offset`. All new references are counted before any old reference is released."""
        for line in contents.objects:
            self._add(StoredObject(segment, offset, line))
            offset += line.stored_bytes
        released = [self._set(entry) for entry in contents.entries]
        self._release(digest for digest in released if digest is not None)
        for line in contents.objects:  # An object may have no name, or may lose its name in the same commit.
            stored = self.objects.get(line.digest)
            if stored is not None and not stored.count:
                self._forget([line.digest])

    def grow(self, segment: int, size_bytes: int) -> None:
        """Set the length of a segment."""
        self.segments.setdefault(segment, SegmentSize(0)).size_bytes = size_bytes

    def move(self, digest: bytes, segment: int, offset: int, line: ObjectLine) -> None:
        """Record the new location of a live object after compaction."""
        stored = self.objects[digest]
        stored.segment, stored.offset, stored.line = segment, offset, line

    def _add(self, found: StoredObject) -> None:
        self.objects[found.line.digest] = found
        for digest in references_of(found.line.references):
            self.objects[digest].count += 1

    def _set(self, entry: EntryLine) -> bytes | None:
        """Bind a name to a digest, or remove the name. Return the previous digest, or None if the name did not exist."""
        folders = self.entries.setdefault(entry.path[0], {})
        names = folders.setdefault(entry.path, {})
        before = names.pop(entry.name, None)
        if entry.digest is not None:
            names[entry.name] = entry.digest
            self.objects[entry.digest].count += 1
        if not names:
            del folders[entry.path]
        if not folders:
            del self.entries[entry.path[0]]
        return before

    def _release(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            stored = self.objects[digest]
            stored.count -= 1
            if not stored.count:
                self._forget([digest])

    def _forget(self, digests: list[bytes]) -> None:
        """Forget unreferenced objects, and all objects to which only forgotten objects referred."""
        while digests:
            gone = self.objects.pop(digests.pop())
            self.segments[gone.segment].dead_bytes += gone.line.stored_bytes + LINE_BYTES
            for digest in references_of(gone.line.references):
                stored = self.objects[digest]
                stored.count -= 1
                if not stored.count:
                    digests.append(digest)


class ObjectStreamReplay:
    """Replay of an object stream's commits into an index. Only the end of the replay shows which objects are live."""

    def __init__(self) -> None:
        self._places: dict[bytes, StoredObject] = {}
        self._dead: dict[int, int] = {}
        self._index = ObjectStreamIndex()
        self._names: dict[tuple[Path, str], bytes] = {}

    def add(self, segment: int, offset: int, contents: Contents) -> None:
        """Replay the next commit, whose objects begin at `offset`."""
        for line in contents.objects:
            self._mark_dead(self._places.get(line.digest))
            self._places[line.digest] = StoredObject(segment, offset, line)
            offset += line.stored_bytes
        for path, name, digest in ((entry.path, entry.name, entry.digest) for entry in contents.entries):
            if digest is None:
                self._names.pop((path, name), None)
            else:
                self._names[path, name] = digest

    def grow(self, segment: int, size_bytes: int) -> None:
        """Record how much of a segment has been read so far."""
        self._index.grow(segment, size_bytes)

    def finish(self) -> tuple[ObjectStreamIndex, list[bytes]]:
        """Return the index, and the digests of objects that are referenced but missing."""
        index, missing = self._index, []
        waiting = list(self._names.values())
        for (path, name), digest in self._names.items():
            index.entries.setdefault(path[0], {}).setdefault(path, {})[name] = digest
        while waiting:
            digest = waiting.pop()
            stored = self._places.get(digest)
            if stored is None:
                missing.append(digest)
                continue
            stored.count += 1
            if stored.count == 1:
                index.objects[digest] = stored
                waiting += references_of(stored.line.references)
        for stored in self._places.values():
            if not stored.count:
                self._mark_dead(stored)
        for segment, size in index.segments.items():
            size.dead_bytes = self._dead.get(segment, 0)
        return index, missing

    def _mark_dead(self, found: StoredObject | None) -> None:
        if found is not None:
            self._dead[found.segment] = self._dead.get(found.segment, 0) + found.line.stored_bytes + LINE_BYTES


SMALL_BYTES = 2**20
SMALL_SEGMENTS_MAX = 32
"""Number of segments smaller than 1 MiB that triggers a merge. Each segment costs one read at opening, and on an object store each commit
creates one."""

GAP_BYTES_MAX = 2**14
"""Largest gap in bytes between two objects that are read in one call. Reading the gap is cheaper than a second call."""

_READ_BYTES_MAX = 2**23
_MOVES_MAX = 10
"""Limit on lookups of one object, because compaction may move an object while a reader reads it."""


class StaleReferenceError(NotFoundError):
    """A change refers to an object that is not in the stream, perhaps because it was removed meanwhile."""


class Change:
    """Objects and names that a thread collects for one commit."""

    def __init__(self, guard: Guard | None) -> None:
        self._guard = guard
        self.objects: dict[bytes, NewObject] = {}
        self.entries: list[EntryLine] = []

    def add(self, data: Buffer, references: Iterable[bytes] = ()) -> bytes:
        """Add an object, and return its digest. Raise UsageError if the object is too large."""
        if len(data) > OBJECT_BYTES_MAX:
            raise UsageError(f"an object of {len(data)} bytes is too large for a shelf: at most {OBJECT_BYTES_MAX}")
        joined = b"".join(references)
        digest = digest_of_object(data, joined, self._guard)
        self.objects[digest] = (digest, joined, data)
        return digest

    def name(self, path: Path, name: str, digest: bytes | None) -> None:
        """Name an object. If `digest` is None, remove the name instead. Raise UsageError if the path or name cannot be encoded as UTF-8."""
        try:
            "".join((*path, name)).encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{error.object!r} is not a valid name: it cannot be encoded as UTF-8") from error
        self.entries.append(EntryLine(path, name, digest))


class _PendingChange:
    """A change that is waiting for the thread that will commit it."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self.is_done = False
        self.error: Callable[[], Exception] | None = None


class ObjectStream:
    """An open object stream. Threads may share the stream."""

    def __init__(
        self, segments: ObjectStreamSegments, *, guard: Guard | None, location: str, lock: int | None = None
    ) -> None:
        """Private constructor. Use `open`."""
        self._segments = segments
        self._guard = guard
        self._location = location
        self._lock_descriptor = lock
        self._pid = os.getpid()
        self._index = ObjectStreamIndex()
        self._index_lock = threading.Lock()
        """Lock for the index and the queue of changes. The lock is held only briefly."""
        self._writing = threading.Lock()
        """Lock that the writing thread holds. While it holds this lock, the thread may take the index lock."""
        self._queue: list[_PendingChange] = []
        self._is_closed = False
        self._may_compact = True

    @staticmethod
    def open(store: Store, name: str, *, random_bytes: Callable[[int], bytes] = os.urandom) -> "ObjectStream":
        """Open the stream `name`. Create the stream if it does not exist yet.

        Raises:
            ObjectStreamInUseError: If the stream is already open in another process or in another `ObjectStream`.
            DamagedDataError: If stored bytes differ from those originally written, or referenced objects are missing.
            UsageError: If the store is an object store that overwrites existing objects.
        """
        disk = store.disk
        if not creates_only(disk):
            raise UsageError(f"the store {disk.location} overwrites objects: a shelf needs another one")
        segments = ObjectStreamSegments(
            disk, store.store_id, check_object_stream(name), guard=store.guard, random_bytes=random_bytes
        )
        with store_files.writing(disk, f"the shelf {name!r}"):
            segments.prepare()
            lock = getattr(disk, "lock", None)
            try:
                descriptor = None if lock is None else lock(f"{OBJECT_STREAMS}/{name}/{LOCK_NAME}")
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
        """Close the stream. Closing the stream again has no effect."""
        with self._writing:
            self._is_closed = True
            self._segments.close()
            if self._lock_descriptor is not None:
                os.close(self._lock_descriptor)
                self._lock_descriptor = None

    def change(self) -> Change:
        """Return an empty change, to be filled by the caller and passed to `commit`."""
        return Change(self._guard)

    # -- reading -----------------------------------------------------------------------------------------------------

    def first_words(self) -> list[str]:
        """Return the first word of every path."""
        with self._index_lock:
            return list(self._index.entries)

    def paths(self, first_word: str) -> list[Path]:
        """Return the paths that contain entries and begin with this word."""
        with self._index_lock:
            return list(self._index.entries.get(first_word, ()))

    def entries(self, path: Path) -> dict[str, bytes]:
        """Return the digest of each name in `path`."""
        with self._index_lock:
            return dict(self._index.entries.get(path[0], {}).get(path, {}))

    def find(self, path: Path, name: str) -> bytes | None:
        """Return the digest of the object with this name, or None if the name does not exist."""
        with self._index_lock:
            return self._index.find(path, name)

    def holds(self, digest: bytes) -> bool:
        """Return whether the object with this digest is stored."""
        with self._index_lock:
            return digest in self._index.objects

    def references(self, digest: bytes) -> list[bytes]:
        """Return the digests of the objects to which this object refers. Raise NotFoundError if the object is no longer stored."""
        return references_of(self._look_up([digest])[digest].line.references)

    def read(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Read the objects with these digests, checking each against its digest.

        Raises:
            NotFoundError: If one of the objects is not stored.
            DamagedDataError: If an object's bytes differ from those originally written.
        """
        contents: dict[bytes, bytes] = {}
        wanted = set(digests)
        for _ in range(_MOVES_MAX):
            places = self._look_up(wanted - contents.keys())
            for run in _runs(places):
                with contextlib.suppress(FileNotFoundError):  # Compaction removed its segment and moved the object.
                    contents |= self._read_run(run)
            if len(contents) == len(wanted):
                return contents
        raise DamagedDataError(
            f"a segment of {OBJECT_STREAMS} in the store {self._location} is missing: restore the file"
        )

    # -- writing -----------------------------------------------------------------------------------------------------

    def commit(self, change: Change) -> None:
        """Apply a change atomically and durably.

        Raises:
            StaleReferenceError: If the change refers to an object that is neither stored nor in the change. Nothing was changed.
            StoreError: If the disk failed. In that case, only reopening the stream shows whether the change was stored.
            ObjectStreamInUseError: If another process has written to the stream.
            UsageError: If the stream is closed, or was opened before this process was forked.
        """
        waiting = _PendingChange(change)
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
                f"{len(missing)} objects of {OBJECT_STREAMS} in the store {self._location} are missing: restore its files"
            )
        self._remove([number for number in numbers if number not in self._index.segments])

    def _commit_all(self, batch: list[_PendingChange]) -> None:
        """Write a batch of changes as one commit. Each change that cannot be applied receives an error."""
        try:
            self._check_open()
            objects, entries = self._merge_changes(batch)
            if entries:
                self._write(list(objects.values()), entries)
        except OSError as error:
            _fail(batch, StoreError, f"cannot write to the store {self._location}: {error.strerror or error}")
        except (UsageError, StoreError) as error:
            _fail(batch, type(error), str(error))
        except BaseException:
            self._close_after_interrupt(batch)
            raise
        finally:
            for waiting in batch:
                waiting.is_done = True
        try:
            if self._may_compact:
                self._compact()
        except (OSError, UsageError, StoreError):
            # The commit succeeded. Compaction waits until the stream is opened again, and the delay only costs space.
            self._may_compact = False
        except BaseException:
            self._close_after_interrupt([])
            raise

    def _close_after_interrupt(self, batch: list[_PendingChange]) -> None:
        """Close the stream after an interrupt. The stream on disk is intact, but the index in memory may be inconsistent."""
        self._is_closed = True
        _fail(batch, StoreError, "the commit was interrupted, and may be there or not: open the shelf again")

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the object stream is closed: open it again")
        if os.getpid() != self._pid:
            raise UsageError(
                "the object stream was opened before this process was forked: open it in the process that writes"
            )

    def _merge_changes(self, batch: list[_PendingChange]) -> tuple[dict[bytes, NewObject], list[EntryLine]]:
        """Merge the new objects and the entries of a batch. A change that refers to removed objects is omitted and receives an error."""
        objects: dict[bytes, NewObject] = {}
        entries: list[EntryLine] = []
        known = self._index.objects  # Only the writing thread changes the index.
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

    def _compact(self) -> None:
        """Compact segments that are at least half dead, or small segments if there are many."""
        chosen = _choose(self._index)
        if not chosen:
            return
        objects, entries = self._live_contents(chosen)
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

    def _live_contents(self, chosen: list[int]) -> tuple[list[NewObject], list[EntryLine]]:
        """Return the live objects and entries of the chosen segments."""
        others = self._index.segments.keys() - set(chosen)
        objects: list[NewObject] = []
        entries: dict[tuple[Path, str], EntryLine] = {}
        for number in chosen:
            for start, contents, _ in self._segments.commits(number, self._index.segments[number].size_bytes):
                objects += self._live_objects(number, start, contents)
                for entry in contents.entries:
                    if self._index.find(entry.path, entry.name) != entry.digest:
                        continue
                    if entry.digest is not None or any(other < number for other in others):
                        entries[entry.path, entry.name] = entry
        return objects, list(entries.values())

    def _live_objects(self, number: int, start: int, contents: Contents) -> Iterator[NewObject]:
        for line in contents.objects:
            entry_place = self._index.objects.get(line.digest)
            if entry_place is not None and (entry_place.segment, entry_place.offset) == (number, start):
                stored = self._segments.read_stored(number, start, line.stored_bytes)
                yield line.digest, line.references, self._segments.read_object(number, start, line, stored)
            start += line.stored_bytes

    def _remove(self, numbers: Iterable[int]) -> None:
        """Remove segments. A segment that cannot be removed now is unused, and is removed when the stream is next opened."""
        for number in numbers:
            with contextlib.suppress(OSError):
                self._segments.remove(number)

    def _look_up(self, digests: Iterable[bytes]) -> dict[bytes, StoredObject]:
        with self._index_lock:
            places = {digest: self._index.objects.get(digest) for digest in digests}
            if None in places.values():
                raise NotFoundError("nothing on the shelf is called so any more: it was deleted")
            return {digest: msgspec.structs.replace(place) for digest, place in places.items() if place is not None}

    def _read_run(self, run: list[StoredObject]) -> dict[bytes, bytes]:
        """Read adjacent objects of a segment with one call."""
        first, last = run[0], run[-1]
        length = last.offset + last.line.stored_bytes - first.offset
        data = self._segments.read_stored(first.segment, first.offset, length)
        contents = {}
        for stored_object in run:
            place = stored_object.offset - first.offset
            stored = data[place : place + stored_object.line.stored_bytes] if len(run) > 1 else data
            contents[stored_object.line.digest] = self._segments.read_object(
                stored_object.segment, stored_object.offset, stored_object.line, stored
            )
        return contents


def _runs(places: Mapping[bytes, StoredObject]) -> Iterator[list[StoredObject]]:
    """Group the locations of objects into lists.  The objects of each list can be read with one call."""
    run: list[StoredObject] = []
    # An empty object has the same offset as the next object and must precede it, since a run ends with its last object.
    for place in sorted(places.values(), key=lambda found: (found.segment, found.offset, found.line.stored_bytes)):
        if run and not _are_near(run[0], run[-1], place):
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def _are_near(first: StoredObject, last: StoredObject, each: StoredObject) -> bool:
    gap = each.offset - last.offset - last.line.stored_bytes
    length = each.offset + each.line.stored_bytes - first.offset
    return each.segment == last.segment and gap <= GAP_BYTES_MAX and length <= _READ_BYTES_MAX


def _choose(index: ObjectStreamIndex) -> list[int]:
    """Return the segments that should be compacted. Together, the chosen segments have at most about one segment's worth of live data."""
    segments = sorted(index.segments.items())
    small = [number for number, size in segments if size.size_bytes < SMALL_BYTES]
    if len(small) >= SMALL_SEGMENTS_MAX:
        return small
    chosen, living = [], 0
    for number, size in segments:
        is_large = size.size_bytes >= SMALL_BYTES
        if is_large and size.dead_bytes * 2 >= size.size_bytes:
            living += size.size_bytes - size.dead_bytes
            chosen.append(number)
            if living >= SEGMENT_BYTES_MAX:
                break
    return chosen


def _fail(batch: Iterable[_PendingChange], kind: type[Exception], words: str) -> None:
    for waiting in batch:
        if waiting.error is None:
            waiting.error = lambda: kind(words)
