"""A whole fleet on this machine: the coordinator's processes (one, three or five) and N host processes, watched and restarted.

The launcher decides nothing about the fleet. It starts processes, tells the coordinator at once when a host has died (that
is quicker than missed heartbeats, and only a reason to suspect: the coordinator decides), and starts dead ones again:

- a dead *coordinator* always comes back, on the same port, and continues from its log; with three or five of them the fleet
  goes on meanwhile, as long as a majority is there, and also without one that fails again and again;
- a dead *host* comes back as a new instance (`on_failure="restart"`), or stays away and leaves its agents to the others
  (`on_failure="move"`).

Both with growing pauses and a bound on failures in a row. Everything a fleet writes lies under one folder
(`deploy/data_directory.py`). Starting again on the same folder, with as many coordinators, continues from the last complete
epoch. Nothing outlives the launcher, whatever kills it (`deploy/leash.py`).

Limits of time are `asyncio.timeout`: `wait_for` of Python 3.11 swallows a cancellation that meets a finished call, and a
watcher that outlived `stop()` would start processes nobody ends.

Duties of the caller: use one event loop, in a thread that lives as long as the fleet, and leave by `stop()` or `async with`.
"""

import asyncio
import contextlib
import math
import os
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import msgspec

from snapline.deploy.child import Child, describe_exit
from snapline.deploy.commands import Commands, SnaplineCommands
from snapline.deploy.data_directory import LOGS_FOLDER, choose_addresses, lock
from snapline.deploy.readings import CoordinatorReader, FleetReading
from snapline.errors import DamagedDataError, MisuseError, NotFoundError, SnaplineError, UnknownOutcomeError, WorldError
from snapline.ids import check_id

HOSTS_MAX = 256
"""More processes than this on one machine are a typing error."""

COORDINATORS = (1, 3, 5)
"""A majority of four is three: as many as four would need more processes than three, and bear no more losses."""

ALONE = "coordinator"
"""What the process of a coordinator without replicas is called here."""

RESTARTS_MAX = 10
"""Failures in a row after which a process is given up: with the pauses below, about half a minute of trying."""

RESTART_PAUSE_S, RESTART_PAUSE_S_MAX = 0.1, 5.0
"""Pause before the first restart, doubled for each further one, up to the second number."""

HEALTHY_S = 30.0
"""A process that has lived this long has started well: its failures are counted from zero again."""

POLL_S = 0.2
"""How often the coordinator is asked how the fleet is: often enough for a progress line, seldom enough to cost nothing."""

CALL_TIMEOUT_S = 2.0
"""Limit for one call to the coordinator: it is on this machine, and the next poll comes anyway."""

FAREWELL_S = 10.0
"""How long hosts may take to end by themselves once the coordinator says that the fleet has ended."""

STOP_GRACE_S = 2.0
"""Time between SIGTERM and SIGKILL when we end a process. Killing is always safe, waiting only tidier."""

SILENCE_S = 5.0
"""A coordinator that has not answered for so long is worth a sentence: an election, or its restart, takes a second or two."""

FINAL_ERRORS: dict[int, type[SnaplineError]] = {error.exit_code: error for error in (MisuseError, DamagedDataError)}
"""By exit code: the child was called wrongly, or the store's identity is damaged. Starting it again would not help."""

OnFailure = Literal["restart", "move"]


class Ending(msgspec.Struct, frozen=True):
    """How the fleet ended.

    Attributes:
        outcome: `stopped` (its predicate held) or `failed`.
        reason: the coordinator's sentence, or the launcher's when it gave up.
        epoch: last complete epoch, 0 if there is none.
    """

    outcome: Literal["stopped", "failed"]
    reason: str
    epoch: int


class LocalFleet:
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
        environment: Mapping[str, str] | None = None,
        connect: Callable[[str], CoordinatorReader] | None = None,
        on_note: Callable[[str], None] = lambda note: None,
        on_status: Callable[[FleetReading], None] = lambda status: None,
    ) -> None:
        """Describe a fleet; `start()` does the work.

        Args:
            commands: builds the children's command lines; default: snapline itself.
            data_dir: folder for everything the fleet writes; made if it is not there.
            fleet: `MODULE:FLEET`.
            hosts: number of host processes, named `h1` to `hN`.
            coordinators: 1, 3 or 5. One is named `coordinator`, more are replicas named `c1`, `c2` …
            arguments: for a FLEET that is a function.
            on_failure: what becomes of a dead host.
            trace_every: of each channel, every so manieth message goes into `DIR/traces`; 0: hosts do not trace.
            store: URL or path of the checkpoint store; empty: `DIR/store`.
            environment: added to the children's environment.
            connect: makes a client for the coordinator's address, or addresses with commas; default: `CoordinatorClient`.
            on_note: gets a sentence whenever the launcher does something.
            on_status: gets every status read from the coordinator.
        """
        if not 1 <= hosts <= HOSTS_MAX:
            raise MisuseError(f"a local fleet has 1 to {HOSTS_MAX} hosts, not {hosts}")
        if coordinators not in COORDINATORS:
            raise MisuseError(f"a local fleet has 1, 3 or 5 coordinators, not {coordinators}")
        self.data_dir = data_dir
        self.address = ""
        self._commands = commands or SnaplineCommands(
            data_dir=data_dir.absolute(),
            fleet=fleet,
            hosts=hosts,
            arguments=arguments or {},
            on_failure=on_failure,
            trace_every=trace_every,
            store=store,
        )
        self._on_failure = on_failure
        self._environment = dict(environment or {})
        self._connect = connect or _connect_loopback
        self._on_note = on_note
        self._on_status = on_status
        names = [ALONE] if coordinators == 1 else [f"c{number}" for number in range(1, coordinators + 1)]
        self._coordinators = {name: _Slot(name) for name in names}
        self._addresses: dict[str, str] = {}
        self._hosts = {f"h{number}": _Slot(f"h{number}") for number in range(1, hosts + 1)}
        self._client: CoordinatorReader | None = None
        self._lock_fd: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[Ending] | None = None
        self._last_epoch = 0
        self._silent_s = 0.0  # since when the coordinator has not answered; infinite once that was said

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
            DirectoryInUseError: another launcher runs on this folder.
            MisuseError: the fleet in this folder has another number of coordinators.
        """
        assert self._ended is None, "start() runs once"
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = lock(self.data_dir)
        addresses = choose_addresses(self.data_dir, len(self._coordinators))
        self._addresses = dict(zip(self._coordinators, addresses, strict=True))
        self.address = ",".join(addresses)
        self._client = self._connect(self.address)
        self._ended = asyncio.get_running_loop().create_future()
        for slot in self._coordinators.values():
            self._tasks.append(asyncio.create_task(self._keep_coordinator(slot), name=slot.name))
        self._tasks += [asyncio.create_task(self._keep_host(slot), name=slot.name) for slot in self._hosts.values()]
        self._tasks += [asyncio.create_task(self._poll(), name="poll")]
        for task in self._tasks:
            task.add_done_callback(self._on_task_done)

    async def wait(self, timeout_s: float | None = None) -> Ending:
        """Wait until the fleet has ended and its hosts have gone.

        Raises:
            UnknownOutcomeError: it has not ended after `timeout_s` seconds; it runs on.
            SnaplineError: the launcher gave a process up; the message carries that process's last words.
        """
        assert self._ended is not None, "start() first"
        try:
            async with asyncio.timeout(timeout_s):
                ending = await asyncio.shield(self._ended)
        except TimeoutError:
            raise UnknownOutcomeError(
                f"the fleet in {self.data_dir} has not ended after {timeout_s:g} s; see {self.data_dir}/logs"
            ) from None
        leaving = [slot.child.wait() for slot in self._hosts.values() if slot.is_running and slot.child is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await asyncio.gather(*leaving)
        for slot in self._hosts.values():
            self._check_final(slot)  # such as a host of another fleet than the one that had ended here
        return ending

    async def stop(self) -> None:
        """End every process. The coordinators first: they must not take our stopping for a failure worth a recovery."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slots in (self._coordinators, self._hosts):
            children = [slot.child for slot in slots.values() if slot.child is not None]
            await asyncio.gather(*(child.stop(STOP_GRACE_S) for child in children))
        if self._client is not None:
            await self._client.close()
            self._client = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        if self._ended is not None and self._ended.done() and not self._ended.cancelled():
            self._ended.exception()  # whoever wanted it has called wait()

    # -- what tests and demonstrations do to it -----------------------------------------------------------------------

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of all hosts, dead ones too."""
        return tuple(self._hosts)

    @property
    def coordinators(self) -> tuple[str, ...]:
        """Names of all coordinators, dead ones too: `coordinator`, or `c1`, `c2` …"""
        return tuple(self._coordinators)

    async def leader(self) -> str:
        """Name of the coordinator that leads; `""` while none answers as the leader."""
        status = await self._ask_status()
        if status is None or len(self._coordinators) == 1:
            return "" if status is None else ALONE
        return status.leader

    def pid(self, name: str) -> int | None:
        """Process id of a host or a coordinator; None while it is down."""
        slot = self._slot(name)
        return slot.child.pid if slot.is_running and slot.child is not None else None

    def kill(self, name: str, *, is_kept_down: bool = False) -> None:
        """SIGKILL a host or a coordinator, as a crash would. It is restarted as ever, or by `restart()` only."""
        slot = self._slot(name)
        slot.is_kept_down = is_kept_down
        slot.told_to_start.clear()
        if slot.is_running and slot.child is not None:
            slot.child.signal(signal.SIGKILL)

    def restart(self, name: str) -> None:
        """Start a dead host or coordinator now, without the pause; one that runs is left alone."""
        slot = self._slot(name)
        slot.is_kept_down = slot.is_given_up = False
        slot.failures = 0
        if not slot.is_running:
            slot.told_to_start.set()

    def _slot(self, name: str) -> "_Slot":
        slots = self._hosts | self._coordinators
        try:
            return slots[check_id(name, "host")]
        except KeyError:
            raise NotFoundError(f"no host {name!r} here; there are {', '.join(slots)}") from None

    # -- watching -----------------------------------------------------------------------------------------------------

    async def _keep_coordinator(self, slot: "_Slot") -> None:
        members = self._addresses if len(self._addresses) > 1 else {}
        while True:
            await self._run(slot, self._commands.coordinator(self._addresses[slot.name], slot.name, members))
            await slot.pause(None if self._has_ended() else self._coordinator_pause(slot))

    def _coordinator_pause(self, slot: "_Slot") -> float | None:
        """As `_restart_pause`, but a replica that is given up ends the fleet only if those that are left are no majority."""
        try:
            return self._restart_pause(slot, must_return=True)
        except SnaplineError as error:
            slot.is_given_up = True
            left = [other for other in self._coordinators.values() if not other.is_given_up]
            if 2 * len(left) <= len(self._coordinators):
                raise
            self._on_note(f"{slot.name} is given up, the other replicas go on: {error}")
            return None

    async def _keep_host(self, slot: "_Slot") -> None:
        while True:
            instance = secrets.token_hex(8)
            code = await self._run(slot, self._commands.host(self.address, slot.name, instance))
            if code != 0:
                await self._report_exit(slot.name, instance, describe_exit(code))
                await self._read_status()  # hosts of a fleet that failed end with 1: not a reason to start them again
            if code == 0 or self._has_ended():
                await slot.pause(None)
                continue
            pause_s = self._restart_pause(slot, must_return=self._on_failure == "restart")
            self._check_anyone_left()
            await slot.pause(pause_s)

    async def _run(self, slot: "_Slot", command: Sequence[str]) -> int:
        """One life of a process, from its start to its end."""
        log_path = self.data_dir / LOGS_FOLDER / f"{slot.name}.log"
        slot.told_to_start.clear()
        slot.child = Child.start(slot.name, command, log_path=log_path, environment=self._environment)
        started_s = asyncio.get_running_loop().time()
        code = await slot.child.wait()
        lived_s = asyncio.get_running_loop().time() - started_s
        slot.failures = 1 if lived_s >= HEALTHY_S else slot.failures + 1
        return code

    def _restart_pause(self, slot: "_Slot", *, must_return: bool) -> float | None:
        """Seconds until a dead process is started again; None: only when told to.

        Raises:
            SnaplineError: it is given up.
        """
        assert slot.child is not None and slot.child.exit_code is not None
        exit_text = describe_exit(slot.child.exit_code)
        self._check_final(slot)
        if slot.is_kept_down or not must_return:
            self._on_note(f"{slot.name} ended ({exit_text})")
            return None
        if slot.failures > RESTARTS_MAX:
            raise WorldError(f"{slot.name} ended {slot.failures} times in a row, the last time with {slot.last_words}")
        pause_s = restart_pause_s(slot.failures)
        self._on_note(f"{slot.name} ended ({exit_text}), starting it again in {pause_s:g} s")
        return pause_s

    def _check_final(self, slot: "_Slot") -> None:
        """Raises what the process said last, if its exit code means that starting it again would not help."""
        code = slot.child.exit_code if slot.child is not None else None
        if code in FINAL_ERRORS:
            raise FINAL_ERRORS[code](slot.last_words)

    def _check_anyone_left(self) -> None:
        """With `move`, the fleet has failed when its last host has died: no one is there to take the agents."""
        down = [slot for slot in self._hosts.values() if not slot.is_running]
        if self._on_failure == "move" and len(down) == len(self._hosts) and not any(s.is_kept_down for s in down):
            self._end(Ending(outcome="failed", reason="every host has died", epoch=self._last_epoch))

    async def _report_exit(self, host: str, instance: str, reason: str) -> None:
        """Tell the coordinator at once. If it cannot be told, its own failure detector will find out."""
        assert self._client is not None
        with contextlib.suppress(SnaplineError, TimeoutError):
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._client.report_host_exit(host, instance, reason)

    async def _poll(self) -> None:
        while not self._has_ended():
            await self._read_status()
            await asyncio.sleep(POLL_S)

    async def _read_status(self) -> None:
        """Ask how the fleet is, and whether it has ended."""
        status = await self._ask_status()
        self._watch_coordinators(is_answering=status is not None)
        if status is None:
            return
        self._last_epoch = status.last_complete_epoch
        self._on_status(status)
        if status.phase in ("finished", "failed"):
            outcome: Literal["stopped", "failed"] = "stopped" if status.phase == "finished" else "failed"
            self._end(Ending(outcome=outcome, reason=status.reason, epoch=status.last_complete_epoch))

    def _watch_coordinators(self, *, is_answering: bool) -> None:
        """Say once that nobody decides, and once that somebody does again."""
        now_s = asyncio.get_running_loop().time()
        if is_answering:
            if self._silent_s == math.inf:
                self._on_note("the coordinator answers again")
            self._silent_s = 0.0
        elif not self._silent_s:
            self._silent_s = now_s
        elif now_s - self._silent_s >= SILENCE_S:
            self._silent_s = math.inf
            self._on_note(self._describe_silence())

    def _describe_silence(self) -> str:
        down = [name for name, slot in self._coordinators.items() if not slot.is_running]
        if len(self._coordinators) == 1 or not down:
            return "the coordinator does not answer: nothing is decided, and no checkpoint completes, until it does"
        quorum = len(self._coordinators) // 2 + 1
        return (
            f"the coordinator does not answer: {len(down)} of its {len(self._coordinators)} replicas are down "
            f"({', '.join(down)}), and it takes {quorum} to decide"
        )

    async def _ask_status(self) -> FleetReading | None:
        """None: an unreachable coordinator is no news here, `_keep_coordinator` starts it again."""
        assert self._client is not None
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await self._client.status()
        except (SnaplineError, TimeoutError):
            return None

    def _has_ended(self) -> bool:
        return self._ended is not None and self._ended.done()

    def _end(self, ending: Ending) -> None:
        assert self._ended is not None
        if not self._has_ended():
            self._ended.set_result(ending)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """A watcher that gave up, or has a bug, ends the fleet with its error."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._ended is not None and not self._has_ended():
            self._ended.set_exception(error)


def restart_pause_s(failures: int) -> float:
    """Seconds to wait after the given number of failures in a row, from 1."""
    return min(RESTART_PAUSE_S * 2.0 ** (failures - 1), RESTART_PAUSE_S_MAX)


class _Slot:
    """One process's place: the child that runs or ran there, and what is known about its failures.

    Attributes:
        child: the latest one; None before the first start.
        failures: ends in a row.
        is_kept_down: started again by `restart()` only.
        is_given_up: failed too often; a replica that the others go on without.
        told_to_start: ends the pause before a restart.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.child: Child | None = None
        self.failures = 0
        self.is_kept_down = False
        self.is_given_up = False
        self.told_to_start = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.exit_code is None

    @property
    def last_words(self) -> str:
        """The sentence that it ended with, or how."""
        assert self.child is not None and self.child.exit_code is not None
        exit_text, said = describe_exit(self.child.exit_code), self.child.last_line()
        if self.child.exit_code in FINAL_ERRORS and said:
            return said.removeprefix("snapline: ")
        return f"{exit_text}: {said}" if said else f"{exit_text}; see {self.child.log_path}"

    async def pause(self, pause_s: float | None) -> None:
        """Wait for `restart()`, or `pause_s` seconds if given and nobody wants the process kept down."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self.told_to_start.wait()
        while self.is_kept_down:
            await self.told_to_start.wait()


def _connect_loopback(address: str) -> CoordinatorReader:
    from snapline.channels.security import Security
    from snapline.conversation.coordinator_client import CoordinatorClient

    return CoordinatorClient(address, Security.loopback())
