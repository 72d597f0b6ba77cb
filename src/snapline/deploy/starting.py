"""Preparation for starting a launcher's children: the parent watch, the environment and the fork server.

This module imports only small modules, so that it loads quickly. A program that will certainly start children starts the fork server before
its other imports. The program and the server then import in parallel.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

FORK_SERVER = "snapline.cli.fork_server"

TITLE_BYTES = 1024
"""Number of bytes reserved for the command line that `ps` shows for a forked child."""

HEALTH_VARIABLE = "SNAPLINE_HEALTH"
"""Environment variable that children do not inherit. A container image uses it to set the health endpoint of the container's process. A
launcher in that container would otherwise pass the variable on to all of its children."""

_PARENT_WATCH = os.path.join(os.path.dirname(__file__), "parent_watch.py")


class StartedForkServer(NamedTuple):
    """A fork server that is still importing modules, and the launcher's end of the socket pair."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    environment: Mapping[str, str]


_early_servers: list[StartedForkServer] = []


def parent_watch_command() -> list[str]:
    """Return the command-line prefix that makes a child die when this process dies."""
    return [sys.executable, "-I", "-S", _PARENT_WATCH, str(os.getpid())]


def environment_of(added: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of a child: this process's environment plus the variables in `added`."""
    inherited = {name: value for name, value in os.environ.items() if name != HEALTH_VARIABLE}
    return {**inherited, "PYTHONUNBUFFERED": "1", **(added or {})}


def begin(environment: Mapping[str, str]) -> StartedForkServer:
    """Start a fork server with this environment.

    The server itself arranges to die with this process, because using `parent_watch.py` would start Python twice.
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
    """Start a fork server now. The next launcher in this process will use it."""
    _early_servers.append(begin(environment_of(None)))


def take_early_server() -> StartedForkServer | None:
    """Return the fork server that was started early. Return None if there is none or it is already in use."""
    return _early_servers.pop() if _early_servers else None
