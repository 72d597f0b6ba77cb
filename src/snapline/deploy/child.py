"""One child process of a launcher: its own session, its own log file, and never longer alive than the launcher.

Each child leads a session of its own, so a Ctrl-C at the terminal reaches the launcher alone, and a signal to the child's
process group also reaches the processes that the child started. When the child ends, the rest of its group is killed.
`deploy/parent_watch.py` makes sure that a child dies with its launcher.

Starting is one short blocking call, so that a cancellation cannot leave a process running that we do not know of. If a fork server
(`deploy/fork_server.py`) runs, the child is forked from it. Otherwise a new program is started; a pidfd reports its exit, which needs
Linux, but neither a thread nor a signal handler.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from snapline.deploy.fork_server import ForkedProcess, ForkServer, kill_process_group
from snapline.deploy.starting import environment_of, leash
from snapline.folders import make_private

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
            [*leash(), *command],
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
        """Start `command` (first item: absolute path of the program) with `environment` added to ours, by `forks` if that can.

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
        """Process id, also the id of its session and process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative signal number if a signal ended it."""
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child's whole process group; nothing happens if it has ended."""
        if self.exit_code is None:  # not reaped yet, so its id has not been reused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def wait(self) -> int:
        """Wait for its end; returns the exit code. Any number of tasks may wait, and be cancelled."""
        await self._has_ended.wait()
        assert self.exit_code is not None
        return self.exit_code

    async def stop(self, grace_s: float, before_kill: Callable[[], None] = lambda: None) -> int:
        """Ask it to end (SIGTERM), and end it (SIGKILL) after `grace_s` seconds; `before_kill` is called before. Returns the exit code."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            before_kill()
            return await self.kill()

    async def kill(self) -> int:
        """End it at once (SIGKILL) and reap it."""
        self.signal(signal.SIGKILL)
        return await self.wait()

    def last_line(self) -> str:
        """Return the last line it wrote, or "": by house rule the reason why it ended."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def describe_exit(code: int) -> str:
    """`exit code 3` or `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _rotate_log(log_path: Path) -> None:
    """Start a new log file once the old one is large; the one before it goes."""
    make_private(log_path.parent)
    if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
        log_path.replace(log_path.with_name(log_path.name + ".1"))
