"""A whole fleet at some launcher's place: the coordinator's processes (one, three or five) and N host processes, watched and restarted.

This is the adapter around `deploy/supervisor.py`: it carries the keeper's commands out through a `Launcher`, reads the fleet's status from the
coordinator, and reports to it at once when a host has died (quicker than its broken stream, and only a reason to suspect: the coordinator decides).

Limits of time are `asyncio.timeout`: `wait_for` of Python 3.11 swallows a cancellation that meets a finished call, and a
watcher that outlived `stop()` would start processes that are never ended.

Duties of the caller: use one event loop, in a thread that lives as long as the fleet, and leave by `stop()` or `async with`.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Self, assert_never

from snapline.deploy.commands import Commands
from snapline.deploy.launching import Exit, Handle, Launcher, ProcessSpec
from snapline.deploy.status import CoordinatorReader, FleetReading
from snapline.deploy.supervision import (
    CoordinatorMissed,
    Ending,
    EndKeeping,
    ExitReported,
    FleetSeen,
    GiveUp,
    HostsWanted,
    KeeperCommand,
    KeeperEvent,
    KeepingBegan,
    KillAsked,
    KillProcess,
    PauseEnded,
    ProcessEnded,
    ProcessStarted,
    ReportExit,
    RestartAsked,
    Say,
    SetPause,
    StartProcess,
    StopProcess,
)
from snapline.deploy.supervisor import OnFailure, Supervisor
from snapline.errors import (
    DamagedDataError,
    ExternalFailureError,
    NotFoundError,
    SnaplineError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.ids import check_id

HOSTS_MAX = 1_000
"""More than this no coordinator takes."""

COORDINATORS = (1, 3, 5)
"""A majority of four is three: as many as four would need more processes than three, and bear no more losses."""

ALONE = "coordinator"
"""Name of the process of a coordinator without replicas."""

POLL_S = 0.2
"""Time between status requests to the coordinator: short enough for a progress line, long enough to cost nothing."""

CALL_TIMEOUT_S = 2.0
"""Limit for one call to the coordinator: it is near, and the next poll comes anyway."""

SHUTDOWN_S = 10.0
"""Time for hosts to end by themselves once the coordinator reports that the fleet has ended."""

STOP_GRACE_S = 2.0
"""Time between SIGTERM and SIGKILL when we end a process, in addition to the time for a last snapshot. Killing is always safe, waiting only
tidier."""

LAST_SNAPSHOT_S = 20.0
"""Time limit for a last snapshot when users take a fleet down: some tens of milliseconds, but effects that are being called end first."""

ERRORS: dict[int, type[SnaplineError]] = {error.exit_code: error for error in (UsageError, DamagedDataError)}
"""Errors raised for the keeper's `GiveUp`, by exit code; any other is an `ExternalFailureError`."""


class LaunchedFleet:
    """The processes of one fleet."""

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
        on_status: Callable[[FleetReading], None] = lambda status: None,
        last_snapshot_s: float = 0.0,
    ) -> None:
        """Describe a fleet; `start()` does the work.

        Args:
            launcher: starts the processes; it is closed with the fleet.
            commands: builds their command lines.
            hosts: number of host processes, named `h1` to `hN`.
            coordinators: 1, 3 or 5. One is named `coordinator`, more are replicas named `c1`, `c2` …
            on_failure: what becomes of a dead host.
            connect: makes a client for the coordinator's address, or addresses with commas; default: `CoordinatorClient`.
            on_note: gets a sentence whenever the launcher does something.
            on_status: gets every status read from the coordinator.
            last_snapshot_s: how long `stop` waits for a last snapshot, as its `commands` say; 0: none is taken.
        """
        self.hosts = host_names(hosts)
        if coordinators not in COORDINATORS:
            raise UsageError(f"a fleet has 1, 3 or 5 coordinators, not {coordinators}")
        self.address = ""
        self.coordinators = (ALONE,) if coordinators == 1 else tuple(f"c{n}" for n in range(1, coordinators + 1))
        self._launcher = launcher
        self._commands = commands
        self._connect = connect or _connect_loopback
        self._on_note = on_note
        self._on_status = on_status
        self._last_snapshot_s = last_snapshot_s
        self._keeper = Supervisor(hosts=self.hosts, coordinators=self.coordinators, on_failure=on_failure)
        self._addresses: dict[str, str] = {}
        self._client: CoordinatorReader | None = None
        self._handles: dict[str, Handle] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}  # of each process, the task that starts and watches it
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
        """Start all processes; returns at once, before the fleet has formed.

        Raises:
            UsageError: the launcher's place is taken, or its fleet has another number of coordinators.
        """
        assert self._ended is None, "start() runs once"
        self._addresses = await self._launcher.open(self.coordinators)
        self.address = ",".join(self._addresses.values())
        self._client = self._connect(self.address)
        self._ended = asyncio.get_running_loop().create_future()
        self._feed(KeepingBegan())
        self._spawn(self._poll(), "poll")

    async def wait(self, timeout_s: float | None = None) -> Ending:
        """Wait until the fleet has ended and its hosts have gone.

        Raises:
            UnknownOutcomeError: it has not ended after `timeout_s` seconds; it runs on.
            SnaplineError: the keeper gave a process up; the message carries that process's last words.
        """
        assert self._ended is not None, "start() first"
        try:
            async with asyncio.timeout(timeout_s):
                ending = await asyncio.shield(self._ended)
        except TimeoutError:
            raise UnknownOutcomeError(
                f"the fleet in {self._launcher.where} has not ended after {timeout_s:g} s; see {self._launcher.logs}"
            ) from None
        leaving = [self._lives[name] for name in self.hosts if name in self._handles]
        if leaving:
            await asyncio.wait(leaving, timeout=SHUTDOWN_S)
        mistake = self._keeper.mistake()
        if mistake is not None:
            raise _error_of(mistake)
        return ending

    async def stop(self) -> None:
        """End every process. A fleet that runs takes a last snapshot before, if it is to; cancelled meanwhile, this ends it without.

        The coordinators end first then: they must not take our stopping for a failure worth a recovery.
        """
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        others = [name for name in self._handles if name not in self.coordinators]
        grace_s = STOP_GRACE_S
        if self._last_snapshot_s and others and not (self._ended is None or self._ended.done()):
            try:
                await self._stop_hosts_saved(others)
            except asyncio.CancelledError:  # a second signal; who cancelled us the first time hears of that
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
            self._ended.exception()  # whoever wanted it has called wait()

    async def _stop_hosts_saved(self, hosts: Sequence[str]) -> None:
        """Have the hosts take a last snapshot and leave; say what came of it."""
        limit_s, clock = self._last_snapshot_s, asyncio.get_running_loop().time
        before = await self._ask_status()
        if before is None:
            self._on_note(
                "no last snapshot, as no coordinator answers: what was done since the newest snapshot is lost"
            )
            return
        if before.phase in ("finished", "failed", "forming"):
            return
        self._on_note(f"the fleet takes a last snapshot, for {limit_s:g} s at most; a second signal ends it at once")
        epoch, began_s = before.last_complete_epoch, clock()
        handles = [self._handles[name] for name in hosts if name in self._handles]
        try:
            await asyncio.gather(*(self._launcher.stop(handle, limit_s + STOP_GRACE_S) for handle in handles))
        except asyncio.CancelledError:
            self._on_note(f"no last snapshot: what the fleet has done since epoch {epoch} is lost")
            raise
        epoch = (await self._ask_status() or before).last_complete_epoch
        if epoch > before.last_complete_epoch or clock() < began_s + limit_s:  # who has nothing new leaves without
            self._on_note(f"epoch {epoch} is the last snapshot")
        else:
            lost = f"what the fleet has done since epoch {epoch} is lost"
            self._on_note(f"no last snapshot: {lost}; the hosts' logs say why")

    async def renew(self) -> None:
        """Certificates are others by now: speak with ours, and start every process that runs once more.

        A name is one process, so nothing is started; but a launcher whose `start` brings certificates brings them.
        """
        if self._client is not None:
            self._spawn(_close_later(self._client), "close")
            self._client = self._connect(self.address)
        for name in list(self._handles):
            with contextlib.suppress(ExternalFailureError):  # it ends, or cannot be reached: it has them when it starts
                await self._launcher.start(self._spec(name))

    def scale(self, hosts: int) -> None:
        """Have so many hosts, named `h1` to `hN`: more are started, and those above `hN` end. Drain them before.

        Raises:
            UsageError: no fleet has so many.
        """
        self.hosts = host_names(hosts)
        self._feed(HostsWanted(self.hosts))

    async def _stop(self, handle: Handle) -> None:
        await self._launcher.stop(handle, STOP_GRACE_S)

    # -- what tests and demonstrations do to it -----------------------------------------------------------------------

    async def leader(self) -> str:
        """Name of the coordinator that leads; `""` while none answers as the leader."""
        status = await self._ask_status()
        if status is None or len(self.coordinators) == 1:
            return "" if status is None else ALONE
        return status.leader

    def handle(self, name: str) -> Handle | None:
        """A host or a coordinator that runs; None while it is down."""
        return self._handles.get(self._check_name(name))

    def pid(self, name: str) -> int | None:
        """Process id of a host or a coordinator; None while it is down."""
        handle = self.handle(name)
        return None if handle is None else handle.pid

    def kill(self, name: str, *, is_kept_down: bool = False) -> None:
        """SIGKILL a host or a coordinator, as a crash would. It is restarted as ever, or by `restart()` only."""
        self._feed(KillAsked(self._check_name(name), is_kept_down))

    async def end(self, name: str, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after so many seconds; it stays down until `restart()`."""
        handle = self.handle(name)
        if handle is not None:
            await self._launcher.stop(handle, grace_s)
        self.kill(name, is_kept_down=True)

    async def freeze(self, name: str) -> None:
        """Freeze a process; nothing happens if it is down."""
        handle = self.handle(name)
        if handle is not None:
            await self._launcher.freeze(handle)

    async def thaw(self, name: str) -> None:
        """Let it go on."""
        handle = self.handle(name)
        if handle is not None:
            await self._launcher.thaw(handle)

    def restart(self, name: str) -> None:
        """Start a dead host or coordinator now, without the pause; one that runs is left alone."""
        self._feed(RestartAsked(self._check_name(name)))

    def _check_name(self, name: str) -> str:
        names = (*self.hosts, *self.coordinators)
        if check_id(name, "host") not in names:
            raise NotFoundError(f"no host {name!r} here; there are {', '.join(names)}")
        return name

    # -- the keeper's commands ------------------------------------------------------------------------------------------

    def _feed(self, event: KeeperEvent) -> None:
        now_ns = int(asyncio.get_running_loop().time() * 1e9)
        for command in self._keeper.handle(now_ns, event):
            self._carry_out(command)

    def _carry_out(self, command: KeeperCommand) -> None:
        assert self._ended is not None
        match command:
            case StartProcess():
                self._lives[command.name] = self._spawn(self._live(self._spec(command.name)), command.name)
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
            case Say():
                self._on_note(command.sentence)
            case EndKeeping():
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

    async def _live(self, spec: ProcessSpec) -> None:
        """One life of a process, from its start to its end."""
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
        """Report to the coordinator at once. If it cannot be reached, its own failure detector will find out."""
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
        """Read the fleet's status, and whether it has ended. If that is not the latest, the next read shows it."""
        status = await self._ask_status(unconfirmed=True)
        if status is None:
            self._feed(CoordinatorMissed())
            return
        self._on_status(status)
        self._feed(FleetSeen(status.phase, status.reason, status.last_complete_epoch))

    async def _ask_status(self, *, unconfirmed: bool = False) -> FleetReading | None:
        """None: an unreachable coordinator is no news here, the keeper starts it again."""
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
        """End the fleet with the error of a task that has a bug, or met an error not expected here."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)


def host_names(hosts: int) -> tuple[str, ...]:
    """`h1` to `hN`.

    Raises:
        UsageError: no fleet has so many.
    """
    if not 1 <= hosts <= HOSTS_MAX:
        raise UsageError(f"a fleet has 1 to {HOSTS_MAX} hosts, not {hosts}")
    return tuple(f"h{number}" for number in range(1, hosts + 1))


def _error_of(word: GiveUp) -> SnaplineError:
    return ERRORS.get(word.exit_code, ExternalFailureError)(word.sentence)


async def _close_later(client: CoordinatorReader) -> None:
    """Close the client when its open calls are over."""
    try:
        await asyncio.sleep(CALL_TIMEOUT_S)
    finally:
        await client.close()


def _connect_loopback(address: str) -> CoordinatorReader:
    from snapline.messages.coordinator_client import CoordinatorClient
    from snapline.security.transport import Security

    return CoordinatorClient(address, Security.loopback())
