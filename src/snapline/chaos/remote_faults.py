"""Driver of faults for a fleet at another launcher's place: carries out the executor's commands that a launcher can: kill, end, freeze.

The processes are plain snapline command lines, without the fault wrapper, failpoints and gates. All of them, and this process, share one folder,
which has the scenario and the store.
"""

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from snapline.chaos import executor as cm
from snapline.chaos.damage import flip
from snapline.chaos.processes import Processes
from snapline.deploy.data_directory import STORE_FOLDER
from snapline.deploy.detached_fleet import OPERATOR, DetachedPlan, commands_for, connect, launcher_of
from snapline.deploy.running_fleet import LaunchedFleet
from snapline.deploy.status import FleetReading
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.sim.scenario import Scenario, coordinator_names, host_names, joining_hosts

NAME_BYTES = 3


class RemoteFaults:
    """Carries a scenario out at a remote place.

    Attributes:
        fleet: the fleet's processes.
        name: name of the fleet at its place.
        status: last known status of the fleet.
        lost: always empty: no data is lost here.
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
        """Create the driver. `plan`: plan of the place; the scenario replaces its fleet, under a new name. `folder`: folder for all files."""
        self.name = f"chaos-{secrets.token_hex(NAME_BYTES)}"
        self.lost: list[str] = []
        self.status: FleetReading | None = None
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
        """Start the fleet; raise SnaplineError if it cannot run there."""
        self._on_note(f"fleet {self.name} on {self._plan.place}, in {self._folder}")
        await self.fleet.start()
        self._processes.start()

    async def stop(self) -> None:
        await self._processes.stop()
        await self.fleet.stop()

    def client(self) -> CoordinatorClient:
        """Return a client with an operator's rights."""
        return connect(self._plan, self.fleet.address, OPERATOR)

    def node_of(self, name: str) -> str:
        """Return the scenario's name for a process of the fleet."""
        return self._processes.node_of(name)

    def failpoint_hits(self) -> list[cm.FailpointHit]:
        """Return an empty list: no failpoints are armed here."""
        return []

    def carry_out(self, command: cm.Command) -> None:
        """Carry out a command. Commands that end faults of disks, clocks and failpoints do nothing: there are none here."""
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

    def _on_status(self, status: FleetReading) -> None:
        self.status = status
