"""Driver of faults for a fleet of real processes on this machine: carries the executor's commands out, and decides nothing.

DIR/chaos/controls/NODE   faults of its disk and clock (`control.py`)
DIR/chaos/journals/NODE   its unsynced changes (`preload.c`)
DIR/chaos/points/         armed failpoints (`failpoints.py`)
DIR/chaos/preload.so      compiled here if there is a compiler
"""

import functools
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from snapline.chaos import executor as cm
from snapline.chaos import preload
from snapline.chaos.control import FaultCounters
from snapline.chaos.damage import flip
from snapline.chaos.failpoints import ArmedPoint, FailpointArmer
from snapline.chaos.fault_wrapper import CONTROLS, LIMITS_FILE, POINTS
from snapline.chaos.network import Gates
from snapline.chaos.processes import Processes
from snapline.deploy.commands import SnaplineCommands
from snapline.deploy.data_directory import STORE_FOLDER
from snapline.deploy.local import LocalFleet
from snapline.deploy.status import FleetReading
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security
from snapline.sim.scenario import Scenario, coordinator_names, host_names, joining_hosts

CHAOS_FOLDER, JOURNALS = "chaos", "journals"

SLOW_DISK_US = 30_000
"""Duration of each call on a slow disk, in microseconds; a normal call takes a hundredth of that."""


class FaultableCommands:
    """Command lines of processes that accept faults, and reach each other through gates."""

    def __init__(self, inner: SnaplineCommands, faults: "LocalFaults") -> None:
        self._inner = inner
        self._faults = faults

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        node, gates = self._faults.node_of(name), self._faults.network
        gates.gate(node).target = int(address.rpartition(":")[2])
        peers = {member: gates.gate(member).address for member in members}
        more = [] if members else ["--advertise", gates.gate(node).address]
        return self._faults.wrap_command(node, [*self._inner.coordinator(address, name, peers), *more])

    def host(self, address: str, host: str, instance: str) -> list[str]:
        gates = self._faults.network
        addresses = ",".join(gates.gate(node).address for node in self._faults.coordinators)
        gate = gates.gate(host)
        where = ["--listen", f"127.0.0.1:{gate.target}", "--advertise", gate.address]
        return self._faults.wrap_command(host, [*self._inner.host(addresses, host, instance), *where])


class LocalFaults:
    """Carries a scenario out on this machine.

    Attributes:
        fleet: the fleet's processes.
        network: the gates between them.
        coordinators: the scenario's names of the coordinators.
        lost: descriptions of the data lost in power cuts.
        status: last known status of the fleet.
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
        """Create the driver. `fleet`: MODULE:FLEET, with its arguments. `folder`: folder for all files."""
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
            FaultableCommands(inner, self),
            data_dir=self._folder,
            hosts=scenario.fleet.hosts,
            coordinators=scenario.fleet.coordinators,
            on_note=on_note,
            on_status=self._on_status,
        )
        self._processes = Processes(
            self.fleet,
            hosts=host_names(scenario),
            coordinators=self.coordinators,
            joining=joining_hosts(scenario),
        )
        self._controls: dict[str, FaultCounters] = {}
        self._library: Path | None = None
        self._failpoint_armer: FailpointArmer | None = None

    # ---- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the fleet; raise SnaplineError if it cannot run here."""
        chaos_folder = self._folder / CHAOS_FOLDER
        for subfolder in (CONTROLS, JOURNALS):
            (chaos_folder / subfolder).mkdir(parents=True, exist_ok=True)
        (chaos_folder / LIMITS_FILE).write_bytes(msgspec.json.encode(self._scenario.limits))
        self._failpoint_armer = FailpointArmer(chaos_folder / POINTS)
        self._controls = {node: FaultCounters(chaos_folder / CONTROLS / node) for node in self._nodes}
        if not preload.reason_against():
            self._library = preload.build(chaos_folder)
        await self.network.start()
        await self.fleet.start()
        self._processes.start()

    async def stop(self) -> None:
        await self._processes.stop()
        await self.fleet.stop()
        await self.network.stop()
        for control in self._controls.values():
            control.close()

    def _on_status(self, status: FleetReading) -> None:
        self.status = status

    # ---- names ------------------------------------------------------------------------------------------------------

    def client(self) -> CoordinatorClient:
        """Return a client with the rights of a tool of this machine."""
        return CoordinatorClient(self.fleet.address, Security.loopback())

    def node_of(self, name: str) -> str:
        """Return the scenario's name for a process of the fleet."""
        return self._processes.node_of(name)

    def _pids(self) -> Mapping[int, str]:
        nodes = [(self._processes.pid(node), node) for node in self._nodes]
        return {pid: node for pid, node in nodes if pid is not None}

    def wrap_command(self, node: str, command: list[str]) -> list[str]:
        """Return the command line of a process that accepts faults."""
        python, _, _, *rest = command
        chaos_folder = self._folder / CHAOS_FOLDER
        wrapped = [python, "-m", "snapline.chaos.fault_wrapper", str(chaos_folder), node, *rest]
        if self._library is None:
            return wrapped
        root = self._folder
        added = preload.environment(
            self._library, control=chaos_folder / CONTROLS / node, journal=chaos_folder / JOURNALS / node, root=root
        )
        return [shutil.which("env") or "/usr/bin/env", *(f"{key}={value}" for key, value in added.items()), *wrapped]

    # ---- observations -----------------------------------------------------------------------------------------------

    def failpoint_hits(self) -> list[cm.FailpointHit]:
        assert self._failpoint_armer is not None
        return [cm.FailpointHit(number, node) for number, node in self._failpoint_armer.hits().items()]

    # ---- commands -----------------------------------------------------------------------------------------------

    def carry_out(self, command: cm.Command) -> None:
        match command:
            case cm.KillNode() | cm.EndNode() | cm.StartNode() | cm.SetSpeed():
                self._processes.carry_out(command)
            case cm.CutPower():
                self._processes.carry_out(cm.KillNode(command.node))
                self._processes.spawn(f"power {command.node}", functools.partial(self._lose, command))
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
            case cm.ArmFailpoint():
                assert self._failpoint_armer is not None
                self._failpoint_armer.arm(ArmedPoint(command.number, command.name, command.hit, command.action))
            case cm.DisarmFailpoints():
                assert self._failpoint_armer is not None
                self._failpoint_armer.disarm()
            case cm.Note():
                pass
            case _:
                raise AssertionError(f"no way to carry out {command!r}")

    async def _lose(self, command: cm.CutPower) -> None:
        await self._processes.gone(command.node)
        journal = self._folder / CHAOS_FOLDER / JOURNALS / command.node
        self.lost += preload.lose_unsynced(journal, command.seed)

    # ---- disks and clocks -------------------------------------------------------------------------------------------------

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
