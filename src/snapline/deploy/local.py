"""Run a whole fleet on this machine, with N host processes and one, three or five coordinator processes.

`LocalLauncher` starts the processes as its children (`deploy/child.py`), and `deploy/supervisor.py` restarts them. A coordinator keeps its
port when it is restarted. A fleet writes only to its own folder (`deploy/data_directory.py`). If a fleet restarts in the same folder with
the same number of coordinators, it continues from its last complete epoch. All processes die with the launcher, even if the launcher is
killed (`deploy/parent_watch.py`).
"""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from snapline.agent_runtime.host.turn_marks import read_marks  # now: the package may be replaced while this runs
from snapline.deploy.child import Child, ForkServer, describe_exit, is_forkable
from snapline.deploy.data_directory import LOGS_FOLDER, choose_addresses, lock, marks_of
from snapline.deploy.launching import Commands, Handle, ProcessSpec, SnaplineCommands
from snapline.deploy.running_fleet import STOP_GRACE_S, CoordinatorReader, LaunchedFleet
from snapline.deploy.starting import environment_of
from snapline.deploy.supervisor import Ending, Exit, OnFailure
from snapline.folders import make_private
from snapline.messages.host_messages import TurnDeath
from snapline.messages.status import FleetStatus

__all__ = ["Ending", "LocalFleet", "LocalLauncher", "OnFailure"]

HERE = "this machine"


class LocalLauncher:
    """Launcher that starts processes as children of this process. `data_dir` contains the logs and the coordinators' addresses."""

    def __init__(self, data_dir: Path, *, environment: Mapping[str, str] | None = None) -> None:
        """Create a launcher whose children get this process's environment plus `environment`."""
        self._data_dir = data_dir
        self._environment = dict(environment or {})
        self._children: dict[str, tuple[Handle, Child]] = {}  # by name; only the latest run
        self._forks: ForkServer | None = None
        self._forks_lock = asyncio.Lock()
        self._lock_fd: int | None = None

    @property
    def where(self) -> str:
        return str(self._data_dir)

    @property
    def logs(self) -> str:
        return str(self._data_dir / LOGS_FOLDER)

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Lock the folder, and choose the coordinators' ports. Reuse the ports of the previous run if they are free.

        Raises:
            DirectoryInUseError: If another launcher is already using this folder.
            UsageError: If the fleet in this folder has a different number of coordinators.
        """
        make_private(self._data_dir)
        self._lock_fd = lock(self._data_dir)
        return dict(zip(coordinators, choose_addresses(self._data_dir, len(coordinators)), strict=True))

    async def start(self, spec: ProcessSpec) -> Handle:
        """Start a process and return its handle.

        Only the first line of this method awaits, so a cancellation cannot leave an unknown process running.
        """
        forks = await self._forks_for(spec.command)
        if spec.name in self._children:
            handle, child = self._children[spec.name]
            if child.exit_code is None:
                return handle
        log_path = self._data_dir / LOGS_FOLDER / f"{spec.name}.log"
        child = Child.start(spec.name, spec.command, log_path=log_path, environment=self._environment, forks=forks)
        handle = Handle(spec.name, spec.instance, HERE, child.pid)
        self._children[spec.name] = handle, child
        return handle

    async def _forks_for(self, command: Sequence[str]) -> ForkServer | None:
        """Return the fork server, or None if it cannot run this command.

        Start the server on first use, and start it again if it was killed.
        """
        if not is_forkable(command):
            return None
        async with self._forks_lock:
            if self._forks is not None and not self._forks.is_open:
                self._forks.close()
                self._forks = None
            if self._forks is None:
                self._forks = await ForkServer.start(environment_of(self._environment))
            return self._forks

    async def watch(self, handle: Handle) -> Exit:
        child = self._child(handle)
        if child is not None:
            await child.wait()
        return self._exit_of(child)

    async def status(self, handle: Handle) -> Exit | None:
        child = self._child(handle)
        return self._exit_of(child) if child is None or child.exit_code is not None else None

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        child = self._child(handle)
        if child is not None:
            await child.stop(grace_s, lambda: self._forget_marks(handle))
        return self._exit_of(child)

    async def kill(self, handle: Handle) -> None:
        self._forget_marks(handle)
        self._signal(handle, signal.SIGKILL)

    async def freeze(self, handle: Handle) -> None:
        self._signal(handle, signal.SIGSTOP)

    async def thaw(self, handle: Handle) -> None:
        self._signal(handle, signal.SIGCONT)

    async def close(self) -> None:
        await asyncio.gather(*(self.stop(handle, STOP_GRACE_S) for handle, _ in list(self._children.values())))
        self._children.clear()
        if self._forks is not None:
            self._forks.close()
            self._forks = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _exit_of(self, child: Child | None) -> Exit:
        if child is None or child.exit_code is None:
            return Exit(None, "gone: another has taken its place")
        died_in = self._died_in(child.name)
        text = describe_exit(child.exit_code)
        if died_in:
            text += f" while {died_in[0].describe()}{f', and {len(died_in) - 1} more turns' * (len(died_in) > 1)}"
        return Exit(child.exit_code, text, child.last_line(), str(child.log_path), died_in)

    def _died_in(self, name: str) -> tuple[TurnDeath, ...]:
        """Return the turns that the host was running when its last run ended, according to its turn marks. Return an empty tuple if there
        are no turn marks."""
        path = marks_of(self._data_dir, name)
        if not path.exists():
            return ()
        instance, died_in = read_marks(path)
        return died_in if instance == self._children[name][0].instance else ()

    def _forget_marks(self, handle: Handle) -> None:
        """Remove the turn marks of a process that the launcher kills, because no turn has caused its exit."""
        if self._child(handle) is not None:
            marks_of(self._data_dir, handle.name).unlink(missing_ok=True)

    def _signal(self, handle: Handle, number: signal.Signals) -> None:
        child = self._child(handle)
        if child is not None:
            child.signal(number)

    def _child(self, handle: Handle) -> Child | None:
        """Return the child of this handle, or None if it was replaced by a later run."""
        latest, child = self._children.get(handle.name, (None, None))
        return child if latest == handle else None


class LocalFleet(LaunchedFleet):
    """The processes of one fleet on this machine."""

    def __init__(
        self,
        commands: Commands | None = None,
        *,
        data_dir: Path,
        fleet: str = "",
        hosts: int,
        coordinators: int = 1,
        arguments: Mapping[str, str] | None = None,
        on_failure: OnFailure = "restart",
        trace_every: int = 0,
        store: str = "",
        metrics: str = "",
        log: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        connect: Callable[[str], CoordinatorReader] | None = None,
        on_note: Callable[[str], None] = lambda note: None,
        on_status: Callable[[FleetStatus], None] = lambda status: None,
        last_snapshot_s: float = 0.0,
        begin_anew: bool = False,
    ) -> None:
        """Describe the fleet, which `start()` then starts.

        Args:
            commands: builder of the children's command lines; by default, of snapline's own processes.
            data_dir: folder for all files of the fleet, which is created if missing.
            fleet: `MODULE:FLEET`.
            hosts: number of hosts, which are named `h1` to `hN`.
            coordinators: 1, 3 or 5. A single coordinator is named `coordinator`. Replicas are named `c1`, `c2` and so on.
            arguments: arguments to pass if FLEET is a function.
            on_failure: whether agents of a lost host wait for a "restart" or "move" to other hosts.
            trace_every: if N, trace every N-th message of each channel to `DIR/traces`; 0 disables tracing.
            store: URL or path of the checkpoint store. If `store` is empty, the store is `DIR/store`.
            metrics: address, with port 0, at which each process serves metrics; empty to serve no metrics. `DIR/metrics` then contains the
                actual addresses.
            log: `--log-format`, `--log-level` and `--otel` options of each process. The defaults come from the environment; without them,
                logs are text at level info.
            environment: variables added to the children's environment.
            connect: function that creates a client for the coordinators' comma-separated addresses; by default `CoordinatorClient`.
            on_note: called with a sentence for each action of the launcher.
            on_status: called with every status that is read from the coordinator.
            last_snapshot_s: time limit in seconds for the last snapshot that `stop` takes. If `last_snapshot_s` is 0, `stop` takes no
                snapshot.
            begin_anew: whether the fleet starts from its initial states if all of its snapshots are damaged.
        """
        self.data_dir = data_dir
        default_commands = SnaplineCommands(
            data_dir=data_dir.absolute(),
            fleet=fleet,
            hosts=hosts,
            arguments=arguments or {},
            on_failure=on_failure,
            trace_every=trace_every,
            store=store,
            metrics=metrics,
            log=log,
            last_snapshot_s=last_snapshot_s,
            begin_anew=begin_anew,
        )
        super().__init__(
            LocalLauncher(data_dir, environment=environment),
            commands or default_commands,
            hosts=hosts,
            coordinators=coordinators,
            on_failure=on_failure,
            connect=connect,
            on_note=on_note,
            on_status=on_status,
            last_snapshot_s=last_snapshot_s,
        )
