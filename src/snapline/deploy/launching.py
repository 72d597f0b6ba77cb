"""Launcher interface: a launcher starts and ends a fleet's processes at some place, and sees their ends. It decides nothing.

A *place* is this machine, a Ray cluster, a batch system: wherever processes can be had. What to start, when to start it again
and when it is over is decided by `deploy/supervisor.py`, the same for every launcher; what becomes of the fleet is decided by the
coordinator, which knows no launcher. A launcher's report that a host is gone is only one more reason to suspect it (`ReportHostExit`): without it
its broken stream shows this a second or two later. No launcher invents an incarnation or a host start: Raft does, when the process registers.
`instance` merely names one run, so that a report of its end cannot hit the next one.

`snapline.deploy.conformance` tests launchers, ours and other people's.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from snapline.messages.turn_deaths import TurnDeath

Kind = Literal["coordinator", "host"]


class ProcessSpec(msgspec.Struct, frozen=True):
    """One process to start.

    Attributes:
        name: `h1`, `c1`, `coordinator` …; of two specs with one name the launcher runs one at a time.
        kind: which of a fleet's two sorts of processes it is: launchers spread each over what they have.
        instance: names this one run of it.
        command: program and arguments. A launcher on other machines puts its own interpreter in the place of the first.
    """

    name: str
    kind: Kind
    instance: str
    command: tuple[str, ...]


class Handle(msgspec.Struct, frozen=True):
    """A process that was started.

    Attributes:
        name, instance: as in its spec; another instance if the place had started it again by itself.
        where: the machine or node, as its launcher calls it.
        pid: its process id on that machine.
    """

    name: str
    instance: str
    where: str
    pid: int


class Exit(msgspec.Struct, frozen=True):
    """Exit of a process.

    Attributes:
        code: minus the signal's number if a signal ended it; None if the end was not seen, such as when its machine died.
        text: the same in words, such as `exit code 3` or `its node died`.
        last_words: the last line that it wrote, by house rule the reason why it ended; `""` if unknown.
        log: where the rest can be read.
        died_in: turns in whose middle a host's process died, where the launcher knows.
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
        """The place in words, for messages: a folder, a cluster."""
        ...

    @property
    def logs(self) -> str:
        """Location of the logs, for messages."""
        ...

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Take the place for this fleet, and say at which address each coordinator shall listen: name → HOST:PORT.

        For a fleet that ran here before, with the addresses of then if they can be had.

        Raises:
            UsageError: another launcher has the place, or its fleet is another one.
        """
        ...

    async def start(self, spec: ProcessSpec) -> Handle:
        """Start a process; returns once it runs, not when it has formed anything.

        Twice the same name is one process: if one of this name runs, its handle is returned. If it is cancelled, `close`
        ends what may have been started.

        Raises:
            ExternalFailureError: it cannot be started now; a later call may do.
        """
        ...

    async def watch(self, handle: Handle) -> Exit:
        """Return when the process has ended, or is permanently out of the launcher's sight. Any number may watch."""
        ...

    async def status(self, handle: Handle) -> Exit | None:
        """Return how it ended; None while it runs."""
        ...

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        """Ask it to end (SIGTERM), and end it (SIGKILL) after `grace_s` seconds. Nothing happens if it has ended."""
        ...

    async def kill(self, handle: Handle) -> None:
        """Send SIGKILL; `watch` reports the end. Nothing happens if it has ended."""
        ...

    async def freeze(self, handle: Handle) -> None:
        """Freeze it, as if its machine were too busy, until `thaw` or its end (SIGSTOP). Used by tests of fleets only."""
        ...

    async def thaw(self, handle: Handle) -> None:
        """Let a frozen process go on. Nothing happens if it is not frozen, or has ended."""
        ...

    async def close(self) -> None:
        """End everything that was started here and give the place back: no process, port or temporary file remains."""
        ...
