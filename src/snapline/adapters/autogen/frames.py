"""Frames in the pipe between a host and AutoGen's process: a length, then JSON. Standard library only: both sides use it."""

import asyncio
import json
import struct
from typing import Any

FRAME_BYTES_MAX = 64 * 2**20
"""A message and a state, of 16 MiB at most each, and what a turn has sent."""

_LENGTH = struct.Struct(">I")


class FrameTooLargeError(ValueError):
    """No side takes a frame of this size."""


def to_bytes(frame: dict[str, Any]) -> bytes:
    """Return a frame as it goes through the pipe.

    Raises:
        FrameTooLargeError: it is above 64 MiB.
    """
    body = json.dumps(frame, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(f"a frame has {len(body):,} bytes, and {FRAME_BYTES_MAX:,} go through the pipe")
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next frame; None at the end, be it in the middle of one.

    Raises:
        FrameTooLargeError: what comes is no frame.
    """
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > FRAME_BYTES_MAX:
            raise FrameTooLargeError(f"a frame of {size:,} bytes comes: something else writes into the pipe")
        found: dict[str, Any] = json.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return found
