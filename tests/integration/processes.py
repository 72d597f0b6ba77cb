"""Processes that tests start: each carries a mark in its environment, which it inherits to all it starts itself."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tests.kit import fork_server
from tests.kit.fork_server import MARK, ForkedCommand, start_for_fleet

from snapline.deploy.child import ForkServer

ROOT = fork_server.ROOT

LAUNCHERS = ("run", "demo", "up", "chaos")
"""Commands that start a fleet: each is a program of its own, with the product's own fork server."""

SHUTDOWN_S = 5.0
"""A killed launcher's children are killed by the kernel; all that is left for them is to be reaped."""

LIMIT_S = 60.0
"""For everything that takes seconds: a busy machine may make it ten times as long."""


def marked(mark: str) -> dict[int, str]:
    """Running processes with this mark, whoever their parent is by now: process id → command line."""
    wanted = f"{MARK}={mark}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    return found


@contextlib.contextmanager
def nothing_left_running() -> Iterator[str]:
    """Marks all processes that are started inside; at the end none may be left."""
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr(ForkServer, "start", start_for_fleet)
        yield mark
    left = _end_all(mark)
    assert not left, f"still running: {left}"


def _end_all(mark: str) -> dict[int, str]:
    """Wait for the end of all processes with this mark; returns those that had to be ended."""
    deadline_s = time.monotonic() + SHUTDOWN_S
    while (left := marked(mark)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


Process = ForkedCommand | asyncio.subprocess.Process
"""A running command."""


@dataclass
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, object]:
        return msgspec.convert(json.loads(self.out), dict[str, object])

    def rows(self, name: str) -> list[dict[str, object]]:
        """The list of objects under `name`."""
        return msgspec.convert(self.json[name], list[dict[str, object]])


async def start(*arguments: str | Path) -> Process:
    """Start `snapline …`."""
    words = [str(argument) for argument in arguments]
    forked = None if words[0] in LAUNCHERS else await ForkedCommand.start(*words)
    return forked or await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "snapline", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: Process, limit_s: float = LIMIT_S) -> Outcome:
    """Wait for the end of a process; one that takes too long is killed, and the test fails."""
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        _, err = await process.communicate()
        raise AssertionError(f"it has not ended after {limit_s} s:\n{err.decode()}") from None
    assert process.returncode is not None
    return Outcome(process.returncode, out.decode(), err.decode())


async def snapline(*arguments: str | Path, limit_s: float = LIMIT_S) -> Outcome:
    """Run `snapline …` to its end."""
    return await ended(await start(*arguments), limit_s)


async def together(*commands: tuple[str | Path, ...]) -> list[Outcome]:
    """Run several commands at the same time: starting Python is most of what they cost."""
    return await asyncio.gather(*(snapline(*command) for command in commands))
