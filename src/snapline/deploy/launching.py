"""Interface of launchers, and the command lines of the processes that they start.

A launcher starts and ends a fleet's processes at a place, and detects when they exit. A *place* is somewhere that processes can run, such
as this machine, a Ray cluster or a batch system. A launcher makes no decisions about the fleet. `deploy/supervisor.py` decides which
processes to start or restart, and when the fleet has ended. The coordinator makes all decisions about the fleet's state, and does not
depend on the launcher.

If a launcher reports a lost host (`ReportHostExit`), the coordinator's failure detector uses the report only as a hint. Without the report,
the coordinator detects the loss a second or two later, when its connection to the host breaks. When a process registers, the coordinator
assigns its incarnation or host generation through Raft. Launchers do not assign them. `instance` only identifies one run of a process, so
that an exit report is not applied to a later run.

`snapline.deploy.conformance` tests built-in and third-party launchers.
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
    """Specification of a process to start.

    Attributes:
        name: name of the process, such as `h1`, `c1` or `coordinator`. The launcher runs at most one process with a given name at a time.
        kind: host or coordinator. Launchers spread the processes of each kind over the available machines.
        instance: id of this run of the process.
        command: program and arguments. On other machines, a launcher replaces the program with the path of the Python interpreter there.
    """

    name: str
    kind: Kind
    instance: str
    command: tuple[str, ...]


class Handle(msgspec.Struct, frozen=True):
    """Identifies a process that a launcher has started.

    Attributes:
        name, instance: same as in the process's spec. The instance differs from the spec if the place has restarted the process without the
            launcher.
        where: the launcher's name for the machine or node.
        pid: the process id on its machine.
    """

    name: str
    instance: str
    where: str
    pid: int


class Launcher(Protocol):
    """Starts, ends and watches processes. Use a launcher only in one event loop. Several methods of a launcher may run concurrently."""

    @property
    def where(self) -> str:
        """Description of the place for messages, for example a folder or cluster name."""
        ...

    @property
    def logs(self) -> str:
        """Location of the log files, for messages."""
        ...

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Reserve the place for this fleet. Map the name of each coordinator to the HOST:PORT address at which the coordinator must listen.

        A fleet that has run at this place before gets its previous addresses again if they are free.

        Raises:
            UsageError: If another launcher uses the place, or the place belongs to another fleet.
        """
        ...

    async def start(self, spec: ProcessSpec) -> Handle:
        """Start a process. Return its handle as soon as the process runs. Do not wait until the fleet is ready.

        If a process with this name is already running, return its handle. If the call is cancelled, the process may already have been
        started. `close` then ends it.

        Raises:
            ExternalFailureError: If the process cannot be started at present. A later call may succeed.
        """
        ...

    async def watch(self, handle: Handle) -> Exit:
        """Wait until the process has exited or the launcher has lost it permanently, and return its exit.

        Several tasks may wait concurrently.
        """
        ...

    async def status(self, handle: Handle) -> Exit | None:
        """Return the process's exit, or None if the process is still running."""
        ...

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        """Send SIGTERM to the process, and SIGKILL if it is still running after `grace_s` seconds. Return its exit.

        Do nothing if the process has already exited.
        """
        ...

    async def kill(self, handle: Handle) -> None:
        """Send SIGKILL to the process. `watch` reports the exit."""
        ...

    async def freeze(self, handle: Handle) -> None:
        """Freeze the process with SIGSTOP until `thaw` is called or the process is killed. Only tests use this method.

        To the coordinator, a frozen process looks like a process on an overloaded machine.
        """
        ...

    async def thaw(self, handle: Handle) -> None:
        """Resume a frozen process with SIGCONT. Do nothing if the process is not frozen or has exited."""
        ...

    async def close(self) -> None:
        """End all started processes and release the place, so that no process, port or temporary file remains."""
        ...


MOVE_GRACE_S, RESTART_GRACE_S = 0.3, 10.0
"""Time in seconds that the coordinator waits for a lost host before it moves the host's agents.

`MOVE_GRACE_S` applies if lost hosts are not restarted, and gives the launcher enough time to report the cause of the exit.
`RESTART_GRACE_S` applies otherwise. `RESTART_GRACE_S` is longer than a process start on a busy machine, because moving agents costs more
than waiting."""


class Commands(Protocol):
    """Builder of the command lines of child processes. Tests replace this builder to run other programs."""

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        """Return the command line of coordinator replica `name`, which listens at `address`.

        `members` maps the id of each replica to its address. `members` is empty if there is only one coordinator.
        """
        ...

    def host(self, address: str, host: str, instance: str) -> list[str]:
        """Return the command line of a host that joins the coordinator at `address`. The addresses of several coordinator replicas are
        separated by commas.

        `instance` identifies this run of the host.
        """
        ...


class SnaplineCommands:
    """Builder of the command lines of snapline's own processes, which keep all files in one folder."""

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
        """Describe the fleet whose command lines are built.

        Args:
            data_dir: folder for the files of all processes.
            fleet: `MODULE:FLEET`.
            arguments: arguments to pass if FLEET is a function.
            on_failure: whether agents of a lost host "move" to other hosts or wait for a "restart".
            trace_every: if N, trace every N-th message of each channel; 0 disables tracing.
            store: URL or path of the store. If `store` is empty, the store is a folder in `data_dir`.
            listen: address where hosts listen.
            metrics: address at which each process serves metrics; empty to serve no metrics.
            log: `--log-…` and `--otel` options.
            last_snapshot_s: time limit in seconds for the last snapshot of a process that is being stopped.
            begin_anew: whether to pass `--begin-anew` to the coordinators.
            trust: function that returns the `--tls-…` or `--insecure` options for a process.
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
