"""The segments of a history: immutable contents, each one chunk of the store.

The problem: a capture that writes only the appended records leaves one small segment behind. After ten thousand captures a
checkpoint would name ten thousand segments. Merging all of them each time would write everything each time.

So small segments are merged with neighbours of similar size, as in a log-structured merge tree. M is the target size
of a segment. A segment of M/2 or more is *full* and never merged again. The others are *open* and fall into
tiers, each eight times the one below. Only the segments after the last full one are merged:

    eight segments of a tier, or of lower ones, in a row at the end      become one
    the open ones together exceed M                                      the first of them become a full one
    a full one arrives                                                   the open ones before it become one

Each byte is written once, and again for each tier that it climbs: twice more for captures of 11 KB, three times for small
ones. Invariants: (1) the contents, joined, always give the same list. (2) Open segments together have at most M bytes, and there
are at most `OPEN_SEGMENTS_MAX`. (3) Of two neighbours among the others, at least one is full. So there are at most
4 total / M + 1 of them, and for segments appended in order about total / M.

Bytes are kept in memory only where they may be needed: of open segments, for merging, and of full ones until a base contains
them. A token identifies the segment in the table of the base; a merged segment gets a new one.
"""

import msgspec

from snapline.storage.capture.image import fresh_token

SEGMENT_BYTES_MAX = 256 * 1024
"""M for histories below 256 MiB: an 11 MB history has some 50 segments, and merging one takes 0.1 ms."""

SEGMENTS_MAX = 1024
"""Number of segments beyond which M grows with the history: each capture walks the list of segments, at some 0.1 µs each."""

MERGED_SEGMENTS = 8
"""Number of segments of a tier that are merged. Fewer would write bytes more often; more would leave more segments in checkpoints (37 bytes each)."""

_TIERS = 3
"""Number of open tiers: below M/128, below M/16, below M/2."""

OPEN_SEGMENTS_MAX = MERGED_SEGMENTS * _TIERS


class Segment(msgspec.Struct):
    """A segment of a history.

    Attributes:
        token: identifies its content.
        size_bytes: length of its content.
        data: content; None if a base contains the segment and it will not be merged again.
    """

    token: int
    size_bytes: int
    data: bytes | None


def segment_bytes(live_bytes: int) -> int:
    """Return M for a history whose records take `live_bytes` bytes."""
    return max(SEGMENT_BYTES_MAX, live_bytes // SEGMENTS_MAX)


def is_full(size_bytes: int, target_bytes: int) -> bool:
    """Return whether a segment of this size is never merged again."""
    return 2 * size_bytes >= target_bytes


def add(segments: list[Segment], content: bytes, target_bytes: int) -> None:
    """Append a content as a segment, and merge. `target_bytes` is M."""
    first = first_open_index(segments, target_bytes)
    if is_full(len(content), target_bytes):
        _merge(segments, first, len(segments))
        segments.append(Segment(fresh_token(), len(content), content))
        return
    segments.append(Segment(fresh_token(), len(content), content))
    first = _fill(segments, first, target_bytes)
    _merge_tiers(segments, first, target_bytes)


def first_open_index(segments: list[Segment], target_bytes: int) -> int:
    """Return the index of the first open segment; the length of the list if there is none.

    A segment without bytes is never open: it was full when its bytes were dropped, even if M has grown since.
    """
    index = len(segments)
    while index and segments[index - 1].data is not None and not is_full(segments[index - 1].size_bytes, target_bytes):
        index -= 1
    return index


def fill_open_segments(segments: list[Segment], contents: memoryview, target_bytes: int) -> None:
    """Fill in the bytes of the last, open segments, so that they can be merged; `contents` is that of all segments, joined."""
    end = len(contents)
    for segment in reversed(segments):
        start = end - segment.size_bytes
        if is_full(segment.size_bytes, target_bytes):
            return
        segment.data, end = bytes(contents[start:end]), start


def _fill(segments: list[Segment], first: int, target_bytes: int) -> int:
    """Make full segments of the first open ones while all of them exceed M; return the new index of the first open one."""
    while sum([segment.size_bytes for segment in segments[first:]]) > target_bytes:
        end, size = first, 0
        while size + segments[end].size_bytes <= target_bytes:
            size += segments[end].size_bytes
            end += 1
        _merge(segments, first, end)  # now over M/2, as the next one has less than M/2 and did not fit
        first += 1
    return first


def _merge_tiers(segments: list[Segment], first: int, target_bytes: int) -> None:
    while len(segments) - first >= MERGED_SEGMENTS:
        tier = _tier(segments[-1].size_bytes, target_bytes)
        start = len(segments)
        while start > first and _tier(segments[start - 1].size_bytes, target_bytes) <= tier:
            start -= 1
        if len(segments) - start < MERGED_SEGMENTS:
            return
        _merge(segments, start, len(segments))
        if is_full(segments[-1].size_bytes, target_bytes):
            return


def _tier(size_bytes: int, target_bytes: int) -> int:
    """Return the tier of a segment: 0 for the smallest; each tier is eight times the one below."""
    return (16 * size_bytes >= target_bytes) + (128 * size_bytes >= target_bytes)


def _merge(segments: list[Segment], start: int, end: int) -> None:
    if end - start < 2:
        return
    content = b"".join([segment.data for segment in segments[start:end] if segment.data is not None])
    segments[start:end] = [Segment(fresh_token(), len(content), content)]
