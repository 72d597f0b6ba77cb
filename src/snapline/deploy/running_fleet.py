"""Run a whole fleet with any launcher. The fleet has N host processes and one, three or five coordinator processes.

This module is the driver of the supervisor core in `deploy/supervisor.py`. The driver executes the supervisor's commands through a
`Launcher`, and reads the fleet's status from the coordinator. When a host's process exits, the driver reports it to the coordinator
immediately, before the coordinator notices the broken connection. The report is only a hint for the coordinator's failure detector.

A file in the fleet's folder contains the target number of hosts. The supervising process reads this file (`follow`). The file exists only
while this process runs, and is written again at the next start of the fleet.

Time limits use `asyncio.timeout`, because `asyncio.wait_for` in Python 3.11 swallows a cancellation that arrives just as the awaited call
ends. A watcher task that survived `stop()` would then start processes that are never ended.

Use a fleet in one event loop, in a thread that lives as long as the fleet. End the fleet with `stop()` or `async with`.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Protocol, Self, assert_never

from snapline.deploy.launching import Commands, Handle, Launcher, ProcessSpec
from snapline.deploy.supervisor import (
    EmitNote,
    Ending,
    EndSupervision,
    Exit,
    ExitReported,
    FleetStatusRead,
    FleetStatusUnavailable,
    GiveUp,
    HostsRequested,
    KillProcess,
    KillRequested,
    OnFailure,
    PauseEnded,
    ProcessEnded,
    ProcessStarted,
    ReportExit,
    RestartRequested,
    SetPause,
    StartProcess,
    StopProcess,
    SupervisionStarted,
    Supervisor,
    SupervisorCommand,
    SupervisorEvent,
)
from snapline.errors import (
    DamagedDataError,
    ExternalFailureError,
    NotFoundError,
    SnaplineError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.ids import check_id
from snapline.messages.host_messages import TurnDeath
from snapline.messages.status import HOSTS_MAX, FleetStatus


class CoordinatorReader(Protocol):
    """The methods of `CoordinatorClient` that a running fleet calls."""

    def status(self, *, unconfirmed: bool = False) -> Awaitable[FleetStatus]: ...
    def report_host_exit(
        self, host: str, instance: str, reason: str, *, died_in: Sequence[TurnDeath] = ()
    ) -> Awaitable[object]: ...
    def close(self) -> Awaitable[None]: ...


COORDINATORS = (1, 3, 5)
"""Allowed numbers of coordinator replicas. An even number has no advantage, because four replicas tolerate only as many losses as three."""

SINGLE_COORDINATOR = "coordinator"
"""Name of the coordinator process in a fleet with a single coordinator."""

POLL_S = 0.2
"""Interval in seconds between status requests to the coordinator. The interval is short enough for a progress line, and long enough to be
cheap."""

CALL_TIMEOUT_S = 2.0
"""Time limit in seconds for one call to the coordinator. The coordinator is close by, and the next poll follows soon."""

SHUTDOWN_S = 10.0
"""Time limit in seconds for hosts to exit on their own after the coordinator has reported that the fleet has ended."""

STOP_GRACE_S = 2.0
"""Time in seconds between SIGTERM and SIGKILL when a process is ended, in addition to the time for a last snapshot. Killing is always safe,
but waiting lets a process exit cleanly."""

LAST_SNAPSHOT_S = 20.0
"""Time limit in seconds for the last snapshot when users shut a fleet down. The snapshot takes tens of milliseconds, plus the time until
running effects have finished."""

ERRORS: dict[int, type[SnaplineError]] = {error.exit_code: error for error in (UsageError, DamagedDataError)}
"""Errors to raise when the supervisor gives up, by the exit code in `GiveUp`. The default is `ExternalFailureError`."""


class LaunchedFleet:
    """Runs the processes of one fleet with a launcher."""

    def __init__(
        self,
        launcher: Launcher,
        commands: Commands,
        *,
        hosts: int,
        coordinators: int = 1,
        on_failure: OnFailure = "restart",
        connect: Callable[[str], CoordinatorReader] | None = None,
        on_note: Callable[[str], None] = lambda note: None,
        on_status: Callable[[FleetStatus], None] = lambda status: None,
        last_snapshot_s: float = 0.0,
    ) -> None:
        """Describe the fleet, which `start()` then starts.

        Args:
            launcher: launcher of the processes. When the fleet stops, it closes the launcher.
            hosts: number of hosts, which are named `h1` to `hN`.
            coordinators: 1, 3 or 5. A single coordinator is named `coordinator`. Replicas are named `c1`, `c2` and so on.
            on_failure: whether agents of a lost host wait for a "restart" or "move" to other hosts.
            connect: function that creates a client for the coordinators' comma-separated addresses; by default `CoordinatorClient`.
            on_note: called with a sentence whenever the fleet's processes change.
            on_status: called with every status that is read from the coordinator.
            last_snapshot_s: time limit in seconds for the last snapshot that `stop` takes; must be the same as in `commands`. If
                `last_snapshot_s` is 0, `stop` takes no snapshot.
        """
        self.hosts = host_names(hosts)
        if coordinators not in COORDINATORS:
            raise UsageError(f"a fleet has 1, 3 or 5 coordinators, not {coordinators}")
        self.address = ""
        self.coordinators = (
            (SINGLE_COORDINATOR,) if coordinators == 1 else tuple(f"c{n}" for n in range(1, coordinators + 1))
        )
        self._launcher = launcher
        self._commands = commands
        self._connect = connect or _connect_loopback
        self._on_note = on_note
        self._on_status = on_status
        self._last_snapshot_s = last_snapshot_s
        self._supervisor = Supervisor(hosts=self.hosts, coordinators=self.coordinators, on_failure=on_failure)
        self._addresses: dict[str, str] = {}
        self._client: CoordinatorReader | None = None
        self._handles: dict[str, Handle] = {}
        self._process_tasks: dict[
            str, asyncio.Task[None]
        ] = {}  # by process name; each task starts and watches its process
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[Ending] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all processes. Return immediately, before the fleet is ready.

        Raises:
            UsageError: If the launcher's place is in use, or the fleet there has a different number of coordinators.
        """
        assert self._ended is None, "start() runs once"
        self._addresses = await self._launcher.open(self.coordinators)
        self.address = ",".join(self._addresses.values())
        self._client = self._connect(self.address)
        self._ended = asyncio.get_running_loop().create_future()
        self._feed(SupervisionStarted())
        self._spawn(self._poll(), "poll")

    async def wait(self, timeout_s: float | None = None) -> Ending:
        """Wait until the fleet and all its host processes have ended, and return how the fleet ended.

        Raises:
            UnknownOutcomeError: If the fleet is still running after `timeout_s` seconds.
            SnaplineError: If the supervisor has given up on a process. The message contains the last line of the process's output.
        """
        assert self._ended is not None, "start() first"
        try:
            async with asyncio.timeout(timeout_s):
                ending = await asyncio.shield(self._ended)
        except TimeoutError:
            raise UnknownOutcomeError(
                f"the fleet in {self._launcher.where} has not ended after {timeout_s:g} s; see {self._launcher.logs}"
            ) from None
        leaving = [self._process_tasks[name] for name in self.hosts if name in self._handles]
        if leaving:
            await asyncio.wait(leaving, timeout=SHUTDOWN_S)
        failure = self._supervisor.final_error()
        if failure is not None:
            raise _error_of(failure)
        return ending

    async def stop(self) -> None:
        """End all processes. If `last_snapshot_s` is not 0 and the fleet is running, the fleet first takes a last snapshot. A cancellation
        skips the last snapshot.

        The coordinators are ended before the hosts, because they would otherwise treat the exits of the hosts as failures and start a
        recovery.
        """
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        others = [name for name in self._handles if name not in self.coordinators]
        grace_s = STOP_GRACE_S
        if self._last_snapshot_s and others and not (self._ended is None or self._ended.done()):
            try:
                await self._stop_hosts_with_snapshot(others)
            except asyncio.CancelledError:  # a second signal; the first cancellation already reaches its sender
                grace_s = 0.0
        for names in (self.coordinators, others):
            handles = [self._handles[name] for name in names if name in self._handles]
            await asyncio.gather(*(self._launcher.stop(handle, grace_s) for handle in handles))
        self._handles.clear()
        if self._client is not None:
            await self._client.close()
            self._client = None
        await self._launcher.close()
        if self._ended is not None and self._ended.done() and not self._ended.cancelled():
            self._ended.exception()  # mark the error as retrieved; wait() reports it

    async def _stop_hosts_with_snapshot(self, hosts: Sequence[str]) -> None:
        """Stop the hosts after they have taken a last snapshot, and report the outcome as a note."""
        limit_s, clock = self._last_snapshot_s, asyncio.get_running_loop().time
        before = await self._ask_status()
        if before is None:
            self._on_note(
                "no last snapshot, as no coordinator answers: what was done since the newest snapshot is lost"
            )
            return
        if before.phase in ("finished", "failed", "forming"):
            return
        self._on_note(f"the fleet stops within {limit_s:g} s; a second signal ends it at once")
        epoch, began_s = before.last_complete_epoch, clock()
        handles = [self._handles[name] for name in hosts if name in self._handles]
        try:
            await asyncio.gather(*(self._launcher.stop(handle, limit_s + STOP_GRACE_S) for handle in handles))
        except asyncio.CancelledError:
            self._on_note(f"no last snapshot: what the fleet has done since epoch {epoch} is lost")
            raise
        epoch = (await self._ask_status() or before).last_complete_epoch
        if (
            epoch > before.last_complete_epoch or clock() < began_s + limit_s
        ):  # hosts without new work stop without a snapshot
            self._on_note(f"epoch {epoch} is the last snapshot")
        else:
            lost = f"what the fleet has done since epoch {epoch} is lost"
            self._on_note(f"no last snapshot: {lost}; the hosts' logs say why")

    async def renew(self) -> None:
        """Start using renewed certificates.

        Reconnect with this process's new certificate, and call the launcher's `start` again for every running process.

        A repeated `start` does not start a second process, but launchers that deliver certificates in `start` deliver the renewed
        certificates.
        """
        if self._client is not None:
            self._spawn(_close_later(self._client), "close")
            self._client = self._connect(self.address)
        for name in list(self._handles):
            with contextlib.suppress(
                ExternalFailureError
            ):  # the process is ending or unreachable; it receives the certificates at its next start
                await self._launcher.start(self._spec(name))

    def scale(self, hosts: int) -> None:
        """Set the number of hosts to N.

        Start the missing hosts among `h1` to `hN`, and end all hosts above `hN`. Before this call, drain the hosts that it will end.

        Raises:
            UsageError: If the number is out of range.
        """
        self.hosts = host_names(hosts)
        self._feed(HostsRequested(self.hosts))

    async def _stop(self, handle: Handle) -> None:
        await self._launcher.stop(handle, STOP_GRACE_S)

    # -- for tests and demonstrations -----------------------------------------------------------------------

    async def leader(self) -> str:
        """Return the name of the leading coordinator, or `""` if no coordinator currently replies as the leader."""
        status = await self._ask_status()
        if status is None or len(self.coordinators) == 1:
            return "" if status is None else SINGLE_COORDINATOR
        return status.leader

    def handle(self, name: str) -> Handle | None:
        """Return the handle of a host or coordinator, or None if it is not running."""
        return self._handles.get(self._check_name(name))

    def pid(self, name: str) -> int | None:
        """Return the process id of a host or coordinator, or None if it is not running."""
        handle = self.handle(name)
        return None if handle is None else handle.pid

    def kill(self, name: str, *, is_kept_down: bool = False) -> None:
        """Send SIGKILL to a host or coordinator, as if it had crashed. If `is_kept_down` is set, the process stays down until `restart()`
        is called."""
        self._feed(KillRequested(self._check_name(name), is_kept_down))

    async def end(self, name: str, grace_s: float) -> None:
        """Send SIGTERM to a process, and SIGKILL if it is still running after `grace_s` seconds. The process stays down until `restart()`
        is called."""
        handle = self.handle(name)
        if handle is not None:
            await self._launcher.stop(handle, grace_s)
        self.kill(name, is_kept_down=True)

    async def freeze(self, name: str) -> None:
        """Freeze a process with SIGSTOP. Do nothing if it is not running."""
        handle = self.handle(name)
        if handle is not None:
            await self._launcher.freeze(handle)

    async def thaw(self, name: str) -> None:
        """Resume a frozen process."""
        handle = self.handle(name)
        if handle is not None:
            await self._launcher.thaw(handle)

    def restart(self, name: str) -> None:
        """Start a dead host or coordinator immediately, without the usual delay. Do nothing if the process is already running."""
        self._feed(RestartRequested(self._check_name(name)))

    def _check_name(self, name: str) -> str:
        names = (*self.hosts, *self.coordinators)
        if check_id(name, "host") not in names:
            raise NotFoundError(f"no host {name!r} here; there are {', '.join(names)}")
        return name

    # -- the supervisor's commands ------------------------------------------------------------------------------------------

    def _feed(self, event: SupervisorEvent) -> None:
        now_ns = int(asyncio.get_running_loop().time() * 1e9)
        for command in self._supervisor.handle(now_ns, event):
            self._carry_out(command)

    def _carry_out(self, command: SupervisorCommand) -> None:
        assert self._ended is not None
        match command:
            case StartProcess():
                self._process_tasks[command.name] = self._spawn(
                    self._run_process(self._spec(command.name)), command.name
                )
            case KillProcess():
                if command.name in self._handles:
                    self._spawn(self._launcher.kill(self._handles[command.name]), f"kill {command.name}")
            case StopProcess():
                if command.name in self._handles:
                    self._spawn(self._stop(self._handles[command.name]), f"stop {command.name}")
            case ReportExit():
                self._spawn(self._report(command), f"report {command.name}")
            case SetPause():
                self._spawn(self._pause(command), f"pause {command.name}")
            case EmitNote():
                self._on_note(command.sentence)
            case EndSupervision():
                if not self._ended.done():
                    self._ended.set_result(command.ending)
            case GiveUp():
                if not self._ended.done():
                    self._ended.set_exception(_error_of(command))
            case _:
                assert_never(command)

    def _spec(self, name: str) -> ProcessSpec:
        instance = secrets.token_hex(8)
        if name not in self.coordinators:
            return ProcessSpec(name, "host", instance, tuple(self._commands.host(self.address, name, instance)))
        members = self._addresses if len(self._addresses) > 1 else {}
        command = self._commands.coordinator(self._addresses[name], name, members)
        return ProcessSpec(name, "coordinator", instance, tuple(command))

    async def _run_process(self, spec: ProcessSpec) -> None:
        """Start a process and watch it until it exits."""
        try:
            handle = await self._launcher.start(spec)
        except ExternalFailureError as error:
            self._feed(ProcessEnded(spec.name, "", Exit(None, f"not started: {error}", log=self._launcher.logs)))
            return
        self._handles[spec.name] = handle
        self._feed(ProcessStarted(spec.name))
        ended = await self._launcher.watch(handle)
        del self._handles[spec.name]
        self._feed(ProcessEnded(spec.name, handle.instance, ended))

    async def _report(self, command: ReportExit) -> None:
        """Report a host's exit to the coordinator. If the coordinator is unreachable, its own failure detector will notice the loss."""
        assert self._client is not None
        with contextlib.suppress(SnaplineError, TimeoutError):
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._client.report_host_exit(
                    command.name, command.instance, command.reason, died_in=command.died_in
                )
        await self._read_status()
        self._feed(ExitReported(command.name))

    async def _pause(self, command: SetPause) -> None:
        await asyncio.sleep(command.pause_s)
        self._feed(PauseEnded(command.name, command.number))

    # -- the coordinator --------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        assert self._ended is not None
        while not self._ended.done():
            await self._read_status()
            await asyncio.sleep(POLL_S)

    async def _read_status(self) -> None:
        """Read the fleet's status, which also shows whether the fleet has ended. If the status is stale, the next read corrects it."""
        status = await self._ask_status(unconfirmed=True)
        if status is None:
            self._feed(FleetStatusUnavailable())
            return
        self._on_status(status)
        self._feed(FleetStatusRead(status.phase, status.reason, status.last_complete_epoch))

    async def _ask_status(self, *, unconfirmed: bool = False) -> FleetStatus | None:
        """Return the fleet's status, or None if the coordinator is unreachable. An unreachable coordinator is not an error, because the
        supervisor restarts it."""
        assert self._client is not None
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await self._client.status(unconfirmed=unconfirmed)
        except (SnaplineError, TimeoutError):
            return None

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """End the fleet with the task's error if a task failed unexpectedly."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)


def host_names(hosts: int) -> tuple[str, ...]:
    """Return the names `h1` to `hN`.

    Raises:
        UsageError: If the number is out of range.
    """
    if not 1 <= hosts <= HOSTS_MAX:
        raise UsageError(f"a fleet has 1 to {HOSTS_MAX} hosts, not {hosts}")
    return tuple(f"h{number}" for number in range(1, hosts + 1))


def _error_of(word: GiveUp) -> SnaplineError:
    return ERRORS.get(word.exit_code, ExternalFailureError)(word.sentence)


async def _close_later(client: CoordinatorReader) -> None:
    """Close the client after the time limit of its pending calls has passed."""
    try:
        await asyncio.sleep(CALL_TIMEOUT_S)
    finally:
        await client.close()


def _connect_loopback(address: str) -> CoordinatorReader:
    from snapline.messages.coordinator_client import CoordinatorClient
    from snapline.security.transport import Security

    return CoordinatorClient(address, Security.loopback())


HOSTS_REQUEST_FILE = "hosts-wanted"
LOOK_S = 0.2


def check_supervised(folder: Path) -> None:
    """Raise UsageError unless a process on this machine supervises the fleet in `folder`, or supervised it until the process was killed."""
    if not (folder / HOSTS_REQUEST_FILE).exists():
        raise UsageError(
            f"no process on this machine keeps a fleet in {folder}: scale a fleet where it was taken up; on Ray by `down` and `up`"
        )


def request_hosts(folder: Path, hosts: int) -> None:
    """Write the target number of hosts for the fleet in `folder`."""
    new = folder / f"{HOSTS_REQUEST_FILE}.new"
    new.write_text(f"{hosts}\n")
    new.replace(folder / HOSTS_REQUEST_FILE)


async def follow(fleet: LaunchedFleet, folder: Path) -> None:
    """Scale the fleet whenever the target number of hosts in `folder` changes, until the task is cancelled."""
    file = folder / HOSTS_REQUEST_FILE
    request_hosts(folder, len(fleet.hosts))
    try:
        while True:
            with contextlib.suppress(OSError, ValueError, UsageError):  # the file contains no valid number of hosts
                hosts = int(file.read_text())
                if hosts != len(fleet.hosts):
                    fleet.scale(hosts)
            await asyncio.sleep(LOOK_S)
    finally:
        file.unlink(missing_ok=True)
