"""Place of the processes of `snapline chaos`: this machine, or a place of `snapline up --on`, with the same options."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.configuration import Context
from snapline.cli.settings import UserSettings
from snapline.cli.up import Address, Certificates, Cpus, Insecure, Place, SbatchOptions, TlsDomain, number_of
from snapline.cli.up_background import KEYS, plan_of
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.chaos.capabilities import Where
    from snapline.deploy.detached_fleet import DetachedPlan

OnPlace = Annotated[
    Place | None,
    typer.Option("--on", help="Where, as for `up`; never a context's.", show_default="local"),
]


def place_of(on: Place | None) -> "Where":
    """Return the place that `--on` names. Contexts are ignored: faults are injected only where explicitly requested."""
    places: dict[Place, Where] = {
        Place.LOCAL: "local",
        Place.SSH: "ssh",
        Place.PODMAN: "podman",
        Place.SLURM: "slurm",
        Place.RAY: "ray",
    }
    return places[on or Place.LOCAL]


@dataclass(frozen=True)
class ChaosPlace:
    """The options of `snapline up --on` for the place."""

    on: OnPlace = None
    address: Address = None
    cpus: Cpus = None
    sbatch_option: SbatchOptions = None
    tls: Certificates = None
    tls_domain: TlsDomain = None
    insecure: Insecure = False
    context: Context = None

    @property
    def place(self) -> "Where":
        """Place of the launcher."""
        return place_of(self.on)

    def plan(self, folder: Path) -> "DetachedPlan | None":
        """Return the plan from the options, with settings as defaults; None: this machine.

        Raises:
            UsageError: options contradict each other.
        """
        place = self.place
        if place == "local":
            return None
        settings = UserSettings(self.context)
        flags = {"address": self.address, "machines": self.address, "cpus": self.cpus, "tls": self.tls}
        flags |= {"sbatch": shlex.join(self.sbatch_option) if self.sbatch_option else None}
        flags |= {"tls_domain": self.tls_domain}
        values = {key: settings.get(key, flag).value for key, flag in {**dict.fromkeys(KEYS), **flags}.items()}
        if self.insecure and values["tls"]:
            raise UsageError("--insecure contradicts --tls: leave one out")
        from snapline.deploy.plan import FleetPlan

        fleet_plan = FleetPlan(
            name="",
            fleet="",
            data_dir=str(folder.absolute()),
            hosts=1,
            node={"CPU": number_of(settings, "cpus", values["cpus"])},
            is_insecure=self.insecure,
            domain=values["tls_domain"],
        )
        return plan_of(place, fleet_plan, values)
