"""Turns an image into the parts of a checkpoint, and finds the new chunks and those in the base. Runs in a worker thread.

The cheapest test of a chunk comes first:

    token in the base                           reuse; the bytes are not read, and often not even present
    no token, hash as at this place in the base reuse; hashing reads at twice the speed of a copy
    digest in the base                          reuse (after a restore, or when a part has moved)
    otherwise                                   new

The hash is xxh3-128 under a secret seed that this process draws, so nobody can prepare two contents with one hash. It is
never stored and never proves integrity; stored chunks are named by their digest. The digest may be keyed
(encryption): the caller supplies it, and the base's digests must use the same key.

Invariants. (1) Each chunk that a part names is either returned as new or is in the base: hosts reuse only chunks of
their base, so that deletion cannot race with reuse (G7, and section 6 of the store's design). (2) No digest occurs
twice, neither among the new nor among the reused chunks. (3) The table names only chunks of this image.

Opaque blobs arrive whole and are cut here, since cutting would take too long in the pause.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import lz4.block
import msgspec
from xxhash import xxh3_128_digest

from snapline.errors import StoreError
from snapline.storage.capture.content_defined import CHUNK_BYTES_MAX, cut
from snapline.storage.capture.image import PART_BLOB, Buffer, CapturedPart, ChunkTable, SourceChunk, StateImage
from snapline.storage.disk.record import digest_of
from snapline.storage.packs.checkpoint import ChunkReference, StatePart

CUT_BYTES_MIN = CHUNK_BYTES_MAX
"""Size up to which blobs stay in one chunk."""

PARALLEL_BYTES_MIN = 64 * 1024 * 1024
"""Number of bytes to hash from which an image gets two threads. Below it, hashing takes 10 to 30 ms: not worth starting a thread."""

PARALLEL_THREADS = 2
"""Number of hashing threads. xxh3 is bound by memory, BLAKE3 doubles its speed with the second core; agents need the other cores."""

_RANGE_BYTES = 16 * 1024 * 1024
"""Bytes that a thread takes at a time: a few ms of work, so that both threads end at about the same time."""

_PROBE_PIECES = 4
_PROBE_PIECE_BYTES = 16 * 1024
"""64 KiB from four places of a part's new bytes are a sample for all of them: well below 1 ms, once for each part."""

_SAVED_MIN = 0.03
"""Smallest saving of compression. Below it, decompression at restore costs more than it saves."""

Digest = Callable[[Buffer], bytes]

_Found = tuple[bytes, ChunkReference, Buffer | None]
"""One chunk: its hash (empty if not hashed), its reference, and its bytes if the base lacks it."""


class NewChunk(msgspec.Struct, frozen=True, gc=False):
    """A chunk to be written.

    Attributes:
        digest: its digest.
        data: its bytes; they belong to the image and are lost when that is released.
        kind: kind of its part, `PART_…`.
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
        new: chunks to be written, each digest once, in the order of their first use.
        reused: chunks of the base that the parts name, each digest once, in the order of their first use.
        table: base of the next capture, once this epoch is complete.
    """

    parts: list[StatePart]
    new: list[NewChunk]
    reused: list[ChunkReference]
    table: ChunkTable


class _Range(msgspec.Struct, gc=False):
    """Consecutive chunks of one part: a unit of work for one thread."""

    part: int
    start: int
    chunks: list[SourceChunk]


def chunk_image(
    image: StateImage, base: ChunkTable | None, *, digest: Digest = digest_of, executor: Executor | None = None
) -> ChunkedState:
    """Find the chunks of `image` that the base lacks. Does not change or release either.

    Args:
        image: an image that has not been released yet.
        base: table of the epoch whose chunks may be reused; None if everything is new.
        digest: computes a chunk's digest; called from several threads if the image is large.
        executor: for images of `PARALLEL_BYTES_MIN` and more; with None, the call creates threads and ends them.

    Raises:
        StoreError: the image refers to a chunk that the base lacks: it was made for another base.
    """
    known = ChunkTable() if base is None else base
    parts = [_in_pieces(part) for part in image.parts]
    examine = functools.partial(_examine, base=known, digest=digest)
    hash_seed()  # drawn before the threads need it
    chunks_by_part: list[list[_Found]] = [[] for _ in parts]
    ranges = list(_ranges(parts))
    with _mapper(parts, executor) as mapped:
        for work, result in zip(ranges, mapped(examine, ranges), strict=True):
            chunks_by_part[work.part] += result
    return _assemble(parts, chunks_by_part)


@functools.cache
def hash_seed() -> int:
    """Return this process's seed, 64 secret bits. If two threads draw it at once, a few chunks look changed."""
    return int.from_bytes(os.urandom(8), "little")


def compresses(samples: Sequence[Buffer]) -> bool:
    """Return whether lz4 saves at least 3 % on these samples; 64 KiB of them are tried."""
    step = max(1, len(samples) // _PROBE_PIECES)
    chosen = samples[::step][:_PROBE_PIECES]
    share = _PROBE_PIECE_BYTES * _PROBE_PIECES // max(1, len(chosen))
    sample = b"".join([memoryview(data)[:share] for data in chosen])
    return len(lz4.block.compress(sample, store_size=False)) <= (1 - _SAVED_MIN) * len(sample)


def _in_pieces(part: CapturedPart) -> CapturedPart:
    """Cut a large blob into chunks. Their tokens count up from the blob's: see `blob_value.py`."""
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
    """Return `map`: the plain one, or that of the threads."""
    size_bytes = sum([c.size_bytes for part in parts for c in part.chunks if c.data is not None])
    if size_bytes < PARALLEL_BYTES_MIN:
        yield map
    elif executor is not None:
        yield executor.map
    else:
        with ThreadPoolExecutor(PARALLEL_THREADS, thread_name_prefix="snapline-chunks") as threads:
            yield threads.map


def _examine(work: _Range, *, base: ChunkTable, digest: Digest) -> list[_Found]:
    """Look for each chunk in the base. One loop, since a 1 GiB array has thousands of chunks."""
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
    """List new chunks. Must come before `_enter`: the table then holds only the digests of earlier parts."""
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
