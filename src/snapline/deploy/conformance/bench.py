"""Bench of the suite: what it needs of a place beyond its launcher, and the bench of this machine."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from snapline.deploy.commands import Commands, SnaplineCommands
from snapline.deploy.launching import Launcher
from snapline.deploy.local import LocalLauncher
from snapline.deploy.plan import NODE
from snapline.messages.coordinator_client import CoordinatorClient

LIMIT_S = 90.0
"""Time limit of each step: seconds on a quiet machine, and a busy one may take ten times as long."""

LOOK_S = 0.05
"""Between two looks."""


class LauncherFaultError(AssertionError):
    """A launcher does not do what a fleet needs. The message begins with the name of the check or step."""


class Bench(Protocol):
    """A place where launchers are tested. What is tested may be killed and cut off there."""

    @property
    def folder(self) -> Path:
        """A folder that all processes share with this one; their command lines name it, or something in it."""
        ...

    @property
    def store(self) -> str:
        """A store for one fleet, empty: hosts, coordinators and this process can read it."""
        ...

    def launcher(self) -> Launcher:
        """Return a new launcher for an unused place. It is closed before the next one is requested."""
        ...

    def commands(self, fleet: str, hosts: int) -> Commands:
        """Command lines for this place; lost hosts' agents move at once (`on_failure="move"`)."""
        ...

    def connect(self, address: str) -> CoordinatorClient:
        """A client with the rights of an operator and of a launcher."""
        ...

    def remains(self) -> list[str]:
        """Return what is left, in words, after all launchers were closed: processes, files. Nothing should be."""
        ...


class LocalBench:
    """Bench of this machine: everything in one folder."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is added to that of the processes."""
        self._folder = folder
        self._environment = environment
        self._places = 0

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def store(self) -> str:
        return str(self._folder / "store")

    def launcher(self) -> Launcher:
        self._places += 1
        return LocalLauncher(self._place, environment=self._environment)

    def commands(self, fleet: str, hosts: int) -> Commands:
        return SnaplineCommands(
            data_dir=self._place, fleet=fleet, hosts=hosts, arguments={}, on_failure="move", store=self.store
        )

    def connect(self, address: str) -> CoordinatorClient:
        return CoordinatorClient(address)

    def remains(self) -> list[str]:
        return processes_naming(str(self._folder))

    @property
    def _place(self) -> Path:
        return self._folder / f"place-{self._places}"


def commands_for_nodes(bench: Bench, fleet: str, hosts: int, arguments: Mapping[str, str] | None = None) -> Commands:
    """Return commands for machines that are all this one, reached as if they were not: they share one folder, and listen at their own addresses."""
    return SnaplineCommands(
        data_dir=bench.folder / "data",
        fleet=fleet,
        hosts=hosts,
        arguments=arguments or {},
        on_failure="move",
        store=bench.store,
        listen=f"{NODE}:0",
    )


def processes_naming(text: str) -> list[str]:
    """Command lines of this machine's processes, other than this one, that hold `text`; and children of ours that have none yet."""
    found: list[str] = []
    for folder in sorted(Path("/proc").iterdir()):
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if text in command or (not command and _is_beginning(folder)):
                    found.append(command.strip() or f"process {folder.name}, which is becoming its program")
    return found


def _is_beginning(folder: Path) -> bool:
    """Return whether it is our child and no zombie. In the middle of an exec a process has no command line for a moment."""
    state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    return state != "Z" and int(parent) == os.getpid()


def demand(is_so: bool, words: str) -> None:
    """Raise LauncherFaultError unless `is_so`."""
    if not is_so:
        raise LauncherFaultError(words)


async def until(words: str, is_there: Callable[[], bool]) -> None:
    """Wait for something that can be seen at once; `words` say what has not come."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not is_there():
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise LauncherFaultError(f"{words}: not within {LIMIT_S:g} s") from None
