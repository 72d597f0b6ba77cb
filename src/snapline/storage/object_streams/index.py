"""In-memory index of an object stream: entries by path and name, objects by digest, and their references.

Pure: the index reads no file and takes no lock. An object is *live* as long as an entry or a live object refers to it. Objects refer only to
older ones, whose digests they contain, so there are no cycles and reference counts are exact. An object that is no longer live is forgotten at once.
Its bytes are dead until compaction rewrites their segment.
"""

from collections.abc import Iterable

import msgspec

from snapline.storage.object_streams.records import Contents, EntryLine, ObjectLine, references_of

LINE_BYTES = 64
"""Approximate cost of an object in addition to its bytes: its line in the commit."""

Path = tuple[str, ...]


class StoredObject(msgspec.Struct, gc=False):
    """Place of an object; `count` is the number of entries and live objects that refer to it."""

    segment: int
    offset: int
    line: ObjectLine
    count: int = 0


class SegmentSize(msgspec.Struct, gc=False):
    """Length of a segment, and how much of it is dead."""

    size_bytes: int
    dead_bytes: int = 0


class ObjectStreamIndex:
    """Index of an object stream.

    Attributes:
        objects: stored objects by digest.
        entries: first word of the path → path → name → digest.
        segments: all existing segments by number.
    """

    def __init__(self) -> None:
        self.objects: dict[bytes, StoredObject] = {}
        self.entries: dict[str, dict[Path, dict[str, bytes]]] = {}
        self.segments: dict[int, SegmentSize] = {}

    def find(self, path: Path, name: str) -> bytes | None:
        """Return the object with this name."""
        return self.entries.get(path[0], {}).get(path, {}).get(name)

    def apply(self, segment: int, offset: int, contents: Contents) -> None:
        """Apply a durable commit whose objects begin at `offset`. All its references are counted before any is released."""
        for line in contents.objects:
            self._add(StoredObject(segment, offset, line))
            offset += line.stored_bytes
        released = [self._set(entry) for entry in contents.entries]
        self._release(digest for digest in released if digest is not None)
        for line in contents.objects:  # An object may never have got a name, or may have lost it in the same commit.
            stored = self.objects.get(line.digest)
            if stored is not None and not stored.count:
                self._forget([line.digest])

    def grow(self, segment: int, size_bytes: int) -> None:
        """Set the new length of the segment."""
        self.segments.setdefault(segment, SegmentSize(0)).size_bytes = size_bytes

    def move(self, digest: bytes, segment: int, offset: int, line: ObjectLine) -> None:
        """Move a live object to its new place after compaction."""
        stored = self.objects[digest]
        stored.segment, stored.offset, stored.line = segment, offset, line

    def _add(self, found: StoredObject) -> None:
        self.objects[found.line.digest] = found
        for digest in references_of(found.line.references):
            self.objects[digest].count += 1

    def _set(self, entry: EntryLine) -> bytes | None:
        """Return the previous digest of the name."""
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
        """Forget unreferenced objects, and those to which only they referred."""
        while digests:
            gone = self.objects.pop(digests.pop())
            self.segments[gone.segment].dead_bytes += gone.line.stored_bytes + LINE_BYTES
            for digest in references_of(gone.line.references):
                stored = self.objects[digest]
                stored.count -= 1
                if not stored.count:
                    digests.append(digest)


class ObjectStreamReplay:
    """Replays an object stream's commits in order into an index. Only the end of the replay shows which objects are live."""

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
        """Record the length read of the segment."""
        self._index.grow(segment, size_bytes)

    def finish(self) -> tuple[ObjectStreamIndex, list[bytes]]:
        """Return the index, and the digests of referenced objects that are missing."""
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
