"""A fleet at another launcher's place, whose processes are killed, ended and frozen: carries the executor's commands out, as far as a launcher can.

Its processes are snapline's own command lines, and no victims: nothing is armed in them, and no gate is before them. All of them, and
this one, see one folder: the scenario is read there, and the store is judged there.
"""

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from snapline.chaos import commands as cm
from snapline.chaos.damage import flip
from snapline.chaos.processes import Processes
from snapline.deploy.data_directory import STORE_FOLDER
from snapline.deploy.kept_fleet import OPERATOR, DetachedPlan, commands_for, connect, launcher_of
from snapline.deploy.running_fleet import LaunchedFleet
from snapline.deploy.status import FleetReading
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.sim.scenario import Scenario, coordinator_names, host_names, joining_hosts

NAME_BYTES = 3


class RemoteFaults:
    """Remote place where a scenario is carried out.

    Attributes:
        fleet: its processes. name: of it at its place. status: as last read.
        lost: nothing is taken from disks here.
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
        """`plan`: of the place; what is to run there is the scenario's, under a name of its own. `folder`: everything is written there."""
        self.name = f"chaos-{secrets.token_hex(NAME_BYTES)}"
        self.lost: list[str] = []
        self.status: FleetReading | None = None
        self._folder = folder
        what = msgspec.structs.replace(
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
        self._plan = msgspec.structs.replace(plan, what=what)
        self.fleet = LaunchedFleet(
            launcher_of(self._plan, on_note),
            commands_for(self._plan),
            hosts=what.hosts,
            coordinators=what.coordinators,
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
        """Raises SnaplineError if it cannot be had there."""
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
        """Return the scenario's name of a process of the fleet."""
        return self._processes.node_of(name)

    def points_passed(self) -> list[cm.PointPassed]:
        """None is armed."""
        return []

    def carry_out(self, command: cm.Command) -> None:
        """Carry out a command. One that makes a fleet whole has no effect: of its paths, disks, clocks and points nothing was ever wrong."""
        match command:
            case cm.KillNode() | cm.EndNode() | cm.StartNode() | cm.SetSpeed():
                self._processes.carry_out(command)
            case cm.FlipBit():
                flip(self._folder / STORE_FOLDER / command.path, command.bit)
            case cm.SetDisk(modes=()) | cm.SetHanging(is_on=False) | cm.SetClock(skew_ns=0, drift_ppm=0):
                pass
            case cm.SetUnknown(per_mille=0) | cm.DisarmPoints() | cm.Note():
                pass
            case _:
                raise AssertionError(f"no way to carry out {command!r}: `abilities` refuses its word")

    def _on_status(self, status: FleetReading) -> None:
        self.status = status
