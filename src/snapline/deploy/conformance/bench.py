"""Test benches for launchers. `Bench` supplies everything that the conformance checks need in addition to a launcher."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from snapline.deploy.launching import Commands, Launcher, SnaplineCommands
from snapline.deploy.local import LocalLauncher
from snapline.deploy.plan import NODE
from snapline.messages.coordinator_client import CoordinatorClient

LIMIT_S = 90.0
"""Time limit for each step of a check. A step takes seconds on an idle machine, and up to ten times as long on a busy machine."""

LOOK_S = 0.05
"""Polling interval in seconds."""


class LauncherFaultError(AssertionError):
    """A launcher failed a conformance check. The message begins with the name of the failed check or step."""


class Bench(Protocol):
    """A test environment for launchers, in which the checks may kill and disconnect processes."""

    @property
    def folder(self) -> Path:
        """A folder that this process shares with all processes of the fleet. The processes' command lines contain the folder's path."""
        ...

    @property
    def store(self) -> str:
        """URL or path of an empty store for one fleet. Hosts, coordinators and this process can read the store."""
        ...

    def launcher(self) -> Launcher:
        """Return a new launcher for a place that no fleet uses. Close each launcher before creating the next one."""
        ...

    def commands(self, fleet: str, hosts: int) -> Commands:
        """Return the builder of command lines for this bench. Agents of a lost host must move to other hosts immediately
        (`on_failure="move"`)."""
        ...

    def connect(self, address: str) -> CoordinatorClient:
        """Return a client with the rights of an operator and of a launcher."""
        ...

    def remains(self) -> list[str]:
        """Describe the processes and files that remain after all launchers have been closed. The list should be empty."""
        ...


class LocalBench:
    """A bench that runs on this machine and keeps all files in one folder."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is added to the environment of each process that the bench starts."""
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
    """Return the command lines for simulated nodes on this machine. The nodes share one folder, and each listens at its own address."""
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
    """Return the command lines of all other processes on this machine whose command line contains `text`.

    Include this process's children that have no command line yet.
    """
    commands: list[str] = []
    for folder in sorted(Path("/proc").iterdir()):
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if text in command or (not command and _is_in_exec(folder)):
                    commands.append(command.strip() or f"process {folder.name}, which is becoming its program")
    return commands


def _is_in_exec(folder: Path) -> bool:
    """Return whether the process is a child of this process and is not a zombie. During an exec, a process briefly has no command line."""
    state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    return state != "Z" and int(parent) == os.getpid()


def require(is_so: bool, words: str) -> None:
    """Raise LauncherFaultError if `is_so` is false."""
    if not is_so:
        raise LauncherFaultError(words)


async def until(words: str, is_there: Callable[[], bool]) -> None:
    """Poll `is_there` until it returns True. The error that is raised after `LIMIT_S` describes the condition with `words`."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not is_there():
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise LauncherFaultError(f"{words}: not within {LIMIT_S:g} s") from None
