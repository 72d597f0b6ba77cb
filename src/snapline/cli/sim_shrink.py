"""`snapline sim shrink`: makes a failing run smaller, and writes files for a bug report."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Display
from snapline.cli.output import Document, DocumentTables, Printer, document
from snapline.cli.sim_runs import refuse
from snapline.cli.sim_scenarios import (
    RUNS,
    RunOrScenario,
    ScenarioChanges,
    Seed,
    check_fleet,
    commit_of_code,
    run_folder,
)
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.sim.result import Result
    from snapline.sim.scenario import Scenario
    from snapline.sim.search.shrink import ShrinkStep, Shrunk

TIME_LIMIT_S_MAX = 86_400
"""Largest time limit of shrinking; a minute or two is usual."""

STEP_REPORT_S = 2.0
"""Shortest time between two progress lines for the same kind of step."""


@command
def shrink(
    display: Display,
    changes: ScenarioChanges,
    place: RunOrScenario,
    seed: Seed = None,
    time_limit: Annotated[
        str, typer.Option("--time-limit", metavar="DURATION", help="The smallest so far counts then.")
    ] = "60s",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", metavar="DIR", help="Write it there.", show_default="FOLDER/shrunk, or runs/NAME-shrunk/…"
        ),
    ] = None,
) -> None:
    """Make a failing run small, while the same oracle keeps failing.

    Leaves out faults, agents, messages, delays and choices. Writes the smallest run that was found: its scenario, a test for
    pytest that fails while the bug is there, report and picture. Exit code 2 if the run passes.
    """
    printer = display.printer()
    limit_s = _time_limit_s(time_limit)
    shrunk = _shrink(_failing(changes, place, seed), changes, limit_s, printer)
    target = _target(place, shrunk, folder)
    files = _write_shrunk(target, shrunk, changes)
    printer.result(_shrunk_document(shrunk, target, files), _show_shrunk)


def _time_limit_s(text: str) -> float:
    from snapline.sim.scenario import duration_ns

    limit_s = duration_ns(text) / 1e9
    if not 0 < limit_s <= TIME_LIMIT_S_MAX:
        raise UsageError(f"--time-limit is {text!r}: use more than 0s, and at most a day")
    return limit_s


def _failing(changes: ScenarioChanges, word: str, seed: int | None) -> "tuple[Scenario, int, Result]":
    """Return scenario, seed and result of the run to shrink."""
    from snapline.sim.report.folder import read_run
    from snapline.sim.search.swarm import draw

    folder = run_folder(word)
    if folder is None:
        number = seed or 0
        drawn = draw(changes.template(word), number)
        return drawn, number, changes.runner()(drawn, number)
    refuse(changes, seed, folder)
    stored = read_run(folder)
    check_fleet(stored.scenario)
    return stored.scenario, stored.result.seed, stored.result


def _shrink(
    failing: "tuple[Scenario, int, Result]", changes: ScenarioChanges, limit_s: float, printer: Printer
) -> "Shrunk":
    from snapline.sim.search.shrink import shrink as minimise
    from snapline.sim.search.shrink import size_text

    last = ("", 0.0)

    def tell(step: "ShrinkStep") -> None:
        nonlocal last
        now_s = time.monotonic()
        if step.text != last[0] or now_s - last[1] >= STEP_REPORT_S:
            last = (step.text, now_s)
            printer.progress(f"run {step.tries:>5}  {step.text:<32} {size_text(step.size)}")

    return minimise(*failing, runner=changes.runner(), time_limit_s=limit_s, on_progress=tell)


def _target(word: str, found: "Shrunk", folder: Path | None) -> Path:
    from snapline.sim.report.folder import folder_for

    above = run_folder(word)
    if folder is not None:
        return folder
    if above is not None:
        return above / "shrunk"
    return folder_for(RUNS, f"{found.scenario.name}-shrunk", found.seed, datetime.now(UTC))


def _write_shrunk(target: Path, found: "Shrunk", changes: ScenarioChanges) -> list[str]:
    """Write the folder of the smallest run, and files for the developer; return their names."""
    from snapline.sim.choices import RecordedChoices
    from snapline.sim.report.folder import write_run
    from snapline.sim.run import run as simulate
    from snapline.sim.search.shrink import render
    from snapline.sim.world.recording import Recording

    recording, choices = Recording(), RecordedChoices(found.record)
    result = simulate(found.scenario, found.seed, choices, recording=recording, mutant=changes.mutant, window_at=0)
    write_run(target, found.scenario, result, recording, choices=found.record, commit=commit_of_code())
    keywords = {"mutant": changes.mutant} if changes.mutant else None
    files = render(found, keywords=keywords, journal=result.journal)
    for name, content in files.items():
        try:
            (target / name).write_text(content, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{target / name} cannot be written: {error.strerror or error}") from error
    return list(files)


def _shrunk_document(found: "Shrunk", target: Path, files: list[str]) -> Document:
    import msgspec

    from snapline.sim.search.shrink import evidence

    return document(
        "SimulationShrunk",
        name=found.scenario.name,
        seed=found.seed,
        signature=found.signature,
        evidence=evidence(found),
        before=msgspec.to_builtins(found.before),
        after=msgspec.to_builtins(found.size),
        tries=found.tries,
        elapsed_s=round(found.seconds, 3),
        folder=str(target),
        files=[str(target / name) for name in files],
    )


def _show_shrunk(result: Document, tables: DocumentTables) -> None:
    def size(name: str) -> str:
        found = result[name]
        assert isinstance(found, dict)
        return ", ".join(f"{count} {what}" for what, count in found.items())

    evidence, files = result["evidence"], result["files"]
    assert isinstance(evidence, list) and isinstance(files, list)
    tables.fields(
        [
            ("still fails", result["signature"]),
            ("before", size("before")),
            ("after", size("after")),
            ("runs", f"{result['tries']} in {result['elapsed_s']} s"),
            *(("evidence" if index == 0 else "", line) for index, line in enumerate(evidence)),
            *(("wrote" if index == 0 else "", name) for index, name in enumerate(files)),
            ("look", f"{result['folder']}/report.html"),
        ]
    )
