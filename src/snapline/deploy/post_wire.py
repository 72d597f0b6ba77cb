"""Messages between a launcher and a post: one line of JSON for each, and a line of the post's before all others.

A login shell may print what it likes before the post's own first line, so a launcher passes over what is no greeting.
"""

from typing import Literal

import msgspec

from snapline.deploy.launching import Exit, Handle, ProcessSpec

GREETING_LINES_MAX = 200
"""Largest number of lines that a login may print before the post's greeting: a message of the day is shorter."""

LINE_BYTES_MAX = 4 << 20
"""Largest size of one request or answer: a command line and some certificates."""

Word = Literal["hold", "port", "start", "watch", "status", "stop", "kill", "freeze", "thaw", "close"]

Fault = Literal["", "unheld", "replaced", "failed"]
"""Fault of a request. `unheld`: no launcher has this post, such as after a restart; `replaced`: another launcher has taken it over."""


class LaunchAgentGreeting(msgspec.Struct, frozen=True):
    """The first line of a post.

    Attributes:
        snapline: its version.
        address: of its machine, as the caller has reached it; empty if that cannot be known there.
    """

    snapline: str
    address: str


class LaunchAgentRequest(msgspec.Struct, frozen=True):
    """A launcher's request to a post.

    Attributes:
        holder: its sender.
        id: names it on this connection.
        name, address: of the coordinator that needs a port there.
        files: certificates and keys: file name → content.
        farewell: what is run before the process is ended because the place's time is up.
    """

    holder: str
    word: Word
    id: int = 0
    name: str = ""
    address: str = ""
    spec: ProcessSpec | None = None
    handle: Handle | None = None
    files: dict[str, bytes] = {}
    shutdown: tuple[str, ...] = ()
    grace_s: float = 0.0


class LaunchAgentReply(msgspec.Struct, frozen=True):
    """Result of the request of this id."""

    id: int
    fault: Fault = ""
    reason: str = ""
    handle: Handle | None = None
    exit: Exit | None = None
    port: int = 0


def encode_line(said: msgspec.Struct) -> bytes:
    """One line."""
    return msgspec.json.encode(said) + b"\n"
