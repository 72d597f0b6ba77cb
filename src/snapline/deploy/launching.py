"""Launcher interface: a launcher starts and ends a fleet's processes at some place, and sees their ends. It decides nothing.

A *place* is where processes can run: this machine, a Ray cluster, a batch system. `deploy/supervisor.py` decides what to start and restart, and
when the fleet is over; it is the same for every launcher. The coordinator decides about the fleet's state, and knows no launcher.

A launcher's report of a lost host is only a hint for the coordinator's failure detector (`ReportHostExit`). Without it, the broken stream shows
the loss a second or two later. Launchers assign no incarnation or host generation: Raft does, when the process registers. `instance` only
identifies one run, so that a report of its exit is not applied to the next run.

`snapline.deploy.conformance` tests launchers, built-in and third-party.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from snapline.messages.turn_deaths import TurnDeath

Kind = Literal["coordinator", "host"]


class ProcessSpec(msgspec.Struct, frozen=True):
    """One process to start.

    Attributes:
        name: `h1`, `c1`, `coordinator` …; the launcher runs one process of a name at a time.
        kind: host or coordinator; launchers spread the processes of each kind over their machines.
        instance: identifies this run of the process.
        command: program and arguments. A launcher on other machines replaces the program with its own interpreter.
    """

    name: str
    kind: Kind
    instance: str
    command: tuple[str, ...]


class Handle(msgspec.Struct, frozen=True):
    """A process that was started.

    Attributes:
        name, instance: from its spec; the instance differs if the place had restarted the process by itself.
        where: the launcher's name of the machine or node.
        pid: the process id on that machine.
    """

    name: str
    instance: str
    where: str
    pid: int


class Exit(msgspec.Struct, frozen=True):
    """Exit of a process.

    Attributes:
        code: the exit code, or the negative signal number; None if the exit was not observed, for example because the machine died.
        text: description, such as `exit code 3` or `its node died`.
        last_words: the last line of its output, by convention the reason for its exit; `""` if unknown.
        log: location of its log.
        died_in: the turns that the host was running when it died, if the launcher knows.
    """

    code: int | None
    text: str
    last_words: str = ""
    log: str = ""
    died_in: tuple[TurnDeath, ...] = ()


class Launcher(Protocol):
    """Starts, ends and watches processes. Use it from one event loop; all methods may be called at the same time."""

    @property
    def where(self) -> str:
        """Description of the place for messages: a folder, a cluster."""
        ...

    @property
    def logs(self) -> str:
        """Location of the logs, for messages."""
        ...

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Reserve the place for this fleet, and return the address where each coordinator shall listen: name → HOST:PORT.

        A fleet that ran here before gets its previous addresses if they are free.

        Raises:
            UsageError: another launcher uses the place, or it belongs to another fleet.
        """
        ...

    async def start(self, spec: ProcessSpec) -> Handle:
        """Start a process; return as soon as it runs, without waiting for the fleet to form.

        If a process of this name runs, its handle is returned. If the call is cancelled, `close` ends the process that may
        have been started.

        Raises:
            ExternalFailureError: the process cannot be started now; a later call may succeed.
        """
        ...

    async def watch(self, handle: Handle) -> Exit:
        """Return when the process has ended, or when the launcher has permanently lost it. Any number of tasks may watch."""
        ...

    async def status(self, handle: Handle) -> Exit | None:
        """Return the exit of the process; None while it runs."""
        ...

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        """Send SIGTERM, and SIGKILL after `grace_s` seconds. Nothing happens if the process has ended."""
        ...

    async def kill(self, handle: Handle) -> None:
        """Send SIGKILL; `watch` reports the exit. Nothing happens if the process has ended."""
        ...

    async def freeze(self, handle: Handle) -> None:
        """Freeze the process (SIGSTOP), as if its machine were too busy, until `thaw` or its end. Only tests use this."""
        ...

    async def thaw(self, handle: Handle) -> None:
        """Resume a frozen process (SIGCONT). Nothing happens if it is not frozen, or has ended."""
        ...

    async def close(self) -> None:
        """End all started processes and release the place: no process, port or temporary file remains."""
        ...
