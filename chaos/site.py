"""A fleet of real processes on this machine, whose faults come from outside: carries the executor's commands out, and decides nothing.

DIR/chaos/controls/NODE   what is wrong with its disk and clock (`control.py`)
DIR/chaos/journals/NODE   what it has not synced (`preload.c`)
DIR/chaos/points/         what is armed at failpoints (`points.py`)
DIR/chaos/preload.so      built here, where there is a compiler
"""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

import msgspec

from snapline.chaos import commands as cm
from snapline.chaos import preload
from snapline.chaos.control import Wrongs
from snapline.chaos.network import Gates
from snapline.chaos.points import ArmedPoint, Arming
from snapline.chaos.victim import CONTROLS, LIMITS_FILE, POINTS
from snapline.deploy.commands import SnaplineCommands
from snapline.deploy.data_directory import STORE_FOLDER
from snapline.deploy.launched import ALONE
from snapline.deploy.local import LocalFleet
from snapline.deploy.readings import FleetReading
from snapline.sim.scenario import Scenario, coordinator_names, host_names, joining_hosts

CHAOS_FOLDER, JOURNALS = "chaos", "journals"

SLOW_DISK_US = 30_000
"""What each call on a slow disk takes; a call on a quick one takes a hundredth of that."""

DUTY_S = 0.1
"""A slow processor runs in so long for its part, and stands still for the rest."""

LOOK_S = 0.02
GONE_S = 10.0
"""For a process to be gone after SIGKILL, before another is started in its place."""


class VictimCommands:
    """Command lines of processes that can be made to fail, and that reach each other through gates."""

    def __init__(self, inner: SnaplineCommands, site: "Site") -> None:
        self._inner = inner
        self._site = site

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        node, gates = self._site.node_of(name), self._site.network
        gates.gate(node).target = int(address.rpartition(":")[2])
        known = {member: gates.gate(member).address for member in members}
        more = [] if members else ["--advertise", gates.gate(node).address]
        return self._site.victim(node, [*self._inner.coordinator(address, name, known), *more])

    def host(self, address: str, host: str, instance: str) -> list[str]:
        gates = self._site.network
        known = ",".join(gates.gate(node).address for node in self._site.coordinators)
        gate = gates.gate(host)
        where = ["--listen", f"127.0.0.1:{gate.target}", "--advertise", gate.address]
        return self._site.victim(host, [*self._inner.host(known, host, instance), *where])


class Site:
    """Where a scenario is carried out.

    Attributes:
        fleet: its processes. network: between them. coordinators: as the scenario calls them.
        lost: what power cuts have taken, in words.
        status: of the fleet, as it was last heard.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        *,
        fleet: str,
        arguments: Mapping[str, str],
        seed: int,
        on_note: Callable[[str], None],
    ) -> None:
        """`fleet`: MODULE:FLEET, with its arguments. `folder`: everything is written there."""
        self.coordinators = coordinator_names(scenario)
        self.lost: list[str] = []
        self.status: FleetReading | None = None
        self._scenario = scenario
        self._folder = folder.absolute()
        self._nodes = (*host_names(scenario), *self.coordinators)
        self.network = Gates(self._nodes, self._pids, seed)
        inner = SnaplineCommands(
            data_dir=self._folder,
            fleet=fleet,
            hosts=scenario.fleet.hosts,
            arguments=arguments,
            on_failure="restart",
        )
        self.fleet = LocalFleet(
            VictimCommands(inner, self),
            data_dir=self._folder,
            hosts=scenario.fleet.hosts,
            coordinators=scenario.fleet.coordinators,
            on_note=on_note,
            on_status=self._on_status,
        )
        self._controls: dict[str, Wrongs] = {}
        self._absent = list(joining_hosts(scenario))
        self._speeds: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._library: Path | None = None
        self._arming: Arming | None = None

    # ---- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises SnaplineError if it cannot be had here."""
        place = self._folder / CHAOS_FOLDER
        for each in (CONTROLS, JOURNALS):
            (place / each).mkdir(parents=True, exist_ok=True)
        (place / LIMITS_FILE).write_bytes(msgspec.json.encode(self._scenario.limits))
        self._arming = Arming(place / POINTS)
        self._controls = {node: Wrongs(place / CONTROLS / node) for node in self._nodes}
        if not preload.reason_against():
            self._library = preload.build(place)
        await self.network.start()
        await self.fleet.start()
        self._spawn("slow", self._keep_slow())

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self._nodes:
            self._signal(node, signal.SIGCONT)
        await self.fleet.stop()
        await self.network.stop()
        for control in self._controls.values():
            control.close()

    def _on_status(self, status: FleetReading) -> None:
        self.status = status

    # ---- names ------------------------------------------------------------------------------------------------------

    def node_of(self, name: str) -> str:
        """As the scenario calls a process of the fleet."""
        return self.coordinators[0] if name == ALONE else name

    def _name_of(self, node: str) -> str:
        return ALONE if node == self.coordinators[0] and len(self.coordinators) == 1 else node

    def _pid(self, node: str) -> int | None:
        return None if node in self._absent else self.fleet.pid(self._name_of(node))

    def _pids(self) -> Mapping[int, str]:
        known = [(self._pid(node), node) for node in self._nodes]
        return {pid: node for pid, node in known if pid is not None}

    def victim(self, node: str, command: list[str]) -> list[str]:
        """The command line that can be made to fail."""
        python, _, _, *rest = command
        place = self._folder / CHAOS_FOLDER
        victim = [python, "-m", "snapline.chaos.victim", str(place), node, *rest]
        if self._library is None:
            return victim
        root = self._folder
        added = preload.environment(
            self._library, control=place / CONTROLS / node, journal=place / JOURNALS / node, root=root
        )
        return [shutil.which("env") or "/usr/bin/env", *(f"{key}={value}" for key, value in added.items()), *victim]

    # ---- what is seen -----------------------------------------------------------------------------------------------

    def points_passed(self) -> list[cm.PointPassed]:
        assert self._arming is not None
        return [cm.PointPassed(number, node) for number, node in self._arming.hits().items()]

    # ---- what is done -----------------------------------------------------------------------------------------------

    def carry_out(self, command: cm.Command) -> None:
        match command:
            case cm.KillNode():
                self.fleet.kill(self._name_of(command.node), is_kept_down=True)
            case cm.CutPower():
                self.fleet.kill(self._name_of(command.node), is_kept_down=True)
                self._spawn(f"power {command.node}", self._lose(command))
            case cm.EndNode():
                self._spawn(f"end {command.node}", self._end(command.node))
            case cm.StartNode():
                self._spawn(f"start {command.node}", self._start_again(command.node))
            case cm.SetSpeed():
                self._set_speed(command.node, command.percent)
            case cm.SetPath():
                self.network.set(command)
            case cm.BreakStreams():
                self.network.break_streams(command.one, command.other)
            case cm.SetDisk():
                self._set_disk(command)
            case cm.SetHanging():
                self._controls[command.node].set(f"hang_{command.what}", int(command.is_on))
            case cm.SetClock():
                self._set_clock(command)
            case cm.SetUnknown():
                for node in self.coordinators:
                    self._controls[node].set("unknown_per_mille", command.per_mille)
            case cm.FlipBit():
                flip(self._folder / STORE_FOLDER / command.path, command.bit)
            case cm.ArmPoint():
                assert self._arming is not None
                self._arming.arm(ArmedPoint(command.number, command.name, command.hit, command.action))
            case cm.DisarmPoints():
                assert self._arming is not None
                self._arming.disarm()
            case cm.Note():
                pass
            case _:
                raise AssertionError(f"no way to carry out {command!r}")

    def _spawn(self, key: str, work: Coroutine[object, object, None]) -> None:
        """One of a key at a time: the next one waits for the one before."""
        before = self._tasks.get(key)

        async def after() -> None:
            if before is not None:
                await asyncio.wait([before])
            await work

        self._tasks[key] = asyncio.create_task(after())

    def _signal(self, node: str, number: signal.Signals) -> None:
        pid = self._pid(node)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    async def _gone(self, node: str) -> None:
        async with asyncio.timeout(GONE_S):
            while self._pid(node) is not None:
                await asyncio.sleep(LOOK_S)

    async def _start_again(self, node: str) -> None:
        """After what has ended it, and has taken what was not synced."""
        for key in (f"power {node}", f"end {node}"):
            if key in self._tasks:
                await asyncio.wait([self._tasks[key]])
        if node in self._absent:
            self._join(node)
            return
        await self._gone(node)
        self.fleet.restart(self._name_of(node))

    def _join(self, host: str) -> None:
        """A launcher has the hosts up to some number: those below that are to come later are kept down."""
        names = host_names(self._scenario)
        self._absent.remove(host)
        if host not in self.fleet.hosts:
            self.fleet.scale(names.index(host) + 1)
        for each in self._absent:
            if each in self.fleet.hosts:
                self.fleet.kill(each, is_kept_down=True)
        self.fleet.restart(host)

    async def _end(self, node: str) -> None:
        self._signal(node, signal.SIGCONT)
        self._signal(node, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await self._gone(node)
        self.fleet.kill(self._name_of(node), is_kept_down=True)

    async def _lose(self, command: cm.CutPower) -> None:
        await self._gone(command.node)
        journal = self._folder / CHAOS_FOLDER / JOURNALS / command.node
        self.lost += preload.lose_unsynced(journal, command.seed)

    # ---- processors, disks, clocks ----------------------------------------------------------------------------------

    def _set_speed(self, node: str, percent: int) -> None:
        self._speeds[node] = percent
        self._signal(node, signal.SIGCONT if percent else signal.SIGSTOP)

    async def _keep_slow(self) -> None:
        """Let slow processes run for their part of the time."""
        while True:
            slow = {node: percent for node, percent in self._speeds.items() if 0 < percent < 100}
            for node in slow:
                self._signal(node, signal.SIGSTOP)
            began_s = time.monotonic()
            for node, percent in sorted(slow.items(), key=lambda each: -each[1]):
                rest_s = DUTY_S * (100 - percent) / 100 - (time.monotonic() - began_s)
                await asyncio.sleep(max(0.0, rest_s))
                if self._speeds[node]:
                    self._signal(node, signal.SIGCONT)
            await asyncio.sleep(max(0.0, DUTY_S - (time.monotonic() - began_s)))

    def _set_disk(self, command: cm.SetDisk) -> None:
        control = self._controls[command.node]
        control.set("eio", int("eio" in command.modes))
        control.set("full", int("full" in command.modes))
        control.set("failed_sync", int("failed-sync" in command.modes))
        control.set("slow_us", SLOW_DISK_US * ("slow" in command.modes))

    def _set_clock(self, command: cm.SetClock) -> None:
        control = self._controls[command.node]
        control.set("drift_from_ns", time.monotonic_ns())
        control.set("drift_ppm", command.drift_ppm)
        control.set("skew_ns", command.skew_ns)


def flip(path: Path, bit: int) -> None:
    """Damage one bit of a file; nothing if it has been deleted meanwhile."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        size = path.stat().st_size
        if size:
            place, number = divmod(bit % (8 * size), 8)
            file.seek(place)
            old = file.read(1)[0]
            file.seek(place)
            file.write(bytes([old ^ (1 << number)]))
