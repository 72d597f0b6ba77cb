"""`snapline sim sweep` and `coverage` perform many runs, summarize them, and show the probes and failpoints that the runs pass.

A run counts probes itself, but it notices a failpoint (`failpoints.py`) only if a fault is armed at the failpoint. So `coverage` wraps each
run's failpoint hook in a hook that counts the passes. These counts are returned together with the counts of probes, under a prefix that no
probe uses.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline import failpoints
from snapline.cli.command import INTERRUPTED, Display, command
from snapline.cli.output import Document, DocumentTables, Printer, count, document, readable, rows_of
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
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.sim.choices import Choices
    from snapline.sim.result import Result
    from snapline.sim.scenario import Scenario
    from snapline.sim.search.sweep import SweepSummary
    from snapline.sim.search.worker import Runner


TEXT_SHOWN_MAX, SINGLE_TEXT_MAX = 300, 600
"""Largest number of characters shown of each finding's text, and of the text of a single finding. `-o json` shows the complete text."""

FINDINGS_MAX = 2
"""Largest number of findings shown. Each finding takes up to eight lines, and all must fit on a screen of 25 lines."""

WIDTH = 78
FIELD = 10
"""Widths in characters of a line in the short form and of the line's heading."""

ROUNDED = 100
"""Value from which means are shown as whole numbers."""

METRICS_SHOWN = {
    "turns": "turns",
    "recoveries": "recoveries",
    "epochs_complete": "epochs",
    "rollback_turns": "turns undone",
}
"""Label of each metric in the short form."""


def show_summary(result: Document, tables: DocumentTables) -> None:
    """Print the verdicts, the first findings, and which situations occurred and which never occurred, on one screen."""
    tables.line(_verdicts_line(result))
    findings, divergences = rows_of(result, "findings"), rows_of(result, "divergences")
    for finding in findings[:FINDINGS_MAX]:
        tables.line()
        _show_finding(finding, tables, SINGLE_TEXT_MAX if len(findings) == 1 else TEXT_SHOWN_MAX)
    if len(findings) > FINDINGS_MAX:
        tables.line(f"… {count(len(findings) - FINDINGS_MAX, 'more kind')} of findings: --verbose")
    tables.line()
    _field(tables, "passed", _means(result))
    _field(tables, "met", _drawn_faults(result))
    _field(tables, "never met", _never_hit_counts(result))
    checked = result["checked"]
    assert isinstance(checked, int)
    twice = (
        f"{len(divergences)} of {count(checked, 'run')} differ"
        if divergences
        else f"{count(checked, 'run')}, all the same"
    )
    _field(tables, "twice", twice if checked else "no run")
    for divergence in divergences[:1]:
        tables.line(_cut(" ".join(str(divergence["words"]).split()), TEXT_SHOWN_MAX))


def _field(tables: DocumentTables, name: str, words: str) -> None:
    if words:
        tables.line(f"{name:<{FIELD}}{_cut(words, WIDTH - FIELD)}")


def _cut(words: str, characters_max: int) -> str:
    return words if len(words) <= characters_max else f"{words[: characters_max - 1]}…"


def _means(result: Document) -> str:
    """Format the mean values of the metrics over the runs that passed."""
    metrics = result["metrics"]
    if not isinstance(metrics, dict) or not metrics:
        return ""
    means = {word: metrics[name]["mean"] for name, word in METRICS_SHOWN.items() if name in metrics}
    return f"mean {', '.join(f'{mean:,.{int(mean < ROUNDED)}f} {word}' for word, mean in means.items())}"


def _drawn_faults(result: Document) -> str:
    """List the faults that were drawn, most frequent first."""
    drawn = result["drawn"]
    faults = drawn.get("faults", {}) if isinstance(drawn, dict) else {}
    drawn_faults = sorted(((runs, name) for name, runs in faults.items() if runs), key=lambda pair: (-pair[0], pair[1]))
    return ", ".join(f"{name} {runs}" for runs, name in drawn_faults)


def _never_hit_counts(result: Document) -> str:
    never, probes, drawn = result["never_hit"], result["probes"], result["drawn"]
    assert isinstance(never, list) and isinstance(probes, dict) and isinstance(drawn, dict)
    hit = sum(1 for hits in probes.values() if hits)
    parts = [f"{len(never)}/{len(never) + hit} situations"] if never else []
    for group in ("faults", "failpoints"):
        counts = drawn.get(group, {})
        missing = sum(1 for runs in counts.values() if not runs)
        parts += [f"{missing}/{len(counts)} {group}"] if missing else []
    return f"{', '.join(parts)} (--verbose)" if parts else ""


def show_all(result: Document, tables: DocumentTables) -> None:
    """Print all parts of the document about a sweep."""
    tables.line(_verdicts_line(result))
    for finding in rows_of(result, "findings"):
        tables.line()
        _show_finding(finding, tables, SINGLE_TEXT_MAX)
    _show_metrics(result, tables)
    _show_drawn(result, tables)
    _show_checks(result, tables)


def _verdicts_line(result: Document) -> str:
    verdicts, runs, elapsed_s = result["verdicts"], result["runs"], result["elapsed_s"]
    assert isinstance(verdicts, dict) and isinstance(runs, int) and isinstance(elapsed_s, float)
    counts = ", ".join(f"{number:,} {verdict}" for verdict, number in verdicts.items() if number)
    stopped = ", stopped" if result["is_stopped"] else ""
    pace = f"{elapsed_s:.1f} s, {result['seeds_per_s']} runs/s"
    return f"{result['name']}: {count(runs, 'run')}{stopped}: {counts or 'none'} ({pace})"


def _show_finding(finding: Any, tables: DocumentTables, characters_max: int) -> None:  # Any: a row of the document
    guarantee = f" ({finding['guarantee']})" if finding["guarantee"] else ""
    seeds = ", ".join(map(str, finding["seeds"])) + (" …" if finding["count"] > len(finding["seeds"]) else "")
    tables.line(
        f"{finding['verdict']}: {finding['oracle']}{guarantee}, {count(finding['count'], 'run')}: seeds {seeds}"
    )
    text = " ".join(finding["text"].split())
    tables.line(f"    {_cut(text, characters_max)}")
    tables.line(f"    {finding['repeat']}")


def _show_metrics(result: Document, tables: DocumentTables) -> None:
    metrics = result["metrics"]
    if not isinstance(metrics, dict) or not metrics:
        return
    tables.line()
    tables.line("of the runs that passed:")
    rows = [
        [name, *(_number(of[key]) for key in ("mean", "low", "high", "p50", "p95", "max"))]
        for name, of in metrics.items()
        if of["max"] or of["mean"]
    ]
    tables.table(("METRIC", "MEAN", "95 % FROM", "TO", "MEDIAN", "P95", "MAX"), rows)


def _show_drawn(result: Document, tables: DocumentTables) -> None:
    """Print how many runs had each fault or setting, grouped by category."""
    drawn = result["drawn"]
    if not isinstance(drawn, dict) or not drawn:
        return
    tables.line()
    tables.line("what the runs were given (so many of them):")
    for group, counts in drawn.items():
        given = ", ".join(f"{name} {runs}" for name, runs in counts.items() if runs)
        tables.line(f"  {group}: {given or 'nothing'}")
    never = result["never_drawn"]
    assert isinstance(never, dict)
    parts = [f"{group}: {', '.join(names)}" for group, names in never.items()]
    tables.line(f"never given: {'; '.join(parts) or 'nothing'}")


def _number(value: object) -> str:
    return "?" if not isinstance(value, int | float) else f"{value:,.6g}"


def _show_checks(result: Document, tables: DocumentTables) -> None:
    tables.line()
    never = result["never_hit"]
    assert isinstance(never, list)
    tables.line(f"probes never hit: {', '.join(never) if never else 'none'}")
    divergences = rows_of(result, "divergences")
    checked = result["checked"]
    assert isinstance(checked, int)
    outcome = f"{len(divergences)} differ" if divergences else "all the same"
    tables.line(f"{count(checked, 'run')} made twice: {outcome}" if checked else "no run was made twice")
    for divergence in divergences:
        tables.line(str(divergence["words"]))


UNDECIDED = 3

Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=0,
        metavar="N",
        help="Number of processes; 0 runs all in this one.",
        show_default="one per processor",
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
        SweepPlace, typer.Option("--on", help="Run on processes of this machine, or on a Ray cluster.")
    ] = SweepPlace.HERE,
    address: Annotated[
        str,
        typer.Option(
            "--address", metavar="ADDRESS", help="Address of the Ray cluster; auto finds the one of this machine."
        ),
    ] = "auto",
    stop_after: Annotated[
        int | None,
        typer.Option(
            "--stop-after",
            min=1,
            metavar="N",
            help="Number of failing runs after which to stop.",
            show_default="all seeds are run",
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="File for the metrics of every run.")
    ] = None,
    require_probes: Annotated[
        bool, typer.Option("--require-probes", help="End with exit code 3 if a probe was never hit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show every metric, fault and probe in tables, instead of one screen.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Folder for the summary, as DIR/NAME/TIME-sweep.json; `ui serve --reports DIR` shows it.",
        ),
    ] = None,
) -> None:
    """Simulate many seeds of a scenario, on all processors, and summarise the results.

    Shows which oracles failed and with which seeds, and which situations no run met. One seed in twenty runs twice, in another
    interpreter, and must give the same trace. Exit codes: 0: all passed. 6: a guarantee was violated; else 1: a run failed or was not
    repeatable; else 3: a run was undecided.
    """
    printer = display.printer()
    template = changes.template(scenario)
    numbers = parse_seeds(seeds)
    _check_place(on, jobs)
    check_writable(csv)
    file = None if folder is None else _summary_file(folder, template)
    summary = _sweep(template, numbers, printer, jobs=jobs, on=on, address=address, stop_after=stop_after, csv=csv)
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
    """Create the folder for the summary before the runs begin, and return the path of the summary."""
    from snapline.sim.report.run_folder import sweep_file

    return sweep_file(folder, template.name, datetime.now(UTC))


def _check_place(on: SweepPlace, jobs: int | None) -> None:
    if on is SweepPlace.RAY and jobs is not None:
        raise UsageError("--jobs is for processes of this machine: on a Ray cluster all of its processors are used")


def check_writable(path: Path | None) -> None:
    """Check that a file can be written, before hours of work are spent.

    Raises:
        UsageError: If the folder of the file does not exist.
    """
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")


def _sweep(
    template: "Scenario",
    seeds: Sequence[int],
    printer: Printer,
    *,
    runner: "Runner | None" = None,
    jobs: int | None,
    on: SweepPlace = SweepPlace.HERE,
    address: str = "auto",
    stop_after: int | None = None,
    csv: Path | None = None,
    is_determinism_checked: bool = True,
) -> "SweepSummary":
    from snapline.sim.search.ray_sweep import sweep_on_ray
    from snapline.sim.search.sweep import is_checked
    from snapline.sim.search.sweep import sweep as sweep_here

    progress = RunProgress(printer, len(seeds))

    def tell(result: "Result") -> None:
        progress.ended(result.verdict)
        if progress.done == len(seeds) and is_determinism_checked and any(map(is_checked, seeds)):
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
    """Return the names of the probes that a sweep is expected to hit."""
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
    """Replace infinities and NaN at any depth with None, because JSON cannot represent them."""
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
        str | None,
        typer.Option(
            "--seeds",
            metavar="A:B",
            help="Seeds of a SCENARIO: from A up to, but not including, B; or A,B,C.",
            show_default="0:100",
        ),
    ] = None,
    jobs: Jobs = None,
    require_probes: Annotated[
        bool, typer.Option("--require-probes", help="End with exit code 3 if a probe was never hit.")
    ] = False,
) -> None:
    """Show which situations and points of the code the runs reached, and which they never reached.

    For a FOLDER, its run is repeated. Exit code: 0, however the runs ended; `sim sweep` checks them.
    """

    printer = display.printer()
    runs, hits = _covered(changes, place, seeds, jobs, printer)
    result = coverage_document(place, runs, hits, expected_probes())
    printer.result(result, show_coverage)
    raise typer.Exit(UNDECIDED if require_probes and result["probes_never_hit"] else 0)


def _covered(
    changes: ScenarioChanges, word: str, seeds: str | None, jobs: int | None, printer: Printer
) -> tuple[dict[str, int], dict[str, int]]:
    """Run the scenario with each seed, or replay a recorded run. Return the number of runs by verdict, and the number of hits by probe."""
    from snapline.sim.choices import RecordedChoices
    from snapline.sim.search.replay import read_repro

    folder = run_folder(word)
    if folder is None:
        template = changes.template(word)
        numbers = parse_seeds(seeds or "0:100")
        summary = _sweep(template, numbers, printer, runner=run_watched, jobs=jobs, is_determinism_checked=False)
        return summary.verdicts, summary.probes
    changes.refuse(folder)
    if seeds is not None:
        raise UsageError(f"--seeds cannot change {folder}, which is of a run: leave it out, or name a scenario")
    scenario, seed, record = read_repro(folder)
    check_fleet(scenario)
    result = run_watched(scenario, seed, choices=None if record is None else RecordedChoices(record))
    return {result.verdict: 1}, result.probes


POINT = "point "
"""Prefix that distinguishes the names of failpoints from those of probes."""

Hook = Callable[[str], None]


def run_watched(scenario: "Scenario", seed: int, *, choices: "Choices | None" = None) -> "Result":
    """Run a scenario like `snapline.sim.run.run`, and add the number of passes of each failpoint to the probes in the result."""
    from snapline.sim.run import run

    passed: dict[str, int] = {}
    with _watching(passed):
        result = run(scenario, seed, choices=choices)
    result.probes |= {POINT + name: passes for name, passes in sorted(passed.items())}
    return result


@contextmanager
def _watching(passed: dict[str, int]) -> Iterator[None]:
    """Count in `passed` how often each failpoint is passed while the block's failpoint hook is installed."""
    install = failpoints.install

    def install_counting(hook: Hook | None) -> None:
        def counting(name: str) -> None:
            passed[name] = passed.get(name, 0) + 1
            if hook is not None:
                hook(name)

        install(None if hook is None else counting)

    vars(failpoints)["install"] = install_counting
    try:
        yield
    finally:
        vars(failpoints)["install"] = install


def coverage_document(name: str, verdicts: Mapping[str, int], hits: Mapping[str, int], expected: list[str]) -> Document:
    """Build a document of the probes and failpoints that were passed, over all runs."""
    from snapline.sim.faults.fault_kinds import FAILPOINTS
    from snapline.sim.oracles.probes import CATALOGUE

    points = {name.removeprefix(POINT): passes for name, passes in hits.items() if name.startswith(POINT)}
    return document(
        "SimulationCoverage",
        of=name,
        runs=sum(verdicts.values()),
        verdicts=dict(verdicts),
        probes=[{"name": name, "hits": hits.get(name, 0), "text": probe.text} for name, probe in CATALOGUE.items()],
        probes_never_hit=[name for name in expected if not hits.get(name)],
        points=[
            {"name": name, "passes": points.get(name, 0)} for name in dict.fromkeys([*FAILPOINTS, *sorted(points)])
        ],
        points_never_passed=[name for name in FAILPOINTS if not points.get(name)],
    )


def show_coverage(result: Document, tables: DocumentTables) -> None:
    """Print the coverage tables. Probes and failpoints that were never passed come last, so that readers notice them."""
    tables.table(("PROBE", "HITS", ""), [(row["name"], row["hits"], row["text"]) for row in rows_of(result, "probes")])
    tables.line()
    points = rows_of(result, "points")
    tables.table(("POINT OF THE CODE", "PASSES"), [(row["name"], row["passes"]) for row in points])
    tables.line()
    verdicts, runs = result["verdicts"], result["runs"]
    assert isinstance(verdicts, dict) and isinstance(runs, int)
    ended = ", ".join(f"{number:,} {verdict}" for verdict, number in verdicts.items() if number)
    tables.line(f"{count(runs, 'run')}: {ended}")
    for words, name in (("probes never hit", "probes_never_hit"), ("points never passed", "points_never_passed")):
        missing = result[name]
        assert isinstance(missing, list)
        tables.line(f"{words}: {', '.join(missing) or 'none'}")
