"""`snapline sim …` runs fleets with faults in virtual time and judges the results (docs/simulation.md).

This module defines the commands that run no simulation, and `compare`. The command `compare` shows protocols, workloads, intervals and
failure rates in one table. `sim_runs` defines the commands for a single run, and `sim_sweeps` defines the commands for many runs.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli import sim_runs, sim_sweeps
from snapline.cli.command import Display, FleetArguments, command, seconds_of
from snapline.cli.output import Document, DocumentTables, document, rows_of
from snapline.cli.progress import RunProgress
from snapline.cli.sim_scenarios import ScenarioArgument, ScenarioChanges, Seeds, is_reference, parse_list, parse_seeds
from snapline.cli.sim_sweeps import Jobs, check_writable, finite, processors
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.sim.explorer.exploration import Exploration
    from snapline.sim.scenario import Scenario
    from snapline.sim.search.compare import Comparison
    from snapline.sim.search.compare_report import Advice


EVERY = "all"

WORK_WITHIN = "5m"
"""Time limit, in virtual time, for the work of a user's fleet. The limit is ten times the time that built-in workloads take."""


ProtocolsOption = Annotated[
    str,
    typer.Option(
        "--protocols",
        metavar="A,B",
        help="Protocols; the others are compared with the first. `all` stands for every protocol.",
    ),
]


@command
def compare(
    display: Display,
    scenario: ScenarioArgument,
    protocols: ProtocolsOption = "chandy-lamport,koo-toueg,uncoordinated,bcs,hmnr",
    patterns: Annotated[
        str | None,
        typer.Option("--patterns", metavar="A,B", help="Workloads.", show_default="that of the scenario"),
    ] = None,
    intervals: Annotated[
        str, typer.Option("--intervals", metavar="A,B", help="Intervals between checkpoints, such as 100ms,500ms.")
    ] = "500ms",
    failure_rates: Annotated[
        str, typer.Option("--failure-rates", metavar="A,B", help="Host crashes per virtual second.")
    ] = "0,0.5",
    mtbf: Annotated[
        str,
        typer.Option(
            "--mtbf", metavar="DURATION", help="Mean time between failures of your fleet, for the recommendation."
        ),
    ] = "1h",
    seeds: Seeds = "0:20",
    jobs: Jobs = None,
    arg: FleetArguments = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="File for a figure of the overhead of all cells.")
    ] = None,
) -> None:
    """Compare protocols on the same work with the same failures, and recommend one.

    A cell is one protocol, workload, interval and failure rate. All cells run the same seeds and are compared seed by seed. Times are
    virtual. The recommendation needs the failure rate 0 and a higher one. A fleet of your own runs under each protocol until it is
    idle. Exit codes: 0; 3: a run did not pass.
    """
    from snapline.sim.search.compare_report import figure

    printer = display.printer()
    template = _comparable(scenario, arg, patterns)
    check_writable(svg)
    mtbf_s = seconds_of(mtbf, "--mtbf")
    shown: list[RunProgress] = []

    def tell(done: int, total: int) -> None:
        if not shown:
            shown.append(RunProgress(printer, total))
        shown[0].reached(done)

    comparison = _compare(
        template,
        protocols=protocols,
        patterns=patterns,
        intervals=intervals,
        failure_rates=failure_rates,
        seeds=seeds,
        jobs=jobs,
        on_progress=tell,
    )
    for progress in shown:
        progress.end()
    if svg is not None:
        svg.write_text(figure(comparison), encoding="utf-8")
        printer.progress(f"wrote {svg}")
    advice, why_none = _advice(comparison, mtbf_s)
    result = _document(comparison, advice, why_none)
    printer.result(result, lambda _, tables: _show(comparison, advice, why_none, tables))
    raise typer.Exit(3 if any(cell.failed for cell in comparison.cells) else 0)


def _comparable(word: str, arg: list[str] | None, patterns: str | None) -> "Scenario":
    """Return the scenario that `word` specifies. A user's fleet gets a longer time limit, and no faults except the failures that are
    compared."""
    import msgspec

    from snapline.sim.scenario import LivenessPart

    if not is_reference(word):
        return ScenarioChanges(arg=arg).template(word)
    if patterns:
        raise UsageError(f"--patterns names built-in workloads, and {word} is a fleet: leave one of them out")
    template = ScenarioChanges(arg=arg, faults="quiet").template(word)
    return msgspec.structs.replace(template, liveness=LivenessPart(within=WORK_WITHIN))


def _compare(
    template: "Scenario",
    *,
    protocols: str,
    patterns: str | None,
    intervals: str,
    failure_rates: str,
    seeds: str,
    jobs: int | None,
    on_progress: Any,  # the callback that `compare_cells` takes
) -> "Comparison":
    from snapline.protocols.names import PROTOCOLS
    from snapline.sim.search.compare import compare as compare_cells

    return compare_cells(
        template,
        protocols=PROTOCOLS if protocols == EVERY else parse_list(protocols, "--protocols"),
        patterns=_patterns(patterns),
        intervals=parse_list(intervals, "--intervals"),
        failure_rates_per_s=[_rate(rate) for rate in parse_list(failure_rates, "--failure-rates")],
        seeds=parse_seeds(seeds),
        jobs=processors() if jobs is None else jobs,
        on_progress=on_progress,
    )


def _patterns(text: str | None) -> list[str]:
    from snapline.sim.workloads import PATTERNS

    names = parse_list(text, "--patterns") if text else []
    for name in names:
        if name not in PATTERNS:
            raise UsageError(f"--patterns names {name!r}: use some of {', '.join(PATTERNS)}")
    return names


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise UsageError(f"--failure-rates has {text!r}: give numbers of 0 or more, such as 0,0.5")
    return rate


def _advice(found: "Comparison", mtbf_s: float) -> "tuple[Advice | None, str]":
    """Return the recommendation and "". If there is no recommendation, return None and the reason."""
    from snapline.sim.search.compare_report import recommend

    if all(math.isnan(value) for values in found.bare.values() for value in values):
        return None, (
            f"no recommendation: no run of {', '.join(found.patterns)} came to rest, and only work that ends can be compared; "
            "give it an end for this, such as a number of rounds"
        )
    try:
        return recommend(found, mtbf_s), ""
    except UsageError as error:
        return None, f"no recommendation: {error}"


def _document(found: "Comparison", advice: "Advice | None", why_none: str) -> Document:
    import msgspec

    recommendation = None if advice is None else finite(msgspec.to_builtins(advice))
    fields = finite(msgspec.to_builtins(found))
    return document("SimulationComparison", recommendation=recommendation, note=why_none, **fields)


def _show(found: "Comparison", advice: "Advice | None", why_none: str, tables: DocumentTables) -> None:
    from snapline.sim.search.compare_report import advice_text, table

    tables.line(table(found))
    tables.line(why_none if advice is None else advice_text(advice).rstrip("\n"))


VIOLATION, UNDECIDED = 6, 3

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.command("run")(sim_runs.run)
app.command("sweep")(sim_sweeps.sweep)
app.command("replay")(sim_runs.replay)
app.command("shrink")(sim_runs.shrink)


@app.command("explore")
@command
def explore(
    display: Display,
    protocol: Annotated[str, typer.Option("--protocol", metavar="NAME", help="Protocol to explore, or all.")] = "all",
    agents: Annotated[int, typer.Option("--agents", metavar="N", help="Number of agents, 2 to 6.")] = 3,
    sends: Annotated[int, typer.Option("--sends", metavar="N", help="Number of messages that each agent sends.")] = 1,
    crashes: Annotated[int, typer.Option("--crashes", metavar="N", help="Number of failures in one run.")] = 1,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", help="Number of epochs or rounds, for coordinated protocols.")
    ] = 1,
    checkpoints: Annotated[
        int,
        typer.Option(
            "--checkpoints", metavar="N", help="Number of basic checkpoints of each agent, for other protocols."
        ),
    ] = 1,
    states_max: Annotated[
        int, typer.Option("--states-max", metavar="N", help="Number of states after which to give up.")
    ] = 5_000_000,
) -> None:
    """Explore every run of a small fleet: each order of sends, deliveries, checkpoints and crashes.

    Prints the shortest path to a violation. Exit codes: 0: no violation. 3: too many states. 6: a violation.
    """
    from snapline.sim.explorer.exploration import EXPLORED, Bounds
    from snapline.sim.explorer.exploration import explore as explore_one

    names = list(EXPLORED) if protocol == "all" else [protocol]
    bounds = Bounds(
        agents=agents, sends=sends, crashes=crashes, epochs=epochs, checkpoints=checkpoints, states_max=states_max
    )
    printer = display.printer()
    explorations: list[Exploration] = []
    for name in names:
        if len(names) > 1:
            printer.progress(f"exploring {name}")
        explorations.append(explore_one(name, bounds))
    printer.result(_exploration_document(explorations), _show_explorations)
    is_violated = any(one.violation is not None for one in explorations)
    is_complete = all(one.is_complete for one in explorations)
    raise typer.Exit(VIOLATION if is_violated else 0 if is_complete else UNDECIDED)


def _exploration_document(found: "list[Exploration]") -> Document:
    import msgspec

    return document("SimulationExploration", explorations=[msgspec.to_builtins(one) for one in found])


def _show_explorations(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "explorations")
    columns = ("PROTOCOL", "STATES", "STEPS", "DEPTH", "CPU s", "")
    tables.table(columns, [_exploration_row(row) for row in rows])
    for row in rows:
        violation, path = row["violation"], row["path"]
        if not isinstance(violation, dict) or not isinstance(path, list):
            continue
        tables.line()
        tables.line(f"{row['protocol']}: {violation['guarantee']} {violation['oracle']}: {violation['text']}")
        tables.line(f"the shortest way there, {len(path)} steps:")
        for number, step in enumerate(path, 1):
            tables.line(f"  {number:>3}  {step}")


def _exploration_row(row: "Document") -> list[object]:
    outcome = (
        "violation" if row["violation"] else "every run is right" if row["is_complete"] else "given up: too many states"
    )
    cpu_s = row["cpu_s"]
    cpu_text = f"{cpu_s:.2f}" if isinstance(cpu_s, float) else ""
    return [row["protocol"], row["states"], row["transitions"], row["depth"], cpu_text, outcome]


app.command("compare")(compare)


@app.command("script")
@command
def script(
    display: Display,
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Scenario scripts.")],
    rewrite: Annotated[bool, typer.Option("--rewrite", help="Rewrite the expected traces; review the change.")] = False,
) -> None:
    """Run scenario scripts, and compare their traces with the expected traces below the commands.

    Prints the differences. Exit code 6: there are differences, and they were not rewritten.
    """
    from snapline.sim.script.script_runner import check_script, rewrite_script

    scripts: list[dict[str, object]] = []
    for path in files:
        try:
            diff = check_script(path)
            is_written = rewrite and rewrite_script(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise UsageError(f"{path} cannot be read, or written: {reason or error}") from error
        scripts.append({"file": str(path), "is_same": not diff, "is_written": is_written, "diff": diff})
    display.printer().result(document("SimulationScripts", scripts=scripts), _show_scripts)
    raise typer.Exit(VIOLATION if any(one["diff"] and not one["is_written"] for one in scripts) else 0)


def _show_scripts(result: Document, tables: DocumentTables) -> None:
    for row in rows_of(result, "scripts"):
        outcome = "as written" if row["is_same"] else "rewritten" if row["is_written"] else "differs"
        tables.line(f"{row['file']}: {outcome}")
        if row["diff"]:
            tables.line(str(row["diff"]))


app.command("coverage")(sim_sweeps.coverage)
app.command("report")(sim_runs.report)


@app.command("workloads")
@command
def workloads(display: Display) -> None:
    """List the built-in workloads, for `fleet.pattern.name` and --pattern."""
    from snapline.sim.workloads import PATTERNS

    rows = [{"name": name, "text": text} for name, text in PATTERNS.items()]
    display.printer().result(
        document("SimulationWorkloads", workloads=rows),
        lambda shown, tables: tables.table(
            ("WORKLOAD", "WHAT HAPPENS"), [(row["name"], row["text"]) for row in rows_of(shown, "workloads")]
        ),
    )


@app.command("faults")
@command
def faults(display: Display) -> None:
    """List the keywords of fault files, the failpoints in the code, and the built-in templates."""
    from snapline.sim.faults.fault_kinds import FAILPOINTS
    from snapline.sim.faults.faults import describe_faults
    from snapline.sim.search.swarm import BUILT_IN

    words = [{"class": kind, "word": word, "text": text} for kind, word, text in describe_faults()]
    templates = [
        {"name": name, "faults": [] if template.swarm is None else list(template.swarm.faults)}
        for name, template in BUILT_IN.items()
    ]
    result = document("SimulationFaults", words=words, failpoints=list(FAILPOINTS), templates=templates)
    display.printer().result(result, _show_faults)


def _show_faults(result: Document, tables: DocumentTables) -> None:
    words = [(row["class"], row["word"], row["text"]) for row in rows_of(result, "words")]
    tables.table(("CLASS", "WORD", "WHAT HAPPENS"), words)
    tables.line()
    tables.line("points of the code, for `failpoint`:")
    points = result["failpoints"]
    assert isinstance(points, list)
    for point in points:
        tables.line(f"  {point}")
    tables.line()
    tables.line(f"templates: {', '.join(str(row['name']) for row in rows_of(result, 'templates'))}")
