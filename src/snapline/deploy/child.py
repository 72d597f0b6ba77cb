"""Start a launcher's child processes. Each child has its own session and log file, and is killed if the launcher dies.

Because each child leads its own session, a Ctrl-C at the terminal reaches only the launcher. A signal to the child's process group also
reaches the processes that the child started. When a child exits, the launcher kills the remaining processes in its process group.
`deploy/parent_watch.py` ensures that a child dies with its launcher.

Starting a child is one short blocking call, so a cancellation cannot leave an unknown process running. If a fork server is running, it
forks the child. Otherwise the launcher starts a new program, and a pidfd reports its exit. A pidfd requires Linux, but needs neither a
thread nor a signal handler.

The fork server
---------------
Imports take most of a process's start time. So a launcher starts one *fork server* (`cli/fork_server.py`) that has already imported
everything, and sends it requests over a socket pair. Each request carries the file descriptor of the child's log. The server is safe to
fork because it has only one thread, and has imported gRPC without using it.

The forked children die with the server, and the server dies with its launcher. The server reports each exit, but reaps the child only at
the launcher's command. Until a child is reaped, its process id is not reused, so a signal cannot reach another process by mistake.

The launcher also works without the server. It starts the child as a new program in these cases:

- The imported code has changed on disk, so the server refuses to fork.
- The command does not run snapline.
- The child needs an environment variable that is read at program start.
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
"""Prefix of the command lines that a fork server can run."""

STARTUP_VARIABLE_PREFIXES = ("LD_", "PYTHON", "GRPC_", "MALLOC_", "GLIBC_")
"""Prefixes of environment variables that are read at program start or at import."""

REPLY_S = 10.0
"""Time limit for the fork server's reply. A fork takes milliseconds, so a slower server is considered hung."""

CLOSE_S = 2.0
"""Time limit for the fork server to read its remaining messages and exit. A server that does not hang needs only milliseconds."""

READY_S = 20.0
"""Time limit for the fork server to import everything, even on a busy machine."""

MESSAGE_BYTES = 1 << 17


class StartFork(msgspec.Struct, frozen=True, tag=True):
    """Request to fork a child that runs `snapline` with the arguments `words`.

    `changes` maps each environment variable that differs from the server's to its new value, or to None to remove the variable.
    """

    words: list[str]
    changes: dict[str, str | None]
    folder: str


class Reap(msgspec.Struct, frozen=True, tag=True):
    """Request to reap this child, after the launcher has recorded its exit."""

    pid: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Message that the server has imported everything."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """A child was started."""

    pid: int


class ForkRefused(msgspec.Struct, frozen=True, tag=True):
    """Reply that the server did not fork a child. The launcher must then start the child as a new program."""

    reason: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A child has exited. `code` is its exit code, or the negative signal number if a signal killed it."""

    pid: int
    code: int


Request = StartFork | Reap
ServerMessage = Ready | Forked | ForkRefused | Ended
REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
SERVER_MESSAGES: msgspec.msgpack.Decoder[ServerMessage] = msgspec.msgpack.Decoder(ServerMessage)


def kill_process_group(pid: int) -> None:
    """Kill the other processes in the group of an exited process that has not been reaped yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def is_forkable(command: Sequence[str]) -> bool:
    """Return whether a fork server can run this command line."""
    return tuple(command[: len(FORKABLE)]) == FORKABLE


class ForkedProcess:
    """A child of a fork server.

    Attributes:
        returncode: the exit code, or the negative signal number if a signal killed the process. `returncode` is None while the process
            runs.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)  # the child is not reaped yet, so the id still belongs to it
        self._on_end: Callable[[], None] = lambda: None

    def call_on_end(self, then: Callable[[], None]) -> None:
        """Call `then` once, when the process has exited."""
        self._on_end = then
        if self.returncode is not None:
            then()

    def end(self, code: int) -> None:
        """Record the exit code, and run the callback that waits for the exit."""
        self.returncode = code
        os.close(self._pidfd)
        self._on_end()

    def await_kill(self) -> None:
        """Wait until the kernel has killed this child because its fork server has died."""
        loop = asyncio.get_running_loop()

        def killed() -> None:
            loop.remove_reader(self._pidfd)
            self.end(-signal.SIGKILL)

        loop.add_reader(self._pidfd, killed)


class ForkServer:
    """The launcher's side of a fork server. Call every method in the event loop in which the server was started.

    Attributes:
        is_open: whether the server can fork children.
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
        """Start a fork server with this environment. The server dies with this process. Return None if the server fails to start."""
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
        """Fork a child with this environment. The child's output goes to the file descriptor `log`.

        Return None if the server cannot fork the child. The caller must then start it as a new program.

        The call blocks for a few milliseconds instead of awaiting, so a cancellation cannot leave an unknown process running.
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
        except ProcessLookupError:  # the server was killed in the meantime, and the child died with it
            return None
        return child

    def _changes(self, environment: Mapping[str, str]) -> dict[str, str | None] | None:
        """Return the variables that differ from the server's environment. Return None if one of them is read only at program start."""
        names = {*environment, *self._environment}
        changes = {x: environment.get(x) for x in names if environment.get(x) != self._environment.get(x)}
        return None if any(name.startswith(STARTUP_VARIABLE_PREFIXES) for name in changes) else changes

    def _await_answer(self) -> ServerMessage | None:
        """Return the server's reply, or None if the server is gone. A server that is gone leaves no unknown child running."""
        while self.is_open:
            readable, _, _ = select.select([self._connection], [], [], REPLY_S)
            if not readable:
                self._process.kill()  # the loop then reads its remaining messages
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
        """Return the server's next message. Return None if the server is gone, or if `fork` has already read its messages."""
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
        """Stop listening to the server after it has exited. The kernel kills the server's children."""
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().remove_reader(self._connection)
            for child in self._children.values():
                child.await_kill()
            self._children.clear()

    def close(self) -> None:
        """End the server and its children. All children that have exited are reaped before this method returns."""
        limit_s = CLOSE_S if self.is_open else 0.0
        self._on_server_gone()
        self._connection.close()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


LOG_BYTES_MAX = 16 << 20
"""If a log is larger than this when its child restarts, the log is renamed to `*.log.1`. So a child that fails in a loop writes a bounded
amount of logs, and its first failures stay readable for a while."""

TAIL_BYTES = 4096
"""Number of bytes read from the end of a log to explain an exit. A child's last line is much shorter."""


class SpawnedProcess:
    """A child process that was started as a new program.

    Attributes:
        returncode: the exit code, or the negative signal number if a signal killed the process. `returncode` is None while the process
            runs.
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
        """Call `then` once, when the process has exited."""
        loop, pidfd = asyncio.get_running_loop(), os.pidfd_open(self.pid)

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            kill_process_group(self.pid)
            self._process.wait()
            then()

        loop.add_reader(pidfd, ended)


class Child:
    """A child process that runs or has exited.

    Attributes:
        name: the child's name in messages, such as `h1` or `coordinator`.
        log_path: file to which the child's stdout and stderr are appended.
    """

    def __init__(self, name: str, log_path: Path, log_start: int, process: "SpawnedProcess | ForkedProcess") -> None:
        self.name = name
        self.log_path = log_path
        self._log_start = log_start  # offset in the log at which this run's output begins
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
        """Start `command` with this process's environment plus `environment`.

        The first item of `command` is the program's absolute path. Use the fork server `forks` if it can run the command.

        Call this in the event loop that will wait for the child.
        """
        _rotate_log(log_path)
        environ = environment_of(environment)
        with log_path.open("ab") as log:
            log_start = log.tell()
            forked = None if forks is None else forks.fork(command, log.fileno(), environ)
            return cls(name, log_path, log_start, forked or SpawnedProcess(command, log.fileno(), environ))

    @property
    def pid(self) -> int:
        """The child's process id, which is also its session id and process group id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The child's exit code, or the negative signal number if a signal killed the child, or None while the child runs."""
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child's whole process group. Do nothing if the child has exited."""
        if self.exit_code is None:  # the child is not reaped yet, so its id has not been reused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def wait(self) -> int:
        """Wait until the child exits, and return its exit code. Several tasks may wait concurrently, and each may be cancelled."""
        await self._has_ended.wait()
        assert self.exit_code is not None
        return self.exit_code

    async def stop(self, grace_s: float, before_kill: Callable[[], None] = lambda: None) -> int:
        """Send SIGTERM to the child, and SIGKILL if it is still running after `grace_s` seconds. Return the exit code.

        `before_kill` is called immediately before the SIGKILL.
        """
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            before_kill()
            return await self.kill()

    async def kill(self) -> int:
        """Kill the child with SIGKILL, reap it, and return its exit code."""
        self.signal(signal.SIGKILL)
        return await self.wait()

    def last_line(self) -> str:
        """Return the reason for the exit (`last_words`), or the last line that the child wrote, or "" if it wrote none."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                return last_words(log.read().decode(errors="replace"))
        except OSError:
            return ""


def last_words(text: str) -> str:
    """Return the last line of a process's output that begins with `snapline: `, which gives the reason for its exit, also if an interpreter that
    ends prints more. Return the last line if there is none, or "" if there is no line at all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith("snapline: ")), lines[-1] if lines else "")


def describe_exit(code: int) -> str:
    """Describe an exit code, for example as `exit code 3` or `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _rotate_log(log_path: Path) -> None:
    """Rename the log file if it exceeds `LOG_BYTES_MAX`, so that the next run starts a new file.

    Overwrite the previously renamed file.
    """
    make_private(log_path.parent)
    if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
        log_path.replace(log_path.with_name(log_path.name + ".1"))
