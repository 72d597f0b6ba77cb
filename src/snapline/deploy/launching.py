"""Define the launcher interface, and build the command lines of the processes that launchers start.

A launcher starts and ends a fleet's processes at some place, and observes their exits. A launcher makes no decisions. A *place* is where
processes can run: this machine, a Ray cluster, a batch system. `deploy/supervisor.py` decides what to start and restart, and when the fleet
is over, in the same way for every launcher. The coordinator decides about the fleet's state, and does not know the launcher.

A launcher's report of a lost host is only a hint for the coordinator's failure detector (`ReportHostExit`). Without the report, the broken
stream shows the loss a second or two later. Launchers assign no incarnation or host generation: the coordinator does, through Raft, when
the process registers. `instance` only identifies one run of a process, so that a report of its exit is not applied to the next run.

`snapline.deploy.conformance` tests launchers, built-in and third-party.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from snapline.deploy.data_directory import COORDINATOR_FOLDER, METRICS_FOLDER, STORE_FOLDER, TRACES_FOLDER, marks_of
from snapline.deploy.supervisor import Exit

Kind = Literal["coordinator", "host"]


class ProcessSpec(msgspec.Struct, frozen=True):
    """One process to start.

    Attributes:
        name: `h1`, `c1`, `coordinator` …; the launcher runs one process per name at a time.
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
        name, instance: from the process's spec. The instance differs if the place has restarted the process by itself.
        where: the launcher's name of the machine or node.
        pid: the process id on that machine.
    """

    name: str
    instance: str
    where: str
    pid: int


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


MOVE_GRACE_S, RESTART_GRACE_S = 0.3, 10.0
"""Time that the coordinator waits for a lost host before its agents move.

`MOVE_GRACE_S` applies when the host is not restarted: long enough for the launcher to report the cause of the exit. `RESTART_GRACE_S` is
longer than a process start on a busy machine, because moving agents costs more than waiting."""


class Commands(Protocol):
    """Builds the command lines of child processes. Tests substitute other programs."""

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        """Command line of coordinator replica `name`, which listens at `address`; `members`: id → address of all replicas, empty for one."""
        ...

    def host(self, address: str, host: str, instance: str) -> list[str]:
        """Command line of a host that joins the coordinator at `address` (comma-separated for several replicas).

        `instance` identifies this run of the host.
        """
        ...


class SnaplineCommands:
    """snapline's own processes, everything under one folder."""

    def __init__(
        self,
        *,
        data_dir: Path,
        fleet: str,
        hosts: int,
        arguments: Mapping[str, str],
        on_failure: str,
        trace_every: int = 0,
        store: str = "",
        listen: str = "127.0.0.1:0",
        metrics: str = "",
        log: Sequence[str] = (),
        last_snapshot_s: float = 0.0,
        begin_anew: bool = False,
        trust: Callable[[Kind, str], Sequence[str]] = lambda kind, name: (),
    ) -> None:
        """Create the command lines of a fleet.

        Args:
            data_dir: folder for the files of all processes.
            fleet: `MODULE:FLEET`.
            hosts: number of hosts.
            arguments: arguments for a FLEET that is a function.
            on_failure: treatment of a lost host's agents, "move" or "restart".
            trace_every: trace every N-th message of each channel; 0: no trace.
            store: URL or path; empty: a folder in `data_dir`.
            listen: address where hosts listen.
            metrics: address where each process serves metrics; empty: none.
            log: `--log-…` and `--otel` options.
            last_snapshot_s: time limit for the last snapshot when a process is stopped.
            begin_anew: whether coordinators get `--begin-anew`.
            trust: returns the `--tls-…` or `--insecure` options of a process.
        """
        self._data_dir = data_dir
        self._store = store or str(data_dir / STORE_FOLDER)
        self._fleet = fleet
        self._hosts = hosts
        self._arguments = dict(arguments)
        self._rejoin_grace_s = MOVE_GRACE_S if on_failure == "move" else RESTART_GRACE_S
        self._trace_every = trace_every
        self._listen = listen
        self._metrics_at = metrics
        self._log = (*log, "--last-snapshot-s", f"{last_snapshot_s:g}")
        self._begin_anew = ("--begin-anew",) if begin_anew else ()
        self._trust = trust

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        """Return the command line `snapline coordinator run …`."""
        folder = self._data_dir / COORDINATOR_FOLDER
        peers = ",".join(f"{member}={where}" for member, where in members.items())
        return [
            *(sys.executable, "-m", "snapline", "coordinator", "run"),
            *("--listen", address, "--data-dir", str(folder / name if members else folder)),
            *(("--id", name, "--peers", peers) if members else ()),
            *("--store", self._store, "--hosts", str(self._hosts)),
            *("--rejoin-grace", f"{self._rejoin_grace_s:g}", "--stay"),
            *self._begin_anew,
            *self._metrics(name),
            *self._log,
            *self._trust("coordinator", name),
        ]

    def host(self, address: str, host: str, instance: str) -> list[str]:
        """Return the command line `snapline host run …`."""
        arguments = [part for key, value in self._arguments.items() for part in ("--arg", f"{key}={value}")]
        return [
            *(sys.executable, "-m", "snapline", "host", "run"),
            *("--coordinator", address, "--id", host, "--instance", instance, "--fleet", self._fleet),
            *("--store", self._store, "--listen", self._listen),
            *("--marks", str(marks_of(self._data_dir, host))),
            *self._metrics(host),
            *self._log,
            *self._trust("host", host),
            *arguments,
            *self._trace(),
        ]

    def _metrics(self, name: str) -> list[str]:
        if not self._metrics_at:
            return []
        return ["--metrics", self._metrics_at, "--metrics-file", str(self._data_dir / METRICS_FOLDER / f"{name}.json")]

    def _trace(self) -> list[str]:
        if not self._trace_every:
            return []
        return ["--trace", str(self._data_dir / TRACES_FOLDER), "--trace-every", str(self._trace_every)]
