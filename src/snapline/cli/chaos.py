"""`snapline chaos …` injects the simulator's faults into real processes (docs/chaos.md).

The processes run on this machine, or at the location that `--on` names. The options for the location are the same as for `snapline up`.
"""

import asyncio
import contextlib
import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import RUNS, Display, FleetArguments, command, parse_arguments
from snapline.cli.output import Document, DocumentTables, document, rows_of
from snapline.cli.settings import UserSettings
from snapline.cli.sim_scenarios import ScenarioChanges
from snapline.cli.up import (
    KEYS,
    Address,
    Certificates,
    Context,
    Cpus,
    Insecure,
    Place,
    SbatchOptions,
    TlsDomain,
    number_of,
    plan_of,
)
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.chaos.capabilities import Where
    from snapline.chaos.run import Checks
    from snapline.cli.output import Printer
    from snapline.deploy.detached_fleet import DetachedPlan
    from snapline.sim.result import Result
    from snapline.sim.scenario import Scenario


OnPlace = Annotated[
    Place | None,
    typer.Option("--on", help="Launcher, as for `up`; never that of a context.", show_default="local"),
]


def place_of(on: Place | None) -> "Where":
    """Return the location that `--on` names. Contexts are ignored, because faults are injected only where a user explicitly requests
    this."""
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
    """Options that describe the location of the processes. These options are the same as for `snapline up`."""

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
        """Return the kind of location at which the processes run."""
        return place_of(self.on)

    def plan(self, folder: Path) -> "DetachedPlan | None":
        """Build the deployment plan from the options, with the settings as defaults. If the processes run on this machine, return None.

        Raises:
            UsageError: If options contradict each other.
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


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.command("run")
@command
def run(
    display: Display,
    where: ChaosPlace,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Scenario as for `sim run`: a TOML file, or a built-in template.",
            show_default="every fault that is possible here, drawn",
        ),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            "--fleet", metavar="MODULE:FLEET", help="Your own agents, under the faults of FILE.", show_default=False
        ),
    ] = None,
    arg: FleetArguments = None,
    invariant: Annotated[
        str | None,
        typer.Option(
            "--invariant",
            metavar="MODULE:FUNCTION",
            help="Function of a snapline.Cut that asserts what must hold in every complete cut.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            min=0.0,
            metavar="N",
            help="Time in minutes for which to run one seed after the other, until a run does not pass.",
            show_default="one run",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the first run.")] = 0,
    folder: Annotated[
        Path,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Folder for the folders of runs that do not pass; with --on a path that all machines share.",
        ),
    ] = RUNS,
) -> None:
    """Run a fleet of real processes under the faults of a scenario, heal all faults, and check the guarantees.

    Stops at the first run that does not pass. Exit codes: 0: pass. 1: the harness or the agents' code failed. 2: a fault of the file
    cannot be injected here. 3: undecided. 6: a guarantee was violated.
    """
    from snapline.chaos.capabilities import drawn
    from snapline.sim.result import EXIT_CODES

    template = _template(file, fleet, arg)
    plan, on = where.plan(folder), where.place
    checks = _checks(invariant)
    printer = display.printer()
    until_s = time.monotonic() + 60 * (minutes or 0)
    results: list[Result] = []
    place = folder
    while not results or (results[-1].verdict == "pass" and time.monotonic() < until_s):
        number = seed + len(results)
        place = _folder_for(folder, template.name, number)
        results.append(_run(drawn(template, number, on), number, place, checks, plan, printer))
    result = _document(results, place)
    printer.result(result, _show)
    raise typer.Exit(EXIT_CODES[results[-1].verdict])


def _template(file: str | None, fleet: str | None, arg: FleetArguments) -> "Scenario":
    """Return the scenario that the command line arguments specify. Raise UsageError if the scenario does not exist or its fleet cannot be
    loaded."""
    from snapline.chaos.capabilities import EVERYTHING

    if fleet is not None:
        return ScenarioChanges(arg=arg, faults=file).template(fleet)
    if file is None:
        parse_arguments(arg)
        return EVERYTHING
    return ScenarioChanges(arg=arg).template(file)


def _checks(invariant: str | None) -> "Checks":
    from snapline.chaos.run import Checks
    from snapline.chaos.workloads import load_invariant

    return Checks(invariant=load_invariant(invariant) if invariant else None)


def _folder_for(base: Path, name: str, seed: int) -> Path:
    from snapline.sim.report.run_folder import folder_for

    return folder_for(base, f"{name}-chaos", seed, datetime.now(UTC))


def _run(
    drawn: "Scenario", seed: int, place: Path, checks: "Checks", plan: "DetachedPlan | None", printer: "Printer"
) -> "Result":
    import shutil

    import msgspec

    printer.progress(f"seed {seed}: {', '.join(fault.kind for fault in drawn.fault) or 'no faults'}")
    began_s = time.monotonic()

    def report(note: str) -> None:
        printer.progress(f"{time.monotonic() - began_s:6.1f} s  {note}")

    result = asyncio.run(_carried_out(drawn, seed, place, checks, plan, report))
    printer.progress(f"seed {seed}: {result.verdict}")
    if result.verdict == "pass":
        shutil.rmtree(place, ignore_errors=True)
    else:
        (place / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


async def _carried_out(
    drawn: "Scenario",
    seed: int,
    place: Path,
    checks: "Checks",
    plan: "DetachedPlan | None",
    on_note: Callable[[str], None],
) -> "Result":
    """Run a fleet and inject faults into it. On SIGTERM, stop cleanly, because remote processes would otherwise keep running."""
    from snapline.chaos.run import run_chaos

    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run_chaos(drawn, seed, folder=place, checks=checks, plan=plan, on_note=on_note)


def _document(results: "list[Result]", place: Path) -> Document:
    import msgspec

    last = results[-1]
    folder = "" if last.verdict == "pass" else str(place)
    fault_counts: dict[str, int] = {}
    for result in results:
        for fault in result.faults:
            fault_counts[fault.kind] = fault_counts.get(fault.kind, 0) + 1
    runs = [{"seed": run.seed, "verdict": run.verdict, "faults": len(run.faults)} for run in results]
    return document("ChaosRuns", runs=runs, faults=fault_counts, last=msgspec.to_builtins(last), folder=folder)


def _show(result: Document, tables: DocumentTables) -> None:
    runs, last = rows_of(result, "runs"), result["last"]
    assert isinstance(last, dict)
    tables.line(
        f"{str(last['verdict']).upper()}  {last['name']}: {len(runs)} run{'s' * (len(runs) != 1)}, the last of seed {last['seed']}"
    )
    faults = result["faults"]
    assert isinstance(faults, dict)
    tables.line("faults: " + (", ".join(f"{count} {word}" for word, count in sorted(faults.items())) or "none"))
    for violation in rows_of(last, "violations"):
        tables.line(f"{violation['guarantee']} {violation['oracle']}: {violation['text']}")
    for missing in last["pending"]:
        tables.line(f"missing: {missing}")
    for line in str(last["error"]).splitlines():
        tables.line(f"error: {line}")
    if result["folder"]:
        tables.line(f"folder {result['folder']}")


@app.command("doctor")
@command
def doctor(display: Display, on: OnPlace = None) -> None:
    """List the faults, whether and how this machine or another launcher can inject them, and leftovers of earlier runs.

    Exit code 3: processes of an earlier run are left.
    """
    import msgspec

    from snapline.chaos.capabilities import list_capabilities
    from snapline.chaos.process_faults import leftovers

    place = place_of(on)
    words, remaining = [msgspec.to_builtins(capability) for capability in list_capabilities(place)], leftovers()
    display.printer().result(document("ChaosDoctor", on=place, words=words, leftovers=remaining), _show_doctor)
    raise typer.Exit(3 if remaining else 0)


def _show_doctor(result: Document, tables: DocumentTables) -> None:
    rows = [
        (row["word"], "no" if row["reason_against"] else "yes", row["reason_against"] or row["means"])
        for row in rows_of(result, "words")
    ]
    tables.table(("WORD", "HERE" if result["on"] == "local" else str(result["on"]).upper(), ""), rows)
    leftovers = result["leftovers"]
    assert isinstance(leftovers, list)
    for leftover in leftovers:
        tables.line(f"left: {leftover}")
