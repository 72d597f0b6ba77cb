"""Messages between a launcher and a launch agent: one line of JSON each. The launch agent's first line is a greeting.

A login shell may print anything before the greeting, so the launcher skips lines that are no greeting.
"""

from typing import Literal

import msgspec

from snapline.deploy.launching import Exit, Handle, ProcessSpec

GREETING_LINES_MAX = 200
"""Largest number of lines that a login may print before the greeting; a message of the day is shorter."""

LINE_BYTES_MAX = 4 << 20
"""Largest size of one request or answer; the largest holds a command line and some certificates."""

Word = Literal["hold", "port", "start", "watch", "status", "stop", "kill", "freeze", "thaw", "close"]

Fault = Literal["", "unheld", "replaced", "failed"]
"""Fault of a request. `unheld`: no launcher holds this launch agent, such as after its restart; `replaced`: another launcher took it over."""


class LaunchAgentGreeting(msgspec.Struct, frozen=True):
    """The first line that a launch agent sends.

    Attributes:
        snapline: version of snapline.
        address: the machine's address under which the caller reached it; empty if unknown there.
    """

    snapline: str
    address: str


class LaunchAgentRequest(msgspec.Struct, frozen=True):
    """A launcher's request to a launch agent.

    Attributes:
        holder: id of the launcher that sends it.
        word: the command.
        id: number of the request on this connection.
        name, address: name and address of a coordinator that needs a port there.
        spec: the process to start.
        handle: the process that the command is for.
        files: certificates and keys: file name → content.
        shutdown: command that runs before the process is ended because the place's time is up.
        grace_s: for `stop`: time between SIGTERM and SIGKILL.
    """

    holder: str
    word: Word
    id: int = 0
    name: str = ""
    address: str = ""
    spec: ProcessSpec | None = None
    handle: Handle | None = None
    files: dict[str, bytes] = {}
    shutdown: tuple[str, ...] = msgspec.field(default=(), name="farewell")
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
    """Encode a message as one line."""
    return msgspec.json.encode(said) + b"\n"
