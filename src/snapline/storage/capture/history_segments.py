"""The segments of a history: contents that stay, each one chunk of the store.

The problem: a capture that writes only what was appended leaves one small segment behind, and after ten thousand captures a
checkpoint would name ten thousand. Merging all of them each time would write everything each time.

So small segments are merged with neighbours of about their own size, as in a log-structured merge tree. With M the size
that a segment should have, a segment is *full* from M/2 on and never touched again; the others are *open* and fall into
tiers, each eight times the one below. Only the segments behind the last full one are merged:

    eight segments of a tier, or of lower ones, in a row at the end      become one
    the open ones together exceed M                                      the first of them become a full one
    a full one arrives                                                   the open ones before it become one

Each byte is written once, and again for each tier that it climbs: twice more for captures of 11 KB, three times for small
ones. Invariants: (1) the contents, joined, always do the same; (2) open segments together have at most M bytes, and there
are at most `OPEN_SEGMENTS_MAX`; (3) of two neighbours among the others, one at least is full: so there are at most
4 total / M + 1 of them, and for segments that came in order about total / M.

Bytes are kept in memory only where they may be needed: of open segments, to be merged, and of full ones until a base has
them. A token is the segment's name towards the table of the base; a merged segment gets a new one.
"""

import msgspec

from snapline.storage.capture.tokens import fresh_token

SEGMENT_BYTES_MAX = 256 * 1024
"""M for histories below 256 MiB: an 11 MB history has some 50, and merging one takes 0.1 ms."""

SEGMENTS_MAX = 1024
"""Beyond, M grows with the history: the list of segments is walked in each capture, some 0.1 µs for each."""

MERGED_SEGMENTS = 8
"""Number of segments of a tier that are merged. Fewer: bytes are written more often. More: checkpoints name more segments, at 37 bytes each."""

_TIERS = 3
"""Open tiers: below M/128, below M/16, below M/2."""

OPEN_SEGMENTS_MAX = MERGED_SEGMENTS * _TIERS


class Segment(msgspec.Struct):
    """One content.

    Attributes:
        token: names it.
        size_bytes: its length.
        data: None: a base had it, and it will not be merged any more.
    """

    token: int
    size_bytes: int
    data: bytes | None


def segment_bytes(live_bytes: int) -> int:
    """Return M for a history whose records take so many bytes."""
    return max(SEGMENT_BYTES_MAX, live_bytes // SEGMENTS_MAX)


def is_full(size_bytes: int, target_bytes: int) -> bool:
    """Say whether a segment is never merged again."""
    return 2 * size_bytes >= target_bytes


def add(segments: list[Segment], content: bytes, target_bytes: int) -> None:
    """Put a content at the end of the list, and merge. `target_bytes`: M."""
    first = open_start(segments, target_bytes)
    if is_full(len(content), target_bytes):
        _merge(segments, first, len(segments))
        segments.append(Segment(fresh_token(), len(content), content))
        return
    segments.append(Segment(fresh_token(), len(content), content))
    first = _fill(segments, first, target_bytes)
    _merge_tiers(segments, first, target_bytes)


def open_start(segments: list[Segment], target_bytes: int) -> int:
    """Return the index of the first open segment; the length of the list if there is none.

    A segment without bytes is never open: it was full when they were dropped, and M has grown since.
    """
    index = len(segments)
    while index and segments[index - 1].data is not None and not is_full(segments[index - 1].size_bytes, target_bytes):
        index -= 1
    return index


def give_open(segments: list[Segment], contents: memoryview, target_bytes: int) -> None:
    """Give the last, open segments their bytes, so that they can be merged; `contents`: of all segments, joined."""
    end = len(contents)
    for segment in reversed(segments):
        start = end - segment.size_bytes
        if is_full(segment.size_bytes, target_bytes):
            return
        segment.data, end = bytes(contents[start:end]), start


def _fill(segments: list[Segment], first: int, target_bytes: int) -> int:
    """Make full segments of the first open ones while all of them exceed M; return where the open ones begin then."""
    while sum([segment.size_bytes for segment in segments[first:]]) > target_bytes:
        end, size = first, 0
        while size + segments[end].size_bytes <= target_bytes:
            size += segments[end].size_bytes
            end += 1
        _merge(segments, first, end)  # over M/2: the next one has less than M/2 and did not fit
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
