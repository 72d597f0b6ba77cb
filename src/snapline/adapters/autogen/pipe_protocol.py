"""Encodes frames and ids for the pipe between a host and AutoGen's process.

Both processes import this module, so it uses only the standard library.

A frame consists of its length, followed by JSON.

An AutoGen id consists of a type and a key, such as `teller/north`. A snapline id is one word of letters, digits, `_`, `-` and dots. The
AutoGen id `teller/north` becomes the snapline id `teller..north`. Dots, and characters that a snapline id must not contain, are escaped.
Each byte of an escaped character is written as a dot and two hexadecimal digits.
"""

import asyncio
import json
import re
import struct
from typing import Any

FRAME_BYTES_MAX = 64 * 2**20
"""Largest size of a frame in bytes. A frame contains a message and a state, each of at most 16 MiB, and the messages that a turn sends."""

_LENGTH = struct.Struct(">I")


class FrameTooLargeError(ValueError):
    """A frame exceeds the size limit, which is the same for both processes."""


def to_bytes(frame: dict[str, Any]) -> bytes:
    """Encode a frame for the pipe.

    Raises:
        FrameTooLargeError: the frame exceeds 64 MiB.
    """
    body = json.dumps(frame, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(f"a frame has {len(body):,} bytes, and {FRAME_BYTES_MAX:,} go through the pipe")
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next frame, or None if the stream has ended, even if it ended within a frame.

    Raises:
        FrameTooLargeError: the frame's length exceeds the limit, which means that the stream contains other data.
    """
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > FRAME_BYTES_MAX:
            raise FrameTooLargeError(f"a frame of {size:,} bytes comes: something else writes into the pipe")
        found: dict[str, Any] = json.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return found


BETWEEN = ".."

_KEPT = re.compile(rb"[A-Za-z0-9_-]")
_ESCAPED = re.compile(r"\.([0-9a-f]{2})")


def agent_name(autogen_id: str) -> str:
    """Return the snapline id of the agent that AutoGen calls `type/key`.

    Raises:
        ValueError: `autogen_id` is not a valid AutoGen id.
    """
    kind, slash, key = autogen_id.partition("/")
    if not slash or not kind or not key:
        raise ValueError(f"{autogen_id!r} is no id of an AutoGen agent: write type/key")
    return _escaped(kind) + BETWEEN + _escaped(key)


def autogen_id(agent: str) -> str:
    """Return the AutoGen id `type/key` of a snapline agent, or "" if the agent is not an AutoGen agent."""
    kind, between, key = agent.partition(BETWEEN)
    if not between or not kind or not key:
        return ""
    return f"{_plain(kind)}/{_plain(key)}"


def _escaped(part: str) -> str:
    return "".join(chr(byte) if _KEPT.match(bytes([byte])) else f".{byte:02x}" for byte in part.encode())


def _plain(part: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), part).encode("latin-1").decode()
