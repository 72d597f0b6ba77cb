"""Prepare the start of a launcher's children: parent watch, environment, and fork server.

This module imports only small modules. A program that will certainly start children starts the fork server before any other import, so that
the program and the server import in parallel.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

FORK_SERVER = "snapline.cli.fork_server"

TITLE_BYTES = 1024
"""Space reserved for the command line that `ps` shows for a forked child."""

HEALTH_VARIABLE = "SNAPLINE_HEALTH"
"""Variable that children do not inherit. A container image sets one health endpoint for its process; a launcher in that container would pass
it on to all its children."""

_PARENT_WATCH = os.path.join(os.path.dirname(__file__), "parent_watch.py")


class StartedForkServer(NamedTuple):
    """A fork server that is still importing, and our end of its socket pair."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    environment: Mapping[str, str]


_early_servers: list[StartedForkServer] = []


def parent_watch_command() -> list[str]:
    """Return the command prefix that makes a child die with this process."""
    return [sys.executable, "-I", "-S", _PARENT_WATCH, str(os.getpid())]


def environment_of(added: Mapping[str, str] | None) -> dict[str, str]:
    """Return a child's environment: ours, and the `added` variables."""
    inherited = {name: value for name, value in os.environ.items() if name != HEALTH_VARIABLE}
    return {**inherited, "PYTHONUNBUFFERED": "1", **(added or {})}


def begin(environment: Mapping[str, str]) -> StartedForkServer:
    """Start a fork server with this environment.

    It ties its own life to this process, because `parent_watch.py` would start Python twice.
    """
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
    return StartedForkServer(process, ours, environment)


def start_fork_server_early() -> None:
    """Start a fork server now; this process's next launcher uses it."""
    _early_servers.append(begin(environment_of(None)))


def take_early_server() -> StartedForkServer | None:
    """Return the server that was started early; None if there is none or it is already in use."""
    return _early_servers.pop() if _early_servers else None
