"""Content-defined chunks: cuts depend on the surrounding bytes, not on their offset.

The problem: bytes inserted early in a document shift all later ones. With chunks of a fixed size each later chunk is new.
Here a cut is made where a hash of the preceding 32 bytes is small. Such places move along with their bytes, so after the
insertion the old cuts, and the old chunks, recur.

The hash is the *gear* hash, `h = 2 h + G[byte]` modulo 2**32, where G is a fixed table of random numbers. A byte's contribution
is shifted out after 32 steps. So `h` is a function of the last 32 bytes, independent of where the chunk began, and
can be computed for all places at once. With `H(w)` the hash over a window of w bytes, `H(2w)[i] = (H(w)[i-w] << w) + H(w)[i]`,
which takes five steps. Without NumPy a plain loop gives the same numbers, some fifty times slower.

A place is a *candidate* if its hash is small. From the beginning of a chunk on, the cut is

    below 16 KiB     nowhere
    below 64 KiB     at a candidate of one in 2**18 places ("strict")
    below 256 KiB    at a candidate of one in 2**14 places
    at 256 KiB       in any case

Xia et al., FastCDC (USENIX ATC 2016), section 3.3, "normalized chunking": two thresholds keep the sizes close to the middle.
Departures: the high bits of the hash are compared with a limit, instead of masking chosen bits (high bits depend on the
whole window, low ones do not); the window may begin before the chunk.

Invariant: the cuts are a function of the bytes alone, on every machine and in every release. A violation would only store
blobs again after an upgrade, since chunks are found by their digests.
"""

import functools
import struct
from collections.abc import Iterable, Iterator

from blake3 import blake3

from snapline.storage.capture.image import Buffer

CHUNK_BYTES_MIN = 16 * 1024
CHUNK_BYTES_NORMAL = 64 * 1024
CHUNK_BYTES_MAX = 256 * 1024

_WINDOW_BYTES = 32
"""Length of the window: as many bytes as the hash has bits."""

_LOOSE = 1 << (32 - 14)
_STRICT = 1 << (32 - 18)
"""Limits of the hash: two bits more and two less than the 16 that correspond to 64 KiB (level 2 of the paper)."""

_BLOCK_BYTES = 64 * 1024
"""Bytes hashed at a time: their hashes and the temporary take 512 KiB, which fits a core's cache."""

_TABLE_NAME = b"snapline content-defined chunks 1"
"""Name from which the table is derived. In this table no run of one byte (such as zeros) has candidates, so runs get chunks of the largest size."""


@functools.cache
def gear_table() -> tuple[int, ...]:
    """Return the 256 fixed numbers of 32 bits: the little-endian words of a BLAKE3 output of 1024 bytes."""
    return struct.unpack("<256I", blake3(_TABLE_NAME).digest(length=1024))


def cut(data: Buffer) -> list[int]:
    """Return the sizes of the chunks of `data`, in order; their sum is its length. Empty for empty data.

    Each chunk has 16 to 256 KiB, except that the last may be smaller. Takes 2 to 3 ns per byte with NumPy; about 100 without.
    """
    view = memoryview(data).cast("B")
    return _choose(_candidates(view), len(view))


def _choose(candidates: Iterable[tuple[int, int]], size_bytes: int) -> list[int]:
    """Choose cuts among the candidates, each (end of the chunk it would close, hash), in order."""
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
        import numpy  # noqa: F401  # checks whether it is installed
    except ImportError:
        return plain_candidates(view)
    return vector_candidates(view)


def plain_candidates(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yield (end, hash) of each candidate whose whole window lies in the data. This is the definition, byte by byte."""
    table = gear_table()
    value = 0
    for end, byte in enumerate(view, 1):
        value = ((value << 1) + table[byte]) & 0xFFFFFFFF
        if value < _LOOSE and end >= _WINDOW_BYTES:
            yield end, value


def vector_candidates(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the same as `plain_candidates`, using NumPy, which releases the interpreter lock."""
    import numpy

    table = numpy.array(gear_table(), dtype=numpy.uint32)
    data = numpy.frombuffer(view, dtype=numpy.uint8)
    before = _WINDOW_BYTES - 1
    hashes = numpy.empty(_BLOCK_BYTES + before, dtype=numpy.uint32)
    shifted = numpy.empty_like(hashes)
    for start in range(0, len(data) - before, _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES + before]
        h, s = hashes[: len(block)], shifted[: len(block)]
        numpy.take(table, block, out=h, mode="clip")  # "clip" avoids a copy; no byte is above 255
        for width in (1, 2, 4, 8, 16):
            numpy.left_shift(h, width, out=s)
            numpy.add(h[width:], s[:-width], out=h[width:])
        places = numpy.flatnonzero(h[before:] < _LOOSE)
        yield from zip((places + (start + before + 1)).tolist(), h[before:][places].tolist(), strict=True)
