"""Image of a captured state, which consists of a skeleton and parts, and the arena, which is the memory into which parts are copied.

An encoded state consists of one MessagePack record, called the *skeleton*, and a list of *parts*. A part is a large or rarely changed
value: the bytes of an array, the records of a history, or an opaque blob. In place of the value, the skeleton contains the index of the
part in the list.

Each part is cut into *chunks*, which are the units in which the store keeps and deduplicates bytes. Chunks that are in the base epoch are
not stored again. If a chunk is known to be unchanged, it has a *token*, which is a number that identifies one content and is never reused.
If it is not known whether a chunk has changed (as in an array that was copied whole), its token is 0, and the writer compares hashes.

1. Between two turns, on the event loop, the encoder makes a `StateImage` from the state and the base. The agent pauses for this step, which
   takes at most as long as one copy at memory speed.
2. In a worker thread, `chunking` makes `StatePart`s for the checkpoint, the new chunks and a `ChunkTable` from the image and the base.
3. When the epoch is complete, the epoch's table becomes the next base.

Each image is used once, by one worker. The worker then releases the image, so that its buffers return to the arena.

**Tokens.** All parts of an agent's image share one table, which maps tokens to chunks. So the tokens for all kinds of parts must be drawn
by this module. If there were two counters, two contents could have the same token, and a checkpoint would silently contain wrong bytes.

A token is never stored, because it has no meaning outside the process that drew it.

**The arena** is warm memory into which the encoder copies values that may change after the pause. The problem: page faults make a copy into
fresh memory six times slower than memcpy. So buffers are mapped and prefaulted once, and they are kept after an image has been written. A
buffer cannot be reused while the writer still reads it, so a second capture takes other buffers, and two sets of buffers are used
alternately.

Sizes are rounded up to size classes, and there are eight size classes per power of two. So an array that has grown a little still fits into
its old buffer, and at most an eighth of a buffer is unused. If no buffer of the right size class is idle, a buffer of up to twice the
requested size is used.

Invariants:

1. Each buffer belongs either to the pool or to one caller. A buffer can be returned only once, and a second call of `release` has no
   effect.
2. The total size of all buffers, in use or idle, is at most `bytes_max`.
3. The total size of all buffers is at most twice the recent peak of bytes in use, because one set of buffers is written to the store while
   the next set is filled. For each buffer taken, the peak decays by a thirty-second of the buffer's size. So a buffer is freed only after
   about sixteen times its size has been copied to other buffers. Compared with these copies, mapping the buffer again is cheap.

The caller must not write to a buffer after its image has left the event loop, and must release the buffer when it is no longer read.
`take`, `release` and `reserve` may be called from any thread.
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
    """One captured chunk of a part.

    Attributes:
        token: number that identifies the content, or 0 if it is not known whether the content has changed.
        data: the bytes of the chunk, or None if the chunk has not changed since the base, whose table then contains `token`.
    """

    token: int
    data: Buffer | None
    size_bytes: int


class CapturedPart(msgspec.Struct):
    """One part of an image. `chunk_bytes` is the size of each chunk except the last, or 0 if the sizes vary."""

    kind: int
    head: bytes
    size_bytes: int
    chunk_bytes: int
    chunks: list[SourceChunk]


class Authors(msgspec.Struct):
    """Names of handlers that may have changed a state since the previous image was captured.

    Attributes:
        handlers: names of the handlers, in the order of their first turn.
        is_refused: whether the image was unusable. If the image was unusable, the next image also names these handlers.
    """

    handlers: dict[str, None] = {}
    is_refused: bool = False


class StateImage(msgspec.Struct):
    """Image of one agent's state between two turns.

    Attributes:
        skeleton: MessagePack record. Each extension `PART_EXTENSION` in the skeleton refers to a part.
        on_release: callbacks that return the image's buffers. Each callback is called once, after the parts have been written or discarded.
        pending: function that waits for the skeleton and returns it, or None if no other process is encoding the skeleton. See `resolve`.
        authors: handlers to name in an error message if the image is unusable.
    """

    skeleton: bytes
    parts: list[CapturedPart] = []
    on_release: list[Callable[[], None]] = []
    pending: Callable[[], bytes] | None = None
    authors: Authors = msgspec.field(default_factory=Authors)

    @property
    def size_bytes(self) -> int:
        """Size of the state in bytes, including the skeleton and all parts."""
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
        """Release the buffers that contain the bytes of the parts."""
        callbacks, self.on_release = self.on_release, []
        for callback in callbacks:
            callback()


class ChunkTable(msgspec.Struct):
    """All chunks of an agent's checkpoint in one epoch. The agent's next checkpoint may reuse these chunks.

    Attributes:
        by_place: for chunks without a token, map from (part index, chunk index) to (hash, chunk). The hash is `xxh3_128` with the seed of
            this process. After a restore, only the digests are known, so the hashes are empty.
    """

    by_token: dict[int, ChunkReference] = {}
    by_place: dict[tuple[int, int], tuple[bytes, ChunkReference]] = {}
    digests: dict[bytes, ChunkReference] = {}


BLOCK_TOKENS = 1 << 32
"""Number of tokens in a block. A blob that another thread cuts later numbers its chunks `first`, `first + 1`, …. A blob of 2**32 chunks of
16 KiB would have 64 TiB."""

_blocks = itertools.count(1)


def fresh_token() -> int:
    """Reserve a block of tokens that no other caller gets, and return its first number. The number is never 0. Any thread may call this
    function."""
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
    """Raised if no buffer is available, because earlier images have not been written yet. Nothing is lost, because the capture can be
    repeated later."""


def class_of(size_bytes: int) -> int:
    """Return the size in bytes of the buffer to use for `size_bytes` bytes. The buffer size is a multiple of the page size. Except for very
    small sizes, the result is at most an eighth larger than `size_bytes`."""
    wanted = max(size_bytes, BUFFER_BYTES_MIN)
    step = max(mmap.PAGESIZE, (1 << (wanted - 1).bit_length()) // (2 * CLASSES_PER_DOUBLING))
    return -(-wanted // step) * step


class _Block:
    """Block of mapped memory whose first `warm_bytes` bytes have already been touched."""

    __slots__ = ("last_use", "memory", "size_bytes", "warm_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.memory = map_memory(size_bytes)
        self.warm_bytes = 0
        self.last_use = 0

    def warm(self, size_bytes: int) -> None:
        """Touch the first `size_bytes` bytes, so that later writes cause no page faults."""
        end = min(self.size_bytes, -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        if end > self.warm_bytes:
            _prefault(self.memory, self.warm_bytes, end)
            self.warm_bytes = end


class ArenaBuffer:
    """A buffer of the arena that belongs to one caller. `view` is writable, page-aligned, and exactly as long as requested."""

    __slots__ = ("_block", "_pool", "view")

    def __init__(self, pool: "ArenaPool", block: _Block, size_bytes: int) -> None:
        self._pool = pool
        self._block: _Block | None = block
        self.view = memoryview(block.memory)[:size_bytes]

    def release(self) -> None:
        """Return this buffer to the pool. A second call has no effect. Any thread may call this method."""
        self._pool._give_back(self)


class ArenaPool:
    """All buffers of a host process.

    Args:
        bytes_max: limit on the total size of all buffers in the pool, or None for half of the machine's memory.
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
        """Total size of all buffers in use, in bytes."""
        return self._taken_bytes

    def take(self, size_bytes: int) -> ArenaBuffer:
        """Take a buffer of `size_bytes` bytes from the pool. Its contents are undefined.

        Raises:
            ArenaBusyError: If a new buffer would exceed the pool's limit.
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
        """Add a prefaulted buffer to the pool, so that a later capture does not wait for page faults. Return whether the buffer was added.

        The call is slow, so call it in a worker thread. No buffer is added if this would exceed the pool's limit or the machine is out of
        memory.
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
        """Remove the smallest idle block that is large enough from the pool, and return it. Return None if no idle block is large enough.
        Invariant 2 guarantees that the block is within the limit."""
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
        """Drop an idle block of the least recently used size.

        The memory of the block is unmapped only after its last view is gone. So a caller that still holds a view by mistake does not crash.
        """
        stalest = min(self._idle, key=lambda size: self._idle[size][-1].last_use)
        self.idle_bytes -= stalest
        self._idle[stalest].pop(0)
        if not self._idle[stalest]:
            del self._idle[stalest]


def map_memory(size_bytes: int) -> mmap.mmap:
    """Return zero-filled private memory. Large memory areas use huge pages. The memory is unmapped as soon as it has no more views.

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
    """Touch all pages of `[start, end)` for writing without changing their contents."""
    if not _populate(memory, start, end):
        for place in range(start, end, mmap.PAGESIZE):
            memory[place] = memory[place]


def _populate(memory: mmap.mmap, start: int, end: int) -> bool:
    """Populate all pages with a single system call. Return whether this succeeded. ctypes is used because it releases the interpreter's
    lock, unlike `mmap.madvise`."""
    import ctypes

    madvise = _madvise()
    if madvise is None:
        return False
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start
    return bool(madvise(ctypes.c_void_p(address), ctypes.c_size_t(end - start), _MADV_POPULATE_WRITE) == 0)


@functools.cache
def _madvise() -> Any:
    """Return the function `madvise` of the C library, or None if it does not exist."""
    import ctypes

    return getattr(ctypes.CDLL(None), "madvise", None)
