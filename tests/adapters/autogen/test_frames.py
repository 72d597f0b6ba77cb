"""Frames between a host and AutoGen's process: they come back, and an end in the middle of one is an end."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.adapters.autogen.pipe_protocol import FRAME_BYTES_MAX, FrameTooLargeError, read_frame, to_bytes

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FRAMES = st.lists(st.dictionaries(st.text(max_size=3), PLAIN, max_size=3), max_size=4)


async def read_all(given_bytes: bytes) -> list[dict[str, Any]]:
    reader = asyncio.StreamReader()
    reader.feed_data(given_bytes)
    reader.feed_eof()
    found = []
    while (frame := await read_frame(reader)) is not None:
        found.append(frame)
    return found


@given(FRAMES)
def test_frames_come_back_in_order(frames: list[dict[str, Any]]) -> None:
    assert asyncio.run(read_all(b"".join(to_bytes(frame) for frame in frames))) == frames


@given(FRAMES.filter(bool), st.integers(min_value=1, max_value=100))
def test_half_a_frame_is_none(frames: list[dict[str, Any]], missing: int) -> None:
    whole = b"".join(to_bytes(frame) for frame in frames)
    found = asyncio.run(read_all(whole[:-missing]))
    assert found == frames[: len(found)] and len(found) < len(frames)


def test_what_is_no_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameTooLargeError):
        asyncio.run(read_all((FRAME_BYTES_MAX + 1).to_bytes(4, "big")))
    with pytest.raises(FrameTooLargeError):
        to_bytes({"body": "x" * FRAME_BYTES_MAX})
