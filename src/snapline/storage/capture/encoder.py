"""Captures the image of a state between two turns, which is the only pause that an agent notices.

The problem: a state may hold gigabytes, and the agent must not continue before it has been read. So only values that may change
afterwards are copied, at memory speed, into warm memory (`image.ArenaPool`). A worker thread does all slower work (hashing, compressing,
writing) on the copy.

Destinations:

    arrays and tensors of `ARRAY_PART_BYTES_MIN` and more    a part; copied whole, or only the changes if writes are tracked
    History, Blob                                            a part; its contents never change, so nothing is copied
    pickles of `PICKLE_PART_BYTES_MIN` and more              a part
    everything else                                          in the skeleton

Copies of small arrays share slabs, so that a state of a thousand arrays needs tens of buffers. Larger arrays have a buffer
each, whose size is the same at the next capture, so the same buffer fits again.

Invariants:

1. No byte of an image changes after `encode` has returned, whatever the agent does (G1: the image shows one moment).
2. If `encode` raises an error, all buffers that it took have been returned.
3. At most `ARENA_IMAGES_MAX` images of one agent hold buffers.

The caller's duties: call `encode` between two turns, on the event loop; call `image.release()` when nothing reads the parts any more.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from snapline.errors import EncodingError
from snapline.storage.capture import numpy_and_torch
from snapline.storage.capture.declared_values import check_declared, survives_round_trip
from snapline.storage.capture.image import (
    ARENA_IMAGES_MAX,
    PART_ARRAY,
    PART_TENSOR,
    ArenaBuffer,
    ArenaBusyError,
    ArenaPool,
    CapturedPart,
    ChunkTable,
    SourceChunk,
    StateImage,
)
from snapline.storage.capture.numpy_and_torch import numpy_if_loaded
from snapline.storage.capture.unsupported_state import explain
from snapline.storage.capture.values import (
    FAILURES,
    HISTORY_MODULE,
    PART_EXTENSION,
    PICKLE_EXTENSION,
    PICKLE_INLINE,
    PICKLE_PART,
    Blob,
    Pickled,
    array_head,
    check_array,
    encode_pickling,
    encode_value,
    is_a,
    pickled_bytes,
)

ARRAY_PART_BYTES_MIN = 16 * 1024
"""Smallest array in bytes with its own part; smaller arrays are in the skeleton. A part costs 100 bytes in the checkpoint, and a chunk at
least as many in a pack."""

PICKLE_PART_BYTES_MIN = 64 * 1024
"""Smallest pickle in bytes with its own part: the size of one chunk, since a smaller pickle could only be reused whole."""

CHUNK_BYTES = 64 * 1024
LARGE_CHUNK_BYTES = 256 * 1024
LARGE_ARRAY_BYTES = 1 << 30
"""Size in bytes from which arrays have larger chunks: 1 GiB then has 4,096. Smaller chunks would cost more in digests than they save."""

SLAB_BYTES_MIN = 64 * 1024
SLAB_BYTES_MAX = 4 * 1024 * 1024
"""Largest slab in bytes. Slab sizes double: an agent with one small array holds little memory, and one with many arrays takes few slabs."""

OWN_BUFFER_BYTES_MIN = 1024 * 1024
"""Size in bytes from which an array has a buffer of its own."""

PARALLEL_COPY_BYTES_MIN = 16 * 1024 * 1024
"""Size in bytes from which two threads copy. Such a copy takes over a millisecond, and starting a thread a twentieth of that."""

_ALIGNMENT_BYTES = 64
"""Alignment of arrays in a slab in bytes: a cache line, and enough for every dtype."""

_TRACKED_MODULE = "snapline.storage.capture.tracked_arrays"


class StateEncoder:
    """Encoder for the states of one agent.

    Args:
        pool: source of the buffers for copies; shared by the agents of a host.
        allow_pickle: whether `Pickled` values may be saved.
        declared: type of the states. Values that would not be restored as declared are refused; with None, no value is refused.
    """

    def __init__(self, pool: ArenaPool, *, allow_pickle: bool = False, declared: Any = None) -> None:
        self._pool = pool
        self._declared = declared
        self._allow_pickle = allow_pickle
        self._inline = msgspec.msgpack.Encoder(enc_hook=encode_pickling if allow_pickle else encode_value)
        self._lock = threading.Lock()
        self._held_images = 0

    def encode(self, state: object, base: ChunkTable | None = None) -> StateImage:
        """Return the image of `state`, without the chunks that `base` contains. With `base` None, all chunks are included.

        Raises:
            EncodingError: a value cannot be saved; the message names its path.
            ArenaBusyError: earlier images have not been written yet; try again later.
            StoreError: the machine is out of memory.
        """
        self._check(state)
        capture = _Capture(self._pool, base, allow_pickle=self._allow_pickle, check_can_copy=self._check_can_copy)
        try:
            skeleton = msgspec.msgpack.encode(state, enc_hook=capture.encode_value)
        except BaseException as error:
            capture.release()
            if isinstance(error, FAILURES) and not isinstance(error, EncodingError):
                raise EncodingError(explain(state, error, allow_pickle=self._allow_pickle)) from error
            raise
        if capture.on_release:
            self._count_image(capture.on_release)
        return StateImage(skeleton=skeleton, parts=capture.parts, on_release=capture.on_release)

    def encode_inline(self, state: object) -> bytes:
        """Return `state` as one record without parts, for short-lived images and for messages.

        Raises:
            EncodingError: a value cannot be saved; the message names its path.
        """
        self._check(state)
        return self._encoded_inline(state)

    def _encoded_inline(self, state: object) -> bytes:
        try:
            return self._inline.encode(state)
        except FAILURES as error:
            raise EncodingError(explain(state, error, allow_pickle=self._allow_pickle)) from error

    def _check(self, state: object) -> None:
        """Refuse values that would be restored as something else. Values that cannot be encoded are reported first."""
        if self._declared is not None and not survives_round_trip(state, self._declared):
            self._encoded_inline(state)
            check_declared(state, self._declared, "state")

    def buffer_sizes(self, state: object) -> list[int]:
        """Return the buffer sizes that a full `encode` of `state` takes from the pool. Nothing is copied. Call `pool.reserve` for each
        size in a worker thread, so that the first capture need not wait for page faults.

        Raises:
            EncodingError: a value cannot be saved; the message names its path.
        """
        sizes: list[int] = []
        plan = _Plan(sizes)

        def note(value: object) -> object:
            size = _large_size_of(value)
            if size is None:
                return self._inline_hook(value)
            plan.place(size)
            return None

        try:
            msgspec.msgpack.encode(state, enc_hook=note)
        except FAILURES as error:
            raise EncodingError(explain(state, error, allow_pickle=self._allow_pickle)) from error
        return sizes

    def _inline_hook(self, value: object) -> object:
        return encode_pickling(value) if self._allow_pickle else encode_value(value)

    def _check_can_copy(self) -> None:
        if self._held_images >= ARENA_IMAGES_MAX:
            raise ArenaBusyError(
                f"{self._held_images} images of the agent wait to be written: the store is slower than the checkpoints, "
                "take them less often"
            )

    def _count_image(self, on_release: list[Callable[[], None]]) -> None:
        with self._lock:
            self._held_images += 1
        on_release.append(self._uncount_image)

    def _uncount_image(self) -> None:
        with self._lock:
            self._held_images -= 1


class _Plan:
    """Assignment of each copy to a place in the slabs. The result is deterministic, so a state takes the same buffers each time."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes  # sizes of the buffers, in the order in which they are taken
        self.slab = -1
        self.used_bytes = 0
        self.next_bytes = SLAB_BYTES_MIN

    def place(self, size_bytes: int) -> tuple[int, int]:
        """Return the index of the buffer and the offset in it."""
        if size_bytes >= OWN_BUFFER_BYTES_MIN:
            self.sizes.append(size_bytes)
            return len(self.sizes) - 1, 0
        if self.slab < 0 or self.used_bytes + size_bytes > self.sizes[self.slab]:
            self._add_slab(size_bytes)
        offset = self.used_bytes
        self.used_bytes += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return self.slab, offset

    def _add_slab(self, size_bytes: int) -> None:
        while self.next_bytes < size_bytes:
            self.next_bytes *= 2
        self.sizes.append(self.next_bytes)
        self.slab, self.used_bytes = len(self.sizes) - 1, 0
        self.next_bytes = min(2 * self.next_bytes, SLAB_BYTES_MAX)


class _Capture:
    """An image under construction. msgspec calls `encode_value` as its `enc_hook`."""

    def __init__(
        self, pool: ArenaPool, base: ChunkTable | None, *, allow_pickle: bool, check_can_copy: Callable[[], None]
    ) -> None:
        self.parts: list[CapturedPart] = []
        self.on_release: list[Callable[[], None]] = []
        self._pool = pool
        self._base = base
        self._allow_pickle = allow_pickle
        self._check_can_copy = check_can_copy
        self._seen: dict[int, object] = {}  # id → mutable object in a part; kept alive, so that no id is reused
        self._sizes: list[int] = []
        self._plan = _Plan(self._sizes)
        self._views: list[memoryview] = []

    def release(self) -> None:
        """Return all buffers to the pool."""
        callbacks, self.on_release = self.on_release, []
        for callback in callbacks:
            callback()

    def take(self, size_bytes: int) -> ArenaBuffer:
        """Return a buffer that is released with the image. The interface is that of `ArenaPool.take`, for write trackers.

        Raises:
            ArenaBusyError, StoreError: no buffer is available.
        """
        self._check_can_copy()
        buffer = self._pool.take(size_bytes)
        self.on_release.append(buffer.release)
        return buffer

    def encode_value(self, value: object) -> object:
        """Return the skeleton's entry for a value of a type unknown to msgspec."""
        numpy = numpy_if_loaded()
        if numpy is not None and isinstance(value, numpy.ndarray) and value.nbytes >= ARRAY_PART_BYTES_MIN:
            check_array(value)
            return self._add(value, self._array(value))
        if is_a(value, HISTORY_MODULE, "History") or type(value) is Blob:
            return self._add(value, value.capture(self._base))  # type: ignore[attr-defined]  # both have it
        if numpy_and_torch.is_tensor(value) and numpy_and_torch.size_of(value) >= ARRAY_PART_BYTES_MIN:
            content = numpy_and_torch.bytes_of(value)
            return self._add(value, self._copied(PART_TENSOR, numpy_and_torch.head_of(value), content))
        if self._allow_pickle and type(value) is Pickled:
            return self._pickled(pickled_bytes(value))
        return encode_value(value)

    def _add(self, value: object, part: CapturedPart) -> object:
        """Add a part. An object may occur only once: it would be restored as two, and a cycle would copy an array at each level."""
        if id(value) in self._seen and type(value) is not Blob:
            raise NotImplementedError(f"the same {type(value).__qualname__} twice")
        self._seen[id(value)] = value
        self.parts.append(part)
        return msgspec.msgpack.Ext(PART_EXTENSION, msgspec.msgpack.encode(len(self.parts) - 1))

    def _pickled(self, data: bytes) -> object:
        if len(data) < PICKLE_PART_BYTES_MIN:
            return msgspec.msgpack.Ext(PICKLE_EXTENSION, PICKLE_INLINE + data)

        self.parts.append(Blob(data).capture(self._base))
        return msgspec.msgpack.Ext(PICKLE_EXTENSION, PICKLE_PART + msgspec.msgpack.encode(len(self.parts) - 1))

    def _array(self, array: Any) -> CapturedPart:
        tracked = sys.modules.get(_TRACKED_MODULE)  # without the module there is no tracked array
        tracker = None if tracked is None else tracked.tracker_of(array)
        is_tracked = tracked is not None and tracked.is_tracked(array)
        if tracker is None and array.flags.f_contiguous and not array.flags.c_contiguous:
            # Transposing takes twelve times as long as copying.
            return self._copied(PART_ARRAY, array_head(array, order="F"), array.T)
        head = array_head(array, is_tracked=is_tracked)
        if tracker is None:
            return self._copied(PART_ARRAY, head, array)
        chunk_bytes = chunk_bytes_for(array.nbytes)
        chunks, _ = tracker.chunks(self._base, chunk_bytes, self)  # its buffers are released with the image
        return CapturedPart(PART_ARRAY, head, array.nbytes, chunk_bytes, chunks)

    def _copied(self, kind: int, head: bytes, array: Any) -> CapturedPart:
        """Copy an array into the arena."""
        import numpy

        size = array.nbytes
        view = self._take_bytes(size)
        _copy(numpy.frombuffer(view, dtype=array.dtype).reshape(array.shape), array)
        return CapturedPart(kind, head, size, chunk_bytes_for(size), _cut(view, chunk_bytes_for(size)))

    def _take_bytes(self, size_bytes: int) -> memoryview:
        index, offset = self._plan.place(size_bytes)
        if index == len(self._views):
            self._views.append(self.take(self._sizes[index]).view)
        return self._views[index][offset : offset + size_bytes]


def _copy(target: Any, array: Any) -> None:
    """Copy an array. A large array is copied in two parallel halves, since one core cannot use the full memory bandwidth."""
    import numpy

    if array.nbytes < PARALLEL_COPY_BYTES_MIN or len(array) < 2:
        numpy.copyto(target, array)
        return
    middle = len(array) // 2
    other = threading.Thread(target=numpy.copyto, args=(target[middle:], array[middle:]), name="snapline-copy")
    other.start()
    numpy.copyto(target[:middle], array[:middle])
    other.join()


def chunk_bytes_for(size_bytes: int) -> int:
    """Return the size of the chunks of an array."""
    return LARGE_CHUNK_BYTES if size_bytes >= LARGE_ARRAY_BYTES else CHUNK_BYTES


def _cut(view: memoryview, chunk_bytes: int) -> list[SourceChunk]:
    """Return the chunks of a fresh copy whose changes are unknown."""
    size = len(view)
    full_bytes = size - size % chunk_bytes
    chunks = [
        SourceChunk(0, view[start : start + chunk_bytes], chunk_bytes) for start in range(0, full_bytes, chunk_bytes)
    ]
    if full_bytes < size:
        chunks.append(SourceChunk(0, view[full_bytes:], size - full_bytes))
    return chunks


def _large_size_of(value: object) -> int | None:
    """Return the number of bytes that an array or tensor takes from the pool; None for other values."""
    numpy = numpy_if_loaded()
    if numpy is not None and isinstance(value, numpy.ndarray):
        size = int(value.nbytes)
    else:
        size = numpy_and_torch.size_of(value) if numpy_and_torch.is_tensor(value) else 0
    return size if size >= ARRAY_PART_BYTES_MIN else None
