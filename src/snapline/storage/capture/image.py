"""The result of a capture, which is a skeleton and parts, and the arena, which is memory into which parts are copied.

A state is one MessagePack record, the *skeleton*, and a list of *parts*. A part is a large or rarely changed value:
the bytes of an array, the records of a history, an opaque blob. The skeleton contains the part's index in the list.

A part is cut into *chunks*, the unit in which the store keeps and deduplicates bytes. Chunks of a base epoch are not stored again. A chunk
that is known to be unchanged has a *token*: a number that identifies one content and is never reused. If it is unknown whether a chunk has
changed (in an array that was copied whole), its token is 0 and the writer compares hashes.

    event loop, between turns   encoder: state, base -> `StateImage`      (the pause: at most one copy, at memory speed)
    worker thread               chunking: image, base -> `StatePart`s for the checkpoint, new chunks, and a `ChunkTable`
    when the epoch is complete  the epoch's table is the next base

    One worker uses an image once and then releases it, so that its buffers return to the arena.

**Tokens.** All parts of an agent's image share one table that maps tokens to chunks. So every kind of part must draw its tokens here. With
two counters, two contents could have one token, and a checkpoint would silently contain the wrong bytes.

A token is meaningless outside the process that drew it, and is never stored.

**The arena** is warm memory into which the encoder copies values that may change after the pause. The problem: because of page faults, a
copy into fresh memory runs at a sixth of the speed of memcpy. So buffers are mapped and prefaulted once, and kept after an image has been
written. Buffers that the writer still reads cannot be reused, so a second capture takes other buffers, and two sets of buffers alternate.

Sizes are rounded up to size classes, eight for each power of two. So arrays that grow a little still find their buffer, and at most
an eighth of a buffer is unused. If no buffer of this class is idle, a buffer of up to twice the wanted size is used.

Invariants:

1. A buffer belongs to the pool or to one caller. A buffer is returned once, and a second `release` has no effect.
2. The bytes of all buffers, taken or idle, are at most `bytes_max`.
3. All buffers together have at most twice the recent peak of bytes in use: one set is written while the next is filled, and nothing else is
   kept. The peak decays by a thirty-second of each buffer taken. So a buffer is freed only after about sixteen times its size was copied
   without it. Faulting the buffer in again costs little compared with those copies.

The caller's duties: do not write to a buffer after its image has left the event loop, and release the buffer when nothing reads it any
more. `take`, `release` and `reserve` may be called from any thread.
"""

import contextlib
import functools
import itertools
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from snapline.errors import StoreError
from snapline.storage.disk.record import Buffer
from snapline.storage.packs.checkpoint import ChunkReference

PART_ARRAY = 1
"""Kind of a part that is an array. Head: MessagePack of `[dtype, shape]`. All chunks except the last have the same size."""
PART_HISTORY = 2
"""Kind of a part that is a history. Head: MessagePack of `[count]`, the number of live records. Each chunk is a segment (`history.py`)."""
PART_BLOB = 3
"""Kind of a part that is a blob. Head: empty. The bytes are opaque, and the content determines where chunks end."""
PART_TENSOR = 4
"""Kind of a part that is a tensor, stored like an array. Head: MessagePack of `[torch dtype, shape]`."""
PART_JOURNAL = 5
"""Kind of the part that is a turn's journal, which is not state. Head: MessagePack of `[count]`, the number of entries. Each chunk is a run
(`chunking.py`)."""


class SourceChunk(msgspec.Struct, gc=False):
    """A captured chunk of a part.

    Attributes:
        token: number that identifies the content, or 0 if the content may have changed.
        data: bytes of the chunk, or None if the chunk is unchanged since the base, whose table contains `token`.
        size_bytes: length of the content.
    """

    token: int
    data: Buffer | None
    size_bytes: int


class CapturedPart(msgspec.Struct):
    """One part of an image. `chunk_bytes` is the size of all chunks except the last, or 0 if sizes vary."""

    kind: int
    head: bytes
    size_bytes: int
    chunk_bytes: int
    chunks: list[SourceChunk]


class Authors(msgspec.Struct):
    """Handlers that may have changed a state since its previous image was captured.

    Attributes:
        handlers: names of the handlers, in the order of their first turn.
        is_refused: the image was unusable, so the next image inherits these authors.
    """

    handlers: dict[str, None] = {}
    is_refused: bool = False


class StateImage(msgspec.Struct):
    """Image of one agent's state between two turns.

    Attributes:
        skeleton: MessagePack record, in which extension `PART_EXTENSION` refers to a part.
        parts: parts in the order of the skeleton.
        on_release: callbacks that return the buffers. Each callback is called once, when the parts have been written or dropped.
        pending: function that returns the skeleton if another process is still encoding it. See `resolve`.
        authors: handlers to name in the error message if the image is unusable.
    """

    skeleton: bytes
    parts: list[CapturedPart] = []
    on_release: list[Callable[[], None]] = []
    pending: Callable[[], bytes] | None = None
    authors: Authors = msgspec.field(default_factory=Authors)

    @property
    def size_bytes(self) -> int:
        """Size of the state in bytes, which includes skeleton and parts."""
        return len(self.skeleton) + sum([part.size_bytes for part in self.parts])

    def resolve(self) -> None:
        """Wait for the skeleton if another process is encoding it. Call this method in a worker thread.

        Raises:
            EncodingError: If the state cannot be saved.
            StoreError: If the other process failed.
        """
        if self.pending is not None:
            self.skeleton, self.pending = self.pending(), None

    def release(self) -> None:
        """Release the buffers that hold the bytes of the parts, which are no longer needed."""
        callbacks, self.on_release = self.on_release, []
        for callback in callbacks:
            callback()


class ChunkTable(msgspec.Struct):
    """Chunks of one agent's checkpoint in one epoch. The agent's next checkpoint may refer to these chunks.

    Attributes:
        by_token: map from token to chunk.
        by_place: map from (part, chunk) indices to (hash, chunk), for chunks without a token. The hash is `xxh3_128` under this process's
            seed. After a restore the hash is empty, because only the digest is known.
        digests: map from digest to chunk, for all chunks.
    """

    by_token: dict[int, ChunkReference] = {}
    by_place: dict[tuple[int, int], tuple[bytes, ChunkReference]] = {}
    digests: dict[bytes, ChunkReference] = {}


BLOCK_TOKENS = 1 << 32
"""Number of tokens in a block. A blob that another thread cuts later numbers its chunks `first`, `first + 1`, …. A blob of 2**32 chunks of
16 KiB would have 64 TiB."""

_blocks = itertools.count(1)


def fresh_token() -> int:
    """Return the first number of a block of tokens that no other caller gets. The number is never 0. Any thread may call this function."""
    return next(_blocks) * BLOCK_TOKENS


ARENA_IMAGES_MAX = 3
"""Largest number of images of one agent that hold buffers: one is being written, one waits for its epoch, and one is being captured. More
images would mean that the store is slower than the checkpoints, and would fill the memory."""

MEMORY_SHARE_MAX = 0.5
"""Default limit on the pool, as a share of the machine's memory. The states themselves need the other half."""

CLASSES_PER_DOUBLING = 8
FIT_FACTOR_MAX = 2
"""Largest ratio of a buffer's size to the wanted size. Larger buffers are left for larger requests."""

PEAK_DECAY_PER_BYTE = 1 / 32
RETAINED_PEAK_FACTOR = 2

BUFFER_BYTES_MIN = 16 * 1024
HUGE_PAGE_BYTES = 2 * 1024 * 1024

_MADV_POPULATE_WRITE = 23  # Linux 5.14; `mmap` has no name for it yet


class ArenaBusyError(StoreError):
    """No buffer is available, because earlier images have not been written yet. The capture is deferred, and nothing is lost."""


def class_of(size_bytes: int) -> int:
    """Return the size of the buffer for `size_bytes` bytes, in whole pages. The result is at most an eighth larger than `size_bytes`,
    except for very small sizes."""
    wanted = max(size_bytes, BUFFER_BYTES_MIN)
    step = max(mmap.PAGESIZE, (1 << (wanted - 1).bit_length()) // (2 * CLASSES_PER_DOUBLING))
    return -(-wanted // step) * step


class _Block:
    """Mapped memory, of which the first `warm_bytes` bytes have been touched."""

    __slots__ = ("last_use", "memory", "size_bytes", "warm_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.memory = map_memory(size_bytes)
        self.warm_bytes = 0
        self.last_use = 0

    def warm(self, size_bytes: int) -> None:
        """Prefault the first `size_bytes` bytes."""
        end = min(self.size_bytes, -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        if end > self.warm_bytes:
            _prefault(self.memory, self.warm_bytes, end)
            self.warm_bytes = end


class ArenaBuffer:
    """A buffer of the arena for one caller. `view` is writable and page-aligned, and has the requested length."""

    __slots__ = ("_block", "_pool", "view")

    def __init__(self, pool: "ArenaPool", block: _Block, size_bytes: int) -> None:
        self._pool = pool
        self._block: _Block | None = block
        self.view = memoryview(block.memory)[:size_bytes]

    def release(self) -> None:
        """Return the buffer to the pool. A second call has no effect. Any thread may call this method."""
        self._pool._give_back(self)


class ArenaPool:
    """The buffers of one host process.

    Args:
        bytes_max: limit on the total size of all buffers of the pool, or None to use half of the machine's memory.
    """

    def __init__(self, *, bytes_max: int | None = None) -> None:
        self._lock = threading.Lock()
        self._bytes_max = bytes_max
        self._idle: dict[int, list[_Block]] = {}  # Map from size to blocks, with the warmest last.
        self.idle_bytes = 0
        """Total size in bytes of the idle buffers that are kept warm."""
        self._taken_bytes = 0
        self._peak_bytes = 0.0
        self._uses = 0

    @property
    def taken_bytes(self) -> int:
        """Total size in bytes of the buffers in use."""
        return self._taken_bytes

    def take(self, size_bytes: int) -> ArenaBuffer:
        """Return a buffer of `size_bytes` bytes with undefined content.

        Raises:
            ArenaBusyError: If a new buffer would exceed the limit.
            StoreError: If the machine is out of memory.
        """
        size = class_of(size_bytes)
        with self._lock:
            free_bytes = self._limit_bytes() - self._taken_bytes
            block = self._find(size)
            if block is None and size > free_bytes:
                raise ArenaBusyError(
                    f"{self._taken_bytes:,} bytes of captured states wait to be written and {size:,} more would exceed "
                    f"{self._limit_bytes():,}: the store is slower than the checkpoints, take them less often"
                )
            self._taken_bytes += block.size_bytes if block else size
            self._peak_bytes = max(self._taken_bytes, self._peak_bytes - size * PEAK_DECAY_PER_BYTE)
            self._drop_surplus()
        return self._ready(block, size, size_bytes)

    def reserve(self, size_bytes: int) -> bool:
        """Add a warm buffer for a later `take`, so that a capture need not wait for page faults. Return whether the buffer was added.

        The call is slow, so make it from a worker thread. The call has no effect if the machine or the limit leaves no room.
        """
        size = class_of(size_bytes)
        with self._lock:
            if self._taken_bytes + self.idle_bytes + size > self._limit_bytes():
                return False
        try:
            block = _Block(size)
        except StoreError:
            return False
        block.warm(size_bytes)
        with self._lock:
            self._put(block)
            self._peak_bytes = max(self._peak_bytes, self._taken_bytes + self.idle_bytes)
        return True

    def _ready(self, block: _Block | None, size: int, size_bytes: int) -> ArenaBuffer:
        try:
            chosen = block or _Block(size)
        except StoreError:
            with self._lock:
                self._taken_bytes -= size
            raise
        chosen.warm(size_bytes)
        return ArenaBuffer(self, chosen, size_bytes)

    def _limit_bytes(self) -> int:
        if self._bytes_max is None:
            self._bytes_max = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_SHARE_MAX)
        return self._bytes_max

    def _find(self, size: int) -> _Block | None:
        """Remove and return the smallest idle block that fits, or None if none fits. By invariant 2 there is room for the block."""
        fitting = [known for known in self._idle if size <= known <= FIT_FACTOR_MAX * size]
        if not fitting:
            return None
        best = min(fitting)
        block = self._idle[best].pop()
        if not self._idle[best]:
            del self._idle[best]
        self.idle_bytes -= best
        return block

    def _put(self, block: _Block) -> None:
        self._uses += 1
        block.last_use = self._uses
        self._idle.setdefault(block.size_bytes, []).append(block)
        self.idle_bytes += block.size_bytes

    def _give_back(self, buffer: ArenaBuffer) -> None:
        with self._lock:
            block, buffer._block = buffer._block, None
            if block is None:
                return
            self._taken_bytes -= block.size_bytes
            self._put(block)

    def _drop_surplus(self) -> None:
        bytes_max = min(RETAINED_PEAK_FACTOR * self._peak_bytes, self._limit_bytes())
        while self._idle and self._taken_bytes + self.idle_bytes > bytes_max:
            self._drop_one()

    def _drop_one(self) -> None:
        """Drop a block of the size to which no block has been returned for the longest time.

        The block's memory is unmapped only when its last view is gone. A caller that still holds a view by mistake must not crash.
        """
        stalest = min(self._idle, key=lambda size: self._idle[size][-1].last_use)
        self.idle_bytes -= stalest
        self._idle[stalest].pop(0)
        if not self._idle[stalest]:
            del self._idle[stalest]


def map_memory(size_bytes: int) -> mmap.mmap:
    """Return zero-filled private memory, in huge pages if it is large enough. The memory is unmapped when its last view is gone.

    Raises:
        StoreError: If the machine is out of memory.
    """
    try:
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError) as error:
        raise StoreError(
            f"there is no memory for {size_bytes:,} bytes of a state: checkpoint fewer agents at once, or use a larger machine"
        ) from error
    if size_bytes >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # Without huge pages there are only more page faults.
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _prefault(memory: mmap.mmap, start: int, end: int) -> None:
    """Touch the pages of `[start, end)` for writing, without changing their contents."""
    if not _populate(memory, start, end):
        for place in range(start, end, mmap.PAGESIZE):
            memory[place] = memory[place]


def _populate(memory: mmap.mmap, start: int, end: int) -> bool:
    """Populate all pages in one call, and return whether this succeeded. Unlike `mmap.madvise`, ctypes releases the interpreter lock."""
    import ctypes

    madvise = _madvise()
    if madvise is None:
        return False
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start
    return bool(madvise(ctypes.c_void_p(address), ctypes.c_size_t(end - start), _MADV_POPULATE_WRITE) == 0)


@functools.cache
def _madvise() -> Any:
    """Return the C library's function `madvise`, or None if it is missing."""
    import ctypes

    return getattr(ctypes.CDLL(None), "madvise", None)
