"""Trackers of changes in an array: by the kernel, or by the user's marks. `tracked.py` is the API.

Model: an array's bytes are cut into chunks of a fixed size. A tracker gives each chunk a *token*, and a new one to each chunk
that changed since the capture before. A token names one content and is never used again. So one rule decides, for any
base: a chunk whose token is in the base's table has the base's content, and is handed out without data; all others are
copied. Nothing is ever "taken back": if an epoch aborts, the tokens it captured are simply not in the next base, and their
chunks are copied once more. That is how changes accumulate over every capture since the base (store.md, section 6).

Invariants:

1. A chunk changes its token before anything else of a capture can fail (no room in the arena): a change is never forgotten.
2. What is handed out was copied after the kernel was asked, so a write meanwhile is in the copy, or in the next answer, or
   in both.
3. A tracker belongs to memory, not to an array object: marks through any view reach it, and every array that covers exactly
   that memory in C order has it. Any other array has none and is copied whole.
4. In a forked child there are no trackers.
5. A tracker that does not know reports that everything changed.

Called on the thread that runs the agent's turns, between turns; not by two threads at once for one array.
"""

import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from snapline.errors import ExternalFailureError, UsageError
from snapline.storage.capture import write_tracking
from snapline.storage.capture.array_memory import address_of, covering, name_of, runs_of
from snapline.storage.capture.image import ChunkTable, SourceChunk
from snapline.storage.capture.tokens import BLOCK_TOKENS, fresh_token

if TYPE_CHECKING:
    import array

    import numpy

    Array = numpy.ndarray[Any, Any]  # any shape and dtype: which ones does not matter here

log = logging.getLogger("snapline.host")

OFF_AFTER = 4
"""Captures in a row with more than half of the pages written, after which an array is not tracked any more. A fault costs
several times the copy of its page, so tracking a busy array only loses; four, so that one or two rewrites do not count."""

_SHOWN_ROWS_MAX = 8
"""Forgotten rows that an error lists: enough to find the place in the code."""


class ArenaSlot(Protocol):
    """Buffer of a pool: `view` has at least the requested size."""

    @property
    def view(self) -> memoryview: ...

    def release(self) -> None: ...


class Pool(Protocol):
    """Source of buffers for copies: `arena.ArenaPool`."""

    def take(self, size_bytes: int) -> ArenaSlot: ...


class Settings:
    """Settings of this process. `is_checking`: compare marked arrays fully."""

    is_checking = False


trackers: dict[int, "Tracker"] = {}
"""Trackers by id of the root. An entry goes when its root does, so an id is never taken for another array's."""


class Tracker(ABC):
    """Finds which chunks of one piece of memory changed.

    Attributes:
        root: the array that owns the memory, weakly; all its views keep it alive.
        address, size_bytes: of the memory, when it was registered.
        process: that may use this tracker.
        name: the array as the user sees it, in words, for errors and notes.
        chunk_bytes: of the last capture; 0: none yet.
        clean: for each chunk the token of its content at the last capture, as it is handed out if the base has it. Images share these: never change
        them. Empty: no capture yet.
        numbers: the fresh tokens of this array.
    """

    def __init__(self, root: "Array", shown: "Array") -> None:
        self.root = weakref.ref(root, self._on_root_gone)
        self.address = address_of(root)
        self.size_bytes = root.nbytes
        self.process = os.getpid()
        self.name = name_of(shown)
        self.chunk_bytes = 0
        self.clean: list[SourceChunk] = []
        self.numbers = _fresh_tokens()
        self._key = id(root)
        trackers[self._key] = self

    def _on_root_gone(self, _: object) -> None:
        if trackers.get(self._key) is self:
            del trackers[self._key]

    @property
    def is_on(self) -> bool:
        """Return whether captures may rely on it."""
        return self.process == os.getpid()

    def covers(self, array: "Array") -> bool:
        """Return whether `array` is this memory, whole, in C order, and the memory is still where it was."""
        root = self.root()
        same = root is not None and address_of(root) == self.address and root.nbytes == self.size_bytes
        return (
            same and array.flags.c_contiguous and array.nbytes == self.size_bytes and address_of(array) == self.address
        )

    def chunks(
        self, base: ChunkTable | None, chunk_bytes: int, pool: Pool
    ) -> tuple[list[SourceChunk], Callable[[], None] | None]:
        """Return the chunks of the array as it is now, and what gives their room back (None: no room was needed).

        Chunks that `base` has come without data; the others' bytes lie in room from `pool`, so later writes do not reach
        them. With few changes the array is hardly read.

        Args:
            base: what the last complete epoch consists of; None: nothing.
            chunk_bytes: size of all chunks but the last. With another size than before, everything counts as changed.
            pool: where the copies go.

        Raises:
            UsageError: the array is gone; or `checking` is on and a mark was forgotten.
            Whatever `pool.take` raises: the next capture then knows as much as this one did.
        """
        root = self.root()
        if root is None:
            raise UsageError("the array of this tracker is gone; ask tracker_of for one of the array in the state")
        content = root.reshape(-1).view("u1")
        self._renew(content, chunk_bytes)
        known = {} if base is None else base.by_token
        missing = [place for place, chunk in enumerate(self.clean) if chunk.token not in known]
        if not missing:
            return self.clean.copy(), None
        room = pool.take(sum([self.clean[place].size_bytes for place in missing]))
        try:
            return self._copied(content, missing, room.view), room.release
        except BaseException:
            room.release()
            raise

    @abstractmethod
    def start(self, content: "Array") -> None:
        """Start counting changes: the chunks have tokens now. Runs again when the size of the chunks changes."""

    @abstractmethod
    def changed(self, content: "Array") -> "Array":
        """Return which chunks may have changed since the call before, or since `start`: a bool for each."""

    def mark(self, start: int, end: int) -> None:  # noqa: B027  # who asks the kernel needs no marks
        """The bytes from `start` to `end` (any integers; offsets from `address`) changed."""

    def mark_many(self, starts: "Array", ends: "Array") -> None:  # noqa: B027  # the same
        """Mark many ranges; see `mark`."""

    def begin(self, content: "Array", chunk_bytes: int) -> None:
        """Give a fresh token to every chunk."""
        count = -(-self.size_bytes // chunk_bytes)
        self.chunk_bytes = chunk_bytes
        self.clean = [SourceChunk(next(self.numbers), None, chunk_bytes) for _ in range(count)]
        self.clean[-1].size_bytes = self.size_bytes - (count - 1) * chunk_bytes
        self.start(content)

    def _renew(self, content: "Array", chunk_bytes: int) -> None:
        """Give a fresh token to every chunk that changed."""
        if chunk_bytes != self.chunk_bytes:
            self.begin(content, chunk_bytes)
            return
        for place in self.changed(content).nonzero()[0].tolist():
            self.clean[place] = SourceChunk(next(self.numbers), None, self.clean[place].size_bytes)

    def _copied(self, content: "Array", missing: list[int], view: memoryview) -> list[SourceChunk]:
        """Return all chunks; those in `missing` with their bytes copied to `view`."""
        import numpy

        result = self.clean.copy()
        target = numpy.frombuffer(view, numpy.uint8)
        at = 0
        for first, last in runs_of(missing):
            start = first * self.chunk_bytes
            size = min((last + 1) * self.chunk_bytes, self.size_bytes) - start
            numpy.copyto(target[at : at + size], content[start : start + size])
            for place in range(first, last + 1):
                clean = result[place]
                result[place] = SourceChunk(clean.token, view[at : at + clean.size_bytes], clean.size_bytes)
                at += clean.size_bytes
        return result


class KernelTracker(Tracker):
    """Asks the kernel. Switches itself off for an array that is mostly rewritten, and never on again.

    Attributes:
        writes: the kernel's side; armed at the first capture. None: this memory cannot be tracked.
        was_given_up: it was tracked, and did not pay or did not work.
        busy: captures in a row with more than half of the pages written.
    """

    def __init__(self, root: "Array", *, is_mapped: bool) -> None:
        super().__init__(root, root)
        mapped_bytes = write_tracking.page_rounded(self.size_bytes)
        self.writes = write_tracking.WriteTracker(self.address, mapped_bytes) if is_mapped else None
        self.was_given_up = False
        self.busy = 0

    @property
    def is_on(self) -> bool:
        return super().is_on and self.writes is not None

    def start(self, content: "Array") -> None:
        if self.writes is None:
            return
        try:
            if not self.writes.is_armed:
                self.writes.arm()
            else:
                self.writes.scan_words()
        except ExternalFailureError as error:
            self._switch_off(str(error))

    def changed(self, content: "Array") -> "Array":
        import numpy

        words = self._scan()
        if words is None:
            return numpy.ones(len(self.clean), bool)
        regions = numpy.frombuffer(words, numpy.uint64).reshape(-1, write_tracking.REGION_WORDS)
        starts, ends = (regions[:, :2] - numpy.uint64(self.address)).astype(numpy.int64).T
        self._weigh(int((ends - starts).sum()))
        return covering(starts, ends, count=len(self.clean), chunk_bytes=self.chunk_bytes)

    def _scan(self) -> "array.array[int] | None":
        """Return what was written, as `scan_words`; None: unknown."""
        try:
            return None if self.writes is None else self.writes.scan_words()
        except ExternalFailureError as error:
            self._switch_off(str(error))
            return None

    def _weigh(self, written_bytes: int) -> None:
        """Count busy captures, and switch off when there are too many in a row."""
        self.busy = self.busy + 1 if written_bytes * 2 > self.size_bytes else 0
        if self.busy >= OFF_AFTER:
            self._switch_off(f"more than half of it was written before each of {OFF_AFTER} captures")

    def _switch_off(self, reason: str) -> None:
        writes, self.writes, self.was_given_up = self.writes, None, True
        if writes is not None:
            writes.close()
        log.info("writes to %s are not tracked any more; captures copy it whole: %s", self.name, reason)


class MarkTracker(Tracker):
    """Trusts the marks of `mark_dirty`.

    Attributes:
        row_bytes: of a row, for errors.
        dirty: bool for each chunk: marked since the last capture. None: no capture yet.
        seen, marked: with `checking`: the bytes at the last capture, and which of them were marked since. Otherwise None.
    """

    def __init__(self, root: "Array", shown: "Array") -> None:
        """`shown`: the array that was marked; its rows are what errors name if it covers the memory."""
        is_whole = shown.nbytes == root.nbytes and shown.flags.c_contiguous
        shown = shown if is_whole else root
        super().__init__(root, shown)
        self.row_bytes = shown.nbytes // shown.shape[0] if shown.ndim else shown.nbytes
        self.dirty: Array | None = None
        self.seen: Array | None = None
        self.marked: Array | None = None

    def start(self, content: "Array") -> None:
        import numpy

        self.dirty = numpy.zeros(len(self.clean), bool)
        self._remember(content)

    def changed(self, content: "Array") -> "Array":
        assert self.dirty is not None, "asked before start"
        if Settings.is_checking:
            self._check(content)
        self._remember(content)
        result = self.dirty.copy()
        self.dirty[:] = False
        return result

    def mark(self, start: int, end: int) -> None:
        # Before the first capture everything counts as changed anyway.
        start, end = max(start, 0), min(end, self.size_bytes)
        if self.dirty is not None and start < end:
            self.dirty[start // self.chunk_bytes : (end - 1) // self.chunk_bytes + 1] = True
            if self.marked is not None:
                self.marked[start:end] = True

    def mark_many(self, starts: "Array", ends: "Array") -> None:
        if self.dirty is None:
            return
        starts, ends = starts.clip(0, self.size_bytes), ends.clip(0, self.size_bytes)
        is_inside = starts < ends
        starts, ends = starts[is_inside], ends[is_inside]
        self.dirty |= covering(starts, ends, count=len(self.dirty), chunk_bytes=self.chunk_bytes)
        if self.marked is not None:
            self.marked |= covering(starts, ends, count=self.size_bytes, chunk_bytes=1)

    def _remember(self, content: "Array") -> None:
        import numpy

        is_checking = Settings.is_checking
        self.seen = content.copy() if is_checking else None
        self.marked = numpy.zeros(len(content), bool) if is_checking else None

    def _check(self, content: "Array") -> None:
        """Raise if a byte changed that was not marked; exactly so, not by chunks."""
        if self.seen is None or self.marked is None:
            return  # Checking began after the last capture.
        forgotten = ((content != self.seen) & ~self.marked).nonzero()[0]
        if len(forgotten):
            rows = sorted(set((forgotten // self.row_bytes).tolist()))
            raise UsageError(
                f"{self.name}: {_listed(rows)} changed without a mark; call mark_dirty(array, rows) after each write"
            )


def _fresh_tokens() -> Iterator[int]:
    """Yield tokens without end."""
    while True:
        first = fresh_token()
        yield from range(first, first + BLOCK_TOKENS)


def _listed(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:_SHOWN_ROWS_MAX]))
    more = len(rows) - _SHOWN_ROWS_MAX
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}" + (f" and {more} more" if more > 0 else "")
