"""Cuts an image into the chunks of a checkpoint's parts, and finds out which chunks are new and which are already in the base.

This module's code runs in a worker thread.

For each chunk, the cheapest test is made first:

1. If the chunk's token is in the base, the chunk is reused. The bytes of such a chunk are not read, and often the image does not even
   contain them.
2. If the chunk has no token but the base has the same hash at this position, the chunk is reused. Hashing is twice as fast as a copy.
3. If the chunk's digest is in the base, the chunk is reused. Equal digests without equal tokens or hashes occur after a restore, or when a
   part has moved.
4. If no test succeeds, the chunk is new.

The hash is xxh3-128 with a secret seed that this process draws, so nobody can prepare two contents with the same hash. The hash is never
stored, and it is not used to verify integrity. Stored chunks are named by their digest. In an encrypted store, the digest is keyed: the
caller supplies the digest function, and the digests in the base must use the same key.

Invariants. (1) Each chunk that a part names is either returned as new or is in the base. Hosts reuse only chunks of their base, so that
deletion cannot race with reuse (G7, and section 6 of the store's design). (2) No digest occurs twice among the new chunks or twice among
the reused chunks. (3) The table names only chunks of this image.

Blobs arrive uncut. This module cuts blobs into chunks, because cutting them during the capture would pause the agent for too long.

**Content-defined chunks.** The positions of cuts depend on the surrounding bytes rather than on offsets. The problem: if bytes are inserted
near the beginning of a document, all later bytes are shifted. If chunks had a fixed size, each later chunk would be new. Therefore, a cut
is made where a hash of the preceding 32 bytes is small. When bytes are shifted, these positions are shifted with them. So after an
insertion, the same cuts are found again, and most chunks are unchanged.

The hash is the *gear* hash, `h = 2 h + G[byte]` modulo 2**32, where G is a fixed table of random numbers. After 32 steps, a byte no longer
contributes to the hash. So `h` is a function of only the last 32 bytes, does not depend on where the chunk begins, and can be computed for
all positions at once. If `H(w)` is the hash over a window of w bytes, then `H(2w)[i] = (H(w)[i-w] << w) + H(w)[i]`, so five steps are
enough. If NumPy is missing, a plain loop computes the same numbers about fifty times slower.

A position is a *candidate* for a cut if its hash is small. Where a cut is made depends on the distance from the beginning of the chunk:

- Below 16 KiB, no cut is made.
- From 16 to 64 KiB, a cut is made only at a strict candidate. One position in 2**18 is a strict candidate.
- From 64 to 256 KiB, a cut is made at any candidate. One position in 2**14 is a candidate.
- At 256 KiB, a cut is always made.

The two thresholds keep the sizes close to the middle, as in the "normalized chunking" of FastCDC (Xia et al., USENIX ATC 2016,
section 3.3). Departures from the paper: the high bits of the hash are compared with a limit, instead of masking selected bits. The high
bits depend on the whole window, and the low bits do not. In addition, unlike in the paper, the window may begin before the chunk.

Invariant: the cuts depend only on the bytes, and are the same on every machine and in every release. If a new release made different cuts,
nothing would break, but blobs would be stored once more after the upgrade, because chunks are found by their digests.

**Sealed journals.** In a checkpoint, the journal of a durable turn consists of sealed runs of entries, which are stored as chunks. The
problem: a turn with thousands of journal entries is checkpointed hundreds of times, and its journal only grows. So completed entries are
*sealed* in runs, beginning with the oldest entries. Each run becomes a chunk, which is written once and then named by all later
checkpoints, like an unchanged chunk of a state. So code that stores, copies, checks or deletes chunks needs no special treatment of
journals. The remaining entries, which are too few for a run, are stored in the turn itself.

Invariant: where a run ends depends only on the entries. So a restored journal is divided into the same runs again, and their chunks are
already in the store. If another release divided the journal differently, the entries would only be stored once more.
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
    """Return the fixed table of 256 numbers of 32 bits, which are the little-endian words of a BLAKE3 output of 1024 bytes."""
    return struct.unpack("<256I", blake3(_TABLE_NAME).digest(length=1024))


def cut(data: Buffer) -> list[int]:
    """Return the sizes of the chunks into which `data` is cut, in order. The sum of the sizes is the length of `data`. Empty data has no
    chunks.

    Each chunk has 16 to 256 KiB, except that the last chunk may be smaller. Cutting takes 2 to 3 ns per byte with NumPy, and about 100 ns
    per byte without NumPy.
    """
    view = memoryview(data).cast("B")
    return _choose(_candidates(view), len(view))


def _choose(candidates: Iterable[tuple[int, int]], size_bytes: int) -> list[int]:
    """Choose which candidates become cuts. Candidates are examined in order. A candidate is a pair: the position where the chunk would end,
    and the hash at this position."""
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
    """Yield a pair (end, hash) for each candidate whose whole window lies in the data. The byte-by-byte version defines which candidates
    are correct."""
    table = gear_table()
    value = 0
    for end, byte in enumerate(view, 1):
        value = ((value << 1) + table[byte]) & 0xFFFFFFFF
        if value < _LOOSE and end >= _WINDOW_BYTES:
            yield end, value


def vector_candidates(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the same pairs as `plain_candidates`, using NumPy, which releases the interpreter's lock."""
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
        data: bytes of the chunk, which belong to the image and become invalid when the image is released.
        kind: kind of the part to which the chunk belongs, `PART_…`.
        compresses: whether lz4 is expected to save at least 3 %, judged by a sample.
    """

    digest: bytes
    data: Buffer
    kind: int
    compresses: bool


class ChunkedState(msgspec.Struct):
    """An image cut into chunks, ready to be stored.

    Attributes:
        parts: the checkpoint's parts, in the order of the image.
        new: the chunks to write, without duplicates, in the order of their first use.
        reused: the chunks of the base that the parts name, without duplicates, in the order of their first use.
        table: the base of the next capture, once this epoch is complete.
    """

    parts: list[StatePart]
    new: list[NewChunk]
    reused: list[ChunkReference]
    table: ChunkTable


class _Range(msgspec.Struct, gc=False):
    """Consecutive chunks of one part, which one thread processes as a unit."""

    part: int
    start: int
    chunks: list[SourceChunk]


def chunk_image(
    image: StateImage, base: ChunkTable | None, *, digest: Digest = digest_of, executor: Executor | None = None
) -> ChunkedState:
    """Find the chunks of `image` that are not in the base. This function neither changes nor releases the image and the base.

    Args:
        base: table of the epoch whose chunks may be reused, or None if all chunks are new.
        digest: function that computes the digest of a chunk. For a large image, several threads call this function.
        executor: threads to use if the image has at least `PARALLEL_BYTES_MIN` bytes to hash. If `executor` is None, the call starts its
            own threads and stops them at the end.

    Raises:
        StoreError: If the image refers to a chunk that is not in the base, because the image was made for a different base.
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
    """Return the secret 64-bit seed of this process. If two threads call this function for the first time at once, a few unchanged chunks
    may be treated as changed."""
    return int.from_bytes(os.urandom(8), "little")


def compresses(samples: Sequence[Buffer]) -> bool:
    """Return whether lz4 saves at least 3 % on the given samples. At most 64 KiB are compressed."""
    step = max(1, len(samples) // PROBE_PARTS)
    chosen = samples[::step][:PROBE_PARTS]
    share = PROBE_BYTES // max(1, len(chosen))
    sample = b"".join([memoryview(data)[:share] for data in chosen])
    return sample_compresses(sample)


def _in_pieces(part: CapturedPart) -> CapturedPart:
    """Cut a large blob into chunks. The chunks' tokens are consecutive numbers, beginning with the blob's token. See `values.Blob`."""
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
    """Yield the `map` function to use: the built-in function or a thread pool's method."""
    size_bytes = sum([c.size_bytes for part in parts for c in part.chunks if c.data is not None])
    if size_bytes < PARALLEL_BYTES_MIN:
        yield map
    elif executor is not None:
        yield executor.map
    else:
        with ThreadPoolExecutor(PARALLEL_THREADS, thread_name_prefix="snapline-chunks") as threads:
            yield threads.map


def _examine(work: _Range, *, base: ChunkTable, digest: Digest) -> list[_Found]:
    """Look up each chunk of the range in the base. The code is one large loop for speed, because an array of 1 GiB has thousands of
    chunks."""
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
    """Append the new chunks to the list of chunks to write. This function must run before `_enter`, while the table contains only digests
    of earlier parts."""
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
    """The sealed beginning of a journal: encoded runs in order, and the total number of entries in them."""

    count: int
    runs: tuple[bytes, ...]


class SealedJournal:
    """The sealed runs of the journal of one turn."""

    __slots__ = ("_measured", "_open_bytes", "_runs", "count")

    def __init__(self) -> None:
        self._runs: list[bytes] = []
        self.count = 0
        self._measured = 0  # number of measured entries
        self._open_bytes = 0  # size of the measured entries that are not sealed

    def seal(self, journal: Sequence[JournalEntry]) -> SealedRuns | None:
        """Seal full runs. Return all runs that have been sealed so far, or None if there are none. `journal` must be an extension of the
        journal in the previous call."""
        for place in range(self._measured, len(journal)):
            self._open_bytes += len(journal[place].result)
            if self._open_bytes >= RUN_BYTES or place + 1 - self.count >= RUN_ENTRIES:
                self._runs.append(_encoder.encode(journal[self.count : place + 1]))
                self.count, self._open_bytes = place + 1, 0
        self._measured = len(journal)
        return SealedRuns(self.count, tuple(self._runs)) if self._runs else None


def with_journal(image: StateImage, sealed: SealedRuns | None) -> StateImage:
    """Return a copy of the image with the sealed runs as its last part. Chunking keeps this part in the last position. If `sealed` is None,
    return the image itself."""
    if sealed is None:
        return image
    chunks = [SourceChunk(0, run, len(run)) for run in sealed.runs]
    head = msgspec.msgpack.encode((sealed.count,))
    part = CapturedPart(PART_JOURNAL, head, sum(map(len, sealed.runs)), 0, chunks)
    return msgspec.structs.replace(image, parts=[*image.parts, part])


def split_journal(parts: list[StatePart]) -> tuple[list[StatePart], StatePart | None]:
    """Separate the parts of the state from the part of the journal, which is None if the checkpoint has no journal."""
    if parts and parts[-1].kind == PART_JOURNAL:
        return parts[:-1], parts[-1]
    return parts, None


def joined_turn(turn: SavedTurn, part: StatePart, content: Buffer) -> SavedTurn:
    """Return the turn, including the sealed entries of its journal.

    Args:
        part: the checkpoint's part that contains the journal.
        content: the verified bytes of this part.

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
    """Return the checkpoint with its turn's complete journal, including the sealed entries. `content` contains the bytes of the part that
    contains the journal.

    Raises:
        DamagedDataError: If the part is not a journal, or the checkpoint has no turn.
    """
    turn, part = checkpoint.turn, checkpoint.journal_part
    if part is None:
        return checkpoint
    if turn is None:
        raise DamagedDataError(f"the checkpoint of agent {checkpoint.agent!r} has a journal and no turn")
    turn_with_journal = joined_turn(turn, part, content)
    return msgspec.structs.replace(checkpoint, saved_turn=turn_with_journal, saved_journal=msgspec.UNSET)
