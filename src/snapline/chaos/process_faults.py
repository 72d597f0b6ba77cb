"""Kills, terminates, freezes, slows down and restarts a fleet's processes in the same way for every launcher.

A launcher's commands take time, and a later command may overtake an earlier one. So `Processes` sends the commands for each process one
after the other. Each command reads the requested speed when it is sent, so that the last request takes effect.

`RemoteFaults` is the driver for fleets that another launcher runs. `RemoteFaults` executes the commands that a launcher supports, and
damages files of the store. These fleets run plain snapline command lines, without the fault wrapper, failpoints and gates. The processes of
the fleet share a folder with this process. The folder contains the scenario and the store.

`leftovers` finds processes that remain after a run was killed. The kernel ends processes together with their parent, so normally no
processes remain.
"""

import asyncio
import contextlib
import functools
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import msgspec

from snapline.chaos import executor as cm
from snapline.deploy.data_directory import STORE_FOLDER
from snapline.deploy.detached_fleet import OPERATOR, DetachedPlan, commands_for, connect, launcher_of
from snapline.deploy.running_fleet import SINGLE_COORDINATOR, LaunchedFleet
from snapline.errors import SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus
from snapline.sim.scenario import Scenario, coordinator_names, host_names, joining_hosts

DUTY_S = 0.1
"""Period of the duty cycle. A slow process runs for its percentage of the period, and is frozen for the rest."""

LOOK_S = 0.02
EXIT_LIMIT_S = 10.0
"""Time limit for a process to end after SIGKILL before it is restarted, and for thawing all processes at the end."""


class Processes:
    """Controls the hosts and coordinators under the names that the scenario uses.

    Attributes:
        fleet: fleet to which the processes belong.
    """

    def __init__(
        self,
        fleet: LaunchedFleet,
        *,
        hosts: Sequence[str],
        coordinators: Sequence[str],
        joining: Sequence[str],
    ) -> None:
        """Create the driver. `joining` lists the hosts that join the fleet later."""
        self.fleet = fleet
        self._hosts = tuple(hosts)
        self._coordinators = tuple(coordinators)
        self._absent = list(joining)
        self._speeds: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Start slowing down the processes that must be slow."""
        self.spawn("slow", self._keep_slow)

    async def stop(self) -> None:
        """Stop all work, and leave no process frozen."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        frozen = [node for node, percent in self._speeds.items() if percent < 100]
        with contextlib.suppress(TimeoutError):  # the launcher ends frozen processes, too
            async with asyncio.timeout(EXIT_LIMIT_S):
                await asyncio.gather(*(self._send(self.fleet.thaw, node) for node in frozen))

    # ---- names ------------------------------------------------------------------------------------------------------

    def node_of(self, name: str) -> str:
        """Return the name that the scenario uses for a process of the fleet."""
        return self._coordinators[0] if name == SINGLE_COORDINATOR else name

    def name_of(self, node: str) -> str:
        """Return the name that the fleet uses for a node."""
        return SINGLE_COORDINATOR if node == self._coordinators[0] and len(self._coordinators) == 1 else node

    def pid(self, node: str) -> int | None:
        """Return the node's process id on its machine, or None while the node is down."""
        return None if node in self._absent else self.fleet.pid(self.name_of(node))

    # ---- commands -----------------------------------------------------------------------------------------------

    def carry_out(self, command: cm.KillNode | cm.EndNode | cm.StartNode | cm.SetSpeed) -> None:
        """Execute a command that concerns only processes."""
        match command:
            case cm.KillNode():
                self.fleet.kill(self.name_of(command.node), is_kept_down=True)
            case cm.EndNode():
                self.spawn(f"end {command.node}", functools.partial(self._end, command.node))
            case cm.StartNode():
                self.spawn(f"start {command.node}", functools.partial(self._start_again, command.node))
            case cm.SetSpeed():
                self._speeds[command.node] = command.percent
                self.spawn(f"speed {command.node}", functools.partial(self._set_speed, command.node))

    def spawn(self, key: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run tasks with the same key one after the other."""
        before = self._tasks.get(key)

        async def after() -> None:
            if before is not None:
                await asyncio.wait([before])
            await work()

        self._tasks[key] = asyncio.create_task(after())

    async def gone(self, node: str) -> None:
        """Wait until the node is down. Raise TimeoutError if the node is still running after `EXIT_LIMIT_S` seconds."""
        async with asyncio.timeout(EXIT_LIMIT_S):
            while self.pid(node) is not None:
                await asyncio.sleep(LOOK_S)

    async def _start_again(self, node: str) -> None:
        """Restart a node after the tasks that stop it and discard its unsynced data have finished."""
        for key in (f"power {node}", f"end {node}"):
            if key in self._tasks:
                await asyncio.wait([self._tasks[key]])
        if node in self._absent:
            self._join(node)
            return
        await self.gone(node)
        self.fleet.restart(self.name_of(node))

    def _join(self, host: str) -> None:
        """Add a host to the fleet. A launcher always runs hosts 1 to N. Hosts among them that have not joined yet are kept down."""
        self._absent.remove(host)
        if host not in self.fleet.hosts:
            self.fleet.scale(self._hosts.index(host) + 1)
        for absent in self._absent:
            if absent in self.fleet.hosts:
                self.fleet.kill(absent, is_kept_down=True)
        self.fleet.restart(host)

    async def _end(self, node: str) -> None:
        await self._send(self.fleet.thaw, node)
        await self.fleet.end(self.name_of(node), EXIT_LIMIT_S)

    async def _set_speed(self, node: str) -> None:
        await self._send(self.fleet.thaw if self._speeds[node] else self.fleet.freeze, node)

    async def _keep_slow(self) -> None:
        """Freeze and thaw each slow process in every period of the duty cycle."""
        while True:
            slow = {node: percent for node, percent in self._speeds.items() if 0 < percent < 100}
            began_s = time.monotonic()
            await asyncio.gather(*(self._send(self.fleet.freeze, node) for node in slow))
            for node, percent in sorted(slow.items(), key=lambda each: -each[1]):
                rest_s = DUTY_S * (100 - percent) / 100 - (time.monotonic() - began_s)
                await asyncio.sleep(max(0.0, rest_s))
                if self._speeds[node]:
                    await self._send(self.fleet.thaw, node)
            await asyncio.sleep(max(0.0, DUTY_S - (time.monotonic() - began_s)))

    async def _send(self, word: Callable[[str], Coroutine[object, object, None]], node: str) -> None:
        """Send a command to a running process. If a command fails, it is dropped, because the next command reads the requested state
        again."""
        if node not in self._absent:
            with contextlib.suppress(SnaplineError):
                await word(self.name_of(node))


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file. If the file has been deleted in the meantime, do nothing."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        size = path.stat().st_size
        if size:
            offset, shift = divmod(bit % (8 * size), 8)
            file.seek(offset)
            old = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([old ^ (1 << shift)]))


NAME_BYTES = 3


class RemoteFaults:
    """Injects a scenario's faults into a fleet that another launcher runs.

    Attributes:
        fleet: the fleet's processes.
        name: the fleet's name at its location.
        status: last known status of the fleet.
        lost: always empty, because this driver loses no data.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        plan: DetachedPlan,
        *,
        fleet: str,
        arguments: Mapping[str, str],
        on_note: Callable[[str], None] = lambda note: None,
    ) -> None:
        """Create the driver. `plan` is the deployment plan for the location. The scenario's fleet replaces the fleet of the plan, under a
        new name. `folder` contains all files of the run."""
        self.name = f"chaos-{secrets.token_hex(NAME_BYTES)}"
        self.lost: list[str] = []
        self.status: FleetStatus | None = None
        self._folder = folder
        fleet_plan = msgspec.structs.replace(
            plan.what,
            name=self.name,
            fleet=fleet,
            arguments=dict(arguments),
            data_dir=str(folder),
            store="",
            hosts=scenario.fleet.hosts,
            coordinators=scenario.fleet.coordinators,
            on_failure="restart",
        )
        self._plan = msgspec.structs.replace(plan, what=fleet_plan)
        self.fleet = LaunchedFleet(
            launcher_of(self._plan, on_note),
            commands_for(self._plan),
            hosts=fleet_plan.hosts,
            coordinators=fleet_plan.coordinators,
            connect=lambda address: connect(self._plan, address),
            on_note=on_note,
            on_status=self._on_status,
        )
        self._on_note = on_note
        self._processes = Processes(
            self.fleet,
            hosts=host_names(scenario),
            coordinators=coordinator_names(scenario),
            joining=joining_hosts(scenario),
        )

    async def start(self) -> None:
        """Start the fleet. Raise SnaplineError if the fleet cannot run at this location."""
        self._on_note(f"fleet {self.name} on {self._plan.place}, in {self._folder}")
        await self.fleet.start()
        self._processes.start()

    async def stop(self) -> None:
        await self._processes.stop()
        await self.fleet.stop()

    def client(self) -> CoordinatorClient:
        """Return a client that has an operator's rights."""
        return connect(self._plan, self.fleet.address, OPERATOR)

    def node_of(self, name: str) -> str:
        """Return the name that the scenario uses for a process of the fleet."""
        return self._processes.node_of(name)

    def failpoint_hits(self) -> list[cm.FailpointHit]:
        """Return an empty list, because this driver arms no failpoints."""
        return []

    def carry_out(self, command: cm.Command) -> None:
        """Execute a command. Commands that end disk faults, clock faults or failpoints have no effect, because this driver injects none of
        these."""
        match command:
            case cm.KillNode() | cm.EndNode() | cm.StartNode() | cm.SetSpeed():
                self._processes.carry_out(command)
            case cm.FlipBit():
                flip(self._folder / STORE_FOLDER / command.path, command.bit)
            case cm.SetDisk(modes=()) | cm.SetHanging(is_on=False) | cm.SetClock(skew_ns=0, drift_ppm=0):
                pass
            case cm.SetUnknown(per_mille=0) | cm.DisarmFailpoints() | cm.Note():
                pass
            case _:
                raise AssertionError(f"no way to carry out {command!r}: `abilities` refuses its word")

    def _on_status(self, status: FleetStatus) -> None:
        self.status = status


MARK = b"snapline.chaos.fault_wrapper"


def leftovers(processes: Path = Path("/proc")) -> list[str]:
    """Return descriptions of the processes whose chaos run has ended. Each description contains a command that kills the process."""
    descriptions = []
    for folder in processes.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # the process has ended
            continue
        if MARK in words and parent == "1":
            place, node = (word.decode() for word in words[words.index(MARK) + 1 :][:2])
            descriptions.append(f"process {folder.name}, {node} of {place}: kill -9 {folder.name}")
    return sorted(descriptions)
