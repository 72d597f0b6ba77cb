"""Start of a launcher's children: the parent watch, their environment, and the process that they are forked from.

Nothing large of the standard library is imported here: a program that knows at once that it will start children begins that process before it
imports anything else, and both import in parallel.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

FORK_SERVER = "snapline.cli.fork_server"

TITLE_BYTES = 1024
"""Room for the command line that `ps` shows of a forked child."""

ONE_DOOR = "SNAPLINE_HEALTH"
"""Variable that is not inherited. An image names one health endpoint for its process; inherited, all children of a launcher in a container would
use it."""

_LEASH = os.path.join(os.path.dirname(__file__), "parent_watch.py")


class BegunServer(NamedTuple):
    """A fork server that imports, and our end of its socket pair."""

    process: subprocess.Popen[bytes]
    door: socket.socket
    environment: Mapping[str, str]


_begun: list[BegunServer] = []


def leash() -> list[str]:
    """Return the prefix of a command that ends with this process."""
    return [sys.executable, "-I", "-S", _LEASH, str(os.getpid())]


def environment_of(added: Mapping[str, str] | None) -> dict[str, str]:
    """A child's."""
    inherited = {name: value for name, value in os.environ.items() if name != ONE_DOOR}
    return {**inherited, "PYTHONUNBUFFERED": "1", **(added or {})}


def begin(environment: Mapping[str, str]) -> BegunServer:
    """Start a fork server with this environment. It ties itself to this process: another program in between would be a start of Python more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", FORK_SERVER, str(theirs.fileno()), str(os.getpid()), " " * TITLE_BYTES],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
            env=dict(environment),
        )
    return BegunServer(process, ours, environment)


def begin_early() -> None:
    """Start one now; this process's next launcher has it."""
    _begun.append(begin(environment_of(None)))


def take_begun() -> BegunServer | None:
    """Take the server that was started early, if it is not taken yet."""
    return _begun.pop() if _begun else None
