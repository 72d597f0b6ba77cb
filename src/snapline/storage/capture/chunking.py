"""Cutting an image into the chunks of a checkpoint's parts, and finding which chunks are new and which the base contains.

This module runs in a worker thread.

The cheapest test of a chunk comes first:

    token in the base                                reuse: the bytes are not read, and are often not even in the image
    no token, but the base has the same hash here    reuse: hashing reads at twice the speed of a copy
    digest in the base                               reuse: after a restore, or when a part has moved
    otherwise                                        new

The hash is xxh3-128 under a secret seed that this process draws, so nobody can prepare two contents with the same hash. The hash is never
stored and is not used to verify integrity. Stored chunks are named by their digest. Where the store is encrypted, the digest is keyed: the
caller supplies the digest function, and the base's digests must use the same key.

Invariants. (1) Each chunk that a part names is either returned as new or is in the base: hosts reuse only chunks of their base, so that
deletion cannot race with reuse (G7, and section 6 of the store's design). (2) No digest occurs twice, neither among the new chunks nor
among the reused chunks. (3) The table names only chunks of this image.

Blobs arrive uncut. This module cuts them, since cutting them during the pause would make the pause too long.

**Content-defined chunks.** Cuts depend on the surrounding bytes rather than on their offset. The problem: bytes inserted early in a
document shift all later bytes. With chunks of a fixed size, each later chunk would be new. Therefore a cut is made where a hash of the
preceding 32 bytes is small. Such places move along with their bytes. So after an insertion the previous cuts are found again, and with them
the previous chunks.

The hash is the *gear* hash, `h = 2 h + G[byte]` modulo 2**32, where G is a fixed table of random numbers. A byte's contribution is shifted
out after 32 steps. So `h` is a function of the last 32 bytes, independent of where the chunk began, and can be computed for all places at
once. With `H(w)` the hash over a window of w bytes, `H(2w)[i] = (H(w)[i-w] << w) + H(w)[i]`, which takes five steps. Without NumPy, a plain
loop computes the same numbers about fifty times slower.

A place is a *candidate* if its hash is small. Where the cut is made depends on the distance from the beginning of the chunk:

    below 16 KiB     nowhere
    below 64 KiB     at a candidate of one in 2**18 places ("strict")
    below 256 KiB    at a candidate of one in 2**14 places
    at 256 KiB       in any case

Xia et al., FastCDC (USENIX ATC 2016), section 3.3, "normalized chunking": two thresholds keep the sizes close to the middle.
Departures: the high bits of the hash are compared with a limit, instead of masking chosen bits (high bits depend on the
whole window, low bits do not). Also, the window may begin before the chunk.

Invariant: the bytes alone determine the cuts, on every machine and in every release. If a release cut differently, blobs would only be
stored again after an upgrade, since chunks are found by their digests.

**Sealed journals.** A checkpoint contains the journal of a durable turn as sealed runs of entries, which are chunks. The problem: a turn of
thousands of entries is checkpointed hundreds of times, and its journal only grows. So finished entries are *sealed* in runs, beginning with
the oldest. A run becomes a chunk: it is written once, and later checkpoints name it, like an unchanged chunk of a state. So code that
stores, copies, checks or deletes chunks need not treat journals specially. The remaining entries, which are fewer than a run, are stored in
the turn itself.

Invariant: the entries alone determine the end of a run. So a restored journal is cut at the same places again, and its chunks are already
in the store. If another release cuts at other places, the entries are only stored once more.
"""

import contextlib
import functools
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import msgspec
from blake3 import blake3
from xxhash import xxh3_128_digest

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.capture.image import (
    PART_BLOB,
    PART_JOURNAL,
    CapturedPart,
    ChunkTable,
    SourceChunk,
    StateImage,
)
from snapline.storage.disk.record import Buffer, digest_of
from snapline.storage.packs.checkpoint import AgentCheckpoint, ChunkReference, JournalEntry, SavedTurn, StatePart
from snapline.storage.packs.pack import PROBE_BYTES, PROBE_PARTS, sample_compresses

CHUNK_BYTES_MIN = 16 * 1024
CHUNK_BYTES_NORMAL = 64 * 1024
CHUNK_BYTES_MAX = 256 * 1024

_WINDOW_BYTES = 32
"""Length of the hash window in bytes, which equals the number of bits in the hash."""

_LOOSE = 1 << (32 - 14)
_STRICT = 1 << (32 - 18)
"""Limits for the hash. A hash below them has 14 or 18 leading zero bits: two bits fewer or more than the 16 bits that correspond to 64 KiB
(level 2 of the paper)."""

_BLOCK_BYTES = 64 * 1024
"""Number of bytes hashed at a time. The hashes of a block and the temporary array take 512 KiB, which fits into a core's cache."""

_TABLE_NAME = b"snapline content-defined chunks 1"
"""Name from which the table is derived. With this table, a run of one repeated byte (such as zeros) has no candidates, so such runs get
chunks of the largest size."""


@functools.cache
def gear_table() -> tuple[int, ...]:
    """Return the 256 fixed 32-bit numbers, which are the little-endian words of a BLAKE3 output of 1024 bytes."""
    return struct.unpack("<256I", blake3(_TABLE_NAME).digest(length=1024))


def cut(data: Buffer) -> list[int]:
    """Return the sizes of the chunks of `data`, in order. The sizes add up to the length of `data`. Empty data has no chunks.

    Each chunk has 16 to 256 KiB, except that the last may be smaller. Cutting takes 2 to 3 ns per byte with NumPy, and about 100 ns
    without.
    """
    view = memoryview(data).cast("B")
    return _choose(_candidates(view), len(view))


def _choose(candidates: Iterable[tuple[int, int]], size_bytes: int) -> list[int]:
    """Choose cuts among the candidates, in order. A candidate is a pair of the end of the chunk that it would close, and the hash."""
    sizes = []
    start = 0
    for end, value in candidates:
        while end - start > CHUNK_BYTES_MAX:
            sizes.append(CHUNK_BYTES_MAX)
            start += CHUNK_BYTES_MAX
        length = end - start
        if length >= CHUNK_BYTES_NORMAL or (length >= CHUNK_BYTES_MIN and value < _STRICT):
            sizes.append(length)
            start = end
    full_chunks, rest = divmod(size_bytes - start, CHUNK_BYTES_MAX)
    return sizes + [CHUNK_BYTES_MAX] * full_chunks + [rest] * (rest > 0)


def _candidates(view: memoryview) -> Iterator[tuple[int, int]]:
    try:
        import numpy  # noqa: F401  # This checks whether NumPy is installed.
    except ImportError:
        return plain_candidates(view)
    return vector_candidates(view)


def plain_candidates(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yield (end, hash) of each candidate whose whole window lies in the data. This byte-by-byte version is the definition."""
    table = gear_table()
    value = 0
    for end, byte in enumerate(view, 1):
        value = ((value << 1) + table[byte]) & 0xFFFFFFFF
        if value < _LOOSE and end >= _WINDOW_BYTES:
            yield end, value


def vector_candidates(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the same pairs as `plain_candidates`, using NumPy, which releases the interpreter lock."""
    import numpy

    table = numpy.array(gear_table(), dtype=numpy.uint32)
    data = numpy.frombuffer(view, dtype=numpy.uint8)
    before = _WINDOW_BYTES - 1
    hashes = numpy.empty(_BLOCK_BYTES + before, dtype=numpy.uint32)
    shifted = numpy.empty_like(hashes)
    for start in range(0, len(data) - before, _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES + before]
        h, s = hashes[: len(block)], shifted[: len(block)]
        numpy.take(
            table, block, out=h, mode="clip"
        )  # "clip" avoids a copy, and changes nothing because no byte is above 255.
        for width in (1, 2, 4, 8, 16):
            numpy.left_shift(h, width, out=s)
            numpy.add(h[width:], s[:-width], out=h[width:])
        places = numpy.flatnonzero(h[before:] < _LOOSE)
        yield from zip((places + (start + before + 1)).tolist(), h[before:][places].tolist(), strict=True)


CUT_BYTES_MIN = CHUNK_BYTES_MAX
"""Size in bytes below which a blob stays in one chunk."""

PARALLEL_BYTES_MIN = 64 * 1024 * 1024
"""Number of bytes to hash from which an image gets two threads. Fewer bytes are hashed in 10 to 30 ms, which is not worth starting a
thread."""

PARALLEL_THREADS = 2
"""Number of hashing threads. Memory bandwidth limits xxh3, and a second core doubles the speed of BLAKE3. Agents need all other cores."""

_RANGE_BYTES = 16 * 1024 * 1024
"""Number of bytes that a thread takes at a time. Hashing them takes a few milliseconds, so both threads end at about the same time."""

Digest = Callable[[Buffer], bytes]

_Found = tuple[bytes, ChunkReference, Buffer | None]
"""One chunk: its hash (b"" if not hashed), its reference, and its bytes if the base lacks it, otherwise None."""


class NewChunk(msgspec.Struct, frozen=True, gc=False):
    """A chunk that must be written to the store.

    Attributes:
        digest: digest of the chunk.
        data: bytes of the chunk, which belong to the image and are lost when the image is released.
        kind: kind of the chunk's part, `PART_…`.
        compresses: whether a sample shows that lz4 saves at least 3 %.
    """

    digest: bytes
    data: Buffer
    kind: int
    compresses: bool


class ChunkedState(msgspec.Struct):
    """A chunked image, ready for the store.

    Attributes:
        parts: parts for the checkpoint, in the image's order.
        new: chunks to be written, in the order of their first use, without duplicates.
        reused: chunks of the base that the parts name, in the order of their first use, without duplicates.
        table: base of the next capture, once this epoch is complete.
    """

    parts: list[StatePart]
    new: list[NewChunk]
    reused: list[ChunkReference]
    table: ChunkTable


class _Range(msgspec.Struct, gc=False):
    """Consecutive chunks of one part, which are a unit of work for one thread."""

    part: int
    start: int
    chunks: list[SourceChunk]


def chunk_image(
    image: StateImage, base: ChunkTable | None, *, digest: Digest = digest_of, executor: Executor | None = None
) -> ChunkedState:
    """Find the chunks of `image` that the base lacks. Neither the image nor the base is changed or released.

    Args:
        image: an image that has not been released yet.
        base: table of the epoch whose chunks may be reused, or None if everything is new.
        digest: function that computes a chunk's digest. Several threads call the function if the image is large.
        executor: threads for images with at least `PARALLEL_BYTES_MIN` bytes to hash. If None, the call creates threads and ends them.

    Raises:
        StoreError: If the image refers to a chunk that the base lacks, because it was made for another base.
    """
    known = ChunkTable() if base is None else base
    parts = [_in_pieces(part) for part in image.parts]
    examine = functools.partial(_examine, base=known, digest=digest)
    hash_seed()  # Draw the seed before the threads need it.
    chunks_by_part: list[list[_Found]] = [[] for _ in parts]
    ranges = list(_ranges(parts))
    with _mapper(parts, executor) as mapped:
        for work, result in zip(ranges, mapped(examine, ranges), strict=True):
            chunks_by_part[work.part] += result
    return _assemble(parts, chunks_by_part)


@functools.cache
def hash_seed() -> int:
    """Return this process's secret 64-bit seed. If two threads draw it at the same time, a few unchanged chunks may look changed."""
    return int.from_bytes(os.urandom(8), "little")


def compresses(samples: Sequence[Buffer]) -> bool:
    """Return whether lz4 saves at least 3 % on these samples. At most 64 KiB of the samples are compressed."""
    step = max(1, len(samples) // PROBE_PARTS)
    chosen = samples[::step][:PROBE_PARTS]
    share = PROBE_BYTES // max(1, len(chosen))
    sample = b"".join([memoryview(data)[:share] for data in chosen])
    return sample_compresses(sample)


def _in_pieces(part: CapturedPart) -> CapturedPart:
    """Cut a large blob into chunks whose tokens count up from the blob's token. See `values.Blob`."""
    if part.kind != PART_BLOB or len(part.chunks) != 1:
        return part
    blob_chunk = part.chunks[0]
    if blob_chunk.data is None or blob_chunk.size_bytes < CUT_BYTES_MIN:
        return part
    view, start, pieces = memoryview(blob_chunk.data), 0, []
    for number, size in enumerate(cut(view)):
        token = blob_chunk.token and blob_chunk.token + number
        pieces.append(SourceChunk(token, view[start : start + size], size))
        start += size
    return CapturedPart(part.kind, part.head, part.size_bytes, 0, pieces)


def _ranges(parts: list[CapturedPart]) -> Iterator[_Range]:
    for number, part in enumerate(parts):
        chunk_bytes = max(1, part.size_bytes // max(1, len(part.chunks)))
        step = max(1, _RANGE_BYTES // chunk_bytes)
        for start in range(0, len(part.chunks), step):
            yield _Range(number, start, part.chunks[start : start + step])


@contextlib.contextmanager
def _mapper(parts: list[CapturedPart], executor: Executor | None) -> Iterator[Callable[..., Iterator[list[_Found]]]]:
    """Yield a `map` function: either the built-in or a thread pool's."""
    size_bytes = sum([c.size_bytes for part in parts for c in part.chunks if c.data is not None])
    if size_bytes < PARALLEL_BYTES_MIN:
        yield map
    elif executor is not None:
        yield executor.map
    else:
        with ThreadPoolExecutor(PARALLEL_THREADS, thread_name_prefix="snapline-chunks") as threads:
            yield threads.map


def _examine(work: _Range, *, base: ChunkTable, digest: Digest) -> list[_Found]:
    """Look up each chunk in the base. The code is a single loop, since a 1 GiB array has thousands of chunks."""
    by_token, by_place, digests, seed = base.by_token, base.by_place, base.digests, hash_seed()
    examined: list[_Found] = []
    for index, chunk in enumerate(work.chunks, work.start):
        token, data, size = chunk.token, chunk.data, chunk.size_bytes
        reference = by_token.get(token) if token else None
        if reference is not None and reference.size_bytes == size:
            examined.append((b"", reference, None))
            continue
        if data is None or len(data) != size or reference is not None:
            raise StoreError(_contradiction(work.part, index, chunk, reference))
        value = b""
        if not token:
            value = xxh3_128_digest(data, seed)
            place = by_place.get((work.part, index))
            if place is not None and place[0] == value:
                examined.append((value, place[1], None))
                continue
        name = digest(data)
        reference = digests.get(name)
        examined.append((value, ChunkReference(name, size), data) if reference is None else (value, reference, None))
    return examined


def _contradiction(part: int, index: int, chunk: SourceChunk, reference: ChunkReference | None) -> str:
    place = f"chunk {index} of part {part}"
    if reference is not None:
        return f"{place} has {chunk.size_bytes} bytes, and {reference.size_bytes} in the base: capture without a base"
    if chunk.data is None:
        return f"{place} is said to be unchanged, but the base does not have it: capture without a base"
    return (
        f"{place} should have {chunk.size_bytes} bytes and has {len(chunk.data)}: report this as a bug of its capture"
    )


def _assemble(parts: list[CapturedPart], found: list[list[_Found]]) -> ChunkedState:
    table = ChunkTable({}, {}, {})
    state = ChunkedState([], [], [], table)
    for number, (part, chunks) in enumerate(zip(parts, found, strict=True)):
        _name_new(state, part.kind, chunks)
        _name_reused(state, chunks)
        _enter(table, number, part, chunks)
        state.parts.append(_state_part(part, chunks))
    return state


def _name_new(state: ChunkedState, kind: int, chunks: list[_Found]) -> None:
    """Add the new chunks to the list. This function must run before `_enter`, while the table contains only the digests of earlier
    parts."""
    fresh: dict[bytes, Buffer] = {}
    for _, reference, data in chunks:
        if data is not None and reference.digest not in state.table.digests:
            fresh.setdefault(reference.digest, data)
    if fresh:
        verdict = compresses(list(fresh.values()))
        state.new += [NewChunk(name, data, kind, verdict) for name, data in fresh.items()]


def _name_reused(state: ChunkedState, chunks: list[_Found]) -> None:
    seen = {
        reference.digest: reference
        for _, reference, data in chunks
        if data is None and reference.digest not in state.table.digests
    }
    state.reused += seen.values()


def _enter(table: ChunkTable, number: int, part: CapturedPart, chunks: list[_Found]) -> None:
    by_token, by_place, digests = table.by_token, table.by_place, table.digests
    for index, (source, (value, reference, _)) in enumerate(zip(part.chunks, chunks, strict=True)):
        if source.token:
            by_token[source.token] = reference
        else:
            by_place[number, index] = (value, reference)
        digests[reference.digest] = reference


def _state_part(part: CapturedPart, chunks: list[_Found]) -> StatePart:
    sizes = [] if part.chunk_bytes else [reference.size_bytes for _, reference, _ in chunks]
    digests = b"".join([reference.digest for _, reference, _ in chunks])
    return StatePart(part.kind, part.head, part.size_bytes, part.chunk_bytes, sizes, digests)


RUN_ENTRIES = 1000
"""Largest number of entries in a run. Each checkpoint encodes up to this number of open entries again, which takes about a tenth of a
millisecond."""

RUN_BYTES = 64 * 1024
"""Total size in bytes of results at which a run is full, even with fewer entries. Each checkpoint writes open entries up to this size
again."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[JournalEntry])


class SealedRuns(msgspec.Struct, frozen=True):
    """The beginning of a journal, as encoded runs in order, and the total number of entries in these runs."""

    count: int
    runs: tuple[bytes, ...]


class SealedJournal:
    """The sealed runs of one turn's journal.

    Attributes:
        count: number of sealed entries.
    """

    __slots__ = ("_measured", "_open_bytes", "_runs", "count")

    def __init__(self) -> None:
        self._runs: list[bytes] = []
        self.count = 0
        self._measured = 0  # number of measured entries
        self._open_bytes = 0  # size of the measured entries that are not sealed

    def seal(self, journal: Sequence[JournalEntry]) -> SealedRuns | None:
        """Seal full runs. Return all runs sealed so far, or None if there are none. `journal` must extend the journal of the previous
        call."""
        for place in range(self._measured, len(journal)):
            self._open_bytes += len(journal[place].result)
            if self._open_bytes >= RUN_BYTES or place + 1 - self.count >= RUN_ENTRIES:
                self._runs.append(_encoder.encode(journal[self.count : place + 1]))
                self.count, self._open_bytes = place + 1, 0
        self._measured = len(journal)
        return SealedRuns(self.count, tuple(self._runs)) if self._runs else None


def with_journal(image: StateImage, sealed: SealedRuns | None) -> StateImage:
    """Return the same image with the runs as its last part. Chunking keeps the part in last position. If `sealed` is None, return the
    image."""
    if sealed is None:
        return image
    chunks = [SourceChunk(0, run, len(run)) for run in sealed.runs]
    head = msgspec.msgpack.encode((sealed.count,))
    part = CapturedPart(PART_JOURNAL, head, sum(map(len, sealed.runs)), 0, chunks)
    return msgspec.structs.replace(image, parts=[*image.parts, part])


def split_journal(parts: list[StatePart]) -> tuple[list[StatePart], StatePart | None]:
    """Split the parts into the parts of the state and the part of the journal, which is None if there is none."""
    if parts and parts[-1].kind == PART_JOURNAL:
        return parts[:-1], parts[-1]
    return parts, None


def joined_turn(turn: SavedTurn, part: StatePart, content: Buffer) -> SavedTurn:
    """Return the turn with its complete journal.

    Args:
        part: the journal's part in the checkpoint.
        content: checked bytes of this part.

    Raises:
        DamagedDataError: If the bytes are not a journal.
    """
    entries: list[JournalEntry] = []
    view, start = memoryview(content), 0
    try:
        for chunk in part.chunks():
            entries += _decoder.decode(view[start : start + chunk.size_bytes])
            start += chunk.size_bytes
    except msgspec.DecodeError as error:
        raise DamagedDataError(f"the sealed journal of a durable turn does not decode: {error}") from error
    return msgspec.structs.replace(turn, journal=[*entries, *turn.journal])


def whole_turn(checkpoint: AgentCheckpoint, content: Buffer) -> AgentCheckpoint:
    """Return the checkpoint with the complete journal in its turn. `content` contains the bytes of the journal's part.

    Raises:
        DamagedDataError: If the part is not a journal, or there is no turn to which it could belong.
    """
    turn, part = checkpoint.turn, checkpoint.journal_part
    if part is None:
        return checkpoint
    if turn is None:
        raise DamagedDataError(f"the checkpoint of agent {checkpoint.agent!r} has a journal and no turn")
    turn_with_journal = joined_turn(turn, part, content)
    return msgspec.structs.replace(checkpoint, saved_turn=turn_with_journal, saved_journal=msgspec.UNSET)
