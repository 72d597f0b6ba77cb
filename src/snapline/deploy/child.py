"""One child process of a launcher: its own session, its own log file, and never longer alive than the launcher.

Each child leads a session of its own, so a Ctrl-C at the terminal reaches the launcher alone, and a signal to the child's
process group reaches whatever the child has started as well; what is left of the group when the child has ended is killed.
`deploy/parent_watch.py` ties its life to the launcher's.

Starting is one short blocking call, so that no cancellation can fall between a process and our knowledge of it: a fork of a process
that has imported everything (`deploy/fork_server.py`), if there is one, or a new program, whose end is seen through a pidfd, which needs no
thread and no signal handler, and Linux.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from snapline.deploy.fork_server import ForkedProcess, ForkServer, end_group
from snapline.deploy.starting import environment_of, leash
from snapline.folders import make_private

LOG_BYTES_MAX = 16 << 20
"""A log above this is set aside as `*.log.1` when its child starts again: two files of a child that fails in a loop
stay small, and the text of its first failures is still there for a while."""

TAIL_BYTES = 4096
"""Length of the part of a log that is read to explain an exit: the last sentence of a child is well inside."""


class SpawnedProcess:
    """A new program, a child of this process.

    Attributes:
        returncode: None while it runs; minus the signal's number if a signal ended it.
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

    def when_ended(self, then: Callable[[], None]) -> None:
        """Call it once, when the process has ended."""
        loop, pidfd = asyncio.get_running_loop(), os.pidfd_open(self.pid)

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            end_group(self.pid)
            self._process.wait()
            then()

        loop.add_reader(pidfd, ended)


class Child:
    """A running (or ended) child process.

    Attributes:
        name: what messages call it, such as `h1` or `coordinator`.
        log_path: where its stdout and stderr go, appended.
    """

    def __init__(self, name: str, log_path: Path, log_start: int, process: "SpawnedProcess | ForkedProcess") -> None:
        self.name = name
        self.log_path = log_path
        self._log_start = log_start  # where its own output begins in the log
        self._process = process
        self._has_ended = asyncio.Event()
        process.when_ended(self._has_ended.set)

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

        Call it inside the event loop that will wait for the child.
        """
        _set_aside(log_path)
        its_own = environment_of(environment)
        with log_path.open("ab") as log:
            log_start = log.tell()
            forked = None if forks is None else forks.fork(command, log.fileno(), its_own)
            return cls(name, log_path, log_start, forked or SpawnedProcess(command, log.fileno(), its_own))

    @property
    def pid(self) -> int:
        """Process id, also the id of its session and process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number if a signal ended it."""
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child's whole process group; nothing happens if it has ended."""
        if self.exit_code is None:  # not reaped: its id cannot have become another process's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def wait(self) -> int:
        """Wait for its end; returns the exit code. Any number of tasks may wait, and be cancelled."""
        await self._has_ended.wait()
        assert self.exit_code is not None
        return self.exit_code

    async def stop(self, grace_s: float, when_killed: Callable[[], None] = lambda: None) -> int:
        """Ask it to end (SIGTERM), and end it (SIGKILL) after `grace_s` seconds; `when_killed` is called before. Returns the exit code."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            when_killed()
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


def _set_aside(log_path: Path) -> None:
    """Start a new log file once the old one is large; the one before it goes."""
    make_private(log_path.parent)
    if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
        log_path.replace(log_path.with_name(log_path.name + ".1"))
