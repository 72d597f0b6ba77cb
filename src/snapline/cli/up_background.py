"""`snapline up` and `down` for fleets on other machines or in containers, and the local background process that supervises them."""

import asyncio
import contextlib
import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import command
from snapline.cli.fleet_locations import background_pid, start_in_background, stop_background, until_up
from snapline.cli.options import Display
from snapline.cli.output import Document, document
from snapline.cli.progress import FleetProgress
from snapline.cli.settings import UserSettings
from snapline.errors import NotFoundError

if TYPE_CHECKING:
    from snapline.deploy.detached_fleet import DetachedPlace, DetachedPlan
    from snapline.deploy.plan import FleetPlan

END_S = 90.0
"""Time limit for the supervisor to end a remote fleet; it waits two seconds for processes, and half a minute for an unresponsive machine."""


KEYS = ("address", "machines", "ssh", "sbatch", "python", "image", "code", "tls")
"""Settings that are part of a plan."""

PLACES: "Mapping[str, DetachedPlace]" = {"ssh": "ssh", "podman": "podman", "slurm": "slurm", "ray": "ray"}
"""`--on` → place."""


def plan_of(place: str, what: "FleetPlan", found: Mapping[str, str]) -> "DetachedPlan":
    """Build the plan from settings of KEYS."""
    from snapline.deploy.detached_fleet import DetachedPlan

    return DetachedPlan(
        place=PLACES[place],
        what=what,
        address=found["address"],
        machines=tuple(machine.strip() for machine in found["machines"].split(",") if machine.strip()),
        ssh=tuple(shlex.split(found["ssh"])),
        sbatch=tuple(shlex.split(found["sbatch"])),
        python=found["python"],
        image=found["image"],
        code=str(Path(found["code"]).absolute()) if place == "podman" else found["code"],
        tls=str(Path(found["tls"]).absolute()) if found["tls"] else "",
    )


def up_detached(plan: "DetachedPlan", folder: Path, timeout_s: float, progress: FleetProgress) -> Document:
    """Start the supervisor, and wait until all hosts take part."""
    from snapline.deploy.detached_fleet import certificates_of, check_place, connect, write_plan

    certificates_of(plan)  # report errors of the plan here, not in the background
    asyncio.run(check_place(plan))
    if background_pid(folder) is None:
        write_plan(folder, plan)
    started = start_in_background(["keep", str(folder)], folder, plan.what.last_snapshot_s)
    progress.note(f"process {started.pid} keeps the fleet; its notes are in {folder}")
    address = asyncio.run(
        until_up(
            started,
            folder,
            hosts=plan.what.hosts,
            timeout_s=timeout_s,
            connect=lambda address: connect(plan, address),
        )
    )
    outcome = "stopped" if started.poll() == 0 else None
    result = {"data_dir": plan.what.data_dir, "coordinator": address, "hosts": plan.what.hosts, "outcome": outcome}
    return document("FleetUp", name=plan.what.name, on=plan.place, **result)


def recorded_plan(
    settings: UserSettings, name: str, place: str, address: str | None, data_dir: str | None, folder: Path
) -> "DetachedPlan":
    """Return the plan that a fleet was started with from here; otherwise a plan from the settings.

    Raises:
        NotFoundError: the fleet has another folder.
    """
    from snapline.deploy.data_directory import is_same_folder
    from snapline.deploy.detached_fleet import read_plan
    from snapline.deploy.plan import FleetPlan

    plan, wanted = read_plan(folder), settings.get("data_dir", data_dir).value
    if plan is not None and wanted and not is_same_folder(plan.what.data_dir, wanted):
        raise NotFoundError(
            f"the fleet that {folder} keeps has the folder {plan.what.data_dir}, not {wanted}: give its --data-dir, or another --name"
        )
    if plan is not None:
        return plan
    fleet_plan = FleetPlan(name, fleet="", data_dir=str(Path(wanted).absolute()) if wanted else "", hosts=1, node={})
    values = {key: settings.get(key, address if key == "machines" else None).value for key in KEYS}
    return plan_of(place, fleet_plan, values)


def down_detached(plan: "DetachedPlan", folder: Path, note: Callable[[str], None], *, is_dry: bool) -> None:
    """End the supervisor and with it the fleet, then everything that an earlier supervisor left."""
    from snapline.deploy.detached_fleet import launcher_of

    is_kept = background_pid(folder) is not None
    if is_dry and not is_kept:
        raise NotFoundError(f"nobody here keeps fleet {plan.what.name}: `snapline down` ends what may be left of it")
    if is_dry:
        return
    if is_kept:
        for line in stop_background(folder, END_S):
            note(line)
    swept = asyncio.run(launcher_of(plan).sweep())
    if not (is_kept or swept):
        places = {"podman": "in podman's containers", "slurm": "in Slurm's queue"}
        where = places.get(plan.place) or f"on {', '.join(plan.machines)}"
        raise NotFoundError(f"no fleet named {plan.what.name} is {where}")


@command
def keep(display: Display, folder: Annotated[Path, typer.Argument(metavar="FOLDER")]) -> None:
    """Keep the fleet of this folder: what `snapline up` starts in the background."""
    progress = FleetProgress(display.printer())
    try:
        outcome = asyncio.run(_keep(folder, progress))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        progress.end()
    raise typer.Exit(0 if outcome == "stopped" else 1)


async def _keep(folder: Path, progress: FleetProgress) -> str:
    from snapline.deploy.detached_fleet import keep as keep_fleet

    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    ending = await keep_fleet(folder, on_note=progress.note, on_status=progress.status)
    if ending.outcome != "stopped":
        progress.warn(f"the fleet has failed: {ending.reason}")
    return ending.outcome
