"""Frames in the pipe between a host and AutoGen's process: a length, then JSON. Uses the standard library only, since both sides import it."""

import asyncio
import json
import struct
from typing import Any

FRAME_BYTES_MAX = 64 * 2**20
"""Largest size of a frame: a message and a state of at most 16 MiB each, and the messages sent by a turn."""

_LENGTH = struct.Struct(">I")


class FrameTooLargeError(ValueError):
    """A frame exceeds the size limit of both sides."""


def to_bytes(frame: dict[str, Any]) -> bytes:
    """Encode a frame for the pipe.

    Raises:
        FrameTooLargeError: it exceeds 64 MiB.
    """
    body = json.dumps(frame, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(f"a frame has {len(body):,} bytes, and {FRAME_BYTES_MAX:,} go through the pipe")
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next frame; None at the end of the stream, even within a frame.

    Raises:
        FrameTooLargeError: the length is invalid.
    """
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > FRAME_BYTES_MAX:
            raise FrameTooLargeError(f"a frame of {size:,} bytes comes: something else writes into the pipe")
        found: dict[str, Any] = json.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return found
