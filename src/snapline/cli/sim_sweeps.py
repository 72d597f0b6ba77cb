"""`snapline sim sweep` and `coverage`: many runs, and their summary."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.command import INTERRUPTED, command
from snapline.cli.options import Display
from snapline.cli.output import Document, Printer, document, readable
from snapline.cli.progress import RunProgress
from snapline.cli.sim_scenarios import (
    RunOrScenario,
    ScenarioArgument,
    ScenarioChanges,
    Seeds,
    check_fleet,
    parse_seeds,
    run_folder,
)
from snapline.cli.sim_sweep_tables import show_all, show_summary
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.sim.result import Result
    from snapline.sim.scenario import Scenario
    from snapline.sim.search.sweep import SweepSummary
    from snapline.sim.search.worker import Runner

UNDECIDED = 3

Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", min=0, metavar="N", help="Processes; 0 runs all in this one.", show_default="one per processor"
    ),
]


class SweepPlace(StrEnum):
    """Values of `--on`."""

    HERE = "here"
    RAY = "ray"


def processors() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


@command
def sweep(
    display: Display,
    changes: ScenarioChanges,
    scenario: ScenarioArgument,
    seeds: Seeds = "0:100",
    jobs: Jobs = None,
    on: Annotated[
        SweepPlace, typer.Option("--on", help="On processes of this machine, or on a Ray cluster.")
    ] = SweepPlace.HERE,
    address: Annotated[
        str, typer.Option("--address", metavar="ADDRESS", help="Of the Ray cluster; auto finds the one of here.")
    ] = "auto",
    stop_after: Annotated[
        int | None,
        typer.Option(
            "--stop-after", min=1, metavar="N", help="Stop after N runs that fail.", show_default="all seeds are run"
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the metrics of every run there.")
    ] = None,
    require_probes: Annotated[
        bool, typer.Option("--require-probes", help="Exit with 3 if a probe was never hit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="In a table: every metric, fault and probe, not a screen of them.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Write the summary there too, as DIR/NAME/TIME-sweep.json; `ui serve --reports DIR` shows it.",
        ),
    ] = None,
) -> None:
    """Run many seeds of a scenario, on all processors, and sum up.

    Says which oracles failed and with which seeds, and which situations no run ever met. One seed in twenty is run twice, in
    another interpreter, and must give the same trace. Exit code: 6 if a guarantee was violated, else 1 if a run was broken
    or not repeatable, else 3 if one was undecided, else 0.
    """
    printer = display.printer()
    template = changes.template(scenario)
    numbers = parse_seeds(seeds)
    _check_place(on, jobs)
    check_writable(csv)
    file = None if folder is None else _summary_file(folder, template)
    summary = _sweep(
        template, numbers, changes.runner(), printer, jobs=jobs, on=on, address=address, stop_after=stop_after, csv=csv
    )
    repeats = {
        seed: changes.repeat(scenario, seed) for sweep_document in summary.findings for seed in sweep_document.seeds[:1]
    }
    sweep_document = _sweep_document(summary, repeats)
    if file is not None:
        file.write_text(json.dumps(readable(sweep_document), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        printer.progress(f"wrote {file}")
    printer.result(sweep_document, show_all if verbose else show_summary)
    raise typer.Exit(_sweep_code(summary, numbers, stop_after, is_strict=require_probes))


def _summary_file(folder: Path, template: "Scenario") -> Path:
    """Return the path of the summary; create its folder before the work."""
    from snapline.sim.report.folder import sweep_file

    return sweep_file(folder, template.name, datetime.now(UTC))


def _check_place(on: SweepPlace, jobs: int | None) -> None:
    if on is SweepPlace.RAY and jobs is not None:
        raise UsageError("--jobs is for processes of this machine: on a Ray cluster all of its processors are used")


def check_writable(path: Path | None) -> None:
    """Check, before hours of work, that a file can be written.

    Raises:
        UsageError: its folder does not exist.
    """
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")


def _sweep(
    template: "Scenario",
    seeds: Sequence[int],
    runner: "Runner",
    printer: Printer,
    *,
    jobs: int | None,
    on: SweepPlace = SweepPlace.HERE,
    address: str = "auto",
    stop_after: int | None = None,
    csv: Path | None = None,
    is_determinism_checked: bool = True,
) -> "SweepSummary":
    from snapline.sim.search.ray_sweep import sweep_on_ray
    from snapline.sim.search.sweep import sweep as sweep_here

    progress = RunProgress(printer, len(seeds))

    def tell(result: "Result") -> None:
        progress.ended(result.verdict)
        if progress.done == len(seeds) and is_determinism_checked:
            progress.end()
            printer.progress("running one seed in twenty again, in another interpreter")

    shared: dict[str, Any] = {
        "runner": runner,
        "on_result": tell,
        "stop_after": stop_after,
        "is_determinism_checked": is_determinism_checked,
        "catalogue": expected_probes(),
        "metrics_csv": csv,
    }
    try:
        if on is SweepPlace.RAY:
            return sweep_on_ray(template, seeds, address=address, **shared)
        return sweep_here(template, seeds, jobs=processors() if jobs is None else jobs, **shared)
    finally:
        progress.end()


def expected_probes() -> list[str]:
    """Return the names of the probes that a sweep should hit."""
    from snapline.sim.oracles.probes import Probes

    return Probes().never_hit()


def _sweep_code(summary: "SweepSummary", seeds: Sequence[int], stop_after: int | None, *, is_strict: bool) -> int:
    failures = summary.verdicts["violation"] + summary.verdicts["broken"]
    if summary.exit_code not in (0, UNDECIDED):
        return summary.exit_code
    if summary.is_stopped and summary.runs < len(seeds) and (stop_after is None or failures < stop_after):
        return INTERRUPTED
    return UNDECIDED if is_strict and summary.never_hit else summary.exit_code


def finite(value: Any) -> Any:  # Any: any value of a document
    """Replace infinities and NaN, which JSON lacks, by None."""
    match value:
        case float():
            return value if value - value == 0 else None
        case dict():
            return {name: finite(item) for name, item in value.items()}
        case list():
            return [finite(item) for item in value]
    return value


def _sweep_document(summary: "SweepSummary", repeats: dict[int, str]) -> Document:
    import msgspec

    fields = finite(msgspec.to_builtins(summary))
    for finding in fields["findings"]:
        finding["repeat"] = repeats[finding["seeds"][0]]
    for row, divergence in zip(fields["divergences"], summary.divergences, strict=True):
        row["words"] = divergence.text
    return document("SimulationSweep", verdict=summary.verdict, seeds_per_s=round(summary.seeds_per_s, 1), **fields)


# -- coverage -----------------------------------------------------------------------------------------------------------


@command
def coverage(
    display: Display,
    changes: ScenarioChanges,
    place: RunOrScenario,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="A:B", help="Of a SCENARIO.", show_default="0:100")
    ] = None,
    jobs: Jobs = None,
    require_probes: Annotated[
        bool, typer.Option("--require-probes", help="Exit with 3 if a probe was never hit.")
    ] = False,
) -> None:
    """Say which situations and which points of the code runs have met, and which never.

    Of a FOLDER its one run is made again. Exit code: 0, however the runs ended; `sim sweep` judges them.
    """
    from snapline.cli.sim_coverage import coverage_document, show_coverage

    printer = display.printer()
    runs, hits = _covered(changes, place, seeds, jobs, printer)
    result = coverage_document(place, runs, hits, expected_probes())
    printer.result(result, show_coverage)
    raise typer.Exit(UNDECIDED if require_probes and result["probes_never_hit"] else 0)


def _covered(
    changes: ScenarioChanges, word: str, seeds: str | None, jobs: int | None, printer: Printer
) -> tuple[dict[str, int], dict[str, int]]:
    """Return verdicts and probe hits."""
    from functools import partial

    from snapline.cli.sim_coverage import run_watched
    from snapline.sim.choices import RecordedChoices
    from snapline.sim.search.replay import read_repro

    folder = run_folder(word)
    changes.runner()  # raises UsageError for an unknown mutant
    runner: Runner = partial(run_watched, mutant=changes.mutant)
    if folder is None:
        template = changes.template(word)
        numbers = parse_seeds(seeds or "0:100")
        summary = _sweep(template, numbers, runner, printer, jobs=jobs, is_determinism_checked=False)
        return summary.verdicts, summary.probes
    changes.refuse(folder)
    if seeds is not None:
        raise UsageError(f"--seeds cannot change {folder}, which is of a run: leave it out, or name a scenario")
    scenario, seed, record = read_repro(folder)
    check_fleet(scenario)
    result = runner(scenario, seed, choices=None if record is None else RecordedChoices(record))
    return {result.verdict: 1}, result.probes
