"""Start child processes of a launcher. Each has its own session and its own log file, and never lives longer than the launcher.

Each child leads its own session, so a Ctrl-C at the terminal reaches only the launcher, and a signal to the child's process group also
reaches the processes that the child started. When the child ends, the rest of its group is killed. `deploy/parent_watch.py` makes sure that
a child dies with its launcher.

Starting a child is one short blocking call, so that a cancellation cannot leave an unknown process running. If a fork server runs, the
child is forked from it. Otherwise a new program is started. A pidfd reports the exit of the program, which needs Linux, but no thread and
no signal handler.

The fork server
---------------
Imports take most of a start. So a launcher starts one *fork server* (`cli/fork_server.py`) that has imported everything, and sends it requests over a
socket pair. Each request carries the descriptor of the child's log. The server has one thread, and of gRPC it has only the imported code, so that
forking it is safe.

The children belong to the server and die with the server, and the server dies with its launcher. The server reports each exit, and reaps
the child on command. Until then the child's process id is not reused, so a signal never reaches another process.

The launcher never depends on the server. In these cases it starts a child as a new program:

- the imported code has changed on disk, so the server refuses;
- the command does not run snapline;
- the child needs an environment variable that is read at program start.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from snapline.deploy.starting import begin, environment_of, parent_watch_command, take_early_server
from snapline.folders import make_private

FORKABLE = (sys.executable, "-m", "snapline")
"""Prefix of the command lines that a server can run."""

STARTUP_VARIABLE_PREFIXES = ("LD_", "PYTHON", "GRPC_", "MALLOC_", "GLIBC_")
"""Prefixes of environment variables that are read at program start or at import."""

REPLY_S = 10.0
"""Time limit for an answer. A fork takes milliseconds; a server that is slower than this hangs."""

CLOSE_S = 2.0
"""Time limit for the server to read the last messages and end. It takes milliseconds, unless the server hangs."""

READY_S = 20.0
"""Time limit for all imports, on a busy machine."""

MESSAGE_BYTES = 1 << 17


class StartFork(msgspec.Struct, frozen=True, tag=True):
    """Start `snapline` with the arguments `words`. `changes`: differences from the server's environment, None for a variable to remove."""

    words: list[str]
    changes: dict[str, str | None]
    folder: str


class Reap(msgspec.Struct, frozen=True, tag=True):
    """Reap this child: the launcher has recorded its exit."""

    pid: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The server has imported everything."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """A child was started."""

    pid: int


class ForkRefused(msgspec.Struct, frozen=True, tag=True):
    """No child was started: the launcher has to start it in another way."""

    reason: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A child has ended; `code` is the negative signal number if a signal ended it."""

    pid: int
    code: int


Request = StartFork | Reap
ServerMessage = Ready | Forked | ForkRefused | Ended
REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
SERVER_MESSAGES: msgspec.msgpack.Decoder[ServerMessage] = msgspec.msgpack.Decoder(ServerMessage)


def kill_process_group(pid: int) -> None:
    """Kill the rest of the process group of an ended, not yet reaped process: its children must not continue a run that is over."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def is_forkable(command: Sequence[str]) -> bool:
    """Return whether a server can run this command line."""
    return tuple(command[: len(FORKABLE)]) == FORKABLE


class ForkedProcess:
    """A child of a fork server.

    Attributes:
        returncode: None while the process runs; the negative signal number if a signal ended it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)  # not reaped yet, so the id is still this child's
        self._on_end: Callable[[], None] = lambda: None

    def call_on_end(self, then: Callable[[], None]) -> None:
        """Call `then` once, when the process has ended."""
        self._on_end = then
        if self.returncode is not None:
            then()

    def end(self, code: int) -> None:
        """Record the exit code and report the end."""
        self.returncode = code
        os.close(self._pidfd)
        self._on_end()

    def await_kill(self) -> None:
        """Wait for the kernel to kill this child, whose server is gone."""
        loop = asyncio.get_running_loop()

        def killed() -> None:
            loop.remove_reader(self._pidfd)
            self.end(-signal.SIGKILL)

        loop.add_reader(self._pidfd, killed)


class ForkServer:
    """The launcher's side of a fork server. Call all methods in the event loop in which it was started.

    Attributes:
        is_open: whether children can be forked.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], connection: socket.socket, environment: Mapping[str, str]
    ) -> None:
        self._process = process
        self._connection = connection
        self._environment = dict(environment)
        self._children: dict[int, ForkedProcess] = {}
        self.is_open = False

    @classmethod
    async def start(cls, environment: Mapping[str, str]) -> Self | None:
        """Start a fork server with this environment, tied to this process; None if it does not start."""
        begun = take_early_server() or begin(environment)
        server, connection = cls(*begun), begun.connection
        try:
            connection.setblocking(False)
            async with asyncio.timeout(READY_S):
                greeting = await asyncio.get_running_loop().sock_recv(connection, MESSAGE_BYTES)
        except (TimeoutError, OSError):
            greeting = b""
        except BaseException:
            server.close()
            raise
        if not greeting:
            server.close()
            return None
        server.is_open = True
        asyncio.get_running_loop().add_reader(connection, server._listen)
        return server

    def fork(self, command: Sequence[str], log: int, environment: Mapping[str, str]) -> ForkedProcess | None:
        """Start a child with this environment and its output to descriptor `log`; None: the caller has to start it in another way.

        The call blocks for some milliseconds, so that a cancellation cannot leave an unknown process running.
        """
        changes = self._changes(environment)
        if not self.is_open or not is_forkable(command) or changes is None:
            return None
        request = msgspec.msgpack.encode(StartFork(list(command[len(FORKABLE) :]), changes, os.getcwd()))
        try:
            socket.send_fds(self._connection, [request], [log])
        except OSError:  # the request is too large, or the server is gone
            return None
        answer = self._await_answer()
        if not isinstance(answer, Forked):
            return None
        try:
            child = self._children[answer.pid] = ForkedProcess(answer.pid)
        except ProcessLookupError:  # the server was killed since, and the child with it
            return None
        return child

    def _changes(self, environment: Mapping[str, str]) -> dict[str, str | None] | None:
        """Return the differences from the server's environment; None if one of them is only read at program start."""
        names = {*environment, *self._environment}
        changes = {x: environment.get(x) for x in names if environment.get(x) != self._environment.get(x)}
        return None if any(name.startswith(STARTUP_VARIABLE_PREFIXES) for name in changes) else changes

    def _await_answer(self) -> ServerMessage | None:
        """Return the server's answer; None if there will be none. Then no unknown child is left either."""
        while self.is_open:
            readable, _, _ = select.select([self._connection], [], [], REPLY_S)
            if not readable:
                self._process.kill()  # then read its remaining messages
                continue
            message = self._receive()
            if isinstance(message, Ended):
                self._on_child_ended(message)
            elif message is not None:
                return message
        return None

    def _listen(self) -> None:
        message = self._receive()
        if isinstance(message, Ended):
            self._on_child_ended(message)

    def _receive(self) -> ServerMessage | None:
        """Return the next message; None if the server is gone, or if its messages were already read while a child was started."""
        try:
            received = self._connection.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            received = b""
        if received:
            return SERVER_MESSAGES.decode(received)
        self._on_server_gone()
        return None

    def _on_child_ended(self, word: Ended) -> None:
        child = self._children.pop(word.pid, None)
        kill_process_group(word.pid)
        if child is not None:
            child.end(word.code)
        try:
            self._connection.send(msgspec.msgpack.encode(Reap(word.pid)))
        except OSError:
            self._on_server_gone()

    def _on_server_gone(self) -> None:
        """Stop listening: the server is gone, and the kernel kills its children."""
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().remove_reader(self._connection)
            for child in self._children.values():
                child.await_kill()
            self._children.clear()

    def close(self) -> None:
        """End the server and its children. On return, the server has reaped all ended children."""
        limit_s = CLOSE_S if self.is_open else 0.0
        self._on_server_gone()
        self._connection.close()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


LOG_BYTES_MAX = 16 << 20
"""A larger log is renamed to `*.log.1` when its child starts again. So the logs of a child that fails in a loop stay small,
and its first failures can still be read for a while."""

TAIL_BYTES = 4096
"""Size of the end of a log that is read to explain an exit. A child's last line is much shorter."""


class SpawnedProcess:
    """A new program, a child of this process.

    Attributes:
        returncode: None while the process runs; the negative signal number if a signal ended it.
    """

    def __init__(self, command: Sequence[str], log: int, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [*parent_watch_command(), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
        )
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def call_on_end(self, then: Callable[[], None]) -> None:
        """Call `then` once, when the process has ended."""
        loop, pidfd = asyncio.get_running_loop(), os.pidfd_open(self.pid)

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            kill_process_group(self.pid)
            self._process.wait()
            then()

        loop.add_reader(pidfd, ended)


class Child:
    """A running (or ended) child process.

    Attributes:
        name: name in messages, such as `h1` or `coordinator`.
        log_path: file to which its stdout and stderr are appended.
    """

    def __init__(self, name: str, log_path: Path, log_start: int, process: "SpawnedProcess | ForkedProcess") -> None:
        self.name = name
        self.log_path = log_path
        self._log_start = log_start  # offset in the log where this run's output begins
        self._process = process
        self._has_ended = asyncio.Event()
        process.call_on_end(self._has_ended.set)

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
        forks: ForkServer | None = None,
    ) -> Self:
        """Start `command` (first item: absolute path of the program) with `environment` added to ours; use the fork server `forks` if possible.

        The caller must run in the event loop that will wait for the child.
        """
        _rotate_log(log_path)
        environ = environment_of(environment)
        with log_path.open("ab") as log:
            log_start = log.tell()
            forked = None if forks is None else forks.fork(command, log.fileno(), environ)
            return cls(name, log_path, log_start, forked or SpawnedProcess(command, log.fileno(), environ))

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of the child's session and process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code: None while the child runs, the negative signal number if a signal ended the child."""
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child's whole process group. Nothing happens if the child has ended."""
        if self.exit_code is None:  # not reaped yet, so its id has not been reused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def wait(self) -> int:
        """Wait for the child's end; return the exit code. Any number of tasks may wait, and may be cancelled."""
        await self._has_ended.wait()
        assert self.exit_code is not None
        return self.exit_code

    async def stop(self, grace_s: float, before_kill: Callable[[], None] = lambda: None) -> int:
        """Send SIGTERM, and SIGKILL after `grace_s` seconds; return the exit code. `before_kill` is called before the SIGKILL."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            before_kill()
            return await self.kill()

    async def kill(self) -> int:
        """Kill the child (SIGKILL) and reap it; return the exit code."""
        self.signal(signal.SIGKILL)
        return await self.wait()

    def last_line(self) -> str:
        """Return the last line that the child wrote, or "". By convention this line is the reason for the exit."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def describe_exit(code: int) -> str:
    """Describe an exit code as `exit code 3` or `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _rotate_log(log_path: Path) -> None:
    """Start a new log file once the old one is large, and rename the old one. An earlier renamed file is overwritten."""
    make_private(log_path.parent)
    if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
        log_path.replace(log_path.with_name(log_path.name + ".1"))
