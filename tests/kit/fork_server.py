"""One fork server for all tests of a process: hosts, coordinators and commands start without importing everything once more.

It is the product's (`snapline/cli/fork_server.py`), of which a launcher starts one for each fleet. In this one a child may start in any folder,
have its stderr apart from its stdout, and have the mark of its test in `/proc/PID/environ`. A child is otherwise a new process like each that
the product forks: with a session of its own, killed with the server.
"""

import asyncio
import atexit
import ctypes
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import msgspec

from snapline.deploy import starting
from snapline.deploy.child import (
    FORKABLE,
    MESSAGE_BYTES,
    READY_S,
    ForkedProcess,
    ForkServer,
    StartFork,
    kill_process_group,
)

ROOT = Path(__file__).resolve().parents[2]
"""The repository: children import `tests` from here."""

MARK = "SNAPLINE_INTEGRATION_TEST"
"""Variable with the mark of a test."""

NO_MARK = "0" * 32
"""Mark of the server, which outlives the tests; a child writes its own over it."""

STDERR = "SNAPLINE_TEST_STDERR"
"""Variable with the file for a child's stderr."""

UNBUFFERED = "PYTHONUNBUFFERED"

ENVIRONMENT = dict(os.environ)
"""The variables with which the tests began. The test that happens to start the server may have set others, which no later test has."""

ENVIRONMENT_AT = 50
"""Field of /proc/PID/stat with the address of the environment: see proc(5), counted from 1."""


# -- in a test ----------------------------------------------------------------------------------------------------------


class SharedForkServer(ForkServer):
    """The one server of this test process. Its children may belong to any event loop."""

    @classmethod
    def shared(cls) -> Self:
        """Return the server; start it if there is none."""
        if not (_servers and _servers[-1].is_open):
            environment = {**ENVIRONMENT, MARK: NO_MARK, "PYTHONPATH": str(ROOT), UNBUFFERED: "1"}
            before, starting.FORK_SERVER = starting.FORK_SERVER, __name__
            try:
                started = cls(*starting.begin(environment))
            finally:
                starting.FORK_SERVER = before
            started._connection.settimeout(READY_S)
            assert started._connection.recv(MESSAGE_BYTES), "the fork server has ended"
            started._connection.setblocking(False)
            started.is_open = True
            _servers.append(started)
            atexit.register(started.end)
        found = _servers[-1]
        assert isinstance(found, cls)
        return found

    def fork(self, command: Sequence[str], log: int, environment: Mapping[str, str]) -> ForkedProcess | None:
        asyncio.get_running_loop().add_reader(self._connection, self._listen)
        return super().fork(command, log, environment)

    def _changes(self, environment: Mapping[str, str]) -> dict[str, str | None] | None:
        """A child may lack `PYTHONPATH`: it finds `tests` none the less."""
        changes = super()._changes({"PYTHONPATH": str(ROOT), **environment, UNBUFFERED: "1"})
        lenient = (UNBUFFERED, "PYTHONPATH")
        return None if changes is None else {**changes, **{name: environment.get(name) for name in lenient}}

    def end(self) -> None:
        """End the server, without an event loop."""
        self._connection.close()
        self._process.wait()


_servers: list[SharedForkServer] = []


class FleetChildren:
    """The processes of one fleet, as the shared server has forked them: a launcher takes this for its own fork server."""

    def __init__(self) -> None:
        self._server = SharedForkServer.shared()
        self._children: list[ForkedProcess] = []

    @property
    def is_open(self) -> bool:
        return self._server.is_open

    def fork(self, command: Sequence[str], log: int, environment: Mapping[str, str]) -> ForkedProcess | None:
        forked = self._server.fork(command, log, environment)
        self._children += [] if forked is None else [forked]
        return forked

    def close(self) -> None:
        for child in self._children:
            if child.returncode is None:  # not reaped yet
                kill_process_group(child.pid)


_start_of_product = ForkServer.start.__func__  # type: ignore[attr-defined]  # a class method


async def start_for_fleet(environment: Mapping[str, str]) -> "FleetChildren | ForkServer | None":
    """In place of `ForkServer.start`: a server of its own only for a fleet whose variables are read at program start."""
    if SharedForkServer.shared()._changes(environment) is not None:
        return FleetChildren()
    found: ForkServer | None = await _start_of_product(ForkServer, environment)
    return found


class ForkedCommand:
    """A running `snapline …`, or `python -m …`, with what tests use of `asyncio.subprocess.Process`."""

    def __init__(
        self, forked: ForkedProcess, stdout: asyncio.StreamReader | None = None, stderr: IO[bytes] | None = None
    ) -> None:
        self.pid = forked.pid
        self.stdout = stdout
        self._forked = forked
        self._stderr = stderr
        self._has_ended = asyncio.Event()
        forked.call_on_end(self._has_ended.set)

    @classmethod
    async def start(cls, *words: str) -> Self | None:
        """Start it, with pipes; None: it has to be a new program. `words` that begin with `-m` name a module."""
        server, stderr = SharedForkServer.shared(), tempfile.TemporaryFile()  # noqa: SIM115  # closed with this object
        environment = {**os.environ, STDERR: f"/proc/{os.getpid()}/fd/{stderr.fileno()}"}
        ours, theirs = os.pipe()
        try:
            forked = server.fork([*FORKABLE, *words], theirs, environment)
        finally:
            os.close(theirs)
        stdout = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(ours, "rb", buffering=0)
        )
        return None if forked is None else cls(forked, stdout, stderr)

    @classmethod
    def start_logged(cls, log: IO[bytes], *words: str) -> Self | None:
        """The same, with its output in a file."""
        forked = SharedForkServer.shared().fork([*FORKABLE, *words], log.fileno(), os.environ)
        return None if forked is None else cls(forked)

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        await self._has_ended.wait()
        assert self.returncode is not None
        return self.returncode

    async def communicate(self) -> tuple[bytes, bytes]:
        assert self.stdout is not None and self._stderr is not None
        out = await self.stdout.read()
        await self.wait()
        self._stderr.seek(0)
        return out, self._stderr.read()


# -- in the server ------------------------------------------------------------------------------------------------------


def serve() -> None:
    """Import what commands need, then serve like the product's server; in a child, run the command."""
    from snapline.cli import fork_server
    from snapline.cli.main import COMMANDS, GROUPS

    become, reason = fork_server.become_child, fork_server.reason_against

    def become_child(wanted: StartFork, log: int, server: int) -> None:
        become(wanted, log, server)
        os.chdir(wanted.folder)
        sys.path[0] = wanted.folder
        if stderr := os.environ.pop(STDERR, ""):
            descriptor = os.open(stderr, os.O_WRONLY | os.O_APPEND)
            os.dup2(descriptor, 2)
            os.close(descriptor)
        if UNBUFFERED not in os.environ:
            sys.stdout = os.fdopen(1, "w", closefd=False)
        write_mark(os.environ.get(MARK, NO_MARK))
        if wanted.words[0] == "-m":
            sys.argv = ["", *wanted.words[2:]]
            runpy.run_module(wanted.words[1], run_name="__main__", alter_sys=True)
            sys.exit()

    def reason_against(wanted: StartFork, files: dict[str, int]) -> str:
        """Return why the child has to be a new program. Who edits a file while tests run gets the code that the tests began with."""
        return reason(msgspec.structs.replace(wanted, folder=os.getcwd()), {})

    fork_server.become_child, fork_server.reason_against = become_child, reason_against
    fork_server.FORKED_GROUPS = tuple({**GROUPS, **COMMANDS})  # type: ignore[assignment]  # more of them
    fork_server.main()


def write_mark(mark: str) -> None:
    """Write this process's mark where other processes see its environment."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    name = f"{MARK}=".encode()
    at = Path("/proc/self/environ").read_bytes().index(name) + len(name)
    ctypes.memmove(int(fields[ENVIRONMENT_AT - 3]) + at, mark.encode(), len(NO_MARK))


if __name__ == "__main__":
    serve()
