"""Index of a shelf, in memory: entries by path and name, objects by digest, and their references.

Pure: it reads no file and knows no lock. An object is *live* as long as an entry or a live object refers to it; objects refer to older
ones only (their digests are in it), so there are no circles and counting is exact. What is live no more is forgotten at once; its bytes are
dead, until their segment is written again.
"""

from collections.abc import Iterable

import msgspec

from snapline.storage.object_streams.records import Contents, EntryLine, ObjectLine, references_of

LINE_BYTES = 64
"""Approximate cost of an object in addition to its bytes: its line in the commit."""

Path = tuple[str, ...]


class StoredObject(msgspec.Struct, gc=False):
    """Place of an object; `count` is how many entries and live objects refer to it."""

    segment: int
    offset: int
    line: ObjectLine
    count: int = 0


class SegmentSize(msgspec.Struct, gc=False):
    """Length of a segment, and how much of it is dead."""

    size_bytes: int
    dead_bytes: int = 0


class ObjectStreamIndex:
    """Index of a shelf.

    Attributes:
        objects: by digest.
        entries: first word of the path → path → name → digest.
        segments: by number, all that are there.
    """

    def __init__(self) -> None:
        self.objects: dict[bytes, StoredObject] = {}
        self.entries: dict[str, dict[Path, dict[str, bytes]]] = {}
        self.segments: dict[int, SegmentSize] = {}

    def find(self, path: Path, name: str) -> bytes | None:
        """Return the object that is called so."""
        return self.entries.get(path[0], {}).get(path, {}).get(name)

    def apply(self, segment: int, offset: int, contents: Contents) -> None:
        """Apply a durable commit whose objects begin at `offset`. Nothing is released before all of it is held."""
        for line in contents.objects:
            self._add(StoredObject(segment, offset, line))
            offset += line.stored_bytes
        released = [self._set(entry) for entry in contents.entries]
        self._release(digest for digest in released if digest is not None)
        for line in contents.objects:  # Nobody has named it, or somebody has taken the name again.
            found = self.objects.get(line.digest)
            if found is not None and not found.count:
                self._forget([line.digest])

    def grow(self, segment: int, size_bytes: int) -> None:
        """Set the new length of the segment."""
        self.segments.setdefault(segment, SegmentSize(0)).size_bytes = size_bytes

    def move(self, digest: bytes, segment: int, offset: int, line: ObjectLine) -> None:
        """Move a live object that was written again."""
        found = self.objects[digest]
        found.segment, found.offset, found.line = segment, offset, line

    def _add(self, found: StoredObject) -> None:
        self.objects[found.line.digest] = found
        for digest in references_of(found.line.references):
            self.objects[digest].count += 1

    def _set(self, entry: EntryLine) -> bytes | None:
        """Return what the name meant before."""
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
            found = self.objects[digest]
            found.count -= 1
            if not found.count:
                self._forget([digest])

    def _forget(self, digests: list[bytes]) -> None:
        """Forget objects that are unreferenced, and what only they referred to."""
        while digests:
            gone = self.objects.pop(digests.pop())
            self.segments[gone.segment].dead_bytes += gone.line.stored_bytes + LINE_BYTES
            for digest in references_of(gone.line.references):
                found = self.objects[digest]
                found.count -= 1
                if not found.count:
                    digests.append(digest)


class ObjectStreamReplay:
    """Reads a shelf's commits again, in order, into an index. Only at the end is it known which objects are live."""

    def __init__(self) -> None:
        self._places: dict[bytes, StoredObject] = {}
        self._dead: dict[int, int] = {}
        self._index = ObjectStreamIndex()
        self._names: dict[tuple[Path, str], bytes] = {}

    def add(self, segment: int, offset: int, contents: Contents) -> None:
        """The next commit; its objects begin at `offset`."""
        for line in contents.objects:
            self._bury(self._places.get(line.digest))
            self._places[line.digest] = StoredObject(segment, offset, line)
            offset += line.stored_bytes
        for path, name, digest in ((entry.path, entry.name, entry.digest) for entry in contents.entries):
            if digest is None:
                self._names.pop((path, name), None)
            else:
                self._names[path, name] = digest

    def grow(self, segment: int, size_bytes: int) -> None:
        """Record how far the segment was read."""
        self._index.grow(segment, size_bytes)

    def finish(self) -> tuple[ObjectStreamIndex, list[bytes]]:
        """Return the index, and the digests of objects that should be there and are not."""
        index, missing = self._index, []
        waiting = list(self._names.values())
        for (path, name), digest in self._names.items():
            index.entries.setdefault(path[0], {}).setdefault(path, {})[name] = digest
        while waiting:
            digest = waiting.pop()
            found = self._places.get(digest)
            if found is None:
                missing.append(digest)
                continue
            found.count += 1
            if found.count == 1:
                index.objects[digest] = found
                waiting += references_of(found.line.references)
        for found in self._places.values():
            if not found.count:
                self._bury(found)
        for segment, size in index.segments.items():
            size.dead_bytes = self._dead.get(segment, 0)
        return index, missing

    def _bury(self, found: StoredObject | None) -> None:
        if found is not None:
            self._dead[found.segment] = self._dead.get(found.segment, 0) + found.line.stored_bytes + LINE_BYTES
