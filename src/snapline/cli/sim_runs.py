"""`snapline sim run`, `replay`, `report` and `shrink` handle single runs and their folders.

`shrink` searches for a smaller run that fails in the same way, and writes files for a bug report.
"""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.command import RUNS, Display, command
from snapline.cli.output import Document, DocumentTables, Printer, document
from snapline.cli.sim_scenarios import (
    RunOrScenario,
    ScenarioArgument,
    ScenarioChanges,
    Seed,
    check_fleet,
    commit_of_code,
    require_run_folder,
    run_folder,
)
from snapline.errors import UsageError
from snapline.security.printable import printable

if TYPE_CHECKING:
    from snapline.sim.result import Result
    from snapline.sim.scenario import Scenario
    from snapline.sim.search.shrink import ShrinkStep, Shrunk


Folder = Annotated[
    Path, typer.Option("--folder", metavar="DIR", help="Folder for the folders of runs, as DIR/NAME/TIME-SEED.")
]

NOT_THE_SAME = "the agents' code has changed, or the run cannot be repeated: --check tells"


@command
def run(
    display: Display,
    changes: ScenarioChanges,
    scenario: ScenarioArgument,
    seed: Seed = None,
    folder: Folder = RUNS,
    no_folder: Annotated[bool, typer.Option("--no-folder", help="Write no folder; only show the result.")] = False,
    print_only: Annotated[
        bool,
        typer.Option("--print", help="Print the scenario as TOML, and run nothing; with --seed as drawn."),
    ] = False,
) -> None:
    """Simulate one seed of a scenario in virtual time, and check the guarantees.

    Writes a folder with the report (report.html), the picture, the trace, and all that is needed to repeat the run. Exit codes: 0:
    pass. 1: the harness or the agents' code failed. 3: undecided. 6: a guarantee was violated.
    """
    from snapline.sim.scenario import format_scenario
    from snapline.sim.search.swarm import draw

    template = changes.template(scenario)
    if print_only:
        print(printable(format_scenario(template if seed is None else draw(template, seed))), end="")
        return
    number = seed or 0
    drawn = draw(template, number)
    result, place = _run(drawn, number, None if no_folder else folder)
    again = changes.repeat(scenario, number)
    result_fields = result_document(result, drawn, folder=None if place is None else str(place), repeat=again)
    display.printer().result(result_fields, lambda _, tables: _show_run(result, drawn, place, again, tables))
    raise typer.Exit(_exit_code(result))


def _run(drawn: "Scenario", seed: int, base: Path | None) -> "tuple[Result, Path | None]":
    """Run the scenario. If `base` is not None, write the run's folder below `base`. Return the result and the folder's path."""
    from snapline.sim.choices import RandomChoices
    from snapline.sim.report.run_folder import folder_for, write_run
    from snapline.sim.run import run as simulate
    from snapline.sim.world.recording import Recording

    recording, choices = Recording(), RandomChoices(seed, is_recording=True)
    result = simulate(drawn, seed, choices, recording=recording)
    if base is None:
        return result, None
    place = folder_for(base, drawn.name, seed, datetime.now(UTC))
    write_run(place, drawn, result, recording, choices=choices.record, commit=commit_of_code())
    return result, place


def result_document(result: "Result", scenario: "Scenario", **more: object) -> dict[str, Any]:
    """Return the document of a result. The document contains the fields of result.json and the fields in `more`."""
    import json

    from snapline.sim.report.run_folder import Provenance, result_json

    fields: dict[str, Any] = json.loads(result_json(result, Provenance(scenario.schema, commit_of_code())))
    return {**fields, **more}


def _exit_code(result: "Result") -> int:
    from snapline.sim.result import EXIT_CODES

    return EXIT_CODES[result.verdict]


def _show_run(result: "Result", scenario: "Scenario", place: Path | None, again: str, tables: DocumentTables) -> None:
    from snapline.sim.report.run_folder import REPORT
    from snapline.sim.report.test_report import brief_summary, summarise

    report = "" if place is None else f"report {place / REPORT}"
    if result.verdict == "pass":
        tables.line(brief_summary(result, scenario).rstrip("\n"))
        tables.line(f"again    {again}{'; ' if report else ''}{report}")
        return
    tables.line(summarise(result).rstrip("\n"))
    if report:
        tables.line(report)
    tables.line(f"again  {again}")
    if place is not None:
        tables.line(f"next   snapline sim shrink {place}")


# -- replay -------------------------------------------------------------------------------------------------------------


@command
def replay(
    display: Display,
    changes: ScenarioChanges,
    place: RunOrScenario,
    seed: Seed = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Run it twice, once in a new interpreter, and show the first entry that differs."),
    ] = False,
) -> None:
    """Repeat a recorded run with its choices, and compare the results.

    For a SCENARIO, one seed runs twice, as with --check. Exit codes: those of `sim run`; 1: two runs differ.
    """
    from snapline.sim.report.test_report import summarise

    folder = run_folder(place)
    if folder is None:
        result, fields = _checked(changes, place, seed)
    else:
        result, fields = _replayed(changes, folder, seed, is_checked=check)
    replay_document = document("SimulationReplay", **fields)
    display.printer().result(replay_document, lambda shown, tables: _show_replay(summarise(result), shown, tables))
    raise typer.Exit(1 if fields["divergence"] is not None else _exit_code(result))


def _checked(changes: ScenarioChanges, word: str, seed: int | None) -> "tuple[Result, dict[str, object]]":
    from snapline.sim.run import run as simulate
    from snapline.sim.search.swarm import draw

    number = seed or 0
    drawn = draw(changes.template(word), number)
    result = simulate(drawn, number)
    return result, {**_replay_fields(result), "is_checked": True, "divergence": _divergence(drawn, number)}


def _replayed(
    changes: ScenarioChanges, folder: Path, seed: int | None, *, is_checked: bool
) -> "tuple[Result, dict[str, object]]":
    from snapline.sim.search.replay import read_repro
    from snapline.sim.search.replay import replay as replay_folder

    refuse(changes, seed, folder)
    scenario, number, _ = read_repro(folder)
    check_fleet(scenario)
    replayed = replay_folder(folder, commit=commit_of_code())
    return replayed.result, {
        "folder": str(folder),
        **_replay_fields(replayed.result),
        "recorded_hash": replayed.expected_hash,
        "is_same": replayed.is_same,
        "warnings": replayed.warnings,
        "is_checked": is_checked,
        "divergence": _divergence(scenario, number) if is_checked else None,
    }


def refuse(changes: ScenarioChanges, seed: int | None, folder: Path) -> None:
    """Reject options that would change the recorded run in `folder`.

    Raises:
        UsageError: If any such option was given.
    """
    changes.refuse(folder)
    if seed is not None:
        raise UsageError(f"--seed cannot change {folder}, which is of a run: leave it out, or name a scenario")


def _divergence(scenario: "Scenario", seed: int) -> dict[str, Any] | None:
    import msgspec

    from snapline.sim.search.replay import check_determinism

    divergence = check_determinism(scenario, seed)
    return None if divergence is None else {**msgspec.to_builtins(divergence), "text": divergence.text}


def _replay_fields(result: "Result") -> dict[str, object]:
    return {
        "name": result.name,
        "seed": result.seed,
        "verdict": result.verdict,
        "violations": [violation.text for violation in result.violations],
        "trace_hash": result.trace_hash,
    }


def _show_replay(summary: str, fields: Document, tables: DocumentTables) -> None:
    tables.line(summary.rstrip("\n"))
    warnings, divergence = fields.get("warnings"), fields["divergence"]
    if fields.get("is_same"):
        tables.line("the same as recorded")
    elif "is_same" in fields:
        tables.line(f"not the same as recorded: that was trace {fields['recorded_hash']}")
        why = warnings if isinstance(warnings, list) and warnings else [NOT_THE_SAME]
        tables.line(f"  {'; '.join(why)}")
    if isinstance(divergence, dict):
        tables.line(str(divergence["text"]))
    elif fields["is_checked"]:
        tables.line("run once more, in a new interpreter with another hash seed: the same trace")


# -- report -------------------------------------------------------------------------------------------------------------


@command
def report(
    display: Display,
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder of a run, or the folder DIR/NAME for its latest run.")
    ],
    shiviz: Annotated[Path | None, typer.Option("--shiviz", metavar="FILE", help="File for a log for ShiViz.")] = None,
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", metavar="FILE", help="File for a trace for Perfetto (JSON).")
    ] = None,
) -> None:
    """Write the report and picture of a run again, and show its result.

    Use it if the report was lost, or an older version of snapline made it. Nothing runs. Exit code: 0, whatever the run's was.
    """
    from snapline.sim.report.run_folder import read_run, rebuild
    from snapline.sim.report.test_report import summarise

    place = require_run_folder(folder)
    stored = read_run(place)
    written = [rebuild(place)]
    for path, export in ((shiviz, "to_shiviz"), (perfetto, "to_perfetto")):
        if path is not None:
            written.append(_export(place, stored.recording, path, export))
    result_fields = result_document(stored.result, stored.scenario, files=[str(path) for path in written])

    def show(_: Document, tables: DocumentTables) -> None:
        tables.line(summarise(stored.result).rstrip("\n"))
        for path in written:
            tables.line(f"wrote {path}")

    display.printer().result(result_fields, show)


def _export(place: Path, recording: object, path: Path, export: str) -> Path:
    from snapline.sim.report import exports
    from snapline.sim.world.recording import Recording

    if not isinstance(recording, Recording):
        raise UsageError(f"{place} holds no trace: `snapline sim run` writes one")
    content = exports.to_shiviz(recording) if export == "to_shiviz" else exports.to_perfetto(recording)
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


TIME_LIMIT_S_MAX = 86_400
"""Largest time limit for shrinking, in seconds. A minute or two is usual."""

STEP_REPORT_S = 2.0
"""Shortest time in seconds between two progress lines for the same kind of step."""


@command
def shrink(
    display: Display,
    changes: ScenarioChanges,
    place: RunOrScenario,
    seed: Seed = None,
    time_limit: Annotated[
        str,
        typer.Option(
            "--time-limit",
            metavar="DURATION",
            help="Time limit (250us, 1ms, 1.5s, 3m), after which the smallest run so far is the result.",
        ),
    ] = "60s",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Folder for the small run.",
            show_default="FOLDER/shrunk, or runs/NAME-shrunk/…",
        ),
    ] = None,
) -> None:
    """Reduce a failing run to a small one in which the same oracle fails.

    Omits faults, agents, messages, delays and choices. Writes the smallest failing run: scenario, report, picture, and a pytest test
    that fails as long as the bug exists. Exit code 2: the run passes.
    """
    printer = display.printer()
    limit_s = _time_limit_s(time_limit)
    shrunk = _shrink(_failing(changes, place, seed), limit_s, printer)
    target = _target(place, shrunk, folder)
    files = _write_shrunk(target, shrunk)
    printer.result(_shrunk_document(shrunk, target, files), _show_shrunk)


def _time_limit_s(text: str) -> float:
    from snapline.sim.scenario import duration_ns

    limit_s = duration_ns(text) / 1e9
    if not 0 < limit_s <= TIME_LIMIT_S_MAX:
        raise UsageError(f"--time-limit is {text!r}: use more than 0s, and at most a day")
    return limit_s


def _failing(changes: ScenarioChanges, word: str, seed: int | None) -> "tuple[Scenario, int, Result]":
    """Return the run to shrink, as its scenario, seed and result."""
    from snapline.sim.report.run_folder import read_run
    from snapline.sim.run import run as simulate
    from snapline.sim.search.swarm import draw

    folder = run_folder(word)
    if folder is None:
        number = seed or 0
        drawn = draw(changes.template(word), number)
        return drawn, number, simulate(drawn, number)
    refuse(changes, seed, folder)
    stored = read_run(folder)
    check_fleet(stored.scenario)
    return stored.scenario, stored.result.seed, stored.result


def _shrink(failing: "tuple[Scenario, int, Result]", limit_s: float, printer: Printer) -> "Shrunk":
    from snapline.sim.search.shrink import shrink as minimise
    from snapline.sim.search.shrink import size_text

    last = ("", 0.0)

    def tell(step: "ShrinkStep") -> None:
        nonlocal last
        now_s = time.monotonic()
        if step.text != last[0] or now_s - last[1] >= STEP_REPORT_S:
            last = (step.text, now_s)
            printer.progress(f"run {step.tries:>5}  {step.text:<32} {size_text(step.size)}")

    return minimise(*failing, time_limit_s=limit_s, on_progress=tell)


def _target(word: str, found: "Shrunk", folder: Path | None) -> Path:
    from snapline.sim.report.run_folder import folder_for

    above = run_folder(word)
    if folder is not None:
        return folder
    if above is not None:
        return above / "shrunk"
    return folder_for(RUNS, f"{found.scenario.name}-shrunk", found.seed, datetime.now(UTC))


def _write_shrunk(target: Path, found: "Shrunk") -> list[str]:
    """Write the folder of the smallest failing run that was found, including the files for a bug report. Return the names of the files."""
    from snapline.sim.choices import RecordedChoices
    from snapline.sim.report.run_folder import write_run
    from snapline.sim.run import run as simulate
    from snapline.sim.search.shrink import render
    from snapline.sim.world.recording import Recording

    recording, choices = Recording(), RecordedChoices(found.record)
    result = simulate(found.scenario, found.seed, choices, recording=recording, window_at=0)
    write_run(target, found.scenario, result, recording, choices=found.record, commit=commit_of_code())
    files = render(found, journal=result.journal)
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
